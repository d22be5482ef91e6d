"""One search of the matcher: which windows are tried, and what a failure means.

Called by ``Matcher.match``. The order of events is Fluxion's (flux-sched,
resource/traversers/dfu.cpp): a pre-check on the number of nodes, one selection now, then, for the
verbs that look ahead, one at each later time at which something changes. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Protocol

from fluxqueue.errors import InsufficientResources, InvalidJobspec, MatchError, Unsatisfiable
from fluxqueue.graph.ledger.resource_set import ResourceSet
from fluxqueue.graph.ledger.state import Booking, GraphState
from fluxqueue.graph.match.child_order import ChildOrder
from fluxqueue.graph.match.collect import Collector
from fluxqueue.graph.match.policy import Policy
from fluxqueue.graph.match.request import Request
from fluxqueue.graph.match.vertices.tables import FastSelector
from fluxqueue.graph.match.walk.looking import Window
from fluxqueue.graph.match.walk.traversal import Walk
from fluxqueue.graph.model.store import ResourceGraph

GRAPH_END = 3_153_600_000
"""Fluxion's default lifetime of a graph: 100 years in seconds."""
PLAN_END = (1 << 63) - 1


class Verb(StrEnum):
    """What a match may do when the resources are not free now."""

    ALLOCATE = "allocate"
    ALLOCATE_WITH_SATISFIABILITY = "allocate_with_satisfiability"
    ALLOCATE_ORELSE_RESERVE = "allocate_orelse_reserve"
    SATISFIABILITY = "satisfiability"
    WITHOUT_ALLOCATING = "without_allocating"
    WITHOUT_ALLOCATING_FUTURE = "without_allocating_future"

    @property
    def commits(self) -> bool:
        return self in (
            Verb.ALLOCATE,
            Verb.ALLOCATE_WITH_SATISFIABILITY,
            Verb.ALLOCATE_ORELSE_RESERVE,
        )

    @property
    def looks_ahead(self) -> bool:
        return self in (Verb.ALLOCATE_ORELSE_RESERVE, Verb.WITHOUT_ALLOCATING_FUTURE)


BUSY = "busy now: the resources are not free"
NEVER = "the graph can never satisfy this request"


class Searched(Protocol):
    """What a search needs of the matcher whose graph it looks through."""

    graph: ResourceGraph
    state: GraphState
    order: ChildOrder
    fast: FastSelector
    end: int
    nodes_up: int
    use_reference: bool
    is_cluster: bool
    answers_as_fluxion: bool

    def constraint_for(self, request: Request) -> Callable[[int], bool] | None:
        """The nodes that the request's constraint allows."""
        ...


