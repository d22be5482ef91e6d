"""Documents that are no objects: health, version, discovery, OpenAPI.

Health is answered here; the rest comes from a provider in ``resources`` (discovery and OpenAPI
know the kinds).  ``LegacyDiscovery`` is the plain form that every client understands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import orjson

from localcluster.kinds.registry import Registry, ResourceInfo
from localcluster.server.request import Answer

Obj = dict[str, Any]

VERSION = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.2+localcluster",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "none: an embedded API in Python",
    "compiler": "cpython",
    "platform": "linux/amd64",
}

_HEALTH = ("/healthz", "/readyz", "/livez")


class Provider(Protocol):
    """Something that may know the document at a path."""

    def find(self, path: str, accept: str) -> Answer | None:
        """The document, or None."""


class DocumentChain:
    """Health first, then each provider in turn."""

    def __init__(self, providers: Sequence[Provider]) -> None:
        self._providers = providers

    def find(self, path: str, accept: str) -> Answer | None:
        """The first document that a provider has for the path."""
        if path.startswith(_HEALTH) and path.rstrip("/").split("/")[1] in (
            "healthz",
            "readyz",
            "livez",
        ):
            return Answer(200, b"ok", "text/plain; charset=utf-8")
        for provider in self._providers:
            if (answer := provider.find(path, accept)) is not None:
                return answer
        return None


class LegacyDiscovery:
    """``/api``, ``/apis``, ``/version`` and the resource lists, straight from the registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def find(
        self,
        path: str,
        accept: str,  # noqa: ARG002 - one form only
    ) -> Answer | None:
        """One of the discovery documents."""
        parts = [part for part in path.split("/") if part]
        if len(parts) > 3:
            return None
        value = self._value(parts)
        return Answer(200, orjson.dumps(value)) if value is not None else None

    def _value(self, parts: list[str]) -> Obj | None:
        if parts == ["version"]:
            return VERSION
        if parts == ["api"]:
            return {
                "kind": "APIVersions",
                "versions": ["v1"],
                "serverAddressByClientCIDRs": [],
            }
        if parts == ["apis"]:
            groups = [self._group(name) for name in self._group_names()]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        if parts[:1] == ["apis"] and len(parts) == 2 and parts[1] in self._group_names():
            return {"kind": "APIGroup", "apiVersion": "v1", **self._group(parts[1])}
        if parts == ["api", "v1"]:
            return self._resources("", "v1")
        is_version = parts[:1] == ["apis"] and len(parts) == 3
        if is_version and self._registry.has_group_version(parts[1], parts[2]):
            return self._resources(parts[1], parts[2])
        return None

    def _group_names(self) -> list[str]:
        return sorted({info.group for info in self._registry} - {""})

    def _group(self, name: str) -> Obj:
        versions = dict.fromkeys(i.version for i in self._registry if i.group == name)
        shown = [{"groupVersion": f"{name}/{v}", "version": v} for v in versions]
        return {"name": name, "versions": shown, "preferredVersion": shown[0]}

    def _resources(self, group: str, version: str) -> Obj:
        infos = [i for i in self._registry if (i.group, i.version) == (group, version)]
        resources: list[Obj] = []
        for info in sorted(infos, key=lambda i: i.plural):
            resources.extend(_described(info))
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": f"{group}/{version}" if group else version,
            "resources": resources,
        }


def _described(info: ResourceInfo) -> list[Obj]:
    shown: Obj = {
        "name": info.plural,
        "singularName": info.singular,
        "namespaced": info.namespaced,
        "kind": info.kind,
        "verbs": list(info.verbs),
    }
    if info.short_names:
        shown["shortNames"] = list(info.short_names)
    if info.categories:
        shown["categories"] = list(info.categories)
    rows = [shown]
    for sub in info.subresources.values():
        row: Obj = {
            "name": f"{info.plural}/{sub.name}",
            "singularName": "",
            "namespaced": info.namespaced,
            "kind": sub.kind,
            "verbs": list(sub.verbs),
        }
        if sub.version:
            row |= {"group": sub.group, "version": sub.version}
        rows.append(row)
    return rows
