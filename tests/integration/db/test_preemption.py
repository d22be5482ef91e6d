"""Preemption in rows: what is preempted, when, for which job, and what a crash leaves."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

from fluxqueue.db.database import Transaction
from fluxqueue.db.reading.snapshot import read_rows
from fluxqueue.db.store.matcher_rows import NodeChanges, take_changes
from fluxqueue.db.store.statuses import read_statuses
from fluxqueue.db.task_queue import TaskName
from fluxqueue.fluxjob.times import to_rfc3339
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.process.metrics import REGISTRY
from fluxqueue.worker import schedule
from fluxqueue.worker.status import _rendered
from tests.support.pool_model import request
from tests.support.preempting import (
    HIGH,
    LOW,
    LOWER,
    events,
    leave,
    now_as_database,
    pending_actions,
    running,
    start,
    vacating,
)
from tests.support.rows import Rows, but, cpu_node
from tests.support.seen import job, queue, see_queues, told
from tests.support.steering import cancel


async def test_the_youngest_makes_way_and_keeps_its_place(rows: Rows) -> None:
    """One is enough, so one is asked: the youngest. It is suspended as by hand. The head starts on
    what it gave back, and it is first in turn behind it. Both reasons name the other."""
    clock = now_as_database(rows)
    await rows.add_nodes(*(cpu_node(name) for name in ("n0", "n1", "n2")))
    await see_queues(rows, queue("q", preemption=LOWER))
    await start(rows, clock, *LOW)
    await rows.see(job("later", "q", request(cpu=4)), HIGH)
    before = REGISTRY.get_sample_value("fluxqueue_preemptions_total", {"outcome": "requeued"})
    await rows.match()
    after = REGISTRY.get_sample_value("fluxqueue_preemptions_total", {"outcome": "requeued"})
    assert (after or 0) - (before or 0) == 1
    assert await vacating(rows) == {"c": "job 5"}
    status = _rendered((await read_statuses(rows.database, ["c"]))["c"])
    assert status["operator"]["requeueBy"] == "job 5"
    assert await rows.asked(TaskName.RELEASE) == ["a", "b", "c", "c"]
    assert await told(rows, "high") == ("Reserved", "job 3 is preempted for it")
    reason = "is preempted for job 5 (high): its pods end, then it waits at its old place"
    assert await told(rows, "c") == ("Running", reason)
    assert await events(rows, "c") == [("Preempted", reason)]
    ((event, message),) = await events(rows, "high")
    assert (event, message.split(",")[0]) == ("Preempting", "job 3 is preempted for it")
    await leave(rows, LOW[2])
    await rows.match()
    assert await rows.states() == {
        "a": "Running",
        "b": "Running",
        "c": "Pending",
        "later": "Pending",
        "high": "Allocated",
    }
    assert [slot[1] for slot in await rows.slots("high")] == ["n2"]
    assert await pending_actions(rows) == 0
    row = "SELECT result, reason FROM accounting WHERE uid = 'c'"
    assert await rows.fetch(row) == [{"result": "Requeued", "reason": "preempted for job 5"}]
    assert await rows.value("SELECT uid FROM queue JOIN fluxjobs USING (jobid) LIMIT 1") == "c"
    await rows.check()


async def test_who_leaves_while_a_cycle_reads_leaves_it_to_whom_he_leaves_it_for(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last of them gives its node back between two statements of a cycle: it is not yet free
    for that cycle, and must not go to another job in the next, though it comes before."""
    clock = now_as_database(rows)
    await rows.add_nodes(cpu_node("n0"), cpu_node("n1"))
    await see_queues(rows, queue("q", preemption=LOWER), queue("other"))
    await start(rows, clock, *LOW[:2])
    await rows.see(job("high", "q", request(2, cpu=4), priority=10))
    await rows.match()
    assert await vacating(rows) == {"a": "job 3", "b": "job 3"}
    await rows.see(job("rival", "other", request(cpu=4), priority=1000))
    await leave(rows, LOW[0])
    leaving = [LOW[1]]

    async def look(tx: Transaction, ledger: ShareLedger, *more: Any) -> NodeChanges:
        changes = await take_changes(tx, ledger, *more)
        while leaving:
            await leave(rows, leaving.pop())
        return changes

    monkeypatch.setattr(schedule, "take_changes", look)
    await rows.match()
    assert not leaving, "it happened inside a cycle"
    await rows.match()
    states = await rows.states()
    assert (states["high"], states["rival"]) == ("Allocated", "Pending")
    assert await pending_actions(rows) == 0
    await rows.check()


