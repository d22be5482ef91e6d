"""Aggregated ClusterRoles: they have the rules of the roles that their selectors choose."""

from __future__ import annotations

from localcluster.client.resources import CLUSTER_ROLES
from localcluster.errors import Conflict, NotFound
from localcluster.loops.context import Context, QueueController
from localcluster.loops.workqueue import WorkQueue
from localcluster.obj import Obj
from localcluster.types.role_rules import aggregated_rules

COMPONENT = "clusterrole-aggregation-controller"


class RoleAggregation(QueueController):
    """Updates the rules of aggregated roles."""

    def __init__(self, context: Context) -> None:
        # With a user of its own it would need the right to escalate.
        self._client = context.client
        self._roles = context.informers.get(CLUSTER_ROLES)
        self._queue: WorkQueue[str] = WorkQueue(COMPONENT, self._sync)
        self._roles.add_handler(self._changed)

    def _changed(self, _old: Obj | None, _new: Obj | None) -> None:
        """Sync all aggregated roles, because any role may be part of each of them."""
        for role in self._roles.items():
            if "aggregationRule" in role:
                self._queue.add(role["metadata"]["name"])

    async def _sync(self, name: str) -> None:
        role = self._roles.get("", name)
        if role is None:
            return
        rules = aggregated_rules(role, self._roles.items())
        if rules is None or rules == (role.get("rules") or []):
            return
        version = role["metadata"]["resourceVersion"]
        patch = {"metadata": {"resourceVersion": version}, "rules": rules}
        try:
            await self._client.patch(CLUSTER_ROLES, None, name, patch)
        except NotFound:
            return
        except Conflict:
            self._queue.add(name)
