"""What has ended is kept for a month and costs nothing: no reader touches it.

The server itself counts the rows that a transaction reads, those of its triggers included. What a
reader may touch does not depend on how many ended rows there are.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from fluxqueue.db import retention
from fluxqueue.db.database import Database, Transaction
from tests.support import retained
from tests.support.readers import DAY_S, READERS, populate
from tests.support.rows import Rows, settings_for
from tests.support.sql import dicts

pytestmark = pytest.mark.own_database

ENDED = 20_000
ROWS_MAX = 1_000
"""A step of retention reads a hundred rows and all they have. All others less."""

_READ = """
SELECT relname AS name, seq_scan AS scans, seq_tup_read + coalesce(idx_tup_fetch, 0) AS number
FROM pg_stat_xact_user_tables WHERE relname = ANY(CAST(:tables AS text[]))
"""


class CountingDatabase(Database):
    """Counts the rows of the large tables that its transactions read, and their scans."""

    def __init__(self, url: str) -> None:
        super().__init__(settings_for(url), role="test")
        self.rows_read: dict[str, int] = defaultdict(int)
        self.scans: dict[str, int] = defaultdict(int)

    @asynccontextmanager
    async def begin(self, *, at_one_instant: bool = False) -> AsyncIterator[Transaction]:
        """As ever, and count. The server's counters go on from one transaction to the next."""
        async with super().begin(at_one_instant=at_one_instant) as tx:
            await self._count(tx, -1)
            yield tx
            await self._count(tx, 1)

    async def _count(self, tx: Transaction, sign: int) -> None:
        for row in await dicts(tx, _READ, tables=list(retained.TABLES)):
            self.rows_read[row["name"]] += sign * row["number"]
            self.scans[row["name"]] += sign * row["scans"]

    def too_much(self) -> dict[str, tuple[int, int]]:
        """Tables that were scanned, or read too far: scans and rows. Begins to count anew."""
        found = {
            name: (self.scans[name], number)
            for name, number in self.rows_read.items()
            if self.scans[name] or number > ROWS_MAX
        }
        self.rows_read.clear()
        self.scans.clear()
        return found


@pytest.mark.long("many cases at once, for seconds of processor time")
@pytest.mark.slow
async def test_no_reader_touches_what_has_ended(database_url: str) -> None:
    """With twenty thousand ended FluxJobs beside a few living ones."""
    retained.fill(database_url, ENDED)
    async with CountingDatabase(database_url) as database:
        rows = Rows(database, settings=settings_for(database_url))
        await populate(rows)
        database.too_much()
        found = {}
        for name, reader in READERS.items():
            await reader(rows)
            if too_much := database.too_much():
                found[name] = too_much
        assert found == {}


@pytest.mark.long("many cases at once, for seconds of processor time")
@pytest.mark.slow
async def test_retention_deletes_in_steps(database_url: str) -> None:
    """What is old goes with all it has, whatever its number. What is younger stays."""
    retained.fill(database_url, ENDED)
    async with CountingDatabase(database_url) as database:
        rows = Rows(database, settings=settings_for(database_url))
        younger = await rows.value(
            "SELECT count(*) FROM fluxjobs WHERE ended_at >= now() - interval '10 days'"
        )
        database.too_much()
        await retention.delete_old_rows(
            database, retention_s=10 * DAY_S, accounting_retention_s=10 * DAY_S
        )
        assert {name: one for name, one in database.too_much().items() if one[0]} == {}
        for table in ("fluxjobs", "allocations", "allocation_slots", "accounting"):
            left = await rows.value(f"SELECT count(*) FROM {table}")
            assert left == pytest.approx(younger, abs=2), table
        lines = await rows.value("SELECT count(*) FROM history")
        assert lines == pytest.approx(younger * len(retained.LINES), abs=4 * len(retained.LINES))


async def test_a_gang_of_many_slots_is_a_step_of_its_own(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step is counted in slots, for these are what is deleted."""
    monkeypatch.setattr(retention, "STEP_FIRST", 3)
    monkeypatch.setattr(retention, "STEP_MAX", 3)
    retained.fill(database_url, 13)  # the last has just ended
    async with Database(settings_for(database_url), role="test") as database:
        rows = Rows(database, settings=settings_for(database_url))
        await rows.execute("UPDATE fluxjobs SET size = 1000 WHERE jobid <= 3")
        sizes: list[int] = []
        begin = database.begin

        @asynccontextmanager
        async def counted() -> AsyncIterator[Transaction]:
            async with begin() as tx:
                (before,) = await dicts(tx, "SELECT count(*) AS number FROM fluxjobs")
                yield tx
                (after,) = await dicts(tx, "SELECT count(*) AS number FROM fluxjobs")
                sizes.append(before["number"] - after["number"])

        monkeypatch.setattr(database, "begin", counted)
        await retention.delete_old_rows(database, retention_s=60)
    assert [size for size in sizes if size] == [1, 1, 1, 3, 3, 3]


async def test_a_failed_task_is_kept_for_a_day(rows: Rows) -> None:
    """So that it is seen. What went well is of no interest."""
    for name, status, age in (
        ("well", "succeeded", "1 hour"),
        ("failed", "failed", "1 hour"),
        ("long-ago", "failed", "2 days"),
        ("waits", "todo", "2 days"),
    ):
        await rows.execute(
            "WITH job AS (INSERT INTO procrastinate.procrastinate_jobs"
            " (queue_name, task_name, status) VALUES ('effects', :name,"
            " CAST(:status AS procrastinate.procrastinate_job_status)) RETURNING id)"
            " INSERT INTO procrastinate.procrastinate_events (job_id, type, at)"
            " SELECT id, 'deferred', now() - CAST(CAST(:age AS text) AS interval) FROM job",
            name=name,
            status=status,
            age=age,
        )
    await rows.execute(
        "DELETE FROM procrastinate.procrastinate_events WHERE at > now() - interval '1 minute'"
    )
    await retention.delete_old_rows(rows.database, retention_s=DAY_S)
    left = await rows.fetch("SELECT task_name FROM procrastinate.procrastinate_jobs ORDER BY 1")
    assert [row["task_name"] for row in left] == ["failed", "waits"]
