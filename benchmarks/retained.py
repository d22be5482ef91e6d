"""``make bench-retained``: what ended FluxJobs cost while they are kept, as a table.

Fills a database with ENDED of them (five million by default: 12 GB and a quarter of an hour). Then
it runs retention, and everything that reads the queue's rows in operation, on a server with the
settings of ``fluxqueue up``. The same on an empty server is the measure.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path

import psycopg

from benchmarks.line import Line
from benchmarks.under_way import under_way
from fluxqueue.db import migrate, retention
from fluxqueue.db.database import Database
from fluxqueue_devtools.localpg import LocalPostgres
from tests.support import retained
from tests.support.readers import DAY_S, READERS, populate
from tests.support.rows import Rows, settings_for, workload

SHARE, BESIDES_MS = 2.0, 20.0
"""How much longer each may take than on an empty database."""

TRIES = 3
BATCH = 500
KEPT_S, AGE_S = 28 * DAY_S, 29 * DAY_S
"""What retention keeps when it is measured, and the age of the oldest: a 29th of all is to go."""

Times = dict[str, float]
"""Milliseconds by what was done."""


async def measure(url: str) -> Times:
    """Time each reader, and submission."""
    async with Database(settings_for(url), role="bench") as database:
        rows = Rows(database, settings=settings_for(url))
        await populate(rows)
        times = {}
        for name, reader in READERS.items():
            each = []
            for _ in range(TRIES):
                began = time.perf_counter()
                await reader(rows)
                each.append(time.perf_counter() - began)
            times[name] = 1000 * min(each)
        began = time.perf_counter()
        await rows.see(*(workload(f"new-{number}") for number in range(BATCH)))
        times[f"submission of {BATCH}"] = 1000 * (time.perf_counter() - began)
    return times


def compare(full: Times, empty: Times) -> list[Line]:
    """Each time on the full database, with what it may be as the goal."""
    lines = []
    for name, took in full.items():
        goal = round(SHARE * empty[name] + BESIDES_MS)
        lines.append(Line(f"{name} (empty: {empty[name]:.1f})", took, "ms", goal, False))
    return lines


async def retention_lines(url: str) -> list[Line]:
    """How long a turn of retention takes, and what it deletes."""
    before = _count(url)
    async with Database(settings_for(url), role="bench") as database:
        began = time.perf_counter()
        await retention.delete_old_rows(database, retention_s=KEPT_S, accounting_retention_s=KEPT_S)
        took_s = time.perf_counter() - began
    deleted = {table: before[table] - number for table, number in _count(url).items()}
    limit_s = len(before) * retention.TURN_S
    return [
        Line("a turn of retention, a 29th of all is old", took_s, "s", limit_s, False),
        *(Line(f"  it deletes of {table}", number, "rows") for table, number in deleted.items()),
    ]


def _count(url: str) -> dict[str, int]:
    found = {}
    with psycopg.connect(url, autocommit=True) as connection:
        for table in retained.TABLES:
            row = connection.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()  # noqa: S608
            assert row is not None
            found[table] = row[0]
    return found


def _database(server: LocalPostgres, name: str) -> str:
    """A migrated database. Its URL."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    url = server.url_of(name)
    migrate.upgrade(url)
    return url


def _size(url: str) -> str:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(
            "SELECT pg_size_pretty(pg_database_size(current_database()))"
        ).fetchone()
    assert row is not None
    return str(row[0])


def main() -> None:
    """Fill, measure and print. The exit code says whether the goals are reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ended", type=int, default=5_000_000, help="ended FluxJobs kept")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fluxqueue-retained-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # where the server runs as `nobody`
        with LocalPostgres(folder / "server") as server:
            empty = asyncio.run(measure(_database(server, "empty")))
            url = _database(server, "kept")
            began = time.perf_counter()
            retained.fill(url, arguments.ended, age_s=AGE_S)
            took_s = time.perf_counter() - began
            print(f"{arguments.ended:,} ended FluxJobs, made in {took_s:.0f} s: {_size(url)}")
            lines = compare(asyncio.run(measure(url)), empty)
            lines += asyncio.run(retention_lines(url))
    for line in lines:
        print(line.render())
    if not all(line.is_reached for line in lines):
        raise SystemExit(1)


if __name__ == "__main__":
    with under_way("retained"):
        main()
