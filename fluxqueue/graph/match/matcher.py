"""The matcher: one set of verbs over one graph and all that is booked on it.

There is one ``Matcher``. The scheduling cycle and ``resource-query`` both make it and put the same
verbs to it; what the graph is decides which ledger keeps the bookings, and what is asked decides
how it is answered (docs/matcher.md):

======================== =========================== ==============================================
graph                    bookings                    answered
======================== =========================== ==============================================
nodes (``ShareLedger``)  shares of nodes over time   by shares
a cluster's graph        vertices, with their table  by shares; what asks for more, by the walk
a Flux graph             vertices                    by vertices; what block tables do not serve,
                                                     by the walk
======================== =========================== ==============================================

Fluxion's two outcomes are two *different* exceptions: ``InsufficientResources`` (EBUSY) and
``Unsatisfiable`` (ENODEV). Time is an argument: integer seconds, ``now`` included. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from fluxqueue.errors import InvalidInput, Unsatisfiable
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.graph.formats.jgf import JgfDocument
from fluxqueue.graph.formats.rv1 import Rv1
from fluxqueue.graph.ledger.booking import merged
from fluxqueue.graph.ledger.placement import Others, Placement
from fluxqueue.graph.ledger.resource_set import ResourceSet
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.ledger.state import GraphState
from fluxqueue.graph.match.by_shares import ByShares
from fluxqueue.graph.match.by_table import ByTable
from fluxqueue.graph.match.by_vertices import ByVertices
from fluxqueue.graph.match.given import GivenJgf, GivenRv1
from fluxqueue.graph.match.policy import Policy, parse_policy
from fluxqueue.graph.match.search import GRAPH_END, NOBODY, PLAN_END, Verb
from fluxqueue.graph.match.shares.ask import Ask
from fluxqueue.graph.model.pruning import DEFAULT
from fluxqueue.graph.model.store import ResourceGraph
from fluxqueue.jobspec.model import Jobspec

__all__ = ["GRAPH_END", "PLAN_END", "Matcher", "Verb"]


class Matcher:
    """One graph, its bookings and a default policy.

    Parameters
    ----------
    graph
        Nodes, of which shares are given; or a graph of vertices, which are given whole.
    policy
        Used by requests that name none.
    prune_filters
        Of a graph of vertices: Fluxion's specification of summed types.
    end
        Of a graph of vertices: its last second; no booking goes beyond it. ``FOREVER``: it has
        none, and work without a duration is planned to end after everything that is known.
    use_reference
        True answers everything by the walk, vertex by vertex (tests compare it with the others).
    answers_as_fluxion
        True copies what recorded outputs rest on (docs/matcher.md).
    """

    def __init__(
        self,
        graph: ResourceGraph | ShareLedger,
        policy: str | Policy = "first",
        prune_filters: str = DEFAULT,
        *,
        end: int = GRAPH_END,
        use_reference: bool = False,
        answers_as_fluxion: bool = False,
    ) -> None:
        self.policy = parse_policy(policy) if isinstance(policy, str) else policy
        self._shares: ByShares | None = None
        self._vertices: ByVertices | None = None
        self._table: ByTable | None = None
        self._reserved: dict[int, tuple[int, Placement]] = {}
        self._promises = 0
        if isinstance(graph, ShareLedger):
            self._shares = ByShares(graph, self.policy)
            return
        self._vertices = ByVertices(
            graph,
            self.policy,
            prune_filters,
            end=end,
            use_reference=use_reference,
            answers_as_fluxion=answers_as_fluxion,
        )
        if graph.cluster is not None and not use_reference:
            self._table = ByTable(self._vertices)

    @property
    def by_shares(self) -> ByShares:
        """The table's answers; raises ``InvalidInput`` for a graph of vertices."""
        if self._shares is None:
            raise InvalidInput("gives vertices, not shares of nodes", where="graph")
        return self._shares

    @property
    def by_vertices(self) -> ByVertices:
        """The vertices' answers; raises ``InvalidInput`` where there are nodes only."""
        if self._vertices is None:
            raise InvalidInput("gives shares of nodes, not vertices", where="graph")
        return self._vertices

    @property
    def ledger(self) -> ShareLedger:
        """Nodes, and what is booked of them."""
        return self.by_shares.ledger

    @property
    def graph(self) -> ResourceGraph:
        """The graph of vertices."""
        return self.by_vertices.graph

    @property
    def state(self) -> GraphState:
        """What is booked on the graph of vertices."""
        return self.by_vertices.state

    # --- now, later, ever: nothing is booked -----------------------------------------------------

    def match_now(self, request: Jobspec, now: int) -> Placement:
        """Place the whole request now, delaying no reservation.

        Raises
        ------
        InsufficientResources
            Not all of it fits now. Whether it ever can is ``is_satisfiable``'s question.
        """
        if self._shares is not None:
            return self._shares.match_now(request, now)
        found = self.match(request, NOBODY, now=now, verb=Verb.WITHOUT_ALLOCATING)
        assert found is not None
        return found.placement()

    def match_later(self, request: Jobspec, now: int, *, not_before: int = 0) -> Placement:
        """Find the earliest start that running work and reservations leave open: one after ``now``
        and none before ``not_before`` (itself a time at which something ends). It is
        ``UNKNOWN_END`` where it must wait for something without a known end.

        Raises
        ------
        InsufficientResources
            Not even the end of everything that runs makes room.
        """
        if self._shares is not None:
            return self._shares.match_later(request, now, not_before=not_before)
        self.look(now)
        policy, table = self._way_of(request)
        if table is None or self._table is None:
            vertices = self.by_vertices
            found = vertices.match_later(request, now, not_before=not_before, policy=policy)
        else:
            found = self._table.resources(
                table.match_later(request, now, not_before=not_before), NOBODY
            )
        return found.placement()

    def is_satisfiable(self, request: Jobspec) -> bool:
        """Tell whether the empty graph could hold it, all that is down or cordoned included."""
        if self._shares is not None:
            return self._shares.is_satisfiable(request)
        try:
            self.match(request, NOBODY, verb=Verb.SATISFIABILITY)
        except Unsatisfiable:
            return False
        return True

    def match_more(
        self,
        request: Jobspec,
        nodes: Sequence[str],
        now: int,
        until: int,
        *,
        avoid: Collection[str] = (),
    ) -> Placement:
        """Place one more slot of the last kind beside those on ``nodes`` (one for each slot), bound
        as they are: in the same places of each level, and on a node of its own where each has one.
        Elsewhere than on the nodes to ``avoid``, if that can be.

        Raises
        ------
        InsufficientResources
            There is no room for it now.
        """
        if self._shares is not None:
            return self._shares.match_more(request, nodes, now, until, avoid=avoid)
        policy, table = self._way_of(request)
        if table is None or self._table is None:
            found = self.by_vertices.match_more(
                request, nodes, now, until, avoid=avoid, policy=policy
            )
        else:
            placement = table.match_more(request, nodes, now, until, avoid=avoid)
            found = self._table.resources(placement, NOBODY)
        return found.placement()

    def ask(self, request: Jobspec) -> Ask:
        """The request as the table of shares reads it: equal ones have equal answers."""
        return self.by_shares.ask(request)

    # --- what is booked --------------------------------------------------------------------------

    def allocate(self, job: int | str, placement: Placement) -> None:
        """Book what was found for ``job``, in place of what it had."""
        if self._shares is not None:
            self._shares.ledger.book(str(job), placement)
            return
        if int(job) in self.state.bookings:
            self.cancel(job)
        self._book(int(job), placement, is_reservation=False)

    def extend(self, job: int | str, placement: Placement) -> None:
        """Book more for ``job``, beside what it has; all of it lasts as long as the new part."""
        if self._shares is not None:
            self._shares.ledger.extend(str(job), placement)
            return
        held = self.state.bookings.get(int(job))
        if held is not None:
            assert placement.vertices is not None
            placement = replace(placement, vertices=merged(held, placement.vertices))
        self.allocate(job, placement)

    def shrink(self, job: int | str, placement: Placement) -> None:
        """Only ``placement`` is left of what ``job`` has."""
        self.allocate(job, placement)

    def cancel(self, job: int | str) -> bool:
        """Give back all that ``job`` has; tell whether there was anything.

        Raises
        ------
        InvalidInput
            Of a graph of vertices: it holds nothing.
        """
        if self._shares is not None:
            return self._shares.ledger.cancel(str(job))
        self.by_vertices.cancel(int(job))
        if self._table is not None:
            self._table.cancel(int(job))
        return True

    def reserve(self, placement: Placement, now: int) -> None:
        """Promise ``placement``: nothing that is matched later will delay it."""
        if self._shares is not None:
            self._shares.ledger.reserve(placement, now)
            return
        self.look(now)
        self._promises += 1
        number = NOBODY - self._promises
        self._reserved[id(placement)] = number, placement
        self._book(number, placement, is_reservation=True)

    def unreserve(self, placement: Placement) -> None:
        """Take a promise, the very object, back."""
        if self._shares is not None:
            self._shares.ledger.unreserve(placement)
        else:
            self.cancel(self._reserved.pop(id(placement))[0])

    def clear_plan(self) -> None:
        """Take back all promises; every cycle plans anew (flux-sched qmanager does the same)."""
        if self._shares is not None:
            self._shares.ledger.clear_plan()
        for number, _ in self._reserved.values():
            self.cancel(number)
        self._reserved.clear()

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Reserve and take back inside, and forget it at the end: the plan stays as it was."""
        if self._shares is not None:
            with self._shares.ledger.trying():
                yield
            return
        kept = dict(self._reserved)
        try:
            yield
        finally:
            for key, (number, _) in self._reserved.items():
                if key not in kept:
                    self.cancel(number)
            for key, (number, placement) in kept.items():
                if key not in self._reserved:
                    self._book(number, placement, is_reservation=True)
            self._reserved = kept

    def look(self, now: int) -> None:
        """The time has moved on: what has overrun its end is planned to end a little later."""
        if self._shares is not None:
            self._shares.ledger.look(now)
            return
        self.state.look(now)
        if self._table is not None:
            self._table.ledger.look(now)

    def _book(self, job: int, placement: Placement, *, is_reservation: bool) -> None:
        assert placement.vertices is not None
        booking = replace(placement.vertices, job=job, is_reservation=is_reservation)
        self.by_vertices.book(booking, self.policy, booking.at)
        if self._table is not None:
            self._table.book(job)

    # --- the graph as it changes -----------------------------------------------------------------

    def set_node(
        self, fact: NodeFact, foreign: Mapping[str, int], others: Others | None = None
    ) -> None:
        """A node joins, or is of another size, up, cordoned, or used by others (base units)."""
        self.ledger.set_node(fact, foreign, others)

    def remove_node(self, name: str) -> None:
        """A node leaves; what is booked there stays known until its allocation ends."""
        self.ledger.remove_node(name)

    # --- Fluxion's own verbs: jobids, documents, vertices ----------------------------------------

    def match(
        self,
        jobspec: Jobspec,
        job: int,
        *,
        now: int = 0,
        verb: Verb = Verb.ALLOCATE,
        policy: str | None = None,
    ) -> ResourceSet | None:
        """Find resources for ``jobspec`` and book them for ``job`` as ``verb`` says.

        Returns the resource set, ``is_reserved`` if it starts later than ``now``; None for
        ``satisfiability``, which books and returns nothing.

        Raises
        ------
        InsufficientResources
            Not now, but the graph could (EBUSY).
        Unsatisfiable
            Never on this graph (ENODEV); only the verbs that look into the future can say so.
        InvalidJobspec
            An unknown type, a duration beyond the graph, ``exclusive: false`` inside something
            exclusive, or nothing that would be held exclusively.
        InvalidInput
            ``job`` holds something already.
        """
        vertices = self.by_vertices
        if vertices.is_cluster:
            self.look(now)
        chosen, table = self._way_of(jobspec, policy)
        if self._table is None or table is None:
            found = vertices.match(jobspec, job, now=now, verb=verb, policy=chosen)
        else:
            found = self._table.match(table, jobspec, job, now, verb)
        if self._table is not None and verb.commits:
            self._table.book(job)
        return found

    def _way_of(
        self, jobspec: Jobspec, policy: str | None = None
    ) -> tuple[Policy, ByShares | None]:
        """The policy, and the table if it answers for this request."""
        wanted = policy or jobspec.match_policy
        chosen = self.policy if wanted is None else parse_policy(str(wanted))
        return chosen, None if self._table is None else self._table.table_for(jobspec, chosen)

    def update(
        self, given: GivenJgf | GivenRv1, job: int, *, at: int, duration_s: int, now: int = 0
    ) -> ResourceSet:
        """Book what a document says ``job`` holds, during ``[at, at + duration_s)``.

        Raises
        ------
        InvalidInput
            The job holds something already, a bad time, or a vertex that is not free.
        """
        found = self.by_vertices.update(given, job, at=at, duration_s=duration_s, now=now)
        if self._table is not None:
            self._table.book(job)
        return found

    def read_given(self, document: JgfDocument | Rv1) -> GivenJgf | GivenRv1:
        """Lay a parsed document on the graph; raises ``InvalidGraph`` where it does not fit."""
        return self.by_vertices.read_given(document)

    def cancel_part(self, job: int, document: JgfDocument | Rv1) -> bool:
        """Give back the vertices (JGF) or ranks (rv1exec) listed; True if nothing is left.

        Raises
        ------
        InvalidInput
            The job holds nothing, a reservation, or not what is listed.
        """
        is_over = self.by_vertices.cancel_part(job, document)
        if self._table is not None:
            self._table.cancel(job)
            if not is_over:
                self._table.book(job)
        return is_over

    def find(self, expression: str, *, now: int = 0) -> ResourceSet:
        """The vertices that ``expression`` describes; raises ``InvalidInput`` if it is none."""
        return self.by_vertices.find(expression, now=now)

    def set_status(self, v: int, *, is_up: bool) -> None:
        """Mark one vertex; a vertex that is down hides everything below it. Jobs stay."""
        self.by_vertices.set_status(v, is_up=is_up)
        self._follow(v)

    def set_property(self, v: int, key: str, value: str) -> None:
        """Give a vertex a property; constraints see the key, R shows both."""
        self.by_vertices.set_property(v, key, value)
        self._follow(v)

    def resize(self, v: int, size: int) -> None:
        """A consumable pool has another size; see ``ByVertices.resize``."""
        self.by_vertices.resize(v, size)
        self._follow(v)

    def set_foreign(self, v: int, units: int) -> None:
        """Others than our jobs use ``units`` of a consumable pool now; raises as ``resize``."""
        self.by_vertices.set_foreign(v, units)
        self._follow(v)

    def attach(self, document: JgfDocument) -> None:
        """Grow the graph by a JGF subgraph; raises ``InvalidGraph`` and changes nothing."""
        self.by_vertices.attach(document)
        self._follow_nodes()

    def remove_subtree(self, v: int) -> None:
        """Take ``v`` and everything below it out of the graph; what jobs held there is gone.

        Raises
        ------
        InvalidInput
            ``v`` is the root.
        """
        self.by_vertices.remove_subtree(v)
        self._follow_nodes()

    def remove_ranks(self, ranks: Iterable[int]) -> None:
        """Take all vertices of these broker ranks out; raises ``InvalidInput`` if one has none."""
        self.by_vertices.remove_ranks(ranks)
        self._follow_nodes()

    def _follow(self, v: int) -> None:
        if self._table is not None:
            self._table.follow_vertex(v)

    def _follow_nodes(self) -> None:
        if self._table is None:
            return
        if self._table.graph is self.graph:
            self._table.follow_nodes()
        else:  # compiled anew
            self._table = ByTable(self.by_vertices)
