"""``/scale`` of workloads and custom resources: read, write and apply a Scale.

``routes`` calls it. An ``autoscaling/v1`` Scale is not an object: it shows three fields of one. The
registry says where these are. An apply of a Scale applies that one field to the object, with a
manager that has the subresource ``scale``. Conflicts name the Scale
(``managedfields.NewScaleHandler``).
"""

from __future__ import annotations

from typing import Any

import orjson

from localcluster.kinds.registry import ScalePaths
from localcluster.obj import Obj
from localcluster.server import apply, writes
from localcluster.server.http_refusals import unsupported_patch
from localcluster.server.machinery import Machinery, copy_of
from localcluster.server.patching import (
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    apply_json_patch,
    apply_merge_patch,
)
from localcluster.server.request import Answer, ApiRequest, Target, bool_parameter, decode_object
from localcluster.server.store import Entry
from localcluster.server.subresources import present
from localcluster.server.typecheck import check_typed
from localcluster.types.refusals import (
    INVALID,
    FieldError,
    StatusError,
    bad_request,
    invalid,
)
from localcluster.types.table import builtin_node

_GROUP, _VERSION, _KIND = "autoscaling", "v1", "Scale"
_API_VERSION = f"{_GROUP}/{_VERSION}"


def scale_of(obj: Obj, paths: ScalePaths) -> Obj:
    """Return the ``autoscaling/v1`` Scale of an object."""
    meta = obj["metadata"]
    keys = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    shown_status: Obj = {"replicas": _at(obj, paths.status) or 0}
    if selector := _selector_text(_at(obj, paths.selector)):
        shown_status["selector"] = selector
    replicas = _at(obj, paths.spec)
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {key: meta[key] for key in keys if key in meta},
        "spec": {"replicas": replicas} if replicas else {},
        "status": shown_status,
    }


def _at(obj: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        obj = obj.get(key) if isinstance(obj, dict) else None
    return obj if path else None


def _put(obj: Obj, path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        obj = obj.setdefault(key, {})
    obj[path[-1]] = value


def _scale_paths(target: Target) -> ScalePaths:
    return target.info.subresources["scale"].scale


def _selector_text(selector: Any) -> str:
    if isinstance(selector, str):
        return selector
    if not isinstance(selector, dict):
        return ""
    terms = [f"{k}={v}" for k, v in sorted((selector.get("matchLabels") or {}).items())]
    for expression in selector.get("matchExpressions") or ():
        key, values = expression["key"], ",".join(sorted(expression.get("values") or ()))
        form = {"In": f"{key} in ({values})", "NotIn": f"{key} notin ({values})"}
        other = {"Exists": key, "DoesNotExist": f"!{key}"}
        operator = expression.get("operator", "")
        terms.append(form.get(operator) or other.get(operator, ""))
    return ",".join(terms)


def get_scale(machinery: Machinery, request: ApiRequest, target: Target) -> Answer:
    """Handle GET .../scale."""
    obj = scale_of(present(machinery, target).obj, _scale_paths(target))
    return machinery.answer_object(request, target.info, obj)


async def write_scale(machinery: Machinery, request: ApiRequest, target: Target) -> Answer:
    """Handle PUT or PATCH of .../scale."""
    if request.content_type == writes.APPLY_PATCH:
        return await _apply(machinery, request, target)
    ctx = writes.write_context(machinery, request, target, "UPDATE", "UpdateOptions")
    paths = _scale_paths(target)

    def make(entry: Entry) -> Obj:
        wanted = _wanted_scale(request, scale_of(entry.obj, paths))
        replicas = (wanted.get("spec") or {}).get("replicas") or 0
        _check_replicas(replicas, target.name)
        obj = copy_of(entry)
        _put(obj, paths.spec, replicas)
        given = (wanted.get("metadata") or {}).get("resourceVersion")
        obj["metadata"]["resourceVersion"] = given or obj["metadata"]["resourceVersion"]
        return obj

    outcome = await writes.change(machinery, _whole(target), make, ctx)
    return _answer(machinery, request, target, outcome, ctx.warnings)


def _whole(target: Target) -> Target:
    return Target(target.info, target.namespace, target.name, "")


def _check_replicas(replicas: Any, name: str) -> None:
    if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 0:
        detail = "must be greater than or equal to 0"
        error = FieldError(INVALID, "spec.replicas", replicas, detail)
        raise invalid(_GROUP, _KIND, name, [error])


def _answer(
    machinery: Machinery,
    request: ApiRequest,
    target: Target,
    outcome: writes.Outcome,
    warnings: list[str],
) -> Answer:
    obj = outcome.entry.obj if outcome.entry is not None else outcome.obj
    answer = machinery.answer_object(request, target.info, scale_of(obj, _scale_paths(target)))
    answer.warnings = warnings
    return answer


async def _apply(machinery: Machinery, request: ApiRequest, target: Target) -> Answer:
    """Apply only the number, for a manager of its own. A number given up becomes 0."""
    apply.check_manager(request)
    ctx = writes.write_context(machinery, request, target, "UPDATE", "PatchOptions")
    config = apply.read_config(request, (_GROUP, _VERSION, _KIND))
    check_typed(config, builtin_node(_KIND), _API_VERSION, _KIND)
    present(machinery, target)
    info, paths = target.info, _scale_paths(target)
    wanted = (config.get("spec") or {}).get("replicas")
    if wanted is not None:
        _check_replicas(wanted, target.name)
    system = ("uid", "resourceVersion")
    given = {k: v for k, v in (config.get("metadata") or {}).items() if k in system}
    applied: Obj = {"apiVersion": info.api_version, "kind": info.kind, "metadata": given}
    if wanted is not None:
        _put(applied, paths.spec, wanted)

    def complete(merged: Obj) -> None:
        apply.check_name(config, target)
        if info.is_custom and wanted is not None:
            raise _not_convertible(target.name)
        if _at(merged, paths.spec) is None:
            _put(merged, paths.spec, 0)

    application = apply.Application(
        machinery,
        info,
        applied,
        ctx,
        is_forced=bool_parameter(request.query, "force"),
        complete=complete,
        shown_as=(_API_VERSION, ".spec.replicas"),
    )
    whole = _whole(target)
    outcome = await writes.change(machinery, whole, application.make, ctx, own=application.own)
    return _answer(machinery, request, target, outcome, ctx.warnings)


def _not_convertible(name: str) -> StatusError:
    """Return the error of a real server for an apply to the scale of a custom resource.

    A real server cannot do it.
    """
    why = f"request to convert CR to an invalid group/version: {_API_VERSION}"
    what = f"failed to convert new object (/{name}; {_API_VERSION}, Kind={_KIND}) to proper version"
    return StatusError(500, "", f"{what}: {why}")


def _wanted_scale(request: ApiRequest, present: Obj) -> Obj:
    if request.method == "PUT":
        body: Obj = decode_object(request, "Scale").value
        name = (body.get("metadata") or {}).get("name")
        if name != present["metadata"]["name"]:
            raise bad_request("the name of the Scale does not match the name on the URL")
        return body
    try:
        document = orjson.loads(request.body)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"error decoding patch: {error}") from error
    if request.content_type == JSON_PATCH:
        return apply_json_patch(present, document)
    if request.content_type in (MERGE_PATCH, STRATEGIC_PATCH):
        return apply_merge_patch(present, document)  # a Scale has no lists
    raise unsupported_patch(is_known=False, accepted=())
