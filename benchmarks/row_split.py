"""``make bench-row``: what it would cost to split the row of a FluxJob by its writers.

Both forms live side by side in one database: the table as it is, and five tables with the columns
of one writer each. The writers are those of the decision, observations, overrides, the status and
pending actions. Jobs pass
through the statements of a life, in batches as in a full cluster. Triggers are left out of both.
The split has fewer indexes, since most partial indexes need columns of two tables: its figures are
a lower bound. The result is in docs/decisions/0013-one-row-for-a-fluxjob.md.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from benchmarks.line import Line
from benchmarks.under_way import under_way
from fluxqueue.db import migrate
from fluxqueue.db.database import Database, Transaction
from fluxqueue.db.tables import fluxjobs
from fluxqueue_devtools.localpg import LocalPostgres
from tests.support.rows import settings_for
from tests.support.sql import dicts

BATCH = 100
GOAL = 1.05
"""The split is worth its joins if a job costs at most so much more."""
STATUS = ("published", "notices")
PENDING = ("release_at", "reconcile_at", "status_due_at", "troubles")
OVERRIDES = ("overrides", "cancel_by")
OBSERVED = ("observed", "result", "is_deleting", "is_gone", "pinned_to", "is_placed", "size")

_SHOWN = """published || jsonb_build_object('version', version, 'told', 'x', 'written_at', now())"""
LIFE: tuple[Mapping[str, str], ...] = (
    {
        "state": "'Allocated'",
        "allocated_at": "now()",
        "version": "version + 1",
        "release_at": "now()",
    },
    {"released_generation": "2", "release_at": "NULL", "published": _SHOWN},
    {"observed": """'{"wanted": 1, "is_suspendable": true}'""", "reconcile_at": "now()"},
    {
        "state": "'Running'",
        "started_at": "now()",
        "version": "version + 1",
        "reconcile_at": "NULL",
        "status_due_at": "now()",
    },
    {"published": _SHOWN, "status_due_at": "NULL"},
    {"result": "'Completed'", "reconcile_at": "now()"},
    {
        "state": "'Completed'",
        "ended_at": "now()",
        "version": "version + 1",
        "reconcile_at": "NULL",
        "status_due_at": "now()",
    },
    {"published": _SHOWN, "status_due_at": "NULL"},
)
"""What one job has set, in order: started, released, seen, runs, shown, seen, over, shown."""
READS = 4
"""How often its whole row is read: for two looks at its pods and two status updates."""


def groups() -> dict[str, list[str]]:
    """Return the columns of each of the five tables, without the key."""
    found: dict[str, list[str]] = {"main": [], "seen": [], "set": [], "shown": [], "due": []}
    for column in fluxjobs.columns:
        name = column.name
        if column.computed is not None:
            continue
        part = (
            "shown" if name in STATUS else "due" if name in PENDING else "set" if name in OVERRIDES
            else "seen" if name in OBSERVED else "main"
        )  # fmt: skip
        if name != "uid":
            found[part].append(name)
    return found


async def _make_tables(tx: Transaction) -> None:
    await tx.execute("CREATE TABLE bench_whole (LIKE fluxjobs INCLUDING ALL)")
    for part, columns in groups().items():
        await tx.execute(f"CREATE TABLE bench_{part} (LIKE fluxjobs INCLUDING ALL)")
        for column in fluxjobs.columns:
            is_made = column.computed is not None and "observed" in columns
            if column.name not in {"uid", *columns} and not is_made:
                await tx.execute(
                    f"ALTER TABLE bench_{part} DROP COLUMN IF EXISTS {column.name} CASCADE"
                )


async def _insert(tx: Transaction, uids: list[str], *, is_split: bool) -> None:
    columns = [column.name for column in fluxjobs.columns if column.computed is None]
    tables = {f"bench_{part}": ["uid", *names] for part, names in groups().items()}
    for table, names in (tables if is_split else {"bench_whole": columns}).items():
        wanted = ", ".join(names)
        made = ", ".join(f"made.{name}" for name in names)
        await tx.execute(
            f"INSERT INTO {table} ({wanted}) OVERRIDING SYSTEM VALUE SELECT {made}"  # noqa: S608
            " FROM bench_template t,"
            " unnest(CAST(:uids AS text[])) WITH ORDINALITY AS u (uid, n),"
            " jsonb_populate_record(t, jsonb_build_object('uid', u.uid, 'name', u.uid,"
            " 'workload_name', u.uid, 'jobid', :first + u.n)) AS made",
            uids=uids,
            first=int(uids[0].split("-")[1]) * BATCH,
        )


async def _step(
    tx: Transaction, uids: list[str], values: Mapping[str, str], *, is_split: bool
) -> None:
    if not is_split:
        sets = ", ".join(f"{name} = {value}" for name, value in values.items())
        await tx.execute(f"UPDATE bench_whole SET {sets} WHERE uid = ANY(:uids)", uids=uids)  # noqa: S608
        return
    for part, names in groups().items():
        mine = {name: value for name, value in values.items() if name in names}
        if mine:
            sets = ", ".join(
                f"{name} = {value.replace(' version', ' m.version') if part == 'shown' else value}"
                for name, value in mine.items()
            )
            source = " FROM bench_main m" if part == "shown" else ""
            key = "b.uid = m.uid AND b.uid" if part == "shown" else "b.uid"
            await tx.execute(
                f"UPDATE bench_{part} b SET {sets}{source}"  # noqa: S608
                f" WHERE {key} = ANY(:uids)",
                uids=uids,
            )


async def _read(tx: Transaction, uids: list[str], *, is_split: bool) -> None:
    joins = " ".join(f"JOIN bench_{part} USING (uid)" for part in ("seen", "set", "shown", "due"))
    source = f"bench_main {joins}" if is_split else "bench_whole"
    await dicts(tx, f"SELECT * FROM {source} WHERE uid = ANY(:uids)", uids=uids)  # noqa: S608


async def _live(database: Database, turn: int, jobs: int, *, is_split: bool) -> float:
    """Seconds in which so many jobs pass through their lives."""
    began_s = time.perf_counter()
    for batch in range(jobs // BATCH):
        first = turn * jobs // BATCH + batch
        uids = [f"u-{first}-{n}" for n in range(BATCH)]
        async with database.begin() as tx:
            await _insert(tx, uids, is_split=is_split)
        for number, values in enumerate(LIFE):
            async with database.begin() as tx:
                if number % 2 == 0 and number // 2 < READS:
                    await _read(tx, uids, is_split=is_split)
                await _step(tx, uids, values, is_split=is_split)
    return time.perf_counter() - began_s


async def measure(jobs: int, turns: int) -> float:
    """Return the cost of a job's life in five tables, as a multiple of that in one."""
    with tempfile.TemporaryDirectory() as folder, LocalPostgres(Path(folder) / "server") as server:
        await asyncio.to_thread(migrate.upgrade, server.url)
        async with Database(settings_for(server.url), role="bench") as database:
            async with database.begin() as tx:
                await _make_tables(tx)
                await tx.execute(
                    "INSERT INTO fluxjobs (uid, namespace, name, workload_kind, workload_name,"
                    " user_name, size, request, state, queue, observed)"
                    " VALUES ('t', 'default', 't', 'Job', 't', 'user', 1, '{}', 'Pending',"
                    " 'default', '{\"wanted\": 1, \"is_suspended\": true}')"
                )
                await tx.execute("CREATE TABLE bench_template AS SELECT * FROM fluxjobs")
            ratios = []
            for turn in range(turns):
                whole_s = await _live(database, turn, jobs, is_split=False)
                split_s = await _live(database, turn, jobs, is_split=True)
                ratios.append(split_s / whole_s)
    return statistics.median(ratios)


def main() -> None:
    """Measure, and print one line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2000)
    parser.add_argument("--turns", type=int, default=5)
    asked = parser.parse_args()
    ratio = asyncio.run(measure(asked.jobs, asked.turns))
    line = Line("a job's life in five tables, against one", ratio, "", GOAL, is_more_better=False)
    print(line.render(2))


if __name__ == "__main__":
    with under_way("row_split"):
        main()
