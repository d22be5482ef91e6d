"""Whether a job waits or gets new nodes, of which pool, and within which place."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from fluxqueue.fluxjob.levels import Level
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.provision import Provision
from fluxqueue.fluxjob.request import CPU, NodeRequirement, Operator, Taint
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.jobspec import Constraint, Jobspec, NodeDemand
from fluxqueue.jobspec.constraint import MATCH_EXPRESSIONS
from fluxqueue.nodepools.plan.coming_nodes import NodeRequest, PoolState, Reach
from fluxqueue.nodepools.plan.node_orders import backoff_s
from fluxqueue.nodepools.plan.node_plan import NodePlan, describe_requests, hold_nodes
from fluxqueue.nodepools.plan.provisioning import Supply, carry_over, plan_nodes
from fluxqueue.nodepools.pool import NodePool
from fluxqueue.policy.limits import Amounts
from fluxqueue.policy.provision_rules import ProvisionRules
from fluxqueue.policy.queue_policy import POLICIES
from fluxqueue.policy.queue_rules import Limits, QueueRules
from fluxqueue.scheduler.cycle import run_cycle
from fluxqueue.scheduler.cycle_decisions import Ongoing, Queues
from fluxqueue.scheduler.pending_job import PendingJob
from fluxqueue.scheduler.satisfiable import split_unsatisfiable
from tests.support.pool_model import node, placement, request

LARGE = NodePool("large", {CPU: 8}, {"pool": "large"}, 4, 300, "placeholder", price=Decimal("3.10"))
SMALL = NodePool("small", {CPU: 4}, {"pool": "small"}, 4, 60, "placeholder", price=Decimal(1))


def _matcher(*facts: NodeFact, levels: tuple[Level, ...] = ()) -> Matcher:
    made = Matcher(ShareLedger(levels), "pack")
    for fact in facts:
        made.set_node(fact, {})
    return made


def _plan(
    matcher: Matcher,
    *jobs: PendingJob,
    pools: tuple[NodePool, ...] = (LARGE, SMALL),
    rule: ProvisionRules | None = None,
    requests: tuple[NodeRequest, ...] = (),
    now: int = 1000,
    retry_at: int = 0,
) -> NodePlan:
    rules = {"default": QueueRules("default", provision=rule or ProvisionRules())}
    matcher.clear_plan()
    held = hold_nodes(matcher, requests, now)
    decisions = run_cycle(matcher, jobs, POLICIES["easy"], now, ongoing=Ongoing(awaited=held))
    states = [PoolState(one, 0, one.provisioning_s, retry_at, "it was late") for one in pools]
    return plan_nodes(
        matcher, jobs, decisions, Supply(states, requests), now, queues=Queues(rules), held=held
    )


def _job(uid: int, slots: int, cpu: int, **more: object) -> PendingJob:
    provision = more.pop("provision", Provision.WHEN_NEEDED)
    assert isinstance(provision, Provision)
    return PendingJob(str(uid), uid, 0, request(slots, cpu=cpu, **more), provision=provision)  # type: ignore[arg-type]


def _asked(plan: NodePlan) -> dict[str, int]:
    return {one.pool: one.count for one in plan.asks}


def test_only_what_present_nodes_cannot_hold_gets_new_ones() -> None:
    """Without a rule a job that fits present nodes waits for them, and ``never`` gets nothing."""
    matcher = _matcher(node("n1"))
    matcher.allocate("0", placement(("n1", {CPU: 4}), until=5000))
    assert _asked(_plan(matcher, _job(1, 1, 4))) == {}
    assert _asked(_plan(matcher, _job(1, 2, 4))) == {"small": 2}, "n1 is in use until 5000"
    matcher.allocate("0", placement(("n1", {CPU: 4}), until=1050))
    assert _asked(_plan(matcher, _job(1, 2, 4))) == {"small": 1}, "n1 is free by then"
    assert _asked(_plan(matcher, _job(1, 1, 8))) == {"large": 1}
    assert _asked(_plan(matcher, _job(1, 1, 8, provision=Provision.NEVER))) == {}


def test_new_nodes_must_start_it_earlier_by_what_the_rule_says() -> None:
    """Present nodes are free at 5000. New ones come at 1060 (small) or 1300 (large)."""
    matcher = _matcher(node("n1"))
    matcher.allocate("0", placement(("n1", {CPU: 4}), until=5000))
    job = _job(1, 1, 4, duration_s=10)
    assert _asked(_plan(matcher, job, rule=ProvisionRules(earlier_s=3900))) == {"small": 1}
    assert _asked(_plan(matcher, job, rule=ProvisionRules(earlier_s=3950))) == {}
    assert _asked(_plan(matcher, replace(job, provision=Provision.NOW))) == {"small": 1}
    # The second job in turn can start on the present node only behind the first.
    two = [_job(n, 1, 4, duration_s=10) for n in (1, 2)]
    assert _asked(_plan(matcher, *two, rule=ProvisionRules(earlier_s=3945))) == {"small": 1}


def test_a_budget_an_order_and_a_pause_are_kept() -> None:
    """The first pool of the rule's order that may be used, never above the budget."""
    job = _job(1, 2, 4)
    order = ProvisionRules(pools=("large", "small"))
    assert _asked(_plan(_matcher(), job, rule=order)) == {"large": 1}
    tight = ProvisionRules(pools=("large", "small"), budget=Decimal(2))
    assert _asked(_plan(_matcher(), job, rule=tight)) == {"small": 2}
    plan = _plan(_matcher(), job, rule=ProvisionRules(budget=Decimal(1)))
    assert not plan.asks
    assert "2 nodes of pool small would cost 2.00 an hour" in plan.why["1"]
    plan = _plan(_matcher(), job, retry_at=1300)
    assert plan.why["1"].startswith(
        "pool large is asked again at 00:21 UTC, because it was late; pool small"
    )


