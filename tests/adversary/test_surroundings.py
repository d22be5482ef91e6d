"""What happens around the queue: a refusing API server, a full disk, an old database, more workers.

One world of its own with three workers. Its controller and workers reach the API server through
a proxy that fails on demand. After each trouble every Job has ended once, and the invariants hold.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg
import pytest
import pytest_asyncio

from fluxqueue.kube.resources import JOBS
from tests.adversary.attacks import ATTACKS
from tests.adversary.probing import Probing
from tests.adversary.tenants import Tenant, tenancy
from tests.support.api_proxy import ApiProxy
from tests.support.e2e.database import dump, everybody_killed, restore
from tests.support.e2e.health import assert_nothing_left
from tests.support.e2e.objects import FOR_EVER, job
from tests.support.e2e.space import Space, create_with_patience, make_space, remove_space
from tests.support.e2e.world import World, embedded_world
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long("a world of its own, in trouble for a minute at a time"),
    pytest.mark.xdist_group("adversary surroundings"),
]

TROUBLE_S = float(os.environ.get("FLUXQUEUE_ADVERSARY_TROUBLE_S", "60"))
DISK = "512m"
SPARE_BYTES = 64 << 10


@contextmanager
def _small_disk() -> Iterator[Path | None]:
    """A file system of its own that can be filled. None where this user may not mount one."""
    with tempfile.TemporaryDirectory(prefix="fluxqueue-disk-") as name:
        mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK},mode=0755", "tmpfs", name]
        if os.geteuid() != 0 or subprocess.run(mount, capture_output=True, check=False).returncode:
            yield None
            return
        try:
            yield Path(name)
        finally:
            subprocess.run(["umount", "--lazy", name], check=False)


@pytest.fixture(scope="module")
def disk() -> Iterator[Path | None]:
    """Where the world of this module lives, if it can have a disk of its own."""
    with _small_disk() as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def proxy() -> AsyncIterator[ApiProxy]:
    """Before the API server, for our parts alone."""
    async with ApiProxy(7) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def world(
    proxy: ApiProxy, disk: Path | None, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    """Three workers, and the proxy between them and the API server."""
    logs = tmp_path_factory.mktemp("logs-surroundings")
    with ExitStack() as exits:
        folder = disk or Path(exits.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o755)
        exits.callback(shutil.copytree, folder / "logs", logs, dirs_exist_ok=True)
        through = folder / "kubeconfig-through-the-proxy"
        connecting = asyncio.create_task(proxy.connect(folder / "kubeconfig", through))
        parts = {"controller": through, "worker": through}
        async with embedded_world(folder, workers=3, kubeconfigs=parts) as running:
            await connecting
            yield running


@pytest_asyncio.fixture(loop_scope="session")
async def space(world: World, proxy: ApiProxy) -> AsyncIterator[Space]:
    """A namespace. After the test nothing is left of it in the rows."""
    made = await make_space(world)
    yield made
    proxy.faults = {}
    await remove_space(made)
    await assert_nothing_left(world)


async def _work_through(space: Space, until_s: float, name: str) -> list[str]:
    """Submit small Jobs at a steady pace. Give their names."""
    names = []
    while time.monotonic() < until_s:
        names.append(f"{name}-{len(names)}")
        body = job(names[-1], pods=1 + len(names) % 3, cpu="500m", run={"duration": "300ms"})
        await create_with_patience(space, body)
        await asyncio.sleep(0.5)
    return names


FAULTS = {
    "429": {"429": 0.7},
    "500": {"500": 0.7},
    "410": {"410": 0.5},
    "all": {"429": 0.3, "500": 0.3, "410": 0.3, "reset-after": 0.1},
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_an_api_server_that_refuses(space: Space, proxy: ApiProxy, fault: str) -> None:
    """Most requests of our parts, for a minute. What was submitted meanwhile completes, once."""
    async with space.recording() as seen:
        proxy.faults = FAULTS[fault]
        names = await _work_through(space, time.monotonic() + TROUBLE_S, f"refused-{fault}")
        proxy.faults = {}
        await space.until_all_complete(names)
        for number, name in enumerate(names):
            assert seen.most_at_once(name) <= 1 + (number + 1) % 3, name
    assert proxy.told, "no fault has met anything"


def _write_until_it_fails(url: str) -> None:
    """Use up what the server had reserved: its next segment of the log finds no room."""
    with pytest.raises(psycopg.Error):
        _fill_the_log(url)


def _fill_the_log(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for _ in range(100):
            connection.execute("SELECT pg_switch_wal()")
            connection.execute("SELECT pg_logical_emit_message(true, 'x', repeat('x', 1000000))")


async def test_a_full_disk(space: Space, disk: Path | None) -> None:
    """The database can write nothing more. Jobs are admitted. When there is room, all complete."""
    if disk is None:
        pytest.skip("a disk of its own needs the right to mount one")
    await space.create(job("before", run={"duration": "200ms"}))
    await space.until_job("before")
    ballast = disk / "ballast"
    names = []
    try:
        with ballast.open("wb", buffering=0) as file:
            for size in (1 << 20, SPARE_BYTES, 1024):
                try:
                    while True:
                        file.write(b"\0" * size)
                except OSError:
                    continue
        await asyncio.to_thread(_write_until_it_fails, space.world.stack.database_url)
        names = await _work_through(space, time.monotonic() + TROUBLE_S / 3, "full")
    finally:
        ballast.unlink()
    await space.until_all_complete(names)


async def test_a_database_that_is_older_than_the_cluster(space: Space, tmp_path: Path) -> None:
    """A failover to what it was before much has happened: nothing runs twice, nothing is lost."""
    await space.create(job("ran-then", pods=2, cpu="1", run={"duration": "2s"}))
    await space.create(job("runs-on", pods=2, cpu="1", run=FOR_EVER))
    await space.create(job("deleted-then", cpu="1", run=FOR_EVER))
    for name in ("ran-then", "runs-on", "deleted-then"):
        await space.until_state(name, "Running")
    held = job("waits-then", cpu="1", wishes={"hold": "true"}, run={"duration": "200ms"})
    await space.create(held)
    await space.until_state("waits-then", "Held")
    backup = tmp_path / "backup"
    async with space.recording() as seen:
        await dump(space.world.stack, backup)
        await space.until_job("ran-then")
        await space.delete("deleted-then")
        await space.until_gone(JOBS, "deleted-then")
        later = await _work_through(space, time.monotonic() + TROUBLE_S / 4, "later")
        await space.until_all_complete(later)
        patch = {"metadata": {"annotations": {"fluxqueue/hold": None}}}
        await space.client.patch(JOBS, space.name, "waits-then", patch)
        await space.until_job("waits-then")
        async with everybody_killed(space.world.stack):
            await restore(space.world.stack, backup)
        await space.create(job("after", cpu="1", run={"duration": "200ms"}))
        await space.until_all_complete([*later, "ran-then", "waits-then", "after"])
        for name in (*later, "ran-then", "runs-on", "waits-then", "after"):
            assert len({pod.uid for pod in seen.seen().values() if pod.owner == name}) <= 3
        assert seen.most_at_once("runs-on") == 2

    async def are_told() -> bool:
        rows = await space.world.rows(
            "SELECT name, state FROM fluxjobs WHERE namespace = :space AND ended_at IS NULL",
            space=space.name,
        )
        return [row["name"] for row in rows] == ["runs-on-job"]

    await eventually(are_told, "the rows say what the cluster says")


@pytest.mark.parametrize("attack", ["costly-requests", "many-jobs-at-once", "jobs-come-and-go"])
async def test_three_workers_under_attack(world: World, attack: str) -> None:
    """One of them decides. The others carry out what it has decided."""
    async with tenancy(world, "vera") as victim, tenancy(world, "mallory") as mallory:
        await _attacked(victim, mallory, attack)
    await assert_nothing_left(world)


async def _attacked(victim: Tenant, mallory: Tenant, attack: str) -> None:
    async with Probing(victim, f"three workers: {attack}") as probing:
        await ATTACKS[attack](mallory, 0.1)
        await probing.until(2)
    probing.assert_on_time()
