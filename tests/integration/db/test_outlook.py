"""What waiting jobs show, on real rows: estimates, reasons, promises, and no churn."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import cast

from fluxqueue.clock import ManualClock
from fluxqueue.db.reading.snapshot import PromiseRow, read_rows
from fluxqueue.db.store.cluster_rows import save_foreign
from fluxqueue.db.store.outlook import read_told_starts
from fluxqueue.fluxjob.node import ForeignPod, NodeFact
from fluxqueue.fluxjob.request import CPU
from fluxqueue.jobspec import Count, Jobspec, Resource
from fluxqueue.prediction.calibration import BASE_S, UNPROVEN, Calibration
from fluxqueue.prediction.durations import PUT_OFF_S
from fluxqueue.worker.plans import PATIENCE_S
from tests.support.pool_model import request
from tests.support.rows import Rows, cpu_node, workload

HOUR_S = 3600


def start_of_hour(rows: Rows) -> int:
    """Put the clock to a full hour, so that times in sentences are easy to read."""
    clock = cast("ManualClock", rows.clock)
    clock.advance(HOUR_S - clock.now_s() % HOUR_S)
    return clock.now_s()


def hh_mm(at: int) -> str:
    """As sentences show it."""
    return datetime.fromtimestamp(at, tz=UTC).strftime("%H:%M UTC")


async def told(rows: Rows) -> dict[str, tuple[str, int | None]]:
    """Reason and expected start of what waits."""
    found = await rows.fetch(
        "SELECT uid, reason, extract(epoch FROM expected_start)::bigint AS at FROM fluxjobs"
        " WHERE state IN ('Pending', 'Reserved') ORDER BY jobid"
    )
    return {row["uid"]: (row["reason"], row["at"]) for row in found}


async def versions(rows: Rows) -> dict[str, int]:
    """How often each row was published."""
    return {r["uid"]: r["version"] for r in await rows.fetch("SELECT uid, version FROM fluxjobs")}


async def busy_cluster(rows: Rows) -> int:
    """Job 1 holds both nodes for an hour. Three wait behind it."""
    now = start_of_hour(rows)
    await rows.add_nodes(cpu_node("n0"), cpu_node("n1"))
    await rows.see(workload("a", request(2, cpu=4, duration_s=HOUR_S)))
    await rows.match()
    await rows.see(
        workload("b", request(2, cpu=4, duration_s=2 * HOUR_S)),
        workload("c", request(1, cpu=4, duration_s=HOUR_S)),
        workload("d", request(2, cpu=3, duration_s=HOUR_S)),
    )
    await rows.match()
    return now


async def test_everybody_who_waits_is_told_when_and_why(rows: Rows) -> None:
    """The reserved one is promised. Those behind it get estimates behind its end."""
    now = await busy_cluster(rows)
    assert (await rows.states())["b"] == "Reserved"
    assert await told(rows) == {
        "b": (
            f"has a reservation; waits for n[0-1] held by job 1 until {hh_mm(now + HOUR_S)}",
            now + HOUR_S,
        ),
        "c": ("priority 0 behind 1 job; waits for n0 behind job 2", now + 3 * HOUR_S),
        "d": ("priority 0 behind 2 jobs; waits for n[0-1] behind job 3, job 2", now + 4 * HOUR_S),
    }


async def test_what_is_told_first_is_compared_with_the_true_start(rows: Rows) -> None:
    """It stays while the job waits, and the true start widens what later jobs are shown."""
    now = await busy_cluster(rows)
    query = (
        "SELECT told_at, planned, expected, expected_by, shown_by, started_at FROM told_starts"
        " WHERE uid = :uid"
    )
    by = now + UNPROVEN * (3 * HOUR_S + BASE_S) - BASE_S
    first = {
        "told_at": now,
        "planned": now + 3 * HOUR_S,
        "expected": now + 3 * HOUR_S,
        "expected_by": by,
        "shown_by": by,
        "started_at": None,
    }
    assert await rows.fetch(query, uid="c") == [first]
    bound = "SELECT shown_by FROM told_starts WHERE uid = 'b'"
    assert await rows.value(bound) == now + HOUR_S, "it has a promise"
    cast("ManualClock", rows.clock).advance(HOUR_S // 2)
    await rows.see(workload("a", request(2, cpu=4, duration_s=HOUR_S), result="Completed"))
    await rows.reconcile("a")
    await rows.match()
    assert (await rows.states())["b"] == "Allocated"
    for _ in range(2):
        cast("ManualClock", rows.clock).advance(PATIENCE_S)
        await rows.match()
    (b,) = await rows.fetch(query, uid="b")
    assert b["started_at"] == now + HOUR_S // 2
    (still,) = await rows.fetch(query, uid="c")
    assert {**still, "shown_by": by} == first, "only what it is shown now has changed"
    assert still["shown_by"] < by
    async with rows.database.begin() as tx:
        waiting, calibration = await read_told_starts(tx, rows.clock.now_s())
    assert sorted(waiting) == ["c", "d"]
    assert calibration != Calibration(), "and the error of the one that has started counts"


async def test_the_level_that_is_short_is_named(rows: Rows) -> None:
    """Two nodes in each of three racks are asked for, and one rack has one left."""
    now = start_of_hour(rows)
    for number in range(9):
        labels = {"rack": f"r{number // 3}"}
        await rows.add_nodes(NodeFact(f"n{number}", f"uid-{number}", {CPU: 8000}, labels))
    slot = Resource("slot", Count(1, 1), (Resource(CPU, Count(8000, 8000)),), label="task")
    nodes = Resource("node", Count(2, 2), (slot,))
    racks = Resource("rack", Count(3, 3), (nodes,))
    await rows.see(workload("a", Jobspec(9999, (nodes,), duration_s=HOUR_S)))
    await rows.match()
    await rows.see(workload("b", Jobspec(9999, (racks,), duration_s=HOUR_S)))
    await rows.match()
    short = "2 racks of 3 have 2 free nodes with 8 cpu; 3 are needed"
    held = f"waits for n[0-1] held by job 1 until {hh_mm(now + HOUR_S)}"
    assert await told(rows) == {"b": (f"has a reservation; {short}; {held}", now + HOUR_S)}


async def test_nothing_is_told_twice(rows: Rows) -> None:
    """Cycles and forecasts without news write nothing. A later matcher knows what was written."""
    await busy_cluster(rows)
    before = await versions(rows)
    for _ in range(3):
        cast("ManualClock", rows.clock).advance(10)
        await rows.match()
    assert await versions(rows) == before
    await rows.begin_term()
    await rows.match()
    assert {u: v for u, v in (await versions(rows)).items() if u != "b"} == {
        u: v for u, v in before.items() if u != "b"
    }


async def test_a_forecast_is_not_made_more_often_than_set(rows: Rows) -> None:
    """Within the interval only the cycle speaks. Afterwards the matcher asks for a turn."""
    await busy_cluster(rows)
    await rows.see(workload("e", request(1, cpu=1, duration_s=HOUR_S)))
    await rows.match()
    assert (await told(rows))["e"][1] is None
    assert rows.matcher is not None
    assert not rows.matcher.is_due
    cast("ManualClock", rows.clock).advance(rows.settings.forecast_interval_s)
    assert rows.matcher.is_due
    await rows.match()
    assert (await told(rows))["e"][1] is not None
    assert not rows.matcher.is_due


async def test_decisions_go_before_estimates(rows: Rows) -> None:
    """A cycle that started something is followed by another rather than by a forecast, but not
    for ever."""
    await rows.add_nodes(cpu_node("big", cpu=16))
    await rows.see(workload("a", request(1, cpu=16, duration_s=HOUR_S)))
    await rows.match()
    await rows.see(*(workload(uid, request(1, cpu=16, duration_s=HOUR_S)) for uid in ("w", "x")))
    for number in range(3):
        await rows.add_nodes(cpu_node(f"small{number}"))
        await rows.see(workload(f"s{number}", request(1, cpu=4, duration_s=HOUR_S)))
        await rows.match()
        assert (await rows.states())[f"s{number}"] == "Allocated"
        assert ((await told(rows))["x"][1] is not None) is (number == 2)
        cast("ManualClock", rows.clock).advance(11)


async def test_beyond_the_depth_nothing_is_estimated(rows: Rows) -> None:
    """With a depth of 2 the third loses the estimate that it had."""
    await busy_cluster(rows)
    assert (await told(rows))["d"][1] is not None
    rows.settings = replace(rows.settings, forecast_depth=2, forecast_interval_s=0.0)
    await rows.begin_term()
    await rows.match()
    await rows.match()
    found = await told(rows)
    assert found["c"][1] is not None
    assert found["d"][1] is None


async def test_jobs_behind_those_that_a_cycle_examines_have_a_start_too(rows: Rows) -> None:
    """Slice by slice, at the pace of the planned ones, and only where it has changed."""
    rows.settings = replace(rows.settings, queue_depth=4, forecast_interval_s=0.0)
    now = start_of_hour(rows)
    await rows.add_nodes(cpu_node("n0"))
    # One user, so a cycle looks at the first 20.
    waiting = [f"w{number:02}" for number in range(26)]
    hour = request(1, cpu=4, duration_s=HOUR_S)
    await rows.see(workload("a", hour))
    await rows.match()
    await rows.see(*(workload(uid, hour) for uid in waiting))
    for _ in range(3):
        await rows.match()
        cast("ManualClock", rows.clock).advance(PATIENCE_S)
    found = await told(rows)
    assert [found[uid][1] for uid in waiting] == [now + (1 + n) * HOUR_S for n in range(26)]
    assert found["w25"][0] == "priority 0 behind about 20 jobs"
    assert await rows.value("SELECT count(*) FROM told_starts WHERE started_at IS NULL") == 26
    before = await versions(rows)
    await rows.match()
    await rows.begin_term()
    await rows.match()
    after = await versions(rows)
    assert [after[uid] for uid in waiting[1:]] == [before[uid] for uid in waiting[1:]]


async def test_work_without_a_limit_is_named(rows: Rows) -> None:
    """The start is expected and not promised, and the reason names the job without a limit."""
    now = rows.clock.now_s()
    await rows.add_nodes(cpu_node("n0"))
    await rows.see(workload("a", request(1, cpu=4)))
    await rows.match()
    await rows.see(workload("b", request(1, cpu=2, duration_s=60)))
    await rows.match()
    reason, start = (await told(rows))["b"]
    assert start == now + HOUR_S
    assert reason.startswith("expected to start by ")
    assert reason.endswith("not promised; waits for n0 held by job 1 without a limit")
    assert await rows.states() == {"a": "Allocated", "b": "Pending"}
    assert await rows.value("SELECT latest_start FROM expected_starts") == now + 2 * HOUR_S
    # The next matcher reads it. It moves by an overrun only, and history says of which job.
    cast("ManualClock", rows.clock).advance(HOUR_S + 30)
    await rows.begin_term()
    await rows.match()
    assert await rows.value("SELECT latest_start FROM expected_starts") == now + 2 * HOUR_S
    cast("ManualClock", rows.clock).advance(HOUR_S)
    await rows.match()
    latest = await rows.value("SELECT latest_start FROM expected_starts")
    assert latest == now + HOUR_S + next(one for one in PUT_OFF_S if one > HOUR_S + 30)
    delays = await rows.fetch(
        "SELECT detail FROM history WHERE event = 'ExpectedStartDelayed' AND uid = 'b'"
    )
    excuse = {"latest_start": latest, "excuse": "overrun of job 1"}
    assert [row["detail"] for row in delays] == [excuse]
    assert not (await read_rows(rows.database)).promises
    await rows.check()


async def test_pods_of_others_are_named_by_their_namespace(rows: Rows) -> None:
    """Busy, not impossible: the node alone would do."""
    await rows.add_nodes(cpu_node("n0"))
    async with rows.database.begin() as tx:
        await save_foreign(tx, [ForeignPod("f", "kube-system", "agent", "n0", {CPU: 1})], [])
    await rows.see(workload("a", request(1, cpu=4, duration_s=60)))
    await rows.match()
    assert await told(rows) == {
        "a": (
            "pods of namespace kube-system leave too little room on n0 and have no known end",
            None,
        )
    }


async def test_daemonsets_that_leave_no_room_are_said_to_stay(rows: Rows) -> None:
    """No waiting helps: busy for ever, and the reason says so."""
    await rows.add_nodes(cpu_node("n0"))
    agent = ForeignPod("f", "kube-system", "agent", "n0", {CPU: 1}, is_permanent=True)
    async with rows.database.begin() as tx:
        await save_foreign(tx, [agent], [])
    await rows.see(workload("a", request(1, cpu=4, duration_s=60)))
    await rows.match()
    whose = "DaemonSets and static pods of namespace kube-system"
    assert await told(rows) == {"a": (f"{whose} leave too little room on n0 for good", None)}


async def test_nodes_that_are_down_are_named(rows: Rows) -> None:
    """Only they would do."""
    await rows.add_nodes(
        cpu_node("n0", is_up=False), cpu_node("n1", is_schedulable=False), cpu_node("n2", cpu=1)
    )
    await rows.see(workload("a", request(1, cpu=4, duration_s=60)))
    await rows.match()
    assert await told(rows) == {"a": ("fits only with nodes that are down: n0; cordoned: n1", None)}


async def test_a_promise_and_its_excuse_are_in_the_history(rows: Rows) -> None:
    """The first start promised, once, and what to blame when it cannot be kept."""
    now = await busy_cluster(rows)
    events = "SELECT event, detail FROM history WHERE uid = 'b' AND event LIKE 'Promise%'"
    assert await rows.fetch(events) == [
        {"event": "Promised", "detail": {"starts_at": now + HOUR_S}}
    ]
    cast("ManualClock", rows.clock).advance(HOUR_S + 30)
    await rows.match()
    (_, excused) = await rows.fetch(f"{events} ORDER BY id")
    assert excused == {
        "event": "PromiseExcused",
        "detail": {"starts_at": now + HOUR_S, "excuse": "overrun of job 1"},
    }
    await rows.match()
    assert len(await rows.fetch(events)) == 2


async def test_a_promise_is_kept_by_the_next_matcher(rows: Rows) -> None:
    """More urgent work comes while no matcher runs: the promise of before holds against it."""
    now = await busy_cluster(rows)
    await rows.see(workload("u", request(2, cpu=4, duration_s=HOUR_S), priority=100))
    await rows.begin_term()
    await rows.match()
    found = await told(rows)
    assert found["b"][1] == now + HOUR_S
    assert found["u"][1] == now + 3 * HOUR_S


async def test_what_is_told_does_not_outlive_the_wait(rows: Rows) -> None:
    """Held in between: the estimate is not the next one's."""
    await busy_cluster(rows)
    await rows.execute(
        "UPDATE fluxjobs SET state = 'Held', held_by = 'x', expected_start = NULL, reason = 'held'"
        " WHERE uid = 'c'"
    )
    cast("ManualClock", rows.clock).advance(10)
    await rows.match()
    assert await rows.fetch("SELECT reason FROM fluxjobs WHERE uid = 'c'") == [{"reason": "held"}]


