"""Tasks: deferred with what needs them, never lost, whatever else commits, fetches or dies."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import datetime, timedelta
from functools import partial
from itertools import pairwise, takewhile

import procrastinate
import procrastinate.testing
import psycopg
import pytest
from procrastinate.jobs import Status
from procrastinate.periodic import PeriodicDeferrer

from fluxqueue.clock import SystemClock
from fluxqueue.db.database import Database
from fluxqueue.db.doorbell import Doorbell
from fluxqueue.db.engine import libpq_url
from fluxqueue.db.store.cluster_rows import save_foreign
from fluxqueue.db.store.desired_state import Released, finish, read_pending_releases
from fluxqueue.db.store.pending_actions import sweep
from fluxqueue.db.store.statuses import read_due_statuses
from fluxqueue.db.task_queue import CROWDED, TaskName, app_on, every, rescue_stalled
from fluxqueue.fluxjob.node import ForeignPod
from fluxqueue.fluxjob.request import CPU
from fluxqueue.process.pacing import STATUS_CALM
from tests.support.pool_model import request
from tests.support.rows import Rows, cpu_node, pod, settings_for, workload
from tests.support.sql import dicts
from tests.support.waiting import eventually

_WRITTEN_AT = "(published ->> 'written_at')::timestamptz"
_WRITTEN_NOW = (
    "published = published || jsonb_build_object('version', version, 'written_at', now())"
)


async def swept(rows: Rows) -> dict[str, int]:
    """What a sweep without patience defers."""
    async with rows.database.begin() as tx:
        return dict(await sweep(tx))


async def test_what_is_owed_and_its_task_are_one_transaction(rows: Rows) -> None:
    """A rolled back transaction leaves neither. A committed one both."""
    await rows.see(workload("a"))
    await rows.forget_tasks()

    async def owe_and_fail() -> None:
        async with rows.database.begin() as tx:
            await tx.execute("UPDATE fluxjobs SET release_at = now()")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await owe_and_fail()
    assert await rows.asked(TaskName.RELEASE) == []
    await rows.execute("UPDATE fluxjobs SET release_at = now()")
    assert await rows.asked(TaskName.RELEASE) == ["a"]


async def test_many_are_batches(rows: Rows) -> None:
    """A task is for a few dozen, from any source."""
    await rows.see(*(workload(f"j{n:03}") for n in range(120)))
    await rows.forget_tasks()
    await rows.execute("UPDATE fluxjobs SET reconcile_at = now()")
    sizes = await rows.fetch(
        "SELECT jsonb_array_length(args -> 'uids') AS size FROM procrastinate.procrastinate_jobs"
    )
    assert sorted(row["size"] for row in sizes) == [20, 50, 50]
    assert len(set(await rows.asked(TaskName.RECONCILE))) == 120


async def test_the_first_of_each_namespace_come_before_the_rest_of_another(rows: Rows) -> None:
    """A tenant with a thousand starts at once does not delay the next start of others."""
    many = [workload(f"many-{n}", namespace="crowd") for n in range(130)]
    await rows.see(*many, workload("one", namespace="quiet"))
    await rows.forget_tasks()
    await rows.execute("UPDATE fluxjobs SET release_at = now() WHERE namespace = 'crowd'")
    await rows.execute("UPDATE fluxjobs SET release_at = now() WHERE uid = 'one'")
    await rows.execute("UPDATE fluxjobs SET reconcile_at = now()")
    found = await rows.fetch(
        "SELECT queue_name, task_name, args -> 'uids' AS uids FROM procrastinate.procrastinate_jobs"
        " WHERE queue_name IN ('effects', 'crowded') AND status = 'todo' ORDER BY priority DESC, id"
    )
    first = [row for row in found if row["queue_name"] == "effects"]
    before = list(takewhile(lambda row: "one" not in row["uids"], first))
    assert sum(len(row["uids"]) for row in before) == 20
    assert not any("one" in row["uids"] for row in found if row["queue_name"] == "crowded")
    for task in (TaskName.RELEASE, TaskName.RECONCILE):
        asked = [uid for row in found if row["task_name"] == task for uid in row["uids"]]
        assert sorted(asked) == sorted([*(f"many-{n}" for n in range(130)), "one"])


DEFER = "SELECT fluxqueue_defer('reconcile', CAST(:uids AS text[]), :at, is_blocked => :is_blocked)"


async def defer_looks(
    rows: Rows, *uids: str, at: datetime | None = None, is_blocked: bool = True
) -> None:
    """Defer looks at these jobs in one transaction, as a job does that others wait for."""
    await rows.fetch(DEFER, uids=list(uids), at=at, is_blocked=is_blocked)


class Crowd:
    """Jobs of a few namespaces, and one worker of the queue of crowds."""

    def __init__(self, rows: Rows, namespaces: Sequence[str], jobs: int) -> None:
        self.rows = rows
        self.uids = {name: [f"{name}-{n}" for n in range(jobs)] for name in namespaces}
        self.manager = rows.database.app.job_manager
        self.worker: int | None = None

    async def see(self) -> None:
        """Write the rows, and lose the tasks of their creation."""
        seen = [workload(uid, namespace=name) for name, uids in self.uids.items() for uid in uids]
        await self.rows.see(*seen)
        await self.rows.forget_tasks()
        self.worker = await self.manager.register_worker()

    async def fetch(self) -> list[str]:
        """Take and finish the next task. Returns its jobs."""
        assert self.worker is not None
        task = await self.manager.fetch_job([CROWDED], self.worker)
        if task is None:  # it took the last one before, and has heard of no other
            task = await self.manager.fetch_job([CROWDED], self.worker)
        assert task is not None, "no task waits"
        await self.manager.finish_job(task, Status.SUCCEEDED, delete_job=True)
        uids: list[str] = task.task_kwargs["uids"]
        return uids


async def test_a_look_of_one_namespace_comes_before_the_thousands_of_another(rows: Rows) -> None:
    """However many transactions the thousands came in, and whatever of them has been done."""
    crowd = Crowd(rows, ["crowd", "quiet"], 60)
    await crowd.see()
    many = crowd.uids["crowd"]
    for _ in range(10):
        await defer_looks(rows, *many * 10)  # 12 tasks in one go
    for n in range(200):
        await defer_looks(rows, many[n % 60])
    for _ in range(40):
        assert set(await crowd.fetch()) <= set(many)
    await defer_looks(rows, "quiet-0")
    await defer_looks(rows, "quiet-1")
    found = [await crowd.fetch() for _ in range(4)]
    assert ["quiet-0"] in found[:2]
    assert ["quiet-1"] in found, "the next one of it has the next turn"


async def test_what_is_due_later_puts_off_nothing_that_is_due_now(rows: Rows) -> None:
    """A thousand begin times of the same namespace, and releases beside its looks."""
    crowd = Crowd(rows, ["crowd", "quiet"], 60)
    await crowd.see()
    begin = await rows.value("SELECT now() + interval '1 h'")
    for _ in range(20):
        await defer_looks(rows, *crowd.uids["quiet"], at=begin)
        await defer_looks(rows, *crowd.uids["crowd"])
    await defer_looks(rows, "quiet-7")
    await defer_looks(rows, *crowd.uids["quiet"], is_blocked=False)
    found = [await crowd.fetch() for _ in range(4)]
    assert ["quiet-7"] in found
    assert crowd.uids["quiet"][20:] in found, "looks at jobs that wait come after the others"
    assert found.index(crowd.uids["quiet"][20:]) < found.index(["quiet-7"])


@pytest.mark.parametrize("seed", range(2))
async def test_namespaces_take_turns_among_crowded_tasks(rows: Rows, seed: int) -> None:
    """Whatever comes when: one task waits for at most two of each other lane, and none is lost."""
    chance = random.Random(seed)
    crowd = Crowd(rows, names := [f"n{n}" for n in range(4)], 30)
    await crowd.see()
    waiting: Counter[str] = Counter()
    passed: Counter[str] = Counter()
    for _ in range(80):
        name = chance.choices(names, (60, 5, 3, 1))[0]
        is_first = not waiting[name]
        uids = chance.sample(crowd.uids[name], chance.choice((1, 1, 30)))
        times = chance.choice((1, 1, 4))
        await defer_looks(rows, *uids * times)
        waiting[name] += -(-len(uids) * times // 50)
        if is_first:
            passed[name] = 0
        for _ in range(chance.choice((0, 1, 2))):
            if not waiting.total():
                break
            (uid, *_) = await crowd.fetch()
            done = uid.partition("-")[0]
            waiting[done] -= 1
            passed.update(other for other in names if other != done and waiting[other])
            assert passed[done] <= 2 * len(names), f"{done} waited for {passed[done]} others"
            passed[done] = 0
    while waiting.total():
        (uid, *_) = await crowd.fetch()
        waiting[uid.partition("-")[0]] -= 1
    left = "SELECT count(*) FROM procrastinate.procrastinate_jobs WHERE queue_name = 'crowded'"
    assert await rows.value(left) == 0


async def test_the_turn_of_a_task_is_found_by_index(rows: Rows) -> None:
    """A thousand waiting tasks make the next one no dearer."""
    crowd = Crowd(rows, ["crowd"], 1)
    await crowd.see()
    for _ in range(5):
        await defer_looks(rows, *crowd.uids["crowd"] * 10_000)
    await rows.execute("ANALYZE procrastinate.procrastinate_jobs")
    for look in (
        "scheduled_at IS NULL ORDER BY priority DESC LIMIT 1",
        "args ->> 'lane' = 'crowd/0' ORDER BY priority LIMIT 1",
    ):
        plan = await rows.fetch(
            "EXPLAIN SELECT priority FROM procrastinate.procrastinate_jobs"
            f" WHERE queue_name = 'crowded' AND status = 'todo' AND {look}"
        )
        assert "fluxqueue_crowded" in plan[0]["QUERY PLAN"] + plan[1]["QUERY PLAN"], plan


async def test_a_state_that_is_overtaken_owes_one_status(rows: Rows) -> None:
    """From its submission to its nodes within a moment: one task, and two seconds from then on."""
    await rows.add_nodes(cpu_node("n0"))
    await rows.see(workload("a"))
    assert await rows.asked(TaskName.STATUS) == ["a"]
    await rows.match()
    assert await rows.value("SELECT status_due_at IS NULL FROM fluxjobs"), "its release tells"
    await rows.execute(f"UPDATE fluxjobs SET release_at = NULL, {_WRITTEN_NOW}")
    await rows.execute("UPDATE fluxjobs SET state = 'Running'")
    assert await rows.value(f"SELECT status_due_at >= {_WRITTEN_AT} + interval '2 s' FROM fluxjobs")
    assert await rows.asked(TaskName.STATUS) == ["a", "a"]


async def test_a_release_that_told_no_status_leaves_it_owed(rows: Rows) -> None:
    """While it is under way no other worker writes the same. When it is done without, one does."""
    await rows.add_nodes(cpu_node("n0"))
    await rows.see(workload("a"))
    await rows.match()
    await rows.forget_tasks()
    await rows.execute("UPDATE fluxjobs SET release_at = NULL")
    assert await rows.asked(TaskName.STATUS) == ["a"]


@pytest.mark.parametrize(("setting", "seconds"), [(0.2, 0.2), (2.0, 2.0), (30.0, 30.0)])
async def test_how_often_a_status_is_told_is_a_setting(
    database_url: str, setting: float, seconds: float
) -> None:
    """By every connection of ours. A pause no longer than said and the quarter it is rounded to."""
    settings = settings_for(database_url, status_interval_s=setting)
    async with Database(settings, role="test") as database, database.begin() as tx:
        (row,) = await dicts(
            tx,
            "SELECT extract(epoch FROM fluxjob_status_due_at(now(), 1) - now()) AS pause,"
            " extract(epoch FROM fluxjob_status_due_at(now(), 0.5) - now()) AS of_its_end",
        )
    assert seconds <= row["pause"] <= 1.25 * seconds
    assert seconds / 2 <= row["of_its_end"] <= 0.75 * seconds


async def test_whoever_connects_without_our_settings_means_two_seconds(database_url: str) -> None:
    """psql, for one."""
    async with await psycopg.AsyncConnection.connect(libpq_url(database_url)) as connection:
        found = await connection.execute(
            "SELECT extract(epoch FROM fluxjob_status_due_at(now(), 1) - now())"
        )
        (pause,) = await found.fetchone() or (0,)
    assert 2 <= pause <= 2.5


async def test_an_end_is_told_sooner(rows: Rows) -> None:
    """A waiting worker waits a second at most."""
    await rows.see(workload("a"))
    await rows.execute(f"UPDATE fluxjobs SET {_WRITTEN_NOW}")
    await rows.execute("UPDATE fluxjobs SET state = 'Cancelled', ended_at = now()")
    assert await rows.value(
        f"SELECT status_due_at < {_WRITTEN_AT} + interval '1.6 s' FROM fluxjobs"
    )


_TOLD_TO_HAVE_STARTED = (
    "UPDATE fluxjobs SET release_at = NULL, published = published || jsonb_build_object("
    "'version', version, 'written_at', now() - interval '2.5 s'),"
    " allocated_at = now() - interval '3 s'"
)
_COME_TO_RUN = "UPDATE fluxjobs SET state = 'Running', started_at = now(), status_due_at = now()"
_DUE = f"""
SELECT extract(epoch FROM status_due_at - {_WRITTEN_AT}) AS due FROM fluxjobs ORDER BY uid
"""


_TEN_SECONDS_LATER = (
    "UPDATE fluxjobs SET published = published || jsonb_build_object("
    f"'written_at', {_WRITTEN_AT} - interval '10 s'),"
    " allocated_at = allocated_at - interval '10 s'"
)
_START_PUT_OFF = "UPDATE fluxjobs SET published = published - 'version', status_due_at = now()"


async def _start(rows: Rows, number: int, change: str = _COME_TO_RUN) -> list[str]:
    """Jobs with a reported start that run: when that must be reported, it is due."""
    uids = [f"j{n}" for n in range(number)]
    await rows.add_nodes(cpu_node("n0", cpu=64))
    await rows.see(*(workload(uid) for uid in uids))
    await rows.match()
    await rows.execute(_TOLD_TO_HAVE_STARTED)
    await rows.execute(change)
    await rows.forget_tasks()
    return uids


async def test_that_few_run_is_told_when_it_is_due(rows: Rows) -> None:
    uids = await _start(rows, STATUS_CALM)
    assert {one.uid for one in await read_due_statuses(rows.database, uids)} == set(uids)


async def test_that_many_run_is_told_where_it_lasts(rows: Rows) -> None:
    """Ten seconds after their start was reported. Jobs that ended by then report that."""
    uids = await _start(rows, STATUS_CALM + 1)
    assert await read_due_statuses(rows.database, uids) == []
    assert all(10 <= row["due"] <= 10.5 for row in await rows.fetch(_DUE))
    assert sorted(await rows.asked(TaskName.STATUS)) == uids

    await rows.forget_tasks()
    await rows.execute("UPDATE fluxjobs SET state = 'Completed', ended_at = now() WHERE uid = 'j0'")
    assert await rows.asked(TaskName.STATUS) == ["j0"], "of its end nobody has to wait"
    assert (await rows.fetch(_DUE))[0]["due"] < 10

    await rows.execute(_TEN_SECONDS_LATER)
    await rows.execute("UPDATE fluxjobs SET status_due_at = now()")
    assert {one.uid for one in await read_due_statuses(rows.database, uids)} == set(uids)


async def test_a_start_that_was_put_off_is_told_where_it_lasts(rows: Rows) -> None:
    """Of those with pods that do not come to run later, looked at every ten seconds."""
    uids = await _start(rows, STATUS_CALM + 1, _START_PUT_OFF)
    for is_last in (False, False, True):
        before = await rows.value("SELECT now()")
        assert await read_due_statuses(rows.database, uids) == []
        after = await rows.value("SELECT now()")
        for row in await rows.fetch(
            f"SELECT status_due_at, {_WRITTEN_AT} AS written_at FROM fluxjobs"
        ):
            first, last = (row["written_at"],) * 2 if is_last else (before, after)
            wait_s = 30 if is_last else 10
            assert first + timedelta(seconds=wait_s) <= row["status_due_at"]
            assert row["status_due_at"] <= last + timedelta(seconds=wait_s + 0.5)
        await rows.execute(_TEN_SECONDS_LATER)
        await rows.execute("UPDATE fluxjobs SET status_due_at = now()")
    assert {one.uid for one in await read_due_statuses(rows.database, uids)} == set(uids)


async def test_a_start_that_was_put_off_is_told_with_the_next_look_once_it_runs(rows: Rows) -> None:
    uids = await _start(rows, STATUS_CALM + 1, _START_PUT_OFF)
    await rows.execute(_TEN_SECONDS_LATER)
    await rows.execute(_COME_TO_RUN)
    assert {one.uid for one in await read_due_statuses(rows.database, uids)} == set(uids)


async def test_coming_to_run_brings_nothing_forward_that_was_put_off(rows: Rows) -> None:
    """A release that puts off its status says until when. One with more to report is due sooner."""
    await rows.add_nodes(cpu_node("n0"))
    await rows.see(workload("a"))
    await rows.match()
    (pending,) = await read_pending_releases(rows.database, ["a"])
    made = Released(pending, is_made=True, generation=2, pinned_to="n0", is_put_off=True)
    await finish(rows.database, [made])
    due = (await rows.fetch(_DUE))[0]["due"]
    assert 10 <= due <= 10.5
    await rows.execute("UPDATE fluxjobs SET state = 'Running', started_at = now()")
    assert (await rows.fetch(_DUE))[0]["due"] == due
    await rows.execute("UPDATE fluxjobs SET reason = 'is preempted for job 7'")
    assert (await rows.fetch(_DUE))[0]["due"] < 3


async def test_who_ends_while_others_are_put_off_is_told_of(rows: Rows) -> None:
    """Its task is taken along: the worker that takes it must report, or none does for a while."""
    uids = await _start(rows, STATUS_CALM + 1)
    waits = (
        "SELECT FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%along AS%'"
    )
    async with rows.database.begin() as tx:
        await tx.execute(
            "UPDATE fluxjobs SET state = 'Completed', ended_at = now() WHERE uid = 'j0'"
        )
        reading = asyncio.create_task(read_due_statuses(rows.database, uids))
        await eventually(lambda: rows.fetch(waits), "it waits for who ends him")
    assert [one.uid for one in await reading] == ["j0"]


async def test_who_has_more_to_tell_is_not_put_off(rows: Rows) -> None:
    """What runs and has to leave says so."""
    uids = await _start(rows, STATUS_CALM + 2)
    await rows.execute("UPDATE fluxjobs SET reason = 'is preempted for job 7' WHERE uid = 'j1'")
    assert [one.uid for one in await read_due_statuses(rows.database, uids)] == ["j1"]


async def test_a_fluxjob_that_was_made_again_owes_its_status(rows: Rows) -> None:
    """The new object shows nothing. The row says so by itself."""
    await rows.see(workload("a"))
    await rows.execute(f"UPDATE fluxjobs SET {_WRITTEN_NOW}")
    await rows.forget_tasks()
    await rows.see(workload("a", flux_uid="another"))
    assert await rows.asked(TaskName.STATUS) == ["a"]
    await rows.execute(f"UPDATE fluxjobs SET {_WRITTEN_NOW}")
    await rows.see(workload("a", flux_uid="another"))
    assert await rows.value("SELECT status_due_at FROM fluxjobs") is None


async def fetch_and_finish(database: Database) -> None:
    """What a worker does around a task that does nothing."""
    manager = database.app.job_manager
    task = await manager.fetch_job(["schedule"], await manager.register_worker())
    assert task is not None
    await manager.finish_job(task, Status.SUCCEEDED, delete_job=True)


async def test_the_end_of_a_task_is_written_though_the_session_breaks_over_it(rows: Rows) -> None:
    """Its loop may not notice, and its worker lives: no other would take the task from it."""
    await rows.see(workload("a"))
    manager = rows.database.app.job_manager
    task = await manager.fetch_job(["schedule"], await manager.register_worker())
    assert task is not None
    held = (
        "SELECT pid FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND query LIKE '%finish_job%'"
    )
    async with rows.database.begin() as tx:
        await tx.execute("LOCK TABLE procrastinate.procrastinate_jobs IN ACCESS EXCLUSIVE MODE")
        finishing = asyncio.create_task(manager.finish_job(task, Status.SUCCEEDED, delete_job=True))
        (found,) = await eventually(lambda: rows.fetch(held), "its end is being written")
        await rows.fetch("SELECT pg_terminate_backend(:pid)", pid=found["pid"])
        (found,) = await eventually(lambda: rows.fetch(held), "it is tried again")
    await finishing
    doing = "SELECT count(*) FROM procrastinate.procrastinate_jobs WHERE status = 'doing'"
    assert await rows.value(doing) == 0


async def test_a_cycle_takes_all_wishes_for_one_with_it(rows: Rows) -> None:
    """As many tasks as there were transactions. One look serves them all."""
    for number in range(4):
        await rows.see(workload(f"j{number}"))
    assert await rows.is_cycle_asked()
    await rows.match()
    assert not await rows.is_cycle_asked()
    await rows.see(workload("later"))
    assert await rows.is_cycle_asked()


async def test_a_wish_that_commits_during_a_cycle_stays(rows: Rows) -> None:
    """A task that runs to its end before a commit cannot have seen it: another is there."""
    async with rows.database.begin() as tx:
        await rows.database.wake_matcher()
        await tx.wake_matcher()
        await fetch_and_finish(rows.database)
        assert not await rows.is_cycle_asked()
    assert await rows.is_cycle_asked()


async def test_what_is_given_back_while_nobody_waits_wakes_no_cycle(rows: Rows) -> None:
    """It lies there, not as something lost, until a worker comes. Its cycle takes it in."""
    await rows.add_nodes(cpu_node("n0", cpu=2))
    asked = request(1, cpu=2)
    await rows.see(workload("a", asked))
    await rows.match()
    await rows.take_tasks(*TaskName)
    await rows.see(workload("a", asked, result="Completed"))
    await rows.reconcile("a")
    assert await rows.value("SELECT count(*) FROM graph_changes") > 0
    assert not await rows.is_cycle_asked()
    assert "schedule" not in await swept(rows)
    await rows.see(workload("b", asked))
    assert await rows.is_cycle_asked()
    await rows.match()
    assert (await rows.states())["b"] == "Allocated"


async def test_what_others_take_wakes_a_cycle_for_who_waits_alone(rows: Rows) -> None:
    """But for what stays on its node for good: that decides what can ever run."""
    await rows.add_nodes(cpu_node("n0", cpu=2))
    await rows.match()
    await rows.take_tasks(*TaskName)
    await _others(rows, ForeignPod("f", "ns", "f", "n0", {CPU: 2}))
    assert not await rows.is_cycle_asked()
    assert "schedule" not in await swept(rows)
    await _others(rows, ForeignPod("agent", "ns", "agent", "n0", {}, is_permanent=True))
    assert await rows.is_cycle_asked()
    await rows.see(workload("a", request(1, cpu=2)))
    await rows.match()
    assert (await rows.states())["a"] != "Allocated"
    await rows.take_tasks(*TaskName)
    await _others(rows, gone=["f"])
    assert await rows.is_cycle_asked()
    await rows.match()
    assert (await rows.states())["a"] == "Allocated"


async def test_what_nobody_asks_for_does_not_grow_for_ever(rows: Rows) -> None:
    await rows.execute(
        "INSERT INTO graph_changes (kind, key) SELECT 'foreign', 'n0' FROM generate_series(1, 1001)"
    )
    assert not await rows.is_cycle_asked()
    assert (await swept(rows))["schedule"] == 1


async def _others(rows: Rows, *present: ForeignPod, gone: Sequence[str] = ()) -> None:
    async with rows.database.begin() as tx:
        await save_foreign(tx, present, gone)


async def test_what_is_given_back_wakes_a_cycle_for_who_waits(rows: Rows) -> None:
    """Found by the transaction that gives it back, or, if it was overtaken, by the sweep."""
    await rows.add_nodes(cpu_node("n0", cpu=2))
    asked = request(1, cpu=2)
    await rows.see(workload("a", asked), workload("b", asked))
    await rows.match()
    await rows.take_tasks(*TaskName)
    await rows.see(workload("a", asked, result="Completed"))
    await rows.reconcile("a")
    assert await rows.is_cycle_asked()
    await rows.forget_tasks()
    assert (await swept(rows))["schedule"] == 1
    await rows.match()
    assert (await rows.states())["b"] == "Allocated"


async def test_two_transactions_that_ask_at_once_do_not_wait_for_each_other(rows: Rows) -> None:
    """Asking takes no lock, so it may be done anywhere in a transaction."""
    async with rows.database.begin() as first:
        await first.wake_matcher()
        await asyncio.wait_for(rows.database.wake_matcher(), 30)


async def test_wishes_do_not_pile_up_where_nobody_matches(rows: Rows) -> None:
    """A queue without a matcher grows by what waits in it, not by tasks."""
    for _ in range(30):
        await rows.database.wake_matcher()
    number = await rows.value("SELECT count(*) FROM procrastinate.procrastinate_jobs")
    assert number == 20


async def test_the_sweep_finds_what_lost_its_task(rows: Rows) -> None:
    """The rows alone say what is pending. What has a task is left to it."""
    assert await swept(rows) == {}
    await rows.add_nodes(cpu_node("n0"))
    await rows.see(workload("a"))
    await rows.forget_tasks()
    assert await swept(rows) == {"schedule": 1}
    await rows.match()
    await rows.see(workload("a", pods=(pod("p"),)))
    await rows.forget_tasks()
    assert await swept(rows) == {"release": 1, "reconcile": 1}
    assert await swept(rows) == {}
    await rows.execute("UPDATE fluxjobs SET release_at = NULL")  # done, but it told no status
    await rows.execute("UPDATE fluxjobs SET status_due_at = now()")
    await rows.forget_tasks()
    assert await swept(rows) == {"status": 1, "reconcile": 1}


async def test_the_sweep_finds_dependents_and_lost_nodes(rows: Rows) -> None:
    """What is pending though its row was not written: its node is lost, its wait is over."""
    await rows.add_nodes(cpu_node("n0"))
    edge = {"type": "afterany", "job": "a"}
    await rows.see(workload("a"), workload("b", depends_on=(edge,)))
    await rows.reconcile("b")
    await rows.match()
    await rows.execute("UPDATE fluxjobs SET reconcile_at = NULL, release_at = NULL")
    await rows.add_nodes(gone=("n0",))
    await rows.forget_tasks()
    assert (await swept(rows))["reconcile"] == 1
    assert await rows.asked(TaskName.RECONCILE) == ["a"]
    await rows.see(workload("a", wanted=0, result="Completed"))
    await rows.reconcile("a")
    await rows.forget_tasks()
    assert (await swept(rows))["reconcile"] == 1
    assert await rows.asked(TaskName.RECONCILE) == ["b"]


@pytest.mark.parametrize(
    "leaves",
    [
        "UPDATE fluxjobs SET state = 'Held', held_by = 'alice' WHERE uid = 'a'",
        "UPDATE fluxjobs SET state = 'Cancelled', ended_at = now() WHERE uid = 'a'",
        "UPDATE fluxjobs SET lacking = 1 WHERE uid = 'runs'",
    ],
)
async def test_what_a_cycle_owes_stands_in_rows(rows: Rows, leaves: str) -> None:
    """A job leaves the queue or lacks slots: its wake-up may be lost, its row is not."""
    await rows.add_nodes(cpu_node("n0", cpu=1))
    await rows.see(workload("runs"), workload("a"))
    await rows.match()
    assert (await rows.states())["runs"] == "Allocated"
    await rows.forget_tasks()
    await rows.execute(leaves)
    await rows.forget_tasks()
    assert (await swept(rows))["schedule"] == 1


async def test_nothing_is_deferred_while_nobody_compares_rows_and_cluster(rows: Rows) -> None:
    """A database that was restored knows less than the cluster."""
    await rows.see(workload("a"))
    await rows.forget_tasks()
    await rows.execute(
        "INSERT INTO leadership (role, term, holder, expires_at)"
        " VALUES ('controller', 1, 'x', now())"
    )
    assert await swept(rows) == {}


async def test_tasks_of_a_dead_worker_run_again(rows: Rows) -> None:
    """procrastinate would leave them ``doing`` for ever. A living worker's is left alone."""
    manager = rows.database.app.job_manager
    await rows.see(workload("a"))
    await rows.execute("UPDATE fluxjobs SET release_at = now(), reconcile_at = now()")
    for _ in range(2):
        assert await manager.fetch_job(["effects"], await manager.register_worker())
    await rows.execute(
        "UPDATE procrastinate.procrastinate_workers SET last_heartbeat = now() - interval '1 h'"
        " WHERE id = (SELECT min(id) FROM procrastinate.procrastinate_workers)"
    )
    assert len(await rescue_stalled(rows.database.app)) == 1
    assert await rescue_stalled(rows.database.app) == []
    todo = "SELECT status FROM procrastinate.procrastinate_jobs WHERE queue_name = 'effects'"
    assert sorted(row["status"] for row in await rows.fetch(todo)) == ["doing", "todo"]


