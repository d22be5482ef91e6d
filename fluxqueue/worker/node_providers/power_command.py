"""Commands that power nodes on and off: Jobs in fluxqueue's own namespace.

They have the semantics of Slurm's ResumeProgram and SuspendProgram. The rows say which names a
request has, so a Job can be created again after any crash. A name that did not come is powered off
when its request ends. Idle nodes are cordoned, and then powered off in batches.
"""

from __future__ import annotations

import copy
import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fluxqueue.db.store.node_pools import OrderedNodes, PoolOrder
from fluxqueue.errors import Conflict, NotFound
from fluxqueue.fluxjob.hostlist import compress
from fluxqueue.fluxjob.times import from_rfc3339
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import JOBS, NODES, POD_TEMPLATES, PODS
from fluxqueue.policy.node_pool import NodePool
from fluxqueue.worker.node_providers.provider import OrderOutcome
from fluxqueue.worker.node_providers.whole_node import REQUEST
from fluxqueue.workload import labels
from fluxqueue.workload.node_object import node_fact
from fluxqueue.workload.objects import Object

logger = logging.getLogger(__name__)

RESUME, SUSPEND = "resume", "suspend"
"""The fields of the provider with the names of the PodTemplates, and the actions."""

GIVEN = ("FLUXQUEUE_ACTION", "FLUXQUEUE_NODES", "FLUXQUEUE_NODE_NAMES", "FLUXQUEUE_POOL")
"""The variables of a command: the action, the hostlist, the names with spaces, and the pool."""

BATCH = "fluxqueue/suspended-at"
"""Label of a Job that powers off idle nodes: when that was decided, in epoch seconds."""

ABSENT = frozenset({"node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"})
"""Taints of a node that does not answer."""

RETRY_S = 120
"""How long after its end a Job that did not power its nodes off is created again."""

LIMIT_S = 900
"""How long a Job that powers off may run."""


class PowerCommand:
    """The provider ``command``."""

    async def apply(self, client: KubeClient, order: PoolOrder, namespace: str) -> OrderOutcome:
        """Create the Jobs that power nodes on and off, and delete those that have done so."""
        jobs = await _find(client, order, namespace)
        power = _Power(client, order, namespace, jobs, await _objects(client, order))
        is_busy = await power.clean()
        await power.suspend_idle()
        for one in order.ended:
            if not await power.take_back(one):
                power.unsettled.add(one.number)
        for one in order.open:
            why = await power.resume(one)
            if why:
                power.refused[one.number] = why
        return OrderOutcome(power.refused, power.unsettled, is_busy)


