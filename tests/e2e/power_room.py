"""Machines that Jobs power on and off, for the end-to-end tests of node pools.

A simulated pod starts no program. The room therefore reads which nodes each Job of a pool names,
and powers them when the Job has completed.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

from fluxqueue.errors import ApiError, ApiUnavailable
from fluxqueue.kube.resources import JOBS, NODES, POD_TEMPLATES
from fluxqueue.workload.labels import NODE_POOL, OWN_NAMESPACE
from localcluster import NodeShape
from tests.e2e.space import Space

Obj = dict[str, Any]


class PowerRoom:
    """The machines of some pools.

    ``keeps_objects``: a machine that is off keeps its Node object. ``broken``: machines that never
    come. ``delay_s``: how long a machine takes. ``ran`` has each command: action and hostlist.
    """

    def __init__(self, space: Space, *, keeps_objects: bool = False) -> None:
        self.space, self.keeps_objects = space, keeps_objects
        self.broken: set[str] = set()
        self.delay_s = 0.3
        self.ran: list[tuple[str, str]] = []
        self.powered_on: Counter[str] = Counter()
        self._shapes: dict[str, NodeShape] = {}
        self._done: set[str] = set()
        self._templates: list[str] = []
        self._known: set[str] = set()
        self._on: set[str] = set()
        self._task = asyncio.create_task(self._run())

    async def make_templates(self, name: str, **notes: str) -> dict[str, str]:
        """Create the two PodTemplates of a pool. ``notes`` tell how the first of them runs."""
        made = {}
        for action in ("resume", "suspend"):
            own = {"duration": "200ms", **(notes if action == "resume" else {})}
            template = f"{name}-{self.space.name}-{action}"
            container = {"name": "power", "image": "none", "args": ["--all"]}
            annotations = {f"localcluster/{key}": value for key, value in own.items()}
            body = {
                "apiVersion": POD_TEMPLATES.api_version,
                "kind": POD_TEMPLATES.kind,
                "metadata": {"name": template},
                "template": {
                    "metadata": {"annotations": annotations},
                    "spec": {"containers": [container]},
                },
            }
            await self.space.client.create(POD_TEMPLATES, OWN_NAMESPACE, body)
            self._templates.append(template)
            made[action] = template
        return made

    def watch(self, pool: str, shape: NodeShape) -> None:
        """Obey the Jobs of a pool with machines of this shape."""
        self._shapes[pool] = shape

    async def jobs(self, pool: str) -> list[Obj]:
        """The Jobs of a pool."""
        selector = f"{NODE_POOL}={pool}"
        return (await self.space.client.list(JOBS, OWN_NAMESPACE, label_selector=selector)).items

    async def close(self) -> None:
        """Power everything off, and delete the templates."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        for name in self._known:
            await self.space.world.late_nodes.fleet.remove(name)
        for name in self._templates:
            await self.space.client.delete(POD_TEMPLATES, OWN_NAMESPACE, name)

    async def _run(self) -> None:
        while True:
            for pool, shape in list(self._shapes.items()):
                try:
                    for job in await self.jobs(pool):
                        await self._obey(job, shape)
                except (ApiError, ApiUnavailable):
                    continue  # it looks again
            await asyncio.sleep(0.1)

    async def _obey(self, job: Obj, shape: NodeShape) -> None:
        conditions = (job.get("status") or {}).get("conditions") or ()
        is_over = any(one["type"] == "Complete" and one["status"] == "True" for one in conditions)
        if not is_over or job["metadata"]["uid"] in self._done:
            return
        self._done.add(job["metadata"]["uid"])
        container = job["spec"]["template"]["spec"]["containers"][0]
        told = {one["name"]: one["value"] for one in container["env"]}
        assert container["args"] == ["--all", told["FLUXQUEUE_NODES"]]
        action = told["FLUXQUEUE_ACTION"]
        self.ran.append((action, told["FLUXQUEUE_NODES"]))
        if action == "resume":
            await asyncio.sleep(self.delay_s)
        for name in told["FLUXQUEUE_NODE_NAMES"].split():
            if action == "resume" and name not in self.broken:
                await self._power_on(name, shape)
            elif action == "suspend":
                await self._power_off(name)

    async def _power_on(self, name: str, shape: NodeShape) -> None:
        if name in self._on:
            return
        self._on.add(name)
        self.powered_on[name] += 1
        nodes = self.space.world.late_nodes
        if self.keeps_objects and name in self._known:
            await nodes.fleet.revive(name)
        else:
            self._known.add(name)
            await nodes.add(replace(shape, name=name))

    async def _power_off(self, name: str) -> None:
        if name not in self._on:
            return
        self._on.discard(name)
        if self.keeps_objects:
            self.space.world.late_nodes.fleet.silence(name)
        else:
            await self.space.world.late_nodes.fleet.remove(name)
            self._known.discard(name)

    async def nodes(self, pool: str) -> list[Obj]:
        """The Node objects of a pool."""
        labels = self._shapes[pool].labels
        selector = ",".join(f"{key}={value}" for key, value in labels.items())
        return (await self.space.client.list(NODES, label_selector=selector)).items
