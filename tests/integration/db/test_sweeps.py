"""Rows of a sweep: their number depends on its pods at once, and they tell all that was used."""

from __future__ import annotations

import pytest

from fluxqueue.db.store.decisions import REUSE_S
from fluxqueue.db.store.matcher_rows import load_graph
from fluxqueue.db.store.queues import read_use
from fluxqueue.fluxjob.observation import WorkloadSeen
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.policy.queue_rules import PLANNED_S
from tests.support.pool_model import request
from tests.support.rows import Rows, but, cpu_node, pod, workload

WIDTH = 3


def a_sweep(uid: str = "x", done: int = 0, *, width: int = WIDTH, **more: object) -> WorkloadSeen:
    """A released sweep with its first tasks done. The next ones have gated pods."""
    seen = workload(uid, request(cpu=1), is_sweep=True, is_suspended=False)
    gated = tuple(pod(f"{uid}-{n}", index=n) for n in range(done, done + width))
    return but(seen, wanted=width, pods=gated, **more)  # type: ignore[arg-type]


async def start(rows: Rows, seen: WorkloadSeen) -> None:
    """Let it start and grow."""
    await rows.add_nodes(cpu_node("n0", cpu=2))
    await rows.see(but(seen, is_suspended=True, pods=()))
    await rows.match()
    await rows.see(seen)
    await grow(rows, seen.uid)


async def grow(rows: Rows, uid: str) -> None:
    """Do one look, a cycle, and a look."""
    await rows.reconcile(uid)
    await rows.match()
    await rows.reconcile(uid)


async def test_slots_are_given_as_they_fit(rows: Rows) -> None:
    """One at first, then what fits. The reason says what the others wait for."""
    await start(rows, a_sweep())
    assert await rows.value("SELECT count(*) FROM allocation_slots WHERE state = 'held'") == 2
    assert await rows.value("SELECT lacking FROM fluxjobs") == 1
    reason = await rows.value("SELECT reason FROM fluxjobs")
    assert reason.startswith("some of its pods wait for a slot: ")
    async with rows.database.begin() as tx:
        use = await read_use(tx, ["default"])
    assert use["default", ""].jobs == 2, "each pod is a job where jobs are limited"


async def test_the_rows_of_many_tasks_are_few(rows: Rows) -> None:
    """A row is used again once fair share has counted it. Accounting knows all the time."""
    seconds, rounds = 600, 12
    await start(rows, a_sweep())
    for done in range(2, 2 * rounds, 2):
        # Each task holds its slot for ten minutes, and was over long before the next look.
        await rows.execute(
            "UPDATE allocation_slots SET given_at = now() - make_interval(secs => :s)"
            " WHERE state = 'held'",
            s=seconds,
        )
        await rows.execute("DELETE FROM pods")
        await rows.see(a_sweep(done=done))
        await rows.reconcile("x")
        await rows.execute(
            "UPDATE allocation_slots SET returned_at = returned_at - make_interval(secs => :s),"
            " given_at = given_at - make_interval(secs => :s) WHERE state = 'returned'",
            s=REUSE_S + 1,
        )
        await rows.match()
        await rows.reconcile("x")
    assert await rows.value("SELECT count(*) FROM allocation_slots") <= 4
    await rows.execute("DELETE FROM pods")
    await rows.see(but(a_sweep(), pods=(), wanted=0, result="Completed"))
    await rows.reconcile("x")
    assert await rows.states() == {"x": "Completed"}
    used = float(await rows.value("SELECT cpu_s FROM accounting"))
    # One slot stays with it, and this test sets the time of that slot anew in each round.
    assert used == pytest.approx(rounds * seconds / 1000, rel=0.05), "one millicore each"


async def test_a_new_matcher_knows_when_each_task_ends(rows: Rows) -> None:
    """Each slot ends after its own time, or after what its queue plans."""
    await start(rows, a_sweep(duration_s=500))
    await rows.execute(
        "UPDATE allocation_slots SET given_at = now() - interval '200 s' WHERE number = 0"
    )
    ledger = ShareLedger()
    async with rows.database.begin() as tx:
        await load_graph(tx, ledger)
    first, second = sorted(hold.until for _, hold in ledger.live["x"].holds)
    assert 195 <= second - first <= 205
    await rows.execute("UPDATE fluxjobs SET duration_s = NULL")
    ledger = ShareLedger()
    async with rows.database.begin() as tx:
        await load_graph(tx, ledger)
    first, second = sorted(hold.until for _, hold in ledger.live["x"].holds)
    assert 195 <= second - first <= 205
    given_at = await rows.value("SELECT max(given_at) FROM allocation_slots")
    assert second - given_at.timestamp() == pytest.approx(PLANNED_S, abs=5)


async def test_its_pods_come_after_work_of_higher_priority(rows: Rows) -> None:
    """A freed slot is not its own any more."""
    await start(rows, a_sweep())
    await rows.see(workload("urgent", request(cpu=1), priority=10))
    await rows.execute("DELETE FROM pods WHERE uid = 'x-0'")
    await rows.see(a_sweep(done=1))
    await grow(rows, "x")
    assert (await rows.states())["urgent"] == "Allocated"
    assert (
        await rows.value(
            "SELECT count(*) FROM allocation_slots s JOIN allocations a ON a.id = s.allocation_id"
            " WHERE a.uid = 'x' AND s.state <> 'returned'"
        )
        == 1
    )
