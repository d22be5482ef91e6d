"""OpenAPI documents: v3 per group version, as far as kubectl reads them. v2 is empty.

Built-in kinds come from the type table that decodes requests, custom ones from the schemas of their
definitions. It is a provider for the API server's document chain.
"""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import orjson

from localcluster.kinds.custom import CustomStrategy
from localcluster.kinds.registry import Registry, ResourceInfo
from localcluster.obj import Obj
from localcluster.server.discovery import VERSION, Discovery
from localcluster.server.request import Answer
from localcluster.types.field_texts import descriptions
from localcluster.types.schema import Node
from localcluster.types.table import builtin_node

_RELEASE = str(VERSION["gitVersion"])
_META = "io.k8s.apimachinery.pkg.apis.meta.v1"
_META_TYPES = frozenset(
    {
        "Condition",
        "DeleteOptions",
        "LabelSelector",
        "LabelSelectorRequirement",
        "ListMeta",
        "ManagedFieldsEntry",
        "ObjectMeta",
        "OwnerReference",
        "Preconditions",
    }
)
_GROUP_PACKAGES = {
    "": "io.k8s.api.core",
    "apiextensions.k8s.io": "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions",
    "events.k8s.io": "io.k8s.api.events",
}
_SCALARS: dict[str, Obj] = {
    "string": {"type": "string"},
    "number": {"type": "number", "format": "double"},
    "boolean": {"type": "boolean"},
    "bytes": {"type": "string", "format": "byte"},
    "time": {"type": "string", "format": "date-time"},
    "microtime": {"type": "string", "format": "date-time"},
    "quantity": {"oneOf": [{"type": "string"}, {"type": "number"}]},
    "int-or-string": {
        "format": "int-or-string",
        "oneOf": [{"type": "integer"}, {"type": "string"}],
    },
}
_FREE: Obj = {"x-kubernetes-preserve-unknown-fields": True}
_FIELD_VALIDATION: Obj = {
    "name": "fieldValidation",
    "in": "query",
    "description": "Ignore, Warn (the default) or Strict: what unknown fields lead to.",
    "schema": {"type": "string", "uniqueItems": True},
}


def _package(group: str) -> str:
    known = _GROUP_PACKAGES.get(group)
    return known or f"io.k8s.api.{group.split('.', maxsplit=1)[0]}"


