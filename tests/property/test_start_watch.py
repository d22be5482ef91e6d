"""Whatever the facts of a start are: what must hold for each decision about it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fluxqueue.fluxjob.pod_facts import NOT_SEEN, PodFact
from fluxqueue.fluxjob.start_watch import (
    StartFacts,
    StartFault,
    Starting,
    StartingPod,
    StartRules,
    judge_start,
)

SECONDS = st.floats(0, 10_000)
NODES = st.sampled_from(["n0", "n1", "n2"])


@st.composite
def a_pod(draw: st.DrawFn, number: int) -> StartingPod:
    """A live pod in any state."""
    phase = draw(st.sampled_from(["Pending", "Running"]))
    node = draw(NODES) if phase == "Running" or draw(st.booleans()) else None
    is_gated = node is None and draw(st.booleans())
    words = (
        draw(st.sampled_from(["", "0/3 nodes are available", f"{NOT_SEEN}volcano"]))
        if node is None
        else ""
    )
    fact = PodFact(
        f"p{number}",
        f"p{number}",
        phase,
        is_gated,
        is_terminating=draw(st.booleans()),
        node=node,
        unschedulable=words,
    )
    slot = draw(st.none() | NODES)
    is_moving, is_second = draw(st.booleans()), draw(st.booleans())
    return StartingPod(fact, slot, draw(SECONDS), is_moving=is_moving, is_second=is_second)


@st.composite
def facts_of_a_start(draw: st.DrawFn) -> StartFacts:
    """Any workload, its past included."""
    pods = tuple(draw(a_pod(number)) for number in range(draw(st.integers(0, 4))))
    past = draw(st.none() | st.builds(Starting, st.sampled_from(StartFault), SECONDS))
    return StartFacts(
        waited_s=draw(SECONDS),
        needed=draw(st.integers(0, 5)),
        pods=pods,
        lacking=draw(st.integers(0, 2)),
        refused=draw(st.frozensets(NODES)),
        spare=draw(st.none() | st.integers(-2, 3)),
        can_requeue=draw(st.booleans()),
        has_started=draw(st.booleans()),
        past=past,
    )


RULES = st.builds(
    StartRules,
    unschedulable_s=st.floats(1, 60),
    timeout_s=st.sampled_from([0.0, 60.0, 300.0]),
    is_asked=st.booleans(),
)


@given(facts_of_a_start(), RULES, SECONDS)
def test_every_decision_can_be_carried_out(
    facts: StartFacts, rules: StartRules, now_s: float
) -> None:
    """Only unbound pods are deleted, only what can wait is requeued, and there is an end."""
    decision = judge_start(facts, rules, now_s)
    by_uid = {pod.fact.uid: pod for pod in facts.pods}
    for uid in (*decision.move, *decision.again, *decision.refuse):
        assert by_uid[uid].fact.node is None, "a bound pod may run"
        assert not by_uid[uid].fact.is_gated
        assert by_uid[uid].stuck_s >= rules.unschedulable_s
    if facts.spare is not None:
        assert len(decision.move) <= max(0, facts.spare)
    assert not set(decision.move) & {uid for uid, pod in by_uid.items() if pod.is_moving}
    if decision.must_requeue:
        assert facts.can_requeue
        assert not decision.move
        is_bound = any(pod.fact.node for pod in facts.pods)
        assert not (facts.has_started and is_bound), "running work is not given up"
    # What is said has a kind and an end: another look, or the requeue.
    assert bool(decision.reason) == (decision.starting is not None)
    if decision.reason:
        assert decision.must_requeue or (decision.look_in_s or 0) > 0
    assert judge_start(facts, rules, now_s) == decision


@given(facts_of_a_start(), RULES, SECONDS)
def test_the_same_fault_keeps_its_beginning(
    facts: StartFacts, rules: StartRules, now_s: float
) -> None:
    """Otherwise no patience would ever end."""
    decision = judge_start(facts, rules, now_s)
    past = facts.past
    if past is not None and decision.starting is not None:
        is_same = past.fault is decision.starting.fault
        assert decision.starting.since_s == (past.since_s if is_same else now_s)
