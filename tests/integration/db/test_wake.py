"""Waking tasks: never lost, whatever is waiting or running at that moment."""

from __future__ import annotations

import asyncio

import pytest
from procrastinate.jobs import Status

from fluxqueue.db import outbox
from fluxqueue.db.database import Database, Transaction
from fluxqueue.db.task_queue import TaskName
from tests.support.rows import Rows, cpu_node, workload


async def waiting(database: Database) -> list[str]:
    """Names of the tasks that wait to be fetched."""
    async with database.begin() as tx:
        rows = await tx.fetch(
            "SELECT task_name FROM procrastinate.procrastinate_jobs WHERE status = 'todo'"
            " ORDER BY task_name"
        )
    return [row["task_name"] for row in rows]


async def fetch_and_run(database: Database) -> None:
    """What a worker does: fetch the schedule task, run it to its end."""
    manager = database.app.job_manager
    worker = await manager.register_worker()
    job = await manager.fetch_job(["schedule"], worker)
    assert job is not None
    await manager.finish_job(job, Status.SUCCEEDED, delete_job=True)


async def test_asking_often_is_one_waiting_task(database: Database) -> None:
    """A burst is one task."""
    for _ in range(5):
        await database.wake(TaskName.SCHEDULE, TaskName.STATUS)
    assert await waiting(database) == ["schedule", "status"]


async def test_asking_in_a_transaction_commits_with_it(database: Database) -> None:
    """A rolled back transaction leaves no task."""

    async def ask_and_fail() -> None:
        async with database.begin() as tx:
            tx.wake(TaskName.RELEASE)
            await tx.defer_tasks()
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await ask_and_fail()
    assert await waiting(database) == []
    async with database.begin() as tx:
        tx.wake(TaskName.RELEASE)
    assert await waiting(database) == ["release"]


async def fetched_before_the_commit(database: Database) -> None:
    """The race: what was waiting is run to its end between our asking and our commit."""
    async with database.begin() as tx:
        tx.wake(TaskName.SCHEDULE)
        await tx.defer_tasks()
        await fetch_and_run(database)
        assert await waiting(database) == []


async def test_a_task_fetched_before_our_commit_is_asked_for_again(database: Database) -> None:
    """The fetched run could not see our rows; after the commit another one waits."""
    await database.wake(TaskName.SCHEDULE)
    await fetched_before_the_commit(database)
    assert await waiting(database) == ["schedule"]


async def test_without_the_second_wake_the_race_loses_it(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same interleaving with the counter-measure taken away: nobody will look."""
    await database.wake(TaskName.SCHEDULE)

    async def nothing(tx: Transaction) -> None:
        """No second wake."""

    monkeypatch.setattr(Transaction, "wake_again", nothing)
    await fetched_before_the_commit(database)
    assert await waiting(database) == []


async def test_two_transactions_that_ask_at_once_do_not_wait_for_each_other(
    database: Database,
) -> None:
    """Tasks are deferred at the commit, so a long cycle holds up nobody who wants the same."""
    async with database.begin() as first:
        first.wake(TaskName.SCHEDULE)

        async def second() -> None:
            async with database.begin() as tx:
                tx.wake(TaskName.SCHEDULE)

        other = asyncio.create_task(second())
        done, _ = await asyncio.wait([other], timeout=30)
        is_blocked = not done
    await other
    assert await waiting(database) == ["schedule"]
    assert not is_blocked, "a wish to wake waits for a stranger's transaction"


async def test_the_sweep_finds_what_a_crash_between_commit_and_wake_left(rows: Rows) -> None:
    """Rows alone say what is due: every task whose wake-up was lost is named."""
    assert await outbox.due_tasks(rows.database) == []
    await rows.add_nodes(cpu_node("n0"))
    await rows.see(workload("a"))
    await rows.execute("DELETE FROM procrastinate.procrastinate_jobs")
    assert set(await outbox.due_tasks(rows.database)) == {TaskName.STATUS, TaskName.SCHEDULE}
    await rows.match()
    assert set(await outbox.due_tasks(rows.database)) == {TaskName.STATUS, TaskName.RELEASE}
