"""The tables: what was decided, what was last seen, and what is still to be done.

This is the only description of the schema, and ``migrations/`` is checked against it. Rows are the
decisions. A process may crash between any two statements, and the next one resumes from the rows.

Ended rows are kept for long (``retention``) and must cost nothing meanwhile. A statement that looks
for live rows therefore filters by ``state`` (``fluxjob_lives``) or ``is_gone``, which have partial
indexes. A condition on ``ended_at`` means the same, but reads every row that was ever kept.
``tests/integration/db/test_retained_rows.py`` counts the rows that each reader touches.

``sql/05_comments.sql`` describes each table and column in the words that psql shows.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Computed,
    DateTime,
    Double,
    Float,
    ForeignKey,
    Identity,
    Index,
    Integer,
    MetaData,
    Numeric,
    Table,
    Text,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from fluxqueue.fluxjob.dependency import DependencyKind
from fluxqueue.fluxjob.follow import SlotState
from fluxqueue.fluxjob.states import FINAL, FluxJobState
from fluxqueue.workload import labels

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)


def _quoted(values: object) -> str:
    return ", ".join(f"'{value}'" for value in sorted(values))  # type: ignore[call-overload]


_FINAL = _quoted(FINAL)
LIVING = f"state NOT IN ({_FINAL})"
"""Condition of a FluxJob that has not ended, as its partial index and ``fluxjob_lives`` have it."""
RANK = """
CASE
    WHEN state = ANY (ARRAY['Running'::text, 'Allocated'::text]) THEN 0
    WHEN (state = ANY (ARRAY['Pending'::text, 'Reserved'::text])) AND blocked_by IS NULL THEN 1
    WHEN state = ANY (ARRAY['Pending'::text, 'Reserved'::text]) THEN 2
    ELSE 3
END"""
"""Ranks running FluxJobs, those in their turn, those that wait for others or for a time, the rest.