@dataclass(slots=True)
class _Power:
    """One call of the provider. ``jobs`` and ``nodes`` are those of the pool by name."""

    client: KubeClient
    order: PoolOrder
    namespace: str
    jobs: Mapping[str, Object]
    nodes: Mapping[str, Object]
    refused: dict[int, str] = field(default_factory=dict)
    unsettled: set[int] = field(default_factory=set)

    @property
    def pool(self) -> NodePool:
        """Return the pool."""
        return self.order.pool

    async def clean(self) -> bool:
        """Delete the Jobs of batches of idle nodes that are off. Return whether some still run."""
        batches = {str(at) for at in self.order.returning.values()}
        is_busy = False
        for job in self.jobs.values():
            batch = job["metadata"]["labels"].get(BATCH)
            if batch is None or batch in batches:
                continue
            if end_of(job):
                await self._delete(job)
            else:
                is_busy = True
        return is_busy

    # --- off -------------------------------------------------------------------------------------

    async def suspend_idle(self) -> None:
        """Cordon idle nodes, and power them off: one Job for all that became idle together."""
        batches: dict[int, list[str]] = defaultdict(list)
        for node, at in sorted(self.order.returning.items()):
            batches[at].append(node)
        for at, nodes in batches.items():
            for node in nodes:
                await self._cordon(node)
            await self._power_off(f"off-{at}", nodes, {BATCH: str(at)})

    async def take_back(self, one: OrderedNodes) -> bool:
        """Power off the nodes of an ended request that have not come. Return whether all is done.

        The command that powers them on must be over before. Otherwise it could be the last one.
        """
        on = self.jobs.get(self._name(f"{one.number}-on"))
        missing = [name for name in one.names if name not in self.order.present]
        if on is not None and not end_of(on):
            if missing:
                await self._stop(on)
            if not missing or not is_stopped(on):
                return False
        off_name = f"{one.number}-off"
        was_on = on is not None or self._name(off_name) in self.jobs
        own = {REQUEST: str(one.number)}
        if missing and was_on and not await self._power_off(off_name, missing, own):
            return False
        for name in (f"{one.number}-on", off_name):
            job = self.jobs.get(self._name(name))
            if job is not None:
                await self._delete(job)
        return True

    async def _power_off(self, name: str, nodes: Sequence[str], own: Mapping[str, str]) -> bool:
        """Run the command that powers nodes off. Return whether it has succeeded.

        A Job that failed, or did not help, is created again after a while.
        """
        job = self.jobs.get(self._name(name))
        if job is None:
            why = await self._create(name, SUSPEND, nodes, own)
            if why:
                extra = {"action": "power", "pool": self.pool.name, "error": why}
                logger.warning("nodes cannot be powered off", extra=extra)
            return False
        end = end_of(job)
        if end and self.order.now - end[1] >= RETRY_S:
            await self._delete(job)
        return end is not None and end[0] == "Complete"

    async def _stop(self, job: Object) -> None:
        """Suspend a Job, so that its pods end."""
        if not job["spec"].get("suspend"):
            body = {"spec": {"suspend": True}}
            name = job["metadata"]["name"]
            await self.client.patch(JOBS, self.namespace, name, body, metadata_only=True)

    async def _cordon(self, name: str) -> None:
        """Cordon a node. With the annotation it offers nothing once it is off."""
        node = self.nodes.get(name)
        if node is not None and not node["spec"].get("unschedulable"):
            meta = {"annotations": {labels.POWERED_DOWN: "true"}}
            body = {"metadata": meta, "spec": {"unschedulable": True}}
            await self.client.patch(NODES, None, name, body, metadata_only=True)

    # --- on --------------------------------------------------------------------------------------

    async def resume(self, one: OrderedNodes) -> str:
        """Power the nodes of a request on, once. Return why that has failed, empty if it has not.

        A name that is being powered off has to wait for the end of that.
        """
        if not one.coming:
            return ""
        if not one.names:
            return "no name of the pool is free"
        job = self.jobs.get(self._name(f"{one.number}-on"))
        if job is not None:
            for name in one.names:
                await self._uncordon(name)
            end = end_of(job)
            return await self._why(job) if end and end[0] == "Failed" else ""
        if self._powering_off() & set(one.names):
            return ""
        nodes = [name for name in one.names if name not in one.arrived]
        return await self._create(f"{one.number}-on", RESUME, nodes, {REQUEST: str(one.number)})

    def _powering_off(self) -> set[str]:
        ended = {name for one in self.order.ended for name in one.names}
        return (ended - set(self.order.present)) | self.order.returning.keys()

    async def _uncordon(self, name: str) -> None:
        """Let a node that is on be used. The cordon of a person stays."""
        node = self.nodes.get(name)
        if node is None or not is_back(node):
            return
        if labels.POWERED_DOWN in (node["metadata"].get("annotations") or {}):
            meta = {"annotations": {labels.POWERED_DOWN: None}}
            body = {"metadata": meta, "spec": {"unschedulable": None}}
            await self.client.patch(NODES, None, name, body, metadata_only=True)

    async def _why(self, job: Object) -> str:
        """Return the last words of a command that failed, or those of the Job controller."""
        selector = f"job-name={job['metadata']['name']}"
        found = (await self.client.list(PODS, self.namespace, label_selector=selector)).items
        told = [text for pod in found for text in _last_words(pod)]
        conditions = (job.get("status") or {}).get("conditions") or ()
        told += [one.get("message", "") for one in conditions if one["type"] == "Failed"]
        return f"the command failed: {told[0].strip()}" if told else "the command failed"

    # --- Jobs ------------------------------------------------------------------------------------

    def _name(self, name: str) -> str:
        return f"{self.pool.name}-{name}"

    async def _create(
        self, name: str, action: str, nodes: Sequence[str], own: Mapping[str, str]
    ) -> str:
        """Create a Job from the template of an action. Return why that is not possible."""
        called = self.pool.parameters[action]
        try:
            template = await self.client.get(POD_TEMPLATES, self.namespace, called)
        except NotFound:
            return (
                f"PodTemplate {called} does not exist in namespace {self.namespace}. Fix: create it"
            )
        meta = {"name": self._name(name), "labels": {labels.NODE_POOL: self.pool.name, **own}}
        body = power_job(self.pool, meta, template, action, nodes)
        try:
            await self.client.create(JOBS, self.namespace, body, metadata_only=True)
        except Conflict:
            return ""  # it exists, or its predecessor is about to go
        extra = {"action": "power", "pool": self.pool.name, "nodes": compress(nodes)}
        logger.info("nodes powered on" if action == RESUME else "nodes powered off", extra=extra)
        return ""

    async def _delete(self, job: Object) -> None:
        meta = job["metadata"]
        if meta.get("deletionTimestamp"):
            return
        try:
            await self.client.delete(
                JOBS, self.namespace, meta["name"], uid=meta["uid"], propagation="Background"
            )
        except (NotFound, Conflict):
            return


