"""Subresources that are not the object itself: scale, binding, eviction, token.

Called by ``routes``.  What binding, eviction and token mean is in the handlers that the registry
names; here they are given the object, and what they changed is stored.
"""

from __future__ import annotations

from typing import Any

import orjson

from localcluster.kinds.registry import RequestContext, ScalePaths, Subresource
from localcluster.obj import Obj
from localcluster.server.deletion import delete_context, delete_object, options_from_object
from localcluster.server.http_refusals import method_not_allowed, success, unsupported_patch
from localcluster.server.machinery import Machinery, answer_status, copy_of
from localcluster.server.patching import (
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    apply_json_patch,
    apply_merge_patch,
)
from localcluster.server.request import (
    Answer,
    ApiRequest,
    Target,
    check_type,
    decode_object,
)
from localcluster.server.store import Entry
from localcluster.server.writes import change, write_context
from localcluster.types.refusals import (
    INVALID,
    FieldError,
    bad_request,
    invalid,
    not_found,
    not_served,
)


def _entry(machinery: Machinery, target: Target) -> Entry:
    entry = machinery.store.entry(target.info.storage, target.namespace, target.name)
    if entry is None:
        raise not_found(target.info.group, target.info.plural, target.name)
    return machinery.shown(target.info, entry)


async def post(
    machinery: Machinery, request: ApiRequest, target: Target, sub: Subresource
) -> Answer:
    """POST to binding, eviction or token."""
    ctx = write_context(machinery, request, target, "CREATE", "CreateOptions")
    body: Obj = decode_object(request, sub.kind).value
    check_type(body, target.info, machinery.registry, sub.name)
    if sub.how == "binding":
        return await bind(machinery, request, target, sub, body, ctx)
    if sub.how == "eviction":
        return await _evict(machinery, request, target, sub, body, ctx)
    if sub.how == "token" and sub.handler is not None:
        obj = sub.handler(body, copy_of(_entry(machinery, target)), ctx)
        return Answer(201, orjson.dumps(obj), warnings=ctx.warnings)
    raise method_not_allowed()


async def bind(
    machinery: Machinery,
    request: ApiRequest,
    target: Target,
    sub: Subresource,
    body: Obj,
    ctx: RequestContext,
) -> Answer:
    """Store what the handler makes of the pod; the answer is a bare Status."""
    if sub.handler is None:
        raise not_served(f"{target.info.plural}/{sub.name}")
    _entry(machinery, target)
    await machinery.admission.admit(target.info, "CREATE", body, None, ctx)
    _write_through(machinery, target, sub, body, ctx)
    answer = answer_status(request, success(201), 201)
    answer.warnings = ctx.warnings
    return answer


def _write_through(
    machinery: Machinery, target: Target, sub: Subresource, body: Obj, ctx: RequestContext
) -> None:
    """Store what the handler makes of the object, past the strategy (as the real server does)."""
    info, store = target.info, machinery.store
    entry = store.entry(info.storage, target.namespace, target.name)
    if entry is None:
        raise not_found(info.group, info.plural, target.name)
    changed = copy_of(entry)
    assert sub.handler is not None
    sub.handler(body, changed, ctx)
    if changed != entry.obj and not ctx.is_dry_run:
        store.replace(info.storage, entry, changed, entry.managed)


async def _evict(
    machinery: Machinery,
    request: ApiRequest,
    target: Target,
    sub: Subresource,
    body: Obj,
    ctx: RequestContext,
) -> Answer:
    _entry(machinery, target)
    options = options_from_object(body.get("deleteOptions") or {})
    options.is_dry_run = ctx.is_dry_run = options.is_dry_run or ctx.is_dry_run
    await machinery.admission.admit(target.info, "CREATE", body, None, ctx)
    if sub.handler is not None:
        _write_through(machinery, target, sub, body, ctx)
    whole = Target(target.info, target.namespace, target.name, "")
    delete_ctx = delete_context(machinery, request, whole, options)
    await delete_object(machinery, whole, options, delete_ctx)
    return answer_status(request, success(201), 201)


# -- scale ----------------------------------------------------------------------------------


def scale_of(obj: Obj, paths: ScalePaths) -> Obj:
    """The ``autoscaling/v1`` Scale of an object."""
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
    """GET .../scale."""
    obj = scale_of(_entry(machinery, target).obj, _scale_paths(target))
    return machinery.answer_object(request, target.info, obj)


async def write_scale(machinery: Machinery, request: ApiRequest, target: Target) -> Answer:
    """PUT or PATCH of .../scale."""
    ctx = write_context(machinery, request, target, "UPDATE", "UpdateOptions")
    paths = _scale_paths(target)

    def make(entry: Entry) -> Obj:
        wanted = _wanted_scale(request, scale_of(entry.obj, paths))
        replicas = (wanted.get("spec") or {}).get("replicas") or 0
        if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 0:
            detail = "must be greater than or equal to 0"
            error = FieldError(INVALID, "spec.replicas", replicas, detail)
            raise invalid("autoscaling", "Scale", target.name, [error])
        obj = copy_of(entry)
        _put(obj, paths.spec, replicas)
        given = (wanted.get("metadata") or {}).get("resourceVersion")
        obj["metadata"]["resourceVersion"] = given or obj["metadata"]["resourceVersion"]
        return obj

    whole = Target(target.info, target.namespace, target.name, "")
    outcome = await change(machinery, whole, make, ctx)
    obj = outcome.entry.obj if outcome.entry is not None else outcome.obj
    answer = machinery.answer_object(request, target.info, scale_of(obj, paths))
    answer.warnings = ctx.warnings
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
