"""Field selectors of built-in kinds, in addition to metadata.name and metadata.namespace.

Each function returns all its fields for any object, so that unknown fields can be detected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from localcluster.kinds.registry import metadata_fields
from localcluster.obj import Obj

_FIELDS: dict[str, dict[str, Any]] = {
    "pods": {
        "spec.nodeName": "",
        "spec.restartPolicy": "",
        "spec.schedulerName": "",
        "spec.serviceAccountName": "",
        "spec.hostNetwork": False,
        "status.phase": "",
        "status.podIP": "",
        "status.nominatedNodeName": "",
    },
    "nodes": {"spec.unschedulable": False},
    "namespaces": {"status.phase": ""},
    "services": {"spec.clusterIP": "", "spec.type": ""},
    "secrets": {"type": ""},
}
"""The fields of a kind, and their values where an object has none."""


def fields_of(plural: str) -> Callable[[Obj], dict[str, str]]:
    """Return the function that reads the fields of a built-in kind."""
    wanted = [(name, name.split("."), unset) for name, unset in _FIELDS.get(plural, {}).items()]

    def read(obj: Obj) -> dict[str, str]:
        return metadata_fields(obj) | {name: _text(obj, path, no) for name, path, no in wanted}

    return _SPECIAL.get(plural, read)


def _text(obj: Obj, path: list[str], unset: Any) -> str:
    value: Any = obj
    for key in path:
        value = (value or {}).get(key)
    shown = value or unset
    return str(shown).lower() if isinstance(shown, bool) else str(shown)


def _jobs(obj: Obj) -> dict[str, str]:
    """Return the fields of Jobs, among them an unusual one of old versions."""
    succeeded = (obj.get("status") or {}).get("succeeded", 0)
    return {**metadata_fields(obj), "status.successful": str(succeeded)}


def _events(obj: Obj) -> dict[str, str]:
    """Return the fields of Events, in either API."""
    involved = obj.get("involvedObject") or obj.get("regarding") or {}
    source = obj.get("source") or obj.get("deprecatedSource") or {}
    component = (
        source.get("component")
        or obj.get("reportingComponent")
        or (obj.get("reportingController") or "")
    )
    fields = metadata_fields(obj)
    for key in ("kind", "namespace", "name", "uid", "apiVersion", "resourceVersion", "fieldPath"):
        fields[f"involvedObject.{key}"] = str(involved.get(key, ""))
        fields[f"regarding.{key}"] = fields[f"involvedObject.{key}"]
    fields["reason"] = obj.get("reason", "")
    fields["reportingComponent"] = obj.get("reportingComponent", "")
    fields["source"] = component
    fields["type"] = obj.get("type", "")
    return fields


_SPECIAL: dict[str, Callable[[Obj], dict[str, str]]] = {"jobs": _jobs, "events": _events}
