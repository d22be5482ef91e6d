"""Why pods are missing: the words of the controller that cannot create them.

The ``reconcile`` task calls it for workloads with pods that were not created for a while. A quota,
a missing ServiceAccount or PodSecurity refuse pods at admission. The Job controller says so in an
Event ``FailedCreate`` on the Job, and nowhere else.

Events are read for these workloads only. A watch of all Events of a cluster costs more than all
other watches together, because the API server does not cache Events.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from fluxqueue.db.store.starts import MissingPods, keep_words
from fluxqueue.fluxjob.start_watch import StartRules
from fluxqueue.kube.resources import EVENTS
from fluxqueue.settings import Settings
from fluxqueue.worker.context import WorkerContext

FAILED_CREATE = "FailedCreate"
"""Reason of the Event of any controller that cannot create a pod."""

_EARLIER_S = 2.0
"""An Event shows whole seconds of another clock. So much earlier than the release may it be."""


def start_rules(settings: Settings) -> StartRules:
    """Return how long a start may take, as the administrator has set it."""
    return StartRules(
        unschedulable_s=settings.unschedulable_s,
        timeout_s=settings.start_timeout_s,
        tries_max=settings.start_tries,
    )


async def explain_missing(context: WorkerContext, one: MissingPods) -> None:
    """Read why the pods of one workload are not created, and keep it in the row."""
    found = await context.client.list(
        EVENTS,
        one.namespace,
        field_selector=f"involvedObject.uid={one.workload_uid},reason={FAILED_CREATE}",
    )
    await keep_words(context.database, one.workload_uid, newest(found.items, one.since_s))


def newest(events: list[dict[str, Any]], since_s: float) -> str:
    """Return the message of the newest Event that is not older than ``since_s`` (epoch seconds)."""
    timed = [(_at_s(one), str(one.get("message") or "")) for one in events]
    at_s, message = max(timed, default=(0.0, ""))
    return message if at_s >= since_s - _EARLIER_S else ""


def _at_s(event: Mapping[str, Any]) -> float:
    """Return when an Event was last repeated, in epoch seconds."""
    created = (event.get("metadata") or {}).get("creationTimestamp")
    repeated = (event.get("series") or {}).get("lastObservedTime")
    times = (repeated, event.get("lastTimestamp"), event.get("eventTime"), created)
    text = next((str(one) for one in times if one), None)
    return 0.0 if text is None else datetime.fromisoformat(text).timestamp()
