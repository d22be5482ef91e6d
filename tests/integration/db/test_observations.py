"""What the controller writes: whole states, any number of times, in any order that is the last."""

from __future__ import annotations

import asyncio

import pytest

from fluxqueue.db.store.cluster_rows import save_foreign, save_nodes
from fluxqueue.db.store.known import read_known
from fluxqueue.db.store.observations import save_workloads
from fluxqueue.db.task_queue import TaskName
from fluxqueue.fluxjob.holders import UNSEEN
from fluxqueue.fluxjob.node import ForeignPod
from fluxqueue.fluxjob.observation import WorkloadGone
from fluxqueue.fluxjob.request import CPU
from tests.support.pool_model import request
from tests.support.rows import Rows, cpu_node, pod, workload
from tests.support.sql import dicts
from tests.support.waiting import eventually


async def effects(rows: Rows) -> dict[str, list[str]]:
    """What the tasks are for, by name. Then there are none."""
    found = {task.value: await rows.asked(task) for task in (TaskName.RELEASE, TaskName.RECONCILE)}
    await rows.execute("DELETE FROM procrastinate.procrastinate_jobs WHERE task_name <> 'schedule'")
    return {task: uids for task, uids in found.items() if uids}


async def is_woken(rows: Rows) -> bool:
    """Whether a schedule task waits. It is taken away."""
    query = "DELETE FROM procrastinate.procrastinate_jobs WHERE task_name = 'schedule' RETURNING 1"
    return bool(await rows.fetch(query))


async def test_jobids_follow_submission_and_have_no_gaps(rows: Rows) -> None:
    """The order of the batch is the order of the queue. Seeing again draws no number."""
    await rows.see(workload("b"), workload("a"), workload("c"))
    await rows.see(workload("c", priority=1), workload("a"), workload("d"))
    listed = await rows.fetch("SELECT jobid, uid FROM fluxjobs ORDER BY jobid")
    assert [(r["jobid"], r["uid"]) for r in listed] == [(1, "b"), (2, "a"), (3, "c"), (4, "d")]


async def test_the_same_again_changes_nothing(rows: Rows) -> None:
    """No effect, no version, no task."""
    seen = workload("a", pods=(pod("p"),))
    await rows.see(seen)
    await effects(rows)
    assert await is_woken(rows)
    before = await rows.fetch("SELECT * FROM fluxjobs")
    await rows.execute("UPDATE fluxjobs SET is_examined = true")
    await rows.see(seen)
    assert await effects(rows) == {}
    assert not await is_woken(rows)
    after = await rows.fetch("SELECT * FROM fluxjobs")
    assert {**after[0], "is_examined": False} == before[0]


async def test_a_higher_priority_is_looked_at_at_once(rows: Rows) -> None:
    """The queue's order has changed, so a cycle must follow."""
    await rows.add_nodes(cpu_node("n0", cpu=1))
    await rows.see(workload("a"), workload("b"), workload("c"))
    await rows.match()
    assert not await is_woken(rows)
    await rows.see(workload("c", priority=7))
    assert await is_woken(rows)


async def test_what_was_asked_for_is_fixed_by_the_allocation(rows: Rows) -> None:
    """Before it may change, and is examined anew. After it, it may not."""
    await rows.add_nodes(cpu_node("n0", cpu=4))
    await rows.see(workload("a", request(cpu=99)))
    await rows.match()
    assert await rows.states() == {"a": "Unsatisfiable"}
    await rows.see(workload("a", request(cpu=2)))
    assert await rows.states() == {"a": "Pending"}
    await rows.match()
    await rows.see(workload("a", request(cpu=1)))
    assert await rows.value("SELECT request #>> '{resources,0,with,0,count}' FROM fluxjobs") == "2"


async def test_pods_are_what_was_seen_last(rows: Rows) -> None:
    """New ones appear, gone and ended ones disappear, other workloads' are left alone."""
    await rows.see(workload("a", pods=(pod("p1"), pod("p2"))), workload("b", pods=(pod("q"),)))
    await rows.see(workload("a", pods=(pod("p2", "Succeeded"), pod("p3", "Running", node="n0"))))
    listed = await rows.fetch("SELECT uid, phase, node FROM pods ORDER BY uid")
    assert [tuple(r.values()) for r in listed] == [("p3", "Running", "n0"), ("q", "Pending", None)]


