"""PodGroup objects: how many pods at least, and how they want to lie.

Part of ``marking``. Those of coscheduling, as our predecessors' users wrote them, and Kubernetes'
own (``scheduling.k8s.io``: PodGroup since 1.36, before that a part of a Workload). They are read,
never written, and only where they are served: a definition may be installed, or a feature gate
opened, at any time, so discovery is asked now and then. Who is a member the pods say (``groups``);
an object that nobody refers to means nothing.
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
from fluxqueue.kube.resources import Resource
from fluxqueue.objects import Object

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
"""Of coscheduling, of coscheduling as it was called before, and Kubernetes' own."""


@dataclass(frozen=True, slots=True)
class Declared:
    """What an object says of its group: how many pods at least, for how long they may come
    (seconds), the node label of the level that all of them share, and their priority.
    """

    minimum: int
    patience_s: int | None = None
    within: str | None = None
    priority: int | None = None


class PodGroups:
    """The PodGroup objects there are; ``on_change`` is told namespace and name of a group."""

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
        """Of which groups each object speaks, by its UID."""

    def find(self, namespace: str, name: str) -> Declared | None:
        """What the object of that name says; None where there is none, or it says no size.

        Of several replicas of one group of a Workload, each is named after it.
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
                    self._informers[resource.key] = informer
                    informer.start()
        except (ApiUnavailable, ApiError) as error:
            extra = {"action": "discover", "error": str(error)}
            logger.warning("kinds of groups not read; tried again", extra=extra)
        except Exception:
            # What one definition says must not end the observation of all others.
            logger.exception("kinds of groups not read; tried again")

    async def _may_read(self, resource: Resource) -> bool:
        try:
            await self._client.request("GET", resource.path(), query={"limit": "1"})
        except ApiError:
            return False  # no right to read it: asked again
        return True

    def _changed(self, old: Object | None, new: Object | None) -> None:
        found = new or old
        assert found is not None, "an informer tells of an object, old or new"
        namespace, uid = found["metadata"]["namespace"], found["metadata"]["uid"]
        # One that cannot be read raises here, and what it said before goes on counting.
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
    """The groups of which an object speaks, by name: its own, or those of a Workload of 1.35."""
    name, spec = obj["metadata"]["name"], obj.get("spec") or {}
    patience_s = spec.get("scheduleTimeoutSeconds")
    if _is_number(spec.get("minMember")):
        yield name, Declared(spec["minMember"], patience_s if _is_number(patience_s) else None)
    if (least := _least(spec.get("schedulingPolicy"))) is not None:
        topology = (spec.get("schedulingConstraints") or {}).get("topology") or ()
        within = next((one["key"] for one in topology if one.get("key")), None)
        # Admission writes 0 where nobody has said a priority.
        yield name, Declared(least, None, within, spec.get("priority") or None)
    for one in spec.get("podGroups") or ():
        if (least := _least(one.get("policy"))) is not None:
            yield f"{name}.{one['name']}", Declared(least)


def _least(policy: Mapping[str, Any] | None) -> int | None:
    """How many pods start together; one where they are scheduled as any other pods."""
    if not policy:
        return None
    least = (policy.get("gang") or {}).get("minCount")
    return least if _is_number(least) else 1


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
