"""Nodes are closed and filled between release and binding, again and again.

The moment is held open by a scheduling gate of others. ``FLUXQUEUE_TEST_RACES`` says how many Jobs
lose a node in it: 500 take about ten minutes.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import pytest

from fluxqueue.errors import ApiError, ApiUnavailable, NotFound
from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.resources import FLUXJOBS, NODES, PODS
from fluxqueue.workload.labels import HOSTNAME
from fluxqueue.workload.pod_resources import raw_request
from fluxqueue.workload.pods import gate_index
from tests.support.e2e.health import assert_invariants
from tests.support.e2e.objects import FOR_EVER, Obj, bare_pod, job
from tests.support.e2e.space import Space
from tests.support.waiting import eventually

RACES = int(os.environ.get("FLUXQUEUE_TEST_RACES") or 10)
SEED = int(os.environ.get("FLUXQUEUE_TEST_RACES_SEED") or 1)
AT_ONCE = 25
OTHERS = "example.org/licence"
MAIN = ("node-1", "node-2", "node-3", "node-4")
TAINT = {"key": "example.org/repair", "value": "yes", "effect": "NoSchedule"}
HOW = ("cordon", "taint", "fill")

UNSAID_S = 15.0
"""The repair time of five seconds, and what a busy machine needs to tell of it."""
RUNS_S = 240.0


@dataclass
class Watcher:
    """Looks twice a second at what must never be."""

    space: Space
    unmanaged: Space
    faults: list[str] = field(default_factory=list)
    _since: dict[str, float] = field(default_factory=dict)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Look until the end of the context."""
        task = asyncio.create_task(self._run())
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        while True:
            with suppress(ApiUnavailable):
                await self._look()
            await asyncio.sleep(0.5)

    async def _look(self) -> None:
        client, now = self.space.client, asyncio.get_running_loop().time()
        nodes = {one["metadata"]["name"]: one for one in (await client.list(NODES)).items}
        pods = (await client.list(PODS)).items
        self._compare(nodes, pods)
        mine = [pod for pod in pods if pod["metadata"]["namespace"] == self.space.name]
        stuck = {pod["metadata"]["uid"]: pod for pod in mine if _is_stuck(pod)}
        self._since = {uid: self._since.get(uid, now) for uid in stuck}
        late = [pod for uid, pod in stuck.items() if now - self._since[uid] > UNSAID_S]
        if not late:
            return
        fluxjobs = (await client.list(FLUXJOBS, self.space.name)).items
        reasons = {
            one["metadata"]["name"]: (one.get("status") or {}).get("reason", "") for one in fluxjobs
        }
        for pod in late:
            name = pod["metadata"]["labels"]["batch.kubernetes.io/job-name"]
            if not reasons.get(f"{name}-job"):
                self.faults.append(f"{pod['metadata']['name']} waits, and nothing says why")

    def _compare(self, nodes: dict[str, Obj], pods: Iterable[Obj]) -> None:
        """No node has more bound to it than it has."""
        used: dict[str, Counter[str]] = {}
        for pod in pods:
            node = pod["spec"].get("nodeName")
            if node and pod["status"].get("phase") not in {"Succeeded", "Failed"}:
                used.setdefault(node, Counter()).update(raw_request(pod["spec"]))
        for node, amounts in used.items():
            if node in nodes and amounts["cpu"] > _cpu_m(nodes[node]):
                self.faults.append(f"{node} has {amounts['cpu']}m of cpu bound")


def _is_stuck(pod: Obj) -> bool:
    spec = pod["spec"]
    is_free = not spec.get("schedulingGates") and not pod["metadata"].get("deletionTimestamp")
    return is_free and not spec.get("nodeName") and pod["status"].get("phase") == "Pending"


def _cpu_m(node: Obj) -> int:
    return int(node["status"]["allocatable"]["cpu"]) * 1000


