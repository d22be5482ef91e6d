"""What the pods of a manifest refer to, read from the API server for one PlacementReview.

The ``review`` task calls it. The controller has the same from its watches
(``controller.observing.surroundings_watch``), for workloads that exist.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fluxqueue.errors import ApiError, NotFound
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.request import Taint
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import (
    CLAIMS,
    LIMIT_RANGES,
    RUNTIME_CLASSES,
    STORAGE_CLASSES,
    VOLUMES,
    ApiResource,
)
from fluxqueue.workload.domains import DomainQuery, count_domains
from fluxqueue.workload.objects import Object
from fluxqueue.workload.own_pods import Domains, concerns
from fluxqueue.workload.volumes import LIMIT_PREFIX, claim_names, has_claims

logger = logging.getLogger(__name__)

_CLASS = "storageClassName"
_SPECS = (("spec",), ("spec", "template", "spec"))
"""Where a manifest can have the spec of its pods."""


@dataclass(frozen=True, slots=True)
class FetchedSurroundings:
    """Implements ``workload.surroundings.Surroundings`` for what one manifest refers to."""

    limits: Mapping[str, Sequence[Object]] = field(default_factory=dict)
    runtimes: Mapping[str, Object] = field(default_factory=dict)
    claims: Mapping[tuple[str, str], Object] = field(default_factory=dict)
    volumes: Mapping[str, Object] = field(default_factory=dict)
    classes: Mapping[str, Object] = field(default_factory=dict)
    nodes: Sequence[NodeFact] = ()

    def limit_ranges(self, namespace: str) -> Sequence[Object]:
        """Return the LimitRanges of a namespace."""
        return self.limits.get(namespace, ())

    def runtime_class(self, name: str) -> Object | None:
        """Return a RuntimeClass that the manifest names."""
        return self.runtimes.get(name)

    def claim(self, namespace: str, name: str) -> Object | None:
        """Return a PersistentVolumeClaim that the manifest names."""
        return self.claims.get((namespace, name))

    def volume(self, name: str) -> Object | None:
        """Return a PersistentVolume of such a claim."""
        return self.volumes.get(name)

    def volumes_of_class(self, storage_class: str) -> Sequence[Object]:
        """Return the PersistentVolumes of a StorageClass of such a claim."""
        return [one for one in self.volumes.values() if _spec(one).get(_CLASS) == storage_class]

    def storage_class(self, name: str) -> Object | None:
        """Return a StorageClass of such a claim."""
        return self.classes.get(name)

    def limited_drivers(self) -> frozenset[str]:
        """Return the CSI drivers with a limit of volumes on some nodes."""
        names = {name for node in self.nodes for name in node.capacity}
        return frozenset(
            name.removeprefix(LIMIT_PREFIX) for name in names if name.startswith(LIMIT_PREFIX)
        )

    def claim_template(self, namespace: str, name: str) -> Object | None:
        """Return None: claims of devices in a manifest are left to kube-scheduler."""
        del namespace, name
        return None

    def resource_claim(self, namespace: str, name: str) -> Object | None:
        """Return None, as for a template."""
        del namespace, name
        return None

    def device_resource(self, device_class: str) -> str | None:
        """Return None, as for a template."""
        del device_class
        return None

    def device_takes(self, device_class: str) -> dict[str, int]:
        """Return none, as for a template."""
        del device_class
        return {}

    def device_taints(self, device_class: str) -> tuple[Taint, ...]:
        """Return none, as for a template."""
        del device_class
        return ()

    def is_doubtful(self, resource: str) -> bool:
        """Return False: a review counts devices as the nodes' rows have them."""
        del resource
        return False

    def domains(self, query: DomainQuery) -> Domains:
        """Return the values of a label on nodes."""
        return count_domains(query, self.nodes)


