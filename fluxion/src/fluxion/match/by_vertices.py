"""Matching by vertices: Fluxion's operations on one graph of vertices and its bookings.

Answers are those of Fluxion (flux-sched, resource/traversers/dfu.cpp). Tables of blocks answer
where they can, and the walk (``search``) answers the rest. ``ByGraph`` calls it. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from fluxion.formats.jgf import JgfDocument
from fluxion.formats.rv1 import Rv1
from fluxion.ledger.booking import Booking
from fluxion.ledger.resource_set import ResourceSet
from fluxion.match.changing import ChangingGraph
from fluxion.match.compiled_request import WalkRequest
from fluxion.match.find import Finder
from fluxion.match.given import GivenJgf, GivenRv1, check_free, find_vertex, without
from fluxion.match.one_more import OneMore, one_more
from fluxion.match.search import NOBODY, PLAN_END, Search, SearchVerb
from fluxion.model.store import ResourceGraph
from fluxqueue.errors import InsufficientResources, InvalidInput
from fluxqueue.fluxjob.node import NAME_KEY, NodeFact
from fluxqueue.graph.ledger.placement import FOREVER
from fluxqueue.graph.match.policy import Policy
from fluxqueue.jobspec.model import Jobspec
from fluxqueue.jobspec.shape import relaxations

MAX_COMPILED = 256


class ByVertices(ChangingGraph):
    """Answers questions about a graph of vertices, and books on it.

    Parameters as in ``FluxionMatcher``. ``prune_filters`` also decide the weights of ``first`` and
    the totals that reservations are checked with. A cluster's graph is walked as the table of
    shares chooses: an unnamed level between two named ones is passed through. The fullest places
    come first. ``answers_as_fluxion`` copies the fixed answers of the check of the number of nodes,
    and the weights of ``first`` that a cancel leaves behind.
    """

    def __init__(
        self,
        graph: ResourceGraph,
        policy: Policy,
        prune_filters: str,
        *,
        end: int,
        use_reference: bool,
        answers_as_fluxion: bool,
    ) -> None:
        self.policy = policy
        self.end = end
        self.is_cluster = graph.cluster is not None
        facts = graph.cluster.facts.values() if graph.cluster is not None else ()
        self._has_taints = any(taint.repels for fact in facts for taint in fact.taints)
        super().__init__(
            graph,
            prune_filters,
            use_reference=use_reference,
            answers_as_fluxion=answers_as_fluxion,
        )

    def _load(self, graph: ResourceGraph) -> None:
        super()._load(graph)
        self._compiled: dict[int, tuple[Jobspec, WalkRequest]] = {}

    # -- matching ---------------------------------------------------------------------------

    def match(
        self,
        jobspec: Jobspec,
        job: int,
        *,
        now: int = 0,
        verb: SearchVerb = SearchVerb.ALLOCATE,
        policy: Policy | None = None,
    ) -> ResourceSet | None:
        """Find resources for ``jobspec`` and book them for ``job``, as ``FluxionMatcher.match``."""
        if verb.commits and job in self.state.bookings:
            raise InvalidInput("the job holds resources already", where="jobid", value=job)
        search = self._search(jobspec, now, verb, policy)
        if verb is SearchVerb.SATISFIABILITY:
            search.check_satisfiability()
            return None
        found = search.find(job)
        if verb.commits:
            self.book(found.booking, search.policy, now)
        return found

    def match_later(
        self,
        jobspec: Jobspec,
        now: int,
        *,
        not_before: int = 0,
        policy: Policy | None = None,
    ) -> ResourceSet:
        """Return the earliest start after ``now``, as ``FluxionMatcher.match_later``."""
        search = self._search(jobspec, now, SearchVerb.WITHOUT_ALLOCATING_FUTURE, policy)
        found = search.find_later(NOBODY, not_before)
        if found is None:
            raise InsufficientResources("nothing that ends makes room for it")
        return found

    def match_more(
        self,
        jobspec: Jobspec,
        nodes: Sequence[str],
        now: int,
        until: int,
        *,
        avoid: Collection[str] = (),
        policy: Policy | None = None,
    ) -> ResourceSet:
        """Return one more slot of the last kind, as ``FluxionMatcher.match_more``.

        If the work overruns, ``until`` has passed. Then the slot takes what is free now.
        """
        more = one_more(jobspec, self.graph.type_name(0))
        left_s = 0 if until >= FOREVER else max(1, until - now)
        asked = replace(more.jobspec, duration_s=left_s, grace_s=0)
        is_open = self._open_to(more, nodes)
        avoided = frozenset(avoid)

        def is_elsewhere(v: int) -> bool:
            return is_open(v) and self.graph.name(v) not in avoided

        def find(nodes: Callable[[int], bool]) -> ResourceSet:
            found = self._search(asked, now, SearchVerb.WITHOUT_ALLOCATING, policy, nodes=nodes)
            return found.find(NOBODY)

        try:
            found = find(is_elsewhere)
        except InsufficientResources:
            found = find(is_open)
        found.booking.end = min(until, found.booking.end)
        return found

    def _open_to(self, more: OneMore, nodes: Sequence[str]) -> Callable[[int], bool]:
        """Return a test for the nodes that may have one more slot beside those on ``nodes``.

        The slot must be in the same place of the level above. The numbers of nodes and of slots on
        each node must not exceed the request.
        """
        graph = self.graph
        counts = Counter(nodes)
        is_full = len(counts) >= more.nodes and more.on_each > 1
        has_gap = is_full and any(count < more.on_each for count in counts.values())
        places: set[int] = set()
        if more.level:
            own = {graph.name(block.base): block.base for block in graph.blocks}
            there = {self._above(own[name], more.level) for name in counts if name in own}
            places = there - {-1}

        def is_open(v: int) -> bool:
            count = counts.get(graph.name(v), 0)
            if more.nodes and (count >= more.on_each or (has_gap and not count)):
                return False
            return not places or self._above(v, more.level) in places

        return is_open

    def _above(self, v: int, level: str) -> int:
        """Return the vertex of a level that ``v`` stands below, or -1."""
        while v >= 0 and self.graph.type_name(v) != level:
            v = self.graph.parent[v]
        return v

    def _search(
        self,
        jobspec: Jobspec,
        now: int,
        verb: SearchVerb,
        policy: Policy | None,
        *,
        nodes: Callable[[int], bool] | None = None,
    ) -> Search:
        chosen = policy or self.policy
        if jobspec.is_node_exclusive:
            chosen = chosen.of_whole_nodes()
        requests = tuple(map(self.compile, self._tried(jobspec)))
        if chosen.stops_early and self.weights.unweighed:
            self.weights.weigh_the_rest(now)
        return Search(self, requests, chosen, now, verb, nodes=nodes)

    def _tried(self, jobspec: Jobspec) -> tuple[Jobspec, ...]:
        """Return the preferred forms of the request that this graph has levels for, then itself."""
        if not jobspec.prefer_within:
            return (jobspec,)
        known = self.graph.type_number.keys() | jobspec.types()
        forms = relaxations(jobspec, self._levels())
        return tuple(one for one in forms if one.types() <= known)

    def _levels(self) -> list[str]:
        """Return the types of the vertices between root and nodes, top first.

        For a cluster these are the levels with labels: nodes without a label are in no common
        place.
        """
        graph = self.graph
        if graph.cluster is not None:
            return [level.name for level in graph.cluster.levels]
        tops = sorted((v for v in graph.tops if v), key=graph.depth)
        return list(dict.fromkeys(map(graph.type_name, tops)))

    def book(self, booking: Booking, policy: Policy, now: int) -> None:
        """Book what ``policy`` has chosen."""
        self.state.book(booking)
        if policy.stops_early:
            self.weights.update(booking, now)
        else:
            self.weights.unweighed.add(booking.job)

    def compile(self, jobspec: Jobspec) -> WalkRequest:
        """Return the request for this graph. Cached while the jobspec object is in use."""
        known = self._compiled.get(id(jobspec))
        if known is not None:
            return known[1]
        request = WalkRequest(
            jobspec, self.graph.type_number, has_pools=bool(self.graph.consumable)
        )
        if len(self._compiled) >= MAX_COMPILED:
            self._compiled.clear()
        self._compiled[id(jobspec)] = (jobspec, request)
        return request

    def cancel(self, job: int) -> Booking:
        """Give back all that ``job`` holds.

        Raises
        ------
        InvalidInput
            It holds nothing.
        """
        if job not in self.state.bookings:
            raise InvalidInput("holds nothing", where="jobid", value=job)
        booking = self.state.cancel(job)
        self.weights.unweighed.discard(job)
        self.weights.follow(booking)
        return booking

    # -- given resource sets ------------------------------------------------------------------

    def update(
        self, given: GivenJgf | GivenRv1, job: int, *, at: int, duration_s: int, now: int = 0
    ) -> ResourceSet:
        """Book what a document says ``job`` holds, during ``[at, at + duration_s)``.

        Raises
        ------
        InvalidInput
            The job holds something already, the time is not valid, or a vertex is not free.
        """
        if job in self.state.bookings:
            raise InvalidInput("the job holds resources already", where="jobid", value=job)
        if at < 0 or duration_s < 1 or at + duration_s > PLAN_END:
            raise InvalidInput("is no time to book", where="starttime", value=(at, duration_s))
        check_free(self.state, given, at, at + duration_s)
        booking = given.booking()
        for one in (booking, given.shown):
            one.job, one.at, one.end, one.is_reservation = job, at, at + duration_s, at != now
        self.state.book(booking)
        if self.policy.stops_early:
            self.weights.update(given.shown, now)
        else:
            self.weights.unweighed.add(job)
        return ResourceSet(self.graph, given.shown)

    def read_given(self, document: JgfDocument | Rv1) -> GivenJgf | GivenRv1:
        """Map a parsed document to the graph. Raises ``InvalidGraph`` if it does not fit."""
        if isinstance(document, Rv1):
            return GivenRv1(self.graph, document)
        node = self.graph.type_number["node"]
        kinds = {node} if self.policy.is_node_exclusive else set()
        return GivenJgf(self.graph, document, kinds)

    def cancel_part(self, job: int, document: JgfDocument | Rv1) -> bool:
        """Give back the listed vertices (JGF) or ranks (rv1exec). Return True if nothing is left.

        Raises
        ------
        InvalidInput
            The job holds nothing, a reservation, or not what is listed.
        """
        booking = self.state.bookings.get(job)
        if booking is None or booking.is_reservation:
            raise InvalidInput("has no allocation", where="jobid", value=job)
        graph = self.graph
        units_of: dict[int, int] = {}
        if isinstance(document, Rv1):
            gone = self._held_on_ranks(booking, {entry.rank for entry in document.entries})
        else:
            gone = [find_vertex(graph, found) for found in document.vertices]
            units_of = {v: found.share for v, found in zip(gone, document.vertices, strict=True)}
        left = without(graph, booking, gone, units_of)
        self.state.cancel(job)
        is_some_left = bool(left.blocks or left.tops)
        if is_some_left:
            self.state.book(left)
        else:
            self.weights.unweighed.discard(job)
        self.weights.follow(booking)
        return not is_some_left

    def _held_on_ranks(self, booking: Booking, ranks: set[int]) -> list[int]:
        graph = self.graph
        found: list[int] = []
        for rank in sorted(ranks):
            vertices = graph.by_rank(rank)
            if not vertices:
                raise InvalidInput("the graph has no such rank", where="rank", value=rank)
            top = min(vertices, key=graph.depth)
            for v in graph.subtree(top):
                number = graph.block_of[v]
                if number < 0:
                    is_held = booking.tops.get(v, False)
                else:
                    booked = booking.blocks.get(number, (0, 0))[0]
                    is_held = bool(booked >> (v - graph.blocks[number].base) & 1)
                if is_held or v in booking.shares:
                    found.append(v)
        return found

    def find(self, expression: str, *, now: int = 0) -> ResourceSet:
        """Return the vertices that ``expression`` describes.

        Raises ``InvalidInput`` if it is not an expression.
        """
        return Finder(self.state, expression).run(now)

    def fact_of(self, v: int) -> NodeFact:
        """Return what is known of a cluster's node, with the graph's properties of it now."""
        graph = self.graph
        assert graph.cluster is not None
        name = graph.name(v)
        known = graph.cluster.facts.get(name) or NodeFact(name, "", {})
        return replace(known, labels={NAME_KEY: name, **graph.properties.get(v, {})})

    def constraint_for(
        self, jobspec: Jobspec, labels: Collection[str]
    ) -> Callable[[int], bool] | None:
        """Return a test for the nodes that slots of these labels may use, or None for all.

        On a cluster, taints and NUMA zones count too.
        """
        graph = self.graph
        demands = {jobspec.where_of(label) for label in labels} or {jobspec.where}
        if self.is_cluster and (self._has_taints or any(one.numa for one in demands)):
            return lambda v: all(d.admits(self.fact_of(v), graph.rank[v]) for d in demands)
        constraints = [one.constraint for one in demands if one.constraint is not None]
        if not constraints:
            return None
        nothing: dict[str, str] = {}

        def is_allowed(v: int) -> bool:
            about = graph.name(v), graph.rank[v], graph.properties.get(v, nothing)
            return all(constraint.matches(*about) for constraint in constraints)

        return is_allowed
