"""The ReplicaSet controller: keeps the wanted number of pods."""

from __future__ import annotations

import asyncio

from localcluster.client.informer import Key
from localcluster.client.resources import PODS, REPLICASETS
from localcluster.controllers.claims import PodClaims
from localcluster.controllers.job_pods import removal_rank
from localcluster.controllers.templates import (
    available_in_s,
    matches_selector,
    pod_from_template,
)
from localcluster.errors import ClientError
from localcluster.loops.context import Context, QueueController
from localcluster.loops.objects import (
    controller_of,
    is_active,
    is_deleting,
    is_ready,
    is_terminating,
    key_of,
    now,
)
from localcluster.loops.workqueue import WorkQueue
from localcluster.loops.writing import create_all, delete_object, message_of
from localcluster.obj import Obj

COMPONENT = "replicaset-controller"
BURST_MAX = 500


def replica_status(rs: Obj, pods: list[Obj], waits_s: list[float | None]) -> Obj:
    """Return the status of a ReplicaSet with these active and terminating pods."""
    active = [pod for pod in pods if is_active(pod)]
    labels = (rs["spec"]["template"].get("metadata") or {}).get("labels") or {}
    selector = {"matchLabels": labels}
    counts = {
        "fullyLabeledReplicas": sum(
            matches_selector(selector, pod["metadata"].get("labels") or {}) for pod in active
        ),
        "readyReplicas": sum(is_ready(pod) for pod in active),
        "availableReplicas": sum(wait_s == 0 for wait_s in waits_s),
    }
    status: Obj = {"replicas": len(active)}
    status |= {name: count for name, count in counts.items() if count}
    status["terminatingReplicas"] = sum(is_terminating(pod) for pod in pods)
    status["observedGeneration"] = rs["metadata"]["generation"]
    conditions = (rs.get("status") or {}).get("conditions")
    return status | ({"conditions": conditions} if conditions else {})


class ReplicaSetController(QueueController):
    """Reconciles ReplicaSets and their pods."""

    def __init__(self, context: Context) -> None:
        self._client, self._events = context.client_of(COMPONENT), context.events
        self._sets = context.informers.get(REPLICASETS)
        self._pods = context.informers.get(PODS)
        self._claims = PodClaims(self._client, context.informers, REPLICASETS)
        self._queue: WorkQueue[Key] = WorkQueue(COMPONENT, self._sync)
        self._sets.add_handler(self._changed)
        self._pods.add_handler(self._pod_changed)

    def _pod_changed(self, old: Obj | None, new: Obj | None) -> None:
        for pod in (old, new):
            owner = controller_of(pod) if pod is not None else None
            if pod is not None and owner is not None and owner["kind"] == REPLICASETS.kind:
                self._queue.add((pod["metadata"]["namespace"], owner["name"]))
        if new is not None and controller_of(new) is None and is_active(new):
            self._find_adopter(new)

    def _find_adopter(self, pod: Obj) -> None:
        labels = pod["metadata"].get("labels") or {}
        if not labels:
            return
        for candidate in self._sets.items():
            is_near = candidate["metadata"]["namespace"] == pod["metadata"]["namespace"]
            if is_near and matches_selector(candidate["spec"]["selector"], labels):
                self._queue.add(key_of(candidate))

    async def _sync(self, key: Key) -> None:
        rs = self._sets.get(*key)
        if rs is None:
            return
        pods = await self._claims.claim(rs)
        failure = None if is_deleting(rs) else await self._manage(rs, pods)
        min_ready_s = rs["spec"].get("minReadySeconds") or 0
        waits_s = [available_in_s(pod, min_ready_s, now()) for pod in pods if is_active(pod)]
        pending = [wait_s for wait_s in waits_s if wait_s]
        if pending:
            self._queue.add_after(key, min(pending))
        status = replica_status(rs, pods, waits_s)
        if status != rs.get("status"):
            body = {**rs, "status": status}
            written = await self._client.replace(REPLICASETS, *key, body, subresource="status")
            self._sets.observe(written)
        if failure is not None:
            raise failure

    async def _manage(self, rs: Obj, pods: list[Obj]) -> ClientError | None:
        active = [pod for pod in pods if is_active(pod)]
        missing = rs["spec"].get("replicas", 1) - len(active)
        if missing > 0:
            return await self._create(rs, min(missing, BURST_MAX))
        surplus = sorted(active, key=removal_rank)[: min(-missing, BURST_MAX)]
        results = await asyncio.gather(
            *(self._delete(rs, pod) for pod in surplus), return_exceptions=True
        )
        for result in results:
            if isinstance(result, ClientError):
                return result
            if isinstance(result, BaseException):
                raise result
        return None

    async def _create(self, rs: Obj, count: int) -> ClientError | None:
        def created(pod: Obj) -> None:
            message = f"Created pod: {pod['metadata']['name']}"
            self._events.record(COMPONENT, rs, "Normal", "SuccessfulCreate", message)

        bodies = [pod_from_template(rs, REPLICASETS) for _ in range(count)]
        _, failure = await create_all(self._client, self._pods, bodies, created)
        if failure is not None:
            message = f"Error creating: {message_of(failure)}"
            self._events.record(COMPONENT, rs, "Warning", "FailedCreate", message)
        return failure

    async def _delete(self, rs: Obj, pod: Obj) -> None:
        if await delete_object(self._client, self._pods, pod):
            message = f"Deleted pod: {pod['metadata']['name']}"
            self._events.record(COMPONENT, rs, "Normal", "SuccessfulDelete", message)