async def test_suspended_by_its_author_waits_beside_the_queue(rows: Rows) -> None:
    """Held until its author unsuspends it. Then Pending, examined, scheduled."""
    await rows.add_nodes(cpu_node("n0"))
    await rows.see(workload("a", held_by="author"))
    await rows.match()
    assert await rows.states() == {"a": "Held"}
    assert await rows.value("SELECT reason FROM fluxjobs") == "suspended by its author"
    await is_woken(rows)
    await rows.see(workload("a"))
    assert await is_woken(rows)
    await rows.match()
    assert await rows.states() == {"a": "Allocated"}


async def test_a_waiting_one_that_its_author_suspends_is_held(rows: Rows) -> None:
    """Whatever it waited for."""
    await rows.add_nodes(cpu_node("n0", cpu=1))
    await rows.see(workload("x"), workload("a"), workload("never", request(cpu=9)))
    await rows.match()
    await rows.see(
        workload("a", held_by="author"), workload("never", request(cpu=9), held_by="author")
    )
    assert await rows.states() == {"x": "Allocated", "a": "Held", "never": "Held"}
    await rows.match()
    await rows.check()
    await rows.see(workload("a"), workload("never", request(cpu=9)))
    await rows.match()
    assert (await rows.states())["never"] == "Unsatisfiable"
    assert (await rows.states())["a"] in {"Pending", "Reserved"}


async def test_held_by_a_user_stays_held_whatever_is_seen(rows: Rows) -> None:
    """Only a release ends it."""
    await rows.add_nodes(cpu_node("n0"))
    await rows.see(workload("a"))
    await rows.execute("UPDATE fluxjobs SET state = 'Held', held_by = 'alice'")
    await rows.see(workload("a", priority=3))
    await rows.see(workload("a", held_by="author"))
    await rows.see(workload("a", request(cpu=3)))
    await rows.match()
    assert await rows.states() == {"a": "Held"}
    assert await rows.value("SELECT held_by FROM fluxjobs") == "alice"


async def test_gone_is_told_and_is_not_forgotten(rows: Rows) -> None:
    """A row of a workload that no longer exists. One never seen is no error."""
    await rows.see(workload("a", pods=(pod("p"), pod("q"))))
    await effects(rows)
    async with rows.database.begin() as tx:
        await save_workloads(
            tx,
            (),
            {"a": WorkloadGone("default", (pod("q", is_terminating=True),)), "zz": WorkloadGone()},
        )
    assert (await effects(rows))["reconcile"] == ["a"]
    (row,) = await rows.fetch(
        "SELECT is_gone, is_deleting, observed ? 'wanted' AS wants_pods FROM fluxjobs"
    )
    assert row == {"is_gone": True, "is_deleting": True, "wants_pods": False}
    assert await rows.fetch("SELECT uid FROM pods") == [{"uid": "q"}]
    async with rows.database.begin() as tx:
        assert (await read_known(tx)).flux_uids == {"a": "flux-a"}, "a pod of it is still there"
    await rows.reconcile("a")
    async with rows.database.begin() as tx:
        assert (await read_known(tx)).flux_uids == {}


async def changes(rows: Rows) -> list[str]:
    """Node changes recorded for the matcher, then forgotten."""
    listed = await rows.fetch(
        "DELETE FROM graph_changes WHERE kind IN ('node', 'foreign') RETURNING key"
    )
    return sorted(row["key"] for row in listed)


async def test_only_real_changes_of_nodes_are_told(rows: Rows) -> None:
    """A heartbeat is none. A label, an amount, a condition is."""
    await rows.add_nodes(cpu_node("n0"), cpu_node("n1"))
    assert await changes(rows) == ["n0", "n1"]
    await rows.add_nodes(cpu_node("n0"), cpu_node("n1"))
    assert await changes(rows) == []
    await rows.add_nodes(cpu_node("n0", is_up=False), gone=("n1", "never-seen"))
    assert await changes(rows) == ["n0", "n1"]
    async with rows.database.begin() as tx:
        await save_nodes(tx, [], [])
    assert await changes(rows) == []


