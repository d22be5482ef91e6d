"""Which pods belong to a controller: by owner reference, adopted or released by labels."""

from __future__ import annotations

from collections.abc import Iterable

from localcluster.client.calls import Client
from localcluster.client.resources import PODS, Resource
from localcluster.controllers.templates import matches_selector
from localcluster.errors import Conflict, Invalid, NotFound
from localcluster.loops.informers import InformerSet, by_controller
from localcluster.loops.objects import (
    controller_of,
    is_deleting,
    is_finished,
    key_of,
    owner_reference,
    uid_of,
)
from localcluster.obj import Obj


def by_orphan_namespace(pod: Obj) -> Iterable[str]:
    """Yield the namespace of a pod without a controller that could be adopted (index value)."""
    if controller_of(pod) is not None or is_deleting(pod) or is_finished(pod):
        return ()
    return (pod["metadata"].get("namespace", ""),)


class PodClaims:
    """Finds, adopts and releases the pods of one kind of controller."""

    def __init__(self, client: Client, informers: InformerSet, resource: Resource) -> None:
        self._client, self._resource = client, resource
        self._pods = informers.get(PODS)
        self._owned = informers.index(PODS, by_controller)
        self._orphans = informers.index(PODS, by_orphan_namespace)

    async def claim(self, owner: Obj) -> list[Obj]:
        """Return the pods of ``owner`` now. Adopt matching orphans, release what does not match."""
        selector = owner["spec"]["selector"]
        kept: list[Obj] = []
        for pod in self._owned.get(uid_of(owner)):
            if matches_selector(selector, pod["metadata"].get("labels") or {}):
                kept.append(pod)
            elif not is_deleting(pod):
                await self._set_owners(pod, _without(pod, owner))
        if is_deleting(owner):
            return kept
        for pod in self._orphans.get(owner["metadata"]["namespace"]):
            if matches_selector(selector, pod["metadata"].get("labels") or {}):
                reference = owner_reference(owner, self._resource.api_version, self._resource.kind)
                adopted = await self._set_owners(pod, [*_without(pod, owner), reference])
                kept.extend(adopted)
        return kept

    async def _set_owners(self, pod: Obj, owners: list[Obj]) -> list[Obj]:
        """Write ownerReferences and return [pod], or [] if another writer was faster."""
        metadata = {
            "uid": uid_of(pod),
            "resourceVersion": pod["metadata"]["resourceVersion"],
            "ownerReferences": owners,
        }
        try:
            written = await self._client.patch(PODS, *key_of(pod), {"metadata": metadata})
        except (NotFound, Conflict, Invalid):
            return []
        self._pods.observe(written)
        return [written]


def _without(pod: Obj, owner: Obj) -> list[Obj]:
    references = pod["metadata"].get("ownerReferences") or ()
    return [reference for reference in references if reference["uid"] != uid_of(owner)]
