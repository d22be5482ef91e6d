"""What is remembered of ended runs, by the transaction that ends them."""

from __future__ import annotations

import pytest

from fluxqueue.db.queries import Q
from fluxqueue.db.store.run_times import OF_OWNER, RunTimeRow
from fluxqueue.fluxjob.states import FluxJobState
from tests.support.pool_model import request
from tests.support.rows import Rows, cpu_node, workload
from tests.support.running_rows import end_run, run


async def _runs(rows: Rows, after: int = 0) -> list[RunTimeRow]:
    async with rows.database.begin() as tx:
        return await tx.fetch(Q.run_times_after, RunTimeRow, after=after, of_owner=OF_OWNER)


async def test_a_run_is_remembered_with_what_makes_it_alike(rows: Rows) -> None:
    more = {"user_name": "ada", "template": "abc", "is_limited": True, "duration_s": 600}
    await run(rows, "a", **more)
    await end_run(rows, "a", 120, **more)
    (one,) = await _runs(rows)
    assert (one.queue, one.owner, one.template) == ("default", "ada", "abc")
    assert (one.limit_s, one.result) == (600, FluxJobState.COMPLETED)
    assert one.seconds == pytest.approx(120, abs=30)
    assert await _runs(rows, after=one.id) == []


async def test_a_run_without_a_limit_or_a_user(rows: Rows) -> None:
    await run(rows, "a")
    await end_run(rows, "a", 60, result="Failed")
    (one,) = await _runs(rows)
    assert (one.owner, one.template, one.limit_s) == ("namespace default", "", None)
    assert one.result == FluxJobState.FAILED


async def test_what_never_ran_is_no_run(rows: Rows) -> None:
    await rows.add_nodes(cpu_node("n0"))
    await rows.see(workload("a", request(1, cpu=1)))
    await rows.see(workload("a", request(1, cpu=1), result="Failed"))
    await rows.reconcile("a")
    assert await _runs(rows) == []


async def test_each_class_keeps_its_last_runs(rows: Rows) -> None:
    """A burst of one template displaces nothing of another."""
    await run(rows, "rare", template="rare", user_name="ada")
    await end_run(rows, "rare", 50, template="rare", user_name="ada")
    for number in range(12):
        await run(rows, f"b{number}", template="busy", user_name="ada")
        await end_run(rows, f"b{number}", 100 + number, template="busy", user_name="ada")
    found = await _runs(rows)
    assert [one.template for one in found] == ["rare", *["busy"] * 8]
    assert found[-1].seconds == pytest.approx(111, abs=30)
    assert found == sorted(found, key=lambda one: one.id)
