"""Typed rows of a workload: as an observation locks it, and as a look at it reads it.

``observations`` and ``ends`` use ``SeenRow``. ``reconciling``, ``starts`` and ``dependencies``
use ``WorkloadRow``. Its slots and pods come as JSON arrays, which are half as long as objects with
names, so the order of their fields is that of ``queries/reconciling.sql``. Nothing here writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cached_property
from typing import Any, NamedTuple

from fluxqueue.fluxjob.facts import WorkloadFacts
from fluxqueue.fluxjob.follow import Slot, SlotState
from fluxqueue.fluxjob.lifecycle import StoredRow
from fluxqueue.fluxjob.limit import Limit
from fluxqueue.fluxjob.node import Destination
from fluxqueue.fluxjob.pod_facts import PodFact
from fluxqueue.fluxjob.states import FluxJobState


class SeenRow(NamedTuple):
    """A row before an observation of its workload is written.

    ``former_request``: what it asked for, if the observation asks for something else.
    ``allocated_at_s``, ``elapsed_s``: when it got its nodes (epoch seconds), and how long ago.
    ``is_awaited``: some FluxJob waits for capacity.
    """

    uid: str
    faults: Sequence[Mapping[str, str]] | None
    state: str
    reason: str
    held_by: str | None
    author_hold: str | None
    vacate_by: str | None
    released_generation: int | None
    result: str | None
    pinned_to: str | None
    is_placed: bool
    size: int
    duration_s: int | None
    grace_s: int
    is_limited: bool
    is_examined: bool
    is_started: bool
    allocated_at_s: int | None
    elapsed_s: int | None
    is_cancelled: bool
    is_same_request: bool
    former_request: Mapping[str, Any] | None
    is_same_turn: bool
    is_awaited: bool

    @property
    def limit(self) -> Limit:
        """Return how long it holds its nodes."""
        return Limit(self.duration_s, self.grace_s, self.is_limited)

    def stored(self) -> StoredRow:
        """Return what ``fluxjob.lifecycle`` must know of it."""
        values = {one.name: getattr(self, one.name) for one in fields(StoredRow)}
        return StoredRow(**values | {"state": FluxJobState(self.state)})


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSlot(Slot):
    """A slot of a live allocation, with what only the store needs. Times are epoch seconds."""

    destination: Sequence[Any]
    resources: Mapping[str, Any]
    given_s: float
    refused_s: float | None
    others: Sequence[Sequence[str]] | None

    @property
    def to(self) -> Destination:
        """Return where its pod is sent."""
        return Destination(*self.destination)

    def may_be_on(self, node: str | None) -> bool:
        """Return whether its pod may be bound to a node."""
        return node == self.node or any(name == node for name, _ in self.others or ())


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredPod(PodFact):
    """A pod of a workload, with what only the store needs.

    ``amounts``: its own request. ``is_counted``: some of what it uses counts as unmanaged.
    """

    namespace: str
    amounts: Mapping[str, Any]
    is_counted: bool
    stuck_s: float | None


_SLOT_FIELDS = tuple(one.name for one in fields(StoredSlot))
_POD_FIELDS = (
    *("uid", "name", "phase", "is_gated", "is_terminating", "node", "index", "kind"),
    *("is_sent", "unschedulable", "namespace", "amounts", "is_counted", "stuck_s"),
)


@dataclass(eq=False)
class WorkloadRow:
    """A workload with what a look at it needs, locked.

    ``waited_s``: seconds since it was submitted, None if it has run before. ``released_s``: seconds
    since it got its nodes. ``is_early``, ``is_retry``: its begin time, or that of its next try, is
    in the future. ``slot_arrays``, ``pod_arrays``: None without an allocation.
    """

    uid: str
    jobid: int
    state: str
    observed: Mapping[str, Any]
    lacking: int
    result: str | None
    is_deleting: bool
    reason: str
    held_by: str | None
    author_hold: str | None
    vacate_by: str | None
    cancel_by: str | None
    blocked_by: str | None
    blocked_reason: str
    reconcile_at: datetime | None
    pinned_to: str | None
    is_placed: bool
    is_started: bool
    starting: Mapping[str, Any] | None
    group_s: float | None
    start_error: str | None
    start_tries: int
    released_generation: int | None
    namespace: str
    workload_kind: str
    queue_timeout: str | None
    now_s: float
    released_s: float | None
    is_retry: bool
    is_early: bool
    waited_s: float | None
    allocation_id: int | None
    is_independent: bool
    slot_arrays: Sequence[Sequence[Any]] | None
    pod_arrays: Sequence[Sequence[Any]] | None

    @cached_property
    def facts(self) -> WorkloadFacts:
        """Return what was seen of it."""
        return WorkloadFacts.of(self.observed)

    @cached_property
    def slots(self) -> list[StoredSlot]:
        """Return the slots of its allocation."""
        named = (dict(zip(_SLOT_FIELDS, one, strict=True)) for one in self.slot_arrays or ())
        return [StoredSlot(**one | {"state": SlotState(one["state"])}) for one in named]

    @cached_property
    def pods(self) -> dict[str, StoredPod]:
        """Return its pods by UID."""
        named = (dict(zip(_POD_FIELDS, one, strict=True)) for one in self.pod_arrays or ())
        return {one["uid"]: StoredPod(**one) for one in named}
