"""Discovery: which of some kinds are served, and their resource names in URLs.

The parts that follow definitions call it, because these may come and go.
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from fluxqueue.errors import NotFound
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import ApiResource


async def find_served(client: KubeClient, kinds: Set[tuple[str, str]]) -> list[ApiResource]:
    """Return those of ``kinds`` (API group, kind) that are served, in the best version each.

    Raises
    ------
    ApiUnavailable, ApiError
        The API server cannot be reached or refuses.
    """
    if not kinds:
        return []
    listed = (await client.request("GET", "/apis")).get("groups") or ()
    served = {one["name"]: one for one in listed}
    found = []
    for group in sorted({group for group, _ in kinds} & served.keys()):
        wanted = {kind for name, kind in kinds if name == group}
        for version in _versions(served[group]):
            for one in await _resources(client, group, version):
                if one["kind"] in wanted and "/" not in one["name"]:
                    wanted.discard(one["kind"])
                    is_namespaced = bool(one["namespaced"])
                    found.append(
                        ApiResource(group, version, one["name"], one["kind"], is_namespaced)
                    )
    return found


def _versions(group: dict[str, Any]) -> list[str]:
    """Return the served versions of a group, the preferred one first."""
    preferred = (group.get("preferredVersion") or {}).get("version")
    versions = [one["version"] for one in group.get("versions") or ()]
    return sorted(versions, key=lambda one: one != preferred)


async def _resources(client: KubeClient, group: str, version: str) -> list[dict[str, Any]]:
    try:
        answer = await client.request("GET", f"/apis/{group}/{version}")
    except NotFound:
        return []  # the definition is being removed
    resources: list[dict[str, Any]] = answer.get("resources") or []
    return resources
