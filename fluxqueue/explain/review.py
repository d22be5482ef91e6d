"""One review: when a request starts, what blocks it, and what would start it earlier.

The worker calls it between two cycles, with the matcher as the last cycle left it. Simulations and
benchmarks call it as well. Pure. Matcher and plan are the same afterwards. After an error their
state is uncertain, so the owner throws the matcher away, as after a failed cycle.
"""

from __future__ import annotations

from fluxqueue.explain.answer import (
    Answer,
    Certainty,
    Counted,
    LevelAnswer,
    PlacementOutcome,
    PlacementVerdict,
    Variant,
)
from fluxqueue.explain.counting import count_kinds, count_levels
from fluxqueue.explain.decide import decide, place
from fluxqueue.explain.new_nodes import with_new_nodes
from fluxqueue.explain.question import Keeper, Question, QueueSnapshot
from fluxqueue.explain.variants import find_variants
from fluxqueue.jobspec import Jobspec
from fluxqueue.jobspec.bounds import REVIEW_STEPS, Work
from fluxqueue.jobspec.shape import describe


def answer(scene: QueueSnapshot, question: Question, work: Work | None = None) -> Answer:
    """Return when and where the request starts, what blocks it, and what would help.

    Variants beyond the budget ``work`` are left out.

    Raises
    ------
    TooComplex
        The request itself exceeds ``work``.
    """
    with scene.matcher.working(work or Work(REVIEW_STEPS, "this question")):
        return _answer(scene, question)


def _answer(scene: QueueSnapshot, question: Question) -> Answer:
    request = question.job.request
    kinds, levels = _counts(scene, request)
    outcome = decide(scene, question)
    variants: tuple[Variant, ...] = ()
    if question.keeper is not None and outcome.verdict is not PlacementVerdict.NEVER:
        variants = (Variant(question.keeper.without, outcome, question.job),)
        outcome = _wait_reason(question.keeper, outcome)
    elif outcome.verdict is not PlacementVerdict.NOW:
        variants = find_variants(scene, question, outcome)
        outcome = with_new_nodes(scene, question, outcome)
    masks = scene.matcher.ledger.masks
    return Answer(
        request=describe(request),
        outcome=outcome,
        place=None
        if outcome.verdict is PlacementVerdict.NEVER
        else question.place or place(scene, question),
        kinds=kinds,
        levels=levels,
        variants=variants,
        nodes_total=int(masks.present().sum()),
        nodes_usable=int(masks.usable().sum()),
    )


def _counts(
    scene: QueueSnapshot, request: Jobspec
) -> tuple[tuple[Counted, ...], tuple[LevelAnswer, ...]]:
    table = scene.matcher.by_shares
    return count_kinds(table, request, scene.now), count_levels(table, request)


def _wait_reason(keeper: Keeper, without: PlacementOutcome) -> PlacementOutcome:
    """Return the outcome of a request that ``keeper`` holds back.

    It starts when that ends, and no earlier than it could without it.
    """
    start, certainty = None, None
    if keeper.not_before is not None:
        start, certainty = keeper.not_before, Certainty.AT_BEST
        if without.verdict is PlacementVerdict.LATER:
            start = None if without.starts_at is None else max(start, without.starts_at)
    return PlacementOutcome(
        PlacementVerdict.LATER,
        keeper.reason,
        keeper.message,
        start,
        None if start is None else certainty,
    )
