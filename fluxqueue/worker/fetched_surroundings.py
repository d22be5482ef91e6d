"""What the pods of a manifest refer to, read from the API server for one PlacementReview.

The ``review`` task calls it. The controller has the same from its watches
(``controller.observing.surroundings_watch``), for workloads that exist.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fluxqueue.errors import ApiError, NotFound
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import LIMIT_RANGES, RUNTIME_CLASSES, ApiResource
from fluxqueue.objects import Object

logger = logging.getLogger(__name__)

_SPECS = (("spec",), ("spec", "template", "spec"))
"""Where a manifest can have the spec of its pods."""


@dataclass(frozen=True, slots=True)
class FetchedSurroundings:
    """Implements ``workload.surroundings.Surroundings`` for what one manifest refers to."""

    limits: Mapping[str, Sequence[Object]] = field(default_factory=dict)
    runtimes: Mapping[str, Object] = field(default_factory=dict)

    def limit_ranges(self, namespace: str) -> Sequence[Object]:
        """Return the LimitRanges of a namespace."""
        return self.limits.get(namespace, ())

    def runtime_class(self, name: str) -> Object | None:
        """Return a RuntimeClass that the manifest names."""
        return self.runtimes.get(name)


async def fetch_surroundings(
    client: KubeClient, namespace: str, manifest: Mapping[str, Any]
) -> FetchedSurroundings:
    """Read what the manifest's pods refer to. What cannot be read counts as absent.

    Raises
    ------
    ApiUnavailable
        The API server cannot be reached now.
    """
    limits: Sequence[Object] = ()
    try:
        limits, _ = await client.collect(LIMIT_RANGES, namespace, keep=lambda one: one)
    except ApiError as error:
        logger.warning("not read", extra={"action": "review", "error": str(error)})
    runtimes = {}
    for spec in _pod_specs(manifest):
        name = spec.get("runtimeClassName")
        found = await _get(client, RUNTIME_CLASSES, None, name)
        if found is not None:
            runtimes[str(name)] = found
    return FetchedSurroundings({namespace: limits}, runtimes)


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