The index of the displayed list contains the same expression as ``fluxjob_rank``, in the words in
which Postgres gives it back.
"""
_NOW = text("now()")

fluxjobs = Table(
    "fluxjobs",
    metadata,
    Column("uid", Text, primary_key=True),
    Column("jobid", BigInteger, Identity(always=True), unique=True, nullable=False),
    Column("place", BigInteger, nullable=False),
    Column("namespace", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("workload_kind", Text, nullable=False),
    Column("workload_name", Text, nullable=False),
    Column("flux_uid", Text),
    Column("published", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("notices", JSONB, nullable=False, server_default=text("'[]'::jsonb")),
    Column("status_due_at", DateTime(timezone=True)),
    Column("release_at", DateTime(timezone=True)),
    Column("reconcile_at", DateTime(timezone=True)),
    Column("troubles", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("user_name", Text, nullable=False, server_default=""),
    Column("queue", Text, nullable=False, server_default="default"),
    Column("priority", BigInteger, nullable=False, server_default="0"),
    Column("priority_parts", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("state", Text, nullable=False, server_default=FluxJobState.PENDING),
    Column("reason", Text, nullable=False, server_default=""),
    Column("wait_reason", Text),
    Column("position", Integer),
    Column("held_by", Text),
    Column("quarantined_by", Text),
    # The facts of the workload as it was seen last (``fluxjob.facts``).
    Column("observed", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("request", JSONB, nullable=False),
    Column("size", Integer, nullable=False),
    Column("duration_s", Integer),
    Column(
        "grace_s",
        Integer,
        Computed("coalesce((observed ->> 'grace_s')::integer, 0)", persisted=True),
    ),
    Column("accepted_by", Text),
    Column("begin_at", DateTime(timezone=True)),
    Column("overrides", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("blocked_by", Text),
    Column("blocked_reason", Text, nullable=False, server_default=""),
    Column("gather_until", DateTime(timezone=True)),
    Column("author_hold", Text),
    Column("vacate_by", Text),
    Column("cancel_by", Text),
    Column("requeues", Integer, nullable=False, server_default="0"),
    Column("released_generation", BigInteger),
    Column("is_placed", Boolean, nullable=False, server_default=text("false")),
    Column("pinned_to", Text),
    Column("is_started", Boolean, nullable=False, server_default=text("false")),
    Column("start", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("lacking", Integer, nullable=False, server_default="0"),
    Column("result", Text),
    Column("is_deleting", Boolean, nullable=False, server_default=text("false")),
    Column("is_gone", Boolean, nullable=False, server_default=text("false")),
    Column("is_examined", Boolean, nullable=False, server_default=text("false")),
    Column("submitted_at", DateTime(timezone=True), nullable=False, server_default=_NOW),
    Column("allocated_at", DateTime(timezone=True)),
    Column("started_at", DateTime(timezone=True)),
    Column("ended_at", DateTime(timezone=True)),
    Column("expected_start", DateTime(timezone=True)),
    Column("version", BigInteger, nullable=False, server_default="1"),
    CheckConstraint(f"state IN ({_quoted(FluxJobState)})", name="state"),
    CheckConstraint(f"(state IN ({_FINAL})) = (ended_at IS NOT NULL)", name="ended"),
    CheckConstraint("size >= 0", name="size"),
    CheckConstraint("blocked_by IN ('dependency', 'begin-time', 'start-retry')", name="blocked_by"),
    CheckConstraint("lacking >= 0", name="lacking"),
    CheckConstraint("duration_s IS NULL OR duration_s > 0", name="duration"),
)
Index(
    "ix_fluxjobs_waiting",
    fluxjobs.c.queue,
    fluxjobs.c.priority.desc(),
    fluxjobs.c.place,
    # Exactly those that a cycle looks at, so that held and blocked ones cost it nothing.
    postgresql_where=text(
        "state IN ('Pending', 'Reserved') AND is_examined AND blocked_by IS NULL"
    ),
)
Index(
    "ix_fluxjobs_unexamined",
    fluxjobs.c.jobid,
    postgresql_where=text(
        "NOT is_examined AND (state IN ('Pending', 'Reserved') OR held_by = 'queue')"
    ),
)
Index("ix_fluxjobs_state", fluxjobs.c.queue, fluxjobs.c.state, postgresql_where=text(LIVING))
Index(
    "ix_fluxjobs_turn",
    text(f"({RANK})"),
    text("(- priority::bigint)"),
    fluxjobs.c.place,
    postgresql_where=text(LIVING),
)
# Those that are examined until all of their pods run.
Index(
    "ix_fluxjobs_starting",
    fluxjobs.c.allocated_at,
    postgresql_where=text("state IN ('Allocated', 'Running') AND NOT is_started"),
)
Index("ix_fluxjobs_lacking", fluxjobs.c.jobid, postgresql_where=text("lacking > 0"))
Index(
    "ix_fluxjobs_pending_actions",
    fluxjobs.c.uid,
    postgresql_where=text(
        "status_due_at IS NOT NULL OR release_at IS NOT NULL OR reconcile_at IS NOT NULL"
    ),
)
Index("ix_fluxjobs_namespace_name", fluxjobs.c.namespace, fluxjobs.c.name)
Index("ix_fluxjobs_namespace_workload_name", fluxjobs.c.namespace, fluxjobs.c.workload_name)
Index("ix_fluxjobs_present", fluxjobs.c.uid, postgresql_where=text(f"NOT is_gone OR {LIVING}"))
Index("ix_fluxjobs_gone", fluxjobs.c.ended_at, postgresql_where=text("is_gone"))

allocations = Table(
    "allocations",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("uid", Text, ForeignKey(fluxjobs.c.uid, ondelete="CASCADE"), nullable=False),
    Column("term", BigInteger, nullable=False),
    Column("starts_at", BigInteger, nullable=False),
    Column("until", BigInteger),
    Column("plan_s", BigInteger),
    Column("is_exclusive", Boolean, nullable=False, server_default=text("false")),
    Column("held", ARRAY(Text), nullable=False, server_default=text("'{}'")),
    Column("is_independent", Boolean, nullable=False, server_default=text("false")),
    Column("is_live", Boolean, nullable=False, server_default=text("true")),
    Column("ended_at", DateTime(timezone=True)),
    CheckConstraint("is_live = (ended_at IS NULL)", name="ended"),
)
Index("uq_allocations_live", allocations.c.uid, unique=True, postgresql_where=text("is_live"))
Index("ix_allocations_uid", allocations.c.uid)

allocation_slots = Table(
    "allocation_slots",
    metadata,
    Column(
        "allocation_id",
        BigInteger,
        ForeignKey(allocations.c.id, ondelete="CASCADE"),
        primary_key=True,
    ),
    Column("number", Integer, primary_key=True),
    Column("node", Text, nullable=False),
    Column("resources", JSONB, nullable=False),
    Column("state", Text, nullable=False, server_default=SlotState.FREE),
    Column("pod_uid", Text),
    Column("given_at", DateTime(timezone=True), nullable=False, server_default=_NOW),
    Column("returned_at", DateTime(timezone=True)),
    Column("refused_at", DateTime(timezone=True)),
    Column("completion_index", Integer),
    Column("kind", Text, nullable=False, server_default=""),
    Column("granted", JSONB),
    Column("others", ARRAY(Text)),
    Column("past_s", Double, nullable=False, server_default="0"),
    CheckConstraint(f"state IN ({_quoted(SlotState)})", name="state"),
    CheckConstraint(f"(state = '{SlotState.HELD}') = (pod_uid IS NOT NULL)", name="held"),
)
Index(
    "uq_allocation_slots_pod",
    allocation_slots.c.pod_uid,
    unique=True,
    postgresql_where=text("pod_uid IS NOT NULL"),
)
Index(
    "ix_allocation_slots_others",
    allocation_slots.c.allocation_id,
    postgresql_where=text("others IS NOT NULL AND state <> 'returned'"),
)
Index(
    "ix_allocation_slots_returned_at",
    allocation_slots.c.returned_at,
    postgresql_where=text("returned_at IS NOT NULL"),
)
# By allocation first. Before the planner knows how many rows there are, it also takes this index
# for the slots of one allocation. If the index began with the node, each such look-up would read
# all of it.
Index(
    "ix_allocation_slots_live",
    allocation_slots.c.allocation_id,
    allocation_slots.c.node,
    postgresql_where=text(f"state <> '{SlotState.RETURNED}'"),
)

reservations = Table(
    "reservations",
    metadata,
    Column("uid", Text, ForeignKey(fluxjobs.c.uid, ondelete="CASCADE"), primary_key=True),
    Column("starts_at", BigInteger, nullable=False),
    Column("until", BigInteger),
    Column("kept_from", BigInteger),
    Column("nodes", JSONB, nullable=False),
)

expected_starts = Table(
    "expected_starts",
    metadata,
    Column("uid", Text, ForeignKey(fluxjobs.c.uid, ondelete="CASCADE"), primary_key=True),
    Column("latest_start", BigInteger, nullable=False),
    Column("kept_from", BigInteger),
    Column("nodes", JSONB, nullable=False),
)

# The start that a job was shown first, the bound that it is shown now, and the true start.
told_starts = Table(
    "told_starts",
    metadata,
    Column("uid", Text, ForeignKey(fluxjobs.c.uid, ondelete="CASCADE"), primary_key=True),
    Column("told_at", BigInteger, nullable=False),
    Column("planned", BigInteger, nullable=False),
    Column("expected", BigInteger, nullable=False),
    Column("expected_by", BigInteger, nullable=False),
    Column("shown_by", BigInteger, nullable=False),
    Column("started_at", BigInteger),
)
Index("ix_told_starts_started_at", told_starts.c.started_at)

# No foreign keys: they lock the rows that they refer to. A cycle that decides this must not wait
# for a transaction that reconciles these rows.
preemptions = Table(
    "preemptions",
    metadata,
    Column("victim", Text, primary_key=True),
    Column("allocation_id", BigInteger, nullable=False),
    Column("preemptor", Text, nullable=False),
    Column("jobid", BigInteger, nullable=False),
    Column("vacate_at", BigInteger, nullable=False),
    Column("decided_at", DateTime(timezone=True), nullable=False, server_default=_NOW),
    Column("is_told", Boolean, nullable=False, server_default=text("false")),
    Column("is_vacated", Boolean, nullable=False, server_default=text("false")),
    Column("is_off", Boolean, nullable=False, server_default=text("false")),
    Column("reason_before", Text, nullable=False, server_default=""),
)
Index("ix_preemptions_preemptor", preemptions.c.preemptor)

pods = Table(
    "pods",
    metadata,
    Column("uid", Text, primary_key=True),
    Column("workload_uid", Text, nullable=False),
    Column("namespace", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("phase", Text, nullable=False),
    Column("is_gated", Boolean, nullable=False),
    Column("is_terminating", Boolean, nullable=False),
    Column("node", Text),
    Column("completion_index", Integer),
    # When its release was last sent. A release that is under way is not sent again.
    Column("sent_at", DateTime(timezone=True)),
    Column("slot_kind", Text, nullable=False, server_default=""),
    Column("uses", JSONB),
    Column("used_first", JSONB),
    Column("unmanaged", JSONB),
    Column("unschedulable", Text),
    Column("unschedulable_at", DateTime(timezone=True)),
)
Index("ix_pods_workload_uid", pods.c.workload_uid)
Index("ix_pods_unmanaged", pods.c.node, postgresql_where=text("unmanaged IS NOT NULL"))
Index("ix_pods_sent_at", pods.c.sent_at, postgresql_where=text("is_gated AND sent_at IS NOT NULL"))

nodes = Table(
    "nodes",
    metadata,
    Column("name", Text, primary_key=True),
    Column("fact", JSONB, nullable=False),
    Column("seen_at", DateTime(timezone=True), nullable=False, server_default=_NOW),
    Column("hostname", Text, Computed(f"fact -> 'labels' ->> '{labels.HOSTNAME}'", persisted=True)),
)
Index("ix_nodes_hostname", nodes.c.hostname)

foreign_usage = Table(
    "foreign_usage",
    metadata,
    Column("pod_uid", Text, primary_key=True),
    Column("namespace", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("node", Text, nullable=False),
    Column("resources", JSONB, nullable=False),
    Column("is_permanent", Boolean, nullable=False, server_default=text("false")),
)
Index("ix_foreign_usage_node", foreign_usage.c.node)

graph_changes = Table(
    "graph_changes",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("kind", Text, nullable=False),
    Column("key", Text, nullable=False),
    CheckConstraint(
        "kind IN ('node', 'foreign', 'allocation', 'queue', 'fluxjob', 'sharing', 'pool',"
        " 'reservation', 'cluster')",
        name="kind",
    ),
)

leadership = Table(
    "leadership",
    metadata,
    Column("role", Text, primary_key=True),
    Column("term", BigInteger, nullable=False),
    Column("holder", Text, nullable=False),
    Column("expires_at", DateTime(timezone=True), nullable=False),
    Column("commits", BigInteger, nullable=False, server_default=text("0")),
    Column("timeline", Text),
    Column("since", DateTime(timezone=True), nullable=False, server_default=text("now()")),
)

history = Table(
    "history",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("at", DateTime(timezone=True), nullable=False, server_default=_NOW),
    Column("uid", Text, nullable=False),
    Column("jobid", BigInteger, nullable=False),
    Column("actor", Text, nullable=False),
    Column("event", Text, nullable=False),
    Column("detail", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
)
Index("ix_history_uid", history.c.uid, history.c.id)

fluxqueues = Table(
    "fluxqueues",
    metadata,
    Column("name", Text, primary_key=True),
    Column("uid", Text),
    Column("generation", BigInteger, nullable=False, server_default="0"),
    Column("spec", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("namespaces", JSONB),
    Column("queue_depth", Integer),
    Column("priority", Integer, nullable=False, server_default="0"),
    Column("min_priority", Integer),
    Column("max_priority", Integer),
    Column("newcomer_points", Integer, nullable=False, server_default="0"),
    Column("fault", Text),
    CheckConstraint("queue_depth > 0", name="queue_depth"),
)

rules = Table(
    "rules",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("uid", Text, nullable=False),
    Column("generation", BigInteger, nullable=False, server_default="0"),
    Column("spec", JSONB),
    Column("fault", Text),
    Column("record", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    CheckConstraint("kind IN ('sharing', 'pool', 'reservation')", name="kind"),
)

node_requests = Table(
    "node_requests",
    metadata,
    Column("number", BigInteger, Identity(always=True), primary_key=True),
    Column("pool", Text, nullable=False),
    Column("uid", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("count", Integer, nullable=False),
    Column("price", Numeric, nullable=False, server_default="0"),
    Column("asked_at", BigInteger, nullable=False),
    Column("ready_at", BigInteger, nullable=False),
    Column("kept", JSONB, nullable=False, server_default=text("'[]'::jsonb")),
    Column("refused", Text),
    Column("pool_spec", JSONB, nullable=False, server_default=text("'{}'::jsonb")),
    Column("ended", Text),
    Column("reason", Text, nullable=False, server_default=""),
    Column("ended_at", DateTime(timezone=True)),
    Column("is_settled", Boolean, nullable=False, server_default=text("false")),
    CheckConstraint("count > 0", name="count"),
    CheckConstraint("ended IN ('used', 'failed', 'withdrawn')", name="ended"),
)
Index(
    "ix_node_requests_open",
    node_requests.c.number,
    postgresql_where=text("ended IS NULL OR NOT is_settled"),
)
Index("ix_node_requests_uid", node_requests.c.uid)

pool_nodes = Table(
    "pool_nodes",
    metadata,
    Column("node", Text, primary_key=True),
    Column("pool", Text, nullable=False),
    Column("request", BigInteger),
    Column("returned_at", BigInteger),
    Column("seen_at", DateTime(timezone=True), nullable=False, server_default=_NOW),
)
Index("ix_pool_nodes_request", pool_nodes.c.request)

fair_shares = Table(
    "fair_shares",
    metadata,
    Column("queue", Text, primary_key=True),
    Column("user_name", Text, primary_key=True),
    Column("used", Float, nullable=False),
    Column("factor", Float, nullable=False),
    Column("points", Integer, nullable=False),
    Column("computed_at", DateTime(timezone=True), nullable=False),
)

dependencies = Table(
    "dependencies",
    metadata,
    Column("uid", Text, ForeignKey(fluxjobs.c.uid, ondelete="CASCADE"), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("kind", Text, nullable=False),
    Column("namespace", Text, nullable=False),
    Column("job", Text, nullable=False),
    Column("target_uid", Text),
    Column("is_satisfied", Boolean, nullable=False, server_default=text("false")),
    CheckConstraint(f"kind IN ({_quoted(DependencyKind)})", name="kind"),
)
Index("ix_dependencies_namespace_job", dependencies.c.namespace, dependencies.c.job)
Index("ix_dependencies_target_uid", dependencies.c.target_uid)

accounting = Table(
    "accounting",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("uid", Text, nullable=False),
    Column("jobid", BigInteger, nullable=False),
    Column("run", Integer, nullable=False),
    Column("allocation_id", BigInteger),
    Column("namespace", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("workload_kind", Text, nullable=False),
    Column("user_name", Text, nullable=False),
    Column("queue", Text, nullable=False),
    Column("size", Integer, nullable=False),
    Column("queued_at", DateTime(timezone=True), nullable=False),
    Column("allocated_at", DateTime(timezone=True)),
    Column("started_at", DateTime(timezone=True)),
    Column("ended_at", DateTime(timezone=True), nullable=False),
    Column("nodes", Integer, nullable=False),
    Column("slots", Integer, nullable=False),
    Column("cpu_s", Double, nullable=False),
    Column("gpu_s", Double, nullable=False),
    Column("result", Text, nullable=False),
    Column("reason", Text, nullable=False, server_default=""),
)
Index("uq_accounting_run", accounting.c.uid, accounting.c.run, unique=True)
Index("ix_accounting_queue_user", accounting.c.queue, accounting.c.user_name, accounting.c.ended_at)
Index("ix_accounting_ended_at", accounting.c.ended_at)
Index("ix_accounting_jobid", accounting.c.jobid)
Index("ix_accounting_namespace_name", accounting.c.namespace, accounting.c.name)

run_times = Table(
    "run_times",
    metadata,
    Column("id", BigInteger, Identity(always=True), primary_key=True),
    Column("queue", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("template", Text, nullable=False),
    Column("limit_s", BigInteger),
    Column("seconds", Double, nullable=False),
    Column("result", Text, nullable=False),
    Column("ended_at", DateTime(timezone=True), nullable=False),
)
Index(
    "ix_run_times_class", run_times.c.queue, run_times.c.owner, run_times.c.template, run_times.c.id
)
Index("ix_run_times_ended_at", run_times.c.ended_at)

quarantined_objects = Table(
    "quarantined_objects",
    metadata,
    Column("kind", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("namespace", Text, nullable=False, server_default=""),
    Column("name", Text, nullable=False, server_default=""),
    Column("reason", Text, nullable=False),
    Column("since", DateTime(timezone=True), nullable=False, server_default=_NOW),
)

learned_sizes = Table(
    "learned_sizes",
    metadata,
    Column("namespace", Text, primary_key=True),
    Column("template", Text, primary_key=True),
    Column("extra", JSONB, nullable=False),
    Column("learned_at", Text, nullable=False),
    Column("written_at", DateTime(timezone=True), nullable=False, server_default=_NOW),
)

loops = Table(
    "loops",
    metadata,
    Column("loop", Text, primary_key=True),
    Column("holder", Text, nullable=False),
    Column("began_at", DateTime(timezone=True), nullable=False, server_default=_NOW),
    Column("written_at", DateTime(timezone=True), nullable=False, server_default=_NOW),
    Column("succeeded_at", DateTime(timezone=True)),
    Column("failed_at", DateTime(timezone=True)),
    Column("error", Text),
    Column("patience_s", Integer, nullable=False),
)

schema_floor = Table(
    "schema_floor",
    metadata,
    Column("is_only", Boolean, primary_key=True, server_default=text("true")),
    Column("oldest_head", Text, nullable=False),
    Column("digest", Text),
    CheckConstraint("is_only", name="one_row"),
)

cluster = Table(
    "cluster",
    metadata,
    Column("is_only", Boolean, primary_key=True, server_default=text("true")),
    Column("uid", Text, nullable=False),
    Column("server", Text, nullable=False),
    Column("bound_at", DateTime(timezone=True), nullable=False, server_default=text("now()")),
    Column("autoscaler", Text, nullable=False, server_default=""),
    CheckConstraint("is_only", name="one_row"),
)
