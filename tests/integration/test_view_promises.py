"""Promised starts in "Queues and people": kept, excused, and broken."""

from __future__ import annotations

from collections.abc import AsyncIterator

import jsonschema
import pytest_asyncio

from fluxqueue.db.reading.queue_use import PROMISE_TOLERANCE_S
from fluxqueue.scheduler.promises import START_TOLERANCE_S
from fluxqueue.view.openapi import document
from tests.support.rows import Rows
from tests.support.viewing import EVERYWHERE, Viewing, filled

PATH = "/accounting/promises"

_RUN = """
INSERT INTO accounting (uid, jobid, run, namespace, name, workload_kind, user_name, queue, size,
                        queued_at, allocated_at, ended_at, nodes, slots, cpu_s, gpu_s, result)
VALUES (:uid, 900, :run, :namespace, :uid, 'Job', 'ada', 'default', 1,
        date_bin('1 day', now(), TIMESTAMPTZ '2000-01-01') + make_interval(secs => :queued),
        date_bin('1 day', now(), TIMESTAMPTZ '2000-01-01') + make_interval(secs => :queued + 100),
        date_bin('1 day', now(), TIMESTAMPTZ '2000-01-01') + make_interval(secs => :queued + 200),
        1, 1, 1, 0, 'Completed')
"""
_LINE = """
INSERT INTO history (uid, jobid, actor, event, at, detail)
SELECT uid, 900, 'test', :event, queued_at + make_interval(secs => :after),
       jsonb_build_object('starts_at',
           extract(epoch FROM queued_at + make_interval(secs => :start))::bigint)
FROM accounting WHERE uid = :uid AND run = :run
"""


@pytest_asyncio.fixture
async def rows(database_url: str) -> AsyncIterator[Rows]:
    """Two nodes and some jobs, with a promise that still waits."""
    async with filled(database_url) as found:
        await found.execute("DELETE FROM accounting")
        yield found


async def _ran(
    rows: Rows,
    uid: str,
    *promised: float,
    excused: bool = False,
    run: int = 1,
    queued: float = 0.0,
    namespace: str = "default",
) -> None:
    """Write a run that started 100 s after it was queued, with promises in seconds after that."""
    await rows.execute(_RUN, uid=uid, run=run, queued=queued, namespace=namespace)
    for number, start in enumerate(promised):
        await rows.execute(
            _LINE, uid=uid, run=run, event="Promised", after=number + 1.0, start=start
        )
    if excused:
        await rows.execute(_LINE, uid=uid, run=run, event="PromiseExcused", after=50.0, start=0.0)


def test_one_tolerance() -> None:
    """``view`` must not import the scheduler."""
    assert PROMISE_TOLERANCE_S == START_TOLERANCE_S


async def test_promises_by_time(view: Viewing, rows: Rows) -> None:
    """The first promise of each run counts. A run without one does not."""
    await _ran(rows, "early", 300.0)
    await _ran(rows, "exact", 100.0)
    await _ran(rows, "nearly", 96.0)
    await _ran(rows, "late", 50.0, 300.0)
    await _ran(rows, "excused", 50.0, excused=True)
    await _ran(rows, "none")
    # Its second run had no promise, and the promise of its first run was kept.
    await _ran(rows, "twice", 300.0)
    await _ran(rows, "twice", run=2, queued=4000.0)
    answer = await view.get(f"{PATH}?step=day")
    about = document()
    schema = about["paths"][f"/api/v1{PATH}"]["get"]["responses"]["200"]["content"]
    jsonschema.validate(
        answer.body, {**schema["application/json"]["schema"], "components": about["components"]}
    )
    (one,) = answer.body["items"]
    assert (one["promised"], one["kept"], one["excused"]) == (6, 4, 1)


async def test_only_of_namespaces_that_the_user_sees(view: Viewing, rows: Rows) -> None:
    await _ran(rows, "mine", 300.0)
    await _ran(rows, "other", 300.0, namespace="other")
    await view.let("carl", ("fluxjobs", "default"), ("nodes", EVERYWHERE))
    (one,) = (await view.get(f"{PATH}?step=day", "carl")).body["items"]
    assert one["promised"] == 1
    assert (await view.get(f"{PATH}?step=year")).code == 400


async def test_damaged_promises_count_for_nothing(view: Viewing, rows: Rows) -> None:
    await _ran(rows, "odd", 300.0)
    await rows.execute(
        "UPDATE history SET detail = '{\"starts_at\": \"soon\"}' WHERE event = 'Promised'"
    )
    assert (await view.get(PATH)).body["items"] == []