def test_a_gang_comes_within_its_level_or_not_at_all() -> None:
    """Only a pool with nodes that share a new rack holds a job within one rack."""
    levels = (Level("rack", ("rack",)),)
    job = _job(1, 3, 8, within="rack")
    assert _asked(_plan(_matcher(levels=levels), job, pools=(LARGE,))) == {}
    racked = replace(LARGE, name="racked", levels=("rack",))
    plan = _plan(_matcher(levels=levels), job, pools=(LARGE, racked))
    assert _asked(plan) == {"racked": 3}
    placed = replace(LARGE, name="placed", labels={"pool": "placed", "rack": "r1"})
    near = _matcher(node("n1", cpu=8, rack="r1"), node("n2", cpu=8, rack="r2"), levels=levels)
    plan = _plan(near, job, pools=(placed,))
    assert _asked(plan) == {"placed": 2}
    assert [slot.node for slot in plan.asks[0].kept] == ["n1"], "the present node of that rack"


def test_taints_and_labels_of_a_pool_count() -> None:
    """A job that does not tolerate the nodes of a pool gets none of them."""
    tainted = replace(LARGE, taints=(Taint("gpu", "", "NoSchedule"),))
    assert _asked(_plan(_matcher(), _job(1, 1, 8), pools=(tainted,))) == {}


def test_two_jobs_share_a_node_that_is_asked_for_once() -> None:
    """Half a node each: the second waits for the node of the first, in this cycle and the next."""
    jobs = [_job(1, 1, 4), _job(2, 1, 4)]
    plan = _plan(_matcher(), *jobs, pools=(LARGE,))
    assert _asked(plan) == {"large": 1}
    assert plan.ready_at == {"1": 1300, "2": 1300}
    open_ = NodeRequest(7, "large", "1", "default", 1, 1000, 1300)
    plan = _plan(_matcher(), *jobs, pools=(LARGE,), requests=(open_,), now=1010)
    assert not plan.asks
    assert plan.ready_at == {"1": 1300, "2": 1300}
    # The first is cancelled: the second takes its node over, and a third owner is not needed.
    plan = _plan(_matcher(), jobs[1], pools=(LARGE,), requests=(open_,), now=1020)
    assert (plan.moved, plan.withdrawn) == ({7: "2"}, [])
    assert _plan(_matcher(), pools=(LARGE,), requests=(open_,)).withdrawn == [7]


