"""What a database knows and no workload says: published in the status, read back from it.

Each test asks for something, loses every row, and takes over what the FluxJobs said last.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from fluxqueue.clock import SystemClock
from fluxqueue.db.store.queues import QueueSeen, save_queues
from fluxqueue.db.store.rebuild import Found, note_preemptions, take_over
from fluxqueue.db.store.statuses import read_statuses
from fluxqueue.db.task_queue import TaskName
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.observation import WorkloadSeen
from fluxqueue.jobspec import Count, Jobspec, Resource
from fluxqueue.policy.queue_rules import read_rules
from fluxqueue.scheduler.adoption import PlacedPod
from fluxqueue.scheduler.record import DecisionRecord, read_record
from fluxqueue.worker import status
from tests.support import preempting, steering
from tests.support.pool_model import request
from tests.support.rows import Rows, but, cpu_node, pod, workload
from tests.support.seen import job, queue, see_queues, told

ALICE = "alice@host"
LOST = (
    "fluxjobs, allocations, allocation_slots, reservations, preemptions, pods, history, fluxqueues"
)


def _queue(*, enabled: bool, started: bool) -> QueueSeen:
    spec = {"enabled": enabled, "started": started, "limits": {"perUser": {"jobs": 1}}}
    return QueueSeen("fast", "u", int(enabled), spec, None, read_rules("fast", spec))


async def _set_queue(rows: Rows, *, enabled: bool, started: bool) -> None:
    async with rows.database.begin() as tx:
        await save_queues(tx, [_queue(enabled=enabled, started=started)], [])
    await rows.match()


async def _records(rows: Rows, *uids: str) -> dict[str, DecisionRecord]:
    """What the status effect would write now, read back."""
    found = await read_statuses(rows.database, uids)
    return {
        uid: read_record({"metadata": {"uid": row.flux_uid}, "status": status._render(row)})
        for uid, row in found.items()
    }


async def _lose_all(rows: Rows) -> None:
    await rows.execute(f"TRUNCATE {LOST} CASCADE")
    await rows.execute("INSERT INTO fluxqueues (name) VALUES ('default')")
    rows.matcher = None


async def _take(rows: Rows, *found: Found) -> None:
    async with rows.database.begin() as tx:
        await take_over(tx, found)


async def test_a_queue_that_was_disabled_meanwhile_keeps_what_it_took_in(rows: Rows) -> None:
    """As it waited, in its order, also what an operator holds. What it refused it still refuses."""
    await rows.add_nodes(cpu_node("n0"))
    await _set_queue(rows, enabled=True, started=False)
    waiting = {uid: workload(uid, queue="fast", user_name="ann") for uid in "cabh"}
    await rows.see(*waiting.values())
    await rows.match()
    await steering.hold(rows.database, "default", ["h"], ALICE)
    await _set_queue(rows, enabled=False, started=False)
    late = workload("late", queue="fast")
    await rows.see(late)
    await rows.match()
    expected = dict.fromkeys("cab", "Pending") | {"h": "Held", "late": "Held"}
    assert await rows.states() == expected
    records = await _records(rows, *waiting, "late")

    await _lose_all(rows)
    await _set_queue(rows, enabled=False, started=False)
    seen: list[WorkloadSeen] = [*waiting.values(), late, workload("new", queue="fast")]
    await _take(rows, *(Found(one, records.get(one.uid)) for one in seen))
    await rows.match()
    assert await rows.states() == {**expected, "new": "Held"}
    await steering.release(rows.database, "default", ["h"], ALICE)
    await rows.match()
    assert list(await rows.states()) == ["c", "a", "b", "h", "late", "new"]
    assert (await rows.states())["h"] == "Pending"
    held = await rows.fetch("SELECT uid FROM fluxjobs WHERE held_by = 'queue' ORDER BY uid")
    assert [row["uid"] for row in held] == ["late", "new"]

    await _set_queue(rows, enabled=False, started=True)
    states = await rows.states()
    assert [states[uid] for uid in "cabh"] == ["Allocated", "Pending", "Pending", "Pending"]
    await rows.check()


async def test_what_runs_and_left_no_record_was_taken_in(rows: Rows) -> None:
    """Requeued later, it waits in its queue, which takes no submissions any more."""
    await rows.add_nodes(cpu_node("n0"))
    await _set_queue(rows, enabled=False, started=False)
    runs = workload("a", queue="fast", is_suspended=False, generation=2, pods=(_pod("a-0"),))
    await _take(rows, Found(runs, None, (_placed("a-0"),)))
    await steering.requeue(rows.database, "default", ["a"], ALICE)
    await rows.see(but(runs, is_suspended=True, generation=3, pods=()))
    await rows.reconcile("a")
    await rows.match()
    assert await rows.states() == {"a": "Pending"}


def _pod(uid: str) -> object:
    return pod(uid, "Running", is_gated=False, node="n0")


def _placed(uid: str) -> PlacedPod:
    return PlacedPod(uid, uid, "n0", {"cpu": 1}, "Running")


async def _run(rows: Rows, uid: str, pods: int) -> WorkloadSeen:
    """A FluxJob that runs on the one node."""
    await rows.add_nodes(cpu_node("n0"))
    names = [f"{uid}-{n}" for n in range(pods)]
    asked = request(pods, cpu=1)
    gated = workload(uid, asked, is_suspended=False, generation=2, pods=tuple(map(pod, names)))
    await rows.see(gated)
    await rows.match()
    await rows.reconcile(uid)
    seen = replace(gated, pods=tuple(map(_pod, names)))
    await rows.see(seen)
    await rows.reconcile(uid)
    assert (await rows.states())[uid] == "Running"
    return seen


@pytest.mark.parametrize("is_suspended", [False, True], ids=["not yet suspended", "suspended"])
async def test_a_requeue_under_way_goes_on(rows: Rows, is_suspended: bool) -> None:
    """Its pods end, and it is back at its old place, not held as if its author had stopped it."""
    seen = await _run(rows, "a", pods=2)
    await steering.requeue(rows.database, "default", ["a"], ALICE)
    record = (await _records(rows, "a"))["a"]
    await _lose_all(rows)
    left = but(seen, is_suspended=is_suspended, pods=seen.pods[1:])
    await _take(rows, Found(left, record, (_placed("a-1"),)))
    assert "a" in await rows.asked(TaskName.RELEASE)
    version = await rows.value("SELECT version FROM fluxjobs")
    assert version > record.version, "else its status would not be written"
    wanted = await rows.wanted("a")
    assert wanted is not None
    assert wanted.is_suspended
    await rows.see(but(left, is_suspended=True, generation=3))
    await rows.reconcile("a")
    assert await rows.fetch("SELECT state, vacate_by, reason FROM fluxjobs") == [
        {"state": "Running", "vacate_by": ALICE, "reason": record.reason}
    ]
    await rows.see(but(left, is_suspended=True, generation=3, pods=()))
    await rows.reconcile("a")
    assert await rows.fetch("SELECT state, vacate_by, held_by, reason FROM fluxjobs") == [
        {"state": "Pending", "vacate_by": None, "held_by": None, "reason": f"requeued by {ALICE}"}
    ]
    await rows.check()


async def test_a_requeue_whose_last_pod_went_meanwhile_is_done(rows: Rows) -> None:
    """Suspended, no pod left: it waits."""
    seen = await _run(rows, "a", pods=1)
    await steering.requeue(rows.database, "default", ["a"], ALICE)
    record = (await _records(rows, "a"))["a"]
    await _lose_all(rows)
    gone = but(seen, is_suspended=True, generation=3, pods=())
    await _take(rows, Found(gone, record))
    await rows.reconcile("a")
    await rows.see(gone)
    assert await rows.states() == {"a": "Pending"}
    assert await rows.value("SELECT vacate_by FROM fluxjobs") is None
    await rows.check()


async def test_a_cancel_that_was_not_carried_out_is(rows: Rows) -> None:
    """Running or waiting: nothing of it starts, its workload is deleted, and it says by whom."""
    runs = await _run(rows, "a", pods=1)
    waits = workload("w", request(cpu=4))
    await rows.see(waits)
    await rows.match()
    await steering.cancel(rows.database, "default", ["a", "w"], ALICE)
    records = await _records(rows, "a", "w")
    await _lose_all(rows)
    await _take(rows, Found(runs, records["a"], (_placed("a-0"),)), Found(waits, records["w"]))
    await rows.match()
    assert await rows.states() == {"a": "Running", "w": "Pending"}
    for uid in ("a", "w"):
        wanted = await rows.wanted(uid)
        assert wanted is not None
        assert wanted.is_deleted
    assert {"a", "w"} <= set(await rows.asked(TaskName.RELEASE))
    await rows.see(replace(runs, is_deleting=True, pods=()), replace(waits, is_deleting=True))
    await rows.reconcile("a", "w")
    assert await rows.fetch("SELECT uid, state, reason FROM fluxjobs ORDER BY uid") == [
        {"uid": uid, "state": "Cancelled", "reason": f"cancelled by {ALICE}"} for uid in ("a", "w")
    ]
    assert (await _records(rows, "a"))["a"].cancel_by is None, "nothing is left to be done"
    await rows.check()


async def test_a_rack_that_is_held_whole_is_so_again(rows: Rows) -> None:
    """One pod in an exclusive rack of three nodes: R says what else it holds, and with all rows
    lost no pod is sent there."""
    for number in range(3):
        labels = {"topology.kubernetes.io/rack": "r0"}
        await rows.add_nodes(NodeFact(f"n{number}", f"uid-{number}", {"cpu": 4000}, labels))
    slot = Resource("slot", Count(1, 1), (Resource("cpu", Count(1000, 1000)),), label="task")
    rack = Resource("rack", Count(1, 1), (slot,), is_exclusive=True)
    whole, other = workload("a", Jobspec(9999, (rack,))), workload("b", request(1, cpu=1))
    await rows.see(whole, other)
    await rows.match()
    assert await rows.states() == {"a": "Allocated", "b": "Pending"}
    records = await _records(rows, "a", "b")
    assert records["a"].given is not None
    assert records["a"].given.held == ("n0", "n1", "n2")
    (written_version,) = (await read_statuses(rows.database, ["a"])).values()
    lite = status._render(written_version)["R"]["execution"]["R_lite"]
    assert [one["children"] for one in lite] == [{"core": "0-3"}] * 3

    await _lose_all(rows)
    await _take(rows, Found(whole, records["a"]), Found(other, records["b"]))
    await rows.match()
    assert await rows.states() == {"a": "Allocated", "b": "Pending"}
    assert await rows.value("SELECT held FROM allocations WHERE is_live") == ["n0", "n1", "n2"]
    await rows.check()


async def test_a_preemption_under_way_goes_on_and_nobody_else_makes_way(rows: Rows) -> None:
    """Its claim is lost, and found anew: what one gives back is for its preemptor."""
    clock = preempting.now_as_database(rows)
    await rows.add_nodes(*(cpu_node(name) for name in ("n0", "n1", "n2")))
    await see_queues(rows, queue("q", preemption=preempting.LOWER))
    await preempting.start(rows, clock, *preempting.LOW)
    await rows.see(preempting.HIGH)
    await rows.match()
    assert await preempting.vacating(rows) == {"c": "job 4"}
    records = await _records(rows, "a", "b", "c", "high")
    nodes = {uid: (await rows.slots(uid))[0][1] for uid in "abc"}

    await _lose_all(rows)
    await see_queues(rows, queue("q", preemption=preempting.LOWER))
    runs = [
        Found(
            preempting.running(one),
            records[one.uid],
            (PlacedPod(f"{one.uid}-0", f"{one.uid}-0", nodes[one.uid], {"cpu": 4}, "Running"),),
        )
        for one in preempting.LOW
    ]
    await _take(rows, *runs, Found(preempting.HIGH, records["high"]))
    async with rows.database.begin() as tx:
        await note_preemptions(tx)
    # The rows have the time of the database, which no worker is seconds behind.
    clock.advance(max(0, SystemClock().now_s() + 1 - clock.now_s()))
    await rows.see(job("other", "q", request(cpu=4), priority=5))
    await rows.match()
    assert await preempting.vacating(rows) == {"c": "job 4", "b": "job 5"}
    assert await told(rows, "high") == ("Reserved", "job 3 is preempted for it")
    await preempting.leave(rows, preempting.LOW[2])
    await rows.match()
    states = await rows.states()
    assert (states["high"], states["other"], states["c"]) == ("Allocated", "Reserved", "Pending")
    await preempting.leave(rows, preempting.LOW[1])
    await rows.match()
    assert (await rows.states())["other"] == "Allocated"
    assert await preempting.pending_actions(rows) == 0
    await rows.check()


async def test_one_whose_preemptor_is_gone_is_requeued_all_the_same(rows: Rows) -> None:
    """It was asked to leave already, and does. Nothing is promised to any job."""
    clock = preempting.now_as_database(rows)
    await rows.add_nodes(cpu_node("n0"))
    await see_queues(rows, queue("q", preemption=preempting.LOWER))
    low = preempting.LOW[0]
    await preempting.start(rows, clock, low)
    await rows.see(preempting.HIGH)
    await rows.match()
    records = await _records(rows, "a")
    await _lose_all(rows)
    await see_queues(rows, queue("q", preemption=preempting.LOWER))
    placed = PlacedPod("a-0", "a-0", "n0", {"cpu": 4}, "Running")
    await _take(rows, Found(preempting.running(low), records["a"], (placed,)))
    async with rows.database.begin() as tx:
        await note_preemptions(tx)
    await rows.match()
    assert await preempting.pending_actions(rows) == 0
    await preempting.leave(rows, low)
    await rows.match()
    assert await rows.states() == {"a": "Allocated"}
    await rows.check()