async def fetch_surroundings(
    client: KubeClient,
    namespace: str,
    manifest: Mapping[str, Any],
    nodes: Callable[[], Awaitable[Sequence[NodeFact]]],
) -> FetchedSurroundings:
    """Read what the manifest's pods refer to. What cannot be read counts as absent.

    ``nodes`` reads all nodes. It is only called if pods of the manifest bind each other, or have
    volumes.

    Raises
    ------
    ApiUnavailable, DatabaseUnavailable
        Something cannot be reached now.
    """
    limits = await _list(client, LIMIT_RANGES, namespace)
    runtimes, storage, has_rules = {}, _Storage({}, {}, {}), False
    for spec in _pod_specs(manifest):
        name = spec.get("runtimeClassName")
        found = await _get(client, RUNTIME_CLASSES, None, name)
        if found is not None:
            runtimes[str(name)] = found
        await _fetch_storage(client, namespace, spec, storage)
        has_rules |= _is_true(concerns, spec) or _is_true(has_claims, spec)
    return FetchedSurroundings(
        {namespace: limits},
        runtimes,
        storage.claims,
        storage.volumes,
        storage.classes,
        await nodes() if has_rules else (),
    )


@dataclass(frozen=True, slots=True)
class _Storage:
    claims: dict[tuple[str, str], Object]
    volumes: dict[str, Object]
    classes: dict[str, Object]


async def _fetch_storage(
    client: KubeClient, namespace: str, spec: Mapping[str, Any], storage: _Storage
) -> None:
    """Read the claims of a pod, the volumes that they are bound to, and their classes."""
    if not _is_true(has_claims, spec):
        return
    asked: list[Mapping[str, Any]] = []
    for name in dict.fromkeys(claim_names(spec)):
        claim = await _get(client, CLAIMS, namespace, name)
        if claim is not None:
            storage.claims[namespace, name] = claim
            asked.append(_spec(claim))
    for volume in spec.get("volumes") or ():
        template = (volume.get("ephemeral") or {}).get("volumeClaimTemplate") or {}
        asked.append(template.get("spec") or {})
    for one in asked:
        its = one.get("volumeName")
        bound = await _get(client, VOLUMES, None, its)
        if bound is not None:
            storage.volumes[str(its)] = bound
        elif not its:
            await _fetch_class(client, one.get(_CLASS), storage)


async def _fetch_class(client: KubeClient, name: object, storage: _Storage) -> None:
    """Read a StorageClass and its volumes."""
    found = await _get(client, STORAGE_CLASSES, None, name)
    if found is None or str(name) in storage.classes:
        return
    storage.classes[str(name)] = found
    for volume in await _list(client, VOLUMES, None):
        if _spec(volume).get(_CLASS) == name:
            storage.volumes[volume["metadata"]["name"]] = volume


def _is_true(test: Callable[[Mapping[str, Any]], bool], spec: Mapping[str, Any]) -> bool:
    """Ask about a spec that no API server has checked. What is wrong with it is said later."""
    try:
        return test(spec)
    except (AttributeError, KeyError, TypeError, ValueError):
        return False


def _spec(obj: Object) -> Mapping[str, Any]:
    found: Mapping[str, Any] = obj.get("spec") or {}
    return found


async def _list(
    client: KubeClient, resource: ApiResource, namespace: str | None
) -> Sequence[Object]:
    try:
        found, _ = await client.collect(resource, namespace, keep=lambda one: one)
    except ApiError as error:
        logger.warning("not read", extra={"action": "review", "error": str(error)})
        return ()
    return found


async def _get(
    client: KubeClient, resource: ApiResource, namespace: str | None, name: object
) -> Object | None:
    # No API server has checked the manifest: any field may have any type.
    if not isinstance(name, str) or not name:
        return None
    try:
        return await client.get(resource, namespace, name)
    except NotFound:
        return None
    except ApiError as error:
        logger.warning("not read", extra={"action": "review", "error": str(error)})
        return None


def _pod_specs(manifest: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    found: list[Mapping[str, Any]] = []
    for path in _SPECS:
        here: Any = manifest
        for key in path:
            here = here.get(key) if isinstance(here, Mapping) else None
        if isinstance(here, Mapping):
            found.append(here)
    return found
