"""Use over time in "Queues and people": each run counts when it ran, also while it runs."""

from __future__ import annotations

from collections.abc import AsyncIterator

import jsonschema
import pytest
import pytest_asyncio

from fluxqueue.view.openapi import document
from tests.support.rows import Rows
from tests.support.viewing import Viewing, filled

PATH = "/accounting/utilisation"
_NOON = "date_bin('1 day', now(), TIMESTAMPTZ '2000-01-01') - interval '12 hours'"
_RUN = f"""
INSERT INTO accounting (uid, jobid, run, namespace, name, workload_kind, user_name, queue, size,
                        queued_at, allocated_at, ended_at, nodes, slots, cpu_s, gpu_s, result)
VALUES (:uid, 900, 1, 'default', :uid, 'Job', :user, 'default', 1, {_NOON},
        {_NOON} + make_interval(secs => :began), {_NOON} + make_interval(secs => :ended),
        1, 1, :cpus * (:ended - :began), :gpus * (:ended - :began), 'Completed')
"""


@pytest_asyncio.fixture
async def rows(database_url: str) -> AsyncIterator[Rows]:
    """No work but what a test writes, at noon of yesterday and after."""
    async with filled(database_url) as found:
        await found.execute("DELETE FROM accounting")
        yield found


async def test_a_run_counts_in_each_hour_for_its_part(view: Viewing, rows: Rows) -> None:
    """Three hours from half past twelve, and ten minutes of another user."""
    values = {"began": 1800.0, "ended": 12_600.0, "cpus": 4.0, "gpus": 2.0}
    await rows.execute(_RUN, uid="long", user="ada", **values)
    await rows.execute(_RUN, uid="short", user="bo", began=0.0, ended=600.0, cpus=6.0, gpus=0.0)
    form = 'YYYY-MM-DD"T"HH24:MI:SSZ'
    until = await rows.value(f"SELECT to_char({_NOON} + interval '5 hours', '{form}')")
    answer = await view.get(f"{PATH}?since=3d&until={until}")
    assert answer.code == 200, answer.body
    schema = document()["paths"][f"/api/v1{PATH}"]["get"]["responses"]["200"]["content"]
    jsonschema.validate(
        answer.body,
        {**schema["application/json"]["schema"], "components": document()["components"]},
    )
    found = [(one["cpuHours"], one["gpuHours"]) for one in answer.body["items"]]
    assert found == [
        (pytest.approx(3), pytest.approx(1)),
        *[(pytest.approx(4), pytest.approx(2))] * 2,
        (pytest.approx(2), pytest.approx(1)),
    ]
    only = await view.get(f"{PATH}?since=3d&until={until}&user=bo&step=day")
    assert [one["cpuHours"] for one in only.body["items"]] == [pytest.approx(1)]


async def test_running_work_counts(view: Viewing, rows: Rows) -> None:
    """From its start until now: it holds two nodes of four millicores."""
    await rows.execute(
        "UPDATE fluxjobs SET allocated_at = now() - interval '2 hours'"
        " WHERE allocated_at IS NOT NULL"
    )
    answer = await view.get(f"{PATH}?since=1h&step=day")
    assert answer.code == 200, answer.body
    total = sum(one["cpuHours"] for one in answer.body["items"])
    booked = await rows.value(
        "SELECT sum(CAST(resources ->> 'cpu' AS numeric)) FROM allocation_slots"
        " JOIN allocations ON id = allocation_id WHERE is_live AND state <> 'returned'"
    )
    assert total == pytest.approx(float(booked) / 1000, rel=0.01)
