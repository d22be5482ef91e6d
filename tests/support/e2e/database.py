"""What happens to the queue's database as a whole: lost, dumped, restored, while its users sleep.

Used by ``test_rebuild`` and the chaos suite. Real ``pg_dump`` and ``pg_restore`` of the server in
use. Nothing of ours takes part.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
from psycopg import sql

from fluxqueue.db import migrate
from fluxqueue_devtools.localpg import LocalPostgres
from fluxqueue_devtools.stack import Stack

QUEUE_PARTS = ("controller", "worker-")


@asynccontextmanager
async def everybody_killed(stack: Stack) -> AsyncIterator[None]:
    """Stop controller and workers where they stand. Afterwards they are killed and start anew."""
    parts = [part for name, part in stack.parts.items() if name.startswith(QUEUE_PARTS)]
    pids = [part.pid for part in parts if part.pid is not None]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGKILL)


async def empty(stack: Stack) -> None:
    """The database is lost, and made anew as ``fluxqueue db upgrade`` leaves it."""
    await asyncio.to_thread(_make_anew, stack.database_url)
    await asyncio.to_thread(migrate.upgrade, stack.database_url)


async def dump(stack: Stack, file: Path) -> None:
    """Take a backup while everything runs."""
    await asyncio.to_thread(
        _run, stack.postgres, "pg_dump", "--format=custom", f"--file={file}", stack.database_url
    )


async def restore(stack: Stack, file: Path) -> None:
    """Put a backup in the place of the database."""
    await asyncio.to_thread(_make_anew, stack.database_url)
    await asyncio.to_thread(
        _run,
        stack.postgres,
        "pg_restore",
        "--exit-on-error",
        "--no-owner",
        f"--dbname={stack.database_url}",
        str(file),
    )


async def set_back(stack: Stack, file: Path) -> None:
    """Make the database what it was at a backup, while its users stay connected to the server.

    It is a failover to a replica that lags: all sessions break, and the next ones find old rows.
    """
    restoring = asyncio.create_task(
        asyncio.to_thread(
            _run,
            stack.postgres,
            "pg_restore",
            *("--clean", "--if-exists", "--no-owner", "--single-transaction", "--exit-on-error"),
            f"--dbname={stack.database_url}",
            str(file),
        )
    )
    while not restoring.done():
        await asyncio.to_thread(_cut_others, stack.database_url)
        await asyncio.wait([restoring], timeout=0.2)
    await restoring
    await asyncio.to_thread(_cut_others, stack.database_url)


def _cut_others(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname ="
            " current_database() AND pid <> pg_backend_pid() AND application_name <> 'pg_restore'"
        )


def _make_anew(url: str) -> None:
    name = urlsplit(url).path.lstrip("/")
    with psycopg.connect(urlunsplit(urlsplit(url)._replace(path="/postgres"))) as connection:
        connection.autocommit = True
        there = sql.Identifier(name)
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(there))
        connection.execute(sql.SQL("CREATE DATABASE {} TEMPLATE template0").format(there))


def _run(postgres: LocalPostgres | None, program: str, *arguments: str) -> None:
    assert postgres is not None, "backups are tested on the embedded server"
    subprocess.run(
        [str(postgres.binaries.folder / program), *arguments],
        check=True,
        capture_output=True,
        timeout=200,
    )