class OpenApi:
    """v3 and v2 documents, made on request and cached until the registry changes."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._discovery = Discovery(registry)
        self._cache: dict[str, bytes] = {}
        self._generation = -1

    def find(self, path: str, accept: str) -> Answer | None:
        """Return one of the documents under /openapi, or None."""
        if not path.startswith("/openapi/"):
            return None
        if self._generation != self._registry.generation:
            self._cache.clear()
            self._generation = self._registry.generation
        path = path.rstrip("/")
        if path == "/openapi/v3":
            return Answer(200, self._kept(path, self._index), "text/plain; charset=utf-8")
        if path == "/openapi/v2":
            if "json" not in accept and accept not in ("", "*/*"):
                return Answer(406, b"only application/json is served\n", "text/plain")
            return Answer(200, self._kept(path, self._v2))
        parts = path.removeprefix("/openapi/v3/").split("/")
        group, version = ("", parts[1]) if parts[0] == "api" else (parts[1], parts[-1])
        if len(parts) != (2 if parts[0] == "api" else 3):
            return None
        if not self._registry.has_group_version(group, version):
            return None
        return Answer(200, self._kept(path, lambda: self._document(group, version)))

    def _kept(self, path: str, make: Any) -> bytes:
        made = self._cache.get(path)
        if made is None:
            made = self._cache[path] = orjson.dumps(make())
        return made

    def _index(self) -> Obj:
        paths: Obj = {}
        for group in ["", *self._discovery.groups()]:
            for version in self._discovery.versions(group):
                where = f"apis/{group}/{version}" if group else f"api/{version}"
                digest = self._digest(group, version)
                url = f"/openapi/v3/{where}?hash={digest}"
                paths[where] = {"serverRelativeURL": url}
        return {"paths": paths}

    def _digest(self, group: str, version: str) -> str:
        """Return a digest that changes with the document. It is cheaper than the document."""
        content: list[Any] = [group, version, _RELEASE]
        for info in self._discovery.infos(group, version):
            content.append(info.kind)
            if isinstance(info.strategy, CustomStrategy):
                content.append(info.strategy.schema.schema)
        return hashlib.sha256(orjson.dumps(content)).hexdigest().upper()

    def _v2(self) -> Obj:
        """Return an empty document: kubectl then uses its own knowledge of built-in kinds."""
        return {
            "swagger": "2.0",
            "info": {"title": "Kubernetes", "version": _RELEASE},
            "paths": {},
            "definitions": {},
        }

    def _document(self, group: str, version: str) -> Obj:
        infos = self._discovery.infos(group, version)
        schemas: Obj = {}
        paths: Obj = {}
        for info in infos:
            _add_kind(schemas, info)
            _add_paths(paths, info)
        title = "Kubernetes CRD Swagger" if infos[0].is_custom else "Kubernetes"
        return {
            "openapi": "3.0.0",
            "info": {"title": title, "version": "1.36"},
            "paths": paths,
            "components": {"schemas": schemas},
        }


# -- schemas ------------------------------------------------------------------------------------


def _gvk(info: ResourceInfo) -> list[Obj]:
    return [{"group": info.group, "version": info.version, "kind": info.kind}]


def _kind_name(info: ResourceInfo) -> str:
    if info.is_custom:
        reverse = ".".join(reversed(info.group.split(".")))
        return f"{reverse}.{info.version}.{info.kind}"
    return f"{_package(info.group)}.{info.version}.{info.kind}"


def _add_kind(schemas: Obj, info: ResourceInfo) -> None:
    if isinstance(info.strategy, CustomStrategy):
        schemas[_kind_name(info)] = _custom_schema(schemas, info, info.strategy)
    else:
        _add_type(schemas, info.node, info.group, name=_kind_name(info))
        schemas[_kind_name(info)]["x-kubernetes-group-version-kind"] = _gvk(info)


def _custom_schema(schemas: Obj, info: ResourceInfo, strategy: CustomStrategy) -> Obj:
    schema: Obj = _published(copy.deepcopy(strategy.schema.schema))
    properties = schema.setdefault("properties", {})
    standard = descriptions("ObjectMeta")
    properties["apiVersion"] = {
        "type": "string",
        "description": "The versioned schema of this representation of an object.",
    }
    properties["kind"] = {
        "type": "string",
        "description": "The kind of resource this object represents, in CamelCase.",
    }
    properties["metadata"] = {
        "description": standard.get("", "Standard object's metadata."),
        "allOf": [{"$ref": _add_type(schemas, builtin_node("ObjectMeta"), "")}],
    }
    schema["x-kubernetes-group-version-kind"] = _gvk(info)
    return schema


def _published(schema: Obj) -> Obj:
    """Give int-or-string fields both types, as kubectl expects."""
    if schema.get("x-kubernetes-int-or-string"):
        schema["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    for child in (schema.get("properties") or {}).values():
        _published(child)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            _published(schema[key])
    return schema


def _add_type(schemas: Obj, node: Node, group: str, *, name: str = "") -> str:
    """Add a built-in type and what it needs. Return its reference."""
    if not name:
        package = _META if node.ref in _META_TYPES else f"{_home(node.ref, group)}.v1"
        name = f"{package}.{node.ref}"
    if name not in schemas:
        schema: Obj = {"type": "object"}
        schemas[name] = schema
        texts = descriptions(node.ref)
        if texts.get(""):
            schema["description"] = texts[""]
        required = [key for key, child in node.fields.items() if child.is_required]
        if required:
            schema["required"] = required
        schema["properties"] = {
            key: _property(schemas, child, group, texts.get(key, ""))
            for key, child in node.fields.items()
        }
        if node.map_type == "atomic":
            schema["x-kubernetes-map-type"] = "atomic"
    return f"#/components/schemas/{name}"


_CORE_ROOTS = (
    "Pod",
    "PodTemplateSpec",
    "Node",
    "Namespace",
    "Service",
    "Secret",
    "ConfigMap",
    "ServiceAccount",
    "PersistentVolumeClaim",
    "Event",
)
_core_types: set[str] = set()


def _home(ref: str, group: str) -> str:
    """Return the package of a type: core if core kinds use it, else that of the group."""
    if not _core_types:
        for root in _CORE_ROOTS:
            _collect(builtin_node(root), _core_types)
    return _GROUP_PACKAGES[""] if ref in _core_types else _package(group)


def _collect(node: Node, found: set[str]) -> None:
    if node.items is not None:
        _collect(node.items, found)
    if node.ref and node.ref not in found:
        found.add(node.ref)
        for child in node.fields.values():
            _collect(child, found)


def _property(schemas: Obj, node: Node, group: str, text: str) -> Obj:
    shown = _shape(schemas, node, group)
    if text:
        if "$ref" in shown:
            shown = {"allOf": [shown]}
        shown = {"description": text, **shown}
    if node.patch_strategy or node.merge_key:
        strategy = sorted({*node.patch_strategy, *(["merge"] if node.merge_key else [])})
        shown["x-kubernetes-patch-strategy"] = ",".join(strategy)
    if node.merge_key:
        shown["x-kubernetes-patch-merge-key"] = node.merge_key
    if node.type == "list":
        shown["x-kubernetes-list-type"] = node.list_type
        if node.list_map_keys:
            shown["x-kubernetes-list-map-keys"] = list(node.list_map_keys)
    return shown


def _shape(schemas: Obj, node: Node, group: str) -> Obj:
    if node.type == "object" and node.ref:
        return {"$ref": _add_type(schemas, node, group)}
    if node.type == "list" and node.items is not None:
        return {"type": "array", "items": _shape(schemas, node.items, group)}
    if node.type == "map" and node.items is not None:
        more = _shape(schemas, node.items, group)
        return {"type": "object", "additionalProperties": more}
    if node.type == "integer":
        return {"type": "integer", "format": node.go_type or "int32"}
    return dict(_SCALARS.get(node.type, _FREE))


# -- paths --------------------------------------------------------------------------------------


def _add_paths(paths: Obj, info: ResourceInfo) -> None:
    """Add the operations that kubectl reads: their kind and the fieldValidation parameter."""
    root = f"/apis/{info.group}/{info.version}" if info.group else f"/api/{info.version}"
    base = f"{root}/namespaces/{{namespace}}" if info.namespaced else root
    collection, item = f"{base}/{info.plural}", f"{base}/{info.plural}/{{name}}"
    gvk = _gvk(info)[0]
    if info.create_only is not None:
        paths[collection] = {"post": _operation(gvk, "post")}
        return
    paths[collection] = {
        "get": _operation(gvk, "list"),
        "post": _operation(gvk, "post"),
        "delete": _operation(gvk, "deletecollection"),
    }
    operations = {
        "get": _operation(gvk, "get"),
        "put": _operation(gvk, "put"),
        "patch": _operation(gvk, "patch"),
        "delete": _operation(gvk, "delete"),
    }
    paths[item] = operations
    if "status" in info.subresources:
        paths[f"{item}/status"] = {k: v for k, v in operations.items() if k != "delete"}


def _operation(gvk: Obj, action: str) -> Obj:
    shown: Obj = {
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": gvk,
        "responses": {"200": {"description": "OK"}},
    }
    if action in ("post", "put", "patch"):
        shown["parameters"] = [_FIELD_VALIDATION]
    return shown