async def test_foreign_pods_are_told_by_their_nodes(rows: Rows) -> None:
    """Coming, being resized and going. The same again is nothing."""
    first = ForeignPod("x", "ns", "x", "n0", {CPU: 3})
    resized = ForeignPod("x", "ns", "x", "n0", {CPU: 4})

    async def save(*present: ForeignPod, gone: tuple[str, ...] = ()) -> list[str]:
        async with rows.database.begin() as tx:
            await save_foreign(tx, present, gone)
        return await changes(rows)

    assert await save(first) == ["n0"]
    assert await save(first) == []
    assert await save(resized) == ["n0"]
    assert await save(gone=("x", "y")) == ["n0"]


async def test_what_is_seen_and_what_is_gone_is_locked_in_one_order(rows: Rows) -> None:
    """A transaction locks one row, then the next, as settling and cycles do. Another that
    locked those that are there before those that are gone would wait for it, and it for them."""
    await rows.see(workload("a"), workload("b"))
    lock = "SELECT uid FROM fluxjobs WHERE uid = :uid FOR UPDATE"

    async def write() -> None:
        async with rows.database.begin() as tx:
            await save_workloads(tx, [workload("b", priority=3)], {"a": WorkloadGone("default")})

    async def is_waiting() -> bool:
        waits = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)"
        return bool(await rows.value(waits))

    async with rows.database.begin() as tx:
        await dicts(tx, lock, uid="a")
        writing = asyncio.create_task(write())
        await eventually(is_waiting, "the observation waits")
        await dicts(tx, lock, uid="b")
    await writing
    assert await rows.value("SELECT is_gone FROM fluxjobs WHERE uid = 'a'")
    assert await rows.value("SELECT observed -> 'priority' FROM fluxjobs WHERE uid = 'b'") == 3


async def test_who_writes_is_told_whether_anybody_waits_for_room(rows: Rows) -> None:
    """It decides how long the controller rests. A job that was not looked at yet does not count."""

    async def is_awaited() -> bool:
        async with rows.database.begin() as tx:
            return await save_workloads(tx, [workload("a")])

    await rows.add_nodes(cpu_node("n0", cpu=1))
    await rows.see(workload("a"))
    await rows.match()
    assert not await is_awaited()
    await rows.see(workload("b"))
    assert not await is_awaited()
    await rows.match()
    assert await rows.states() == {"a": "Allocated", "b": "Pending"}
    assert await is_awaited()


@pytest.mark.parametrize(
    ("gone", "state", "reason"),
    [
        (WorkloadGone("default", result="Completed"), "Completed", ""),
        (WorkloadGone("default", result="Failed", is_seen=False), "Failed", ""),
        (WorkloadGone("default"), "Cancelled", ""),
        (WorkloadGone("default", is_seen=False), "Cancelled", UNSEEN),
    ],
)
async def test_what_was_seen_last_decides_how_a_deleted_one_ended(
    rows: Rows, gone: WorkloadGone, state: str, reason: str
) -> None:
    """Where nothing watched the end and nothing tells it, the reason says that it is not known."""
    await rows.add_nodes(cpu_node("n0"))
    await rows.see(workload("a", pods=(pod("p"),)))
    await rows.match()
    await rows.reconcile("a")
    async with rows.database.begin() as tx:
        await save_workloads(tx, (), {"a": gone})
    await rows.reconcile("a")
    (row,) = await rows.fetch("SELECT state, reason FROM fluxjobs")
    assert row["state"] == state
    assert reason in row["reason"]
    (account,) = await rows.fetch("SELECT result FROM accounting")
    assert account["result"] == state


async def test_the_first_user_stays(rows: Rows) -> None:
    """Whatever the annotation says later: limits and shares count for that user."""
    await rows.see(workload("a", user_name="alice"))
    await rows.see(workload("a", user_name="bob", priority=3))
    assert await rows.fetch("SELECT user_name, observed -> 'priority' AS asked FROM fluxjobs") == [
        {"user_name": "alice", "asked": 3}
    ]