def test_what_has_come_for_a_gang_is_held_until_all_of_it_is_there() -> None:
    """Two of three nodes have come. A job ahead of the gang cannot have them."""
    facts = [NodeFact(f"l{n}", f"u{n}", {CPU: 8}, {"pool": "large"}) for n in range(3)]
    matcher = _matcher(*facts[:2])
    ahead, gang = _job(1, 1, 8), _job(2, 3, 8)
    part = NodeRequest(7, "large", "2", "default", 3, 1000, 1300, ("l0", "l1"))
    held = hold_nodes(matcher, [part], 1200)
    decisions = run_cycle(
        matcher, [ahead, gang], POLICIES["easy"], 1200, ongoing=Ongoing(awaited=held)
    )
    assert not decisions.allocated
    matcher.set_node(facts[2], {})
    whole = replace(part, arrived=("l0", "l1", "l2"))
    matcher.clear_plan()
    held = hold_nodes(matcher, [whole], 1210)
    decisions = run_cycle(
        matcher, [ahead, gang], POLICIES["easy"], 1210, ongoing=Ongoing(awaited=held)
    )
    assert [job.uid for job, _ in decisions.allocated] == ["2"]
    plan = plan_nodes(
        matcher,
        [ahead, gang],
        decisions,
        Supply([PoolState(LARGE, 3, 300)], [whole]),
        1210,
        held=held,
    )
    assert plan.used == [7]


def test_a_pool_makes_a_request_satisfiable() -> None:
    """Several pools count alone and together, up to their most."""
    matcher = _matcher(node("n1"))
    both = request(1, cpu=8), request(6, cpu=4), request(13, cpu=4), request(14, cpu=4)
    assert [matcher.is_satisfiable(one) for one in both] == [False] * 4
    matcher.further = Reach(matcher.ledger, [LARGE, SMALL])
    assert [matcher.is_satisfiable(one) for one in both] == [True, True, True, False]


def test_a_job_that_gets_no_new_nodes_can_be_unsatisfiable() -> None:
    """Equal requests, with and without the annotation, have different answers."""
    matcher = _matcher(node("n1"))
    matcher.further = Reach(matcher.ledger, [LARGE])
    jobs = [_job(1, 1, 8), _job(2, 1, 8, provision=Provision.NEVER), _job(3, 1, 8)]
    possible, never = split_unsatisfiable(matcher, jobs)
    assert [job.uid for job in possible] == ["1", "3"]
    assert [job.uid for job, _ in never] == ["2"]


def test_requests_in_words() -> None:
    """What was asked for, when it is expected, and what has come."""
    one = NodeRequest(1, "gpu-h100", "1", "default", 4, 17 * 3600 + 180, 17 * 3600 + 540)
    assert describe_requests([one], 17 * 3600 + 200) == (
        "4 nodes of pool gpu-h100 asked for at 17:03 UTC, expected 17:09 UTC"
    )
    part = replace(one, arrived=("a",))
    assert describe_requests([part], 17 * 3600 + 600).endswith(
        "expected 17:09 UTC and late, 1 of them is here"
    )


def test_the_pause_of_a_pool_doubles() -> None:
    """A minute, two, four, and an hour at most."""
    assert [backoff_s(n) for n in (0, 1, 2, 3, 99)] == [0, 60, 120, 240, 3600]


def test_between_two_plans_the_last_one_counts_for_jobs_that_still_wait() -> None:
    """Nothing is asked for twice. A job that has started on what came uses it."""
    jobs = [_job(number, 1, 8) for number in (1, 2, 3)]
    last = _plan(_matcher(), *jobs, rule=ProvisionRules(budget=Decimal(7)))
    assert set(last.ready_at) == {"1", "2"}
    assert set(last.why) == {"3"}
    came = NodeRequest(7, "large", "1", "default", 1, 1000, 1300, arrived=("n1",))
    coming = NodeRequest(8, "large", "2", "default", 1, 1000, 1300)
    matcher = _matcher(replace(node("n1"), capacity={CPU: 8}))
    held = hold_nodes(matcher, (came, coming), 1300)
    decisions = run_cycle(matcher, jobs, POLICIES["easy"], 1300, ongoing=Ongoing(awaited=held))
    plan = carry_over(last, jobs, decisions, (came, coming))
    assert plan == NodePlan(ready_at={"2": 1300}, why=last.why, used=[7])


