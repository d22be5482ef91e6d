"""Matching by table: a cluster's graph of vertices, answered as the cycle answers.

A graph that was built from Kubernetes nodes (``ResourceGraph.cluster``: levels, nodes, and on each
node one pool per kind) has a second form, the table of shares. The vertices hold the bookings. The
table follows them and finds the places, as for the scheduling cycle. ``ByGraph`` calls it. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from fluxion.ledger.booking import Booking
from fluxion.ledger.resource_set import ResourceSet
from fluxion.match.by_vertices import ByVertices
from fluxion.match.given import hold, hold_shares
from fluxion.match.search import BUSY, NEVER, SearchVerb
from fluxqueue.errors import InsufficientResources, InvalidInput, InvalidJobspec, Unsatisfiable
from fluxqueue.graph.ledger.placement import FOREVER, Placement
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.by_shares import ByShares
from fluxqueue.graph.match.policy import Policy
from fluxqueue.graph.match.shares.ask import groups
from fluxqueue.jobspec.constraint import Constraint
from fluxqueue.jobspec.demand import NodeDemand
from fluxqueue.jobspec.model import Jobspec


class ByTable:
    """The table of a cluster's graph.

    A booking that lasts until the graph's end has no known end in the table.
    """

    def __init__(self, vertices: ByVertices) -> None:
        state = vertices.state
        assert state.graph.cluster is not None
        self.vertices, self.end = vertices, vertices.end
        self.state, self.graph = state, state.graph
        self._by_policy: dict[Policy, ByShares] = {}
        self.ledger = ShareLedger(state.graph.cluster.levels)
        self._is_whole = True
        self._names: dict[int, str] = {}
        self._nodes: dict[str, int] = {}
        self._pools: dict[str, Mapping[str, int]] = {}
        self._reserved: dict[int, Placement] = {}
        self._gone: set[int] = set(self.graph.gone)
        self._size = 0
        numbers = [n for n in range(len(self.graph.blocks)) if n not in self._gone]
        numbers.sort(key=lambda n: self.graph.id[self.graph.blocks[n].base])
        blocks = self.graph.blocks
        self.ledger.add_rows([self.graph.name(blocks[number].base) for number in numbers])
        for number in numbers:
            self._join(number)
        self._size = len(self.graph.blocks)
        for job in state.bookings:
            self.book(job)

    # --- matching --------------------------------------------------------------------------------

    def table_for(self, jobspec: Jobspec, policy: Policy) -> ByShares | None:
        """Return the table if it can express all that this request asks for, else None.

        The policy must choose by node, and constraints must not name ranks. Racks or pools must not
        be taken whole, because R lists these as vertices.
        """
        if not self._is_whole or not policy.is_node_centric:
            return None
        if any(where.constraint and _names_ranks(where.constraint) for where in _wheres(jobspec)):
            return None
        table = self._by_policy.get(policy)
        if table is None:
            table = self._by_policy[policy] = ByShares(self.ledger, policy)
        ask = table.ask(jobspec)
        if ask.problem or any(group.is_exclusive for group in groups(ask.parts)):
            return None
        if any(leaf.whole_pools for _, leaf in ask.leaves()):
            return None
        return table

    def match(
        self, table: ByShares, jobspec: Jobspec, job: int, now: int, verb: SearchVerb
    ) -> ResourceSet | None:
        """Match as ``FluxionMatcher.match`` does."""
        # Raises for types that the graph has no vertices of.
        request = self.vertices.compile(jobspec)
        if verb.commits and job in self.state.bookings:
            raise InvalidInput("the job holds resources already", where="jobid", value=job)
        placement = self._place(table, jobspec, now, verb)
        if placement is None:
            return None
        found = replace(self.resources(placement, job), queue=jobspec.queue, labels=request.labels)
        found.booking.is_reservation = placement.starts_at != now
        if verb.commits:
            self.vertices.book(found.booking, table.policy, now)
        return found

    def _place(
        self, table: ByShares, jobspec: Jobspec, now: int, verb: SearchVerb
    ) -> Placement | None:
        asks_for_ever = verb.looks_ahead or verb is SearchVerb.ALLOCATE_WITH_SATISFIABILITY
        if verb is not SearchVerb.SATISFIABILITY:
            with suppress(InsufficientResources):
                return table.match_now(jobspec, now)
            if not asks_for_ever:
                raise InsufficientResources(BUSY)
        if not table.is_satisfiable(jobspec):
            raise Unsatisfiable(NEVER)
        if verb is SearchVerb.SATISFIABILITY:
            return None
        if not verb.looks_ahead:
            raise InsufficientResources(BUSY)
        later = table.match_later(jobspec, now)
        if later.starts_at >= self.end:
            raise InsufficientResources("busy until the graph ends")
        return later

    # --- the graph as it changes -----------------------------------------------------------------

    def follow_nodes(self) -> None:
        """Update the table after nodes have joined or left."""
        for number in range(self._size, len(self.graph.blocks)):
            self._join(number)
        self._size = len(self.graph.blocks)
        # Bookings on removed nodes are booked again, without what they had there.
        for number in (self.graph.gone - self._gone) & self._names.keys():
            name = self._names.pop(number)
            for job in map(int, dict(self.ledger.keys_on(self.ledger.rows[name]))):
                self.cancel(job)
                if job in self.state.bookings:
                    self.book(job)
            self.ledger.remove_node(name)
            del self._nodes[name], self._pools[name]
        self._gone = set(self.graph.gone)

    def follow_vertex(self, v: int) -> None:
        """Update the table after a vertex changed its status, size, or use by unmanaged pods."""
        numbers = {self.graph.block_of[u] for u in self.graph.subtree(v)}
        for name in (self._names[number] for number in numbers if number in self._names):
            self._set(name)

    def _join(self, number: int) -> None:
        graph, base = self.graph, self.graph.blocks[number].base
        pools = {graph.type_name(u): u for u in range(base + 1, graph.end[base])}
        name = graph.name(base)
        if (
            graph.type_name(base) != "node"
            or name in self._nodes
            or len(pools) != graph.end[base] - base - 1
            or any(graph.type_of[u] not in graph.consumable for u in pools.values())
        ):
            self._is_whole = False
            return
        self._names[number], self._nodes[name], self._pools[name] = name, base, pools
        self._set(name)

    def _set(self, name: str) -> None:
        graph, v, pools = self.graph, self._nodes[name], self._pools[name]
        fact = replace(
            self.vertices.fact_of(v),
            capacity={kind: graph.size[u] for kind, u in pools.items() if u not in graph.down},
            is_up=graph.is_up(v),
            is_schedulable=True,
        )
        foreign = {kind: graph.foreign[u] for kind, u in pools.items() if u in graph.foreign}
        self.ledger.set_node(fact, foreign)

    # --- what is booked --------------------------------------------------------------------------

    def book(self, job: int) -> None:
        """Book in the table what the graph has booked for ``job``."""
        booking = self.state.bookings[job]
        placement = ResourceSet(self.graph, booking).placement()
        if booking.until >= self.end:
            placement = replace(placement, until=FOREVER)
        if booking.is_reservation:
            self._reserved[job] = placement
            self.ledger.reserve(placement, 0)
        else:
            self.ledger.book(str(job), placement)

    def cancel(self, job: int) -> None:
        """Free what ``job`` held in the table."""
        reserved = self._reserved.pop(job, None)
        if reserved is None:
            self.ledger.cancel(str(job))
        else:
            self.ledger.unreserve(reserved)

    def resources(self, placement: Placement, job: int) -> ResourceSet:
        """Return the vertices and shares of pools that ``job`` would hold by a placement."""
        booking = Booking(job, placement.starts_at, min(placement.until, self.end))
        whole = set(placement.nodes) if placement.is_exclusive else set()
        whole.update(placement.held)
        for name in dict.fromkeys((*placement.nodes, *placement.held)):
            if name in whole:
                hold(self.graph, booking, self.graph.subtree(self._nodes[name]))
        units: dict[int, int] = {}
        for slot in placement.slots:
            if slot.node not in whole:
                for resource, amount in slot.resources:
                    v = self._pools[slot.node][resource]
                    units[v] = units.get(v, 0) + amount
        hold_shares(self.graph, booking, units)
        if not booking.blocks:
            raise InvalidJobspec("asks for nothing", where="resources")
        return ResourceSet(self.graph, booking)


def _wheres(jobspec: Jobspec) -> tuple[NodeDemand, ...]:
    return (jobspec.where, *(where for _, where in jobspec.slot_where))


def _names_ranks(constraint: Constraint) -> bool:
    return bool(constraint.ranks) or any(map(_names_ranks, constraint.operands))
