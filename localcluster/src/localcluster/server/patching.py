"""The three patch types that change an object by a document: JSON, merge, strategic merge.

``writes`` calls them with a fresh copy of the stored object, which is changed in place. There is no
store and no validation here. Server-side apply is in ``apply``.

JSON patch is in ``types.json_patch``. Strategic merge is a port of
``k8s.io/apimachinery/pkg/util/strategicpatch`` (mergeMap, mergeSlice, normalizeElementOrder).
"""

from __future__ import annotations

from typing import Any, cast

from localcluster.obj import Obj
from localcluster.types.json_patch import PatchError, apply_operations, copy_json
from localcluster.types.refusals import StatusError, bad_request
from localcluster.types.schema import ANY, Node

JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"

MAX_OPERATIONS = 10_000
"""Most operations of one JSON patch, as in the real server."""


def rejected() -> StatusError:
    """Return the 422 of the real server for every failing JSON patch. It gives no reason."""
    return StatusError(
        422,
        "Invalid",
        "the server rejected our request due to an error in our request",
        details={},
    )


def _server_error(message: str) -> StatusError:
    return StatusError(500, "", message)


# -- JSON patch -----------------------------------------------------------------------------


def apply_json_patch(target: Obj, patch: Any) -> Obj:
    """Apply RFC 6902 operations to ``target`` in place, and return the result.

    Raises :class:`StatusError` 400 if it is not a patch, 413 for too many operations, 422 if an
    operation fails.
    """
    if not isinstance(patch, list) or not all(isinstance(op, dict) for op in patch):
        kind = "object" if isinstance(patch, dict) else "value"
        raise bad_request(
            f"error decoding patch: json: cannot unmarshal {kind} into Go value of type "
            "[]handlers.jsonPatchOp"
        )
    if len(patch) > MAX_OPERATIONS:
        raise StatusError(
            413,
            "RequestEntityTooLarge",
            f"The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {len(patch)}",
        )
    try:
        document = apply_operations(target, patch)
    except PatchError as error:
        raise rejected() from error
    if not isinstance(document, dict):
        raise rejected()
    return document


# -- merge patch ----------------------------------------------------------------------------


def apply_merge_patch(target: Obj, patch: Any) -> Obj:
    """Apply RFC 7386 to ``target`` in place, and return it.

    Raises 400 if the patch is not an object.
    """
    if patch is None:
        raise bad_request("Invalid JSON Patch")
    if not isinstance(patch, dict):
        kind = {list: "array", str: "string", bool: "bool"}.get(type(patch), "number")
        raise bad_request(
            f"error decoding patch: json: cannot unmarshal {kind} into Go value of type "
            "map[string]interface {}"
        )
    _merge(target, patch)
    return target


def _merge(target: Obj, patch: Obj) -> None:
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, dict):
            inner = target.get(key)
            if not isinstance(inner, dict):
                inner = target[key] = {}
            _merge(inner, value)
        else:
            target[key] = value


# -- strategic merge patch ------------------------------------------------------------------

_DIRECTIVE = "$patch"
_RETAIN_KEYS = "$retainKeys"
_ORDER = "$setElementOrder/"
_DELETE_FROM = "$deleteFromPrimitiveList/"


def apply_strategic_patch(target: Obj, patch: Any, node: Node) -> Obj:
    """Apply a strategic merge patch to ``target`` (in place). ``node`` has the merge keys.

    Raises :class:`StatusError` 400 if it is not an object. As in the real server, a bad directive
    or an element without its merge key gives a 500 without a reason.
    """
    if not isinstance(patch, dict):
        return apply_merge_patch(target, patch)
    return _merge_map(target, copy_json(patch), node)


def _merge_map(original: Obj, patch: Obj, node: Node) -> Obj:
    directive = patch.get(_DIRECTIVE)
    if directive is not None:
        if directive == "replace":
            return {k: v for k, v in patch.items() if k != _DIRECTIVE}
        if directive == "delete":
            return {}
        raise _bad_directive(directive, patch)
    _retain_keys(original, patch)
    _ordered_lists(original, patch, node)
    for key, value in patch.items():
        is_delete_list = key.startswith(_DELETE_FROM)
        if is_delete_list:
            key = key[len(_DELETE_FROM) :]
        elif key.startswith(_ORDER):
            continue
        if value is None:
            original.pop(key, None)
        elif key not in original:
            if not is_delete_list:
                original[key] = _without_directives(value)
        else:
            original[key] = _merge_value(original[key], value, node.child(key), is_delete_list)
    return original


def _merge_value(original: Any, patch: Any, node: Node, is_delete_list: bool) -> Any:
    if isinstance(original, dict) and isinstance(patch, dict):
        if "replace" in node.patch_strategy:
            return _without_directives(patch)
        return _merge_map(original, patch, node)
    if isinstance(original, list) and isinstance(patch, list):
        if is_delete_list:
            return [item for item in original if item not in patch]
        if "merge" in node.patch_strategy or node.merge_key:
            return _merge_list(original, patch, node)
    return original if is_delete_list else _without_directives(patch)


