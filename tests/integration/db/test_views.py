"""The views people read: the queue in order, what nodes hold, and every kind of drift."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from benchmarks.view import fill as fill_view
from fluxqueue.db.database import Database
from fluxqueue.db.queries import Q
from fluxqueue.db.reading.fluxjobs import ALL, Narrow, Turn, living, values_of
from fluxqueue.db.reading.gauges import read_gauges
from fluxqueue.db.store.cluster_rows import save_foreign
from fluxqueue.fluxjob.node import ForeignPod
from fluxqueue.fluxjob.request import CPU
from tests.support.pool_model import request
from tests.support.rows import Rows, cpu_node, pod, settings_for, workload


async def test_queue_is_in_the_order_of_the_next_cycle(rows: Rows) -> None:
    """Priority, then submission. A job that is not looked at stands behind, without a position."""
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
    await rows.reconcile("a")
    await rows.see(workload("a", pods=(pod("p", "Running", is_gated=False),)))
    await rows.reconcile("a")
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
    """Break one thing by hand. Drift names exactly that."""
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
    """On one that is gone and on one that is down. A slot that no pod has is no loss."""
    await running(rows)
    assert (await read_gauges(rows.database)).lost == 0
    await rows.execute("UPDATE nodes SET fact = jsonb_set(fact, '{up}', 'false')")
    assert (await read_gauges(rows.database)).lost == 1
    await rows.add_nodes(gone=("n0",))
    assert (await read_gauges(rows.database)).lost == 1
    await rows.execute("UPDATE allocation_slots SET state = 'free', pod_uid = NULL")
    assert (await read_gauges(rows.database)).lost == 0


async def test_queues_that_do_not_exist_are_one_series(rows: Rows) -> None:
    """Users make up such names. Those that exist have their own series."""
    await rows.see(*(workload(f"w{number}", queue=f"made-up-{number}") for number in range(30)))
    await rows.see(workload("usual"), workload("usual-2"))
    found = await read_gauges(rows.database)
    assert {queue: number for (queue, _), number in found.fluxjobs.items()} == {
        "": 30,
        "default": 2,
    }
    assert {queue for queue, _ in found.oldest_s} == {"", "default"}


async def test_pages_of_the_list_are_the_whole(rows: Rows) -> None:
    """In every size, narrowed or not, each position counted among all that wait."""
    await rows.add_nodes(cpu_node("n0", cpu=2))
    await rows.see(
        *(
            workload(
                f"w{number}",
                request(cpu=number % 3 or 9),
                priority=number % 4 - 1,
                namespace=f"team-{number % 3}",
                **more,
            )
            for number in range(24)
            for more in [KINDS_OF_WAITING[number % len(KINDS_OF_WAITING)]]
        )
    )
    await rows.match()
    for narrow in (ALL, Narrow(namespaces=["team-1"]), Narrow(states=["Pending", "Held"])):
        whole = await living(rows.database, narrow)
        if narrow is ALL:
            assert [one.position for one in whole if one.position] == list(
                range(1, 1 + sum(one.rank == 1 for one in whole))
            )
            assert {one.rank for one in whole} == {0, 1, 2, 3}
            positions = {one.jobid: one.position for one in whole}
        assert [one.position for one in whole] == [positions[one.jobid] for one in whole]
        for limit in (1, 2, 5, 100):
            assert await _paged(rows, narrow, limit) == whole


KINDS_OF_WAITING: list[dict[str, Any]] = [
    {},
    {},
    {"begin_at_s": 4_000_000_000},
    {},
    {"held_by": "author"},
]


async def _paged(rows: Rows, narrow: Narrow, limit: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    after = None
    while page := await living(rows.database, narrow, limit=limit, after=after):
        found += page
        last = page[-1]
        after = Turn(last.rank, last.priority, last.jobid, last.position or 0)
    return found


@pytest.mark.slow
async def test_a_page_touches_what_it_shows(database_url: str) -> None:
    """The index is walked from where the page begins, whatever stands before and behind it."""
    fill_view(database_url, 3000)
    async with Database(settings_for(database_url), role="test") as database:
        rows = Rows(database, settings=settings_for(database_url))
        for after in (None, Turn(1, 50, 4500, 1400), Turn(1, 3, 3500, 2800)):
            page = await living(database, limit=50, after=after)
            first = page[0]
            behind = Turn(first.rank, first.priority, first.jobid, first.position or 0)
            plan = await rows.fetch(
                "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) " + Q.living_behind,
                **values_of(ALL, 50, behind),
            )
            (top,) = plan[0]["QUERY PLAN"]
            assert _rows_read(top["Plan"]) < 50 * 8


def _rows_read(plan: Mapping[str, Any]) -> int:
    """What scans of tables and indexes gave, and what they gave in vain."""
    own = 0
    if "Scan" in plan["Node Type"] and plan["Node Type"] != "CTE Scan":
        each = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
        own = int(each * plan["Actual Loops"])
    return own + sum(map(_rows_read, plan.get("Plans", ())))
