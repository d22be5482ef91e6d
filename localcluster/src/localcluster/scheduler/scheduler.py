"""The scheduler: binds pending pods of ``default-scheduler`` to nodes. A thin loop.

``decision`` makes the decisions. Highest priority comes first, then oldest. Pods that fit nowhere
wait until a change could help. A bound pod is assumed at once, so a burst is placed without waiting
for the API.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import Iterator
from dataclasses import dataclass, field

from localcluster.client.calls import PatchKind
from localcluster.client.informer import Key
from localcluster.client.resources import CLAIMS, NODES, PODS, VOLUMES
from localcluster.errors import ClientError, Conflict, Invalid, NotFound
from localcluster.loops.context import Context
from localcluster.loops.objects import (
    condition_of,
    is_deleting,
    is_finished,
    key_of,
    node_name,
    now,
    uid_of,
    write_time,
)
from localcluster.obj import Obj
from localcluster.scheduler.decision import (
    HOSTNAME_LABEL,
    SCHEDULER_NAME,
    Around,
    NodeState,
    PodDemand,
    choose_node,
    demand_of,
    explain,
    place_of,
)
from localcluster.scheduler.neighbours import Neighbour, Neighbours, Place, neighbour_of
from localcluster.types.pod_requests import Amounts, pod_requests

logger = logging.getLogger(__name__)


# A burst of changes becomes one pass over the pending pods.
GATHER_S = 0.005
# Each explanation costs a write and an event. So the more pods are pending, the less often they are
# rewritten.
EXPLAIN_PER_POD_S = 0.002
BIND_RETRY_S = 1.0


@dataclass(slots=True)
class _Waiting:
    """A pod that waits for a node."""

    uid: str
    demand: PodDemand
    rank: tuple[int, str, str]
    pod: Obj
    explained: str = ""
    explained_at: float = float("-inf")


@dataclass(slots=True)
class _Placed:
    """What a bound (or assumed) pod uses, and where."""

    uid: str
    node: str
    requests: Amounts = field(default_factory=dict)


class Scheduler:
    """Watches pods and nodes, and binds."""

    def __init__(self, context: Context) -> None:
        self._client = context.client.acting_as("system:kube-scheduler")
        self._events = context.events
        self._pods = context.informers.get(PODS)
        self._claims = context.informers.get(CLAIMS)
        self._volumes = context.informers.get(VOLUMES)
        self._neighbours = Neighbours()
        self._nodes: dict[str, NodeState] = {}
        self._by_hostname: dict[str, set[str]] = {}
        self._waiting: dict[Key, _Waiting] = {}
        self._placed: dict[Key, _Placed] = {}
        self._wake = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop_task: asyncio.Task[None] | None = None
        context.informers.get(NODES).add_handler(self._node_changed)
        self._pods.add_handler(self._pod_changed)
        for informer in (self._claims, self._volumes):
            informer.add_handler(self._volume_changed)

    def start(self) -> None:
        """Start binding."""
        self._loop_task = asyncio.create_task(self._run(), name="scheduler")

    async def stop(self) -> None:
        """Stop. Bindings that are not finished are abandoned."""
        tasks = [task for task in (self._loop_task, *self._tasks) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- watches -----------------------------------------------------------------------------------

    def _node_changed(self, old: Obj | None, new: Obj | None) -> None:
        if old is not None:
            hostname = (old["metadata"].get("labels") or {}).get(HOSTNAME_LABEL, "")
            self._by_hostname.get(hostname, set()).discard(old["metadata"]["name"])
        if new is None:
            assert old is not None
            self._node(old["metadata"]["name"]).is_known = False
        else:
            node = self._node(new["metadata"]["name"])
            node.take_object(new)
            hostname = node.labels.get(HOSTNAME_LABEL, "")
            self._by_hostname.setdefault(hostname, set()).add(node.name)
        self._wake.set()

    def _volume_changed(self, old: Obj | None, new: Obj | None) -> None:
        if old != new and any(waiting.demand.claims for waiting in self._waiting.values()):
            self._wake.set()

    def _node(self, name: str) -> NodeState:
        """Return the state of a node. Pods may be bound to a missing node."""
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = NodeState(name)
        return node

    def _pod_changed(self, old: Obj | None, new: Obj | None) -> None:
        pod = new or old
        assert pod is not None
        key = key_of(pod)
        if new is None or is_finished(new):
            self._waiting.pop(key, None)
            self._drop(key)
        elif node_name(new):
            self._waiting.pop(key, None)
            self._place(key, new, node_name(new))
        elif self._is_ours(new):
            self._wait(key, new)
        else:
            self._waiting.pop(key, None)

    @staticmethod
    def _is_ours(pod: Obj) -> bool:
        spec = pod["spec"]
        return (
            not spec.get("schedulingGates")
            and not is_deleting(pod)
            and spec.get("schedulerName", SCHEDULER_NAME) == SCHEDULER_NAME
        )

    def _wait(self, key: Key, pod: Obj) -> None:
        if key in self._placed:
            return  # The pod is assumed, and its binding is being written.
        known = self._waiting.get(key)
        if known is not None and known.uid == uid_of(pod):
            is_same_spec = known.pod["spec"] == pod["spec"]
            known.pod = pod
            if is_same_spec:
                return
            known.demand = demand_of(pod)
        else:
            priority = int(pod["spec"].get("priority") or 0)
            created = pod["metadata"].get("creationTimestamp") or ""
            rank = (-priority, created, pod["metadata"]["resourceVersion"].zfill(20))
            self._waiting[key] = _Waiting(uid_of(pod), demand_of(pod), rank, pod)
        self._wake.set()

    def _place(self, key: Key, pod: Obj, node: str) -> None:
        placed = self._placed.get(key)
        if placed is not None and placed.uid == uid_of(pod) and placed.node == node:
            return
        self._drop(key)
        placed = _Placed(uid_of(pod), node, pod_requests(pod))
        self._take(key, placed, neighbour_of(pod))

    def _take(self, key: Key, placed: _Placed, neighbour: Neighbour) -> None:
        self._placed[key] = placed
        self._node(placed.node).take_pod(placed.requests)
        self._neighbours.add(placed.uid, placed.node, neighbour)
        if any(one.demand.neighbour.is_bound_by_others for one in self._waiting.values()):
            self._wake.set()  # A pod that waits may want it beside itself.

    def _drop(self, key: Key) -> None:
        placed = self._placed.pop(key, None)
        if placed is not None:
            self._node(placed.node).drop_pod(placed.requests)
            self._neighbours.remove(placed.uid)
            self._wake.set()

    # -- decisions -------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(GATHER_S)
            self._wake.clear()
            try:
                self._pass()
            except Exception:
                logger.exception("scheduler failed action=pass waiting=%d", len(self._waiting))

    def _pass(self) -> None:
        """Try every pending pod once, best rank first. Equal demands fail together."""
        queue = [(waiting.rank, key) for key, waiting in self._waiting.items()]
        heapq.heapify(queue)
        nodes = [node for node in self._nodes.values() if node.is_known]
        hopeless: dict[bytes, str] = {}
        while queue:
            key = heapq.heappop(queue)[1]
            waiting = self._waiting[key]
            signature = self._signature(waiting.demand)
            if signature not in hopeless:
                around = self._around(waiting.demand, nodes)
                candidates = self._candidates(waiting.demand, nodes)
                node = choose_node(waiting.demand, candidates, around)
                if node is not None:
                    self._assume(key, waiting, node)
                    continue
                hopeless[signature] = explain(waiting.demand, nodes, around)
            self._report(key, waiting, hopeless[signature])

    def _signature(self, demand: PodDemand) -> bytes:
        is_alone = not demand.neighbour.is_bound_by_others and not self._neighbours.have_anti
        return demand.signature if is_alone and not demand.claims else demand.whole_signature

    def _around(self, demand: PodDemand, nodes: list[NodeState]) -> Around:
        def places() -> dict[str, Place]:
            return {node.name: place_of(demand, node) for node in nodes}

        return Around(
            self._neighbours.view(demand.neighbour, places), tuple(self._volume_terms(demand))
        )

    def _volume_terms(self, demand: PodDemand) -> Iterator[list[Obj]]:
        """Yield the terms of each volume that a claim of the pod is bound to."""
        for name in demand.claims:
            claim = self._claims.get(demand.neighbour.namespace, name) or {}
            volume = self._volumes.get("", (claim.get("spec") or {}).get("volumeName") or "") or {}
            affinity = (volume.get("spec") or {}).get("nodeAffinity") or {}
            if affinity.get("required"):
                yield affinity["required"].get("nodeSelectorTerms") or []

    def _candidates(self, demand: PodDemand, nodes: list[NodeState]) -> list[NodeState]:
        """Return all nodes, or only those with the host name that the pod selects."""
        hostname = demand.selector.get(HOSTNAME_LABEL)
        if hostname is None:
            return nodes
        return [self._nodes[name] for name in self._by_hostname.get(hostname, ())]

    def _spawn(self, task: asyncio.Task[None]) -> None:
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- writing ---------------------------------------------------------------------------------

    def _assume(self, key: Key, waiting: _Waiting, node: NodeState) -> None:
        del self._waiting[key]
        placed = _Placed(waiting.uid, node.name, waiting.demand.requests)
        self._take(key, placed, waiting.demand.neighbour)
        self._spawn(asyncio.create_task(self._bind(key, waiting, node.name)))

    async def _bind(self, key: Key, waiting: _Waiting, node: str) -> None:
        namespace, name = key
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace, "uid": waiting.uid},
            "target": {"kind": "Node", "name": node},
        }
        try:
            await self._client.create(PODS, namespace, body, name=name, subresource="binding")
        except ClientError as error:
            self._forget(key, waiting, error)
            return
        self._events.record_action(
            SCHEDULER_NAME,
            waiting.pod,
            "Normal",
            reason="Scheduled",
            message=f"Successfully assigned {namespace}/{name} to {node}",
            action="Binding",
        )

    def _forget(self, key: Key, waiting: _Waiting, error: ClientError) -> None:
        """After a failed binding, let the pod wait again if it still wants a node."""
        logger.debug("pod not bound action=bind pod=%s/%s error=%s", *key, error)
        placed = self._placed.get(key)
        if placed is not None and placed.uid == waiting.uid:
            self._drop(key)
        pod = self._pods.get(*key)
        if pod is None or uid_of(pod) != waiting.uid:
            return
        if isinstance(error, (NotFound, Conflict, Invalid)):
            self._pod_changed(None, pod)  # the informer has the truth
        else:
            loop = asyncio.get_running_loop()
            loop.call_later(BIND_RETRY_S, self._pod_changed, None, pod)

    def _report(self, key: Key, waiting: _Waiting, message: str) -> None:
        """Say why the pod waits, if that is new."""
        loop = asyncio.get_running_loop()
        if waiting.explained == message:
            return
        pause_s = EXPLAIN_PER_POD_S * len(self._waiting)
        wait_s = waiting.explained_at + pause_s - loop.time()
        if wait_s > 0:
            loop.call_later(wait_s, self._wake.set)
            return
        waiting.explained, waiting.explained_at = message, loop.time()
        self._spawn(asyncio.create_task(self._explain(key, waiting, message)))

    async def _explain(self, key: Key, waiting: _Waiting, message: str) -> None:
        pod = waiting.pod
        old = condition_of(pod, "PodScheduled")
        has_same_status = old is not None and old.get("status") == "False"
        at = old["lastTransitionTime"] if old and has_same_status else write_time(now())
        condition = {
            "type": "PodScheduled",
            "observedGeneration": pod["metadata"].get("generation"),
            "status": "False",
            "lastProbeTime": None,
            "lastTransitionTime": at,
            "reason": "Unschedulable",
            "message": message,
        }
        body = {"metadata": {"uid": waiting.uid}, "status": {"conditions": [condition]}}
        self._events.record_action(
            SCHEDULER_NAME,
            pod,
            "Warning",
            reason="FailedScheduling",
            message=message,
            action="Scheduling",
        )
        try:
            await self._client.patch(
                PODS, *key, body, kind=PatchKind.STRATEGIC, subresource="status"
            )
        except ClientError as error:
            logger.debug("condition not written action=explain pod=%s/%s error=%s", *key, error)
