"""Jobs are planned by the ended runs of work that is alike, and the rows keep the plan."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.db.store.outlook import read_reservations
from fluxqueue.graph.ledger.placement import FOREVER
from fluxqueue.graph.ledger.shares import Live
from tests.support.pool_model import request
from tests.support.rows import Rows, rebuilt, workload
from tests.support.running_rows import end_run, run
from tests.support.seen import queue, see_queues

ALIKE: dict[str, Any] = {"template": "abc", "user_name": "ada"}


async def _learned(rows: Rows, *seconds: int, **spec: Any) -> None:
    """A queue in which work of one template took so long."""
    spec = {"durations": {"learn": "on"}, **spec}
    await see_queues(rows, queue("default", defaultDuration="1h", **spec))
    for number, held_s in enumerate(seconds):
        await run(rows, f"old-{number}", **ALIKE)
        await end_run(rows, f"old-{number}", held_s, **ALIKE)


async def _running(rows: Rows, uid: str) -> tuple[Live, int]:
    """What the ledger knows of a running job, and when it began."""
    ledger = await rebuilt(rows)
    began = await rows.value("SELECT starts_at FROM allocations WHERE uid = :u AND is_live", u=uid)
    return ledger.live[uid], began


async def test_a_job_without_a_limit_is_planned_as_long_as_its_like(rows: Rows) -> None:
    await _learned(rows, 100, 100, 100)
    await run(rows, "new", **ALIKE)
    live, began = await _running(rows, "new")
    assert live.until - began == pytest.approx(100, abs=30)
    assert live.limit == FOREVER


async def test_a_limit_stays_what_it_is(rows: Rows) -> None:
    """It is planned for less, and only its limit bounds it."""
    await _learned(rows, 100, 100, 100)
    limited = {**ALIKE, "is_limited": True, "duration_s": 7200}
    await rows.see(workload("new", request(1, cpu=1, duration_s=7200), **limited))
    await rows.match()
    live, began = await _running(rows, "new")
    assert live.until - began < 7200
    assert live.limit - began == 7200


@pytest.mark.parametrize("learn", ["off", "declaredOnly"])
async def test_a_queue_can_plan_as_declared(rows: Rows, learn: str) -> None:
    await _learned(rows, 100, 100, 100, durations={"learn": learn})
    await run(rows, "new", **ALIKE)
    live, began = await _running(rows, "new")
    assert live.until - began == 3600


async def test_other_users_are_not_alike(rows: Rows) -> None:
    """They share the class of newcomers alone: its first run took as long."""
    await _learned(rows, 100, *[3000] * 3)
    await run(rows, "new", template="abc", user_name="eve")
    live, began = await _running(rows, "new")
    assert live.until - began != pytest.approx(3000, abs=100)


async def test_a_plan_survives_a_new_matcher(rows: Rows) -> None:
    """What runs keeps its plan, and what comes is planned the same."""
    await _learned(rows, 100, 100, 100)
    await run(rows, "first", **ALIKE)
    await rows.begin_term()
    await run(rows, "second", **ALIKE)
    plans = await rows.fetch("SELECT plan_s FROM allocations WHERE is_live ORDER BY id")
    assert len({row["plan_s"] for row in plans}) == 1


async def test_a_new_matcher_knows_from_when_promised_nodes_are_kept(rows: Rows) -> None:
    """The promise rests on the limit. Until then its nodes are kept free by plan."""
    await _learned(rows, 100, 100, 100)
    limited = {**ALIKE, "is_limited": True, "duration_s": 7200}
    for name in ("first", "second"):
        await rows.see(workload(name, request(1, cpu=4, duration_s=7200), **limited))
        await rows.match()
    (limit,) = (one.limit for one in (await rebuilt(rows)).live.values())
    query = "SELECT starts_at, kept_from FROM reservations WHERE uid = 'second'"
    (kept,) = await rows.fetch(query)
    assert kept["starts_at"] >= limit
    assert kept["kept_from"] < limit - 3600
    async with rows.database.begin() as tx:
        stored = await read_reservations(tx)
    assert (stored["second"].starts_at, stored["second"].kept_from) == tuple(kept.values())
    await rows.begin_term()
    await rows.match()
    assert await rows.fetch(query) == [kept]
