"""Nodes that do not exist yet, in a table beside the nodes that do: what would hold a request?

``provisioning`` plans with it. The ledger of the queue never contains such nodes, so a
cycle without pools costs what it cost before. Rows come in the order in which they are used:
present nodes, nodes under way, then nodes that a pool could bring. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from decimal import Decimal

import numpy as np

from fluxqueue.errors import InsufficientResources
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.request import MatchPolicy
from fluxqueue.graph.ledger.placement import FOREVER, PlacedSlot, Placement
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.jobspec import Jobspec
from fluxqueue.jobspec.bounds import Work
from fluxqueue.nodepools.pool import NodePool

LATE_SHARE, LATE_MIN_S = 1.0, 60
"""Nodes may take longer than expected by this share, or by this many seconds if that is more."""


@dataclass(frozen=True, slots=True)
class PoolState:
    """A pool as it is now.

    ``present``: the number of its nodes. ``wait_s``: the expected seconds until a new node can be
    used. ``retry_at``: nothing is asked of it before (epoch seconds), because of ``why``.
    """

    pool: NodePool
    present: int = 0
    wait_s: int = 0
    retry_at: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """Nodes of one pool that were asked for, for one job.

    ``uid``: the job. ``count``: the nodes asked for. ``arrived``: the names of those that have
    come. ``kept``: the slots of the job on present nodes, which are held for it meanwhile.
    Times are in epoch seconds.
    """

    number: int
    pool: str
    uid: str
    queue: str
    count: int
    asked_at: int
    ready_at: int
    arrived: tuple[str, ...] = ()
    kept: tuple[PlacedSlot, ...] = ()
    price: Decimal = Decimal(0)

    def takes(self, pool: str) -> bool:
        """Return whether a new node of ``pool`` is one that was asked for here."""
        return self.pool == pool and self.coming > 0

    @property
    def coming(self) -> int:
        """Return the number of nodes that have yet to come."""
        return max(0, self.count - len(self.arrived))

    @property
    def late_at(self) -> int:
        """Return when the nodes count as late. The request then fails."""
        wait_s = self.ready_at - self.asked_at
        return self.ready_at + max(LATE_MIN_S, int(LATE_SHARE * wait_s))

    def node(self, index: int, pool: NodePool) -> NodeFact:
        """Return one of the nodes under way."""
        fact = pool.node(index)
        name = f"{pool.name}/asked-{self.number}-{index}"
        return replace(fact, name=name, uid=f"new-{name}")


@dataclass(frozen=True, slots=True)
class NodesFound:
    """Where a request would start with new nodes.

    ``new``: the names of the new nodes that nothing has used before, and the pool of each.
    ``requests``: the numbers of the requests with nodes under way that it uses. ``kept``: its slots
    on present nodes. ``ready_at``: the time at which all of them can be used (epoch seconds).
    ``is_coming``: it uses a node that does not exist yet.
    """

    placement: Placement
    new: Mapping[str, str]
    requests: frozenset[int]
    kept: tuple[PlacedSlot, ...]
    ready_at: int
    is_coming: bool

    def counts(self) -> dict[str, int]:
        """Return the number of new nodes by pool."""
        return dict(sorted(Counter(self.new.values()).items()))


@dataclass(slots=True)
class ComingNodes:
    """Present nodes, nodes under way, and new nodes of some pools, at the time they can be used.

    ``start``: that time in epoch seconds. ``ready_at`` has the nodes that do not exist yet by name,
    and when each can be used. ``pool_of`` has those of them that were not asked for yet.
    ``request_of`` has those under way. ``used`` are new nodes that are part of the plan already.
    """

    matcher: Matcher
    start: int
    ready_at: dict[str, int] = field(default_factory=dict)
    pool_of: dict[str, str] = field(default_factory=dict)
    request_of: dict[str, int] = field(default_factory=dict)
    used: set[str] = field(default_factory=set)
    offered: int = 0
    """How many unused new nodes jobs may use at this moment."""

    def add(self, fact: NodeFact, ready_at: int) -> None:
        """Add a node that does not exist yet."""
        self.matcher.set_node(fact, {})
        self.ready_at[fact.name] = ready_at

    def use(self, fact: NodeFact, pool: str, ready_at: int) -> None:
        """Mark a new node as part of the plan. Further jobs may use it at no price."""
        self.add(fact, ready_at)
        self.pool_of[fact.name] = pool
        self.used.add(fact.name)

    def find(self, job: str, request: Jobspec, now: int) -> NodesFound | None:
        """Return where ``request`` starts with the fewest new nodes, and book it for ``job``.

        Nothing is booked if it does not fit.
        """
        placement = self._fewest(replace(request, match_policy=_in_order(request)), now)
        return None if placement is None else self._found(job, placement)

    def find_on(
        self, job: str, request: Jobspec, nodes: Set[str], due_at: int, now: int
    ) -> NodesFound | None:
        """Return where ``request`` starts with these new nodes at most, and book it for ``job``.

        Nodes that come after ``due_at`` (epoch seconds) are not used. Nothing is booked if it does
        not fit.
        """
        late = [name for name in self.used if self.ready_at[name] > due_at]
        new = [name for name in self.pool_of if name in nodes and name not in self.used]
        for name in late:
            self._set_usable(name, is_usable=False)
        for name in new:
            self._set_usable(name, is_usable=True)
        try:
            found = self.matcher.match_now(replace(request, match_policy=_in_order(request)), now)
        except InsufficientResources:
            return None
        finally:
            for name in new:
                self._set_usable(name, is_usable=False)
            for name in late:
                self._set_usable(name, is_usable=True)
        return self._found(job, found)

    def _found(self, job: str, placement: Placement) -> NodesFound:
        """Book a placement, and return which of its nodes are to come."""
        self.matcher.allocate(job, placement)
        nodes = {*placement.nodes, *placement.held}
        coming = nodes & self.ready_at.keys()
        new = {name: self.pool_of[name] for name in coming & (self.pool_of.keys() - self.used)}
        return NodesFound(
            placement,
            new,
            frozenset(self.request_of[name] for name in nodes & self.request_of.keys()),
            tuple(slot for slot in placement.slots if slot.node not in coming),
            max((self.start, *(self.ready_at[name] for name in coming))),
            bool(coming),
        )

    def undo(self, job: str) -> None:
        """Take back what ``find`` has booked."""
        self.matcher.cancel(job)

    def book(self, job: str, placement: Placement) -> None:
        """Book what another table has found."""
        rows = self.matcher.ledger.rows
        slots = tuple(slot for slot in placement.slots if slot.node in rows)
        held = tuple(name for name in placement.held if name in rows)
        if slots or held:
            self.matcher.allocate(job, replace(placement, slots=slots, held=held))

    def _fewest(self, request: Jobspec, now: int) -> Placement | None:
        """Return a placement with the fewest nodes that nothing has used before.

        Nodes are offered in growing numbers: most jobs need few, and each offer changes the table.
        """
        free = [name for name in self.pool_of if name not in self.used]
        low, high, best = 0, 0, self._match(request, free, 0, now)
        while best is None and high < len(free):
            low, high = high + 1, min(len(free), max(1, 2 * high))
            best = self._match(request, free, high, now)
        while best is not None and low < high:
            middle = (low + high) // 2
            found = self._match(request, free, middle, now)
            if found is None:
                low = middle + 1
            else:
                best, high = found, middle
        self._offer(free, 0)
        return best

    def _match(
        self, request: Jobspec, free: Sequence[str], count: int, now: int
    ) -> Placement | None:
        """Return a placement that uses at most the first ``count`` of the ``free`` new nodes."""
        self._offer(free, count)
        try:
            return self.matcher.match_now(request, now)
        except InsufficientResources:
            return None

    def _offer(self, free: Sequence[str], count: int) -> None:
        """Let jobs use the first ``count`` of these nodes, and no others of them."""
        for name in free[min(count, self.offered) : max(count, self.offered)]:
            self._set_usable(name, is_usable=count > self.offered)
        self.offered = count

    def _set_usable(self, name: str, *, is_usable: bool) -> None:
        ledger = self.matcher.ledger
        fact = ledger.masks.facts[ledger.rows[name]]
        assert fact is not None, "new nodes stay in their table"
        ledger.set_node(replace(fact, is_schedulable=is_usable), {})


def _in_order(request: Jobspec) -> MatchPolicy:
    """Return the policy that fills nodes in the order of the table: present ones first."""
    is_whole = request.match_policy is not None and request.match_policy.endswith("x")
    return MatchPolicy.LONODEX if is_whole else MatchPolicy.LONODE


def coming_nodes(
    ledger: ShareLedger,
    pools: Sequence[PoolState],
    requests: Sequence[NodeRequest],
    states: Mapping[str, PoolState],
    rooms: Mapping[str, int],
    now: int,
) -> ComingNodes:
    """Return the table for new nodes of ``pools``.

    Parameters
    ----------
    ledger : all present nodes, with the reservations that hold.
    requests : everything that is under way, of any pool.
    states : all pools by name.
    rooms : how many new nodes each of ``pools`` can still bring.
    now : epoch seconds.
    """
    start = now + max((one.wait_s for one in pools), default=0)
    table = _present(ledger, start)
    found = ComingNodes(Matcher(table, str(MatchPolicy.LONODE)), start)
    for request in requests:
        state = states.get(request.pool)
        for index in range(0 if state is None else request.coming):
            assert state is not None, "it has nodes under way"
            fact = request.node(index, state.pool)
            found.add(fact, max(now, request.ready_at))
            found.request_of[fact.name] = request.number
    for state in pools:
        for index in range(rooms.get(state.pool.name, 0)):
            fact = state.pool.node(index)
            found.add(replace(fact, is_schedulable=False), now + state.wait_s)
            found.pool_of[fact.name] = state.pool.name
    return found


def _present(ledger: ShareLedger, start: int) -> ShareLedger:
    """Return the present nodes, with what is free on them at all times from ``start`` on."""
    rows = np.flatnonzero(ledger.masks.usable())
    free = np.maximum(ledger.free_during(rows, start, FOREVER), 0)
    has_some = (free[:, 0] > 0) & (free[:, 1:] > 0).any(axis=1)
    return ledger.left_over(rows[has_some], free[has_some])


class Reach:
    """What the cluster could hold if its pools had brought all their nodes, and no job ran.

    The matcher asks it about requests that no present nodes can hold. The tables are made when they
    are first needed.

    Parameters
    ----------
    ledger : all present nodes.
    pools : all pools. A request uses one of them, or all together.
    """

    def __init__(self, ledger: ShareLedger, pools: Sequence[NodePool]) -> None:
        self._ledger, self._pools = ledger, list(pools)
        self._matchers: list[Matcher] | None = None

    def forget(self) -> None:
        """Make the tables anew, because the present nodes have changed."""
        self._matchers = None

    def could_hold(self, request: Jobspec, work: Work | None) -> bool:
        """Return whether some pools could hold ``request``. ``work`` limits the question."""
        if self._matchers is None:
            together = [self._pools] if len(self._pools) > 1 else []
            sets = [*([one] for one in self._pools), *together]
            self._matchers = [self._matcher(some) for some in sets]
        for matcher in self._matchers:
            limit = nullcontext() if work is None else matcher.working(work)
            with limit:
                if matcher.is_satisfiable(request):
                    return True
        return False

    def _matcher(self, pools: Sequence[NodePool]) -> Matcher:
        table = ShareLedger(self._ledger.topology.levels)
        facts = [fact for fact in self._ledger.masks.facts if fact is not None]
        facts += [pool.node(index) for pool in pools for index in range(pool.most)]
        table.add_rows([fact.name for fact in facts])
        for fact in facts:
            table.set_node(fact, {})
        return Matcher(table, str(MatchPolicy.LONODE))
