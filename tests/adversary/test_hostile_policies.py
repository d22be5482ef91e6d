"""Very many ResourceSharingPolicies, and each as absurd as its definition lets it be: work goes on.

Only an administrator can make them. A mistake, or a tool that is one, must not stop the queue.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from fluxqueue.errors import ApiError
from fluxqueue.kube.resources import SHARING_POLICIES
from tests.adversary.crowds import all_of, remove_all
from tests.adversary.logs import Logs
from tests.adversary.probing import Probing
from tests.adversary.tenants import Tenant
from tests.support.e2e.world import World
from tests.support.waiting import eventually

Obj = dict[str, Any]
SIZE = float(os.environ.get("FLUXQUEUE_ADVERSARY_SIZE") or 0.02)
MANY = max(30, int(2000 * SIZE))
ELSEWHERE = {"matchLabels": {"no-node": "has-this"}}
LONG = "9" * 39
ABSURD: tuple[Obj, ...] = (
    {"policy": "of-no-package"},
    {"policy": "of-no-package", "order": 0, "parameters": {"deep": [[[[{}]]]], "x": LONG * 99}},
    {"policy": "headroom", "headroom": {"cpu": LONG}, "nodeSelector": ELSEWHERE},
    {"policy": "headroom", "headroom": {"x" * 300: "1", "\u202ecpu": "0%"}, "order": 1},
    {"policy": "partition", "partition": {"cpu": "100%"}, "order": 1_000_000},
    {"policy": "partition", "partition": {f"r{n}.example.com/x": "1n" for n in range(64)}},
    {"policy": "headroom", "headroom": {"cpu": "1e-40", "memory": "0.000%"}},
    {
        "policy": "partition",
        "partition": {"cpu": "0"},
        "nodeSelector": {
            "matchExpressions": [
                {"key": f"k{n}", "operator": "In", "values": [str(v) for v in range(99)]}
                for n in range(30)
            ]
        },
    },
    {
        "policy": "subtract",
        "nodeSelector": {
            "matchExpressions": [
                {"key": f"k{n}", "operator": "NotIn", "values": [str(v) for v in range(99)]}
                for n in range(30)
            ]
        },
    },
    {"policy": "dedicated", "nodeSelector": {"matchLabels": {"not a label": "\u0000"}}},
)
"""None of these takes anything from jobs. A valid policy may take all: an administrator decides."""


def _policies() -> Iterator[Obj]:
    names = itertools.chain(("a" * 253, "0", "a.b.c"), map("h-{}".format, itertools.count()))
    for number, name in zip(range(MANY), names, strict=False):
        yield {
            "apiVersion": SHARING_POLICIES.api_version,
            "kind": SHARING_POLICIES.kind,
            "metadata": {"name": name},
            "spec": ABSURD[number % len(ABSURD)],
        }


@pytest_asyncio.fixture(loop_scope="session")
async def hostile_policies(world: World) -> AsyncIterator[None]:
    """Removes them all afterwards, and waits until no row is left of them."""
    yield
    names = {policy["metadata"]["name"] for policy in _policies()}
    await remove_all(world, SHARING_POLICIES, names, "rules")


@pytest.mark.long("many cases at once, for seconds of processor time")
async def test_work_goes_on_beside_hostile_policies(
    world: World, victim: Tenant, hostile_policies: None
) -> None:
    """Made and changed while a tenant's Jobs start. Each that is set aside says why."""
    logs, made = Logs(world), list[str]()

    async def make(policy: Obj) -> None:
        try:
            await world.client.create(SHARING_POLICIES, None, policy)
        except ApiError:
            return  # its definition refuses it, in words
        made.append(policy["metadata"]["name"])

    async def change(name: str) -> None:
        patch = {"spec": {"policy": "of-another-package", "headroom": None, "partition": None}}
        try:
            await world.client.patch(SHARING_POLICIES, None, name, patch)
        except ApiError:
            return

    async with Probing(victim, "hostile-policies") as probing:
        await all_of(make(policy) for policy in _policies())
        await probing.until(2)
        await all_of(change(name) for name in made)
        await probing.until(2)
    assert len(made) >= MANY // 2, "most of them are possible"
    probing.assert_on_time()
    assert not logs.tracebacks(), logs.tracebacks()[:3000]

    async def all_say_why() -> bool:
        rows = await world.rows("SELECT name FROM rules WHERE fault LIKE 'spec%'")
        return {row["name"] for row in rows} >= set(made)

    await eventually(all_say_why, "each is set aside with its reason")
