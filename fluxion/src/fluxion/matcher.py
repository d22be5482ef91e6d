"""Fluxion's matcher: one graph of vertices, its bookings, and the commands of flux-sched.

Created by ``fluxqueue resource-query`` and by tests. The graph and the request decide how it is
answered (docs/developer/matcher.md):

======================== =========================== ==============================================
graph                    bookings                    answered
======================== =========================== ==============================================
a cluster's graph        vertices, with their table  by shares, or else by the walk
a Flux graph             vertices                    by block tables of vertices, or else by the
                                                     walk
======================== =========================== ==============================================

Fluxion's two outcomes are two *different* exceptions: ``InsufficientResources`` (EBUSY) and
``Unsatisfiable`` (ENODEV). Time is an argument in integer seconds, including ``now``. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from fluxion.formats.jgf import JgfDocument
from fluxion.formats.rv1 import Rv1
from fluxion.ledger.resource_set import ResourceSet
from fluxion.ledger.vertices import VertexLedger
from fluxion.match.by_graph import ByGraph
from fluxion.match.by_vertices import ByVertices
from fluxion.match.given import GivenJgf, GivenRv1
from fluxion.match.search import GRAPH_END, SearchVerb
from fluxion.model.pruning import DEFAULT
from fluxion.model.store import ResourceGraph
from fluxqueue.graph.match.matcher import MatcherVerbs
from fluxqueue.graph.match.policy import Policy, parse_policy
from fluxqueue.jobspec.model import Jobspec


class FluxionMatcher(MatcherVerbs):
    """A graph of vertices, which jobs get whole, its bookings and a default policy.

    Parameters
    ----------
    graph : the graph.
    policy : the policy of requests that name none.
    prune_filters : Fluxion's specification of the types to sum up.
    end : last second of the graph. No booking goes beyond it. ``FOREVER`` means no limit. Work
        without a duration is then planned to end after everything that is known.
    use_reference : True answers everything by the walk, vertex by vertex. Tests compare it with
        the other methods.
    answers_as_fluxion : True copies the behaviour that recorded outputs depend on
        (docs/developer/matcher.md).
    """

    def __init__(
        self,
        graph: ResourceGraph,
        policy: str | Policy = "first",
        prune_filters: str = DEFAULT,
        *,
        end: int = GRAPH_END,
        use_reference: bool = False,
        answers_as_fluxion: bool = False,
    ) -> None:
        self.policy = parse_policy(policy) if isinstance(policy, str) else policy
        self.by_vertices = ByVertices(
            graph,
            self.policy,
            prune_filters,
            end=end,
            use_reference=use_reference,
            answers_as_fluxion=answers_as_fluxion,
        )
        self.by_graph = ByGraph(self.by_vertices)
        super().__init__(self.by_graph, self.by_graph)

    @property
    def graph(self) -> ResourceGraph:
        """Return the graph of vertices."""
        return self.by_vertices.graph

    @property
    def state(self) -> VertexLedger:
        """Return what is booked on the graph of vertices."""
        return self.by_vertices.state

    # --- Fluxion's own operations: jobids, documents, vertices -----------------------------------

    def match(
        self,
        jobspec: Jobspec,
        job: int,
        *,
        now: int = 0,
        verb: SearchVerb = SearchVerb.ALLOCATE,
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
