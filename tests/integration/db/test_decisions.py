"""Cycles over rows: everything or nothing, in order, and never for what has ended meanwhile."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest

from fluxqueue.db.store.cluster_rows import save_foreign
from fluxqueue.db.store.decisions import store_decisions
from fluxqueue.db.task_queue import TaskName
from fluxqueue.errors import DatabaseUnavailable
from fluxqueue.fluxjob.node import ForeignPod
from fluxqueue.fluxjob.request import CPU
from fluxqueue.jobspec import Jobspec
from fluxqueue.scheduler.cycle_decisions import Decisions
from fluxqueue.scheduler.pending_job import PendingJob
from fluxqueue.worker import schedule
from tests.support.pool_model import placement, request
from tests.support.rows import Rows, amounts, cpu_node, pod, rebuilt, workload
from tests.support.sql import dicts


async def test_a_match_becomes_rows_and_effects(rows: Rows) -> None:
    """Allocation, slots, state, release. Ungate too where pods wait already."""
    await rows.add_nodes(cpu_node("n0"), cpu_node("n1"))
    await rows.see(workload("a", request(2, cpu=3, duration_s=60)), workload("b", pods=(pod("p"),)))
    await rows.match()
    assert await rows.states() == {"a": "Allocated", "b": "Allocated"}
    assert await rows.slots("a") == [(0, "n0", "free", None), (1, "n1", "free", None)]
    (one,) = await rows.fetch("SELECT starts_at, until, term FROM allocations WHERE uid = 'a'")
    assert one["until"] == one["starts_at"] + 60
    assert one["term"] == rows.term
    assert sorted(await rows.asked(TaskName.RELEASE)) == ["a", "b"]
    assert await rows.asked(TaskName.RECONCILE) == ["b"]
    await rows.check()


async def test_allocations_are_numbered_in_the_order_of_the_cycle(rows: Rows) -> None:
    """The first job in turn has the lower number, wherever its row lies."""
    await rows.add_nodes(cpu_node("n0"))
    await rows.see(workload("a"), workload("b"), workload("c", priority=5))
    await rows.match()
    found = await rows.fetch("SELECT uid FROM allocations ORDER BY id")
    assert [row["uid"] for row in found] == ["c", "a", "b"]


async def test_nobody_starts_before_he_is_submitted(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is submitted while the cycle that starts it has begun its transaction."""
    await rows.add_nodes(cpu_node("n0"))
    lock_queue = schedule.lock_queue

    async def submit_meanwhile(*given: Any) -> Any:
        await rows.see(workload("a"))
        return await lock_queue(*given)

    monkeypatch.setattr(schedule, "lock_queue", submit_meanwhile)
    await rows.match()
    (row,) = await rows.fetch("SELECT submitted_at, allocated_at FROM fluxjobs")
    assert row["submitted_at"] <= row["allocated_at"]