async def _find(client: KubeClient, order: PoolOrder, namespace: str) -> dict[str, Object]:
    selector = f"{labels.NODE_POOL}={order.pool.name}"
    found = (await client.list(JOBS, namespace, label_selector=selector)).items
    return {one["metadata"]["name"]: one for one in found}


async def _objects(client: KubeClient, order: PoolOrder) -> dict[str, Object]:
    """Return the Node objects of a pool, if it waits for nodes or returns some."""
    if not (order.returning or order.coming):
        return {}
    selector = ",".join(f"{key}={value}" for key, value in sorted(order.pool.labels.items()))
    found = (await client.list(NODES, label_selector=selector)).items
    return {one["metadata"]["name"]: one for one in found}


def end_of(job: Object) -> tuple[str, int] | None:
    """Return how and when (epoch seconds) a Job ended: Complete or Failed. None while it runs."""
    for one in (job.get("status") or {}).get("conditions") or ():
        if one["type"] in ("Complete", "Failed") and one["status"] == "True":
            return one["type"], from_rfc3339(one["lastTransitionTime"])
    return None


def is_back(node: Object) -> bool:
    """Return whether a node is ready, and Kubernetes has removed the taints of its absence.

    Pods could not be bound before, and would be sent to other nodes.
    """
    keys = {one["key"] for one in node["spec"].get("taints") or ()}
    return node_fact(node).is_up and not keys & ABSENT


def is_stopped(job: Object) -> bool:
    """Return whether a suspended Job has no pods any more."""
    status = job.get("status") or {}
    told = {one["type"] for one in status.get("conditions") or () if one["status"] == "True"}
    return "Suspended" in told and not status.get("active") and not status.get("terminating")


def _last_words(pod: Object) -> Iterable[str]:
    for one in (pod.get("status") or {}).get("containerStatuses") or ():
        message = ((one.get("state") or {}).get("terminated") or {}).get("message")
        if message:
            yield str(message)


def power_job(
    pool: NodePool,
    meta: Mapping[str, Any],
    template: Object,
    action: str,
    nodes: Sequence[str],
) -> dict[str, Any]:
    """Return the Job that runs the first container of ``template`` for ``nodes``.

    The container receives the hostlist as its last argument, and the variables ``GIVEN``.
    A command that powers on runs once. One that powers off is tried again by the Job.
    """
    pod = copy.deepcopy(template.get("template") or {})
    spec = pod.setdefault("spec", {})
    if spec.get("restartPolicy") not in ("Never", "OnFailure"):
        spec["restartPolicy"] = "Never"  # the API server has set Always, which no Job may have
    hosts = compress(nodes)
    container = spec["containers"][0]
    container["args"] = [*(container.get("args") or ()), hosts]
    values = (action, hosts, " ".join(nodes), pool.name)
    own = [{"name": name, "value": one} for name, one in zip(GIVEN, values, strict=True)]
    container["env"] = [*(container.get("env") or ()), *own]
    container["terminationMessagePolicy"] = "FallbackToLogsOnError"
    pod_meta = pod.setdefault("metadata", {})
    pod_meta["labels"] = {**(pod_meta.get("labels") or {}), labels.MANAGED: "false"}
    is_off = action == SUSPEND
    job: dict[str, Any] = {"backoffLimit": 2 if is_off else 0, "template": pod}
    if is_off:
        job["activeDeadlineSeconds"] = LIMIT_S
    if BATCH in meta["labels"]:
        job["ttlSecondsAfterFinished"] = 3600  # the pool may be deleted meanwhile
    own_labels = {**meta["labels"], labels.MANAGED: "false"}
    return {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.kind,
        "metadata": {**meta, "labels": own_labels},
        "spec": job,
    }
