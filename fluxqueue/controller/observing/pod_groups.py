"""PodGroup objects: the minimum size of a group and its placement constraints.

Part of ``event_router``. It reads the PodGroups of coscheduling, which users of our predecessors
wrote. It also reads those of Kubernetes (``scheduling.k8s.io``): PodGroup since 1.36, and before
that a part of a Workload. It never writes them.

A definition may be installed, or a feature gate enabled, at any time. So discovery is repeated at
intervals. The pods declare their membership (``groups``). An object to which no pod refers has no
effect.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fluxqueue.clock import Clock
from fluxqueue.errors import ApiError, ApiUnavailable
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.discovery import find_served
from fluxqueue.kube.informer import Informer, TroubleHandler
from fluxqueue.kube.resources import ApiResource
from fluxqueue.workload.objects import Object

logger = logging.getLogger(__name__)

ASK_EVERY_S = 10.0
KINDS = frozenset(
    {
        ("scheduling.x-k8s.io", "PodGroup"),
        ("scheduling.sigs.k8s.io", "PodGroup"),
        ("scheduling.k8s.io", "PodGroup"),
        ("scheduling.k8s.io", "Workload"),
    }
)
"""The kinds of coscheduling, of coscheduling under its former name, and of Kubernetes."""


@dataclass(frozen=True, slots=True)
class Declared:
    """What an object declares for its group.

    ``minimum`` is the least number of pods. ``patience_s`` is how long (seconds) they may arrive.
    ``within`` is the node label of the level that all of them share. ``parent`` is the
    CompositePodGroup that it is a part of (Kubernetes 1.37).
    """

    minimum: int
    patience_s: int | None = None
    within: str | None = None
    priority: int | None = None
    priority_class: str | None = None
    parent: str | None = None


class PodGroups:
    """All PodGroup objects. ``on_change`` receives namespace and name of a group."""

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        on_change: Callable[[str, str], None],
        on_trouble: TroubleHandler | None = None,
    ) -> None:
        self._client, self._clock, self._on_change = client, clock, on_change
        self._on_trouble = on_trouble
        self._informers: dict[str, Informer] = {}
        self._declared: dict[tuple[str, str], dict[str, Declared]] = {}
        self._names: dict[str, set[str]] = {}
        """The names of the groups to which each object applies, by its UID."""

    def find(self, namespace: str, name: str) -> Declared | None:
        """Return what the object of a name declares, or None without an object or a size.

        The replicas of one group of a Workload have names that begin with the name of the group.
        """
        for one in (name, name.rpartition(".")[0]):
            for said in self._declared.get((namespace, one), {}).values():
                return said
        return None

    async def run(self) -> None:
        """Follow each definition that appears, until cancelled."""
        try:
            while True:
                await self._look()
                await self._clock.sleep(ASK_EVERY_S)
        finally:
            for informer in self._informers.values():
                await informer.stop()

    async def _look(self) -> None:
        try:
            for resource in await find_served(self._client, KINDS):
                if resource.key not in self._informers and await self._may_read(resource):
                    informer = Informer(
                        self._client,
                        resource,
                        on_change=self._changed,
                        on_trouble=self._on_trouble,
                        retry_cap_s=60.0,
                    )
                    # Stored before the start: ``run`` must stop it if it is cancelled now.
                    self._informers[resource.key] = informer
                    informer.start()
        except (ApiUnavailable, ApiError) as error:
            extra = {"action": "discover", "error": str(error)}
            logger.warning("kinds of groups not read; tried again", extra=extra)
        except Exception:
            # A defect in one definition must not end the observation of the others.
            logger.exception("kinds of groups not read; tried again")

    async def _may_read(self, resource: ApiResource) -> bool:
        try:
            await self._client.request("GET", resource.path(), query={"limit": "1"})
        except ApiError:
            return False  # no permission to read it: retried later
        return True

    def _changed(self, old: Object | None, new: Object | None) -> None:
        found = new or old
        assert found is not None, "an informer tells of an object, old or new"
        namespace, uid = found["metadata"]["namespace"], found["metadata"]["uid"]
        # An unreadable object raises here, before any change: its last declaration stays in force.
        now = dict(read_declared(new)) if new else {}
        before = self._names.pop(uid, set())
        if now:
            self._names[uid] = set(now)
        for name in {*before, *now}:
            said = self._declared.setdefault((namespace, name), {})
            if name in now:
                said[uid] = now[name]
            else:
                said.pop(uid, None)
            if not said:
                del self._declared[namespace, name]
            self._on_change(namespace, name)


def read_declared(obj: Mapping[str, Any]) -> Iterator[tuple[str, Declared]]:
    """Yield the groups to which an object applies: its own, or those of a Workload of 1.35."""
    name, spec = obj["metadata"]["name"], obj.get("spec") or {}
    patience_s = spec.get("scheduleTimeoutSeconds")
    if _is_number(spec.get("minMember")):
        yield name, Declared(spec["minMember"], patience_s if _is_number(patience_s) else None)
    if (least := _least(spec.get("schedulingPolicy"))) is not None:
        topology = (spec.get("schedulingConstraints") or {}).get("topology") or ()
        within = next((one["key"] for one in topology if one.get("key")), None)
        # Admission writes 0 if no priority is given.
        named = spec.get("priorityClassName")
        parent = spec.get("parentCompositePodGroupName")
        yield name, Declared(least, None, within, spec.get("priority") or None, named, parent)
    for one in spec.get("podGroups") or ():
        if (least := _least(one.get("policy"))) is not None:
            yield f"{name}.{one['name']}", Declared(least)


def _least(policy: Mapping[str, Any] | None) -> int | None:
    """Return how many pods start together, or one if they are scheduled individually."""
    if not policy:
        return None
    least = (policy.get("gang") or {}).get("minCount")
    return least if _is_number(least) else 1


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