async def test_a_row_that_comes_late_and_is_locked_is_left_to_the_next_cycle(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It comes after the cycle has locked its rows. To wait for it could be a deadlock."""
    await rows.add_nodes(cpu_node("n0"))
    await rows.see(workload("a"))
    lock_queue = schedule.lock_queue
    async with AsyncExitStack() as other:

        async def come_late(*given: Any) -> Any:
            locked = await lock_queue(*given)
            if "late" not in await rows.states():
                await rows.see(workload("late"))
                tx = await other.enter_async_context(rows.database.begin())
                await dicts(tx, "SELECT 1 FROM fluxjobs WHERE uid = 'late' FOR UPDATE")
            return locked

        monkeypatch.setattr(schedule, "lock_queue", come_late)
        async with asyncio.timeout(30):
            await rows.match()
        assert await rows.states() == {"a": "Allocated", "late": "Pending"}
    await rows.match()
    assert await rows.states() == {"a": "Allocated", "late": "Allocated"}


async def test_all_or_nothing(rows: Rows) -> None:
    """Three of four slots fit: nothing is taken."""
    await rows.add_nodes(cpu_node("n0", cpu=3), cpu_node("n1", cpu=1, is_up=False))
    await rows.see(workload("a", request(4, cpu=1)))
    await rows.match()
    assert (await rows.states())["a"] in {"Pending", "Reserved"}, "busy: n1 is only down"
    assert await rows.fetch("SELECT 1 FROM allocation_slots") == []
    await rows.add_nodes(cpu_node("n1", cpu=1))
    await rows.match()
    assert await rows.states() == {"a": "Allocated"}


async def test_of_size_nothing_is_allocated_and_ends(rows: Rows) -> None:
    """A Job of parallelism 0 passes through all states without a slot."""
    await rows.add_nodes(cpu_node("n0"))
    await rows.see(workload("a", request(0, cpu=1)))
    await rows.match()
    assert await rows.states() == {"a": "Allocated"}
    await rows.check()
    await rows.see(workload("a", request(0, cpu=1), wanted=0, result="Completed"))
    await rows.reconcile("a")
    assert await rows.states() == {"a": "Completed"}
    await rows.check()


async def test_impossible_is_said_and_taken_back(rows: Rows) -> None:
    """At once, with the reason. A new node makes it possible, a lost one impossible again."""
    await rows.add_nodes(cpu_node("n0", cpu=2), cpu_node("n1", cpu=2))
    await rows.see(workload("full", request(2, cpu=2)), workload("a", request(cpu=3)))
    await rows.match()
    assert await rows.states() == {"full": "Allocated", "a": "Unsatisfiable"}
    assert "the largest of 2 nodes has 0.002" in await rows.value(
        "SELECT reason FROM fluxjobs WHERE uid = 'a'"
    )
    await rows.add_nodes(cpu_node("n2", cpu=3, is_up=False))
    await rows.match()
    assert (await rows.states())["a"] in {"Pending", "Reserved"}, "down is busy, not never"
    await rows.add_nodes(gone=("n2",))
    await rows.match()
    assert (await rows.states())["a"] == "Unsatisfiable"
    await rows.check()


async def test_beyond_the_depth_impossible_is_found_too(rows: Rows) -> None:
    """A node is lost while its job is far back: it must not block the queue when it comes up."""
    rows.settings = replace(rows.settings, queue_policy="fcfs", queue_depth=2)
    await rows.add_nodes(cpu_node("n0", cpu=2), cpu_node("big", cpu=9, is_up=False))
    await rows.see(*(workload(f"w{n}", request(cpu=2)) for n in range(3)))
    await rows.see(workload("large", request(cpu=9)), workload("last", request(cpu=2)))
    await rows.match()
    await rows.add_nodes(gone=("big",))
    await rows.match()
    for uid in ("w0", "w1", "w2"):
        assert (await rows.states())[uid] == "Allocated"
        await rows.see(workload(uid, request(cpu=2), wanted=0, result="Completed"))
        await rows.reconcile(uid)
        await rows.match()
    assert (await rows.states())["large"] == "Unsatisfiable"
    assert (await rows.states())["last"] == "Allocated"


async def test_a_rack_held_whole_is_held_whole_after_a_restart(rows: Rows) -> None:
    """Its nodes without a slot are its own, as long as the allocation lives."""
    await rows.see(workload("a"), workload("b"))
    await rows.add_nodes(cpu_node("n0", cpu=2), cpu_node("n1", cpu=2))
    await rows.begin_term()
    job = PendingJob("a", 1, 0, request(cpu=1))
    got = replace(placement(("n0", {CPU: 1})), held=("n0", "n1"))
    async with rows.database.begin() as tx:
        await store_decisions(tx, Decisions(allocated=[(job, got)]), term=rows.term)
    again = await rebuilt(rows)
    assert again.now.free[[again.rows["n0"], again.rows["n1"]], 0].tolist() == [0, 0]
    await rows.check()


async def test_a_job_that_ended_meanwhile_gets_nothing(rows: Rows) -> None:
    """Decided on an older snapshot: no allocation, no reservation, no state for what has ended."""
    await rows.see(workload("a"), workload("b"), workload("c"))
    await rows.begin_term()
    await rows.see(workload("a", is_deleting=True), workload("b", is_deleting=True), workload("c"))
    await rows.reconcile("a", "b")
    jobs = {uid: PendingJob(uid, 1, 0, request(cpu=1)) for uid in "abc"}
    got = placement(("n0", {CPU: 1}), starts_at=10)
    decided = Decisions(
        allocated=[(jobs["a"], got)],
        reserved=[(jobs["b"], got)],
        waiting=[(jobs["c"], "waits")],
    )
    async with rows.database.begin() as tx:
        assert await store_decisions(tx, decided, term=rows.term) == {"a"}
    assert await rows.states() == {"a": "Cancelled", "b": "Cancelled", "c": "Pending"}
    assert await rows.fetch("SELECT 1 FROM allocations") == []
    await rows.check()


async def test_reservations_follow_the_queue(rows: Rows) -> None:
    """Made for the head, shown with a start, given up for a higher one, gone when it ends."""
    rows.settings = replace(rows.settings, queue_depth=2)
    await rows.add_nodes(cpu_node("n0", cpu=2))
    await rows.see(workload("run", request(cpu=2, duration_s=50)), workload("a", request(cpu=2)))
    await rows.match()
    assert (await rows.states())["a"] == "Reserved"
    expected = await rows.value(
        "SELECT extract(epoch FROM expected_start)::bigint FROM fluxjobs WHERE uid = 'a'"
    )
    assert expected == rows.clock.now_s() + 50
    await rows.check()
    # Two of a higher priority push it out of the cycle's view.
    await rows.see(*(workload(f"h{n}", request(cpu=2), priority=5) for n in range(2)))
    await rows.match()
    states = await rows.states()
    assert states["h0"] == "Reserved"
    assert states["a"] == "Pending"
    await rows.check()
    await rows.see(workload("h0", request(cpu=2), priority=5, is_deleting=True))
    await rows.reconcile("h0")
    await rows.check()
    assert (
        await rows.value(
            "SELECT count(*) FROM procrastinate.procrastinate_jobs WHERE task_name = 'schedule'"
        )
        == 1
    )


async def test_a_cycle_without_news_writes_nothing(rows: Rows) -> None:
    """The same queue again: no version moves, nothing is published."""
    await rows.add_nodes(cpu_node("n0", cpu=2))
    await rows.see(*(workload(f"j{n}", request(cpu=2, duration_s=50)) for n in range(4)))
    await rows.match()
    await rows.match()  # now that nothing starts any more, they show when to expect it
    before = await rows.fetch("SELECT uid, version, reason FROM fluxjobs ORDER BY uid")
    await rows.forget_tasks()
    await rows.match()
    assert await rows.fetch("SELECT uid, version, reason FROM fluxjobs ORDER BY uid") == before
    assert await rows.fetch("SELECT 1 FROM procrastinate.procrastinate_jobs") == []


async def test_a_cycle_that_cannot_commit_decides_nothing(rows: Rows) -> None:
    """The connection breaks at the end: rows as before, and the next cycle starts from rows."""
    await rows.add_nodes(cpu_node("n0"))
    await rows.match()
    await rows.see(workload("a"))
    assert rows.matcher is not None
    real = rows.matcher._decide

    async def break_at_the_end(tx: object) -> bool:
        await real(tx)  # type: ignore[arg-type]
        await tx.execute(  # type: ignore[attr-defined]
            "SELECT pg_terminate_backend(pg_backend_pid())"
        )
        return False

    rows.matcher._decide = break_at_the_end  # type: ignore[method-assign, assignment]
    with pytest.raises(DatabaseUnavailable):
        await rows.matcher.run()
    assert await rows.states() == {"a": "Pending"}
    assert await rows.is_cycle_asked()
    rows.matcher._decide = real  # type: ignore[method-assign]
    await rows.matcher.run()
    assert await rows.states() == {"a": "Allocated"}
    assert amounts(rows.matcher._matcher.ledger) == amounts(await rebuilt(rows))  # type: ignore[arg-type]


async def test_foreign_use_over_capacity_stops_only_that_node(rows: Rows) -> None:
    """Others took more than there is: nothing of ours goes there until they leave."""
    await rows.add_nodes(cpu_node("n0"), cpu_node("n1"))
    async with rows.database.begin() as tx:
        await save_foreign(tx, [ForeignPod(f"x{n}", "ns", "x", "n0", {CPU: 3}) for n in (1, 2)], [])
    await rows.see(workload("a", request(2, cpu=2)))
    await rows.match()
    assert [slot[1] for slot in await rows.slots("a")] == ["n1", "n1"]
    await rows.see(workload("b", request(cpu=4)))
    await rows.match()
    assert (await rows.states())["b"] != "Allocated"
    async with rows.database.begin() as tx:
        await save_foreign(tx, [], ["x1", "x2"])
    await rows.match()
    assert (await rows.states())["b"] == "Allocated"
    await rows.check()


async def test_deep_queues_are_examined_to_their_end(rows: Rows) -> None:
    """More than one cycle examines or looks at: all that fit start, without another wake-up."""
    rows.settings = replace(rows.settings, queue_depth=10)
    await rows.add_nodes(cpu_node("n0", cpu=45))
    asked: Jobspec = request(cpu=1)
    await rows.see(*(workload(f"j{n:03}", asked) for n in range(50)))
    await rows.match()
    states = list((await rows.states()).values())
    assert states[:45] == ["Allocated"] * 45
    assert set(states[45:]) <= {"Pending", "Reserved"}


async def test_observing_settling_and_matching_at_once_never_deadlock(rows: Rows) -> None:
    """Three writers over the same rows in different orders: none is a victim."""
    await rows.add_nodes(*(cpu_node(f"n{n}", cpu=8) for n in range(4)))
    uids = [f"{n * 7919 % 100:02}" for n in range(60)]
    await rows.see(*(workload(uid, pods=(pod(f"p{uid}"),)) for uid in uids))
    await rows.begin_term()
    before = await rows.value(
        "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    )

    async def observe(step: int) -> None:
        for n in range(12):
            some = uids[(step * 17 + n * 5) % 40 :][:20]
            await rows.see(
                *(
                    workload(uid, pods=(pod(f"p{uid}"),), priority=(n + step) % 3)
                    for uid in (some if n % 2 else reversed(some))
                )
            )

    async def reconcile_all() -> None:
        for n in range(12):
            await rows.reconcile(*(uids[n:] + uids[:n])[:30])

    async def match_all() -> None:
        for _ in range(12):
            assert rows.matcher is not None
            await rows.matcher.run()

    await asyncio.gather(observe(0), reconcile_all(), match_all(), observe(1), reconcile_all())
    await rows.check()
    await asyncio.sleep(0)
    after = await rows.value(
        "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    )
    assert after == before
