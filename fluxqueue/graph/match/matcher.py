"""The matcher: one set of operations on one graph and its bookings.

There is one ``Matcher`` class. The scheduling cycle and ``resource-query`` both create it and use
the same operations. The kind of graph decides which ledger keeps the bookings. The request decides
how it is answered (docs/developer/matcher.md):

======================== =========================== ==============================================
graph                    bookings                    answered
======================== =========================== ==============================================
nodes (``ShareLedger``)  shares of nodes over time   by shares
a cluster's graph        vertices, with their table  by shares, or else by the walk
a Flux graph             vertices                    by block tables of vertices, or else by the
                                                     walk
======================== =========================== ==============================================

Fluxion's two outcomes are two *different* exceptions: ``InsufficientResources`` (EBUSY) and
``Unsatisfiable`` (ENODEV). Time is an argument in integer seconds, including ``now``. Pure.
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
    """What answers for now, later and ever: ``ByShares`` or ``ByGraph``."""

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
        Nodes, of which shares are given, or a graph of vertices, which are given whole.
    policy
        The policy of requests that name none.
    prune_filters
        For a graph of vertices: Fluxion's specification of the types to sum up.
    end
        For a graph of vertices: its last second. No booking goes beyond it. ``FOREVER`` means no
        limit. Work without a duration is then planned to end after everything that is known.
    use_reference
        True answers everything by the walk, vertex by vertex. Tests compare it with the other
        methods.
    answers_as_fluxion
        True copies the behaviour that recorded outputs depend on (docs/developer/matcher.md).
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
        """Return the table's answers. Raises ``InvalidInput`` for a graph of vertices."""
        if self._shares is None:
            raise InvalidInput("gives vertices, not shares of nodes", where="graph")
        return self._shares

    @property
    def by_graph(self) -> ByGraph:
        """Return the graph's answers. Raises ``InvalidInput`` if there are only nodes."""
        if self._graph is None:
            raise InvalidInput("gives shares of nodes, not vertices", where="graph")
        return self._graph

    @property
    def by_vertices(self) -> ByVertices:
        """Return the vertices' answers. Raises ``InvalidInput`` if there are only nodes."""
        return self.by_graph.vertices

    @property
    def ledger(self) -> ShareLedger:
        """Return the nodes and what is booked of them."""
        return self.by_shares.ledger

    @property
    def graph(self) -> ResourceGraph:
        """Return the graph of vertices."""
        return self.by_vertices.graph

    @property
    def state(self) -> VertexLedger:
        """Return what is booked on the graph of vertices."""
        return self.by_vertices.state

    def working(self, work: Work) -> AbstractContextManager[None]:
        """Limit all questions to a table of shares inside the context to ``work`` together.

        Questions beyond the limit raise ``TooComplex``. Nothing has been booked by the question
        then.
        """
        return self.by_shares.working(work)

    @property
    def work(self) -> Work | None:
        """Return what the present question to a table of shares may cost."""
        return self.by_shares.work

    # --- now, later, ever: nothing is booked -----------------------------------------------------

    def match_now(self, request: Jobspec, now: int) -> Placement:
        """Place the whole request now, without delaying any reservation.

        Raises
        ------
        InsufficientResources
            Some of it does not fit now. Ask ``is_satisfiable`` whether it ever can.
        """
        return self._answers.match_now(request, now)

    def match_later(self, request: Jobspec, now: int, *, not_before: int = 0) -> Placement:
        """Find the earliest start after ``now`` that running work and reservations allow.

        It is not before ``not_before``, which must itself be a time at which something ends. It is
        ``UNKNOWN_END`` if it depends on something without a known end.

        Raises
        ------
        InsufficientResources
            Even when all running work has ended, the request does not fit.
        """
        return self._answers.match_later(request, now, not_before=not_before)

    def is_satisfiable(self, request: Jobspec) -> bool:
        """Return whether the empty graph could hold it, including all that is down or cordoned."""
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
        """Place one more slot of the last kind, bound as its siblings are.

        ``nodes`` has the node of each sibling. The slot stands in the same places of each level. It
        gets a node of its own if each sibling has one. Nodes in ``avoid`` are used only if no other
        node fits.

        Raises
        ------
        InsufficientResources
            It does not fit now.
        """
        return self._answers.match_more(request, nodes, now, until, avoid=avoid)

    def ask(self, request: Jobspec) -> Ask:
        """Return the request as the table of shares reads it. Equal results have equal answers."""
        return self.by_shares.ask(request)

    # --- bookings (``ledger.verbs``) -------------------------------------------------------------

    def allocate(self, job: int | str, placement: Placement) -> None:
        """Book what was found for ``job``, in place of what it had."""
        self._booked.book(str(job), placement)

    def extend(self, job: int | str, placement: Placement) -> None:
        """Book more for ``job``. All that it has then lasts as long as the new part."""
        self._booked.extend(str(job), placement)

    def shrink(self, job: int | str, placement: Placement) -> None:
        """Leave only ``placement`` of what ``job`` has."""
        self._booked.book(str(job), placement)

    def cancel(self, job: int | str) -> bool:
        """Give back all that ``job`` has. Return False if it had nothing.

        Raises
        ------
        InvalidInput
            On a graph of vertices: the job holds nothing.
        """
        return self._booked.cancel(str(job))

    def reserve(self, placement: Placement, now: int) -> None:
        """Reserve ``placement``: later matches cannot delay it."""
        self._booked.reserve(placement, now)

    def unreserve(self, placement: Placement) -> None:
        """Remove a reservation. It must be the very object that was reserved."""
        self._booked.unreserve(placement)

    def clear_plan(self) -> None:
        """Remove all reservations.

        Every cycle makes a new plan (flux-sched's qmanager does the same).
        """
        self._booked.clear_plan()

    def trying(self) -> AbstractContextManager[None]:
        """Allow reservations inside the context and forget them afterwards."""
        return self._booked.trying()

    def look(self, now: int) -> None:
        """Move the time on. Work past its end is planned to end a little later."""
        self._booked.look(now)

    # --- changes of the graph --------------------------------------------------------------------

    def set_node(
        self, fact: NodeFact, foreign: Mapping[str, int], others: Others | None = None
    ) -> None:
        """Add or update a node: its size, status, cordon, and use by unmanaged pods.

        ``foreign`` is in base units.
        """
        self.ledger.set_node(fact, foreign, others)

    def remove_node(self, name: str) -> None:
        """Remove a node. Bookings on it stay known until their allocations end."""
        self.ledger.remove_node(name)

    # --- Fluxion's own operations: jobids, documents, vertices -----------------------------------

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

        Returns the resource set. It has ``is_reserved`` if it starts later than ``now``. The verb
        ``satisfiability`` books nothing and returns None.

        Raises
        ------
        InsufficientResources
            Not possible now, but on this graph later (EBUSY).
        Unsatisfiable
            Never possible on this graph (ENODEV). Only the verbs that look into the future can say
            so.
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
            The job holds something already, the time is not valid, or a vertex is not free.
        """
        found = self.by_vertices.update(given, job, at=at, duration_s=duration_s, now=now)
        self.by_graph.follow_booked(job)
        return found

    def read_given(self, document: JgfDocument | Rv1) -> GivenJgf | GivenRv1:
        """Map a parsed document to the graph. Raises ``InvalidGraph`` if it does not fit."""
        return self.by_vertices.read_given(document)

    def cancel_part(self, job: int, document: JgfDocument | Rv1) -> bool:
        """Give back the listed vertices (JGF) or ranks (rv1exec). Return True if nothing is left.

        Raises
        ------
        InvalidInput
            The job holds nothing, a reservation, or not what is listed.
        """
        is_over = self.by_vertices.cancel_part(job, document)
        self.by_graph.follow_booked(job, is_less=True)
        return is_over

    def find(self, expression: str, *, now: int = 0) -> ResourceSet:
        """Return the vertices that ``expression`` describes.

        Raises ``InvalidInput`` if it is not an expression.
        """
        return self.by_vertices.find(expression, now=now)

    def set_status(self, v: int, *, is_up: bool) -> None:
        """Mark one vertex up or down. A vertex that is down hides all vertices below it.

        Jobs stay.
        """
        self.by_vertices.set_status(v, is_up=is_up)
        self.by_graph.follow_vertex(v)

    def set_property(self, v: int, key: str, value: str) -> None:
        """Give a vertex a property. Constraints see the key, R shows key and value."""
        self.by_vertices.set_property(v, key, value)
        self.by_graph.follow_vertex(v)

    def resize(self, v: int, size: int) -> None:
        """Change the size of a consumable pool. See ``ByVertices.resize``."""
        self.by_vertices.resize(v, size)
        self.by_graph.follow_vertex(v)

    def set_foreign(self, v: int, units: int) -> None:
        """Set the ``units`` of a consumable pool that unmanaged pods use. Raises as ``resize``."""
        self.by_vertices.set_foreign(v, units)
        self.by_graph.follow_vertex(v)

    def attach(self, document: JgfDocument) -> None:
        """Add a JGF subgraph to the graph. Raises ``InvalidGraph`` and then changes nothing."""
        self.by_vertices.attach(document)
        self.by_graph.follow_nodes()

    def remove_subtree(self, v: int) -> None:
        """Remove ``v`` and all vertices below it. Jobs lose what they held there.

        Raises
        ------
        InvalidInput
            ``v`` is the root.
        """
        self.by_vertices.remove_subtree(v)
        self.by_graph.follow_nodes()

    def remove_ranks(self, ranks: Iterable[int]) -> None:
        """Remove all vertices of these broker ranks. Raises ``InvalidInput`` if one has none."""
        self.by_vertices.remove_ranks(ranks)
        self.by_graph.follow_nodes()
