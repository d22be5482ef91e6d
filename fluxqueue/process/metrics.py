"""All metrics of controller and worker in one registry. ``endpoint`` serves ``/metrics``.

The code that does or sees something sets its metric: client, database, worker, controller. The
deciding core knows nothing of metrics. Names and labels are an interface for dashboards and alerts
(docs/reference/metrics.md lists them).

Only the leading controller exports what is read from the rows, so a sum over processes counts
nothing twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prometheus_client import (
    CONTENT_TYPE_LATEST,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

CONTENT_TYPE = CONTENT_TYPE_LATEST
REGISTRY = CollectorRegistry(auto_describe=True)
ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)

_SHORT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_LONG_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600, 4 * 3600, 86400)


@dataclass(frozen=True, slots=True)
class Described:
    """One metric as docs/reference/metrics.md lists it. docs/metrics_table.py writes the list."""

    name: str
    kind: str
    labels: tuple[str, ...]
    text: str


DESCRIBED: list[Described] = []
"""Every metric of controller and worker, in the order of this file."""


def _counter(name: str, text: str, *label_names: str) -> Counter:
    DESCRIBED.append(Described(name, "counter", label_names, text))
    return Counter(name, text, label_names, registry=REGISTRY)


def _gauge(name: str, text: str, *label_names: str) -> Gauge:
    DESCRIBED.append(Described(name, "gauge", label_names, text))
    return Gauge(name, text, label_names, registry=REGISTRY)


def _histogram(name: str, text: str, buckets: Sequence[float], *label_names: str) -> Histogram:
    DESCRIBED.append(Described(name, "histogram", label_names, text))
    return Histogram(name, text, label_names, registry=REGISTRY, buckets=buckets)


# --- the queue: set by the leading controller from the rows --------------------------------------

FLUXJOBS = _gauge(
    "fluxqueue_fluxjobs",
    "FluxJobs that have not ended, with an empty queue if there is no such FluxQueue.",
    "queue",
    "state",
)
OLDEST_WAITING_S = _gauge(
    "fluxqueue_oldest_waiting_seconds",
    "Age of the FluxJob that has waited longest in a state.",
    "queue",
    "state",
)
PENDING_ACTIONS = _gauge("fluxqueue_pending_actions", "FluxJobs with a pending action.", "task")
OWED_AGE_S = _gauge("fluxqueue_pending_actions_seconds", "Age of the oldest of those.", "task")
TASKS = _gauge("fluxqueue_tasks", "Tasks of procrastinate: todo (due or later), doing.", "state")
DRIFT = _gauge("fluxqueue_drift_rows", "Broken invariants in the rows, 0 if healthy.")

RESYNC_TROUBLES = _counter(
    "fluxqueue_resync_troubles_total",
    "Parts that a resync could not accept or write: field of a status, record, or workload.",
    "what",
)
DATABASE_WENT_BACK = _counter(
    "fluxqueue_database_went_back_total",
    "Times that the database knew less than before: it was restored, or a replica took over.",
)
UNWRITTEN = _counter(
    "fluxqueue_unwritten_total",
    "Observations (workload, node, foreign, queue) that could not be written even alone.",
    "kind",
)
OBJECTS_SET_ASIDE = _counter(
    "fluxqueue_objects_quarantined_total",
    "Objects that could not be read or written down, and were set aside (view quarantine).",
    "kind",
)
LOST_SLOTS = _gauge("fluxqueue_lost_slots", "Slots of running work on nodes that are down or gone.")

# --- the worker ----------------------------------------------------------------------------------

CYCLE_S = _histogram(
    "fluxqueue_cycle_duration_seconds",
    "Time of one scheduling cycle with its transaction.",
    _SHORT_S,
)
CYCLE_PART_S = _histogram(
    "fluxqueue_cycle_part_seconds",
    "The same by part: changes (applied to the graph), queue (read and examined), match, store.",
    _SHORT_S,
    "part",
)
PROMISES = _counter(
    "fluxqueue_promises_total",
    "Reservations of started FluxJobs: kept, broken, or excused by a reason in history.",
    "outcome",
)
EXPECTED_STARTS = _counter(
    "fluxqueue_expected_starts_total",
    "Started FluxJobs by their first expected start: by expected, by latest (9 of 10), or later.",
    "outcome",
)
DECISIONS = _counter(
    "fluxqueue_decisions_total",
    "Decisions that were committed: allocated, reserved, waiting, unsatisfiable.",
    "outcome",
)
SET_ASIDE = _counter(
    "fluxqueue_quarantined_total",
    "FluxJobs that could not be read or decided and are in quarantine (view quarantine).",
)
PREEMPTIONS = _counter(
    "fluxqueue_preemptions_total",
    "Preempted FluxJobs: planned, requeued, or spared before their time.",
    "outcome",
)
START_FAILURES = _counter(
    "fluxqueue_start_failures_total",
    "Starts that failed: pods sent to another node, and workloads sent back to the queue.",
    "reason",
)
REVIEWS = _counter(
    "fluxqueue_reviews_total",
    "PlacementReviews by verdict, or by reason: Invalid, NotFound, TooMany, Failed.",
    "outcome",
)
REVIEW_S = _histogram(
    "fluxqueue_review_seconds",
    "Time for which a PlacementReview keeps the matcher from the next cycle.",
    _SHORT_S,
)
UNGATED_S = _histogram(
    "fluxqueue_submit_to_ungated_seconds",
    "From submission to the ungating of a pod. First pods only, no replacements.",
    _LONG_S,
)
ROWS_SKIPPED = _counter(
    "fluxqueue_rows_skipped_total",
    "Rows that one step could not use. It left them out and did all others.",
    "step",
)
EFFECTS = _counter(
    "fluxqueue_effects_total", "Attempted effects: done or failed.", "kind", "outcome"
)
HEALED = _counter("fluxqueue_drift_healed_total", "Places where drift was repaired.", "invariant")
RESCUED = _counter("fluxqueue_tasks_rescued_total", "Tasks of crashed workers.", "task")
SWEPT = _counter("fluxqueue_effects_swept_total", "Pending actions without a task.", "task")

LAST_SUCCESS = _gauge(
    "fluxqueue_last_success_timestamp_seconds",
    "When a loop of this process last succeeded, or had nothing to do.",
    "loop",
)
LOOP_PATIENCE_S = _gauge(
    "fluxqueue_loop_patience_seconds", "After how long without success a loop is late.", "loop"
)

SHARING_NODES = _gauge(
    "fluxqueue_sharing_nodes", "Nodes for which a ResourceSharingPolicy counts.", "policy"
)
SHARING_VIOLATIONS = _gauge(
    "fluxqueue_sharing_violations", "Unmanaged pods that violate a ResourceSharingPolicy.", "policy"
)

POOL_NODES = _gauge("fluxqueue_node_pool_nodes", "Nodes that a FluxNodePool has.", "pool")
POOL_ARRIVING = _gauge(
    "fluxqueue_node_pool_arriving_nodes", "Nodes asked for that have yet to come.", "pool"
)
NODES_PROTECTED = _gauge("fluxqueue_protected_nodes", "Nodes that autoscalers must leave alone.")
NODES_ASKED = _counter("fluxqueue_nodes_asked_total", "Nodes asked of a FluxNodePool.", "pool")
NODE_REQUESTS_ENDED = _counter(
    "fluxqueue_node_requests_ended_total",
    "Requests for nodes that ended: used, failed or withdrawn.",
    "pool",
    "outcome",
)

# --- leadership, API server, database, certificates ----------------------------------------------

IS_LEADER = _gauge("fluxqueue_is_leader", "1 while this process holds the role.", "role")
TERM = _gauge("fluxqueue_leadership_term", "Term this process last held the role under.", "role")
API_REQUESTS = _counter(
    "fluxqueue_api_requests_total",
    "Answers of the API server. Code is 0 if the connection failed.",
    "verb",
    "code",
)
API_RETRIES = _counter("fluxqueue_api_retries_total", "Requests that were sent again.", "verb")
EVENTS_UNTOLD = _counter(
    "fluxqueue_events_untold_total", "Events that the API server refused.", "reason"
)
DATABASE_ERRORS = _counter(
    "fluxqueue_database_errors_total", "Errors of the database: unavailable or other.", "kind"
)
CERTIFICATE_EXPIRY = _gauge(
    "fluxqueue_certificate_expiry_timestamp_seconds",
    "Expiry of the webhook's CA and of its serving certificate.",
    "kind",
)
CERTIFICATE_CHANGES = _counter(
    "fluxqueue_certificate_changes_total", "Writes to the Secret and to the caBundle.", "object"
)

# --- the view server -----------------------------------------------------------------------------

VIEW_REQUESTS = _counter(
    "fluxqueue_view_requests_total", "Answers of the view server.", "path", "code"
)
VIEW_S = _histogram(
    "fluxqueue_view_request_seconds", "Time of one answer, without streams of changes.", _SHORT_S
)
VIEW_FOLLOWERS = _gauge("fluxqueue_view_followers", "Open streams of changes.")


def lead(role: str, term: int) -> None:
    """Show that this process holds ``role`` under ``term``."""
    IS_LEADER.labels(role).set(1)
    TERM.labels(role).set(term)


def stop_leading(role: str) -> None:
    """Show that this process does not hold ``role``."""
    IS_LEADER.labels(role).set(0)


def render() -> bytes:
    """Return all metrics in Prometheus' text format."""
    return generate_latest(REGISTRY)