async def test_nobody_is_asked_for_nothing(rows: Rows) -> None:
    """Not all of it would fit: no job is touched, and none of another queue, of equal priority,
    that started a moment ago, or that cannot be suspended."""
    clock = now_as_database(rows)
    await rows.add_nodes(cpu_node("n0"), cpu_node("n1"), cpu_node("n2"))
    rules = {**LOWER, "minRuntime": "10m"}
    await see_queues(rows, queue("q", preemption=rules), queue("other"))
    equal = job("equal", "q", request(cpu=4), priority=10)
    other = job("other", "other", request(cpu=4))
    bare = job("bare", "q", request(cpu=4), workload_kind="Pod", is_suspendable=False)
    await start(rows, clock, equal, other, bare)
    await rows.see(HIGH)
    await rows.match()
    assert await pending_actions(rows) == 0, "nobody of this queue may"
    await see_queues(rows, queue("q", preemption={**rules, "queues": ["other"]}))
    await rows.match()
    assert await pending_actions(rows) == 0, "it runs for a moment only"
    clock.advance(1000)
    await rows.see(job("high", "q", request(2, cpu=4), priority=10))
    await rows.match()
    assert (await vacating(rows), await pending_actions(rows)) == ({}, 0), (
        "one is not enough for two"
    )
    await rows.see(HIGH)
    await rows.match()
    assert await vacating(rows) == {"other": "job 4"}
    await rows.check()


@pytest.mark.parametrize("rules", [{"started": False}, {"limits": {"perUser": {"jobs": 2}}}])
async def test_who_may_not_start_preempts_nobody(rows: Rows, rules: dict[str, Any]) -> None:
    """Of a stopped queue, or over a limit with what it asks for."""
    clock = now_as_database(rows)
    await rows.add_nodes(cpu_node("n0"), cpu_node("n1"))
    await see_queues(rows, queue("q", preemption=LOWER))
    await start(rows, clock, *LOW[:2])
    await see_queues(rows, queue("q", preemption=LOWER, **rules))
    await rows.see(HIGH)
    await rows.match()
    assert await pending_actions(rows) == 0
    await see_queues(rows, queue("q", preemption=LOWER))
    await rows.match()
    assert await pending_actions(rows) == 1, "only that kept it back"


async def test_the_next_in_turn_preempts_at_the_same_time(rows: Rows) -> None:
    """And of a preemptor in another namespace, its victim learns the number alone."""
    clock = now_as_database(rows)
    await rows.add_nodes(cpu_node("n0"), cpu_node("n1"))
    await see_queues(rows, queue("q", preemption=LOWER))
    await start(rows, clock, *LOW[:2])
    await rows.see(HIGH, job("next", "q", request(cpu=4), priority=9, namespace="secret"))
    await rows.match()
    assert await vacating(rows) == {"b": "job 3", "a": "job 4"}
    assert (await told(rows, "b"))[1].startswith("is preempted for job 3 (high):")
    assert (await told(rows, "a"))[1].startswith("is preempted for job 4:")
    for one in LOW[:2]:
        await leave(rows, one)
    await rows.match()
    states = await rows.states()
    assert (states["high"], states["next"]) == ("Allocated", "Allocated")
    await rows.check()


