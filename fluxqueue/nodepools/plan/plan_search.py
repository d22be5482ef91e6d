"""A cheaper plan for several jobs that could share new nodes.

Each job alone gets the cheapest pool. Two small jobs are often cheaper on one larger node.
``provisioning`` plans once as it always does. A few jobs are then packed together
(``node_packing``). Where that proves nothing, a local search plans again with one choice
changed at a time. A plan counts only if every job starts as early. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Generic, TypeVar

from fluxqueue.nodepools.plan.node_packing import Packing, PackingTask, cheapest_packing

WALKS_MAX = 24
"""The most further plans of one cycle."""

EFFORT_MAX = 150_000
"""The most nodes that all further plans of one cycle look at, counted for each job: about 0.6 s."""

PACKINGS_MAX = 3
"""The most packings of one cycle. A cheaper plan may leave nodes to a job that had none."""

P = TypeVar("P")
PoolNames = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PlanTried(Generic[P]):
    """A plan and what it costs for an hour.

    ``costs``: the price of the nodes that each job asks for. ``ready_at``: when each job with nodes
    can start. ``chosen``: the pools of each job that gets new nodes. ``rivals``: pools of the same
    rank that could hold the job, too. ``effort``: how many nodes it looked at, counted for each
    job. ``task``: its jobs and their nodes as a packing, None if they are too many or too special.
    """

    plan: P
    costs: Mapping[str, Decimal]
    ready_at: Mapping[str, int]
    chosen: Mapping[str, PoolNames]
    rivals: Mapping[str, Sequence[PoolNames]]
    effort: int
    task: PackingTask | None = None

    @property
    def cost(self) -> Decimal:
        """Return the price of all nodes that are asked for."""
        return sum(self.costs.values(), Decimal(0))

    def is_better_than(self, other: PlanTried[P]) -> bool:
        """Return whether all jobs of ``other`` start in this plan, no later and for less."""
        mine, theirs = self.ready_at, other.ready_at
        if not all(uid in mine and mine[uid] <= at for uid, at in theirs.items()):
            return False
        return sum((self.costs.get(uid, Decimal(0)) for uid in theirs), Decimal(0)) < other.cost


@dataclass(frozen=True, slots=True)
class PlanVariant:
    """How a plan differs from the usual one.

    ``choices``: jobs with pools that they try before all others. ``first``: jobs that are planned
    by the size of their slots, the largest ones first, in place of their turn. Small slots then use
    what large ones leave. ``packing``: the nodes of jobs that are planned together.
    """

    choices: Mapping[str, PoolNames] = field(default_factory=dict)
    first: Set[str] = frozenset()
    packing: Packing | None = None


def search_cheaper(walk: Callable[[PlanVariant], PlanTried[P]]) -> PlanTried[P]:
    """Return the cheapest plan that is found within the bounds. ``walk`` makes a plan."""
    usual = walk(PlanVariant())
    if not usual.chosen:
        return usual
    best, is_proven = _packed(walk, usual)
    can_share = len(best.ready_at) > 1
    return _searched(walk, best) if can_share and not is_proven else best


def _packed(
    walk: Callable[[PlanVariant], PlanTried[P]], best: PlanTried[P]
) -> tuple[PlanTried[P], bool]:
    """Return the cheapest packing of the same jobs, and whether nothing is cheaper."""
    for _ in range(PACKINGS_MAX):
        if best.task is None:
            return best, False
        packing = cheapest_packing(best.task, best.cost)
        if not packing.nodes:
            return best, packing.is_proven
        tried = walk(PlanVariant(packing=packing))
        if not tried.is_better_than(best):
            return best, False  # it breaks a rule that a packing does not know
        has_more = tried.ready_at.keys() != best.ready_at.keys()
        best = tried
        if not has_more and packing.is_proven:
            return best, True
    return best, False


def _searched(walk: Callable[[PlanVariant], PlanTried[P]], usual: PlanTried[P]) -> PlanTried[P]:
    """Return the cheapest plan that differs in a few choices."""
    left = min(WALKS_MAX, EFFORT_MAX // max(1, usual.effort))
    best, variant = usual, PlanVariant()
    by_size = frozenset(usual.ready_at)
    is_better = True
    while is_better:
        is_better = False
        for move in _moves(variant, best, usual.rivals, by_size):
            if not left:
                return best
            left -= 1
            tried = walk(move)
            if tried.is_better_than(best):
                best, variant, is_better = tried, move, True
                break
    return best


def _moves(
    variant: PlanVariant,
    best: PlanTried[P],
    rivals: Mapping[str, Sequence[PoolNames]],
    by_size: Set[str],
) -> Iterator[PlanVariant]:
    """Yield all changes of the order, or of one choice, also of jobs that share nodes now."""
    yield PlanVariant(variant.choices, frozenset() if variant.first else by_size)
    for uid, others in rivals.items():
        for names in others:
            if names != best.chosen.get(uid):
                yield PlanVariant({**variant.choices, uid: names}, variant.first)
                if not variant.first:
                    yield PlanVariant({**variant.choices, uid: names}, by_size)