def _without_directives(value: Any) -> Any:
    """Return a patch value that is used unchanged, without nulls and directives."""
    if isinstance(value, dict):
        return {
            key: _without_directives(inner)
            for key, inner in value.items()
            if inner is not None
            and key not in (_DIRECTIVE, _RETAIN_KEYS)
            and not key.startswith((_ORDER, _DELETE_FROM))
        }
    if isinstance(value, list):
        return [
            _without_directives(item)
            for item in value
            if not (isinstance(item, dict) and item.get(_DIRECTIVE) is not None)
            or item.get(_DIRECTIVE) == "merge"
        ]
    return value


def _retain_keys(original: Obj, patch: Obj) -> None:
    retained = patch.pop(_RETAIN_KEYS, None)
    if retained is None:
        return
    if not isinstance(retained, list):
        raise _server_error("expected $retainKeys to be a list")
    for key in patch:
        if key not in retained and not key.startswith("$"):
            raise _server_error("$retainKeys directives are not consistent with the patch")
    for key in [k for k in original if k not in retained]:
        del original[key]


def _ordered_lists(original: Obj, patch: Obj, node: Node) -> None:
    """Merge lists with ``$setElementOrder``, then sort them in the given order."""
    for order_key in [key for key in patch if key.startswith(_ORDER)]:
        order, key = patch.pop(order_key), order_key[len(_ORDER) :]
        if not isinstance(order, list):
            raise _server_error(f"expected {order_key} to be a list")
        child = node.child(key)
        before = list(original.get(key) or [])
        given = patch.pop(key, None)
        removed = patch.pop(_DELETE_FROM + key, None)
        if key not in original and given is None:
            continue
        merged = list(before)
        if isinstance(removed, list):
            merged = [item for item in merged if item not in removed]
        if isinstance(given, list):
            merged = _merge_items(merged, given, child)
        original[key] = _in_order(merged, order, before, child.merge_key)


def _merge_list(original: list[Any], patch: list[Any], node: Node) -> list[Any]:
    merged = _merge_items(list(original), patch, node)
    return _in_order(merged, patch, original, node.merge_key)


def _merge_items(original: list[Any], patch: list[Any], node: Node) -> list[Any]:
    is_maps = any(isinstance(item, dict) for item in [*original, *patch])
    if not is_maps:
        return list(dict.fromkeys([*original, *patch]))
    key = node.merge_key
    if not key:
        raise _server_error("cannot merge lists without merge key for field")
    original, patch = _special_elements(original, patch, key)
    element = node.items or ANY
    for item in patch:
        index = _position(original, _merge_value_of(item, key), key)
        if index is None:
            original.append(_without_directives(item))
        else:
            original[index] = _merge_map(original[index], item, element)
    return original


def _special_elements(
    original: list[Any], patch: list[Any], key: str
) -> tuple[list[Any], list[Obj]]:
    plain: list[Obj] = []
    is_replaced = False
    for item in patch:
        if not isinstance(item, dict):
            raise _server_error("lists of maps and other values cannot be merged")
        directive = item.get(_DIRECTIVE)
        if directive is None:
            plain.append(item)
        elif directive == "delete":
            wanted = _merge_value_of(item, key)
            original = [o for o in original if o.get(key) != wanted]
        elif directive == "replace":
            is_replaced = True
        elif directive != "merge":
            raise _bad_directive(directive, item)
    return ([] if is_replaced else original), plain


def _merge_value_of(item: Obj, key: str) -> Any:
    if key not in item:
        raise _server_error(f"map: {go_map(item)} does not contain declared merge key: {key}")
    return item[key]


def _position(items: list[Any], wanted: Any, key: str) -> int | None:
    for index, item in enumerate(items):
        if isinstance(item, dict) and item.get(key) == wanted:
            return index
    return None


def _in_order(merged: list[Any], order: list[Any], server_order: list[Any], key: str) -> list[Any]:
    """Sort as ``normalizeElementOrder``: patch items in patch order, others in server order."""

    def identity(item: Any) -> Any:
        return item.get(key) if key and isinstance(item, dict) else item

    wanted = {identity(item): index for index, item in enumerate(order)}
    before = {identity(item): index for index, item in enumerate(server_order)}
    from_patch = [item for item in merged if identity(item) in wanted]
    from_server = [item for item in merged if identity(item) not in wanted]
    from_patch.sort(key=lambda item: wanted[identity(item)])
    from_server.sort(key=lambda item: before.get(identity(item), len(before)))
    result: list[Any] = []
    while from_patch and from_server:
        left, right = identity(from_server[0]), identity(from_patch[0])
        is_server_first = left in before and right in before and before[left] < before[right]
        result.append((from_server if is_server_first else from_patch).pop(0))
    return result + from_server + from_patch


def _bad_directive(directive: Any, item: Obj) -> StatusError:
    return _server_error(f"unknown patch type: {directive} in map: {go_map(item)}")


def go_map(value: Any) -> str:
    """Return JSON data as Go's ``%v`` prints it."""
    if isinstance(value, dict):
        inner = " ".join(f"{k}:{go_map(value[k])}" for k in sorted(value))
        return f"map[{inner}]"
    if isinstance(value, list):
        return "[" + " ".join(go_map(item) for item in value) + "]"
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(cast("object", value))
