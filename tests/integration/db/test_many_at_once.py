"""What is done for many at once grows with their number and not with its square.

The planner often does not know how many there are: a burst is over before the tables are analysed
again. Each statement is asked here what it has touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from fluxqueue.db.reader import DatabaseReading, statement
from fluxqueue.db.store.desired_state import read_pending_releases
from fluxqueue.db.store.statuses import read_due_statuses
from tests.support.rows import Rows, cpu_node, workload

pytestmark = pytest.mark.own_database

MANY = 300
EACH_MAX = 12
"""Rows that one step of a plan may touch for each."""


@pytest.fixture
async def touched(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """Rows that the busiest step of each statement has touched, by the statement's beginning."""
    for table in ("fluxjobs", "allocations", "allocation_slots", "nodes"):
        await rows.execute(f"ALTER TABLE {table} SET (autovacuum_enabled = false)")
    most: dict[str, int] = {}
    fetch = DatabaseReading.fetch

    async def explain(
        self: DatabaseReading, sql: str, row: Callable[..., Any], **values: Any
    ) -> list[Any]:
        asked = statement(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {sql}", values)
        run = self.connection.execute
        session = self.connection.sync_connection
        assert session is not None
        is_alone = "isolation_level" in session.get_execution_options()
        await run(*statement("BEGIN" if is_alone else "SAVEPOINT before", {}))
        found = (await run(*asked)).scalar()
        await run(*statement("ROLLBACK" if is_alone else "ROLLBACK TO before", {}))
        assert found is not None
        plan = found[0]["Plan"]
        key = " ".join(sql.split())[:60]
        most[key] = max(most.get(key, 0), *(_rows(step) for step in _steps(plan)))
        return await fetch(self, sql, row, **values)

    monkeypatch.setattr(DatabaseReading, "fetch", explain)
    return most


def _steps(step: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    yield step
    for below in step.get("Plans", ()):
        yield from _steps(below)


def _rows(step: Mapping[str, Any]) -> int:
    removed = sum(step.get(f"Rows Removed by {why}", 0) for why in ("Filter", "Join Filter"))
    return int((step["Actual Rows"] + removed) * step["Actual Loops"])


_LOOK_AGAIN = "INSERT INTO graph_changes (kind, key) SELECT 'allocation', id::text FROM allocations"


async def _have_had(rows: Rows, number: int) -> None:
    """All that the planner knows of: workloads that have ended, and nothing that lives."""
    await rows.see(*(workload(f"old{one:03}") for one in range(number)))
    await rows.match()
    await rows.execute(
        "UPDATE allocation_slots SET state = 'returned', pod_uid = NULL, returned_at = now()"
    )
    await rows.execute("UPDATE allocations SET is_live = false, ended_at = now()")
    await rows.execute(
        "UPDATE fluxjobs SET state = 'Completed', ended_at = now(), started_at = now(),"
        " is_gone = true, release_at = NULL, reconcile_at = NULL,"
        " published = published || jsonb_build_object('version', version + 1)"
    )
    await rows.execute(_LOOK_AGAIN)
    await rows.match()
    await rows.forget_tasks()
    await rows.execute("ANALYZE")


async def test_starts_and_what_is_told_of_them(rows: Rows, touched: Mapping[str, int]) -> None:
    uids = [f"j{number:03}" for number in range(MANY)]
    await rows.add_nodes(*(cpu_node(f"n{number}", cpu=64) for number in range(MANY // 64 + 1)))
    await _have_had(rows, MANY)
    await rows.see(*(workload(uid) for uid in uids))
    await rows.match()
    assert len(await read_pending_releases(rows.database, uids)) == MANY
    await rows.execute(
        "UPDATE fluxjobs SET release_at = NULL, state = 'Running',"
        " published = published || jsonb_build_object('version', version, 'written_at',"
        " now() - interval '2.5 s'), allocated_at = now() - interval '3 s',"
        " started_at = now(), status_due_at = now() WHERE state = 'Allocated'"
    )
    assert await read_due_statuses(rows.database, uids) == [], "it is put off to tell of so many"
    await rows.execute(_LOOK_AGAIN)
    await rows.match()
    assert len(touched) > 5
    too_many = {words: number for words, number in touched.items() if number > EACH_MAX * MANY}
    assert too_many == {}
