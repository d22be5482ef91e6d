"""A simulated autoscaler: it adds nodes for unschedulable pods, and removes idle ones.

It behaves as cluster-autoscaler and Karpenter do, as far as a program in the cluster can see. It
reacts to pods that the scheduler has given up on, and knows nothing of gated ones. A pool may
follow an object with a scale subresource, or ProvisioningRequests, instead. Delays, refusals and
missing deliveries are settings of the pool.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime

from localcluster.client.resources import NODES, PODS
from localcluster.errors import ClientError, NotFound
from localcluster.loops.context import Context
from localcluster.loops.informers import by_node
from localcluster.loops.objects import controller_of, is_finished, is_true, now, uid_of
from localcluster.nodes.capacity_buffers import wanted_chunks
from localcluster.nodes.pool import POOL_LABEL, Room, SimulatedPool, is_unschedulable
from localcluster.nodes.provisioning_requests import ProvisioningRequests
from localcluster.nodes.shape import NodeShape
from localcluster.obj import Obj
from localcluster.scheduler.decision import NodeState, demand_of
from localcluster.types.pod_requests import pod_requests

logger = logging.getLogger(__name__)

TURN_S = 0.2
SETTLE_S = 1.0
"""A pod counts after this time. Karpenter gathers pods for a second, cluster-autoscaler for ten."""
KEEP = "cluster-autoscaler.kubernetes.io/scale-down-disabled"
"""Annotation ``"true"`` on a node that is never removed as idle."""

CONDITION = "node.kubernetes.io/"
"""Taints with this prefix follow the conditions of a node."""

AddNode = Callable[[NodeShape], Awaitable[None]]
RemoveNode = Callable[[str], Awaitable[None]]


class Autoscaler:
    """Adds and removes the nodes of some pools.

    Parameters
    ----------
    add, remove : start and end a simulated node.
    """

    def __init__(
        self, context: Context, pools: Sequence[SimulatedPool], add: AddNode, remove: RemoveNode
    ) -> None:
        self._client = context.client
        self.pools = list(pools)
        """The pools. More may be added at any time; ``give_up`` takes them all away."""
        self._turning = asyncio.Lock()
        self._add, self._remove = add, remove
        self._pods = context.informers.get(PODS)
        self._pods_on = context.informers.index(PODS, by_node)
        self._nodes = context.informers.get(NODES)
        self._coming: dict[str, SimulatedPool] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._requests = ProvisioningRequests(context.client, self._bring, self._cancel)
        self._loop_task: asyncio.Task[None] | None = None
        self._idle_since: dict[str, datetime] = {}
        self._since: dict[str, datetime] = {}
        self._numbers: Counter[str] = Counter()
        self.delivered: Counter[str] = Counter()
        """How many nodes each pool has delivered."""

    def start(self) -> None:
        """Start looking."""
        self._loop_task = asyncio.create_task(self._run(), name="autoscaler")

    async def stop(self) -> None:
        """Stop. Nodes under way never come."""
        tasks = [task for task in (self._loop_task, *self._tasks.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def give_up(self) -> None:
        """Have no pools any more. When this returns, no node comes that was under way."""
        async with self._turning:  # a turn that has begun may bring nodes until it ends
            self.pools = []
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._coming.clear()

    async def _run(self) -> None:
        while True:
            try:
                async with self._turning:
                    await self._turn()
            except ClientError as error:
                logger.debug("autoscaler tries again error=%s", error)
            except Exception:
                logger.exception("autoscaler failed")
            await asyncio.sleep(TURN_S)

    async def _turn(self) -> None:
        # A node counts as coming until it is seen. Otherwise it would be added twice.
        for name in [name for name in self._coming if self._nodes.get("", name) is not None]:
            del self._coming[name]
        nodes = {pool.name: self._nodes_of(pool) for pool in self.pools}
        wanted = self._wanted_by_pods(nodes)
        for pool in self.pools:
            count = wanted.get(pool.name, 0)
            if pool.scaled is not None:
                count = await self._replicas(pool) - len(nodes[pool.name]) - self._under_way(pool)
            is_kept = False
            if pool.fills_buffers:
                chunks = await wanted_chunks(self._client, pool)
                free = [n for n in nodes[pool.name] if not self._is_busy(n["metadata"]["name"])]
                count, is_kept = chunks - len(free) - self._under_way(pool), chunks > 0
            for _ in range(count):
                self._bring(pool)
            if pool.provisioning_class:
                room = pool.most - len(nodes[pool.name]) - self._under_way(pool)
                await self._requests.turn(pool, room, [*nodes[pool.name]])
            if pool.scaled is None and not is_kept:
                await self._remove_idle(pool, nodes[pool.name])
            elif pool.scaled is not None and count < 0:
                await self._remove_some(nodes[pool.name], -count)

    def _nodes_of(self, pool: SimulatedPool) -> list[Obj]:
        return [
            one
            for one in self._nodes.items()
            if (one["metadata"].get("labels") or {}).get(POOL_LABEL) == pool.name
        ]

    def _under_way(self, pool: SimulatedPool) -> int:
        return sum(one.name == pool.name for one in self._coming.values())

    def _wanted_by_pods(self, nodes: dict[str, list[Obj]]) -> dict[str, int]:
        """Return how many nodes of each pool the unschedulable pods need beyond what comes."""
        at = now()
        seen = {uid_of(pod): pod for pod in self._pods.items() if is_unschedulable(pod)}
        self._since = {uid: self._since.get(uid, at) for uid in seen}
        pods = [
            pod for uid, pod in seen.items() if (at - self._since[uid]).total_seconds() >= SETTLE_S
        ]
        if not pods:
            return {}
        states = [self._state(node) for some in nodes.values() for node in some]
        states += [pool.template(at) for pool in self._coming.values()]
        room = Room(states)
        pools = [
            (one, one.most - len(nodes[one.name]) - self._under_way(one))
            for one in self.pools
            if one.follows_pods
        ]
        for pod in sorted(pods, key=lambda one: str(one["metadata"]["name"])):
            room.place(demand_of(pod), pools, at)
        return room.new

    def _state(self, node: Obj) -> NodeState:
        state = NodeState(node["metadata"]["name"])
        state.take_object(node)
        # A node that has just joined is about to be ready.
        state.taints = [one for one in state.taints if not one["key"].startswith(CONDITION)]
        for pod in self._pods_on.get(state.name):
            if not is_finished(pod):
                state.take_pod(pod_requests(pod))
        return state

    async def _replicas(self, pool: SimulatedPool) -> int:
        assert pool.scaled is not None, "it follows an object"
        try:
            at = pool.scaled, pool.namespace, pool.name
            scale = await self._client.get(*at, subresource="scale")
        except NotFound:
            return 0
        return min(pool.most, int((scale.get("spec") or {}).get("replicas") or 0))

    def _bring(self, pool: SimulatedPool) -> str:
        """Begin to add a node, and return its name."""
        self._numbers[pool.name] += 1
        number = self._numbers[pool.name]
        # A pool that delivers fewer keeps the rest as coming: it never says that they will not.
        is_lost = pool.delivers is not None and number > pool.delivers
        shape = pool.node(number)
        self._coming[shape.name] = pool
        if not is_lost:
            task = asyncio.create_task(self._bring_later(pool, shape))
            self._tasks[shape.name] = task
            task.add_done_callback(lambda _: self._tasks.pop(shape.name, None))
        return shape.name

    def _cancel(self, name: str) -> None:
        """Give up a node that has yet to come."""
        self._coming.pop(name, None)
        task = self._tasks.get(name)
        if task is not None:
            task.cancel()

    async def _bring_later(self, pool: SimulatedPool, shape: NodeShape) -> None:
        await asyncio.sleep(pool.delay_s)
        try:
            await self._add(shape)
        except ClientError as error:
            logger.warning("node not added node=%s error=%s", shape.name, error)
            self._coming.pop(shape.name, None)  # another one is brought instead
            return
        self.delivered[pool.name] += 1

    async def _remove_idle(self, pool: SimulatedPool, nodes: Sequence[Obj]) -> None:
        at = now()
        for node in nodes:
            name = node["metadata"]["name"]
            is_kept = (node["metadata"].get("annotations") or {}).get(KEEP) == "true"
            is_kept = is_kept or name in self._requests.booked
            if is_kept or not is_true(node, "Ready") or self._is_busy(name):
                self._idle_since.pop(name, None)
                continue
            since = self._idle_since.setdefault(name, at)
            if (at - since).total_seconds() >= pool.idle_s:
                await self._take_away(name)

    async def _remove_some(self, nodes: Sequence[Obj], count: int) -> None:
        """Remove nodes of a pool that was scaled down: cordoned ones first, then idle ones."""
        free = [one for one in nodes if not self._is_busy(one["metadata"]["name"])]
        free.sort(key=lambda one: not (one.get("spec") or {}).get("unschedulable"))
        for node in free[:count]:
            await self._take_away(node["metadata"]["name"])

    def _is_busy(self, name: str) -> bool:
        """Return whether pods other than those of DaemonSets are on a node."""
        return any(
            not is_finished(pod) and (controller_of(pod) or {}).get("kind") != "DaemonSet"
            for pod in self._pods_on.get(name)
        )

    async def _take_away(self, name: str) -> None:
        self._idle_since.pop(name, None)
        await self._remove(name)
