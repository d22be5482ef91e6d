"""By graph: a graph of vertices, asked and booked as the scheduling cycle asks and books.

Chooses by the request who answers: the table of a cluster's graph (``by_table``) where it says all
that is asked for, else the vertices (``by_vertices``: block tables, then the walk). What is found
is a ``Placement`` with its vertices; what is booked, the vertices hold and the table follows.
Called by ``Matcher``; pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from fluxqueue.errors import Unsatisfiable
from fluxqueue.graph.ledger.booking import merged
from fluxqueue.graph.ledger.placement import Placement
from fluxqueue.graph.ledger.resource_set import ResourceSet
from fluxqueue.graph.match.by_shares import ByShares
from fluxqueue.graph.match.by_table import ByTable
from fluxqueue.graph.match.by_vertices import ByVertices
from fluxqueue.graph.match.policy import Policy, parse_policy
from fluxqueue.graph.match.search import NOBODY, Verb
from fluxqueue.jobspec.model import Jobspec


class ByGraph:
    """The questions that are put to a graph of vertices, and the verbs of its ledger.

    Keys of what is booked are jobids. ``table`` is None where vertices alone answer.
    """

    def __init__(self, vertices: ByVertices) -> None:
        self.vertices = vertices
        self.table: ByTable | None = None
        self._promises = 0
        self._reserved: dict[int, tuple[int, Placement]] = {}
        self.follow_nodes()

    # --- questions -------------------------------------------------------------------------------

    def match_now(self, request: Jobspec, now: int) -> Placement:
        """As ``Matcher.match_now``."""
        found = self.match(request, NOBODY, now, Verb.WITHOUT_ALLOCATING)
        assert found is not None
        return found.placement()

    def match_later(self, request: Jobspec, now: int, *, not_before: int = 0) -> Placement:
        """As ``Matcher.match_later``."""
        self.look(now)
        policy, table = self._way_of(request)
        if table is None or self.table is None:
            found = self.vertices.match_later(request, now, not_before=not_before, policy=policy)
        else:
            placement = table.match_later(request, now, not_before=not_before)
            found = self.table.resources(placement, NOBODY)
        return found.placement()

    def is_satisfiable(self, request: Jobspec) -> bool:
        """As ``Matcher.is_satisfiable``."""
        try:
            self.match(request, NOBODY, 0, Verb.SATISFIABILITY)
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
        """As ``Matcher.match_more``."""
        policy, table = self._way_of(request)
        if table is None or self.table is None:
            found = self.vertices.match_more(request, nodes, now, until, avoid=avoid, policy=policy)
        else:
            placement = table.match_more(request, nodes, now, until, avoid=avoid)
            found = self.table.resources(placement, NOBODY)
        return found.placement()

    def match(
        self, request: Jobspec, job: int, now: int, verb: Verb, policy: str | None = None
    ) -> ResourceSet | None:
        """As ``Matcher.match``."""
        if self.vertices.is_cluster and verb is not Verb.SATISFIABILITY:
            self.look(now)
        chosen, table = self._way_of(request, policy)
        if self.table is None or table is None:
            found = self.vertices.match(request, job, now=now, verb=verb, policy=chosen)
        else:
            found = self.table.match(table, request, job, now, verb)
        if verb.commits:
            self.follow_booked(job)
        return found

    def _way_of(
        self, request: Jobspec, policy: str | None = None
    ) -> tuple[Policy, ByShares | None]:
        """The policy, and the table if it answers for this request."""
        wanted = policy or request.match_policy
        chosen = self.vertices.policy if wanted is None else parse_policy(str(wanted))
        return chosen, None if self.table is None else self.table.table_for(request, chosen)

    # --- what is booked (``ledger.verbs``) -------------------------------------------------------

    def book(self, key: str, placement: Placement) -> None:
        """Book for a job, in place of what it had."""
        job = int(key)
        if job in self.vertices.state.bookings:
            self.cancel(key)
        self._book(job, placement, is_reservation=False)

    def extend(self, key: str, placement: Placement) -> None:
        """Book more for a job, beside what it has."""
        held = self.vertices.state.bookings.get(int(key))
        if held is not None:
            assert placement.vertices is not None
            placement = replace(placement, vertices=merged(held, placement.vertices))
        self.book(key, placement)

    def cancel(self, key: str) -> bool:
        """Give back all that a job has; raises ``InvalidInput`` if that is nothing."""
        job = int(key)
        self.vertices.cancel(job)
        if self.table is not None:
            self.table.cancel(job)
        return True

    def reserve(self, placement: Placement, now: int) -> None:
        """Promise ``placement``."""
        self.look(now)
        self._promises += 1
        number = NOBODY - self._promises
        self._reserved[id(placement)] = number, placement
        self._book(number, placement, is_reservation=True)

    def unreserve(self, placement: Placement) -> None:
        """Take a promise, the very object, back."""
        self.cancel(str(self._reserved.pop(id(placement))[0]))

    def clear_plan(self) -> None:
        """Take back all promises."""
        for number, _ in self._reserved.values():
            self.cancel(str(number))
        self._reserved.clear()

    @contextmanager
    def trying(self) -> Iterator[None]:
        """What is promised and taken back inside is forgotten at the end."""
        kept = dict(self._reserved)
        try:
            yield
        finally:
            for key, (number, _) in self._reserved.items():
                if key not in kept:
                    self.cancel(str(number))
            for key, (number, placement) in kept.items():
                if key not in self._reserved:
                    self._book(number, placement, is_reservation=True)
            self._reserved = kept

    def look(self, now: int) -> None:
        """The time has moved on."""
        self.vertices.state.look(now)
        if self.table is not None:
            self.table.ledger.look(now)

    def _book(self, job: int, placement: Placement, *, is_reservation: bool) -> None:
        assert placement.vertices is not None
        booking = replace(placement.vertices, job=job, is_reservation=is_reservation)
        self.vertices.book(booking, self.vertices.policy, booking.at)
        self.follow_booked(job)

    # --- the table follows -----------------------------------------------------------------------

    def follow_booked(self, job: int, *, is_less: bool = False) -> None:
        """The vertices hold something for ``job`` now; ``is_less``: less than before, if that."""
        if self.table is None:
            return
        if is_less:
            self.table.cancel(job)
        if job in self.vertices.state.bookings:
            self.table.book(job)

    def follow_vertex(self, v: int) -> None:
        """A vertex is up, down, of another size, or used by others."""
        if self.table is not None:
            self.table.follow_vertex(v)

    def follow_nodes(self) -> None:
        """Nodes have joined or left, or the graph has been compiled anew."""
        vertices = self.vertices
        if vertices.graph.cluster is None or vertices.use_reference:
            return
        if self.table is not None and self.table.graph is vertices.graph:
            self.table.follow_nodes()
        else:
            self.table = ByTable(vertices)
