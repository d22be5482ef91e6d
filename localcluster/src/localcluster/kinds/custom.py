"""Custom resources: the strategy and the registry entry of each served version of a CRD.

``crd`` makes them when a definition is established.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from localcluster.kinds import meta
from localcluster.kinds.columns import NAME, since
from localcluster.kinds.crd_rules import MISSING
from localcluster.kinds.crd_schema import StructuralSchema
from localcluster.kinds.registry import ALL_VERBS, Column, ResourceInfo, ScalePaths, Subresource
from localcluster.kinds.request_context import RequestContext
from localcluster.kinds.strategy import BaseStrategy, report_unknown
from localcluster.obj import Obj
from localcluster.types.decode import DecodeError, Decoder
from localcluster.types.jsonpath import compile_path
from localcluster.types.refusals import FieldError, bad_request, wrong
from localcluster.types.schema import Node
from localcluster.types.table import builtin_node

_ROOT = ("apiVersion", "kind", "metadata")


class CustomStrategy(BaseStrategy):
    """The rules of one version of one custom resource."""

    is_status_meta_kept = True
    has_generation = True

    def __init__(self, definition: Obj, version: Obj) -> None:
        spec = definition["spec"]
        self._kind = str(spec["names"]["kind"])
        self.version = version["name"]
        self.is_namespaced = spec["scope"] == "Namespaced"
        self.has_status = "status" in (version.get("subresources") or {})
        raw = (version.get("schema") or {}).get("openAPIV3Schema") or {"type": "object"}
        self.schema = StructuralSchema(raw, is_root=True)
        self._meta_node = builtin_node("ObjectMeta")
        self.node = _root_node(self.schema)

    @property
    def kind(self) -> str:
        """Return the custom kind."""
        return self._kind

    def decode(self, obj: Obj, ctx: RequestContext) -> None:
        """Decode typed metadata. Prune everything else to the schema, then set defaults."""
        decoder = Decoder()
        metadata = obj.get("metadata")
        if metadata is None:
            obj["metadata"] = metadata = {}
        if not isinstance(metadata, dict):
            raise bad_request("metadata must be an object")
        try:
            decoder.clean_object(metadata, self._meta_node, (None, "metadata"))
        except DecodeError as error:
            raise bad_request(self.cannot_handle(obj, str(error))) from error
        unknown = list(decoder.unknown)
        rest = {key: value for key, value in obj.items() if key not in _ROOT}
        self.schema.prune(rest, "", unknown)
        for key in [k for k in obj if k not in _ROOT and k not in rest]:
            del obj[key]
        if unknown:
            report_unknown(unknown, ctx, lambda text: self.cannot_handle(obj, text))
        self.default(obj)

    def default(self, obj: Obj) -> None:
        """Set the defaults of the schema (metadata is not part of the schema)."""
        metadata = obj.pop("metadata", {})
        self.schema.default(obj)
        obj["metadata"] = metadata

    def prepare_create(self, obj: Obj, ctx: RequestContext) -> None:
        """Drop the status if it is a subresource.

        Its default is set again: a real API server fills it in on every read.
        """
        if self.has_status:
            obj.pop("status", None)
            self.default(obj)
        obj["metadata"]["generation"] = 1
        for name in obj["metadata"].get("finalizers") or ():
            if "/" not in name and name not in meta.OWN_FINALIZERS:
                ctx.warnings.append(
                    f'metadata.finalizers: "{name}": prefer a domain-qualified finalizer name to '
                    "avoid accidental conflicts with other finalizer writers"
                )

    def prepare_status(self, new: Obj, old: Obj) -> None:
        """Change only the status."""

    def generation_relevant(self, obj: Obj) -> Any:
        """Return all but metadata, and but the status if it is a subresource."""
        left_out = {"metadata", "apiVersion"} | ({"status"} if self.has_status else set())
        return {key: value for key, value in obj.items() if key not in left_out}

    def validate_create(self, obj: Obj, ctx: RequestContext) -> list[FieldError]:
        """Check metadata, kind and schema."""
        errors = meta.validate_meta(
            obj["metadata"],
            is_namespaced=self.is_namespaced,
            name_rule=self.name_rule,
            is_custom=True,
        )
        if obj.get("kind") != self._kind:
            text = f"must be {self._kind}"
            errors.append(wrong("kind", obj.get("kind"), text))
        return errors + self.schema.validate(_content(obj), MISSING, "", (_head(obj), {}))

    def validate_update(
        self, new: Obj, old: Obj, subresource: str, ctx: RequestContext
    ) -> list[FieldError]:
        """Check changes against the schema. On /status only the status is checked."""
        errors = meta.validate_meta_update(new["metadata"], old["metadata"], is_custom=True)
        heads = _head(new), _head(old)
        if subresource == "status":
            return errors + self.schema.validate_status(_content(new), _content(old), heads)
        return errors + errors + self.schema.validate(_content(new), _content(old), "", heads)

    def allows_unconditional_update(self) -> bool:
        """Return False: a PUT must have the resourceVersion."""
        return False


def _content(obj: Obj) -> Obj:
    return {key: value for key, value in obj.items() if key not in _ROOT}


def _head(obj: Obj) -> Obj:
    """Return what rules at the root may read in addition to the content."""
    named = {k: v for k, v in obj["metadata"].items() if k in ("name", "generateName")}
    return {"apiVersion": obj.get("apiVersion"), "kind": obj.get("kind"), "metadata": named}


def _root_node(schema: StructuralSchema) -> Node:
    node = schema.node()
    fields = dict(node.fields)
    fields["apiVersion"] = fields["kind"] = Node("string")
    fields["metadata"] = builtin_node("ObjectMeta")
    return Node("object", preserve_unknown=schema.preserves, _fields=fields)


# -- printer columns ---------------------------------------------------------------------------


def _cell(column: Obj) -> Callable[[Obj], Any]:
    find = compile_path(column["jsonPath"])
    kind = column["type"]

    def value(obj: Obj) -> Any:
        found = find(obj)
        return _cell_value(found[0], kind) if found else None

    return value


def _cell_value(value: Any, kind: str) -> Any:
    """Convert a value as ``cellForJSONValue`` of the real server does."""
    if kind == "string":
        return value if isinstance(value, str) else orjson.dumps(value).decode()
    if kind == "date":
        return _date_cell(value)
    if kind == "boolean":
        return value if isinstance(value, bool) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if kind == "integer" else float(value)


def _date_cell(value: Any) -> str:
    if not isinstance(value, str):
        return "<invalid>"
    try:
        return since(value)
    except ValueError:
        return "<invalid>"


def printer_columns(version: Obj) -> tuple[Column, ...]:
    """Return the name and the additional columns, or Age if there are none."""
    listed = version.get("additionalPrinterColumns") or [
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"}
    ]
    shown = [NAME]
    for column in listed:
        path = column["jsonPath"]
        description = column.get("description") or (
            f"Custom resource definition column (in JSONPath format): {path}"
        )
        shown.append(
            Column(
                column["name"],
                column["type"],
                _cell(column),
                description=description,
                format=column.get("format", ""),
                priority=column.get("priority", 0),
            )
        )
    return tuple(shown)


def selectable_fields(version: Obj, is_namespaced: bool) -> Callable[[Obj], dict[str, str]]:
    """Return metadata.name, metadata.namespace and ``selectableFields``."""
    paths = [
        (entry["jsonPath"].lstrip("."), compile_path(entry["jsonPath"]))
        for entry in version.get("selectableFields") or ()
    ]

    def fields(obj: Obj) -> dict[str, str]:
        metadata = obj.get("metadata") or {}
        found = {"metadata.name": metadata.get("name", "")}
        if is_namespaced:
            found["metadata.namespace"] = metadata.get("namespace", "")
        for name, find in paths:
            values = find(obj)
            found[name] = _field_text(values[0]) if values else ""
        return found

    return fields


def _field_text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def _to_version(api_version: str) -> Callable[[Obj], Obj]:
    """Return the conversion "None": only the apiVersion differs."""

    def convert(obj: Obj) -> Obj:
        return {**obj, "apiVersion": api_version}

    return convert


def _scale_paths(declared: Obj) -> ScalePaths:
    spec, status, selector = (
        tuple(declared.get(key, "").removeprefix(".").split("."))
        for key in ("specReplicasPath", "statusReplicasPath", "labelSelectorPath")
    )
    return ScalePaths(spec, status, selector)


def custom_info(definition: Obj, version: Obj) -> ResourceInfo:
    """Return the registry entry of one served version."""
    spec = definition["spec"]
    accepted = spec["names"]
    strategy = CustomStrategy(definition, version)
    subresources: dict[str, Subresource] = {}
    declared = version.get("subresources") or {}
    if "status" in declared:
        subresources["status"] = Subresource("status", accepted["kind"], ("get", "patch", "update"))
    if "scale" in declared:
        subresources["scale"] = Subresource(
            "scale",
            "Scale",
            ("get", "patch", "update"),
            how="scale",
            group="autoscaling",
            version="v1",
            scale=_scale_paths(declared["scale"]),
        )
    stored = next(v["name"] for v in spec["versions"] if v.get("storage"))
    info = ResourceInfo(
        group=spec["group"],
        version=version["name"],
        kind=accepted["kind"],
        plural=accepted["plural"],
        singular=accepted.get("singular", ""),
        namespaced=spec["scope"] == "Namespaced",
        strategy=strategy,
        short_names=tuple(accepted.get("shortNames") or ()),
        categories=tuple(accepted.get("categories") or ()),
        verbs=ALL_VERBS,
        subresources=subresources,
        node=strategy.node,
        columns=printer_columns(version),
        selectable=selectable_fields(version, spec["scope"] == "Namespaced"),
        is_custom=True,
        list_kind=accepted.get("listKind", ""),
    )
    if version["name"] != stored:
        info.to_storage = _to_version(f"{spec['group']}/{stored}")
        info.from_storage = _to_version(f"{spec['group']}/{version['name']}")
    return info
