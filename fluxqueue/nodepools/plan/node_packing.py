"""The cheapest new nodes for a few jobs together: a branch and bound over slots and nodes.

``plan_search`` asks it what ``provisioning`` then has the matcher confirm, job
by job. It knows amounts, times and prices, and no levels. Its steps are limited. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from decimal import Decimal

SLOTS_MAX = 40
"""The most slots that are packed together. With more, the steps would end before any result."""

STEPS_MAX = 6_000
"""The most places that one packing tries: about 0.1 s."""

UNIT = 10_000
"""Prices are whole numbers here, because they have four digits behind the point at most."""

ROUNDING = 1 - 1e-9
"""A bound that is rounded up would cut off a packing that is cheaper."""

Amounts = tuple[int, ...]
"""Amounts of the resources of a task, in its order."""


@dataclass(frozen=True, slots=True)
class JobToPack:
    """``count`` equal units of a job, each on one node.

    ``due_at``: when all nodes of the job must be ready (epoch seconds). ``pools``: those that may
    bring nodes for it. ``admits``: the kinds of nodes that it may use. ``is_distinct``: each unit
    needs a node of its own. ``is_whole``: no other job may use its nodes.
    """

    uid: str
    needs: Amounts
    count: int
    due_at: int
    pools: Set[str]
    admits: Set[str]
    is_distinct: bool = False
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class NodeKind:
    """Equal nodes: ``names`` of those that could be used, and what each costs for an hour.

    ``name`` is that of the pool, or of a node that is there or under way and costs nothing more.
    ``is_empty``: no job uses such a node yet.
    """

    name: str
    free: Amounts
    ready_at: int
    price: Decimal
    names: tuple[str, ...]
    is_new: bool
    is_empty: bool = True


@dataclass(frozen=True, slots=True)
class PackingTask:
    """Jobs that start together, and the nodes that could hold them.

    ``is_complete``: no other nodes could. Otherwise nothing is proven.
    """

    jobs: Sequence[JobToPack]
    kinds: Sequence[NodeKind]
    is_complete: bool = True


@dataclass(frozen=True, slots=True)
class Packing:
    """The name of the node of each unit, by the UID of the job, in the order of its units.

    ``due_at``: when they must be ready (epoch seconds). ``is_proven``: nothing is cheaper. ``cost``
    is for an hour.
    """

    nodes: Mapping[str, Sequence[str]]
    due_at: Mapping[str, int]
    cost: Decimal
    is_proven: bool


def cheapest_packing(task: PackingTask, below: Decimal, steps: int = STEPS_MAX) -> Packing:
    """Return the cheapest packing that costs less than ``below``, without nodes if there is none.

    Parameters
    ----------
    below : what a plan costs that is known already, for an hour.
    steps : the most places to try.
    """
    search = _Search(task, int(below * UNIT), steps)
    search.run()
    due_at = {one.uid: one.due_at for one in task.jobs}
    is_proven = task.is_complete and search.left > 0
    return Packing(search.found, due_at, Decimal(search.best) / UNIT, is_proven)


@dataclass(slots=True)
class _Used:
    """A node of a packing. ``owner``: the one job that may use it. ``last``: its last user."""

    kind: int
    number: int
    free: Amounts
    owner: int | None = None
    last: int | None = None

    def key(self, job: int, *, is_distinct: bool) -> tuple[object, ...]:
        """Return what tells it from other nodes, for the units of ``job`` and those behind."""
        return self.kind, self.free, self.owner, is_distinct and self.last == job


@dataclass(slots=True)
class _Search:
    """Places units one by one, the largest first, and gives up what cannot become cheaper."""

    task: PackingTask
    best: int
    left: int
    found: dict[str, list[str]] = field(default_factory=dict)
    _units: list[int] = field(default_factory=list)
    """The job of each unit."""
    _behind: list[Amounts] = field(default_factory=list)
    """What the units from each one on need together."""
    _rates: list[float | None] = field(default_factory=list)
    """The lowest price of one of each resource. None: no new node has it."""
    _prices: list[int] = field(default_factory=list)
    _nodes: list[_Used] = field(default_factory=list)
    _where: list[_Used] = field(default_factory=list)
    _opened: list[int] = field(default_factory=list)
    _seen: dict[tuple[object, ...], int] = field(default_factory=dict)

    def run(self) -> None:
        jobs, kinds = self.task.jobs, self.task.kinds
        self._opened = [0] * len(kinds)
        width = len(jobs[0].needs) if jobs else 0
        most = [max((one.free[n] for one in kinds), default=0) or 1 for n in range(width)]
        share = [max((a / m for a, m in zip(j.needs, most, strict=True)), default=0) for j in jobs]
        order = sorted(range(len(jobs)), key=lambda n: (not jobs[n].is_whole, -share[n], n))
        self._units = [n for n in order for _ in range(jobs[n].count)]
        needs = [0] * width
        self._behind = [tuple(needs)]
        for n in reversed(self._units):
            needs = [a + b for a, b in zip(needs, jobs[n].needs, strict=True)]
            self._behind.append(tuple(needs))
        self._behind.reverse()
        self._prices = [int(one.price * UNIT) for one in kinds]
        new = [(one, price) for one, price in zip(kinds, self._prices, strict=True) if one.is_new]
        for n in range(width):
            rates = [price / one.free[n] for one, price in new if one.free[n]]
            self._rates.append(min(rates, default=None))
        self._nodes = [
            _Used(number, 0, one.free) for number, one in enumerate(kinds) if not one.is_new
        ]
        self._place(0, 0)

    def _place(self, unit: int, cost: int) -> None:
        """Place the units from ``unit`` on. ``cost`` is that of the nodes so far."""
        if unit == len(self._units):
            self.best = cost
            self.found = {}
            for n, used in zip(self._units, self._where, strict=True):
                name = self.task.kinds[used.kind].names[used.number]
                self.found.setdefault(self.task.jobs[n].uid, []).append(name)
            return
        if cost + self._least(unit) >= self.best or self._is_known(unit, cost):
            return
        number = self._units[unit]
        job = self.task.jobs[number]
        for used, price in self._places(number, job):
            if self.left <= 0:
                return
            if cost + price >= self.best:
                continue
            self.left -= 1
            before = used.free, used.owner, used.last
            used.free = tuple(a - b for a, b in zip(used.free, job.needs, strict=True))
            used.owner, used.last = number if job.is_whole else used.owner, number
            self._where.append(used)
            self._place(unit + 1, cost + price)
            self._where.pop()
            used.free, used.owner, used.last = before

    def _places(self, number: int, job: JobToPack) -> Iterator[tuple[_Used, int]]:
        """Yield the nodes that could take a unit, used ones first, and what each adds."""
        kinds = self.task.kinds
        tried = set[tuple[object, ...]]()
        for used in sorted(self._nodes, key=lambda one: sum(one.free)):
            key = *used.key(number, is_distinct=job.is_distinct), used.last == number
            if key in tried or not self._takes(used, number, job):
                continue
            tried.add(key)
            yield used, 0
        for place, kind in enumerate(kinds):
            opened = self._opened[place]
            if not kind.is_new or opened >= len(kind.names) or kind.name not in job.pools:
                continue
            used = _Used(place, opened, kind.free)
            if self._takes(used, number, job):
                self._opened[place] += 1
                self._nodes.append(used)
                yield used, self._prices[place]
                self._nodes.pop()
                self._opened[place] -= 1

    def _takes(self, used: _Used, number: int, job: JobToPack) -> bool:
        kind = self.task.kinds[used.kind]
        if kind.name not in job.admits or kind.ready_at > job.due_at:
            return False
        if used.owner not in (None, number) or (job.is_distinct and used.last == number):
            return False
        if job.is_whole and used.owner is None and not (kind.is_empty and used.last is None):
            return False
        return all(a >= b for a, b in zip(used.free, job.needs, strict=True))

    def _least(self, unit: int) -> float:
        """Return the least that the units from ``unit`` on add to the cost."""
        least = 0.0
        if any(one.owner is not None for one in self._nodes):
            return least  # its owner may use what is left there
        for n, needed in enumerate(self._behind[unit]):
            rate = self._rates[n]
            short = needed - sum(one.free[n] for one in self._nodes)
            if short > 0 and rate is not None:
                least = max(least, rate * short * ROUNDING)
        return least

    def _is_known(self, unit: int, cost: int) -> bool:
        """Return whether the same nodes with the same space have cost no more before."""
        number = self._units[unit]
        is_distinct = self.task.jobs[number].is_distinct
        nodes = (one.key(number, is_distinct=is_distinct) for one in self._nodes)
        state = unit, *sorted(map(repr, nodes))
        known = self._seen.get(state)
        if known is not None and known <= cost:
            return True
        self._seen[state] = cost
        return False
