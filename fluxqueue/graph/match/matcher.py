"""The matcher: one set of verbs over one graph and all that is booked on it.

There is one ``Matcher``. The scheduling cycle and ``resource-query`` both make it and put the same
verbs to it; what the graph is decides which ledger keeps the bookings, and what is asked decides
how it is answered (docs/developer/matcher.md):

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

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.graph.formats.jgf import JgfDocument
from fluxqueue.graph.formats.rv1 import Rv1
from fluxqueue.graph.ledger.placement import Others, Placement
from fluxqueue.graph.ledger.resource_set import ResourceSet
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.ledger.verbs import Ledger
from fluxqueue.graph.ledger.vertices import VertexLedger
from fluxqueue.graph.match.by_graph import ByGraph
from fluxqueue.graph.match.by_shares import ByShares
from fluxqueue.graph.match.by_vertices import ByVertices
from fluxqueue.graph.match.given import GivenJgf, GivenRv1
from fluxqueue.graph.match.policy import Policy, parse_policy
from fluxqueue.graph.match.search import GRAPH_END, PLAN_END, Verb
from fluxqueue.graph.match.shares.ask import Ask
from fluxqueue.graph.model.pruning import DEFAULT
from fluxqueue.graph.model.store import ResourceGraph
from fluxqueue.jobspec.bounds import Work
from fluxqueue.jobspec.model import Jobspec

__all__ = ["GRAPH_END", "PLAN_END", "Matcher", "Verb"]


class Answers(Protocol):
    """Who answers now, later, ever: ``ByShares`` or ``ByGraph``."""

    def match_now(self, request: Jobspec, now: int) -> Placement: ...

    def match_later(self, request: Jobspec, now: int, *, not_before: int = 0) -> Placement: ...

    def is_satisfiable(self, request: Jobspec) -> bool: ...

    def match_more(
        self,
        request: Jobspec,
        nodes: Sequence[str],
        now: int,
        until: int,
        *,
        avoid: Collection[str] = (),
    ) -> Placement: ...


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
        True copies what recorded outputs rest on (docs/developer/matcher.md).
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
        self._graph: ByGraph | None = None
        self._answers: Answers
        self._booked: Ledger
        if isinstance(graph, ShareLedger):
            self._answers = self._shares = ByShares(graph, self.policy)
            self._booked = graph
        else:
            vertices = ByVertices(
                graph,
                self.policy,
                prune_filters,
                end=end,
                use_reference=use_reference,
                answers_as_fluxion=answers_as_fluxion,
            )
            self._answers = self._booked = self._graph = ByGraph(vertices)

    @property
    def by_shares(self) -> ByShares:
        """The table's answers; raises ``InvalidInput`` for a graph of vertices."""
        if self._shares is None:
            raise InvalidInput("gives vertices, not shares of nodes", where="graph")
        return self._shares

    @property
    def by_graph(self) -> ByGraph:
        """The graph's answers; raises ``InvalidInput`` where there are nodes only."""
        if self._graph is None:
            raise InvalidInput("gives shares of nodes, not vertices", where="graph")
        return self._graph

    @property
    def by_vertices(self) -> ByVertices:
        """The vertices' answers; raises ``InvalidInput`` where there are nodes only."""
        return self.by_graph.vertices

    @property
    def ledger(self) -> ShareLedger:
        """Nodes, and what is booked of them."""
        return self.by_shares.ledger

    @property
    def graph(self) -> ResourceGraph:
        """The graph of vertices."""
        return self.by_vertices.graph

    @property
    def state(self) -> VertexLedger:
        """What is booked on the graph of vertices."""
        return self.by_vertices.state

    def working(self, work: Work) -> AbstractContextManager[None]:
        """Inside, all that is asked of a table of shares costs no more than ``work`` together.

        ``TooComplex`` is raised where it would; nothing has been booked by the question then.
        """
        return self.by_shares.working(work)

    @property
    def work(self) -> Work | None:
        """What the present question to a table of shares may cost."""
        return self.by_shares.work

    # --- now, later, ever: nothing is booked -----------------------------------------------------

    def match_now(self, request: Jobspec, now: int) -> Placement:
        """Place the whole request now, delaying no reservation.

        Raises
        ------
        InsufficientResources
            Not all of it fits now. Whether it ever can is ``is_satisfiable``'s question.
        """
        return self._answers.match_now(request, now)

    def match_later(self, request: Jobspec, now: int, *, not_before: int = 0) -> Placement:
        """Find the earliest start that running work and reservations leave open: one after ``now``
        and none before ``not_before`` (itself a time at which something ends). It is
        ``UNKNOWN_END`` where it must wait for something without a known end.

        Raises
        ------
        InsufficientResources
            Not even the end of everything that runs makes room.
        """
        return self._answers.match_later(request, now, not_before=not_before)

    def is_satisfiable(self, request: Jobspec) -> bool:
        """Tell whether the empty graph could hold it, all that is down or cordoned included."""
        return self._answers.is_satisfiable(request)

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
        return self._answers.match_more(request, nodes, now, until, avoid=avoid)

    def ask(self, request: Jobspec) -> Ask:
        """The request as the table of shares reads it: equal ones have equal answers."""
        return self.by_shares.ask(request)

    # --- what is booked (``ledger.verbs``) -------------------------------------------------------

    def allocate(self, job: int | str, placement: Placement) -> None:
        """Book what was found for ``job``, in place of what it had."""
        self._booked.book(str(job), placement)

    def extend(self, job: int | str, placement: Placement) -> None:
        """Book more for ``job``, beside what it has; all of it lasts as long as the new part."""
        self._booked.extend(str(job), placement)

    def shrink(self, job: int | str, placement: Placement) -> None:
        """Only ``placement`` is left of what ``job`` has."""
        self._booked.book(str(job), placement)

    def cancel(self, job: int | str) -> bool:
        """Give back all that ``job`` has; tell whether there was anything.

        Raises
        ------
        InvalidInput
            Of a graph of vertices: it holds nothing.
        """
        return self._booked.cancel(str(job))

    def reserve(self, placement: Placement, now: int) -> None:
        """Promise ``placement``: nothing that is matched later will delay it."""
        self._booked.reserve(placement, now)

    def unreserve(self, placement: Placement) -> None:
        """Take a promise, the very object, back."""
        self._booked.unreserve(placement)

    def clear_plan(self) -> None:
        """Take back all promises; every cycle plans anew (flux-sched qmanager does the same)."""
        self._booked.clear_plan()

    def trying(self) -> AbstractContextManager[None]:
        """Reserve and take back inside, and forget it at the end: the plan stays as it was."""
        return self._booked.trying()

    def look(self, now: int) -> None:
        """The time has moved on: what has overrun its end is planned to end a little later."""
        self._booked.look(now)

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
        return self.by_graph.match(jobspec, job, now, verb, policy)

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
        self.by_graph.follow_booked(job)
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
        self.by_graph.follow_booked(job, is_less=True)
        return is_over

    def find(self, expression: str, *, now: int = 0) -> ResourceSet:
        """The vertices that ``expression`` describes; raises ``InvalidInput`` if it is none."""
        return self.by_vertices.find(expression, now=now)

    def set_status(self, v: int, *, is_up: bool) -> None:
        """Mark one vertex; a vertex that is down hides everything below it. Jobs stay."""
        self.by_vertices.set_status(v, is_up=is_up)
        self.by_graph.follow_vertex(v)

    def set_property(self, v: int, key: str, value: str) -> None:
        """Give a vertex a property; constraints see the key, R shows both."""
        self.by_vertices.set_property(v, key, value)
        self.by_graph.follow_vertex(v)

    def resize(self, v: int, size: int) -> None:
        """A consumable pool has another size; see ``ByVertices.resize``."""
        self.by_vertices.resize(v, size)
        self.by_graph.follow_vertex(v)

    def set_foreign(self, v: int, units: int) -> None:
        """Others than our jobs use ``units`` of a consumable pool now; raises as ``resize``."""
        self.by_vertices.set_foreign(v, units)
        self.by_graph.follow_vertex(v)

    def attach(self, document: JgfDocument) -> None:
        """Grow the graph by a JGF subgraph; raises ``InvalidGraph`` and changes nothing."""
        self.by_vertices.attach(document)
        self.by_graph.follow_nodes()

    def remove_subtree(self, v: int) -> None:
        """Take ``v`` and everything below it out of the graph; what jobs held there is gone.

        Raises
        ------
        InvalidInput
            ``v`` is the root.
        """
        self.by_vertices.remove_subtree(v)
        self.by_graph.follow_nodes()

    def remove_ranks(self, ranks: Iterable[int]) -> None:
        """Take all vertices of these broker ranks out; raises ``InvalidInput`` if one has none."""
        self.by_vertices.remove_ranks(ranks)
        self.by_graph.follow_nodes()