def test_what_is_known_of_present_nodes_is_not_asked_again() -> None:
    """The memory is the caller's, and a wrong one is believed."""
    matcher = _matcher(node("n1"))
    job, holds = _job(1, 1, 8), dict[Jobspec, bool]()
    decisions = run_cycle(matcher, [job], POLICIES["easy"], 1000)
    states = [PoolState(LARGE, 0, LARGE.provisioning_s)]
    plan = plan_nodes(matcher, [job], decisions, Supply(states, ()), 1000, holds=holds)
    assert _asked(plan) == {"large": 1}
    assert holds == {job.request: False}
    holds[job.request] = True
    plan = plan_nodes(matcher, [job], decisions, Supply(states, ()), 1000, holds=holds)
    assert not plan.asks


def _of(user: str, uid: int, *, cpu: int, pool: str) -> PendingJob:
    where = Constraint(
        MATCH_EXPRESSIONS, requirements=(NodeRequirement("pool", Operator.IN, (pool,)),)
    )
    asked = request(1, cpu=cpu, constraint=NodeDemand(where))
    return PendingJob(str(uid), uid, 0, asked, user=user)


def test_jobs_for_a_full_pool_hide_no_job_for_another() -> None:
    """Neither equal nor different requests use up the searches of others."""
    full = replace(LARGE, capacity={CPU: 900}, most=1)
    for step in (0, 1):
        greedy = [_of("mallory", n, cpu=500 + n * step, pool="large") for n in range(1, 200)]
        late = [_of("mallory", 500, cpu=3, pool="small"), _of("alice", 501, cpu=3, pool="small")]
        plan = _plan(_matcher(), *greedy, *late, pools=(full, SMALL))
        assert _asked(plan)["large"] == 1
        asked = {one.uid for one in plan.asks}
        assert "501" in asked, f"alice's job, behind requests with a step of {step}"
        assert "500" in asked or step


def test_limits_count_what_is_on_order() -> None:
    """A user gets no more new nodes than may run, with what runs and what is under way."""
    rules = QueueRules("default", per_user=Limits(jobs=3))
    runs = {("default", "mallory"): Amounts(jobs=1, nodes=1, cpu_m=4)}
    jobs = [_of("mallory", n, cpu=4, pool="small") for n in range(1, 9)]
    jobs.append(_of("alice", 20, cpu=4, pool="small"))
    ordered = NodeRequest(1, "small", "1", "default", 1, 990, 1050)
    queues, matcher = Queues({"default": rules}, runs), _matcher(node("n1", cpu=1))
    held = hold_nodes(matcher, [ordered], 1000)
    decisions = run_cycle(
        matcher, jobs, POLICIES["easy"], 1000, queues, ongoing=Ongoing(awaited=held)
    )
    small = PoolState(replace(SMALL, most=20), 0, 60)
    plan = plan_nodes(
        matcher, jobs, decisions, Supply([small], [ordered]), 1000, queues=queues, held=held
    )
    assert [one.uid for one in plan.asks] == ["2", "20"], "one runs, one is under way"
    assert "limits.perUser.jobs is 3" in plan.why["3"]
    # A job that could start now must not use up the limit that an ordered node counts on.
    now = PendingJob("30", 30, 0, request(1, cpu=1), user="mallory")
    runs["default", "mallory"] = Amounts(jobs=2, nodes=2, cpu_m=8)
    decisions = run_cycle(
        matcher, [now, jobs[0]], POLICIES["easy"], 1000, queues, ongoing=Ongoing(awaited=held)
    )
    assert decisions.barred == {"30"}
