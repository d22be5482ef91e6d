"""A matcher as plain as can be: dicts, every second looked at, every placement tried.

The model that ``tests/property/test_pools.py`` and ``test_cycle.py`` hold ``graph.pools`` against.
Shares no code with it beyond the values that go in and out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from fluxqueue.fluxjob.exclusive_use import implied_capacity
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.request import CPU, MEMORY, Taint
from fluxqueue.graph.ledger.placement import (
    FOREVER,
    PlacedSlot,
    Placement,
)
from fluxqueue.jobspec import Jobspec, NodeDemand
from fluxqueue.jobspec.demand import ANYWHERE
from fluxqueue.jobspec.shape import levels_named, slot_kinds, slot_needs
from fluxqueue.prediction.durations import planned_end
from tests.support.asked import Slots
from tests.support.asked import asked as make

RACK = "rack"
GPU = "example.com/gpu"


def node(
    name: str,
    *,
    cpu: int = 4,
    memory: int = 8,
    gpu: int = 0,
    rack: str | None = None,
    is_up: bool = True,
    taints: tuple[Taint, ...] = (),
) -> NodeFact:
    """A small node."""
    capacity = {CPU: cpu, MEMORY: memory} | ({GPU: gpu} if gpu else {})
    labels = {"kubernetes.io/hostname": name} | ({RACK: rack} if rack else {})
    return NodeFact(name, f"uid-{name}", capacity, labels, taints, is_up=is_up)


def request(
    count: int = 1,
    *,
    duration_s: int | None = None,
    is_exclusive: bool = False,
    is_spread: bool = False,
    within: str | None = None,
    constraint: NodeDemand | None = None,
    **resources: int,
) -> Jobspec:
    """A request of one slot group. Resources by name, ``cpu=2``."""
    slot = Slots(count, tuple(sorted(resources.items())), constraint or ANYWHERE)
    return make((slot,), duration_s, is_exclusive, is_spread, within)


def placement(
    *slots: tuple[str, Mapping[str, int]],
    starts_at: int = 0,
    until: int = FOREVER,
    is_exclusive: bool = False,
) -> Placement:
    """A placement by hand."""
    placed = tuple(PlacedSlot(name, tuple(sorted(needs.items()))) for name, needs in slots)
    return Placement(placed, starts_at, until, is_exclusive)


def has(fact: NodeFact, key: str) -> int:
    """What a node has of a resource. It has each port, whatever it says."""
    return fact.capacity.get(key, implied_capacity(key))


@dataclass
class Model:
    """Nodes, what others use, and all that is booked or reserved."""

    now: int
    nodes: dict[str, NodeFact] = field(default_factory=dict)
    foreign: dict[str, dict[str, int]] = field(default_factory=dict)
    booked: dict[str, Placement] = field(default_factory=dict)
    reserved: list[Placement] = field(default_factory=list)

    def spans(self) -> Iterable[tuple[int, int, Placement]]:
        """All placements with the time each is planned for."""
        for one in self.booked.values():
            yield self.now, planned_end(one.until, self.now, one.limit), one
        for one in self.reserved:
            yield one.starts_at, one.until, one

    def at(self, when: int) -> list[Placement]:
        """Placements that are there at ``when``."""
        return [one for start, end, one in self.spans() if start <= when < end]

    def times(self, start: int, end: int) -> list[int]:
        """Every time in ``[start, end)`` at which anything changes, ``start`` first."""
        marks = {start} | {t for a, b, _ in self.spans() for t in (a, b)}
        return sorted(t for t in marks if start <= t < end)

    def usage(self, name: str, when: int) -> Counter[str]:
        """What is used on one node, others included."""
        used: Counter[str] = Counter(self.foreign.get(name, {}))
        for one in self.at(when):
            for slot in one.slots:
                if slot.node == name:
                    used.update(dict(slot.resources))
        return used

    def is_overcommitted(self) -> bool:
        """Whether any node at any time has more placed on it than it holds, foreigners aside."""
        for when in self.times(self.now, FOREVER):
            for name, fact in self.nodes.items():
                used = self.usage(name, when)
                used.subtract(self.foreign.get(name, {}))
                if any(amount > has(fact, key) for key, amount in used.items()):
                    return True
        return False

    def is_exclusive_kept(self) -> bool:
        """Whether no node that is held exclusively is shared at any time."""
        for when in self.times(self.now, FOREVER):
            present = self.at(when)
            for one in present:
                others = {n for other in present if other is not one for n in other.nodes}
                if one.is_exclusive and others & set(one.nodes):
                    return False
        return True

    def room(self, name: str, asked: Jobspec, start: int, end: int) -> int:
        """How many slots of ``asked`` the node holds throughout ``[start, end)``."""
        fact, slot = self.nodes[name], slot_kinds(asked)[0]
        if not (fact.is_up and fact.is_schedulable and slot.where.admits(fact)):
            return 0
        most = 1 if slot.node_count else slot.count
        for when in self.times(start, end):
            there = [one for one in self.at(when) if name in one.nodes]
            if any(one.is_exclusive for one in there) or (asked.is_node_exclusive and there):
                return 0
            used = self.usage(name, when)
            for key, need in slot.needs:
                left = has(fact, key) - used[key]
                most = min(most, max(0, left) // need) if need else most
        return most

    def fits(self, asked: Jobspec, start: int) -> bool:
        """Whether all slots fit from ``start`` on, in one group of nodes where asked for."""
        if not asked.size:
            return True
        end = start + int(asked.duration_s) if asked.duration_s else FOREVER
        level = next(iter(levels_named(asked)), None)
        if level is None:
            groups: Sequence[Sequence[str]] = [list(self.nodes)]
        else:
            racks = {n: f.labels[level] for n, f in self.nodes.items() if level in f.labels}
            groups = [[n for n in racks if racks[n] == rack] for rack in set(racks.values())]
        return any(
            sum(self.room(name, asked, start, end) for name in group) >= asked.size
            for group in groups
        )

    def earliest(self, asked: Jobspec) -> int | None:
        """The first time after now from which all fits, looked for around every change."""
        marks = {t + d for a, b, _ in self.spans() for t in (a, b) for d in (-1, 0, 1)}
        candidates = sorted(t for t in marks if self.now < t < FOREVER - 1)
        return next((t for t in candidates if self.fits(asked, t)), None)

    def check_placed(self, asked: Jobspec, got: Placement) -> None:
        """Whether ``got`` is an answer to ``asked``: right slots, right nodes, right time."""
        assert [one.resources for one in got.slots] == list(slot_needs(asked))
        assert got.is_exclusive == asked.is_node_exclusive
        expected_end = got.starts_at + int(asked.duration_s) if asked.duration_s else FOREVER
        assert got.until == expected_end
        for name, count in Counter(got.nodes).items():
            assert count <= self.room(name, asked, got.starts_at, got.until)
        for level in levels_named(asked):
            assert len({self.nodes[n].labels.get(level) for n in got.nodes}) <= 1
