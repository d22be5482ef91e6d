"""Jobs that are submitted as fast as they are taken, and waited for until all are Complete."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fluxqueue.errors import NotFound
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import FLUXJOBS, JOBS, NAMESPACES, PODS, SERVICE_ACCOUNTS, ApiResource

AT_ONCE = 32
TIMEOUT_S = 900.0
POLL_S = 0.1
POD_DURATION = "100ms"
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Load:
    """``jobs`` Jobs of ``pods`` pods each. ``cpu`` is what a pod asks for.

    ``is_indexed``: each pod has a completion index. ``policy``: the match policy that the Jobs ask
    for. ``title``: as tables call it.
    """

    name: str
    jobs: int
    pods: int
    cpu: str = "1"
    is_indexed: bool = False
    policy: str = ""
    title: str = ""
    duration: str = POD_DURATION

    @property
    def all_pods(self) -> int:
        """How many pods it makes."""
        return self.jobs * self.pods


def job(
    name: str,
    pods: int,
    *,
    cpu: str = "1",
    duration: str | None = POD_DURATION,
    annotations: Mapping[str, str] | None = None,
    is_indexed: bool = False,
) -> dict[str, Any]:
    """A Job of ``pods`` pods that last for ``duration``. None: until they are deleted."""
    notes = {"duration": duration} if duration is not None else {"never-ends": "true"}
    container = {
        "name": "main",
        "image": "none",
        "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}},
    }
    return {
        "metadata": {"name": name, "annotations": dict(annotations or {})},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "completionMode": "Indexed" if is_indexed else "NonIndexed",
            "template": {
                "metadata": {
                    "annotations": {f"localcluster/{key}": value for key, value in notes.items()}
                },
                "spec": {"restartPolicy": "Never", "containers": [container]},
            },
        },
    }


async def create_all(client: KubeClient, namespace: str, jobs: list[dict[str, Any]]) -> None:
    """Create Jobs, some at once, in their order."""
    waiting = iter(jobs)

    async def create() -> None:
        for one in waiting:
            await client.create(JOBS, namespace, one)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(AT_ONCE, len(jobs))):
            group.create_task(create())


class Completions:
    """A watch on a namespace's Jobs that knows which are Complete, and when they became so.

    An ``async with`` block: the watch is there when the block begins.
    """

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self._client, self._namespace = client, namespace
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self.at_s: dict[str, float] = {}

    async def __aenter__(self) -> Completions:
        version = (await self._client.list(JOBS, self._namespace)).resource_version
        self._task = asyncio.create_task(self._watch(version))
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self, version: str) -> None:
        while True:
            async for event in self._client.watch(JOBS, self._namespace, resource_version=version):
                version = event.object["metadata"]["resourceVersion"]
                for one in (event.object.get("status") or {}).get("conditions") or ():
                    if one["type"] == "Failed" and one["status"] == "True":
                        raise RuntimeError(f"a Job failed: {event.object['metadata']['name']}")
                    if one["type"] == "Complete" and one["status"] == "True":
                        name = event.object["metadata"]["name"]
                        self.at_s.setdefault(name, time.monotonic())
                        self._changed.set()

    async def until(self, number: int) -> None:
        """Wait until ``number`` Jobs are Complete."""
        await self._until(lambda: len(self.at_s) >= number)

    async def of(self, name: str) -> float:
        """Wait until one Job is Complete. When it was, seconds of the monotonic clock."""
        await self._until(lambda: name in self.at_s)
        return self.at_s.pop(name)

    async def _until(self, is_true: Callable[[], bool]) -> None:
        assert self._task is not None
        async with asyncio.timeout(TIMEOUT_S):
            while not is_true():
                self._changed.clear()
                waiting = asyncio.create_task(self._changed.wait())
                await asyncio.wait({waiting, self._task}, return_when=asyncio.FIRST_COMPLETED)
                if self._task.done():
                    self._task.result()


def single(load: Load) -> Load:
    """The same with one Job."""
    return replace(load, jobs=1)


def jobs_of(load: Load) -> list[dict[str, Any]]:
    """The Jobs of a load, each with a new name."""
    asked = {"fluxqueue/match-policy": load.policy} if load.policy else {}
    return [
        job(
            f"{load.name}-{next(_numbers):06}",
            load.pods,
            cpu=load.cpu,
            annotations=asked,
            is_indexed=load.is_indexed,
            duration=load.duration,
        )
        for _ in range(load.jobs)
    ]


async def run(client: KubeClient, namespace: str, load: Load) -> float:
    """Submit all and wait until all are Complete. Seconds from the first to the last."""
    jobs = jobs_of(load)
    async with Completions(client, namespace) as completions:
        began = time.monotonic()
        await create_all(client, namespace, jobs)
        await completions.until(load.jobs)
        return max(completions.at_s.values()) - began


async def make_namespace(client: KubeClient, prefix: str, *, is_managed: bool) -> str:
    """A namespace in which pods can be made. One that is not managed has opted out."""
    labels = {} if is_managed else {"fluxqueue/managed": "false"}
    body = {"metadata": {"generateName": f"{prefix}-", "labels": labels}}
    name: str = (await client.create(NAMESPACES, None, body))["metadata"]["name"]
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            try:
                await client.get(SERVICE_ACCOUNTS, name, "default")
            except NotFound:
                await asyncio.sleep(POLL_S)
            else:
                return name


async def empty_namespace(client: KubeClient, name: str) -> None:
    """Delete all Jobs and wait until nothing of them is left.

    The namespace stays: ending it is work for the control plane while others are measured.
    """
    jobs = (await client.list(JOBS, name)).items
    names = iter([one["metadata"]["name"] for one in jobs])

    async def delete() -> None:
        for one in names:
            await client.delete(JOBS, name, one, propagation="Background")

    async with asyncio.timeout(TIMEOUT_S):
        async with asyncio.TaskGroup() as group:
            for _ in range(AT_ONCE):
                group.create_task(delete())
        for resource in (PODS, FLUXJOBS, JOBS):
            await _until_none(client, resource, name)


async def _until_none(client: KubeClient, resource: ApiResource, namespace: str) -> None:
    while True:
        try:
            items, _ = await client.collect(resource, namespace, keep=lambda _: None)
        except NotFound:
            return  # Kubernetes alone knows no FluxJobs
        if not items:
            return
        await asyncio.sleep(5 * POLL_S)
