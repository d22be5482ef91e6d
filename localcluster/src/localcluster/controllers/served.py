"""What the API server serves now: one entry per resource, in its preferred version."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from localcluster.client.calls import Client
from localcluster.client.resources import Resource
from localcluster.obj import Obj


@dataclass(frozen=True, slots=True)
class Served:
    """A served resource and its verbs."""

    resource: Resource
    verbs: frozenset[str]


async def discover(client: Client) -> list[Served]:
    """Return all resources (no subresources), each in the group's preferred version."""
    groups = await client.request("GET", "/apis")
    versions = ["v1"] + [g["preferredVersion"]["groupVersion"] for g in groups["groups"]]
    documents = await asyncio.gather(*(_resources_of(client, version) for version in versions))
    return [served for document in documents for served in document]


async def _resources_of(client: Client, group_version: str) -> list[Served]:
    group, _, version = group_version.rpartition("/")
    path = f"/apis/{group_version}" if group else f"/api/{version}"
    document: Obj = await client.request("GET", path)
    return [
        Served(
            Resource(group, version, entry["name"], entry["kind"], bool(entry["namespaced"])),
            frozenset(entry["verbs"]),
        )
        for entry in document["resources"]
        if "/" not in entry["name"]
    ]


class KindMap:
    """Maps apiVersion and kind to the resource, in any version."""

    def __init__(self, served: list[Served]) -> None:
        self._by_kind = {(s.resource.group, s.resource.kind): s.resource for s in served}

    def find(self, api_version: str, kind: str) -> Resource | None:
        """Return the resource of objects of this kind."""
        return self._by_kind.get((api_version.rpartition("/")[0], kind))
