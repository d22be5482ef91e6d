"""What follows from pods that do not start: the table of cases by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fluxqueue.fluxjob.pod_facts import NOT_SEEN, OF_GROUP, WORDS_MAX, PodFact, cut
from fluxqueue.fluxjob.start_watch import (
    DELAY_MAX_S,
    NOT_SEEN_S,
    StartDecision,
    StartFacts,
    StartFault,
    Starting,
    StartingPod,
    StartRules,
    judge_start,
    retry_delay_s,
)

RULES = StartRules(unschedulable_s=5, timeout_s=300, tries_max=3)
NOW_S = 1_000_000.0
WORDS = "0/3 nodes are available: 1 node(s) were unschedulable."


def running(uid: str, node: str = "n0") -> StartingPod:
    """A pod with running containers."""
    return StartingPod(PodFact(uid, uid, "Running", False, node=node), node)


def unbound(uid: str, node: str = "n0", stuck_s: float = 6.0, **more: bool) -> StartingPod:
    """A released pod that kube-scheduler cannot bind."""
    fact = PodFact(uid, uid, "Pending", is_gated=False, unschedulable=WORDS)
    return StartingPod(fact, node, stuck_s, **more)


def pulling(uid: str, node: str = "n0") -> StartingPod:
    """A pod that is bound and does not run yet."""
    return StartingPod(PodFact(uid, uid, "Pending", False, node=node), node)


def gang(*pods: StartingPod, **more: object) -> StartFacts:
    """A workload of so many pods, released a minute ago, that may lose three of them."""
    facts = StartFacts(waited_s=60, needed=len(pods), pods=pods, spare=3)
    return replace(facts, **more)  # type: ignore[arg-type]


def judge(facts: StartFacts, rules: StartRules = RULES) -> StartDecision:
    """What follows now."""
    return judge_start(facts, rules, NOW_S)


def test_all_run() -> None:
    """Nothing is said, and no look is planned."""
    assert judge(gang(running("a"), running("b"))) == StartDecision(has_started=True)


def test_a_young_start_costs_no_look() -> None:
    """Most pods run at once: only the sweep may find those that do not."""
    facts = gang(pulling("a"), waited_s=1.0)
    assert judge(facts) == StartDecision()
    assert judge(replace(facts, pods=(), needed=2)) == StartDecision()


def test_an_unbound_pod_is_reported_at_once_and_moved_later() -> None:
    """The words are kube-scheduler's."""
    soon = judge(gang(running("a"), unbound("b", "n7", 1.0)))
    assert soon.reason == f"1 of its 2 pods cannot be bound: b to n7: {WORDS}"
    assert not soon.move
    assert soon.look_in_s == pytest.approx(4.1)
    assert soon.starting == Starting(StartFault.UNSCHEDULABLE, NOW_S)
    later = judge(gang(running("a"), unbound("b", "n7", 5.0)))
    assert later.move == ("b",)
    assert not later.must_requeue


def test_a_pod_that_is_moved_already_is_deleted_again_and_not_counted() -> None:
    """Its first deletion may have failed."""
    facts = gang(running("a"), unbound("b", is_moving=True), refused=frozenset({"n0"}), spare=0)
    decision = judge(facts)
    assert (decision.move, decision.again) == ((), ("b",))
    assert not decision.must_requeue


def test_two_pods_on_one_node_are_both_moved() -> None:
    """The second is no second chance: its slot is as old as the first."""
    facts = gang(unbound("a", is_moving=True), unbound("b"), refused=frozenset({"n0"}))
    decision = judge(facts)
    assert (decision.move, decision.again) == (("b",), ("a",))


@pytest.mark.parametrize(
    "facts",
    [
        gang(unbound("a"), spare=0),
        gang(unbound("a", is_second=True), refused=frozenset({"n0"})),
        gang(unbound("a"), unbound("b"), spare=1),
        gang(StartingPod(unbound("a").fact, None, 9.0)),
    ],
    ids=["no-pod-to-spare", "the-same-node-again", "too-few-to-spare", "no-slot-of-its-own"],
)
def test_what_cannot_be_repaired_pod_by_pod_goes_back_to_the_queue(facts: StartFacts) -> None:
    """And its next try avoids the nodes that it could not be bound to."""
    decision = judge(facts)
    assert decision.must_requeue
    assert decision.refuse == tuple(pod.fact.uid for pod in facts.pods)


