"""What happened to the pods of a namespace, in the order in which the API server says it did.

Tests judge overlaps and orders by this: watch events have one order, clocks of several processes
do not. Used through ``Space.recording``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

from fluxqueue.errors import ApiUnavailable, Gone
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import PODS
from fluxqueue.workload.pod_resources import effective_request
from fluxqueue.workload.pods import gate_index

JOB_NAME = "batch.kubernetes.io/job-name"
INDEX = "batch.kubernetes.io/job-completion-index"
WAIT_S = 75.0


@dataclass(frozen=True, slots=True)
class PodView:
    """A pod as of one event. ``is_using`` means: bound to a node, and not ended."""

    uid: str
    name: str
    owner: str
    index: str | None
    node: str | None
    phase: str
    is_gated: bool
    cpu_m: int

    @property
    def is_over(self) -> bool:
        """Whether its containers have ended for good."""
        return self.phase in {"Succeeded", "Failed"}

    @property
    def is_using(self) -> bool:
        """Whether it takes resources of a node."""
        return self.node is not None and not self.is_over


def view(pod: dict[str, Any]) -> PodView:
    """Read what the tests ask of a pod."""
    meta, spec = pod["metadata"], pod["spec"]
    labels = meta.get("labels") or {}
    return PodView(
        uid=meta["uid"],
        name=meta["name"],
        owner=labels.get(JOB_NAME, meta["name"]),
        index=labels.get(INDEX),
        node=spec.get("nodeName"),
        phase=pod["status"].get("phase", "Pending"),
        is_gated=gate_index(spec) is not None,
        cpu_m=effective_request(spec)["cpu"],
    )


State = dict[str, PodView]
"""All pods at one moment, by UID."""


@dataclass(slots=True)
class Recording:
    """A watch on the pods of one namespace (None: of all) for as long as ``async with``."""

    client: KubeClient
    namespace: str | None
    events: list[tuple[str, PodView | None]] = field(default_factory=list)
    """UID and the pod after the event. None where it is gone."""
    _present: State = field(default_factory=dict)
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        version = await self._relist()
        self._task = asyncio.create_task(self._follow(version))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _relist(self) -> str:
        """Read all pods. Of what changed unseen, ends are noted before beginnings."""
        listed = await self.client.list(PODS, self.namespace)
        found = {one.uid: one for one in map(view, listed.items)}
        for uid in set(self._present) - set(found):
            self._note(uid, None)
        for one in sorted(found.values(), key=lambda one: one.is_using):
            self._note(one.uid, one)
        return listed.resource_version

    async def _follow(self, version: str) -> None:
        while True:
            try:
                async for event in self.client.watch(
                    PODS, self.namespace, resource_version=version
                ):
                    version = event.object["metadata"]["resourceVersion"]
                    if event.type != "BOOKMARK":
                        one = view(event.object)
                        self._note(one.uid, None if event.type == "DELETED" else one)
            except (Gone, ApiUnavailable):
                version = await self._relist_in_the_end()

    async def _relist_in_the_end(self) -> str:
        """List again as soon as the API server answers. What is not recorded is not judged."""
        while True:
            try:
                return await self._relist()
            except ApiUnavailable:
                await asyncio.sleep(0.2)

    def _note(self, uid: str, one: PodView | None) -> None:
        if one is None:
            self._present.pop(uid, None)
        elif self._present.get(uid) == one:
            return
        else:
            self._present[uid] = one
        self.events.append((uid, one))
        self._changed.set()

    async def until(
        self, is_true: Callable[[Recording], bool], what: str, *, timeout_s: float = WAIT_S
    ) -> None:
        """Wait until what was recorded satisfies ``is_true``."""
        try:
            async with asyncio.timeout(timeout_s):
                while not is_true(self):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError as error:
            state = "\n".join(map(str, self._present.values()))
            raise AssertionError(f"not within {timeout_s}s: {what}; pods:\n{state}") from error

    # -- what was seen ---------------------------------------------------------------------------

    def present(self, owner: str | None = None) -> list[PodView]:
        """The pods as they are now."""
        return [one for one in self._present.values() if owner in {None, one.owner}]

    def states(self) -> Iterator[State]:
        """All pods after each event, oldest first."""
        state: State = {}
        for uid, one in self.events:
            if one is None:
                state.pop(uid, None)
            else:
                state[uid] = one
            yield state

    def in_use(self) -> Iterator[list[PodView]]:
        """The pods that use a node, after each event."""
        for state in self.states():
            yield [one for one in state.values() if one.is_using]

    def most_at_once(self, owner: str | None = None) -> int:
        """How many pods used nodes at the same time."""
        return max(
            (sum(owner in {None, one.owner} for one in using) for using in self.in_use()),
            default=0,
        )

    def peak_cpu_m(self) -> Counter[str]:
        """The most millicores that pods used on each node at the same time."""
        peak: Counter[str] = Counter()
        for using in self.in_use():
            now: Counter[str] = Counter()
            for one in using:
                now[str(one.node)] += one.cpu_m
            peak |= now
        return peak

    def order(self) -> list[str]:
        """Owners in the order in which their first pods were bound."""
        return list(dict.fromkeys(one.owner for using in self.in_use() for one in using))

    def seen(self, owner: str | None = None) -> dict[str, PodView]:
        """Every pod there ever was, as last seen alive, by UID."""
        last = {uid: one for uid, one in self.events if one is not None}
        return {uid: one for uid, one in last.items() if owner in {None, one.owner}}

    def overlap(self, first: str, second: str) -> bool:
        """Whether pods of both owners ever used nodes at the same time."""
        return any({first, second} <= {one.owner for one in using} for using in self.in_use())
