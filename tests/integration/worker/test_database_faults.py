"""The database away, read-only, full, cut off: a worker goes on, and nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from fluxqueue.errors import DatabaseUnavailable
from fluxqueue.kube.client import KubeClient
from fluxqueue_devtools.localpg import LocalPostgres
from localcluster import LocalCluster
from tests.support.rows import cpu_node
from tests.support.waiting import eventually
from tests.support.workers import is_released, make_job, rows_of, submit, worker

RESUME_S = 10.0
"""Beyond what a release takes just now. Every pause between two tries is shorter."""
AWAY_S = float(os.environ.get("FLUXQUEUE_TEST_AWAY_S", "20"))
"""Long enough for every pause between two tries to have reached its longest."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


async def _release_one(url: str, admin: KubeClient, name: str) -> float:
    """Submit a Job, wait until it is released, and say how long that took (seconds)."""
    async with rows_of(url) as rows:
        began = time.monotonic()
        await submit(rows, admin, name)
        await eventually(lambda: is_released(admin, name), f"{name} released")
        took = time.monotonic() - began
        await rows.check()
        most = "SELECT max(n) FROM (SELECT count(*) AS n FROM allocations GROUP BY uid) per_uid"
        assert await rows.value(most) == 1
    return took


async def _prepare(url: str) -> None:
    async with rows_of(url) as rows:
        await rows.add_nodes(cpu_node("n0", cpu=64))


@pytest.mark.long("away for 20 s, so that every pause between two tries is at its longest")
async def test_away_until_every_pause_is_at_its_longest(
    own_postgres: LocalPostgres, cluster: LocalCluster, admin: KubeClient
) -> None:
    """Stopped cleanly and away: the worker neither ends nor waits long after the return."""
    await _prepare(own_postgres.url)
    async with worker(own_postgres.url, cluster):
        usual = await _release_one(own_postgres.url, admin, "before")
        await asyncio.to_thread(own_postgres.stop)
        await asyncio.sleep(AWAY_S)
        await asyncio.to_thread(own_postgres.start)
        took = await _release_one(own_postgres.url, admin, "after")
        assert took < RESUME_S + usual, f"resumed after {took:.1f} s, usual are {usual:.1f} s"


@pytest.mark.long("starts processes of its own, for seconds of processor time")
async def test_read_only_as_after_a_fail_over(
    own_postgres: LocalPostgres, cluster: LocalCluster, admin: KubeClient
) -> None:
    """Sessions opened while it was read-only are of no use afterwards: they are not kept."""
    url = own_postgres.url
    await _prepare(url)
    read_only = sql.SQL("ALTER DATABASE fluxqueue SET default_transaction_read_only = {}")
    async with worker(url, cluster), rows_of(url) as rows:
        usual = await _release_one(url, admin, "before")
        with psycopg.connect(own_postgres.url_of("postgres"), autocommit=True) as server:
            server.execute(read_only.format(sql.Literal("on")))
            server.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'fluxqueue'"
            )
            await asyncio.sleep(3)
            for name in ("meanwhile", "again"):  # the first may only learn that it was cut off
                with pytest.raises(DatabaseUnavailable) as refused:
                    await submit(rows, admin, name)
            assert "session is read-only" in str(refused.value)
            server.execute(read_only.format(sql.Literal("off")))
        took = await _release_one(url, admin, "after")
        assert took < RESUME_S + usual, f"resumed after {took:.1f} s, usual are {usual:.1f} s"


async def test_a_session_that_became_read_only_is_not_kept(own_postgres: LocalPostgres) -> None:
    """The old primary of a fail-over lets its sessions live. One failure, then a new session."""
    async with rows_of(own_postgres.url) as rows:
        await rows.execute("SET default_transaction_read_only = on")
        with pytest.raises(DatabaseUnavailable, match="read-only"):
            await rows.add_nodes(cpu_node("n0"))
        await rows.add_nodes(cpu_node("n0"))


@contextmanager
def small_disk(postgres: LocalPostgres) -> Iterator[Path]:
    """A file system of 24 MiB of its own, with a tablespace ``small`` on it."""
    folder = Path(tempfile.mkdtemp(prefix="fluxqueue-small-", dir=postgres.data.root))
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("a small file system can be mounted by root alone")
    try:
        owner = postgres.data.pgdata.stat()
        os.chown(folder, owner.st_uid, owner.st_gid)
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)
        shutil.rmtree(folder, ignore_errors=True)


def _fill(folder: Path) -> Path:
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1 << 16))
        except OSError:
            return ballast


@pytest.mark.long("starts processes of its own, for seconds of processor time")
async def test_disk_full(
    own_postgres: LocalPostgres, cluster: LocalCluster, admin: KubeClient
) -> None:
    """A real ENOSPC under the tables that grow: inserts fail, and all is made up for."""
    with small_disk(own_postgres) as folder:
        await _prepare(own_postgres.url)
        with psycopg.connect(own_postgres.url, autocommit=True) as server:
            space = sql.SQL("CREATE TABLESPACE small LOCATION {}").format(sql.Literal(str(folder)))
            server.execute(space)
            for table in ("fluxjobs", "history", "allocations", "allocation_slots"):
                server.execute(
                    sql.SQL("ALTER TABLE {} SET TABLESPACE small").format(sql.Identifier(table))
                )
        names = [f"j{n}" for n in range(60)]
        async with worker(own_postgres.url, cluster), rows_of(own_postgres.url) as rows:
            await _release_one(own_postgres.url, admin, "before")
            ballast = await asyncio.to_thread(_fill, folder)
            made = [await make_job(admin, name) for name in names]
            refused = []
            for seen in made:
                try:
                    await rows.see(seen)
                except DatabaseUnavailable as error:
                    refused.append(str(error))
            assert refused, "the disk was not full"
            assert all("No space left on device" in words for words in refused)
            await asyncio.sleep(2)
            ballast.unlink()
            # The controller writes whole present states again and again until they are stored.
            for seen in made:
                await rows.see(seen)
            for name in names:
                await eventually(lambda name=name: is_released(admin, name), f"{name} released")
            assert await rows.value("SELECT count(*) FROM allocations") == len(names) + 1
            await rows.check()
