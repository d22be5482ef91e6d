"""Discovery documents: /version, /api, /apis (plain and aggregated), resource lists.

The root is one of them. It is a provider for the API server's document chain. Only served resources
are listed.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable

import orjson

from localcluster.kinds.registry import Registry, ResourceInfo, Subresource
from localcluster.obj import Obj
from localcluster.server.http_refusals import not_acceptable
from localcluster.server.request import Answer

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
VERSION: Obj = {
    "major": "1",
    "minor": "36",
    "emulationMajor": "1",
    "emulationMinor": "36",
    "minCompatibilityMajor": "1",
    "minCompatibilityMinor": "35",
    "gitVersion": "v1.36.2+localcluster",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "2026-01-01T00:00:00Z",
    "goVersion": "none",
    "compiler": "cpython",
    "platform": "linux/amd64",
}
"""What 1.36 reports, with a suffix that identifies this server."""

_GROUP_ORDER = (
    "apps",
    "events.k8s.io",
    "authentication.k8s.io",
    "authorization.k8s.io",
    "autoscaling",
    "batch",
    "policy",
    "rbac.authorization.k8s.io",
    "admissionregistration.k8s.io",
    "apiextensions.k8s.io",
    "scheduling.k8s.io",
    "coordination.k8s.io",
)
_CUSTOM_VERBS = ("delete", "deletecollection", "get", "list", "patch", "create", "update", "watch")
_VERSION = re.compile(r"^v(\d+)(?:(alpha|beta)(\d+))?$")
_STAGES = {"alpha": 0, "beta": 1, None: 2}


def version_rank(version: str) -> tuple[int, int, int, int]:
    """Return a key that sorts versions as Kubernetes does: v2, v1, v1beta1, v1alpha1, others."""
    match = _VERSION.match(version)
    if match is None:
        return (0, 0, 0, 0)
    return (1, _STAGES[match[2]], int(match[1]), int(match[3] or 0))


class Discovery:
    """Documents from the registry. Aggregated ones are cached until it changes."""

    def __init__(self, registry: Registry, address: Callable[[], str] | None = None) -> None:
        self._registry, self._address = registry, address
        self._cache: dict[tuple[int, str], bytes] = {}

    def find(self, path: str, accept: str) -> Answer | None:
        """Return one of the discovery documents, or None."""
        parts = [part for part in path.split("/") if part]
        if len(parts) > 3 or (parts and parts[0] not in ("version", "api", "apis")):
            return None
        wants_aggregated = "APIGroupDiscoveryList" in accept and ";v=v2;" in f"{accept};"
        if wants_aggregated and parts in (["api"], ["apis"]):
            return Answer(200, self._aggregated(parts[0]), AGGREGATED)
        value = self._value(parts)
        if value is None:
            return None  # a list of core objects, such as /api/v1/nodes, has its own forms
        if accept and parts and all("as=" in option for option in accept.split(",")):
            raise not_acceptable()
        return Answer(200, orjson.dumps(value))

    def _value(self, parts: list[str]) -> Obj | None:
        if not parts:
            return {"paths": self._paths()}
        if parts == ["version"]:
            return VERSION
        if parts == ["api"]:
            return self._api_versions()
        if parts == ["apis"]:
            groups = [self._group(name) for name in self.groups()]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
        if parts == ["api", "v1"]:
            return {"kind": "APIResourceList", "groupVersion": "v1", **self._resources("", "v1")}
        if parts[0] == "apis" and len(parts) == 2 and parts[1] in self.groups():
            return {"kind": "APIGroup", "apiVersion": "v1", **self._group(parts[1])}
        if parts[0] == "apis" and len(parts) == 3:
            return self._group_version(parts[1], parts[2])
        return None

    def _group_version(self, group: str, version: str) -> Obj | None:
        if not self._registry.has_group_version(group, version):
            return None
        return {
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": f"{group}/{version}",
            **self._resources(group, version),
        }

    def _api_versions(self) -> Obj:
        addresses = []
        if self._address is not None:
            addresses = [{"clientCIDR": "0.0.0.0/0", "serverAddress": self._address()}]
        return {
            "kind": "APIVersions",
            "versions": ["v1"],
            "serverAddressByClientCIDRs": addresses,
        }

    def _paths(self) -> list[str]:
        paths = {"/api", "/api/v1", "/apis", "/apis/"}
        for group in self.groups():
            paths.add(f"/apis/{group}")
            paths |= {f"/apis/{group}/{version}" for version in self.versions(group)}
        paths |= {"/healthz", "/livez", "/readyz", "/openapi/v2", "/openapi/v3", "/version"}
        return sorted(paths)

    def groups(self) -> list[str]:
        """Return all groups except the core group: built-in ones first, custom ones by name."""
        names = {info.group for info in self._registry} - {""}
        known = [name for name in _GROUP_ORDER if name in names]
        return known + sorted(names - set(known))

    def versions(self, group: str) -> list[str]:
        """Return the versions of a group, the preferred one first."""
        found = {info.version for info in self._registry if info.group == group}
        return sorted(found, key=version_rank, reverse=True)

    def _group(self, name: str) -> Obj:
        shown = [{"groupVersion": f"{name}/{v}", "version": v} for v in self.versions(name)]
        return {"name": name, "versions": shown, "preferredVersion": shown[0]}

    def infos(self, group: str, version: str) -> list[ResourceInfo]:
        """Return the resources of one group version, by name."""
        found = [i for i in self._registry if (i.group, i.version) == (group, version)]
        return sorted(found, key=lambda info: info.plural)

    # -- plain --------------------------------------------------------------------------------

    def _resources(self, group: str, version: str) -> Obj:
        rows: list[Obj] = []
        for info in self.infos(group, version):
            rows.append(_row(info))
            rows.extend(
                _subresource_row(info, info.subresources[name])
                for name in sorted(info.subresources)
            )
        if (group, version) == ("", "v1"):
            rows.insert(0, _OLD_BINDING_ROW)
        return {"resources": rows}

    # -- aggregated -----------------------------------------------------------------------------

    def _aggregated(self, root: str) -> bytes:
        key = (self._registry.generation, root)
        made = self._cache.get(key)
        if made is None:
            groups = [""] if root == "api" else self.groups()
            document = {
                "kind": "APIGroupDiscoveryList",
                "apiVersion": "apidiscovery.k8s.io/v2",
                "metadata": {},
                "items": [self._aggregated_group(group) for group in groups],
            }
            made = orjson.dumps(document)
            self._cache = {k: v for k, v in self._cache.items() if k[0] == key[0]}
            self._cache[key] = made
        return made

    def _aggregated_group(self, group: str) -> Obj:
        versions = []
        for version in self.versions(group):
            rows = [_aggregated_row(info) for info in self.infos(group, version)]
            if not group:
                rows.insert(0, _OLD_BINDING_AGGREGATED)
            versions.append({"version": version, "resources": rows, "freshness": "Current"})
        return {"metadata": {"name": group} if group else {}, "versions": versions}


_OLD_BINDING_ROW: Obj = {
    "name": "bindings",
    "singularName": "binding",
    "namespaced": True,
    "kind": "Binding",
    "verbs": ["create"],
}
_OLD_BINDING_AGGREGATED: Obj = {
    "resource": "bindings",
    "responseKind": {"group": "", "version": "", "kind": "Binding"},
    "scope": "Namespaced",
    "singularResource": "binding",
    "verbs": ["create"],
}


def _verbs(info: ResourceInfo) -> list[str]:
    if info.is_custom:
        return list(_CUSTOM_VERBS)
    if (info.group, info.plural) == ("", "namespaces"):
        return [verb for verb in info.verbs if verb != "deletecollection"]
    return list(info.verbs)


def _names(info: ResourceInfo) -> Obj:
    shown: Obj = {}
    if info.short_names:
        shown["shortNames"] = list(info.short_names)
    if info.categories:
        shown["categories"] = list(info.categories)
    return shown


def storage_version_hash(info: ResourceInfo) -> str:
    """Return ``discovery.StorageVersionHash`` of the stored group, version and kind."""
    group = "" if info.storage == ("", "events") else info.group
    text = f"{group}/{info.version}/{info.kind}"
    return base64.b64encode(hashlib.sha256(text.encode()).digest()[:8]).decode()


def _row(info: ResourceInfo) -> Obj:
    shown: Obj = {
        "name": info.plural,
        "singularName": info.singular,
        "namespaced": info.namespaced,
        "kind": info.kind,
        "verbs": _verbs(info),
        **_names(info),
    }
    if info.create_only is None:
        shown["storageVersionHash"] = storage_version_hash(info)
    return shown


def _subresource_row(info: ResourceInfo, sub: Subresource) -> Obj:
    shown: Obj = {
        "name": f"{info.plural}/{sub.name}",
        "singularName": "",
        "namespaced": info.namespaced,
    }
    if sub.version:
        shown |= {"group": sub.group, "version": sub.version}
    return {**shown, "kind": sub.kind, "verbs": list(sub.verbs)}


def _response_kind(info: ResourceInfo, kind: str, group: str = "", version: str = "") -> Obj:
    if info.is_custom and not version:
        group, version = info.group, info.version
    return {"group": group, "version": version, "kind": kind}


def _aggregated_row(info: ResourceInfo) -> Obj:
    shown: Obj = {
        "resource": info.plural,
        "responseKind": _response_kind(info, info.kind),
        "scope": "Namespaced" if info.namespaced else "Cluster",
        "singularResource": info.singular,
        "verbs": _verbs(info),
        **_names(info),
    }
    if info.subresources:
        shown["subresources"] = [
            {
                "subresource": sub.name,
                "responseKind": _response_kind(info, sub.kind, sub.group, sub.version),
                "verbs": list(sub.verbs),
            }
            for _, sub in sorted(info.subresources.items())
        ]
    return shown
