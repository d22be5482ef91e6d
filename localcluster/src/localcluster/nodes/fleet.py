"""The simulated nodes: each registers, renews its Lease, and runs the pods bound to it.

One object serves all nodes of the process, because a thousand kubelets would need a thousand
watches. ``pod_simulation`` decides what a pod does next, and this module executes it. A node can be
silenced (its kubelet is dead: no Lease, no status, its pods freeze) and revived.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from localcluster.client.calls import Client, PatchKind
from localcluster.client.resources import LEASES, NODES, PODS
from localcluster.errors import ClientError, Conflict, NotFound
from localcluster.loops.context import Context
from localcluster.loops.informers import by_controller, by_node
from localcluster.loops.objects import (
    LEASE_NAMESPACE,
    is_deleting,
    is_true,
    key_of,
    node_name,
    now,
    uid_of,
    write_micro_time,
)
from localcluster.loops.workqueue import WorkQueue
from localcluster.nodes import pod_simulation as simulation
from localcluster.nodes.host_programs import HostPrograms, words_of
from localcluster.nodes.pod_simulation import Run, Script, Step
from localcluster.nodes.shape import (
    LEASE_DURATION_S,
    RENEW_S,
    NodeShape,
    node_object,
)
from localcluster.obj import Obj
from localcluster.types.pod_requests import Amounts, amounts_of, pod_requests

logger = logging.getLogger(__name__)

PodKey = tuple[str, str, str]
"""(namespace, name, uid)"""


@dataclass(slots=True)
class _Node:
    """A node of this fleet."""

    shape: NodeShape
    ip: str
    client: Client
    number: int
    is_silent: bool = False
    pods_started: int = 0
    used: Amounts = field(default_factory=dict)
    running: int = 0


class NodeFleet:
    """Nodes and what runs on them. With ``runs_programs``, commands run on this machine."""

    def __init__(
        self,
        context: Context,
        shapes: list[NodeShape],
        *,
        workers: int = 16,
        runs_programs: bool = False,
    ) -> None:
        self._context = context
        self._pods = context.informers.get(PODS)
        self._pods_on = context.informers.index(PODS, by_node)
        self._pods_of = context.informers.index(PODS, by_controller)
        self._nodes: dict[str, _Node] = {}
        self._runs: dict[str, Run] = {}
        self._held: dict[str, tuple[_Node, Amounts]] = {}
        self._attempts: Counter[tuple[str, str]] = Counter()
        self._queue: WorkQueue[PodKey] = WorkQueue("node", self._sync, workers=workers)
        self._programs = HostPrograms(self._annotate) if runs_programs else None
        self._heart: asyncio.Task[None] | None = None
        self._beats: set[asyncio.Task[None]] = set()
        for shape in shapes:
            self._make(shape)
        self._pods.add_handler(self._pod_changed)
        context.informers.get(NODES).add_handler(self._node_changed)

    def _make(self, shape: NodeShape) -> _Node:
        number = len(self._nodes) + 1
        client = self._context.client.acting_as(f"system:node:{shape.name}")
        ip = f"10.{number // 65536}.{number // 256 % 256}.{number % 256}"
        node = self._nodes[shape.name] = _Node(shape, ip, client, number)
        return node

    # -- start and stop --------------------------------------------------------------------------

    def start(self) -> None:
        """Run pods and renew Leases. Call ``register`` first."""
        self._queue.start()
        self._heart = asyncio.create_task(self._beat(), name="node heartbeats")

    async def stop(self) -> None:
        """Stop all kubelets. Pods stay as they are."""
        heart, self._heart = self._heart, None
        tasks = [*self._beats, *([heart] if heart is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._queue.stop()
        if self._programs is not None:
            await self._programs.stop()

    async def register(self) -> None:
        """Create or refresh the Node objects and their Leases."""
        await asyncio.gather(*(self._register(node) for node in self._nodes.values()))

    async def add(self, shape: NodeShape) -> None:
        """Add a node."""
        await self._register(self._make(shape))
        self._look_at(shape.name)

    async def remove(self, name: str) -> None:
        """Remove a node for good: its Node and Lease are deleted, its pods are left behind."""
        self._nodes.pop(name, None)
        for resource, namespace in ((NODES, None), (LEASES, LEASE_NAMESPACE)):
            try:
                # An administrator removes nodes, because kubelets may not.
                await self._context.client.delete(resource, namespace, name)
            except NotFound:
                logger.debug("already gone action=remove resource=%s name=%s", resource.key, name)

    def silence(self, name: str) -> None:
        """Simulate that the kubelet of that node dies."""
        self._nodes[name].is_silent = True

    async def revive(self, name: str) -> None:
        """Simulate that the kubelet comes back, with its pods as they were."""
        node = self._nodes[name]
        node.is_silent = False
        await self._register(node)
        self._look_at(name)

    async def _register(self, node: _Node) -> None:
        body = node_object(node.shape, node.ip, now())
        try:
            stored = await node.client.create(NODES, None, body)
        except Conflict:
            stored = await node.client.get(NODES, None, node.shape.name)
        status = body["status"]
        sizes = {key: status[key] for key in ("capacity", "allocatable")}
        before = stored.get("status") or {}
        if not is_true(stored, "Ready") or any(before.get(key) != sizes[key] for key in sizes):
            # A machine that comes back under its old name may have other sizes.
            changed = {"status": {"conditions": status["conditions"], **_in_place(before, sizes)}}
            await node.client.patch(
                NODES, None, node.shape.name, changed, kind=PatchKind.MERGE, subresource="status"
            )
        lease = self._lease(node) | {
            "metadata": {
                "name": node.shape.name,
                "namespace": LEASE_NAMESPACE,
                "ownerReferences": [
                    {
                        "apiVersion": "v1",
                        "kind": "Node",
                        "name": node.shape.name,
                        "uid": uid_of(stored),
                    }
                ],
            }
        }
        try:
            await node.client.create(LEASES, LEASE_NAMESPACE, lease)
        except Conflict:
            await self._renew(node)

    @staticmethod
    def _lease(node: _Node) -> Obj:
        return {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "spec": {
                "holderIdentity": node.shape.name,
                "leaseDurationSeconds": LEASE_DURATION_S,
                "renewTime": write_micro_time(now()),
            },
        }

    async def _renew(self, node: _Node) -> None:
        body = {"spec": {"renewTime": write_micro_time(now())}}
        await node.client.patch(LEASES, LEASE_NAMESPACE, node.shape.name, body)

    async def _beat(self) -> None:
        """Renew every Lease once per period, spread over it, without waiting for each other."""
        period_s = min(RENEW_S, self._context.options.node_grace_s / 4)
        while True:
            nodes = [node for node in self._nodes.values() if not node.is_silent]
            if not nodes:
                await asyncio.sleep(period_s)
            for node in nodes:
                await asyncio.sleep(period_s / len(nodes))
                task = asyncio.create_task(self._beat_once(node))
                self._beats.add(task)
                task.add_done_callback(self._beats.discard)

    async def _beat_once(self, node: _Node) -> None:
        if node.is_silent or node.shape.name not in self._nodes:
            return
        try:
            await self._renew(node)
        except NotFound:
            await self._reregister(node)
        except ClientError as error:
            logger.debug("lease not renewed node=%s error=%s", node.shape.name, error)

    def _node_changed(self, _old: Obj | None, new: Obj | None) -> None:
        """Register a living kubelet again after it was declared silent."""
        if new is None or is_true(new, "Ready"):
            return
        node = self._nodes.get(new["metadata"]["name"])
        if node is not None and not node.is_silent and self._heart is not None:
            task = asyncio.create_task(self._reregister(node))
            self._beats.add(task)
            task.add_done_callback(self._beats.discard)

    async def _reregister(self, node: _Node) -> None:
        """Register again.

        The Lease is gone, perhaps with a Node deleted while its kubelet lives.
        """
        if node.shape.name not in self._nodes:
            return
        try:
            await self._register(node)
        except ClientError as error:
            logger.debug("node not registered node=%s error=%s", node.shape.name, error)

    # -- pods ------------------------------------------------------------------------------------

    def _look_at(self, name: str) -> None:
        for pod in self._pods_on.get(name):
            self._queue.add((*key_of(pod), uid_of(pod)))

    def _pod_changed(self, old: Obj | None, new: Obj | None) -> None:
        pod = new or old
        assert pod is not None
        if node_name(pod) in self._nodes:
            self._queue.add((*key_of(pod), uid_of(pod)))

    async def _sync(self, key: PodKey) -> None:
        namespace, name, uid = key
        pod = self._pods.get(namespace, name)
        if pod is None or uid_of(pod) != uid:
            self._runs.pop(uid, None)
            self._give_back(uid)
            if self._programs is not None:
                self._programs.forget(uid)
            return
        node = self._nodes.get(node_name(pod))
        if node is None or node.is_silent:
            return
        run = self._runs.get(uid)
        if run is None:
            run = self._recover(node, pod)
        else:
            run.script = self._script(pod)
        step, due_s = simulation.next_step(pod, run, now())
        if step is Step.NOTHING:
            return
        if due_s > 0:
            self._queue.add_after(key, due_s)
            return
        await self._take(node, pod, run, step)

    def _recover(self, node: _Node, pod: Obj) -> Run | None:
        run = simulation.recovered_run(pod)
        if run is not None:
            self._runs[uid_of(pod)] = run
            self._hold(node, pod)
        return run

    async def _take(self, node: _Node, pod: Obj, run: Run | None, step: Step) -> None:
        if step is Step.START:
            await self._start(node, pod)
        elif step is Step.REMOVE:
            await self._remove_pod(node, pod)
        elif step is Step.KILL:
            code = simulation.KILLED_EXIT_CODE
            await self._write(node, pod, simulation.finished_status(pod, run, code, now()))
            self._give_back(uid_of(pod))
        elif run is not None:
            await self._continue(node, pod, run, step)

    async def _start(self, node: _Node, pod: Obj) -> None:
        refusal = self._refusal(node, pod)
        if refusal is not None:
            await self._write(node, pod, refusal)
            return
        whose = simulation.failure_key(pod)
        if whose not in self._attempts:
            self._attempts[whose] = self._earlier_attempts(whose)
        self._run_program(pod)
        run = Run(self._script(pod), now(), attempt=self._attempts[whose])
        node.pods_started += 1
        count = node.pods_started
        pod_ip = f"10.{128 + node.number // 256 % 128}.{node.number % 256}.{count % 254 + 1}"
        status = simulation.running_status(pod, run, now(), host_ip=node.ip, pod_ip=pod_ip)
        # Store the run before writing: the observed answer asks for the next step at once.
        self._runs[uid_of(pod)] = run
        self._attempts[whose] += 1
        self._hold(node, pod)
        try:
            await self._write(node, pod, status)
        except ClientError:
            self._runs.pop(uid_of(pod), None)
            self._attempts[whose] -= 1
            self._give_back(uid_of(pod))
            raise

    def _run_program(self, pod: Obj) -> None:
        if self._programs is not None and words_of(pod):
            self._programs.start(pod)

    def _script(self, pod: Obj) -> Script:
        """Return how a pod runs: as its annotations say, or as its program does."""
        script = simulation.script_of(pod)
        if self._programs is None or not words_of(pod):
            return script
        code = self._programs.exit_code(uid_of(pod))
        if code is not None:
            return Script(0.0, code)
        if not is_deleting(pod):
            return Script(None)
        self._programs.ask_to_end(uid_of(pod))
        return Script(None, termination_s=float(pod["metadata"]["deletionGracePeriodSeconds"]))

    async def _annotate(self, pod: Obj, notes: Mapping[str, str]) -> None:
        namespace, name = key_of(pod)
        body = {"metadata": {"uid": uid_of(pod), "annotations": dict(notes)}}
        with suppress(ClientError):
            self._pods.observe(await self._context.client.patch(PODS, namespace, name, body))
        self._queue.add((namespace, name, uid_of(pod)))

    def _earlier_attempts(self, whose: tuple[str, str]) -> int:
        """Return how many runs counted with this one took place before this process started."""
        siblings = self._pods_of.get(whose[0])
        return sum(
            1
            for pod in siblings
            if simulation.failure_key(pod) == whose and (pod.get("status") or {}).get("startTime")
        )

    async def _continue(self, node: _Node, pod: Obj, run: Run, step: Step) -> None:
        at = now()
        if step is Step.FINISH:
            status = simulation.finished_status(pod, run, run.exit_code(), at)
            await self._write(node, pod, status)
            self._give_back(uid_of(pod))
        elif step is Step.PAUSE:
            await self._write(node, pod, simulation.paused_status(pod, run, at))
            run.is_waiting, run.since = True, at
            self._queue.add((*key_of(pod), uid_of(pod)))
        elif step is Step.RESTART:
            status_of = pod.get("status") or {}
            run.restarts += 1
            self._run_program(pod)
            run.script = self._script(pod)
            status = simulation.running_status(
                pod, run, at, host_ip=node.ip, pod_ip=status_of.get("podIP", "")
            )
            await self._write(node, pod, status)
            whose = simulation.failure_key(pod)
            run.attempt = self._attempts[whose]
            self._attempts[whose] += 1
            run.is_waiting, run.since = False, at
            self._queue.add((*key_of(pod), uid_of(pod)))

    def _refusal(self, node: _Node, pod: Obj) -> Obj | None:
        """Return the status of a pod that does not fit, or None. This is the kubelet's check."""
        capacity = amounts_of(node_object(node.shape, node.ip, now())["status"]["allocatable"])
        wanted = pod_requests(pod)
        if node.running + 1 > capacity["pods"]:
            return _refused("OutOfpods", f"pods, requested: 1, used: {node.running}")
        for name, amount in wanted.items():
            if "/" in name and name not in capacity:
                # Not of this node: a device of a DeviceClass. The kubelet leaves these out, too.
                continue
            used = node.used.get(name, 0)
            if amount and used + amount > capacity.get(name, 0):
                detail = f"{name}, requested: {amount}, used: {used}"
                return _refused(f"OutOf{name}", f"{detail}, capacity: {capacity.get(name, 0)}")
        return None

    def _hold(self, node: _Node, pod: Obj) -> None:
        uid = uid_of(pod)
        if uid in self._held:
            return
        amounts = pod_requests(pod)
        self._held[uid] = (node, amounts)
        node.running += 1
        for name, amount in amounts.items():
            node.used[name] = node.used.get(name, 0) + amount

    def _give_back(self, uid: str) -> None:
        held = self._held.pop(uid, None)
        if held is not None:
            # Not the present node of this name: that one may have come after the other was removed.
            node, amounts = held
            node.running -= 1
            for resource, amount in amounts.items():
                node.used[resource] -= amount

    async def _write(self, node: _Node, pod: Obj, status: Obj) -> None:
        namespace, name = key_of(pod)
        body = {"metadata": {"uid": uid_of(pod)}, "status": status}
        try:
            answer = await node.client.patch(PODS, namespace, name, body, subresource="status")
        except NotFound:
            return
        self._pods.observe(answer)

    async def _remove_pod(self, node: _Node, pod: Obj) -> None:
        namespace, name = key_of(pod)
        try:
            await node.client.delete(PODS, namespace, name, uid=uid_of(pod), grace_s=0)
        except (NotFound, Conflict):
            logger.debug("pod already gone action=remove pod=%s/%s", namespace, name)


def _refused(reason: str, detail: str) -> Obj:
    message = f"Pod was rejected: Node didn't have enough resource: {detail}"
    return {"phase": "Failed", "reason": reason, "message": message}


def _in_place(before: Obj, sizes: Obj) -> Obj:
    """Return a merge patch that replaces the old sizes by ``sizes``. Removed ones are null."""
    return {key: {**dict.fromkeys(before.get(key) or {}), **new} for key, new in sizes.items()}
