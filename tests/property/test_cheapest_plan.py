"""What several jobs cost over several pools, against an exhaustive search on small cases."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from itertools import product

import numpy as np
import pytest

from fluxqueue.fluxjob.request import CPU
from fluxqueue.graph.ledger.placement import FOREVER
from fluxqueue.graph.ledger.share_table import SHARES_TOTAL
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.nodepools.plan.coming_nodes import PoolState, Reach
from fluxqueue.nodepools.plan.plan_search import (
    EFFORT_MAX,
    PlanTried,
    PlanVariant,
    search_cheaper,
)
from fluxqueue.nodepools.plan.provisioning import Supply, plan_nodes
from fluxqueue.nodepools.pool import NodePool
from fluxqueue.policy.queue_policy import POLICIES
from fluxqueue.scheduler.cycle import run_cycle
from fluxqueue.scheduler.pending_job import PendingJob
from tests.support.pool_model import node, request

LIMIT = 1.1


@dataclass(frozen=True)
class ShapeOffered:
    """A pool: cores of a node, price, most nodes, and how long a node takes (seconds)."""

    cpu: int
    price: int
    most: int
    wait_s: int


@dataclass(frozen=True)
class GangAsked:
    """A job: so many slots of so many cores, on nodes of their own, or on nodes of its own."""

    slots: int
    cpu: int
    is_spread: bool = False
    is_whole: bool = False


@dataclass(frozen=True)
class PlanMade:
    """What is asked for costs an hour, when each job starts that gets nodes, and what was free."""

    cost: Decimal
    starts: dict[int, int]
    present: list[tuple[int, bool]]
    """The free cores of each present node, and whether no job runs there."""


def some_case(
    dice: random.Random, kind: str
) -> tuple[list[ShapeOffered], list[GangAsked], list[int]]:
    """Two or three pools with larger nodes that cost more, two to four jobs, and present nodes.

    ``kind``: some pools have too few nodes for a job alone (``scarce``), there are nodes already
    (``present``), or jobs do not share nodes (``apart``).
    """
    fewest, most = (1, 3) if kind == "scarce" else (3, 5)
    pools = [
        ShapeOffered(
            cpu, dice.randint(cpu, 2 * cpu), dice.randint(fewest, most), dice.choice((60, 60, 120))
        )
        for cpu in (dice.randint(2, 8) for _ in range(dice.randint(2, 3)))
    ]
    apart = (False, True) if kind == "apart" else (False,)
    jobs = [
        GangAsked(dice.randint(1, 3), dice.randint(1, 4), dice.choice(apart), dice.choice(apart))
        for _ in range(dice.randint(2, 4))
    ]
    present = dice.randint(0, 2) if kind in ("apart", "present") else 0
    return pools, jobs, [dice.randint(1, 6) for _ in range(present)]


def planned(
    pools: Sequence[ShapeOffered], jobs: Sequence[GangAsked], present: Sequence[int] = ()
) -> PlanMade:
    """Return what the planner makes of a case."""
    made = [
        NodePool(f"p{n}", {CPU: one.cpu}, {"pool": f"p{n}"}, one.most, one.wait_s, "placeholder",
                 price=Decimal(one.price))
        for n, one in enumerate(pools)
    ]  # fmt: skip
    matcher = Matcher(ShareLedger(), "pack")
    for number, cpu in enumerate(present):
        matcher.set_node(node(f"n{number}", cpu=cpu), {})
    matcher.further = Reach(matcher.ledger, made)
    waiting = [
        PendingJob(
            str(n), n, 0,
            request(one.slots, cpu=one.cpu, is_spread=one.is_spread, is_exclusive=one.is_whole),
        )
        for n, one in enumerate(jobs)
    ]  # fmt: skip
    decisions = run_cycle(matcher, waiting, POLICIES["easy"], 0)
    states = [PoolState(one, 0, one.provisioning_s) for one in made]
    plan = plan_nodes(matcher, waiting, decisions, Supply(states, []), 0)
    cost = sum((one.price * one.count for one in plan.asks), Decimal(0))
    starts = {int(uid): at for uid, at in plan.ready_at.items()}
    return PlanMade(cost, starts, _left(matcher.ledger))


def _left(ledger: ShareLedger) -> list[tuple[int, bool]]:
    """Return what is left on present nodes beside running jobs and promises, which may not move."""
    found = []
    for row in ledger.rows.values():
        free = ledger.free_during(np.array([row]), 0, FOREVER)[0]
        cpu = int(free[ledger.columns[CPU]]) if free[0] > 0 else 0
        found.append((max(0, cpu), free[0] == SHARES_TOTAL))
    return found


@dataclass(frozen=True)
class NodeTried:
    """A node of the search: when it is ready, its free cores, its only job, and its jobs."""

    ready: int
    free: int
    owner: int | None = None
    users: frozenset[int] = frozenset()

    def takes(self, job: int, one: GangAsked, at: int) -> bool:
        """Whether it can have one more slot of a job."""
        if self.ready > at or self.free < one.cpu or self.owner not in (None, job):
            return False
        if one.is_whole and self.users - {job}:
            return False
        return not (one.is_spread and job in self.users)


OTHERS = -1
"""A job that runs on a present node."""


def cheapest(pools: Sequence[ShapeOffered], jobs: Sequence[GangAsked], plan: PlanMade) -> int:
    """Return the lowest price of new nodes on which all jobs of a plan start no later.

    All of them run at once, because nothing says when they end.
    """
    slots = sorted(
        ((at, n) for n, at in plan.starts.items() for _ in range(jobs[n].slots)),
        key=lambda one: (not jobs[one[1]].is_whole, -jobs[one[1]].cpu, one[1]),
    )
    present = [NodeTried(0, free, None, frozenset() if is_empty else frozenset({OTHERS}))
               for free, is_empty in plan.present]  # fmt: skip
    best = sum(one.price * one.most for one in pools)
    for counts in product(*(range(one.most + 1) for one in pools)):
        price = sum(count * one.price for count, one in zip(counts, pools, strict=True))
        nodes = [
            NodeTried(one.wait_s, one.cpu)
            for count, one in zip(counts, pools, strict=True)
            for _ in range(count)
        ]
        if price < best and _fit(slots, jobs, present + nodes):
            best = price
    return best


def _fit(
    slots: Sequence[tuple[int, int]], jobs: Sequence[GangAsked], nodes: list[NodeTried]
) -> bool:
    """Return whether all slots have a place on nodes that are there in time."""
    if not slots:
        return True
    (at, job), *rest = slots
    one = jobs[job]
    tried = set()
    for index, there in enumerate(nodes):
        if there not in tried and there.takes(job, one, at):
            tried.add(there)
            owner = job if one.is_whole else there.owner
            used = NodeTried(there.ready, there.free - one.cpu, owner, there.users | {job})
            if _fit(rest, jobs, [*nodes[:index], used, *nodes[index + 1 :]]):
                return True
    return False


@pytest.mark.cases_long("the same search over other kinds of cases")
@pytest.mark.parametrize(
    ("kind", "cases"), [("ample", 25), ("scarce", 200), ("present", 200), ("apart", 200)]
)
def test_the_plan_costs_about_as_much_as_the_cheapest(kind: str, cases: int) -> None:
    """At most a tenth more than an exhaustive search finds, in every small case."""
    dice = random.Random(35)
    searched = 0
    for _ in range(cases):
        pools, jobs, present = some_case(dice, kind)
        plan = planned(pools, jobs, present)
        if plan.starts:
            searched += 1
            best = cheapest(pools, jobs, plan)
            assert best <= plan.cost <= LIMIT * best, (pools, jobs, present)
    assert searched > cases / 3


def _plan(
    pools: Sequence[ShapeOffered], jobs: Sequence[GangAsked]
) -> tuple[Decimal, dict[int, int]]:
    made = planned(pools, jobs)
    return made.cost, made.starts


def test_small_jobs_share_a_larger_node() -> None:
    """Each alone is cheaper on a small node. Both together are cheaper on a large one."""
    pools = [ShapeOffered(4, 3, 3, 60), ShapeOffered(8, 5, 3, 60)]
    assert _plan(pools, [GangAsked(1, 4)]) == (3, {0: 60})
    assert _plan(pools, [GangAsked(1, 4)] * 2) == (5, {0: 60, 1: 60})
    assert _plan(pools, [GangAsked(1, 4)] * 3) == (8, dict.fromkeys(range(3), 60))


def test_large_slots_are_planned_first_if_that_is_cheaper() -> None:
    """Small slots use what large ones leave, also if their job is first in turn."""
    pools = [ShapeOffered(8, 10, 3, 60)]
    assert _plan(pools, [GangAsked(3, 2), GangAsked(3, 3)]) == (20, {0: 60, 1: 60})


def test_a_cheaper_plan_delays_no_job() -> None:
    """A slower pool is no choice for a job that a quicker one starts earlier."""
    pools = [ShapeOffered(4, 3, 3, 60), ShapeOffered(8, 5, 3, 120)]
    assert _plan(pools, [GangAsked(1, 4)] * 2) == (6, {0: 60, 1: 60})


def test_large_clusters_are_searched_less() -> None:
    """The bound is on the nodes that all further plans look at together."""

    def made(effort: int) -> int:
        walks = 0

        def walk(_: PlanVariant) -> PlanTried[None]:
            nonlocal walks
            walks += 1
            both = {"a": 60, "b": 60}
            rivals = {uid: [("p",), ("q",)] for uid in both}
            costs, chosen = {"a": Decimal(1)}, dict.fromkeys(both, ("p",))
            return PlanTried(None, costs, both, chosen, rivals, effort)

        search_cheaper(walk)
        return walks - 1

    assert made(10) == 5, "each order and each other choice once"
    assert made(EFFORT_MAX // 2) == 2
    assert made(2 * EFFORT_MAX) == 0
