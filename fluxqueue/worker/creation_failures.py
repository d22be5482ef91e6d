"""Why pods are missing: the words of the controller that cannot create them.

The ``reconcile`` task calls it for workloads with pods that were not created for a while. A quota,
a missing ServiceAccount or PodSecurity refuse pods at admission. The Job controller says so in an
Event ``FailedCreate`` on the Job, and nowhere else. Where it makes a Workload of Kubernetes for
each Job, that can be refused first. Of a PodGroup that is refused, 1.37 says nothing.

Events are read for these workloads only. A watch of all Events of a cluster costs more than all
other watches together, because the API server does not cache Events. For the same reason one read
serves all workloads of a namespace for ``FRESH_S`` seconds. In a burst, many Jobs wait for the Job
controller, and each read makes the API server decode all Events there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from fluxqueue.clock import Clock
from fluxqueue.fluxjob.start_watch import StartRules
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import EVENTS
from fluxqueue.process.settings import Settings

FAILED_CREATE = frozenset({"FailedCreate", "FailedWorkloadCreate", "FailedWorkloadCompilation"})
"""Reasons of the Events of controllers that cannot create a pod, or what must be there first."""

_SELECTOR = "type=Warning,reason!=FailedScheduling"
"""The API server selects by one reason only. Warnings of kube-scheduler are by far the most."""

FRESH_S = 5.0
"""Seconds for which one read of a namespace's Events serves all workloads there."""

_EARLIER_S = 2.0
"""An Event shows whole seconds of another clock. So much earlier than the release may it be."""


def start_rules(settings: Settings) -> StartRules:
    """Return how long a start may take, as the administrator has set it."""
    return StartRules(
        unschedulable_s=settings.unschedulable_s,
        timeout_s=settings.start_timeout_s,
        tries_max=settings.start_tries,
        binds_groups=settings.binds_groups,
    )


@dataclass(frozen=True, slots=True)
class _EventsRead:
    """The Events of a namespace by the UID of their object, and when the read began."""

    at_s: float
    by_uid: asyncio.Task[dict[str, list[dict[str, Any]]]]


@dataclass(slots=True)
class CreationFailures:
    """Reads the Events ``FAILED_CREATE`` of namespaces, each once in ``FRESH_S`` seconds."""

    client: KubeClient
    clock: Clock
    _read: dict[str, _EventsRead] = field(default_factory=dict)

    async def words(self, namespace: str, uid: str, since_s: float) -> str:
        """Return why the pods of a workload are not created, or empty.

        ``since_s``: epoch seconds of its release. Earlier Events are about another start.
        """
        now_s = self.clock.monotonic_s()
        # Old reads are forgotten here: namespaces come and go.
        self._read = {k: v for k, v in self._read.items() if now_s - v.at_s < FRESH_S}
        found = self._read.get(namespace)
        if found is None:
            found = _EventsRead(now_s, asyncio.create_task(self._list(namespace)))
            self._read[namespace] = found
        # Shielded: a workload that is no longer waited for must not end the read for the others.
        by_uid = await asyncio.shield(found.by_uid)
        return newest(by_uid.get(uid, []), since_s)

    async def _list(self, namespace: str) -> dict[str, list[dict[str, Any]]]:
        read = await self.client.list(EVENTS, namespace, field_selector=_SELECTOR)
        by_uid: dict[str, list[dict[str, Any]]] = {}
        for event in read.items:
            if event.get("reason") not in FAILED_CREATE:
                continue
            uid = str((event.get("involvedObject") or {}).get("uid") or "")
            by_uid.setdefault(uid, []).append(event)
        return by_uid


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
