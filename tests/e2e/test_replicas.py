"""Two controllers, three workers, two webhooks: the leader dies under load, and no user notices.

A world of its own on each kind of cluster. A leader that hangs is stopped (SIGSTOP), not
killed: a killed one comes back at once under its own name, which is another test.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.resources import LEASES, MUTATING_WEBHOOKS
from fluxqueue.kube.webhook_configuration import NAME
from fluxqueue.workload.labels import OWN_NAMESPACE
from fluxqueue_devtools.supervisor import StackPart, python
from tests.support.balancer import Balancer
from tests.support.e2e.health import assert_invariants, assert_nothing_left
from tests.support.e2e.objects import job
from tests.support.e2e.recording import Recording
from tests.support.e2e.rights import own_world
from tests.support.e2e.space import Space, create_with_patience, make_space, remove_space
from tests.support.e2e.world import World
from tests.support.waiting import Pauses, eventually

pytestmark = [
    pytest.mark.long("two of each part: a world of its own, and Leases have to run out"),
    pytest.mark.slow,
    pytest.mark.xdist_group("replicas"),
]

REPLICAS = {"controllers": 2, "workers": 3}
TAKEOVER_S = 15.0
LOAD = 40


@pytest_asyncio.fixture(loop_scope="session", scope="module")
async def replicas(
    cluster_kind: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[World, Balancer]]:
    """Everything twice or thrice, with a balancer before the webhooks.

    A control plane of its own, too: on the session's, another queue is at work.
    """
    async with AsyncExitStack() as exits:
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="fluxqueue-ha-")))
        folder.chmod(0o755)
        logs = tmp_path_factory.mktemp(f"logs-replicas-{cluster_kind}")
        exits.callback(shutil.copytree, folder / "logs", logs, dirs_exist_ok=True)
        world = await exits.enter_async_context(own_world(cluster_kind, folder, **REPLICAS))
        balancer = await exits.enter_async_context(_two_webhooks(world))
        yield world, balancer


@asynccontextmanager
async def _two_webhooks(world: World) -> AsyncIterator[Balancer]:
    """A second webhook process beside the stack's, and one address for both."""
    first = world.stack.parts["webhook"]
    folder = world.stack.options.data_dir
    command = list(first.command)
    first_port = int(command[command.index("--port") + 1])
    second = StackPart(
        name="webhook-1",
        command=python("fluxqueue_webhook", "--cert-dir", str(folder / "certs"), "--port", "0"),
        log=folder / "logs" / "webhook-1.log",
    )
    await second.start()
    try:
        second_port = await _port_of(second)
        # A fixed port from now on, so that a restarted one is found again.
        second.command = [*second.command[:-1], str(second_port)]
        async with Balancer([first_port, second_port]) as balancer:
            world.stack.parts["webhook-1"] = second
            await _call_at(world, balancer.port)
            yield balancer
    finally:
        world.stack.parts.pop("webhook-1", None)
        await second.stop()


async def _port_of(part: StackPart) -> int:
    async def is_told() -> int:
        text = part.log.read_text() if part.log.is_file() else ""
        urls = [line.split()[1] for line in text.splitlines() if line.startswith("ready ")]
        return int(urls[-1].rpartition(":")[2]) if urls else 0

    return await eventually(is_told, f"{part.name} listens")


async def _call_at(world: World, port: int) -> None:
    found = await world.client.get(MUTATING_WEBHOOKS, None, NAME)
    patch = [
        {
            "op": "replace",
            "path": f"/webhooks/{number}/clientConfig/url",
            "value": f"https://127.0.0.1:{port}/mutate",
        }
        for number in range(len(found["webhooks"]))
    ]
    await world.client.patch(MUTATING_WEBHOOKS, None, NAME, patch, kind=PatchKind.JSON)


@pytest_asyncio.fixture(loop_scope="session")
async def crowd(replicas: tuple[World, Balancer]) -> AsyncIterator[Space]:
    """A namespace of the test's own."""
    made = await make_space(replicas[0])
    yield made
    await remove_space(made)
    await assert_nothing_left(replicas[0])