async def test_a_review_counts_the_workers_that_died_of_it(rows: Rows) -> None:
    """A passing error does not count: only a review that ends its worker is given up."""
    manager = rows.database.app.job_manager
    await rows.database.defer_review("default", "why", "uid-why")
    for crashes in (1, 2):
        assert await manager.fetch_job(["review"], await manager.register_worker())
        await rows.execute(
            "UPDATE procrastinate.procrastinate_workers SET last_heartbeat = now() - interval '1 h'"
        )
        assert await rescue_stalled(rows.database.app) == ["review"]
        (task,) = await rows.fetch(
            "SELECT args ->> 'crashes' AS crashes, status FROM procrastinate.procrastinate_jobs"
        )
        assert (task["crashes"], task["status"]) == (str(crashes), "todo")


@pytest.mark.parametrize(
    ("seconds", "every_s"),
    [
        (0.2, 1),
        (1.0, 1),
        (2.0, 2),
        (17.5, 15),
        (59.0, 30),
        (60.0, 60),
        (300.0, 300),
        (3600.0, 3600),
    ],
)
async def test_periodic_tasks_come_at_even_steps(seconds: float, every_s: int) -> None:
    """By procrastinate's own reckoning, over two hours: the longest even step within it."""
    app = procrastinate.App(connector=procrastinate.testing.InMemoryConnector())

    @app.periodic(cron=every(seconds))
    @app.task(name="again")
    async def again(timestamp: int) -> None:
        """Never run here."""

    (periodic,) = app.periodic_registry.periodic_tasks.values()
    deferrer = PeriodicDeferrer(app.periodic_registry)
    begin = 1_800_000_000 // 3600 * 3600
    times = list(deferrer.get_timestamps(periodic, begin, begin + 7200))
    assert {b - a for a, b in pairwise([begin, *times])} == {every_s}


