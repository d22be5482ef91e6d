"""The views people read: the queue in order, what nodes hold, and every kind of drift."""

from __future__ import annotations

import pytest

from fluxqueue.db.life.observations import save_foreign
from fluxqueue.db.reading.gauges import read_gauges
from fluxqueue.fluxjob.node import ForeignPod
from fluxqueue.fluxjob.request import CPU
from tests.support.pool_model import request
from tests.support.rows import Rows, cpu_node, pod, workload


async def test_queue_is_in_the_order_of_the_next_cycle(rows: Rows) -> None:
    """Priority, then submission; who is not looked at stands behind, without a position."""
    await rows.add_nodes(cpu_node("n0", cpu=1))
    await rows.see(workload("first"), workload("late"), workload("high", priority=5))
    await rows.see(workload("kept", held_by="author"), workload("never", request(cpu=99)))
    await rows.see(workload("tonight", begin_at_s=4_000_000_000, priority=9))
    await rows.match()
    listed = await rows.fetch("SELECT position, name, state FROM queue")
    assert [tuple(row.values()) for row in listed] == [
        (1, "first", "Reserved" if listed[0]["state"] == "Reserved" else "Pending"),
        (2, "late", "Pending"),
        (None, "tonight", "Pending"),
        (None, "kept", "Held"),
        (None, "never", "Unsatisfiable"),
    ]
    assert await rows.value("SELECT count(*) FROM pending_queue") == 3
    assert await rows.value("SELECT reason FROM queue WHERE name = 'never'") != ""


async def test_node_usage_adds_up(rows: Rows) -> None:
    """capacity = allocated + foreign + free, slot by slot."""
    await rows.add_nodes(cpu_node("n0", cpu=10))
    async with rows.database.begin() as tx:
        await save_foreign(tx, [ForeignPod("x", "ns", "x", "n0", {CPU: 3})], [])
    await rows.see(workload("a", request(2, cpu=2)))
    await rows.match()
    (usage,) = await rows.fetch("SELECT * FROM node_usage")
    usage = {key: str(value) for key, value in usage.items()}
    assert usage == {
        "node": "n0",
        "resource": "cpu",
        "capacity": "10",
        "allocated": "4",
        "foreign_used": "3",
        "free": "3",
    }


async def running(rows: Rows) -> None:
    """One healthy running FluxJob of one pod."""
    await rows.add_nodes(cpu_node("n0"))
    await rows.see(workload("a", pods=(pod("p"),)))
    await rows.match()
    await rows.settle("a")
    await rows.see(workload("a", pods=(pod("p", "Running", is_gated=False),)))
    await rows.settle("a")
    assert await rows.states() == {"a": "Running"}
    await rows.check()


BREAKS = {
    "node over capacity": "UPDATE allocation_slots SET resources = '{\"cpu\": 99}'",
    "ended workload holds an allocation": (
        "UPDATE fluxjobs SET state = 'Completed', ended_at = now()"
    ),
    "running workload without an allocation": (
        "UPDATE allocation_slots SET state = 'returned', pod_uid = NULL;"
        "UPDATE allocations SET is_live = false, ended_at = now();"
        "DELETE FROM pods"
    ),
    "slot of an ended allocation not returned": (
        "UPDATE allocations SET is_live = false, ended_at = now();"
        "UPDATE fluxjobs SET state = 'Failed', ended_at = now()"
    ),
    "ungated pod without a slot": ("UPDATE allocation_slots SET state = 'free', pod_uid = NULL"),
}


@pytest.mark.parametrize("invariant", BREAKS)
async def test_each_broken_invariant_shows(rows: Rows, invariant: str) -> None:
    """Break one thing by hand; drift names exactly that."""
    await running(rows)
    for statement in BREAKS[invariant].split(";"):
        await rows.execute(statement.replace(":", "\\:"))
    assert {kind for kind, _ in await rows.drift()} == {invariant}


async def test_less_allocatable_than_allocated_is_no_drift_of_ours(rows: Rows) -> None:
    """A node that shrinks or is removed under running pods is the cluster's doing."""
    await running(rows)
    await rows.add_nodes(gone=("n0",))
    await rows.check()


async def test_slots_on_lost_nodes_are_counted(rows: Rows) -> None:
    """On one that is gone and on one that is down; a slot that no pod has is no loss."""
    await running(rows)
    assert (await read_gauges(rows.database)).lost == 0
    await rows.execute("UPDATE nodes SET fact = jsonb_set(fact, '{up}', 'false')")
    assert (await read_gauges(rows.database)).lost == 1
    await rows.add_nodes(gone=("n0",))
    assert (await read_gauges(rows.database)).lost == 1
    await rows.execute("UPDATE allocation_slots SET state = 'free', pod_uid = NULL")
    assert (await read_gauges(rows.database)).lost == 0
