"""``/scale`` of workloads and custom resources: read and write a Scale.

``routes`` calls it. An ``autoscaling/v1`` Scale is not an object: it shows three fields of one. The
registry says where these are. A Scale cannot be applied here.
"""

from __future__ import annotations

from typing import Any

import orjson

from localcluster.kinds.registry import ScalePaths
from localcluster.obj import Obj
from localcluster.server import writes
from localcluster.server.http_refusals import unsupported_patch
from localcluster.server.machinery import Machinery, copy_of
from localcluster.server.patching import (
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    apply_json_patch,
    apply_merge_patch,
)
from localcluster.server.request import Answer, ApiRequest, Target, decode_object
from localcluster.server.store import Entry
from localcluster.server.subresources import present
from localcluster.types.refusals import bad_request, invalid, not_served, wrong

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
        raise not_served("the apply of a Scale")
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
        error = wrong("spec.replicas", replicas, detail)
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
