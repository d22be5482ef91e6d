"""Starts that fail, in rows: another node, another try after a pause, a hold with the reason."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fluxqueue.db.store.pending_actions import sweep
from fluxqueue.db.store.reconciling import reconcile
from fluxqueue.db.store.starts import keep_words
from fluxqueue.db.task_queue import TaskName
from fluxqueue.fluxjob.observation import WorkloadSeen
from fluxqueue.fluxjob.pod_facts import PodFact
from tests.support.looks import RULES, WORDS, look, pass_time, unbound
from tests.support.pool_model import request
from tests.support.rows import Rows, but, cpu_node, pod, workload
from tests.support.steering import release


def released(uid: str, count: int = 2, **more: Any) -> WorkloadSeen:
    """A BatchJob that runs ``count`` pods, resumed by its release."""
    first = {"is_suspended": False, "generation": 2, "spare_failures": 3}
    return workload(uid, request(count, cpu=2), **(first | more))


def running(uid: str, node: str) -> PodFact:
    """A pod with running containers."""
    return pod(uid, "Running", is_gated=False, node=node)


async def start(rows: Rows, uid: str = "a", count: int = 2, **more: Any) -> dict[str, str]:
    """Allocate and release a BatchJob with gated pods, and return the node of each pod."""
    gated = tuple(pod(f"{uid}{n}") for n in range(count))
    await rows.see(released(uid, count, is_suspended=True, generation=1, **more))
    await rows.match()
    await rows.see(released(uid, count, pods=gated, **more))
    await look(rows, uid)
    return {str(held): node for _, node, _, held in await rows.slots(uid)}


async def row(rows: Rows, uid: str = "a") -> dict[str, Any]:
    """Its row."""
    (found,) = await rows.fetch("SELECT * FROM fluxjobs WHERE uid = :uid", uid=uid)
    return found


async def test_an_unbound_pod_gets_a_slot_on_another_node(rows: Rows) -> None:
    """Its slot counts as refused, it is deleted, and the next pod is sent elsewhere."""
    await rows.add_nodes(cpu_node("n0", cpu=2), cpu_node("n1", cpu=2), cpu_node("n2", cpu=2))
    nodes = await start(rows)
    await rows.forget_tasks()
    pods = (running("a0", nodes["a0"]), unbound("a1"))
    await rows.see(released("a", pods=pods))
    assert await rows.asked(TaskName.RECONCILE) == ["a"], "its observation asks for the look"
    assert (await look(rows, "a")).evictions == []
    told = await row(rows)
    assert told["reason"] == f"1 of its 2 pods cannot be bound: a1 to {nodes['a1']}: {WORDS}"
    assert told["reconcile_at"] is not None, "the next look is planned"
    await pass_time(rows, 5)
    found = await look(rows, "a")
    assert [one.pod_uid for one in found.evictions] == ["a1"]
    assert found.start_failures == ["Unschedulable"]
    again = await look(rows, "a")
    assert [one.pod_uid for one in again.evictions] == ["a1"], "its deletion may have failed"
    assert again.start_failures == []
    # The Job controller makes another pod.
    pods = (running("a0", nodes["a0"]), pod("a2"))
    await rows.see(released("a", pods=pods))
    await look(rows, "a")
    await rows.match()
    (ungate,) = (await look(rows, "a")).ungates
    assert ungate.to.name not in {nodes["a0"], nodes["a1"]}
    pods = (running("a0", nodes["a0"]), running("a2", ungate.to.name))
    await rows.see(released("a", pods=pods))
    await look(rows, "a")
    told = await row(rows)
    assert (told["reason"], told["start"], told["is_started"]) == ("", {}, True)
    await rows.check()


async def test_without_another_node_the_whole_workload_waits_and_tries_again(rows: Rows) -> None:
    """With growing pauses, and at last it is held with the reason. A release begins anew."""
    await rows.add_nodes(cpu_node("n0", cpu=2), cpu_node("n1", cpu=2))
    for tries in (1, 2):
        nodes = await start(rows)
        rest = (running("a0", nodes["a0"]), unbound("a1"))
        await rows.see(released("a", pods=rest))
        await look(rows, "a")
        await pass_time(rows, 6)
        assert (await look(rows, "a")).evictions
        # Another pod takes the last node meanwhile.
        await rows.see(released("a", pods=(running("a0", nodes["a0"]), pod("a2"))))
        await rows.add_nodes(cpu_node(nodes["a1"], cpu=1))
        await look(rows, "a")
        await rows.match()
        await look(rows, "a")
        assert "no other node has room" in (await row(rows))["reason"]
        await pass_time(rows, 6)
        assert (await look(rows, "a")).start_failures == ["NoOtherNode"]
        wanted = await rows.wanted("a")
        assert wanted is not None
        assert wanted.is_suspended
        await rows.see(released("a", pods=(), is_suspended=True, generation=3, is_idle=True))
        await look(rows, "a")
        told = await row(rows)
        assert told["start"]["tries"] == tries
        await rows.add_nodes(cpu_node(nodes["a1"], cpu=2))
        if tries == 1:
            assert (told["state"], told["blocked_by"]) == ("Pending", "start-retry")
            assert "it is tried again from" in told["reason"]
            await rows.match()
            assert await rows.states() == {"a": "Pending"}, "not before the pause is over"
            await pass_time(rows, 11)
            await look(rows, "a")
            told = await row(rows)
            assert (told["blocked_by"], told["reason"]) == (None, "")
    assert (told["state"], told["held_by"]) == ("Held", "start")
    assert told["reason"].startswith("its pods did not start in 2 tries: ")
    (outcome,) = await release(rows.database, "default", ["a"], "ann")
    assert outcome.is_done, outcome
    await rows.match()
    told = await row(rows)
    assert (told["state"], told["start"].get("tries")) == ("Allocated", None)
    await rows.check()


async def test_a_pinned_job_goes_back_at_once_and_avoids_its_node(rows: Rows) -> None:
    """Its template names the node, so that another pod would be sent there as well."""
    await rows.add_nodes(cpu_node("n0", cpu=2), cpu_node("n1", cpu=2))
    pinned = {"is_pinnable": True, "pods": (), "pinned_to": None}
    await rows.see(released("a", 1, is_suspended=True, generation=1, **pinned))
    await rows.match()
    ((_, node, _, _),) = await rows.slots("a")
    there = {"is_pinnable": True, "pinned_to": node}
    await rows.see(released("a", 1, pods=(unbound("a0"),), **there))
    await look(rows, "a")
    await pass_time(rows, 6)
    found = await look(rows, "a")
    assert (found.evictions, found.start_failures) == ([], ["Unschedulable"])
    await rows.see(released("a", 1, is_suspended=True, generation=3, is_idle=True, **there))
    await look(rows, "a")
    await pass_time(rows, 11)
    await look(rows, "a")
    await rows.match()
    ((_, other, _, _),) = await rows.slots("a")
    assert {node, other} == {"n0", "n1"}
    await rows.check()


async def test_the_next_try_spreads_its_pods_and_gates_them(rows: Rows) -> None:
    """They may refuse each other, and a template that names a node cannot send one elsewhere."""
    await rows.add_nodes(*(cpu_node(f"n{n}", cpu=4) for n in range(3)))
    pinnable = {"is_pinnable": True}
    await rows.see(released("a", is_suspended=True, generation=1, **pinnable))
    await rows.match()
    wanted = await rows.wanted("a")
    assert wanted is not None
    assert wanted.pin is not None
    node = wanted.pin.name
    there = {**pinnable, "pinned_to": node}
    await rows.see(released("a", pods=(running("a0", node), unbound("a1")), **there))
    await look(rows, "a")
    await pass_time(rows, 6)
    assert (await look(rows, "a")).start_failures == ["Unschedulable"]
    await rows.see(released("a", is_suspended=True, generation=3, is_idle=True, **there))
    await look(rows, "a")
    await pass_time(rows, 11)
    await look(rows, "a")
    await rows.match()
    assert {slot[1] for slot in await rows.slots("a")} == {"n0", "n1", "n2"} - {node}
    await rows.execute("UPDATE allocation_slots SET node = 'n1' WHERE state <> 'returned'")
    again = await rows.wanted("a")
    assert again is not None
    assert again.pin is None, "though all its slots are on one node"


async def test_the_node_that_refused_is_used_if_there_is_no_other(rows: Rows) -> None:
    """It may take the pod the next time."""
    await rows.add_nodes(cpu_node("n0", cpu=4))
    await start(rows, spare_failures=0)
    await rows.see(released("a", pods=(unbound("a0"), unbound("a1")), spare_failures=0))
    await look(rows, "a")
    await pass_time(rows, 6)
    assert (await look(rows, "a")).start_failures == ["Unschedulable"]
    await rows.see(released("a", is_suspended=True, generation=3, is_idle=True))
    await look(rows, "a")
    await pass_time(rows, 11)
    await look(rows, "a")
    await rows.match()
    assert {slot[1] for slot in await rows.slots("a")} == {"n0"}
    await rows.check()


async def test_missing_pods_are_found_by_the_sweep_and_asked_about(rows: Rows) -> None:
    """Nothing observes a pod that does not exist."""
    await rows.add_nodes(cpu_node("n0", cpu=8))
    nodes = await start(rows, count=3)
    await rows.see(released("a", 3, pods=(running("a0", nodes["a0"]),)))
    await look(rows, "a")
    await rows.execute("UPDATE fluxjobs SET reconcile_at = NULL")
    await rows.forget_tasks()
    async with rows.database.begin() as tx:
        assert "reconcile" not in await sweep(tx), "it is young"
    await pass_time(rows, 9)
    async with rows.database.begin() as tx:
        assert (await sweep(tx, grace_s=3))["reconcile"] == 1
    found = await look(rows, "a")
    assert [one.workload_uid for one in found.missing] == ["a"]
    assert (await row(rows))["reason"] == "", "its controller may only be busy"
    await keep_words(rows.database, {"a": "Error creating: exceeded quota: compute"})
    assert (await look(rows, "a")).missing == []
    told = await row(rows)
    assert told["reason"].endswith("are not created: Error creating: exceeded quota: compute")
    await pass_time(rows, 300)
    assert (await look(rows, "a")).start_failures == ["FailedCreate"]
    assert (await row(rows))["vacate_by"] == "not-started"


async def test_the_reason_of_half_a_gang_ends_when_the_other_half_runs(rows: Rows) -> None:
    """The state was Running before, so only the pods have changed."""
    await rows.add_nodes(cpu_node("n0", cpu=8))
    nodes = await start(rows)
    one = running("a0", nodes["a0"])
    half = replace(released("a", pods=(one,)), running=1)
    await rows.see(half)
    await look(rows, "a")
    await pass_time(rows, 9)
    assert (await look(rows, "a")).missing
    await keep_words(rows.database, {"a": "exceeded quota: short"})
    await look(rows, "a")
    told = await row(rows)
    assert told["state"] == "Running"
    assert told["reason"] == "1 of its 2 pods is not created: exceeded quota: short"
    await rows.execute("UPDATE fluxjobs SET reconcile_at = NULL")
    both = (one, running("a2", nodes["a0"]))
    await rows.see_after({"a": half}, replace(released("a", pods=both), running=2))
    assert (await row(rows))["reconcile_at"] is not None
    await look(rows, "a")
    told = await row(rows)
    assert (told["reason"], told["start"], told["is_started"]) == ("", {}, True)
    assert told["reconcile_at"] is None, "nothing is left to look at"


async def test_a_burst_that_waits_for_the_job_controller_costs_one_look_and_no_status(
    rows: Rows,
) -> None:
    """Nothing is wrong with these jobs, so their rows stay as they are."""
    await rows.add_nodes(cpu_node("n0", cpu=64))
    uids = [f"j{number}" for number in range(20)]
    for uid in uids:
        await start(rows, uid, 1)
        await rows.see(released(uid, 1))
    await pass_time(rows, 9)
    before = await _shown(rows)
    await rows.forget_tasks()
    async with rows.database.begin() as tx:
        found = await reconcile(tx, uids, rules=RULES)
    assert {one.workload_uid for one in found.missing} == set(uids)
    await keep_words(rows.database, dict.fromkeys(uids, ""))
    assert await _shown(rows) == before
    assert await rows.value(LOOKS) == 1
    words = {"j3": "exceeded quota", "j7": "", "j5": "forbidden"}
    await keep_words(rows.database, words)
    told = await rows.fetch("SELECT uid FROM fluxjobs WHERE start ? 'trouble' ORDER BY uid")
    assert [one["uid"] for one in told] == ["j3", "j5"]
    assert await rows.value(LOOKS) == 2


LOOKS = "SELECT count(*) FROM procrastinate.procrastinate_jobs WHERE task_name = 'reconcile'"


async def _shown(rows: Rows) -> list[Any]:
    return await rows.fetch("SELECT uid, version, reason, start FROM fluxjobs ORDER BY uid")


async def test_the_timeout_of_the_author_wins_over_that_of_the_queue(rows: Rows) -> None:
    """And that of the queue over that of the settings."""
    await rows.add_nodes(cpu_node("n0", cpu=8))
    await start(rows, "a", 1, start_timeout_s=20)
    await start(rows, "b", 1)
    await rows.execute(
        "INSERT INTO fluxqueues (name, spec) VALUES ('default', '{\"startTimeout\": \"1m\"}')"
        " ON CONFLICT (name) DO UPDATE SET spec = excluded.spec"
    )
    for uid, more in (("a", {"start_timeout_s": 20}), ("b", {})):
        slow = pod(f"{uid}0", is_gated=False, node="n0")
        await rows.see(released(uid, 1, pods=(slow,), **more))
    for passed_s, given_up in ((10, []), (15, ["a"]), (40, ["b"])):
        await pass_time(rows, passed_s)
        for uid in given_up:
            assert (await look(rows, uid)).start_failures == ["NotRunning"]
        vacating = await rows.fetch("SELECT uid FROM fluxjobs WHERE vacate_by IS NOT NULL")
        assert set(given_up) <= {one["uid"] for one in vacating}


async def test_a_start_that_all_pods_have_made_is_not_looked_at_again(rows: Rows) -> None:
    """Short pods never run at the same time: one that succeeded counts for all."""
    await rows.add_nodes(cpu_node("n0", cpu=8))
    nodes = await start(rows, count=2)
    one = released("a", pods=(running("a0", nodes["a0"]), pod("a1", is_gated=False)))
    await rows.see(replace(one, running=1))
    assert (await row(rows))["is_started"] is False
    later = but(one, wanted=1, running=0, succeeded=1, pods=(pod("a1", is_gated=False),))
    await rows.see_after({"a": replace(one, running=1)}, later)
    assert (await row(rows))["is_started"] is True
    await pass_time(rows, 60)
    await rows.execute("UPDATE fluxjobs SET reconcile_at = NULL")
    async with rows.database.begin() as tx:
        assert "reconcile" not in await sweep(tx)
