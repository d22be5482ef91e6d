"""docs/admin/operations.md: its commands for backup and restore, on real servers.

What becomes of a running system with lost or old rows: ``tests/e2e/test_rebuild.py``.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from fluxqueue.db.database import Database
from fluxqueue.db.store.cluster_rows import save_nodes
from fluxqueue.db.store.observations import save_workloads
from fluxqueue_devtools.localpg.binaries import PostgresBinaries
from tests.support.postgres import PostgresServer, by_major, running_server
from tests.support.rows import cpu_node, settings_for, workload
from tests.support.wheel import ROOT, Installation, clean_environ

SCHEMAS = ("public", "procrastinate")
Content = dict[str, list[tuple[Any, ...]]]


def from_the_documentation(kind: str) -> str:
    """The block of docs/admin/operations.md that begins with ``# KIND:``."""
    text = (ROOT / "docs" / "admin" / "operations.md").read_text(encoding="utf-8")
    blocks = re.findall(rf"^```bash\n# {kind}:[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1, f"one block says '# {kind}:'"
    return str(blocks[0])


@pytest.fixture(params=by_major("pg_dump", "pg_restore"))
def server(request: pytest.FixtureRequest) -> Iterator[tuple[PostgresServer, PostgresBinaries]]:
    """A server of each supported version that is here."""
    with running_server(request.param) as running:
        yield running, request.param


def shell(
    script: str, folder: Path, url: str, found: PostgresBinaries, installation: Installation
) -> str:
    """Run lines of the documentation with the programs that they name."""
    path = f"{installation.folder / 'bin'}:{found.folder}:/usr/bin:/bin"
    done = subprocess.run(
        ["bash", "-euc", script],
        cwd=folder,
        env=clean_environ(DATABASE_URL=url, PATH=path),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def content(url: str) -> Content:
    """Every row of every table of both schemas, and where the sequences stand."""
    found: Content = {}
    with psycopg.connect(url) as connection:
        tables = connection.execute(
            "SELECT schemaname, tablename FROM pg_tables WHERE schemaname = ANY(%s)",
            [list(SCHEMAS)],
        ).fetchall()
        for schema, table in tables:
            query = sql.SQL("SELECT t::text FROM {}.{} AS t ORDER BY 1")
            query = query.format(sql.Identifier(schema), sql.Identifier(table))
            found[f"{schema}.{table}"] = connection.execute(query).fetchall()
        found["sequences"] = connection.execute(
            "SELECT schemaname, sequencename, last_value FROM pg_sequences"
            " WHERE schemaname = ANY(%s) ORDER BY 1, 2",
            [list(SCHEMAS)],
        ).fetchall()
    return found


async def queue_something(url: str, *uids: str) -> None:
    """Rows as the controller writes them. Triggers add audit lines, tasks and numbers."""
    async with Database(settings_for(url), role="controller") as database, database.begin() as tx:
        await save_nodes(tx, [cpu_node("node-1")], [])
        await save_workloads(tx, [workload(uid) for uid in uids])


@pytest.mark.long("starts processes of its own, for seconds of processor time")
async def test_dump_drop_restore(
    server: tuple[PostgresServer, PostgresBinaries], installation: Installation, tmp_path: Path
) -> None:
    """Nothing is lost, the schema is the code's, and triggers and numbers go on where they were."""
    running, found = server
    url = running.create()
    await queue_something(url, "a", "b", "c")
    before = content(url)
    assert len(before["public.fluxjobs"]) == 3
    assert len(before["public.history"]) >= 3
    shell(from_the_documentation("backup"), tmp_path, url, found, installation)
    running.drop(url)

    again = running.create(migrated=False)
    said = shell(from_the_documentation("restore"), tmp_path, again, found, installation)
    assert said.endswith("the database and the code agree\n")
    assert content(again) == before
    await queue_something(again, "d")
    numbers = {row[0] for row in _jobids(again)}
    assert len(numbers) == 4, "the new one has a number of its own"
    running.drop(again)


def _jobids(url: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT jobid FROM fluxjobs").fetchall()
