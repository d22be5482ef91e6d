"""What node pools cost a cycle: lines of ``make bench-matcher``.

Called by ``benchmarks.matcher``. Cycles run one after the other, without pools and with them, in
turn. Eight pools could bring 1,000 nodes. Plans are paced as in the worker. The figures are in
docs/developer/queues-and-promises.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from statistics import median

from benchmarks.cycle import CORES, GI, Clock, cluster, request, row
from fluxqueue.clock import SystemClock
from fluxqueue.fluxjob.request import CPU, MEMORY, PODS
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.jobspec import Jobspec
from fluxqueue.nodepools.plan.coming_nodes import NodeRequest, PoolState
from fluxqueue.nodepools.plan.node_plan import NodePlan, hold_nodes
from fluxqueue.nodepools.plan.provisioning import Supply, carry_over, plan_nodes
from fluxqueue.nodepools.pool import NodePool
from fluxqueue.policy.provision_rules import NO_RULES, ProvisionRules
from fluxqueue.policy.queue_policy import POLICIES
from fluxqueue.policy.queue_rules import QueueRules
from fluxqueue.process.pacing import PLAN_REST_S, PLAN_SHARE, TimeShare
from fluxqueue.scheduler.cycle import run_cycle
from fluxqueue.scheduler.cycle_decisions import Queues
from fluxqueue.scheduler.pending_job import PendingJob

SIZE, RUNNING, WAITING = 4000, 1000, 200
POOLS, OF_EACH = 8, 125
TURNS, TURN_S = 3, 10.0
QUEUE = "batch"
NOW = 0


@dataclass(frozen=True, slots=True)
class PoolScene:
    """What is under way at the time of a cycle, and the rule of its queue."""

    title: str
    rule: ProvisionRules = NO_RULES
    requests: tuple[NodeRequest, ...] = ()
    larger: int = 0
    """How many of the waiting jobs ask for more nodes than exist."""


def run(clock: Clock) -> None:
    """All scenes."""
    coming = tuple(
        NodeRequest(n, f"pool-{n}", f"w{n}", QUEUE, OF_EACH, NOW - 10, NOW + 60 + 10 * n)
        for n in range(POOLS)
    )
    for scene in (
        PoolScene("no job gets nodes"),
        PoolScene("1,000 nodes are under way for eight jobs", requests=coming, larger=POOLS),
        PoolScene("one job gets all nodes of a pool", larger=1),
        PoolScene("20 to 30 jobs buy an earlier start", ProvisionRules(earlier_s=600)),
    ):
        _compare(clock, scene)


def _compare(clock: Clock, scene: PoolScene) -> None:
    matcher, pools = _busy(), [_pool(number) for number in range(POOLS)]
    queue = [_job(number, number < scene.larger) for number in range(WAITING)]
    plain, planned, longest = list[float](), list[float](), 0.0
    for _ in range(TURNS):
        plain.append(_turn(clock, matcher, queue, (), scene)[0])
        each, plan = _turn(clock, matcher, queue, pools, scene)
        planned.append(each)
        longest = max(longest, plan)
    without, with_pools = median(plain), median(planned)
    what = f"{SIZE:,} nodes in use, {WAITING} waiting, 8 pools of 125 new nodes: {scene.title}"
    value = f"a cycle {without * 1e3:.1f} ms, with pools {with_pools * 1e3:.1f} ms"
    row(what, f"{value} (a plan {longest * 1e3:.0f} ms): {with_pools / without:.2f}", "<= 1.10")


def _turn(
    clock: Clock,
    matcher: Matcher,
    queue: Sequence[PendingJob],
    pools: Sequence[PoolState],
    scene: PoolScene,
) -> tuple[float, float]:
    """Run one cycle after the other. Return the seconds of a cycle, and of the longest plan."""
    rules = {QUEUE: QueueRules(QUEUE, provision=scene.rule)}
    rest = TimeShare(_Measured(clock), PLAN_SHARE, most_s=PLAN_REST_S)
    holds: dict[Jobspec, bool] = {}
    last, longest, cycles = NodePlan(), 0.0, 0
    began = clock()
    # A turn ends with a rest: otherwise some turns would have a plan more than their time allows.
    while clock() - began < TURN_S or rest.left_s:
        cycles += 1
        with matcher.trying():
            held = hold_nodes(matcher, scene.requests, NOW) if pools else {}
            decisions = run_cycle(matcher, queue, POLICIES["easy"], NOW)
            if not pools:
                continue
            if rest.left_s or clock() - began >= TURN_S:
                carry_over(last, queue, decisions, scene.requests)
                continue
            started = clock()
            with rest.work():
                last = plan_nodes(
                    matcher,
                    queue,
                    decisions,
                    Supply(pools, scene.requests),
                    NOW,
                    queues=Queues(rules),
                    held=held,
                    holds=holds,
                )
            longest = max(longest, clock() - started)
    return (clock() - began) / cycles, longest


class _Measured(SystemClock):
    """The clock of the benchmark, which may be processor time."""

    def __init__(self, read: Clock) -> None:
        self._read = read

    def monotonic_s(self) -> float:
        """What it reads."""
        return self._read()


def _busy() -> Matcher:
    """A cluster in which running jobs hold all nodes."""
    matcher = cluster(SIZE)
    for number in range(RUNNING):
        found = matcher.match_now(request(CORES, count=SIZE // RUNNING), NOW)
        matcher.allocate(f"run-{number}", replace(found, until=1000 + 37 * number % 5003))
    return matcher


def _pool(number: int) -> PoolState:
    capacity = {CPU: CORES, MEMORY: 256 * GI, PODS: 110}
    made = NodePool(
        *(f"pool-{number}", capacity, {"pool": str(number)}, OF_EACH, 60 + 10 * number),
        "placeholder",
        price=Decimal(40 - number) / 10,
    )
    return PoolState(made, wait_s=made.provisioning_s)


def _job(number: int, is_larger: bool) -> PendingJob:
    """A job of two to eight nodes, or one that present nodes can never hold."""
    count = SIZE + OF_EACH if is_larger else 2 + number % 7
    return PendingJob(
        f"w{number}", number, 0, request(CORES, count=count, duration_s=600 + number), queue=QUEUE
    )
