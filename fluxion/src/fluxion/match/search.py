"""One search of the matcher: which windows are tried, and what a failure means.

``FluxionMatcher.match`` calls it. The order of steps is Fluxion's (flux-sched,
resource/traversers/dfu.cpp). First comes a check of the number of nodes, then one selection now.
The verbs that look ahead then select at each later time at which something changes. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from enum import StrEnum
from typing import Protocol

from fluxion.ledger.booking import Booking
from fluxion.ledger.resource_set import ResourceSet
from fluxion.ledger.vertices import VertexLedger
from fluxion.match.child_order import ChildOrder
from fluxion.match.collect import Collector
from fluxion.match.compiled_request import WalkRequest, exclusive_kinds
from fluxion.match.vertices.vertex_tables import FastSelector
from fluxion.match.walk.traversal import Walk
from fluxion.match.walk.vertex_check import Window
from fluxion.model.store import ResourceGraph
from fluxqueue.errors import InsufficientResources, InvalidJobspec, MatchError, Unsatisfiable
from fluxqueue.graph.ledger.placement import FOREVER
from fluxqueue.graph.match.policy import Policy
from fluxqueue.jobspec.model import Jobspec

GRAPH_END = 3_153_600_000
"""Fluxion's default lifetime of a graph: 100 years in seconds."""
PLAN_END = (1 << 63) - 1
NOBODY = -1
"""The job number of a question that books nothing."""


class SearchVerb(StrEnum):
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
            SearchVerb.ALLOCATE,
            SearchVerb.ALLOCATE_WITH_SATISFIABILITY,
            SearchVerb.ALLOCATE_ORELSE_RESERVE,
        )

    @property
    def looks_ahead(self) -> bool:
        return self in (SearchVerb.ALLOCATE_ORELSE_RESERVE, SearchVerb.WITHOUT_ALLOCATING_FUTURE)


BUSY = "busy now: the resources are not free"
NEVER = "the graph can never satisfy this request"


class Searched(Protocol):
    """The attributes of the matcher that a search needs."""

    graph: ResourceGraph
    state: VertexLedger
    order: ChildOrder
    fast: FastSelector
    end: int
    nodes_up: int
    use_reference: bool
    is_cluster: bool
    answers_as_fluxion: bool

    def constraint_for(
        self, jobspec: Jobspec, labels: Collection[str]
    ) -> Callable[[int], bool] | None:
        """Return a test for the nodes that slots of these labels may use."""
        ...