@dataclass
class Vandal:
    """Closes and fills nodes, and opens them again."""

    space: Space
    unmanaged: Space
    dice: random.Random
    _fillers: list[str] = field(default_factory=list)

    async def spoil(self, nodes: Iterable[str]) -> None:
        """Close or fill each of the nodes."""
        for node in nodes:
            how = self.dice.choice(HOW)
            if how == "fill":
                await self._fill(node)
            else:
                body = {"cordon": {"unschedulable": True}, "taint": {"taints": [TAINT]}}[how]
                await self._patch(node, body, PatchKind.STRATEGIC)

    async def _fill(self, node: str) -> None:
        """Have a pod of others take all that is not bound there."""
        found = await self.space.client.get(NODES, None, node)
        free = _cpu_m(found)
        for pod in (await self.space.client.list(PODS)).items:
            is_over = pod["status"].get("phase") in {"Succeeded", "Failed"}
            if pod["spec"].get("nodeName") == node and not is_over:
                free -= raw_request(pod["spec"]).get("cpu", 0)
        if free <= 0:
            return
        name = f"filler-{len(self._fillers)}"
        self._fillers.append(name)
        body = bare_pod(name, cpu=f"{free}m", run=FOR_EVER, nodeSelector={HOSTNAME: node})
        await self.unmanaged.create(body)

        async def has_won_or_lost() -> bool:
            pod = await self.unmanaged.client.get(PODS, self.unmanaged.name, name)
            told = pod["status"].get("conditions") or ()
            return bool(pod["spec"].get("nodeName")) or any(
                one["type"] == "PodScheduled" and one["status"] == "False" for one in told
            )

        await eventually(has_won_or_lost, f"{node} is filled")

    async def open_all(self) -> None:
        """Let all nodes take pods again."""
        for node in MAIN:
            await self._patch(node, {"unschedulable": None, "taints": None}, PatchKind.MERGE)
        for name in self._fillers:
            with suppress(NotFound):
                await self.unmanaged.delete(name, PODS)

    async def _patch(self, node: str, spec: Obj, kind: PatchKind) -> None:
        await self.space.client.patch(NODES, None, node, {"spec": spec}, kind=kind)


@asynccontextmanager
async def doors_open(space: Space) -> AsyncIterator[None]:
    """Remove the gate of the others from all pods inside, also from those that come later."""

    async def run() -> None:
        while True:
            for pod in (await space.client.list(PODS, space.name)).items:
                if {"name": OTHERS} in (pod["spec"].get("schedulingGates") or []):
                    body = {"spec": {"schedulingGates": [{"$patch": "delete", "name": OTHERS}]}}
                    at = (PODS, space.name, pod["metadata"]["name"])
                    with suppress(ApiError):
                        await space.client.patch(*at, body, kind=PatchKind.STRATEGIC)
            await asyncio.sleep(0.2)

    task = asyncio.create_task(run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def some_jobs(dice: random.Random, number: int, first: int) -> dict[str, Obj]:
    """Jobs of one to three pods: their nodes are named by templates, by indexes, or pod by pod."""
    found = {}
    for index in range(first, first + number):
        more = dice.choice(({}, {"completionMode": "Indexed"}, {"podReplacementPolicy": "Failed"}))
        found[f"race-{index}"] = job(
            f"race-{index}",
            pods=dice.choice((1, 1, 2, 3)),
            cpu=dice.choice(("250m", "500m", "1")),
            pool="main",
            run={"duration": "300ms"},
            pod={"schedulingGates": [{"name": OTHERS}]},
            **more,
        )
    return found


async def released(space: Space, bodies: dict[str, Obj]) -> dict[str, set[str]]:
    """The nodes of each Job, once only the gate of the others keeps its pods."""

    async def look() -> dict[str, set[str]] | None:
        nodes: dict[str, list[str]] = {name: [] for name in bodies}
        for pod in (await space.client.list(PODS, space.name)).items:
            name = pod["metadata"]["labels"]["batch.kubernetes.io/job-name"]
            node = (pod["spec"].get("nodeSelector") or {}).get(HOSTNAME)
            if name in nodes and node and gate_index(pod["spec"]) is None:
                nodes[name].append(node)
        is_all = all(
            len(nodes[name]) == body["spec"]["parallelism"] for name, body in bodies.items()
        )
        return {name: set(its) for name, its in nodes.items()} if is_all else None

    return await eventually(look, f"{len(bodies)} Jobs are released", timeout_s=RUNS_S) or {}


@pytest.mark.timeout(3600)
@pytest.mark.long("pods are left to kube-scheduler for 5 s, and requeued Jobs wait for 10 s")
async def test_nodes_are_lost_between_release_and_binding(space: Space, unmanaged: Space) -> None:
    """All Jobs run in the end, none waits without a reason, and no node has too much."""
    dice, races, made = random.Random(SEED), 0, 0
    watcher, vandal = Watcher(space, unmanaged), Vandal(space, unmanaged, dice)
    try:
        async with watcher.watching():
            while races < RACES:
                bodies = some_jobs(dice, min(AT_ONCE, RACES), made)
                made += len(bodies)
                await space.create_all(bodies.values())
                nodes = await released(space, bodies)
                used = sorted(set().union(*nodes.values()))
                # One node stays open at least, or nothing could be repaired before the end.
                spoilt = dice.sample(used, min(len(used), dice.choice((1, 2, 3))))
                await vandal.spoil(spoilt)
                async with doors_open(space):
                    await space.until_all_complete(bodies, timeout_s=RUNS_S)
                await vandal.open_all()
                races += sum(bool(its & set(spoilt)) for its in nodes.values())
                print(f"{races} races of {made} Jobs, {watcher.faults[:3]}", flush=True)
                for name in bodies:
                    await space.delete(name)
                assert not watcher.faults, watcher.faults[:10]
    finally:
        await vandal.open_all()
    await assert_invariants(space.world)