async def _lease(world: World) -> tuple[str, int]:
    found: dict[str, Any] = await world.client.get(LEASES, OWN_NAMESPACE, "fluxqueue-controller")
    return found["spec"]["holderIdentity"], found["spec"]["leaseTransitions"]


async def _acquired_at(world: World) -> datetime:
    found = await world.client.get(LEASES, OWN_NAMESPACE, "fluxqueue-controller")
    return datetime.fromisoformat(found["spec"]["acquireTime"])


async def _load(space: Space, prefix: str, number: int = LOAD) -> list[str]:
    names = [f"{prefix}-{n}" for n in range(number)]
    for n, name in enumerate(names):
        mode = {"completionMode": "Indexed"} if n % 2 else {}
        body = job(name, pods=1 + n % 4, cpu=str(1 + n % 5), **mode)
        await create_with_patience(space, body)
    return names


def _assert_nothing_ran_twice(seen: Recording) -> None:
    """No index twice at once, never more pods than slots, and each Job's pods once in all."""
    for using in seen.in_use():
        indexed = [(pod.owner, pod.index) for pod in using if pod.index is not None]
        assert len(indexed) == len(set(indexed)), f"an index ran twice at once: {using}"
    for owner in {pod.owner for pod in seen.seen().values()}:
        wanted = 1 + int(owner.rpartition("-")[2]) % 4
        assert seen.most_at_once(owner) <= wanted
        assert sum(pod.phase == "Succeeded" for pod in seen.seen(owner).values()) == wanted


async def test_a_hanging_leader_is_replaced_in_time_and_fenced(crowd: Space) -> None:
    """Takeover by Lease within 15 s, under load. The old leader wakes up and changes nothing."""
    world = crowd.world
    async with crowd.recording() as seen:
        names = await _load(crowd, "before")
        leader, term = await _lease(world)
        stopped_at = datetime.now(tz=UTC)
        os.kill(world.pid(leader), signal.SIGSTOP)
        try:
            async with Pauses() as pauses:
                names += await _load(crowd, "during", 10)

                async def is_taken() -> bool:
                    holder, later = await _lease(world)
                    return holder not in {leader, ""} and later > term

                await eventually(is_taken, "another controller leads")
            # What the successor wrote, on this machine's clock: not when we came to look.
            took = await _acquired_at(world) - stopped_at
            assert took.total_seconds() <= TAKEOVER_S + 2 * pauses.longest_s
            await crowd.until_all_complete(names, timeout_s=300)
        finally:
            os.kill(world.pid(leader), signal.SIGCONT)
        after = await _load(crowd, "after", 10)
        await crowd.until_all_complete(after)
        _assert_nothing_ran_twice(seen)
    holder, _ = await _lease(world)
    assert holder != leader, "the old one stands by"
    for name in (*names, *after):
        await crowd.until_state(name, "Completed")
    await assert_invariants(world)


async def test_every_replica_may_die_under_load(crowd: Space) -> None:
    """kill -9 of leader, standby, each worker and each webhook in turn: everything completes.

    A call that is under way in a webhook when that dies is refused, and tried again.
    """
    world = crowd.world
    victims = ["controller-0", "controller-1", "worker-0", "worker-1", "worker-2"]
    async with crowd.recording() as seen:
        names: list[str] = []
        for number, victim in enumerate([*victims, "webhook", "webhook-1"]):
            loading = asyncio.create_task(_load(crowd, f"v{number}", 8))
            await _kill(world, victim)
            names += await loading
        await crowd.until_all_complete(names, timeout_s=300)
        _assert_nothing_ran_twice(seen)
    for name in names:
        await crowd.until_state(name, "Completed")
    await assert_invariants(world)


async def test_both_webhooks_are_asked(replicas: tuple[World, Balancer], crowd: Space) -> None:
    """At once, because an API server keeps its connections: calls in turn may use one only."""
    _, balancer = replicas
    await asyncio.gather(*(_load(crowd, f"asked-{n}", 1) for n in range(12)))
    assert len(balancer.served) == 2, balancer.served


async def _kill(world: World, name: str) -> None:
    part = world.stack.parts[name]
    before = part.restarts
    os.kill(world.pid(name), signal.SIGKILL)

    await eventually(
        lambda: part.restarts > before and part.pid is not None, f"{name} started again"
    )
