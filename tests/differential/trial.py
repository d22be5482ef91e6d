"""One random cluster on a running control plane, and what its scheduler says to our placements."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from fluxqueue.errors import Conflict, Invalid, NotFound
from fluxqueue.fluxjob.exclusive_use import HOST_PORT, ONE_POD_CLAIM
from fluxqueue.fluxjob.levels import DEFAULT_LEVELS
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.graph.ledger.placement import Placement
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.jobspec import Jobspec
from fluxqueue.jobspec.shape import slot_kinds
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import (
    CLAIMS,
    CSI_NODES,
    DEVICE_CLASSES,
    LIMIT_RANGES,
    NAMESPACES,
    NODES,
    PODS,
    RESOURCE_SLICES,
    RUNTIME_CLASSES,
    SERVICE_ACCOUNTS,
    VOLUMES,
    ApiResource,
)
from fluxqueue.policy.queue_policy import POLICIES
from fluxqueue.scheduler.cycle import run_cycle
from fluxqueue.scheduler.pending_job import PendingJob
from fluxqueue.workload.constraints import ignored
from fluxqueue.workload.kinds.batch_job import BATCH_JOB
from fluxqueue.workload.labels import HOSTNAME
from fluxqueue.workload.node_object import node_fact
from fluxqueue.workload.pod_resources import raw_request
from fluxqueue.workload.site import Site
from fluxqueue.workload.surroundings import complete
from fluxqueue.workload.volumes import LIMIT_PREFIX, volume_limits, with_limits
from tests.differential.scenery import Scenery, random_scenery
from tests.differential.workloads import random_job
from tests.support.surroundings import KnownSurroundings
from tests.support.waiting import eventually, until

Obj = dict[str, Any]

AT_ONCE = 16
WAIT_S = 120.0
SITE = Site(default_cpu_m=0)
"""For kube-scheduler, a pod that names no cpu needs none."""


@dataclass
class Tally:
    """What was compared."""

    pods: int = 0
    placed: int = 0
    never: int = 0
    left: int = 0
    faults: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.pods} pods; {self.placed} workloads placed and bound, {self.never} impossible "
            f"for both, {self.left} partly left to kube-scheduler; {len(self.faults)} faults"
        )


class Trial:
    """A cluster with a namespace.

    Parameters
    ----------
    binds_volumes : a controller of the cluster binds claims, and its scheduler knows devices.
    quiet_s : a scheduler that has bound nothing for so long, and has refused the rest, has decided.
    """

    def __init__(
        self,
        client: KubeClient,
        dice: random.Random,
        tag: str,
        tally: Tally,
        *,
        binds_volumes: bool,
        quiet_s: float,
    ) -> None:
        self._quiet_s = quiet_s
        self._client, self._dice, self._tag, self._tally = client, dice, tag, tally
        self._binds_volumes = binds_volumes
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._number = 0
        self._tried: dict[str, tuple[Obj, Jobspec, list[str]]] = {}
        self.scenery: Scenery = random_scenery(
            dice, tag, nodes=dice.randint(4, 24), has_devices=binds_volumes
        )
        self._around = KnownSurroundings()

    # --- the cluster --------------------------------------------------------------------------

    async def __aenter__(self) -> Trial:
        client, scenery, space = self._client, self.scenery, self._tag
        await client.create(NAMESPACES, None, {"metadata": {"name": space}})
        await self._each(scenery.nodes, lambda one: client.create(NODES, None, one))
        await self._each(scenery.csi_nodes, lambda one: client.create(CSI_NODES, None, one))
        for one in scenery.runtimes:
            await client.create(RUNTIME_CLASSES, None, one)
        for one in scenery.limits:
            await client.create(LIMIT_RANGES, space, one)
        for volume, claim in zip(scenery.volumes, scenery.claims, strict=True):
            reference = {"namespace": space, "name": claim["metadata"]["name"]}
            spec = {**volume["spec"], "claimRef": reference}
            await client.create(VOLUMES, None, {**volume, "spec": spec})
            await client.create(CLAIMS, space, claim)
        await self._each(
            scenery.device_classes, lambda one: client.create(DEVICE_CLASSES, None, one)
        )
        await self._each(scenery.slices, lambda one: client.create(RESOURCE_SLICES, None, one))
        await eventually(self._is_ready, "the cluster takes pods", timeout_s=WAIT_S)
        nodes = (await client.list(NODES)).items
        self._around = scenery.known(space)
        self._around.nodes = tuple(map(self._fact, nodes))
        return self

    async def __aexit__(self, *_: object) -> None:
        client = self._client
        await self._drop(PODS, self._tag)
        await client.delete(NAMESPACES, None, self._tag)
        for resource, objects in (
            (VOLUMES, self.scenery.volumes),
            (RUNTIME_CLASSES, self.scenery.runtimes),
            (CSI_NODES, self.scenery.csi_nodes),
            (RESOURCE_SLICES, self.scenery.slices),
            (DEVICE_CLASSES, self.scenery.device_classes),
            (NODES, self.scenery.nodes),
        ):
            names = [one["metadata"]["name"] for one in objects]
            await self._each(names, lambda name, of=resource: self._delete(of, None, name))

    def _fact(self, node: Obj) -> NodeFact:
        """A node as the controller writes it."""
        fact, drivers = node_fact(node), self._around.drivers
        csi = {one["metadata"]["name"]: one for one in self.scenery.csi_nodes}
        volumes = with_limits(volume_limits(csi.get(fact.name)), drivers)
        devices = self.scenery.devices_of(fact.name)
        capacity = {**fact.capacity, **volumes, **devices.capacity}
        return replace(fact, capacity=capacity, unusable=devices.unusable)

    async def _is_ready(self) -> bool:
        client, space = self._client, self._tag
        nodes = (await client.list(NODES)).items
        taints = {taint["key"] for node in nodes for taint in node["spec"].get("taints") or ()}
        if any(key.startswith("node.kubernetes.io/") for key in taints):
            return False
        if not (await client.list(SERVICE_ACCOUNTS, space)).items:
            return False
        if self._binds_volumes:
            claims = (await client.list(CLAIMS, space)).items
            if any(one["status"].get("phase") != "Bound" for one in claims):
                return False
        return await self._has_defaults()

    async def _has_defaults(self) -> bool:
        """Whether admission has seen the LimitRange."""
        if not self.scenery.limits:
            return True
        body = {
            "metadata": {"name": "try"},
            "spec": {"containers": [{"name": "c", "image": "registry.example/app:1"}]},
        }
        made = await self._client.create(PODS, self._tag, body, dry_run=True)
        return bool(made["spec"]["containers"][0].get("resources"))

    # --- what is compared ---------------------------------------------------------------------

    async def alone(self, workloads: int) -> None:
        """Try workloads one at a time on the empty cluster, also those that are impossible."""
        for _ in range(workloads):
            matcher = self._matcher()
            job, request, left = self._next(density=2.0)
            size = BATCH_JOB.size(job)
            placement = _first(matcher, job, request)
            if placement is None:
                # Of the empty cluster, only tainted devices are not free.
                pods = await self._create(job, [None] * size)
                if pods:
                    await self._expect_refusal(job, pods)
            else:
                pods = await self._create(job, [slot.node for slot in placement.slots])
                self._compare_sizes(job, request, pods)
                if pods:
                    await self._expect_bound({job["metadata"]["name"]: left})
            self._tally.pods += size
            await self._drop(PODS, self._tag)

    async def together(self, pods: int) -> None:
        """Fill the cluster with workloads of so many pods, and try all of them at once."""
        matcher, placed = self._matcher(), list[tuple[Obj, Jobspec, Placement]]()
        left: dict[str, bool] = {}
        tried = 0
        while tried < pods:
            job, request, is_left = self._next(density=1.0)
            tried += BATCH_JOB.size(job)
            # A refused pod would take the place of another workload while it waits.
            if is_left:
                continue
            placement = _first(matcher, job, request)
            if placement is not None:
                placed.append((job, request, placement))
            else:
                continue
            left[job["metadata"]["name"]] = False
        self._dice.shuffle(placed)
        made = await asyncio.gather(
            *(
                self._create(job, [slot.node for slot in placement.slots])
                for job, _, placement in placed
            )
        )
        for (job, request, _), its in zip(placed, made, strict=True):
            self._compare_sizes(job, request, its)
            self._tally.pods += len(its)
        await self._expect_bound(left)
        await self._drop(PODS, self._tag)

    def _matcher(self) -> Matcher:
        matcher = Matcher(ShareLedger(DEFAULT_LEVELS), self._dice.choice(("pack", "spread")))
        for fact in self._around.nodes:
            matcher.set_node(fact, fact.unusable)
        return matcher

    def _next(self, *, density: float) -> tuple[Obj, Jobspec, bool]:
        """A workload, its request, and whether something of it is left to kube-scheduler."""
        self._number += 1
        runtime = self.scenery.runtimes[0]["metadata"]["name"]
        job = random_job(
            self._dice,
            self._number,
            self._tag,
            runtime,
            density=density,
            device=self.scenery.device_resource,
        )
        done = complete(job, self._around, DEFAULT_LEVELS)
        request = BATCH_JOB.to_request(done, site=SITE)
        self._tried[job["metadata"]["name"]] = job, request, []
        return job, request, bool(ignored(BATCH_JOB.pod_spec(done)))

    def _compare_sizes(self, job: Obj, request: Jobspec, pods: list[Obj]) -> None:
        (needs,) = {kind.needs for kind in slot_kinds(request)}
        beside = (LIMIT_PREFIX, HOST_PORT, ONE_POD_CLAIM)
        for pod in pods:
            slot = {name: n for name, n in needs if not name.startswith(beside)}
            if raw_request(pod["spec"]) != slot:
                found = raw_request(pod["spec"])
                self._fault(job["metadata"]["name"], f"slots of {slot}, pods of {found}")

    async def _expect_bound(self, left: dict[str, bool]) -> None:
        """All pods are bound, except of workloads of which something is left."""
        unbound = await self._until_decided()
        by_app: dict[str, list[str]] = {}
        for pod in unbound:
            by_app.setdefault(pod["metadata"]["labels"]["app"], []).append(_words(pod))
        for app, is_left in left.items():
            if is_left:
                self._tally.left += 1
            elif app in by_app:
                self._fault(app, f"not bound: {by_app[app][0]}")
            else:
                self._tally.placed += 1

    async def _expect_refusal(self, job: Obj, pods: list[Obj]) -> None:
        """Not all of the pods can be bound, wherever kube-scheduler puts them."""
        if await self._until_decided():
            self._tally.never += 1
        else:
            self._fault(
                job["metadata"]["name"], f"called impossible, and {len(pods)} pods are bound"
            )

    def _fault(self, name: str, words: str) -> None:
        """Note a difference, with what is needed to see it again."""
        job, request, nodes = self._tried[name]
        self._tally.faults.append(f"{self._tag}/{name}: {words}")
        for one in (job["spec"], request.resources, nodes):
            print(f"    {one}", flush=True)
        print(f"{self._tag}/{name}: {words}", flush=True)

    async def _until_decided(self) -> list[Obj]:
        """The pods that are not bound, once all others are and nothing changes any more."""
        loop = asyncio.get_running_loop()
        last, since = -1, loop.time()
        unbound: list[Obj] = []

        async def look() -> list[Obj] | None:
            nonlocal last, since, unbound
            pods = (await self._client.list(PODS, self._tag)).items
            unbound = [pod for pod in pods if not pod["spec"].get("nodeName")]
            if len(unbound) != last:
                last, since = len(unbound), loop.time()
            is_quiet = loop.time() - since > self._quiet_s and all(map(_words, unbound))
            return [{}] if not unbound else unbound if is_quiet else None

        try:
            found = await eventually(look, "the scheduler decides", timeout_s=WAIT_S)
        except AssertionError as error:
            silent = [(pod["spec"], pod["status"]) for pod in unbound if not _words(pod)]
            raise AssertionError(f"{error}; nothing is said of {silent[:2]}") from error
        return [one for one in found or () if one]

    # --- requests -----------------------------------------------------------------------------

    async def _create(self, job: Obj, nodes: list[str | None]) -> list[Obj]:
        """Create the pods of a Job as its controller and the release would.

        Return none if the API server refuses them: defaults can contradict a pod.
        """
        template, name = job["spec"]["template"], job["metadata"]["name"]
        self._tried[name][2][:] = [str(node) for node in nodes]
        bodies = []
        for number, node in enumerate(nodes):
            spec = dict(template["spec"])
            if node is not None:
                spec["nodeSelector"] = {**spec.get("nodeSelector", {}), HOSTNAME: node}
            meta = {"name": f"{name}-{number}", "labels": template["metadata"]["labels"]}
            bodies.append({"metadata": meta, "spec": spec})
        try:
            first = await self._client.create(PODS, self._tag, bodies[0])
        except Invalid:
            return []
        create = self._client.create
        return [first, *await self._each(bodies[1:], lambda body: create(PODS, self._tag, body))]

    async def _drop(self, resource: ApiResource, namespace: str) -> None:
        names = [
            one["metadata"]["name"] for one in (await self._client.list(resource, namespace)).items
        ]
        await self._each(names, lambda name: self._delete(resource, namespace, name))

        await until(
            lambda: self._client.list(resource, namespace),
            lambda found: not found.items,
            "all are gone",
            timeout_s=WAIT_S,
        )

    async def _delete(self, resource: ApiResource, namespace: str | None, name: str) -> None:
        try:
            await self._client.delete(resource, namespace, name, grace_s=0)
        except (NotFound, Conflict):
            return

    async def _each(self, items: Iterable[Any], do: Callable[[Any], Awaitable[Any]]) -> list[Any]:
        async def one(item: Any) -> Any:
            async with self._gate:
                return await do(item)

        return list(await asyncio.gather(*map(one, items)))


def _first(matcher: Matcher, job: Obj, request: Jobspec) -> Placement | None:
    """Where a cycle starts a workload at once, None if it does not. It is booked."""
    if not matcher.is_satisfiable(request):
        return None
    one = PendingJob(job["metadata"]["name"], 1, 0, request)
    started = run_cycle(matcher, [one], POLICIES["easy"], 0).allocated
    return started[0][1] if started else None


def _words(pod: Obj) -> str:
    """Why kube-scheduler cannot bind a pod, empty if it has not said so."""
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message") or "refused")
    return ""
