"""PodGroups of Kubernetes for gangs: made when their pods are there, corrected while pods wait.

``worker.release`` calls it. The gang starts without a group if there can be none: Kubernetes does
not serve it, the right to make one is missing, or another object has its name. If its pods name the
group already, they wait, and the row keeps why. So a group is never the reason that a job does not
start.
"""

from __future__ import annotations

import logging

from fluxqueue.clock import Clock
from fluxqueue.errors import ApiError, Conflict
from fluxqueue.kube.client import KubeClient, PatchKind
from fluxqueue.kube.discovery import find_served
from fluxqueue.kube.resources import ApiResource
from fluxqueue.workload.gang_group import KIND, VERSIONS, GangGroup

logger = logging.getLogger(__name__)

ASK_EVERY_S = 60.0
"""How long it is believed whether Kubernetes serves PodGroups."""


class GangGroups:
    """The PodGroups that this worker makes."""

    def __init__(self, client: KubeClient, clock: Clock) -> None:
        self._client, self._clock = client, clock
        self._resource: ApiResource | None = None
        self._asked_s: float | None = None
        self._refused_s: float | None = None

    async def can_make(self) -> bool:
        """Return whether Kubernetes serves PodGroups and has refused none within a minute."""
        now_s = self._clock.monotonic_s()
        if self._refused_s is not None and now_s - self._refused_s < ASK_EVERY_S:
            return False
        try:
            return await self._served() is not None
        except ApiError:
            return False

    async def ensure(self, namespace: str, wanted: GangGroup) -> str:
        """Make or correct a group. Return why there can be none, or empty.

        Raises
        ------
        ApiUnavailable
            The API server cannot be reached.
        """
        try:
            resource = await self._served()
            if resource is None:
                return "Kubernetes does not serve PodGroups"
            why = await self._put(resource, namespace, wanted)
        except ApiError as error:
            # The cluster may have been downgraded, or the right may be missing.
            self._asked_s, self._refused_s = None, self._clock.monotonic_s()
            why = str(error)
        if why:
            extra = {"namespace": namespace, "group": wanted.name, "job": wanted.job, "error": why}
            logger.warning("a gang cannot be bound in a PodGroup", extra=extra)
        return why

    async def _served(self) -> ApiResource | None:
        now_s = self._clock.monotonic_s()
        if self._asked_s is None or now_s - self._asked_s >= ASK_EVERY_S:
            found = await find_served(self._client, {KIND})
            self._resource = next((one for one in found if one.version in VERSIONS), None)
            self._asked_s = now_s
        return self._resource

    async def _put(self, resource: ApiResource, namespace: str, wanted: GangGroup) -> str:
        kind = {"apiVersion": resource.api_version, "kind": resource.kind}
        try:
            await self._client.create(resource, namespace, kind | wanted.body())
        except Conflict:
            stored = await self._client.get(resource, namespace, wanted.name)
        else:
            return ""
        if not wanted.is_made_for(stored):
            return "another object has its name"
        if stored["metadata"].get("deletionTimestamp"):
            return "it is being deleted"
        patch = wanted.correction(stored)
        if patch is not None:
            at = (resource, namespace, wanted.name)
            await self._client.patch(*at, patch, kind=PatchKind.MERGE, metadata_only=True)
        return ""
