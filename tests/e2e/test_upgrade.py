"""Another version, part by part, in any order, back, and for good: work that is queued, gated or
running lives through it, on the schema of the newer one.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from fluxqueue_devtools.supervisor import StackPart
from tests.support.e2e.health import assert_invariants, assert_nothing_left
from tests.support.e2e.objects import FOR_EVER, bare_pod, job
from tests.support.e2e.rights import own_world
from tests.support.e2e.space import Space, create_with_patience, make_space, remove_space
from tests.support.e2e.world import World
from tests.support.next_version import POST, PRE, command_of_next, make_next_version
from tests.support.waiting import eventually

# A cluster of its own, and each part starts anew several times: long on a busy machine.
pytestmark = [
    pytest.mark.long("every part becomes the next release and comes back, in its own world"),
    pytest.mark.slow,
    pytest.mark.timeout(900),
]

PARTS = ("webhook", "controller", "worker-0", "worker-1")


@pytest_asyncio.fixture(loop_scope="session")
async def old_world(cluster_kind: str, tmp_path: Path) -> AsyncIterator[World]:
    """A world of this test's own: the others' parts stay what they are."""
    with tempfile.TemporaryDirectory(prefix="fluxqueue-upgrade-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        try:
            async with own_world(cluster_kind, folder) as world:
                yield world
        finally:
            shutil.copytree(folder / "logs", tmp_path / "logs", dirs_exist_ok=True)


def _db(world: World, root: Path | None, *words: str, is_refused: bool = False) -> str:
    """Run ``fluxqueue db`` of the code below ``root`` (None: ours). Give what it says."""
    command = [sys.executable, "-m", "fluxqueue", "db", *words]
    environ = {**os.environ, "DATABASE_URL": world.stack.database_url}
    if root is not None:
        command, environ["PYTHONPATH"] = command_of_next(command), str(root)
    done = subprocess.run(
        command, check=False, env=environ, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode != 0) is is_refused, done.stdout + done.stderr
    return done.stdout + done.stderr


def _start(world: World, root: Path | None) -> str:
    """What a starting pod's init container runs."""
    return _db(world, root, "upgrade", "--pre")


async def _replace(world: World, name: str, root: Path | None) -> None:
    """End one part and start the other version of it."""
    old = world.stack.parts[name]
    await old.stop()
    environ = {key: value for key, value in old.environ.items() if key != "PYTHONPATH"}
    command = [word for word in old.command if word != "-P"]
    if root is not None:
        command, environ["PYTHONPATH"] = command_of_next(command), str(root)
    part = StackPart(name=name, command=command, log=old.log, environ=environ)
    world.stack.parts[name] = part
    await part.start()


async def _until_connected(world: World, *, is_next: bool) -> None:
    """Wait until a controller and two workers of the one version talk to the database."""

    async def look() -> bool:
        rows = await world.rows(
            "SELECT DISTINCT application_name AS name FROM pg_stat_activity"
            " WHERE application_name ~ '^fluxqueue-(controller|worker)/'"
        )
        names = {row["name"] for row in rows}
        ours = {name for name in names if name.endswith(f"/{POST}") is is_next}
        return len(ours) == 2 and ours == names

    await eventually(look, f"only the {'next' if is_next else 'present'} version is connected")


async def _running_pods(space: Space, names: list[str]) -> dict[str, str]:
    found = [pod for name in names for pod in await space.pods(name)]
    return {p["metadata"]["uid"]: p["status"]["phase"] for p in found}


async def test_every_part_to_the_next_version_and_back(old_world: World, tmp_path: Path) -> None:
    """Old code on the new schema, side by side with new code, a rollback without a downgrade. Then
    the new version for good, with what old code would not survive.
    """
    world, order = old_world, random.Random(20261121)
    root = await asyncio.to_thread(make_next_version, tmp_path)
    space = await make_space(world)
    running = [f"running-{n}" for n in range(4)]
    await space.create_all(
        job(name, pods=2, cpu="7", pool="main", run=FOR_EVER) for name in running
    )
    for name in running:
        await space.until_running(name, 2)
    before = await _running_pods(space, running)
    waiting = [f"waiting-{n}" for n in range(4)]
    await space.create_all(job(name, pods=4, cpu="9", pool="main") for name in waiting)
    await space.create(job("suspended", suspend=True))
    await space.until_state("suspended", "Held")
    await space.until_state(waiting[-1], "Pending", "Reserved")

    told = await asyncio.to_thread(_start, world, root)
    assert told.startswith(f"revision {PRE}\nleft out: {POST}"), told
    told = await asyncio.to_thread(_db, world, root, "upgrade", is_refused=True)
    assert "older code is connected: fluxqueue-controller, fluxqueue-worker" in told
    meanwhile = await _walk(space, order, root, "up")
    await _until_connected(world, is_next=True)
    assert await _running_pods(space, running) == before, "running pods were touched"

    told = await asyncio.to_thread(_start, world, None)
    assert "newer than this code" in told
    meanwhile += await _walk(space, order, None, "down")
    await _until_connected(world, is_next=False)
    assert await _running_pods(space, running) == before, "running pods were touched"
    await assert_invariants(world)

    for name in running:
        await space.delete(name)
    await space.until_all_complete([*waiting, *meanwhile], timeout_s=120)
    await space.until_state("after-up", "Completed")
    await _for_good(space, order, root)
    await remove_space(space)
    await assert_nothing_left(world)


async def _for_good(space: Space, order: random.Random, root: Path) -> None:
    """The post revision comes when the last old part is gone. New code works on, old is refused."""
    world = space.world
    await asyncio.to_thread(_start, world, root)
    meanwhile = await _walk(space, order, root, "again")
    await _until_connected(world, is_next=True)
    assert await asyncio.to_thread(_db, world, root, "upgrade") == f"revision {POST}\n"
    assert await asyncio.to_thread(_db, world, root, "check") == (
        "the database and the code agree\n"
    )
    await _replace(world, "controller", root)  # reads and writes everything anew
    await space.create(job("for-good", cpu="1", pool="gpu"))
    await space.until_all_complete([*meanwhile, "for-good"], timeout_s=120)
    told = await asyncio.to_thread(_db, world, None, "upgrade", "--pre", is_refused=True)
    assert POST in told
    await assert_invariants(world)


async def _walk(space: Space, order: random.Random, root: Path | None, way: str) -> list[str]:
    """Replace all parts, one after the other. After each a Job is submitted and runs."""
    names = []
    await create_with_patience(space, job(f"first-{way}", cpu="1", pool="gpu"))
    names.append(f"first-{way}")
    for part in order.sample(PARTS, len(PARTS)):
        await _replace(space.world, part, root)
        name = f"{way}-{part}"
        await create_with_patience(space, job(name, cpu="1", pool="gpu"))
        names.append(name)
        await space.until_job(name)
    if way == "up":
        await space.create(bare_pod(f"after-{way}"))
    return names