async def test_who_took_the_last_task_asks_for_no_other(rows: Rows) -> None:
    """One statement a task, not two: what comes later rings, or is found by looking."""
    doorbell = never_looks(rows)
    manager = app_on(rows.database.app.connector, doorbell).job_manager
    worker = await manager.register_worker()

    async def fetch() -> int | None:
        task = await manager.fetch_job(["effects"], worker)
        return None if task is None else task.task_kwargs["n"]

    async def defer(n: int) -> None:
        await rows.database.app.configure_task("noted", queue="effects").defer_async(n=n)

    for n in range(2):
        await defer(n)
    assert [await fetch(), await fetch()] == [0, 1], "there was one behind the first"
    await defer(2)
    assert [await fetch(), await fetch()] == [None, 2]
    await fetch()

    heard = asyncio.Event()

    async def hear(**_: object) -> None:
        heard.set()

    async with listening(rows, doorbell):
        telling = manager.listen_for_jobs(on_notification=hear, queues=["effects"])
        told = asyncio.create_task(telling)
        for n in range(3, 30):
            heard.clear()
            await defer(n)
            await asyncio.wait_for(heard.wait(), 60)
            assert await fetch() == n, "told of, so asked for"
        told.cancel()


async def test_no_task_waits_for_somebody_to_look(rows: Rows) -> None:
    """Whenever it comes: while another is fetched, is run, or has just ended."""
    seen: list[int] = []
    doorbell = never_looks(rows)
    app = app_on(rows.database.app.connector, doorbell)

    @app.task(name="noted", queue="effects", pass_context=False)
    async def noted(n: int) -> None:
        await asyncio.sleep(0.001 * (n % 4))
        seen.append(n)

    async def are_seen(number: int) -> bool:
        return len(seen) == number

    worker = asyncio.create_task(
        app.run_worker_async(
            queues=["effects"],
            concurrency=3,
            fetch_job_polling_interval=600,
            install_signal_handlers=False,
        )
    )
    try:
        async with listening(rows, doorbell):
            for n in range(300):
                await noted.defer_async(n=n)
                await asyncio.sleep(0.0005 * (n % 7))
                if n % 30 == 0:
                    await eventually(partial(are_seen, n + 1), "all that was deferred is done")
            await eventually(partial(are_seen, 300), "all is done")
    finally:
        worker.cancel()
        with suppress(asyncio.CancelledError):
            await worker
    assert sorted(seen) == list(range(300))


def never_looks(rows: Rows) -> Doorbell:
    """A doorbell that rings for its own tasks, and for nothing else."""
    return Doorbell(rows.database.app.connector, SystemClock(), told=["effects"], every_s=600)


@asynccontextmanager
async def listening(rows: Rows, doorbell: Doorbell) -> AsyncIterator[None]:
    """Have the doorbell rung for what is deferred for the queue of effects."""
    task = asyncio.create_task(doorbell.listen())

    async def listens() -> object:
        return await rows.value("SELECT count(*) FROM pg_stat_activity WHERE query ~* '^listen'")

    try:
        await eventually(listens, "it listens")
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
