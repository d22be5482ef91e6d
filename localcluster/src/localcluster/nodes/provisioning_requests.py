"""ProvisioningRequests of the simulated autoscaler: all nodes of a request come, or it fails.

``Autoscaler`` calls it for each pool with a class. A deleted request gives up the nodes that have
yet to come. Nodes that have come are kept while their request exists.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from localcluster.client.calls import Client
from localcluster.client.resources import POD_TEMPLATES, PROVISIONING_REQUESTS
from localcluster.errors import Conflict, NotFound
from localcluster.loops.objects import is_true, now, uid_of, write_time
from localcluster.nodes.pool import Room, SimulatedPool
from localcluster.obj import Obj
from localcluster.scheduler.decision import demand_of

ENDS = ("Provisioned", "Failed")
"""Conditions after which a request is not looked at again."""


class ProvisioningRequests:
    """Fulfil the requests of some pools.

    Parameters
    ----------
    bring : begins to add a node to a pool, and returns the name of the node.
    cancel : gives up a node that has yet to come.
    """

    def __init__(
        self, client: Client, bring: Callable[[SimulatedPool], str], cancel: Callable[[str], None]
    ) -> None:
        self._client, self._bring, self._cancel = client, bring, cancel
        self._nodes: dict[str, tuple[str, list[str]]] = {}

    @property
    def booked(self) -> set[str]:
        """Return the names of the nodes that requests have booked."""
        return {name for _, names in self._nodes.values() for name in names}

    async def turn(self, pool: SimulatedPool, room: int, nodes: Sequence[Obj]) -> None:
        """Look at the requests for a pool. ``room``: how many nodes it can still add."""
        try:
            found = (await self._client.list(PROVISIONING_REQUESTS)).items
        except NotFound:
            return  # no definition is installed
        ready = {one["metadata"]["name"] for one in nodes if is_true(one, "Ready")}
        self._forget(pool, {uid_of(one) for one in found})
        for request in found:
            if request["spec"]["provisioningClassName"] != pool.provisioning_class:
                continue
            if any(is_true(request, kind) for kind in ENDS):
                continue
            _, names = self._nodes.get(uid_of(request), ("", None))
            if names is None:
                room -= await self._accept(pool, request, room)
            elif set(names) <= ready:
                await self._tell(request, "Provisioned", "Provisioned", "all nodes are ready")

    def _forget(self, pool: SimulatedPool, present: set[str]) -> None:
        """Give up what deleted requests have asked for."""
        for uid in [uid for uid, (name, _) in self._nodes.items() if name == pool.name]:
            if uid not in present:
                for name in self._nodes.pop(uid)[1]:
                    self._cancel(name)

    async def _accept(self, pool: SimulatedPool, request: Obj, room: int) -> int:
        """Begin to add the nodes of a request. Return how many, or 0 if it is not for this pool."""
        count = await self._count(pool, request, room)
        if count is None:
            return 0
        if pool.refuses or not count:
            message = pool.refuses or "the pool cannot add as many nodes"
            await self._tell(request, "Failed", "CapacityIsNotFound", message)
            return 0
        if not await self._tell(request, "Accepted", "Accepted", "nodes are being added"):
            return 0
        names = [self._bring(pool) for _ in range(count)]
        self._nodes[uid_of(request)] = pool.name, names
        return count

    async def _count(self, pool: SimulatedPool, request: Obj, room: int) -> int | None:
        """Return the nodes that a request needs, 0 if there is no room for them.

        None if its pods do not fit a node of the pool at all, or a template does not exist.
        """
        meta, at = request["metadata"], now()
        space = Room([])
        for one in request["spec"]["podSets"]:
            try:
                template = await self._client.get(
                    POD_TEMPLATES, meta["namespace"], one["podTemplateRef"]["name"]
                )
            except NotFound:
                return None
            pod = {**template["template"]}
            pod["metadata"] = {**(pod.get("metadata") or {}), "namespace": meta["namespace"]}
            demand = demand_of(pod)
            if not Room([]).place(demand, [(pool, 1)], at):
                return None
            if not all(space.place(demand, [(pool, room)], at) for _ in range(one["count"])):
                return 0
        return space.new.get(pool.name, 0)

    async def _tell(self, request: Obj, kind: str, reason: str, message: str) -> bool:
        """Add a condition. Return False if the request has changed or gone since it was read.

        The list of conditions is written as a whole. Without its version, the write would take away
        the conditions that others have added meanwhile.
        """
        meta = request["metadata"]
        before = (request.get("status") or {}).get("conditions") or []
        condition = {
            "type": kind,
            "status": "True",
            "reason": reason,
            "message": message,
            "lastTransitionTime": write_time(now()),
        }
        kept = [one for one in before if one["type"] != kind]
        body = {
            "metadata": {"resourceVersion": meta["resourceVersion"]},
            "status": {"conditions": [*kept, condition]},
        }
        try:
            await self._client.patch(
                PROVISIONING_REQUESTS,
                meta["namespace"],
                meta["name"],
                body,
                subresource="status",
            )
        except (Conflict, NotFound):
            return False  # it is read again in the next turn
        return True