class Search:
    """One call of ``match``: which windows to try, and what a failure means."""

    def __init__(
        self, matcher: Searched, request: Request, policy: Policy, now: int, verb: Verb
    ) -> None:
        self.matcher, self.request, self.policy = matcher, request, policy
        self.state = matcher.state
        self.now, self.verb = now, verb
        if request.duration_s > matcher.end:
            raise InvalidJobspec(
                f"is longer than the graph's lifetime of {matcher.end} s",
                where="attributes.system.duration",
                value=request.duration_s,
            )
        self.duration = request.duration_s or matcher.end
        self.constraint = matcher.constraint_for(request)
        self.has_conflict = False

    def find(self, job: int) -> ResourceSet:
        """The resource set, now or (for the verbs that look ahead) at the earliest time."""
        self._check_feasibility()
        found = self._select(self.now, is_now=True)
        if found is not None:
            return self._finish(job, self.now, found)
        if self.verb.looks_ahead:
            for at in self._candidate_times():
                found = self._select(at, is_now=False)
                if found is not None:
                    if at >= self.matcher.end:
                        raise InsufficientResources("busy until the graph ends")
                    return self._finish(job, at, found)
        raise self._refusal()

    def check_satisfiability(self) -> None:
        """Raise ``Unsatisfiable`` unless the empty graph, down vertices included, would do."""
        start = PLAN_END - self.duration - 1
        if self._select(start, is_now=False, ignores_status=True) is None:
            raise Unsatisfiable(NEVER)

    def _candidate_times(self) -> Iterator[int]:
        """Times later than now at which something starts or ends and the sums would fit."""
        planner = self.state.planners.get(0)
        if planner is None:
            return iter([t for t in self.state.event_times if t > self.now])
        needs = [self.request.totals.get(kind, 0) for kind in planner.types]
        if not planner.fits_ever(needs):
            return iter(())
        return planner.candidate_times(self.now + 1, self.duration, needs)

    def _select(
        self, start: int, *, is_now: bool, ignores_status: bool = False
    ) -> Walk | Booking | None:
        """A walk with its marks (or a ready booking); None if the request does not fit there."""
        window = Window(
            start,
            start + self.duration,
            ignores_status=ignores_status,
            is_now=is_now and self.verb is not Verb.SATISFIABILITY,
        )
        matcher = self.matcher
        if not (matcher.use_reference or matcher.is_cluster):
            done, booking = matcher.fast.select(self.request, self.policy, window, self.constraint)
            if done:
                return booking
        walk = Walk(
            self.state,
            matcher.order,
            self.request,
            self.policy,
            window,
            self.constraint,
            is_cluster=matcher.is_cluster,
        )
        is_found = walk.select()
        self.has_conflict = self.has_conflict or walk.has_conflict
        return walk if is_found else None

    def _finish(self, job: int, at: int, found: Walk | Booking) -> ResourceSet:
        graph = self.matcher.graph
        end = min(at + self.duration, self.matcher.end)
        if isinstance(found, Booking):
            booking = found
            is_something = bool(booking.blocks)
        else:
            booking = Booking(job, at, end)
            exclusive = self.exclusive_kinds()
            root = any(
                n.is_exclusive is True and n.kind == graph.type_of[0] for n in self.request.needs
            )
            collector = Collector(graph, found.marks, exclusive, found.shares)
            is_something = collector.fill(booking, root)
        if not is_something:
            raise InvalidJobspec(
                "nothing in it would be held exclusively",
                where="resources",
                hint="put the resources into a slot, or say exclusive: true",
            )
        booking.job, booking.at, booking.end = job, at, end
        booking.is_reservation = at != self.now
        return ResourceSet(graph, booking, self.request.jobspec.queue, self.request.labels)

    def exclusive_kinds(self) -> set[int]:
        kinds = set(self.request.exclusive_kinds)
        if self.policy.is_node_exclusive:
            kinds.add(self.matcher.graph.type_number["node"])
        return kinds

    def _check_feasibility(self) -> None:
        """Fluxion's pre-check on the number of nodes, where ``node`` is a summed type.

        Fluxion's answer to a failed check is a constant per verb, so that nodes that are down
        make a job unsatisfiable; here the verbs that may say "never" look before they say it,
        unless ``answers_as_fluxion``.
        """
        matcher, graph = self.matcher, self.matcher.graph
        node = graph.type_number["node"]
        needed = self.request.totals.get(node, 0) if node in self.state.filters.tracked else 0
        checks = self.verb is Verb.ALLOCATE_WITH_SATISFIABILITY
        if needed > matcher.nodes_up:
            raise self._early_refusal()
        if self.constraint is None or not needed:
            return
        later = self.verb not in (Verb.ALLOCATE, Verb.WITHOUT_ALLOCATING)
        start = matcher.end - 1 if later else self.now
        for number, block in enumerate(graph.blocks):
            if (
                graph.type_of[block.base] == node
                and number not in graph.gone
                and self.constraint(block.base)
                and (checks or block.base not in graph.down)
                and not self.state.block_masks(number, start, start + self.duration)[0] & 1
            ):
                needed -= 1
                if needed <= 0:
                    return
        raise self._early_refusal()

    def _early_refusal(self) -> MatchError:
        if not self.matcher.answers_as_fluxion:
            return self._refusal()
        if self.verb is Verb.ALLOCATE_WITH_SATISFIABILITY:
            return Unsatisfiable(NEVER)
        return InsufficientResources(BUSY)

    def _refusal(self) -> MatchError:
        if self.verb is Verb.ALLOCATE_WITH_SATISFIABILITY or self.verb.looks_ahead:
            self.check_satisfiability()
        return InsufficientResources(BUSY)