async def test_victims_are_read_only_if_a_job_may_preempt(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else preemption costs a cycle nothing."""
    read: list[int] = []

    async def count(tx: Transaction, queues: Any, below: int) -> list[Any]:
        read.append(below)
        return []

    monkeypatch.setattr("fluxqueue.db.store.preemption.read_candidates", count)
    clock = now_as_database(rows)
    await rows.add_nodes(cpu_node("n0"))
    await see_queues(rows, queue("q", preemption=LOWER), queue("plain"))
    await start(rows, clock, LOW[0])
    read.clear()
    await rows.see(job("waits", "plain", request(cpu=4), priority=50))
    await rows.match()
    assert read == []
    await rows.see(HIGH)
    await rows.match()
    assert read == [10], "only what has a lower priority"


async def test_what_is_given_back_is_kept_for_whom_it_was_given_back(rows: Rows) -> None:
    """Two are preempted, one after the other. Neither a newcomer of a higher priority, nor one of
    another queue, nor growth of what runs gets what the first has left."""
    clock = now_as_database(rows)
    await rows.add_nodes(*(cpu_node(name) for name in ("n0", "n1", "n2")))
    await see_queues(rows, queue("q", preemption=LOWER), queue("other"))
    await start(rows, clock, *LOW)
    high = job("high", "q", request(2, cpu=4), priority=10)
    await rows.see(high)
    await rows.match()
    assert await vacating(rows) == {"b": "job 4", "c": "job 4"}
    await leave(rows, LOW[1])
    await rows.see(
        job("highest", "other", request(cpu=4, duration_s=1), priority=99),
        job("short", "q", request(cpu=1, duration_s=1), priority=99),
        but(running(LOW[0]), wanted=2),
    )
    await rows.execute("UPDATE fluxjobs SET lacking = 1 WHERE uid = 'a'")
    clock.advance(100)
    await rows.begin_term()
    await rows.match()
    states = await rows.states()
    assert states["high"] == "Reserved"
    assert {states["highest"], states["short"]} <= {"Pending", "Reserved"}
    assert len(await rows.slots("a")) == 1
    await leave(rows, LOW[2])
    await rows.match()
    assert (await rows.states())["high"] == "Allocated"
    assert sorted(slot[1] for slot in await rows.slots("high")) == ["n1", "n2"]
    await rows.check()


async def test_grace_is_a_notice(rows: Rows) -> None:
    """Told at once, asked to leave when it is over, and spared where it is not needed any more."""
    clock = now_as_database(rows)
    await rows.add_nodes(cpu_node("n0"), cpu_node("n1"))
    await see_queues(rows, queue("q", preemption={**LOWER, "grace": "30s"}))
    await start(rows, clock, *LOW[:2])
    await rows.see(HIGH)
    await rows.match()
    at = to_rfc3339(clock.now_s() + 30)
    announced = f"is requeued at {at} for job 3 (high); it keeps its place in the queue"
    assert await vacating(rows) == {}
    assert await told(rows, "b") == ("Running", announced)
    assert await events(rows, "b") == [("PreemptionPlanned", announced)]
    assert rows.matcher is not None
    assert not rows.matcher.is_due
    clock.advance(20)
    await rows.match()
    assert await vacating(rows) == {}
    clock.advance(11)
    assert rows.matcher.is_due
    await rows.match()
    assert await vacating(rows) == {"b": "job 3"}
    await leave(rows, LOW[1])
    await rows.match()
    assert (await rows.states())["high"] == "Allocated"
    await rows.check()


async def test_until_the_suspension_others_use_what_is_free(rows: Rows) -> None:
    """If they end in time. A victim that ends before it is suspended has lost nothing."""
    clock = now_as_database(rows)
    await rows.add_nodes(cpu_node("n0", cpu=8))
    await see_queues(rows, queue("q", preemption={**LOWER, "grace": "30s"}))
    await start(rows, clock, LOW[0])
    high = job("high", "q", request(cpu=8), priority=10)
    short, long = (job(f"for-{s}", "q", request(cpu=2, duration_s=s)) for s in (20, 60))
    await rows.see(high, short, long)
    await rows.match()
    states = await rows.states()
    assert (states["high"], states["for-20"]) == ("Reserved", "Allocated")
    assert states["for-60"] in {"Pending", "Reserved"}
    assert [event for event, _ in await events(rows, "a")] == ["PreemptionPlanned"]
    for one in (LOW[0], short):
        await rows.see(but(one, wanted=0, is_suspended=False, result="Completed"))
        await rows.reconcile(one.uid)
    await rows.match()
    states = await rows.states()
    assert (states["a"], states["high"]) == ("Completed", "Allocated")
    assert await vacating(rows) == {}
    assert await pending_actions(rows) == 0
    await rows.check()


async def test_a_promise_outlives_matcher_and_preemption(rows: Rows) -> None:
    """Promised a start once, and not anew by the matcher that comes. The check compares with it."""
    clock = now_as_database(rows)
    await rows.add_nodes(cpu_node("n0"))
    await see_queues(rows, queue("q", preemption={**LOWER, "grace": "30s"}))
    await start(rows, clock, LOW[0])
    await rows.see(HIGH)
    await rows.match()
    at = clock.now_s() + 30
    await rows.begin_term()
    await rows.match()
    promised = "SELECT detail FROM history WHERE uid = 'high' AND event = 'Promised'"
    assert await rows.fetch(promised) == [{"detail": {"starts_at": at}}]
    clock.advance(100)
    await rows.match()
    await leave(rows, LOW[0])
    await rows.match()
    (promise,) = (await read_rows(rows.database)).promises
    assert (promise.uid, promise.starts_at_s) == ("high", at)
    assert promise.allocated_at_s is not None
    assert promise.excuse == "overrun of job 1"
    await rows.check()


async def test_who_is_not_needed_any_more_is_spared(rows: Rows) -> None:
    """Another ends within the grace: the head starts there, and the victim goes on."""
    clock = now_as_database(rows)
    await rows.add_nodes(cpu_node("n0"), cpu_node("n1"))
    await see_queues(rows, queue("q", preemption={**LOWER, "grace": "30s"}))
    await start(rows, clock, *LOW[:2])
    await rows.see(HIGH)
    await rows.match()
    await rows.see(but(LOW[0], is_suspended=False, result="Completed"))
    await rows.reconcile("a")
    clock.advance(10)
    await rows.match()
    assert (await rows.states())["high"] == "Allocated"
    assert await told(rows, "b") == ("Running", "")
    assert [event for event, _ in await events(rows, "b")] == ["PreemptionPlanned", "PreemptionOff"]
    assert await pending_actions(rows) == 0
    clock.advance(100)
    await rows.match()
    assert await vacating(rows) == {}
    await rows.check()


async def test_of_a_head_that_is_cancelled_nobody_remembers(rows: Rows) -> None:
    """A warned victim goes on. A suspended one goes on in the queue, at its place."""
    clock = now_as_database(rows)
    await rows.add_nodes(cpu_node("n0"), cpu_node("n1"))
    await see_queues(rows, queue("q", preemption=LOWER))
    await start(rows, clock, *LOW[:2])
    await rows.see(HIGH)
    await rows.match()
    assert await vacating(rows) == {"b": "job 3"}
    await cancel(rows.database, "default", ["high"], "alice")
    await rows.reconcile("high")
    await leave(rows, LOW[1])
    await rows.match()
    assert await rows.states() == {"a": "Running", "b": "Allocated", "high": "Cancelled"}
    assert await pending_actions(rows) == 0
    await rows.check()


async def test_what_a_crash_has_left_is_done_by_the_next(rows: Rows) -> None:
    """The decision is committed and no victim has been asked: all tasks are lost.
    The sweep has it look, and it asks all of them."""
    clock = now_as_database(rows)
    await rows.add_nodes(cpu_node("n0"), cpu_node("n1"))
    await see_queues(rows, queue("q", preemption=LOWER))
    await start(rows, clock, *LOW[:2])
    await rows.see(job("high", "q", request(2, cpu=4), priority=10))
    async with rows.database.begin() as tx:
        await tx.execute(
            "CREATE FUNCTION crash() RETURNS trigger LANGUAGE plpgsql AS $$"
            " BEGIN RAISE EXCEPTION 'crash'; END $$"
        )
        await tx.execute(
            "CREATE TRIGGER crash BEFORE UPDATE OF vacate_by ON fluxjobs FOR EACH ROW"
            " WHEN (NEW.uid = 'b' AND NEW.vacate_by IS NOT NULL) EXECUTE FUNCTION crash()"
        )
    with pytest.raises(DBAPIError, match="crash"):
        await rows.match()
    assert await vacating(rows) == {}, "all or none"
    assert await pending_actions(rows) == 2
    await rows.execute("DROP TRIGGER crash ON fluxjobs")
    await rows.forget_tasks()
    await rows.execute("SELECT fluxqueue_sweep(interval '0 s')")
    assert await rows.is_cycle_asked()
    await rows.begin_term()
    await rows.match()
    assert await vacating(rows) == {"a": "job 3", "b": "job 3"}
    for one in LOW[:2]:
        await leave(rows, one)
    await rows.match()
    assert await rows.states() == {"a": "Pending", "b": "Pending", "high": "Allocated"}
    await rows.check()


async def test_fair_share_makes_nobody_leave(rows: Rows) -> None:
    """Points come and go, and the job with fewer today would have the other requeued tomorrow."""
    clock = now_as_database(rows)
    await rows.add_nodes(cpu_node("n0"))
    await see_queues(
        rows, queue("q", preemption=LOWER, fairShare={"enabled": True, "weight": 1000})
    )
    await start(rows, clock, LOW[0])
    await rows.see(job("b", "q", request(cpu=4), user_name="bob"))
    await rows.execute("UPDATE fluxjobs SET priority_parts = '{}' WHERE uid = 'b'")
    await rows.execute("INSERT INTO fair_shares VALUES ('q', '', 9, 0, 0, now())")
    await rows.execute("UPDATE fluxjobs SET priority_parts = '{}' WHERE uid = 'a'")
    a, b = [
        await rows.value("SELECT priority FROM fluxjobs WHERE uid = :uid", uid=uid)
        for uid in ("a", "b")
    ]
    assert a < b
    await rows.match()
    assert await vacating(rows) == {}


async def test_the_grace_of_a_victims_pods_counts(rows: Rows) -> None:
    """Its preemptor is promised the time at which they have ended, and may start sooner."""
    clock = now_as_database(rows)
    await rows.add_nodes(cpu_node("n0"))
    await see_queues(rows, queue("q", preemption=LOWER))
    slow = but(LOW[0], grace_s=600)
    await start(rows, clock, slow)
    await rows.see(HIGH)
    await rows.match()
    at = await rows.value("SELECT starts_at FROM reservations WHERE uid = 'high'")
    assert at == clock.now_s() + 600
    clock.advance(100)
    await leave(rows, slow)
    await rows.match()
    assert (await rows.states())["high"] == "Allocated"
    outcome = await rows.fetch("SELECT event FROM history WHERE event = 'PromiseExcused'")
    assert outcome == []
