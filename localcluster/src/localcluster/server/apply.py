"""Server-side apply: PATCH with ``application/apply-patch+yaml``.

``routes`` calls it. Merging, pruning and conflicts follow ``structured-merge-diff`` (``merge``
package). ``managed_fields`` keeps the owners of fields. ``writes`` stores the result, as for any
change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import yaml

from localcluster.kinds.authorizer import require
from localcluster.kinds.registry import ResourceInfo
from localcluster.kinds.request_context import RequestContext
from localcluster.obj import Obj
from localcluster.server import managed_fields, writes
from localcluster.server.fieldsets import (
    Difference,
    Fields,
    Path,
    element_of,
    fields_of,
    is_associative,
    is_granular_map,
    path_text,
    without_system,
)
from localcluster.server.http_refusals import invalid_options
from localcluster.server.machinery import Machinery, copy_of
from localcluster.server.managed_fields import Manager, Managers, Owned
from localcluster.server.negotiation import from_yaml
from localcluster.server.request import Answer, ApiRequest, Target, bool_parameter
from localcluster.server.store import Entry
from localcluster.server.typecheck import check_typed
from localcluster.types.json_patch import copy_json
from localcluster.types.refusals import (
    REQUIRED,
    FieldError,
    StatusError,
    bad_request,
    conflict,
    not_found,
)
from localcluster.types.role_rules import Action
from localcluster.types.schema import ANY, Node


async def apply(machinery: Machinery, request: ApiRequest, target: Target) -> Answer:
    """Apply a configuration. Create the object if it does not exist (not on a subresource)."""
    info = target.info
    check_manager(request)
    ctx = writes.write_context(machinery, request, target, "UPDATE", "PatchOptions")
    config = read_config(request, (info.group, info.version, info.kind))
    api_version = info.api_version if info.group else f"/{info.version}"
    check_typed(config, info.node, api_version, info.kind)
    check_name(config, target)
    applied = _applied_part(config, target)
    entry = machinery.store.entry(info.storage, target.namespace, target.name)
    if entry is None:
        outcome = await _create(machinery, target, applied, ctx)
        code = 201
    else:
        is_forced = bool_parameter(request.query, "force")
        application = Application(machinery, info, applied, ctx, is_forced)
        outcome = await writes.change(machinery, target, application.make, ctx, own=application.own)
        code = 200
    answer = writes.answer_outcome(machinery, request, info, outcome, code)
    answer.warnings = ctx.warnings
    return answer


def check_manager(request: ApiRequest) -> None:
    """Raise 422 unless an apply names its field manager."""
    if not request.query.get("fieldManager"):
        error = FieldError(REQUIRED, "fieldManager", "", "is required for apply patch")
        raise invalid_options("PatchOptions", [error])


def read_config(request: ApiRequest, wanted: tuple[str, str, str]) -> Obj:
    """Return the body, which must have the ``wanted`` group, version and kind."""
    try:
        config = from_yaml(request.body)
    except yaml.YAMLError as error:
        raise bad_request(f"error decoding YAML: {error}") from error
    if not isinstance(config, dict):
        raise bad_request("error decoding YAML: an object is required")
    group, _, version = str(config.get("apiVersion") or "").rpartition("/")
    kind = config.get("kind") or ""
    if (group, version, kind) != wanted:
        raise bad_request(f"invalid object type: {group}/{version}, Kind={kind}")
    meta = config.get("metadata")
    if isinstance(meta, dict) and meta.get("managedFields") is not None:
        raise bad_request("metadata.managedFields must be nil")
    return config


def check_name(config: Obj, target: Target) -> None:
    """Check that the name in a body is that of the path. A missing name is filled in."""
    meta = config.setdefault("metadata", {})
    name = meta.get("name") or target.name
    if name != target.name:
        raise bad_request(
            f"the name of the object ({name}) does not match the name on the URL ({target.name})"
        )
    meta["name"] = name
    writes.place(meta, target)


def _applied_part(config: Obj, target: Target) -> Obj:
    """Return the configuration without the fields that this path does not write."""
    info = target.info
    if target.subresource == "status":
        kept = ("apiVersion", "kind", "metadata", "status")
        part = {key: config[key] for key in kept if key in config}
        if info.is_custom:
            system = ("name", "namespace", "uid", "resourceVersion")
            part["metadata"] = {k: v for k, v in config["metadata"].items() if k in system}
        return part
    if "status" in info.subresources:
        return {key: value for key, value in config.items() if key != "status"}
    return config


async def _create(
    machinery: Machinery,
    target: Target,
    applied: Obj,
    ctx: RequestContext,
) -> writes.Outcome:
    info = target.info
    if target.subresource:
        raise not_found(info.group, info.plural, target.name)
    # The patch was allowed. Only here does it turn out to be a creation, which is another right.
    create = Action("create", info.group, info.plural, namespace=target.namespace, name=target.name)
    require(machinery.authorizer, ctx.user, create)
    if uid := applied["metadata"].get("uid"):
        why = (
            f"uid mismatch: the provided object specified uid {uid}, and no existing object "
            "was found"
        )
        raise conflict(info.group, info.plural, target.name, why)
    fields = without_system(fields_of(applied, info.node))
    ctx.operation, ctx.options["kind"] = "CREATE", "CreateOptions"

    def own(stored: Obj) -> object:
        return managed_fields.after_apply_create(fields, stored, ctx, info)

    return await writes.create_object(machinery, target, copy_json(applied), ctx, own=own)


# -- applying to an existing object ---------------------------------------------------------


@dataclass(slots=True)
class Application:
    """One apply on an existing object, computed from the present state at each attempt."""

    machinery: Machinery
    info: ResourceInfo
    applied: Obj
    ctx: RequestContext
    is_forced: bool
    _managers: Managers = field(default_factory=dict)

    def make(self, entry: Entry) -> Obj:
        """Return the merged and pruned object. Raise 409 with all conflicts unless forced."""
        info, live = self.info, copy_of(entry)
        live["metadata"].pop("managedFields", None)
        node = info.node
        me = managed_fields.manager_of(self.ctx, info, "Apply")
        known = managed_fields.managers(entry.managed, entry.obj, info)
        last = known[me].fields if me in known else frozenset()
        fields = without_system(fields_of(self.applied, node))
        merged = merge(live, copy_json(self.applied), node)
        others = [owned.fields for manager, owned in known.items() if manager != me]
        pruned = prune(merged, node, last, fields.union(*others))
        changes = Difference()
        changes.compare(live, pruned, node)
        changed, removed = without_system(changes.changed), without_system(changes.removed)
        self._managers = self._settle(known, me, fields, changed, removed)
        return writes.decode_patched(self.machinery, pruned, entry, info, self.ctx)

    def _settle(
        self, known: Managers, me: Manager, fields: Fields, changed: Fields, removed: Fields
    ) -> Managers:
        clashes = {
            manager: owned.fields & changed
            for manager, owned in known.items()
            if manager != me and owned.fields & changed
        }
        if clashes and not self.is_forced:
            raise conflicts_error(clashes)
        result: Managers = {}
        for manager, owned in known.items():
            left = owned.fields - clashes.get(manager, frozenset()) - removed
            if manager != me and left:
                result[manager] = Owned(left, owned.time)
        if fields:
            is_same = me in known and known[me].fields == fields and not changed and not removed
            result[me] = known[me] if is_same else Owned(fields, self.ctx.now)
        return result

    def own(self, entry: Entry, stored: Obj) -> object:
        """Set ``managedFields`` on the object that is about to be stored."""
        meta, known = stored["metadata"], self._managers
        meta.pop("managedFields", None)
        before = {**entry.obj, "metadata": {**entry.obj["metadata"]}}
        before["metadata"].pop("managedFields", None)
        if stored == before:  # If only ownership changed, the times stay.
            old = managed_fields.managers(entry.managed, entry.obj, self.info)
            times = {manager: owned.time for manager, owned in old.items()}
            known = {m: Owned(o.fields, times.get(m, "")) for m, o in known.items()}
        if known:
            meta["managedFields"] = managed_fields.write_managed_fields(known)
        return managed_fields.Managed(known, is_visible=True)


def conflicts_error(clashes: dict[Manager, Fields]) -> StatusError:
    """Return a 409 that names every conflicting manager and field."""
    causes: list[Obj] = []
    lines: list[str] = []
    for manager in sorted(clashes, key=lambda m: (m.name, m.operation)):
        who = f'"{manager.name}"'
        if manager.subresource:
            who += f' with subresource "{manager.subresource}"'
        if manager.operation == "Update":
            who += f" using {manager.api_version}"
        paths = [path_text(path) for path in sorted(clashes[manager])]
        causes += [
            {"reason": "FieldManagerConflict", "message": f"conflict with {who}", "field": path}
            for path in paths
        ]
        if len(paths) == 1:
            lines.append(f"conflict with {who}: {paths[0]}")
        else:
            lines.append(f"conflicts with {who}:\n" + "\n".join(f"- {path}" for path in paths))
    count = f"{len(causes)} conflict{'s' if len(causes) != 1 else ''}"
    message = f"Apply failed with {count}: " + "\n".join(lines)
    return StatusError(409, "Conflict", message, details={"causes": causes})


def merge(live: Any, config: Any, node: Node) -> Any:
    """Merge ``config`` over ``live``: maps by key, lists by element, other values replaced."""
    if isinstance(live, dict) and isinstance(config, dict) and is_granular_map(node):
        result = dict(live)
        for key, value in config.items():
            known = key in live
            result[key] = merge(live[key], value, node.child(key)) if known else value
        return result
    if isinstance(live, list) and isinstance(config, list) and is_associative(node):
        return _merge_lists(live, config, node)
    is_kept = isinstance(live, dict | list) and (is_granular_map(node) or is_associative(node))
    return live if config is None and is_kept else config


def _merge_lists(live: list[Any], config: list[Any], node: Node) -> list[Any]:
    """Return the elements of both lists in order.

    Elements only in ``live`` come before those only in ``config``.
    """
    items = node.items or ANY
    left = {element_of(item, node): item for item in live}
    right = {element_of(item, node): item for item in config}
    waiting, result = list(left), []
    for element, item in right.items():
        while waiting and waiting[0] not in right:
            result.append(left[waiting.pop(0)])
        if element in left:
            if element in waiting:
                waiting.remove(element)
            result.append(merge(left[element], item, items))
        else:
            result.append(item)
    return result + [left[element] for element in waiting if element not in right]


def prune(merged: Obj, node: Node, last: Fields, owned: Fields) -> Obj:
    """Remove what this manager applied ``last`` time and no manager owns now.

    ``owned`` are all fields that any manager owns after this apply.
    """
    given_up = last - owned
    if not given_up:
        return merged
    prefixes = {path[:length] for path in owned for length in range(1, len(path) + 1)}
    result: Obj = _pruned(merged, node, (), given_up, prefixes)
    return result


def _pruned(value: Any, node: Node, path: Path, given_up: Fields, owned: set[Path]) -> Any:
    if isinstance(value, dict) and is_granular_map(node):
        kept: Obj = {}
        for key, inner in value.items():
            here = (*path, f"f:{key}")
            if here in given_up and here not in owned:
                continue
            cut = _pruned(inner, node.child(key), here, given_up, owned)
            is_emptied = not cut and bool(inner) and here not in owned
            if not is_emptied:
                kept[key] = cut
        return kept
    if isinstance(value, list) and is_associative(node):
        items = node.items or ANY
        left: list[Any] = []
        for item in value:
            here = (*path, element_of(item, node))
            if here not in given_up or here in owned:
                left.append(_pruned(item, items, here, given_up, owned))
        return left
    return value
