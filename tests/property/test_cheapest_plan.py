"""What several jobs cost over several pools, against an exhaustive search on small cases."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import product

import pytest

from fluxqueue.fluxjob.request import CPU
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.policy.node_pool import NodePool
from fluxqueue.policy.queue_policy import POLICIES
from fluxqueue.scheduler.coming_nodes import PoolState, Reach
from fluxqueue.scheduler.cycle import PendingJob, run_cycle
from fluxqueue.scheduler.plan_search import (
    EFFORT_MAX,
    PlanTried,
    PlanVariant,
    search_cheaper,
)
from fluxqueue.scheduler.provisioning import plan_nodes
from tests.support.pool_model import request

CASES = 80
LIMIT, WORST = 1.1, 2.0


@dataclass(frozen=True)
class ShapeOffered:
    """A pool: cores of a node, price, most nodes, and how long a node takes (seconds)."""

    cpu: int
    price: int
    most: int
    wait_s: int


@dataclass(frozen=True)
class GangAsked:
    """A job: so many slots of so many cores."""

    slots: int
    cpu: int


def some_case(dice: random.Random, *, scarce: bool) -> tuple[list[ShapeOffered], list[GangAsked]]:
    """Two or three pools whose larger nodes cost more, and two to four jobs.

    ``scarce``: some pools have too few nodes for a job alone.
    """
    fewest, most = (1, 3) if scarce else (3, 5)
    pools = [
        ShapeOffered(
            cpu, dice.randint(cpu, 2 * cpu), dice.randint(fewest, most), dice.choice((60, 60, 120))
        )
        for cpu in (dice.randint(2, 8) for _ in range(dice.randint(2, 3)))
    ]
    jobs = [GangAsked(dice.randint(1, 3), dice.randint(1, 4)) for _ in range(dice.randint(2, 4))]
    return pools, jobs


def planned(
    pools: Sequence[ShapeOffered], jobs: Sequence[GangAsked]
) -> tuple[Decimal, dict[int, int]]:
    """Return what the planner asks for costs an hour, and when each job starts that gets nodes."""
    made = [
        NodePool(f"p{n}", {CPU: one.cpu}, {"pool": f"p{n}"}, one.most, one.wait_s, "placeholder",
                 price=Decimal(one.price))
        for n, one in enumerate(pools)
    ]  # fmt: skip
    matcher = Matcher(ShareLedger(), "pack")
    matcher.further = Reach(matcher.ledger, made)
    waiting = [
        PendingJob(str(n), n, 0, request(one.slots, cpu=one.cpu)) for n, one in enumerate(jobs)
    ]
    decisions = run_cycle(matcher, waiting, POLICIES["easy"], 0)
    states = [PoolState(one, 0, one.provisioning_s) for one in made]
    plan = plan_nodes(matcher, waiting, decisions, states, [], 0)
    cost = sum((one.price * one.count for one in plan.asks), Decimal(0))
    return cost, {int(uid): at for uid, at in plan.ready_at.items()}


def cheapest(
    pools: Sequence[ShapeOffered], jobs: Sequence[GangAsked], starts: dict[int, int]
) -> int:
    """Return the lowest price of new nodes on which all these jobs start no later.

    All of them run at once, because nothing says when they end.
    """
    slots = sorted(
        ((at, jobs[n].cpu) for n, at in starts.items() for _ in range(jobs[n].slots)),
        key=lambda one: -one[1],
    )
    best = sum(one.price * one.most for one in pools)
    for counts in product(*(range(one.most + 1) for one in pools)):
        price = sum(count * one.price for count, one in zip(counts, pools, strict=True))
        nodes = [
            (one.wait_s, one.cpu)
            for count, one in zip(counts, pools, strict=True)
            for _ in range(count)
        ]
        if price < best and _fit(slots, nodes):
            best = price
    return best


def _fit(slots: Sequence[tuple[int, int]], nodes: list[tuple[int, int]]) -> bool:
    """Return whether all slots have a place on nodes that are there in time."""
    if not slots:
        return True
    (at, cpu), *rest = slots
    tried = set()
    for index, (ready, free) in enumerate(nodes):
        if ready <= at and free >= cpu and (ready, free) not in tried:
            tried.add((ready, free))
            left = [*nodes[:index], (ready, free - cpu), *nodes[index + 1 :]]
            if _fit(rest, left):
                return True
    return False


def compared(cases: int, seed: int, *, scarce: bool) -> list[tuple[float, int]]:
    """Return what each case costs, and the cheapest plan, where nodes are asked for."""
    dice = random.Random(seed)
    found = []
    for _ in range(cases):
        pools, jobs = some_case(dice, scarce=scarce)
        cost, starts = planned(pools, jobs)
        if starts:
            found.append((float(cost), cheapest(pools, jobs, starts)))
    return found


@pytest.mark.cases_long("scarce pools")
@pytest.mark.parametrize("scarce", [False, True])
def test_the_plan_costs_about_as_much_as_the_cheapest(scarce: bool) -> None:
    """At most a tenth more in sum, and in nine cases of ten. Single cases may cost more."""
    found = compared(CASES, 35, scarce=scarce)
    assert len(found) > CASES / 2
    assert sum(cost for cost, _ in found) <= LIMIT * sum(best for _, best in found)
    within = sum(cost <= LIMIT * best for cost, best in found)
    assert within >= 0.9 * len(found)
    assert max(cost / best for cost, best in found) <= WORST
    assert min(cost / best for cost, best in found) >= 1, "the search is exhaustive"


def test_small_jobs_share_a_larger_node() -> None:
    """Each alone is cheaper on a small node. Both together are cheaper on a large one."""
    pools = [ShapeOffered(4, 3, 3, 60), ShapeOffered(8, 5, 3, 60)]
    assert planned(pools, [GangAsked(1, 4)]) == (3, {0: 60})
    assert planned(pools, [GangAsked(1, 4)] * 2) == (5, {0: 60, 1: 60})
    assert planned(pools, [GangAsked(1, 4)] * 3) == (8, dict.fromkeys(range(3), 60))


def test_large_slots_are_planned_first_if_that_is_cheaper() -> None:
    """Small slots use what large ones leave, also if their job is first in turn."""
    pools = [ShapeOffered(8, 10, 3, 60)]
    assert planned(pools, [GangAsked(3, 2), GangAsked(3, 3)]) == (20, {0: 60, 1: 60})


def test_a_cheaper_plan_delays_no_job() -> None:
    """A slower pool is no choice for a job that a quicker one starts earlier."""
    pools = [ShapeOffered(4, 3, 3, 60), ShapeOffered(8, 5, 3, 120)]
    assert planned(pools, [GangAsked(1, 4)] * 2) == (6, {0: 60, 1: 60})


def test_large_clusters_are_searched_less() -> None:
    """The bound is on the nodes that all further plans look at together."""

    def made(effort: int) -> int:
        walks = 0

        def walk(_: PlanVariant) -> PlanTried[None]:
            nonlocal walks
            walks += 1
            both = {"a": 60, "b": 60}
            rivals = {uid: [("p",), ("q",)] for uid in both}
            return PlanTried(None, Decimal(1), both, dict.fromkeys(both, ("p",)), rivals, effort)

        search_cheaper(walk)
        return walks - 1

    assert made(10) == 5, "each order and each other choice once"
    assert made(EFFORT_MAX // 2) == 2
    assert made(2 * EFFORT_MAX) == 0
