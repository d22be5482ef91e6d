"""Rules for ``metadata`` that all kinds share.

Source: ``k8s.io/apimachinery/pkg/api/validation/objectmeta.go``. Strategies call it. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from localcluster.obj import Obj
from localcluster.types import names
from localcluster.types.refusals import (
    TOO_LONG,
    FieldError,
    all_wrong,
    not_allowed,
    required,
    wrong,
)

NameRule = Callable[[str], list[str]]

_ANNOTATIONS_MAX_BYTES = 256 * 1024
_CONTENT = ("labels", "annotations", "ownerReferences", "finalizers")
OWN_FINALIZERS = frozenset({"orphan", "foregroundDeletion", "kubernetes"})


def validate_meta(
    meta: Obj,
    *,
    is_namespaced: bool,
    name_rule: NameRule,
    path: str = "metadata",
    is_custom: bool = False,
) -> list[FieldError]:
    """Return all broken rules of a new object's metadata.

    Custom resources may use any finalizer name.
    """
    errors: list[FieldError] = []
    if meta.get("generateName"):
        prefix = meta["generateName"]
        trimmed = prefix[:-1] + "a" if prefix.endswith("-") and len(prefix) > 1 else prefix
        errors += all_wrong(f"{path}.generateName", prefix, name_rule(trimmed))
    name = meta.get("name", "")
    if not name:
        errors.append(required(f"{path}.name", "name or generateName is required"))
    else:
        errors += all_wrong(f"{path}.name", name, name_rule(name))
    if is_namespaced:
        namespace = meta.get("namespace", "")
        if not namespace:
            errors.append(required(f"{path}.namespace"))
        else:
            errors += all_wrong(f"{path}.namespace", namespace, names.dns_label(namespace))
    elif meta.get("namespace"):
        errors.append(not_allowed(f"{path}.namespace", "not allowed on this type"))
    return errors + validate_meta_content(meta, path, is_custom=is_custom)


def validate_meta_content(meta: Obj, path: str, *, is_custom: bool = False) -> list[FieldError]:
    """Check labels, annotations, owners and finalizers."""
    errors = validate_labels(meta.get("labels"), f"{path}.labels")
    errors += validate_annotations(meta.get("annotations"), f"{path}.annotations")
    errors += validate_owners(meta.get("ownerReferences"), f"{path}.ownerReferences")
    errors += validate_finalizers(meta.get("finalizers"), f"{path}.finalizers", is_custom=is_custom)
    return errors


def validate_labels(labels: Any, path: str) -> list[FieldError]:
    """Check keys and values of labels."""
    errors: list[FieldError] = []
    for key in sorted(labels or {}):
        value = labels[key]
        errors += all_wrong(path, key, names.qualified_name(key))
        errors += all_wrong(path, value, names.label_value(value))
    return errors


def validate_annotations(annotations: Any, path: str) -> list[FieldError]:
    """Check the keys and the total size of annotations."""
    errors: list[FieldError] = []
    for key in sorted(annotations or {}):
        errors += all_wrong(path, key, names.qualified_name(key.lower()))
    total = sum(len(k.encode()) + len(v.encode()) for k, v in (annotations or {}).items())
    if total > _ANNOTATIONS_MAX_BYTES:
        errors.append(
            FieldError(TOO_LONG, path, None, f"may not be more than {_ANNOTATIONS_MAX_BYTES} bytes")
        )
    return errors


def validate_owners(owners: Any, path: str) -> list[FieldError]:
    """Check that owner references are complete and at most one is the controller."""
    errors: list[FieldError] = []
    controller = ""
    for owner in owners or []:
        at = path
        group, slash, version = owner.get("apiVersion", "").rpartition("/")
        if not version:
            errors.append(
                wrong(f"{at}.apiVersion", owner.get("apiVersion", ""), "version must not be empty")
            )
        errors += [
            wrong(f"{at}.{key}", owner.get(key, ""), "must not be empty")
            for key in ("kind", "name", "uid")
            if not owner.get(key)
        ]
        if slash == "" and group == "" and version == "v1" and owner.get("kind") == "Event":
            errors.append(wrong(at, owner, "/v1, Kind=Event is disallowed from being an owner"))
        if owner.get("controller"):
            this = f"{owner.get('kind')}/{owner.get('name')}"
            if controller:
                errors.append(
                    wrong(
                        path,
                        owners,
                        "Only one reference can have Controller set to true. Found "
                        f'"true" in references for {controller} and {this}',
                    )
                )
            else:
                controller = this
    return errors


def validate_finalizers(finalizers: Any, path: str, *, is_custom: bool = False) -> list[FieldError]:
    """Check the names of finalizers. orphan and foregroundDeletion exclude each other."""
    errors: list[FieldError] = []
    for index, name in enumerate(finalizers or []):
        texts = names.qualified_name(name)
        errors += all_wrong(path, name, texts)
        if not is_custom and "/" not in name and name not in OWN_FINALIZERS:
            errors.append(
                wrong(
                    f"{path}[{index}]",
                    name,
                    "name is neither a standard finalizer name nor is it fully qualified",
                )
            )
    if {"orphan", "foregroundDeletion"} <= set(finalizers or []):
        errors.append(
            wrong(path, finalizers, "finalizer orphan and foregroundDeletion cannot be both set")
        )
    return errors


def immutable(path: str, value: Any) -> FieldError:
    """Return the usual error for a field that may not change."""
    return wrong(path, value, "field is immutable")


def validate_meta_update(
    new: Obj, old: Obj, path: str = "metadata", *, is_custom: bool = False
) -> list[FieldError]:
    """Check what may not change in metadata.

    The server has already restored the fields that it keeps itself.
    """
    errors = [
        immutable(f"{path}.{key}", new.get(key, ""))
        for key in ("name", "namespace", "uid")
        if new.get(key, "") != old.get(key, "")
    ]
    if old.get("deletionTimestamp"):
        added = sorted(set(new.get("finalizers") or []) - set(old.get("finalizers") or []))
        if added:
            rendered = "[" + ", ".join(f'"{f}"' for f in added) + "]"
            errors.append(
                not_allowed(
                    f"{path}.finalizers",
                    "no new finalizers can be added if the object is being deleted, "
                    f"found new finalizers []string{{{rendered[1:-1]}}}",
                )
            )
    errors += [
        immutable(f"{path}.{key}", new.get(key))
        for key in ("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds")
        if new.get(key) != old.get(key)
    ]
    changed = {key: new[key] for key in _CONTENT if new.get(key) and new[key] != old.get(key)}
    return errors + validate_meta_content(changed, path, is_custom=is_custom)
