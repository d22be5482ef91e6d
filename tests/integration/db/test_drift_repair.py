"""Drift that lasts is repaired where that is safe. No pod and no sound row is touched."""

from __future__ import annotations

import pytest

from fluxqueue.db import retention
from fluxqueue.db.store import drift_repair
from fluxqueue.worker.maintain import Maintenance
from tests.support.pool_model import request
from tests.support.rows import Rows, cpu_node, pod, workload


async def _running(rows: Rows) -> None:
    """``a`` runs two pods, ``b`` one, ``w`` waits. Everything is sound."""
    await rows.add_nodes(cpu_node("n0", cpu=2), cpu_node("n1", cpu=1))
    for uid, pods in (("a", 2), ("b", 1), ("w", 1)):
        await rows.see(workload(uid, request(pods, cpu=1)))
    await rows.match()
    nodes = {u: [slot[1] for slot in await rows.slots(u)] for u in ("a", "b")}
    for uid in ("a", "b"):
        gated = tuple(pod(f"{uid}-{n}") for n in range(len(nodes[uid])))
        size = len(gated)
        await rows.see(workload(uid, request(size, cpu=1), pods=gated))
        await rows.reconcile(uid)
        holders = {holder: node for _, node, _, holder in await rows.slots(uid)}
        run = tuple(pod(one.uid, "Running", is_gated=False, node=holders[one.uid]) for one in gated)
        await rows.see(workload(uid, request(size, cpu=1), pods=run, is_suspended=False))
        await rows.reconcile(uid)
    assert await rows.states() == {"a": "Running", "b": "Running", "w": "Pending"}
    await rows.check()


BREAKS = {
    drift_repair.NO_SLOT: "UPDATE allocation_slots SET state = 'free', pod_uid = NULL"
    " WHERE pod_uid = 'a-1'",
    drift_repair.NO_ALLOCATION: "UPDATE allocations SET is_live = false, ended_at = now()"
    " WHERE uid = 'a'",
    drift_repair.NOT_RETURNED: "UPDATE allocations SET is_live = false, ended_at = now()"
    " WHERE uid = 'b'",
    drift_repair.ENDED_HOLDS: "UPDATE fluxjobs SET state = 'Pending' WHERE uid = 'a'",
}


@pytest.mark.parametrize("invariant", BREAKS)
async def test_a_hand_in_the_tables(rows: Rows, invariant: str) -> None:
    """Every kind of drift is gone after it was seen twice, and every pod has a slot of its own."""
    await _running(rows)
    await rows.execute(BREAKS[invariant])
    if invariant == drift_repair.NO_SLOT:
        # Its slot is given back as well: there is none left to take again.
        await rows.execute(
            "UPDATE allocation_slots SET state = 'returned', returned_at = now()"
            " WHERE state = 'free'"
        )
    assert invariant in {name for name, _ in await rows.drift()}
    maintenance = Maintenance(rows.context())
    await maintenance.maintain()
    assert invariant in {name for name, _ in await rows.drift()}, "what may pass is let pass"
    for _ in range(4):
        await maintenance.maintain()
    assert await rows.drift() == []
    await rows.reconcile("a", "b")
    await rows.match()
    await rows.check()
    for uid, size in (("a", 2), ("b", 1)):
        holders = [slot[3] for slot in await rows.slots(uid) if slot[3]]
        assert sorted(holders) == [f"{uid}-{n}" for n in range(size)]
    assert (await rows.states())["w"] == "Pending", "what runs was counted all the time"


async def test_capacity_is_not_repaired_but_told(
    rows: Rows, caplog: pytest.LogCaptureFixture
) -> None:
    """A node that shrank under what runs: nothing is stopped, the check names the way out."""
    await _running(rows)
    await rows.add_nodes(cpu_node("n0", cpu=1))
    maintenance = Maintenance(rows.context())
    for _ in range(2):
        await maintenance.maintain()
    assert (drift_repair.OVER_CAPACITY, "n0") in await rows.drift()
    told = [r for r in caplog.records if r.getMessage() == "drift that stays"]
    assert told
    assert "kubectl drain" in told[0].__dict__["way_out"]
    assert len([s for s in await rows.slots("a") if s[3]]) == 2


@pytest.mark.own_database
async def test_a_table_without_statistics_gets_them_once(rows: Rows) -> None:
    """As after a restore: a planner that knows nothing of 50,000 rows reads them all."""
    await rows.see(*(workload(f"j{n}") for n in range(retention.ANALYZE_FROM)))
    await rows.execute("SELECT pg_stat_force_next_flush()")
    analyzed = await retention.analyze_unknown(rows.database)
    assert "fluxjobs" in analyzed
    assert "fluxjobs" not in await retention.analyze_unknown(rows.database)