def test_running_work_is_not_given_up_for_a_replacement() -> None:
    """All pods have run once, and one of them runs now: a stuck replacement only waits."""
    facts = gang(running("a"), unbound("b"), spare=0, has_started=True)
    decision = judge(facts)
    assert not decision.must_requeue
    assert "delete the pod, and create it again" in decision.reason
    alone = judge(gang(unbound("b"), spare=0, has_started=True))
    assert alone.must_requeue, "nothing is lost by it"


def test_a_bare_pod_is_only_reported() -> None:
    """No second pod is made for it, and it cannot be suspended."""
    decision = judge(gang(unbound("a"), spare=0, can_requeue=False))
    assert not decision.must_requeue
    assert not decision.move
    assert decision.reason.startswith("its pod cannot be bound: a to n0: ")
    assert decision.reason.endswith("delete the pod, and create it again")


def test_no_other_node_has_room() -> None:
    """The pod was deleted, and its replacement waits for a slot that no node has."""
    facts = gang(running("a"), needed=2, lacking=1, refused=frozenset({"n3"}))
    first = judge(facts)
    assert first.reason == "1 of its 2 pods cannot run on n3, and no other node has room"
    assert not first.must_requeue
    past = Starting(StartFault.NO_OTHER_NODE, NOW_S - 5)
    assert judge(replace(facts, past=past)).must_requeue
    assert not judge(replace(facts, past=past, has_started=True)).must_requeue


def test_growth_that_waits_for_room_is_no_failed_start() -> None:
    """No node refused anything: its parallelism was raised."""
    facts = gang(running("a"), running("b"), lacking=3)
    assert judge(facts) == StartDecision(has_started=True)


def test_pods_that_a_busy_controller_has_not_created_yet_are_asked_about_in_silence() -> None:
    """In a burst no report is written, and no Event is emitted, for each job that has to wait."""
    facts = gang(running("a"), needed=3, waited_s=6)
    assert judge(facts) == StartDecision(must_ask=True, look_in_s=5)
    assert judge(replace(facts, waited_s=119)).starting is None
    assert judge(replace(facts, waited_s=120)).reason == "2 of its 3 pods are not created yet"
    hasty = replace(RULES, timeout_s=6, is_asked=True)
    assert judge(facts, hasty).reason, "its time is over, so the next try shows why"


@pytest.mark.parametrize("fault", [StartFault.FAILED_CREATE, StartFault.UNSCHEDULABLE])
def test_missing_pods_of_a_start_with_a_known_fault_stay_reported(fault: StartFault) -> None:
    """A quota was in the way, or the pod was deleted to be made elsewhere."""
    facts = gang(needed=1, waited_s=9, past=Starting(fault, NOW_S - 3, "words", NOW_S - 3))
    assert judge(facts).reason.startswith("its pod is not created")


def test_missing_pods_are_asked_about_and_told_in_the_controllers_words() -> None:
    """One of three was admitted."""
    facts = gang(running("a"), needed=3, waited_s=120)
    first = judge(facts)
    assert first.must_ask
    assert first.reason == "2 of its 3 pods are not created yet"
    assert first.starting is not None
    said = replace(first.starting, words='Error creating: pods "x-" is forbidden', asked_s=NOW_S)
    second = judge_start(replace(facts, past=said), RULES, NOW_S + 1)
    assert not second.must_ask
    assert second.reason == (
        '2 of its 3 pods are not created: Error creating: pods "x-" is forbidden'
    )
    assert second.starting == said


def test_missing_pods_end_the_start_after_its_timeout() -> None:
    """The default counts for pods that are not created."""
    asked = Starting(StartFault.FAILED_CREATE, NOW_S - 9, "words", NOW_S - 9)
    assert not judge(gang(running("a"), needed=2, waited_s=299, past=asked)).must_requeue
    assert judge(gang(running("a"), needed=2, waited_s=300, past=asked)).must_requeue
    unasked = judge(gang(running("a"), needed=2, waited_s=300))
    assert (unasked.must_requeue, unasked.must_ask) == (False, True)
    assert judge(gang(running("a"), needed=2, waited_s=330)).must_requeue
    never = replace(RULES, timeout_s=0)
    assert not judge(gang(running("a"), needed=2, waited_s=9999), never).must_requeue


def test_large_images_are_no_failure_unless_a_timeout_was_set() -> None:
    """Only its author or its queue knows how long it may take."""
    facts = gang(running("a"), pulling("b", "n4"), waited_s=3600)
    decision = judge(facts)
    assert decision.reason == "1 of its 2 pods does not run yet: b to n4"
    assert not decision.must_requeue
    assert judge(facts, replace(RULES, is_asked=True)).must_requeue