async def test_the_check_sees_promises_kept_and_broken(rows: Rows) -> None:
    """As rows of a snapshot: kept. Then late with an excuse. Then, by force, without one."""
    now = await busy_cluster(rows)
    (promise,) = (await read_rows(rows.database)).promises
    assert promise == PromiseRow("b", now + HOUR_S, None, None)
    cast("ManualClock", rows.clock).advance(HOUR_S + 30)
    await rows.match()
    (promise,) = (await read_rows(rows.database)).promises
    assert promise.excuse == "overrun of job 1"
    await rows.see(workload("a", request(2, cpu=4, duration_s=HOUR_S), result="Completed"))
    await rows.reconcile("a")
    await rows.match()
    assert (await rows.states())["b"] == "Allocated"
    found = {one.uid: one for one in (await read_rows(rows.database)).promises}
    assert found["b"].excuse == "overrun of job 1"
    assert found["b"].allocated_at_s is not None
    await rows.execute("DELETE FROM history WHERE event = 'PromiseExcused'")
    found = {one.uid: one for one in (await read_rows(rows.database)).promises}
    assert found["b"].excuse is None


async def test_who_leaves_the_queue_is_promised_nothing_any_more(rows: Rows) -> None:
    """Held and released: the second wait has a promise of its own, the first an excuse."""
    now = await busy_cluster(rows)
    await rows.execute("UPDATE fluxjobs SET state = 'Held', held_by = 'queue' WHERE uid = 'b'")
    await rows.match()
    await rows.execute("UPDATE fluxjobs SET state = 'Pending', held_by = NULL WHERE uid = 'b'")
    cast("ManualClock", rows.clock).advance(60)
    await rows.match()
    events = await rows.fetch(
        "SELECT event, detail ->> 'starts_at' AS at FROM history WHERE uid = 'b'"
        " AND event LIKE 'Promise%' ORDER BY id"
    )
    assert [row["event"] for row in events] == ["Promised", "PromiseExcused", "Promised"]
    promises = [one for one in (await read_rows(rows.database)).promises if one.uid == "b"]
    assert len(promises) == 1
    assert promises[0].starts_at_s > now + HOUR_S, "c has been promised the first hour meanwhile"
