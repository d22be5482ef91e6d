"""Silent or deleted nodes: taints, eviction, and removal of the pods left behind.

``node_health`` makes the decisions. A node is silent if neither its Lease nor its status has
changed for ``node_grace_s``, by our own clock.
"""

from __future__ import annotations

import asyncio
import logging
import time

from localcluster.client.resources import LEASES, NODES, PODS
from localcluster.controllers.node_health import (
    evicted_at,
    missing_marks,
    taint_steps,
    unknown_conditions,
    with_condition,
)
from localcluster.errors import ClientError, Conflict, NotFound
from localcluster.loops.context import Context
from localcluster.loops.informers import by_node
from localcluster.loops.objects import (
    LEASE_NAMESPACE,
    condition_of,
    is_deleting,
    is_finished,
    is_ready,
    key_of,
    node_name,
    now,
    uid_of,
    write_time,
)
from localcluster.loops.workqueue import WorkQueue
from localcluster.obj import Obj

logger = logging.getLogger(__name__)

COMPONENT = "node-controller"


class NodeLifecycle:
    """Reconciles nodes' taints and their pods with the conditions of the nodes."""

    def __init__(self, context: Context) -> None:
        self._client = context.client_of(COMPONENT)
        self._options, self._events = context.options, context.events
        self._nodes = context.informers.get(NODES)
        self._pods = context.informers.get(PODS)
        self._pods_on = context.informers.index(PODS, by_node)
        self._heard: dict[str, float] = {}
        self._gone_since: dict[str, float] = {}
        self._evictions_due: set[str] = set()
        self._queue: WorkQueue[str] = WorkQueue(COMPONENT, self._sync)
        self._monitor_task: asyncio.Task[None] | None = None
        self._nodes.add_handler(self._node_changed)
        self._pods.add_handler(self._pod_changed)
        context.informers.get(LEASES).add_handler(self._lease_changed)

    def start(self) -> None:
        """Start working."""
        self._queue.start()
        self._monitor_task = asyncio.create_task(self._monitor(), name=COMPONENT)

    async def stop(self) -> None:
        """Stop working."""
        if self._monitor_task is not None:
            self._monitor_task.cancel()
            await asyncio.gather(self._monitor_task, return_exceptions=True)
        await self._queue.stop()

    # -- watches ---------------------------------------------------------------------------------

    def _node_changed(self, old: Obj | None, new: Obj | None) -> None:
        node = new or old
        assert node is not None
        name = node["metadata"]["name"]
        if new is None:
            self._heard.pop(name, None)
        elif old is None or old.get("status") != new.get("status"):
            ready = condition_of(new, "Ready")
            if ready is None or ready.get("status") != "Unknown":
                self._heard[name] = time.monotonic()
        self._queue.add(name)

    def _lease_changed(self, _old: Obj | None, new: Obj | None) -> None:
        if new is not None and new["metadata"]["namespace"] == LEASE_NAMESPACE:
            self._heard[new["metadata"]["name"]] = time.monotonic()

    def _pod_changed(self, old: Obj | None, new: Obj | None) -> None:
        if new is None or not node_name(new):
            return
        if old is not None and node_name(old):
            return
        node = self._nodes.get("", node_name(new))
        if node is None or (node["spec"].get("taints") or ()):
            self._queue.add(node_name(new))

    async def _monitor(self) -> None:
        period_s = self._options.node_monitor_s
        looked_at = time.monotonic()
        while True:
            await asyncio.sleep(period_s)
            now_s = time.monotonic()
            # Time in which this process itself could not run says nothing about the nodes.
            stalled_s = now_s - looked_at - period_s
            if stalled_s > period_s / 2:
                self._heard = {name: at + stalled_s for name, at in self._heard.items()}
            looked_at = now_s
            await self._mark_silent(now_s - self._options.node_grace_s)
            self._ask_for_evictions()

    async def _mark_silent(self, silent_before_s: float) -> None:
        for node in list(self._nodes.items()):
            if self._heard.get(node["metadata"]["name"], 0.0) < silent_before_s:
                ready = condition_of(node, "Ready")
                if ready is None or ready.get("status") != "Unknown":
                    await self._mark_unknown(node)

    def _ask_for_evictions(self) -> None:
        """Request evictions.

        NoExecute taints change only with this check, in the node's own sync.
        """
        for node in self._nodes.items():
            if taint_steps(node, now(), "NoExecute"):
                self._evictions_due.add(node["metadata"]["name"])
                self._queue.add(node["metadata"]["name"])

    async def _set_taints(self, node: Obj, effect: str) -> Obj:
        for taints in taint_steps(node, now(), effect):
            metadata = node["metadata"]
            body = {
                "metadata": {"resourceVersion": metadata["resourceVersion"]},
                "spec": {"taints": taints or None},
            }
            node = await self._client.patch(NODES, None, metadata["name"], body)
            self._nodes.observe(node)
        return node

    async def _mark_unknown(self, node: Obj) -> None:
        name = node["metadata"]["name"]
        logger.info("node silent action=mark node=%s", name)
        status = {"status": {"conditions": unknown_conditions(node, now())}}
        try:
            written = await self._client.patch(NODES, None, name, status, subresource="status")
        except ClientError as error:
            logger.debug("node not marked action=mark node=%s error=%s", name, error)
            return
        self._nodes.observe(written)
        self._events.record(
            COMPONENT, node, "Normal", "NodeNotReady", f"Node {name} status is now: NodeNotReady"
        )

    # -- one node --------------------------------------------------------------------------------

    async def _sync(self, name: str) -> None:
        node = self._nodes.get("", name)
        if node is None:
            await self._collect(name)
            return
        self._gone_since.pop(name, None)
        marks = missing_marks(node)
        for mark in marks[:1]:
            node = await self._client.patch(NODES, None, name, {"metadata": mark})
            self._nodes.observe(node)
        node = await self._set_taints(node, "NoSchedule")
        if name in self._evictions_due:
            node = await self._set_taints(node, "NoExecute")
            self._evictions_due.discard(name)
        for mark in marks[1:]:
            node = await self._client.patch(NODES, None, name, {"metadata": mark})
            self._nodes.observe(node)
        ready = condition_of(node, "Ready")
        if ready is not None and ready.get("status") == "Unknown":
            await self._mark_pods_not_ready(name)
        await self._evict(name, node)

    async def _mark_pods_not_ready(self, name: str) -> None:
        for pod in self._pods_on.get(name):
            if is_ready(pod):
                condition = {
                    "type": "Ready",
                    "status": "False",
                    "lastTransitionTime": write_time(now()),
                }
                await self._patch_pod(pod, {"conditions": with_condition(pod, condition)})

    async def _evict(self, name: str, node: Obj) -> None:
        for pod in self._pods_on.get(name):
            if is_deleting(pod) or is_finished(pod):
                continue
            due = evicted_at(pod, node)
            if due is None:
                continue
            left_s = (due - now()).total_seconds()
            if left_s > 0:
                self._queue.add_after(name, left_s)
                continue
            await self._disrupt(
                pod,
                reason="DeletionByTaintManager",
                message="Taint manager: deleting due to NoExecute taint",
            )
            await self._delete_pod(pod, None)

    # -- pods of deleted nodes -------------------------------------------------------------------

    async def _collect(self, name: str) -> None:
        """Fail and remove pods bound to a missing node after a while."""
        if not self._pods_on.count(name):
            self._gone_since.pop(name, None)
            return
        since = self._gone_since.setdefault(name, time.monotonic())
        left_s = since + self._options.pod_gc_s - time.monotonic()
        if left_s > 0:
            self._queue.add_after(name, left_s)
            return
        for pod in self._pods_on.get(name):
            if not is_finished(pod):
                await self._disrupt(
                    pod,
                    reason="DeletionByPodGC",
                    message="PodGC: node no longer exists",
                    phase="Failed",
                )
            await self._delete_pod(pod, 0)

    # -- writing ---------------------------------------------------------------------------------

    async def _disrupt(self, pod: Obj, *, reason: str, message: str, phase: str = "") -> None:
        generation = pod["metadata"].get("generation")
        condition = {
            "type": "DisruptionTarget",
            "observedGeneration": generation,
            "status": "True",
            "lastProbeTime": None,
            "lastTransitionTime": write_time(now()),
            "reason": reason,
            "message": message,
        }
        status: Obj = {"conditions": with_condition(pod, condition)}
        if phase:
            status |= {"phase": phase, "observedGeneration": generation}
        await self._patch_pod(pod, status)

    async def _patch_pod(self, pod: Obj, status: Obj) -> None:
        body = {"metadata": {"uid": uid_of(pod)}, "status": status}
        try:
            written = await self._client.patch(PODS, *key_of(pod), body, subresource="status")
        except NotFound:
            return
        self._pods.observe(written)

    async def _delete_pod(self, pod: Obj, grace_s: int | None) -> None:
        try:
            await self._client.delete(PODS, *key_of(pod), uid=uid_of(pod), grace_s=grace_s)
        except (NotFound, Conflict):
            return