def test_a_pod_that_is_larger_than_its_slot_is_named() -> None:
    """It stays gated, so no part of Kubernetes would say why."""
    large = StartingPod(PodFact("a", "a", "Pending", True), "n0", excess="5 cpu instead of 4 cpu")
    decision = judge(gang(large, waited_s=6))
    assert decision.reason == "a asks for more than its slot has: 5 cpu instead of 4 cpu"
    assert not decision.must_requeue


def test_looks_become_rarer_and_meet_the_timeout() -> None:
    """A slow start costs few looks."""
    assert judge(gang(pulling("a"), waited_s=6)).look_in_s == 5
    assert judge(gang(pulling("a"), waited_s=19.9)).look_in_s == 5, "in whole steps"
    assert judge(gang(pulling("a"), waited_s=60)).look_in_s == 30
    assert judge(gang(pulling("a"), waited_s=500)).look_in_s == 60
    assert judge(gang(pulling("a"), waited_s=290)).look_in_s == pytest.approx(10.1)


def test_terminating_pods_do_not_count() -> None:
    """They neither run for it nor are they stuck."""
    leaving = StartingPod(PodFact("a", "a", "Running", False, is_terminating=True), "n0")
    decision = judge(gang(leaving, needed=1, waited_s=120))
    assert decision.starting is not None
    assert decision.starting.fault is StartFault.FAILED_CREATE


def test_pauses_grow_and_end() -> None:
    """10 s, 20 s, ... and never more than ten minutes."""
    assert [retry_delay_s(n) for n in (1, 2, 3, 4)] == [10, 20, 40, 80]
    assert retry_delay_s(10**6) == DELAY_MAX_S


def test_foreign_words_are_kept_in_a_form_that_rows_can_hold() -> None:
    """Users write some of them: names, messages of webhooks."""
    assert cut("a\0b\n  c") == "ab c"
    assert len(cut("x" * 10_000)) == WORDS_MAX


def test_what_is_remembered_survives_its_row() -> None:
    """Written and read again."""
    kept = Starting(StartFault.FAILED_CREATE, NOW_S, "words", NOW_S + 1)
    assert Starting.from_json(kept.to_json()) == kept
    assert Starting.from_json(None) is None
    assert Starting.from_json({}) is None


def unseen(uid: str, stuck_s: float) -> StartingPod:
    """A pod of a scheduler that is not there."""
    fact = PodFact(uid, uid, "Pending", is_gated=False, unschedulable=f"{NOT_SEEN}volcano")
    return StartingPod(fact, "n0", stuck_s)


def test_a_pod_that_no_scheduler_looks_at_is_reported_and_its_slots_go_back() -> None:
    """It is sent to no other node: that scheduler would not look at it there either."""
    soon = judge(gang(unseen("a", 1.0), unseen("b", 2.0)))
    assert (soon.reason, soon.starting) == ("", None)
    assert soon.look_in_s == pytest.approx(NOT_SEEN_S - 2.0 + 0.1)
    late = judge(gang(unseen("a", 11.0), running("b")))
    assert late.starting == Starting(StartFault.NO_SCHEDULER, NOW_S)
    assert late.reason.startswith("no scheduler 'volcano' has looked at 1 of its 2 pods")
    assert not late.move
    assert not late.must_requeue
    assert judge(gang(unseen("a", 299.0), waited_s=300.0)).must_requeue
    assert not judge(gang(unseen("a", 299.0), waited_s=300.0, can_requeue=False)).must_requeue
    started = judge(gang(unseen("a", 299.0), waited_s=300.0, has_started=True))
    assert not started.must_requeue, "running work is not given up"


def held_back(uid: str, node: str) -> StartingPod:
    """A pod that fits, in a PodGroup that kube-scheduler refuses."""
    words = f"{OF_GROUP}minCount (3) cannot be satisfied: 2 scheduled, 0 remaining"
    fact = PodFact(uid, uid, "Pending", is_gated=False, unschedulable=words)
    return StartingPod(fact, node, 6.0)


