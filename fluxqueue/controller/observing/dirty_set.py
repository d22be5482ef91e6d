"""Dirty keys: keys of changed objects, and when each kind must be written.

Part of ``observer``. ``event_router`` adds marks, ``flusher`` takes them. Marking a key twice costs
nothing, so any number of events of one object lead to one write. Changes that are not urgent may be
marked for later. They are written with the next batch of their kind. Namespaces take turns
(``turns``), so a tenant with thousands of changes does not delay the next change of another one.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import StrEnum

from fluxqueue.clock import Clock
from fluxqueue.fluxjob.turns import Turns
from fluxqueue.process.pacing import GATHER_S

NEVER_S = float("inf")


class DirtyKind(StrEnum):
    """The kind of a key: UIDs for workloads and unmanaged pods, names for all others."""

    WORKLOAD = "workload"
    NODE = "node"
    FOREIGN = "foreign"
    QUEUE = "queue"
    SHARING = "sharing policy"
    NODE_POOL = "node pool"
    RESERVATION = "reservation"


Batch = Mapping[DirtyKind, list[str]]


class DirtySet:
    """Marked keys, used within one event loop.

    Parameters
    ----------
    lane_of : returns the namespace of the object with a key, empty where it is not known.
    """

    def __init__(self, clock: Clock, lane_of: Callable[[str], str] = lambda _: "") -> None:
        self._clock, self._lane_of = clock, lane_of
        self._keys: dict[DirtyKind, Turns[int]] = {kind: Turns() for kind in DirtyKind}
        self._marks = itertools.count()
        self._due: dict[DirtyKind, float] = dict.fromkeys(DirtyKind, NEVER_S)
        self._sooner = asyncio.Event()
        self._last_lanes: set[str] = set()

    def has_newcomer(self) -> bool:
        """Return whether a workload of a namespace is marked that had none in the last batch.

        Batches without workloads do not count.
        """
        return not self._last_lanes.issuperset(self._keys[DirtyKind.WORKLOAD].lanes)

    def mark(self, kind: DirtyKind, key: str, *, within_s: float = GATHER_S) -> None:
        """Mark ``key`` to be written within ``within_s`` seconds, with all marks of its kind."""
        if key not in self._keys[kind]:
            self._keys[kind].put(key, self._lane_of(key), next(self._marks))
        due = self._clock.monotonic_s() + within_s
        if due < self._due[kind]:
            self._due[kind] = due
            self._sooner.set()

    def take(self, limit: int, *, by_s: float = NEVER_S) -> Batch:
        """Remove and return up to ``limit`` keys of each kind due by ``by_s``, oldest first."""
        taken = {kind: self._take(kind, limit) for kind in DirtyKind if self._due[kind] <= by_s}
        if workloads := taken.get(DirtyKind.WORKLOAD):
            self._last_lanes = {self._lane_of(key) for key in workloads}
        return {kind: keys for kind, keys in taken.items() if keys}

    def _take(self, kind: DirtyKind, limit: int) -> list[str]:
        marked = self._keys[kind]
        keys = marked.take(limit)
        # Keys beyond the limit stay due, so the next turn takes them at once.
        if not marked:
            self._due[kind] = NEVER_S
        return keys

    def put_back(self, batch: Batch) -> None:
        """Mark again what could not be written."""
        for kind, keys in batch.items():
            for key in keys:
                self.mark(kind, key)

    async def wait(self, until_s: float) -> None:
        """Wait until some kind is due, at most until ``until_s`` (monotonic)."""
        while True:
            now = self._clock.monotonic_s()
            pause_s = min(until_s, *self._due.values()) - now
            if pause_s <= 0:
                return
            # No await since the check: a mark set in between cannot be missed.
            self._sooner.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s if pause_s < NEVER_S else None):
                    await self._sooner.wait()

    def wake(self) -> None:
        """End the wait of ``wait`` even if nothing is marked."""
        for kind in DirtyKind:
            self._due[kind] = min(self._due[kind], self._clock.monotonic_s())
        self._sooner.set()
