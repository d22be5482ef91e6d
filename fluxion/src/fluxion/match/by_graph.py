"""Matching by graph: a graph of vertices with the operations of the scheduling cycle.

The request decides what answers. The table of a cluster's graph (``by_table``) answers if it can
express the request. Otherwise the vertices answer (``by_vertices``: block tables, then the walk). A
result is a ``Placement`` with its vertices. The vertices hold the bookings and the table follows.
``FluxionMatcher`` calls it. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from fluxion.ledger.booking import merged
from fluxion.ledger.resource_set import ResourceSet
from fluxion.match.by_table import ByTable
from fluxion.match.by_vertices import ByVertices
from fluxion.match.search import NOBODY, SearchVerb
from fluxqueue.errors import Unsatisfiable
from fluxqueue.graph.ledger.placement import Placement
from fluxqueue.graph.match.by_shares import ByShares
from fluxqueue.graph.match.policy import Policy, parse_policy
from fluxqueue.jobspec.model import Jobspec


class ByGraph:
    """Answers questions about a graph of vertices, and has the operations of its ledger.

    Keys of bookings are jobids. ``table`` is None if only the vertices can answer.
    """

    def __init__(self, vertices: ByVertices) -> None:
        self.vertices = vertices
        self.table: ByTable | None = None
        self._promises = 0
        self._reserved: dict[int, tuple[int, Placement]] = {}
        self.follow_nodes()

    # --- questions -------------------------------------------------------------------------------

    def match_now(self, request: Jobspec, now: int) -> Placement:
        """Match as ``FluxionMatcher.match_now`` does."""
        found = self.match(request, NOBODY, now, SearchVerb.WITHOUT_ALLOCATING)
        assert found is not None
        return found.placement()

    def match_later(self, request: Jobspec, now: int, *, not_before: int = 0) -> Placement:
        """Match as ``FluxionMatcher.match_later`` does."""
        self.look(now)
        policy, table = self._way_of(request)
        if table is None or self.table is None:
            found = self.vertices.match_later(request, now, not_before=not_before, policy=policy)
        else:
            placement = table.match_later(request, now, not_before=not_before)
            found = self.table.resources(placement, NOBODY)
        return found.placement()

    def is_satisfiable(self, request: Jobspec) -> bool:
        """Answer as ``FluxionMatcher.is_satisfiable`` does."""
        try:
            self.match(request, NOBODY, 0, SearchVerb.SATISFIABILITY)
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
        """Match as ``FluxionMatcher.match_more`` does."""
        policy, table = self._way_of(request)
        if table is None or self.table is None:
            found = self.vertices.match_more(request, nodes, now, until, avoid=avoid, policy=policy)
        else:
            placement = table.match_more(request, nodes, now, until, avoid=avoid)
            found = self.table.resources(placement, NOBODY)
        return found.placement()

    def match(
        self, request: Jobspec, job: int, now: int, verb: SearchVerb, policy: str | None = None
    ) -> ResourceSet | None:
        """Match as ``FluxionMatcher.match`` does."""
        if self.vertices.is_cluster and verb is not SearchVerb.SATISFIABILITY:
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
        """Return the policy, and the table if it answers this request."""
        wanted = policy or request.match_policy
        chosen = self.vertices.policy if wanted is None else parse_policy(str(wanted))
        return chosen, None if self.table is None else self.table.table_for(request, chosen)

    # --- bookings (``graph.match.matcher.Ledger``) -----------------------------------------------

    def book(self, key: str, placement: Placement) -> None:
        """Book for a job, in place of what it had."""
        job = int(key)
        if job in self.vertices.state.bookings:
            self.cancel(key)
        self._book(job, placement, is_reservation=False)

    def extend(self, key: str, placement: Placement) -> None:
        """Book more for a job, in addition to what it has."""
        held = self.vertices.state.bookings.get(int(key))
        if held is not None:
            assert placement.vertices is not None
            placement = replace(placement, vertices=merged(held, placement.vertices))
        self.book(key, placement)

    def cancel(self, key: str) -> bool:
        """Give back all that a job has. Raises ``InvalidInput`` if it has nothing."""
        job = int(key)
        self.vertices.cancel(job)
        if self.table is not None:
            self.table.cancel(job)
        return True

    def reserve(self, placement: Placement, now: int) -> None:
        """Reserve ``placement``."""
        self.look(now)
        self._promises += 1
        # Reservations get numbers below -1, so they never collide with jobids.
        number = NOBODY - self._promises
        self._reserved[id(placement)] = number, placement
        self._book(number, placement, is_reservation=True)

    def unreserve(self, placement: Placement) -> None:
        """Remove a reservation. It must be the very object that was reserved."""
        self.cancel(str(self._reserved.pop(id(placement))[0]))

    def clear_plan(self) -> None:
        """Remove all reservations."""
        for number, _ in self._reserved.values():
            self.cancel(str(number))
        self._reserved.clear()

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Forget at the end what was reserved or removed inside the context."""
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
        """Move the time on."""
        self.vertices.state.look(now)
        if self.table is not None:
            self.table.ledger.look(now)

    def _book(self, job: int, placement: Placement, *, is_reservation: bool) -> None:
        assert placement.vertices is not None
        booking = replace(placement.vertices, job=job, is_reservation=is_reservation)
        self.vertices.book(booking, self.vertices.policy, booking.at)
        self.follow_booked(job)

    # --- updates of the table --------------------------------------------------------------------

    def follow_booked(self, job: int, *, is_less: bool = False) -> None:
        """Update the table after the booking of ``job`` has changed.

        ``is_less``: the job had more before. It may have nothing left.
        """
        if self.table is None:
            return
        if is_less:
            self.table.cancel(job)
        if job in self.vertices.state.bookings:
            self.table.book(job)

    def follow_vertex(self, v: int) -> None:
        """Update the table after a vertex changed its status, size, or use by unmanaged pods."""
        if self.table is not None:
            self.table.follow_vertex(v)

    def follow_nodes(self) -> None:
        """Update the table after nodes joined or left, or after the graph was compiled again."""
        vertices = self.vertices
        if vertices.graph.cluster is None or vertices.use_reference:
            return
        if self.table is not None and self.table.graph is vertices.graph:
            self.table.follow_nodes()
        else:
            self.table = ByTable(vertices)
