"""The nearest variants of a request that would start at once, or earlier.

``explain.review`` calls it for a request that waits or never fits. Each variant differs in one
thing, and describes it in words. Jobs ahead keep their plan, and jobs behind keep their promises.
So a variant that starts at once here also starts at once in the next cycle. Pure, and leaves
everything unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from fluxqueue.errors import InsufficientResources, TooComplex
from fluxqueue.explain.answer import (
    Certainty,
    Change,
    PlacementOutcome,
    PlacementVerdict,
    Reason,
    Variant,
)
from fluxqueue.explain.decide import JobsAhead, ahead_of, as_last_planned, fits_now, turn
from fluxqueue.explain.question import Question, QueueSnapshot
from fluxqueue.fluxjob.exclusive_use import is_exclusive
from fluxqueue.fluxjob.request import CPU, EPHEMERAL_STORAGE, MEMORY, PODS, describe_amount
from fluxqueue.graph.ledger.placement import FOREVER
from fluxqueue.graph.tell.words import level_word
from fluxqueue.jobspec.change import (
    demands,
    describe_demand,
    sharing_nodes,
    smaller_sizes,
    with_amount,
    with_duration,
    with_size,
    without_demand,
    without_top_level,
)
from fluxqueue.jobspec.model import Jobspec
from fluxqueue.policy.limits import why_refused
from fluxqueue.scheduler.pending_job import LearnedPlan, PendingJob

VARIANTS_MAX = 8
QUEUES_MAX = 6
DEMANDS_MAX = 4
DURATION_MIN_S = 60
EARLIER_S = 60
"""A variant must start at least this many seconds earlier to be listed."""
LATER_MAX = 6
"""Variants that cannot start at once and get a start. Each one is a search over time."""
NEAR = 4
"""A variant keeps at least one fourth of an amount that was asked for."""

_STEPS = {CPU: 1000, MEMORY: 1 << 30, EPHEMERAL_STORAGE: 1 << 30}
"""Proposed amounts are multiples of these, if there is as much."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A variant to examine.

    ``is_of_now``: it was found by a search for what fits now, so it is useless later.
    """

    change: Change
    job: PendingJob
    is_of_now: bool = False


def find_variants(
    scene: QueueSnapshot, question: Question, own: PlacementOutcome
) -> tuple[Variant, ...]:
    """Return the nearest changes that start earlier than ``own``, the earliest first."""
    search = _VariantSearch(scene, question, own)
    found: list[Variant] = []
    # If the budget of work is spent, the variants found so far are still returned.
    with as_last_planned(scene, question.job.uid), suppress(TooComplex):
        # Extend from the generator itself: a list built first would be lost with the error.
        found.extend(one for one in search.variants() if _is_earlier(one.outcome, own))
    found.sort(key=_order)
    return tuple(found[:VARIANTS_MAX])


def _order(one: Variant) -> tuple[bool, int]:
    is_now = one.outcome.verdict is PlacementVerdict.NOW
    return not is_now, one.outcome.starts_at or FOREVER


def _is_earlier(outcome: PlacementOutcome, own: PlacementOutcome) -> bool:
    if own.verdict is PlacementVerdict.NEVER or outcome.verdict is PlacementVerdict.NOW:
        return True
    if outcome.starts_at is None:
        return False
    return own.starts_at is None or outcome.starts_at + EARLIER_S <= own.starts_at


@dataclass(slots=True)
class _VariantSearch:
    """A search for variants in the plan of the last cycle, without the request itself."""

    scene: QueueSnapshot
    question: Question
    own: PlacementOutcome
    _aheads: dict[tuple[int, int], JobsAhead] = field(default_factory=dict)

    def variants(self) -> Iterator[Variant]:
        """Yield the variants with a known start, one after the other."""
        waiting: dict[tuple[int, int], list[_Candidate]] = {}
        for one in self._candidates():
            if self._is_refused(one.job):
                continue
            nodes = self._ahead(one.job).now(one.job)
            if nodes is not None:
                yield Variant(one.change, fits_now(self.scene.now, nodes), one.job)
            elif not one.is_of_now and self.scene.matcher.is_satisfiable(one.job.request):
                waiting.setdefault(turn(one.job), []).append(one)
        left = LATER_MAX
        for candidates in waiting.values():
            ahead = self._ahead(candidates[0].job)
            with ahead.planned():
                for one in candidates[:left]:
                    if not ahead.is_barred(one.job):
                        yield Variant(one.change, _as_estimate(ahead.later(one.job)), one.job)
            left -= min(left, len(candidates))

    def _is_refused(self, job: PendingJob) -> bool:
        """Return whether the queue of ``job`` does not accept it."""
        rules = self.scene.queues.rules
        has_moved = job.queue != self.question.job.queue
        return bool(rules) and None is not why_refused(
            job.queue,
            rules.get(job.queue),
            namespace=self.question.namespace,
            request=job.request,
            is_new=has_moved or not self.question.is_accepted,
        )

    def _room(self, request: Jobspec) -> bool:
        """Return whether the request fits at once, regardless of turns."""
        try:
            self.scene.matcher.match_now(request, self.scene.now)
        except InsufficientResources:
            return False
        return True

    def _ahead(self, job: PendingJob) -> JobsAhead:
        known = self._aheads.get(turn(job))
        if known is None:
            known = self._aheads[turn(job)] = ahead_of(self.scene, job)
        return known

    # --- what could be different -------------------------------------------------------------

    def _candidates(self) -> Iterator[_Candidate]:
        yield from self._sizes()
        yield from self._durations()
        yield from self._amounts()
        yield from self._shapes()
        yield from self._demands()
        yield from self._queues()

    def _with(self, request: Jobspec) -> PendingJob:
        job = self.question.job
        if job.learned is None or request.duration_s != job.request.duration_s:
            # What ended runs say is of the request as it is.
            return replace(job, request=request, learned=None)
        plan = LearnedPlan.of(request, job.learned.durations)
        return replace(job, request=request, learned=plan)

    def _largest(
        self, options: Sequence[int], change: Callable[[int], Jobspec | None]
    ) -> tuple[int, bool] | None:
        """Return the largest option that fits now, with True.

        If none does and the request never fits, return the largest that can ever fit, with False.
        """
        judges: list[Callable[[Jobspec], bool]] = [self._room]
        if self.own.verdict is PlacementVerdict.NEVER:
            judges.append(self.scene.matcher.is_satisfiable)
        for is_good in judges:
            low, high = 0, len(options)
            while low < high:
                middle = (low + high) // 2
                asked = change(options[middle])
                if asked is not None and is_good(asked):
                    low = middle + 1
                else:
                    high = middle
            if low:
                return options[low - 1], is_good is judges[0]
        return None

    def _sizes(self) -> Iterator[_Candidate]:
        """Yield a variant with fewer pods."""
        request = self.question.job.request
        options = smaller_sizes(request)
        found = self._largest(options, lambda n: with_size(request, n))
        if found is None:
            return
        size, is_of_now = found
        smaller = with_size(request, size)
        assert smaller is not None
        text = f"with {_pods(size)} instead of {request.size}"
        yield _Candidate(Change("size", str(size), text), self._with(smaller), is_of_now)

    def _durations(self) -> Iterator[_Candidate]:
        """Yield a variant that ends before the next promise that is in its way."""
        request, scene = self.question.job.request, self.scene
        own_s = int(request.duration_s) or FOREVER
        starts = sorted({int(at) - scene.now for at in scene.matcher.ledger.plan.starts.tolist()})
        ends = [at - request.grace_s for at in starts]
        options = [s // 60 * 60 for s in ends if s >= DURATION_MIN_S]
        options = [s for s in dict.fromkeys(options) if s < own_s]
        found = self._largest(options, lambda s: with_duration(request, s))
        if found is None:
            return
        instead = f"instead of {span(own_s)}" if own_s < FOREVER else "instead of no limit"
        text = f"with a duration of {span(found[0])} {instead}"
        change = Change("durationSeconds", str(found[0]), text)
        yield _Candidate(change, self._with(with_duration(request, found[0])), is_of_now=True)

    def _amounts(self) -> Iterator[_Candidate]:
        """Yield variants with less of one resource per pod, if all pods are equal."""
        request, table = self.question.job.request, self.scene.matcher.by_shares
        leaves = [leaf for _, leaf in table.ask(request).leaves()]
        if len(leaves) != 1 or len(leaves[0].kinds) != 1:
            return
        (kind,), ledger = leaves[0].kinds, table.ledger
        allowed = ledger.masks.matching(leaves[0].where) & ledger.masks.present()
        for name, need in kind.needs:
            if name == PODS or need <= 1 or is_exclusive(name) or name not in ledger.columns:
                continue
            column = ledger.columns[name]
            values = np.concatenate(
                [ledger.now.free[allowed, column], ledger.capacity[allowed, column]]
            )
            values = np.unique(values // kind.count)
            step = min(_STEPS.get(name, 1), need)
            rounded = np.unique(np.where(values >= step, values // step * step, values))
            options = [int(n) for n in rounded if need <= n * NEAR and n < need]
            found = self._largest(options, lambda n, name=name: with_amount(request, name, n))  # type: ignore[misc]
            if found is not None:
                amount, is_of_now = found
                text = (
                    f"with {describe_amount(name, amount)} for each pod instead of "
                    f"{describe_amount(name, need).removesuffix(f' {name}')}"
                )
                change = Change(f"requests.{name}", str(amount), text)
                yield _Candidate(change, self._with(with_amount(request, name, amount)), is_of_now)

    def _shapes(self) -> Iterator[_Candidate]:
        """Yield variants that are not bound to one place, or not alone on their nodes."""
        request = self.question.job.request
        wider = without_top_level(request)
        if wider is not None:
            level = level_word(request.resources[0].type)
            change = Change("within", "", f"not all within one {level}")
            yield _Candidate(change, self._with(wider))
        shared = sharing_nodes(request)
        if shared is not None:
            change = Change("exclusive", "false", "on nodes shared with other jobs")
            yield _Candidate(change, self._with(shared))

    def _demands(self) -> Iterator[_Candidate]:
        """Yield variants without one of the constraints."""
        request = self.question.job.request
        wheres = (request.where, *(where for _, where in request.slot_where))
        every = dict.fromkeys(one for where in wheres for one in demands(where.constraint))
        for demand in islice(every, DEMANDS_MAX):
            text = describe_demand(demand)
            change = Change("constraint", text, f"without {text}")
            yield _Candidate(change, self._with(without_demand(request, demand)))

    def _queues(self) -> Iterator[_Candidate]:
        """Yield variants in another queue, if its turn or its limits differ."""
        job, scene = self.question.job, self.scene
        others = [
            name
            for name in sorted(scene.queues.rules)
            if name != job.queue and self._may_help(name)
        ]
        for name in others[:QUEUES_MAX]:
            priority = self.question.priorities.get(name, job.priority)
            moved = replace(job, queue=name, priority=priority)
            yield _Candidate(Change("queue", name, f"in queue {name}"), moved)

    def _may_help(self, queue: str) -> bool:
        job = self.question.job
        is_queue_in_the_way = self.own.reason in _OF_QUEUES or not self.scene.is_backfilling(
            job.queue
        )
        return (
            is_queue_in_the_way or self.question.priorities.get(queue, job.priority) > job.priority
        )


_OF_QUEUES = frozenset(
    {
        Reason.OVER_LIMIT,
        Reason.STOPPED,
        Reason.CLAIM_IN_USE,
        Reason.REFUSED_BY_QUEUE,
        Reason.BEHIND,
    }
)


def _as_estimate(later: PlacementOutcome) -> PlacementOutcome:
    """Lower a promise to an estimate: nothing is promised to a variant."""
    is_at_best = later.certainty in {None, Certainty.AT_BEST}
    return later if is_at_best else replace(later, certainty=Certainty.ESTIMATED)


def _pods(count: int) -> str:
    return "1 pod" if count == 1 else f"{count} pods"


def span(seconds: int) -> str:
    """Write a length of time as ``fluxqueue/duration`` takes it: ``90s``, ``2h30m``, ``1d2h``."""
    if seconds < 120:
        return f"{seconds}s"
    parts = []
    for unit, length in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        number, seconds = divmod(seconds, length)
        if number:
            parts.append(f"{number}{unit}")
    return "".join(parts)