class Search:
    """One call of ``match``: which windows to try, and what a failure means.

    Parameters
    ----------
    requests : the request, after its preferred forms.
    nodes : only these nodes, answered by the walk. None means all nodes.
    """

    def __init__(
        self,
        matcher: Searched,
        requests: Sequence[WalkRequest],
        policy: Policy,
        now: int,
        verb: SearchVerb,
        *,
        nodes: Callable[[int], bool] | None = None,
    ) -> None:
        self.matcher, self.requests, self.policy = matcher, requests, policy
        self.request = request = requests[-1]
        self.nodes = nodes
        self.state = matcher.state
        self.now, self.verb = now, verb
        if request.duration_s > matcher.end:
            raise InvalidJobspec(
                f"is longer than the graph's lifetime of {matcher.end} s",
                where="attributes.system.duration",
                value=request.duration_s,
            )
        self.duration = request.duration_s or matcher.end
        self.constraint = self._constraint_of(request.slot_labels)
        self.has_conflict = False

    def find(self, job: int) -> ResourceSet:
        """Return the resource set, now or (for verbs that look ahead) at the earliest time."""
        self._check_feasibility()
        found = self._select(self.now, is_now=True)
        if found is not None:
            return self._finish(job, self.now, found)
        later = self.find_later(job) if self.verb.looks_ahead else None
        if later is None:
            raise self._refusal()
        return later

    def find_later(self, job: int, not_before: int = 0) -> ResourceSet | None:
        """Return the resource set at the earliest time after now that is not before ``not_before``.

        None means that no time is possible.
        """
        for at in self._candidate_times():
            found = self._select(at, is_now=False) if at >= not_before else None
            if found is not None:
                if at >= self.matcher.end:
                    raise InsufficientResources("busy until the graph ends")
                return self._finish(job, at, found)
        return None

    def check_satisfiability(self) -> None:
        """Raise ``Unsatisfiable`` unless the empty graph could hold it. Down vertices count."""
        start = max(PLAN_END - self.duration - 1, self.matcher.end)
        if self._select(start, is_now=False, ignores_status=True) is None:
            raise Unsatisfiable(NEVER)

    def _candidate_times(self) -> Iterator[int]:
        """Return the times after now at which something starts or ends and the sums would fit."""
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
        """Return a walk with its marks, or a ready booking, or None if nothing fits there.

        The preferred forms of the request are tried first.
        """
        window = Window(
            start,
            start + self.duration,
            ignores_status=ignores_status,
            is_now=is_now and self.verb is not SearchVerb.SATISFIABILITY,
        )
        for request in self.requests:
            found = self._select_one(request, window)
            if found is not None:
                return found
        return None

    def _select_one(self, request: WalkRequest, window: Window) -> Walk | Booking | None:
        matcher = self.matcher
        if not (matcher.use_reference or matcher.is_cluster or self.nodes):
            done, booking = matcher.fast.select(request, self.policy, window, self.constraint)
            if done:
                return booking
        sees_kinds = matcher.is_cluster or not matcher.answers_as_fluxion
        walk = Walk(
            self.state,
            matcher.order,
            request,
            self.policy,
            window,
            self.constraint,
            constraint_of=self._constraint_of if sees_kinds else None,
            is_cluster=matcher.is_cluster,
        )
        is_found = walk.select()
        self.has_conflict = self.has_conflict or walk.has_conflict
        return walk if is_found else None

    def _constraint_of(self, labels: Collection[str]) -> Callable[[int], bool] | None:
        """Return a test for the nodes that slots of these labels may use, or None for all."""
        found, nodes = self.matcher.constraint_for(self.request.jobspec, labels), self.nodes
        if found is None or nodes is None:
            return found or nodes
        allowed = found
        return lambda v: nodes(v) and allowed(v)

    def _finish(self, job: int, at: int, found: Walk | Booking) -> ResourceSet:
        graph = self.matcher.graph
        end = min(at + self.duration, self.matcher.end)
        if isinstance(found, Booking):
            booking = found
            is_something = bool(booking.blocks)
        else:
            booking = Booking(job, at, end)
            exclusive = exclusive_kinds(found.request.needs, is_here=True)
            if self.policy.is_node_exclusive:
                exclusive.add(graph.type_number["node"])
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

    def _check_feasibility(self) -> None:
        """Check the number of nodes as Fluxion does, if ``node`` is a summed type.

        Fluxion's answer to a failed check is fixed per verb, so there a job is unsatisfiable when
        nodes are down. Here, the verbs that may say "never" check before they say it, unless
        ``answers_as_fluxion`` is set.
        """
        matcher, graph = self.matcher, self.matcher.graph
        node = graph.type_number["node"]
        needed = self.request.totals.get(node, 0) if node in self.state.filters.tracked else 0
        checks = self.verb is SearchVerb.ALLOCATE_WITH_SATISFIABILITY
        if needed > matcher.nodes_up:
            raise self._early_refusal()
        if self.constraint is None or not needed or self.request.has_several_kinds:
            return
        later = self.verb not in (SearchVerb.ALLOCATE, SearchVerb.WITHOUT_ALLOCATING)
        last = matcher.end if matcher.end >= FOREVER else matcher.end - 1
        start = last if later else self.now
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
        if self.verb is SearchVerb.ALLOCATE_WITH_SATISFIABILITY:
            return Unsatisfiable(NEVER)
        return InsufficientResources(BUSY)

    def _refusal(self) -> MatchError:
        if self.verb is SearchVerb.ALLOCATE_WITH_SATISFIABILITY or self.verb.looks_ahead:
            self.check_satisfiability()
        return InsufficientResources(BUSY)