def test_only_the_node_that_refused_a_pod_of_a_native_group_is_avoided() -> None:
    """All pods of the group are unschedulable, and one node is the cause."""
    pods = held_back("a", "n0"), unbound("b", "n1"), held_back("c", "n2")
    moved = judge(gang(*pods, is_whole=True))
    assert moved.move == ("b",)
    assert moved.reason.startswith("1 of its 3 pods cannot be bound: b to n1: ")
    again = judge(gang(*pods, is_whole=True, spare=0))
    assert (again.refuse, again.must_requeue) == (("b",), True)


def test_a_native_group_that_is_refused_as_such_refuses_no_node() -> None:
    """It is reported, and returns to the queue after the start timeout."""
    pods = held_back("a", "n0"), held_back("b", "n1")
    early = judge(gang(*pods, is_whole=True))
    assert "2 of its 2 pods cannot be bound with their PodGroup: minCount (3)" in early.reason
    assert (early.move, early.refuse, early.must_requeue) == ((), (), False)
    late = judge(gang(*pods, is_whole=True, waited_s=301))
    assert (late.refuse, late.must_requeue) == ((), True)


def test_released_pods_of_a_native_group_that_nothing_binds_return_to_the_queue() -> None:
    """A pod that came later and has no slot holds them back, and kube-scheduler says nothing."""
    sent = [StartingPod(PodFact(uid, uid, "Pending", False), "n0") for uid in "ab"]
    facts = gang(*sent, waited_s=301, lacking=1, is_whole=True)
    assert judge(facts).must_requeue
    assert not judge(replace(facts, is_whole=False)).must_requeue


def sent(uid: str, node: str | None = None) -> StartingPod:
    """A released pod, bound to ``node`` or to none."""
    phase = "Pending" if node is None else "Running"
    return StartingPod(PodFact(uid, uid, phase, is_gated=False, node=node), "n0")


GROUPS = StartRules(binds_groups=True)


def test_the_group_of_a_gang_is_made_when_all_of_its_pods_are_there() -> None:
    """That releases all of them at once. Those that come late are not waited for."""
    waiting = gang(sent("a"), sent("b"), is_whole=True, is_placed=True, waited_s=1.0)
    assert judge_start(waiting, GROUPS, NOW_S).must_release
    some = replace(waiting, needed=3)
    soon = judge_start(some, GROUPS, NOW_S)
    assert (soon.must_release, soon.look_in_s) == (False, None)
    assert judge_start(replace(some, waited_s=5.0), GROUPS, NOW_S).must_release
    for other in (replace(waiting, is_whole=False), replace(waiting, is_placed=False)):
        assert not judge_start(other, GROUPS, NOW_S).must_release, "another group, or none"
    assert not judge_start(waiting, RULES, NOW_S).must_release


def test_the_group_of_pods_that_wait_is_looked_at_again() -> None:
    """It may be gone, or ask for more pods than there are. Its pods then wait without a word."""
    facts = gang(sent("a"), is_whole=True, is_placed=True, has_started=True, group_s=NOW_S - 4)
    soon = judge_start(facts, GROUPS, NOW_S)
    assert (soon.must_release, soon.look_in_s) == (False, 6.0)
    assert judge_start(facts, GROUPS, NOW_S + 6).must_release
    bound = gang(sent("a", "n0"), sent("b", "n1"), is_whole=True, is_placed=True)
    assert not judge_start(bound, GROUPS, NOW_S).must_release


def test_a_gang_whose_group_cannot_be_made_returns_to_the_queue_with_the_reason() -> None:
    """Its pods name the group, so nothing else can bind them. A bound pod is never lost by it."""
    past = Starting(StartFault.NO_GROUP, NOW_S, "g: another object has its name")
    facts = gang(sent("a"), sent("b"), is_whole=True, is_placed=True, past=past)
    soon = judge_start(facts, GROUPS, NOW_S + 4)
    said = "2 of its 2 pods cannot be bound in PodGroup g: another object has its name"
    assert (soon.reason, soon.must_requeue, soon.starting) == (said, False, past)
    late = judge_start(facts, GROUPS, NOW_S + 5)
    assert (late.reason, late.must_requeue) == (said, True)
    one = gang(sent("a", "n0"), sent("b"), is_whole=True, is_placed=True, past=past)
    kept = judge_start(one, GROUPS, NOW_S + 500)
    assert (kept.reason, kept.must_requeue) == (said.replace("2 of", "1 of", 1), False)
    bound = gang(sent("a", "n0"), sent("b", "n1"), is_whole=True, is_placed=True, past=past)
    assert judge_start(bound, GROUPS, NOW_S + 5).starting is None
