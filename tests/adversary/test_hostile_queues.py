"""Thousands of FluxQueues, and each as absurd as its definition lets it be: all others go on.

Only an administrator can make queues. A mistake, or a tool that is one, must not stop the others.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from fluxqueue.errors import ApiError
from fluxqueue.kube.resources import FLUXQUEUES, JOBS
from tests.adversary.crowds import all_of, remove_all
from tests.adversary.logs import Logs
from tests.adversary.probing import Probing
from tests.adversary.tenants import Tenant
from tests.support.e2e.objects import job
from tests.support.e2e.world import World

Obj = dict[str, Any]
SIZE = float(os.environ.get("FLUXQUEUE_ADVERSARY_SIZE") or 0.02)
MANY = max(20, int(2000 * SIZE))
LABEL = {"example.com/hostile": "true"}
HUGE, NOTHING, LONG = 2**31 - 1, 0, "9" * 4000
ABSURD: tuple[Obj, ...] = (
    {"weight": 1_000_000, "priority": 1_000_000_000, "queueDepth": 1_000_000},
    {"policy": "hybrid", "reservationDepth": 100_000, "queueDepth": 1},
    {"policy": "conservative", "queueDepth": 1_000_000, "minPriority": HUGE, "maxPriority": HUGE},
    {"minPriority": -HUGE, "maxPriority": HUGE},
    {
        "limits": {
            key: {"jobs": 0, "nodes": 0, "cpu": "0"} for key in ("perJob", "perUser", "total")
        }
    },
    {"limits": {"total": {"cpu": LONG, "jobs": HUGE, "nodes": HUGE}, "perUser": {"cpu": "1e30"}}},
    {"limits": {"perJob": {"durationSeconds": 1, "cpu": "0.0000000001"}}, "defaultDuration": "9y"},
    {"defaultDuration": LONG},
    {"defaultDuration": "\u202e1h"},
    {"fairShare": {"enabled": True, "halfLife": "1s", "weight": HUGE}},
    {"fairShare": {"enabled": True, "halfLife": LONG, "weight": 0}},
    {"preemption": {"within": "lowerPriority", "queues": [f"q{n}" for n in range(900)]}},
    {"preemption": {"within": "lowerPriority", "minRuntime": LONG, "grace": "0s"}},
    {"allowedNamespaces": {"selector": {"matchLabels": {f"k{n}": "v" for n in range(900)}}}},
    {
        "allowedNamespaces": {
            "selector": {
                "matchExpressions": [
                    {"key": f"k{n}", "operator": "NotIn", "values": [str(v) for v in range(99)]}
                    for n in range(90)
                ]
            }
        }
    },
    {"allowedNamespaces": {"names": [f"n{n}" for n in range(9_000)]}},
    {"enabled": False, "started": False},
    {"unknown": {"a": [LONG]}, "policy": "fcfs"},
)


def _queues() -> Iterator[Obj]:
    names = itertools.chain(
        ("a" * 253, "0", "a.b.c", "x" * 63), map("h-{}".format, itertools.count())
    )
    for number, name in zip(range(MANY), names, strict=False):
        yield {
            "apiVersion": FLUXQUEUES.api_version,
            "kind": FLUXQUEUES.kind,
            "metadata": {"name": name, "labels": LABEL},
            "spec": ABSURD[number % len(ABSURD)],
        }


@pytest_asyncio.fixture(loop_scope="session")
async def hostile_queues(world: World) -> AsyncIterator[None]:
    """Removes them all afterwards, and waits until no row is left of them."""
    yield
    names = {queue["metadata"]["name"] for queue in _queues()}
    await remove_all(world, FLUXQUEUES, names, "fluxqueues")


@pytest.mark.long("many cases at once, for seconds of processor time")
async def test_others_go_on_beside_hostile_queues(
    world: World, victim: Tenant, mallory: Tenant, hostile_queues: None
) -> None:
    """Made, filled with Jobs of a tenant, and changed."""
    logs, made = Logs(world), list[str]()

    async def make(queue: Obj) -> None:
        try:
            await world.client.create(FLUXQUEUES, None, queue)
        except ApiError:
            return  # its definition refuses it, in words
        made.append(queue["metadata"]["name"])

    async def fill(name: str, number: int) -> None:
        body = job(f"in-{number}", cpu="100m", pool="main", wishes={"queue": name})
        await mallory.create(JOBS, body)

    async def change(name: str) -> None:
        patch = {"spec": {"started": False, "weight": 1, "limits": {"perUser": {"jobs": 0}}}}
        try:
            await world.client.patch(FLUXQUEUES, None, name, patch)
        except ApiError:
            return

    async with Probing(victim, "hostile-queues") as probing:
        await all_of(make(queue) for queue in _queues())
        await all_of(fill(name, number) for number, name in enumerate(made[:40]))
        await probing.until(2)
        await all_of(change(name) for name in made)
        await probing.until(2)
    assert len(made) >= MANY // 3, "many of them are possible"
    probing.assert_on_time()
    assert not logs.tracebacks(), logs.tracebacks()[:3000]
    assert not mallory.faults, "\n".join(mallory.faults[:5])
