"""LimitRanges and RuntimeClasses: their strategies, and what their admission plugins do to pods.

``admission`` calls the plugins. LimitRanger checks containers here, and neither whole pods nor
claims.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from localcluster.kinds.meta import immutable
from localcluster.kinds.request_context import RequestContext
from localcluster.kinds.strategy import BaseStrategy
from localcluster.obj import Obj
from localcluster.types.quantity import value_of
from localcluster.types.refusals import FieldError, required, wrong

_ANNOTATION = "kubernetes.io/limit-ranger"


class LimitRangeStrategy(BaseStrategy):
    """core/v1 LimitRange."""

    type_name = "LimitRange"

    def default(self, obj: Obj) -> None:
        """Derive default limits from the maximum, and default requests from both."""
        for item in (obj.get("spec") or {}).get("limits") or ():
            if item.get("type") != "Container":
                continue
            limits = {**(item.get("max") or {}), **(item.get("default") or {})}
            least = {**(item.get("min") or {}), **limits}
            requests = {**least, **(item.get("defaultRequest") or {})}
            if limits:
                item["default"] = limits
            if requests:
                item["defaultRequest"] = requests

    def validate(self, obj: Obj, ctx: RequestContext) -> list[FieldError]:
        """Check that requests are not above limits, and that no type comes twice."""
        errors: list[FieldError] = []
        seen: set[str] = set()
        for index, item in enumerate(obj["spec"].get("limits") or ()):
            at = f"spec.limits[{index}]"
            kind = item.get("type", "")
            if kind in seen:
                errors.append(FieldError("FieldValueDuplicate", f"{at}.type", kind, ""))
            seen.add(kind)
            limits = item.get("default") or {}
            for name, amount in (item.get("defaultRequest") or {}).items():
                if name in limits and value_of(amount) > value_of(limits[name]):
                    text = f"default request value {amount} is greater than default limit value"
                    errors.append(
                        wrong(f"{at}.defaultRequest[{name}]", amount, f"{text} {limits[name]}")
                    )
        return errors


class RuntimeClassStrategy(BaseStrategy):
    """node.k8s.io/v1 RuntimeClass."""

    type_name = "RuntimeClass"
    is_namespaced = False

    def validate(self, obj: Obj, ctx: RequestContext) -> list[FieldError]:
        """Require a handler."""
        if obj.get("handler"):
            return []
        return [required("handler")]

    def validate_change(self, new: Obj, old: Obj, ctx: RequestContext) -> list[FieldError]:
        """Refuse a change of the handler."""
        if new.get("handler") == old.get("handler"):
            return []
        return [immutable("handler", new.get("handler"))]


def limit_pod(pod: Obj, ranges: Iterable[Obj]) -> str:
    """Set the defaults of LimitRanges. Return why the pod is refused, or nothing."""
    chosen = [
        item
        for one in sorted(ranges, key=lambda one: str(one["metadata"]["name"]))
        for item in one["spec"].get("limits") or ()
        if item.get("type") == "Container"
    ]
    done: list[str] = []
    for key, word in (("containers", "container"), ("initContainers", "init container")):
        for container in pod["spec"].get(key) or ():
            done += _set_defaults(container, chosen, word)
    if done:
        notes = pod["metadata"].setdefault("annotations", {})
        notes[_ANNOTATION] = f"LimitRanger plugin set: {'; '.join(done)}"
    reasons = [
        text
        for key in ("initContainers", "containers")
        for container in pod["spec"].get(key) or ()
        for text in _beyond(container, chosen)
    ]
    return reasons[0] if len(reasons) == 1 else f"[{', '.join(reasons)}]" if reasons else ""


def _set_defaults(container: Obj, items: Sequence[Obj], word: str) -> list[str]:
    resources = container.get("resources") or {}
    limits, requests = dict(resources.get("limits") or {}), dict(resources.get("requests") or {})
    # A limit without a request is the request.
    requests = {**limits, **requests}
    done: dict[str, list[str]] = {"request": [], "limit": []}
    targets = (("request", requests, "defaultRequest"), ("limit", limits, "default"))
    for item in items:
        for kind, here, field in targets:
            for name, amount in (item.get(field) or {}).items():
                if name not in here:
                    here[name] = amount
                    done[kind].append(name)
    if not any(done.values()):
        return []
    pairs = (("limits", limits), ("requests", requests))
    container["resources"] = {**resources, **{key: value for key, value in pairs if value}}
    of = f"for {word} {container.get('name', '')}"
    return [f"{', '.join(sorted(names))} {kind} {of}" for kind, names in done.items() if names]


def _beyond(container: Obj, items: Sequence[Obj]) -> list[str]:
    resources = container.get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    found = []
    for item in items:
        for name, least in sorted((item.get("min") or {}).items()):
            text = f"minimum {name} usage per Container is {least}"
            if name not in requests:
                found.append(f"{text}.  No request is specified")
            elif value_of(requests[name]) < value_of(least):
                found.append(f"{text}, but request is {requests[name]}")
        for name, most in sorted((item.get("max") or {}).items()):
            text = f"maximum {name} usage per Container is {most}"
            if name not in limits:
                found.append(f"{text}.  No limit is specified")
            elif value_of(limits[name]) > value_of(most):
                found.append(f"{text}, but limit is {limits[name]}")
    return found


def apply_runtime_class(pod: Obj, runtime_class: Obj | None) -> str:
    """Set overhead, node selector and tolerations. Return why the pod is refused, or nothing."""
    spec = pod["spec"]
    name, overhead = spec.get("runtimeClassName"), spec.get("overhead")
    if name and runtime_class is None:
        return f'pod rejected: RuntimeClass "{name}" not found'
    fixed = ((runtime_class or {}).get("overhead") or {}).get("podFixed")
    if overhead and not fixed:
        return "pod rejected: Pod Overhead set without corresponding RuntimeClass defined Overhead"
    if overhead and overhead != fixed:
        return "pod rejected: Pod's Overhead doesn't match RuntimeClass's defined Overhead"
    if fixed:
        spec["overhead"] = dict(fixed)
    scheduling = (runtime_class or {}).get("scheduling") or {}
    own = spec.get("nodeSelector") or {}
    for key, value in (scheduling.get("nodeSelector") or {}).items():
        if own.get(key, value) != value:
            theirs = f"runtimeClass.scheduling.nodeSelector[{key}] = {value}"
            return f"conflict: {theirs}; pod.spec.nodeSelector[{key}] = {own[key]}"
    if scheduling.get("nodeSelector"):
        spec["nodeSelector"] = {**own, **scheduling["nodeSelector"]}
    tolerations = spec.get("tolerations") or []
    more = [one for one in scheduling.get("tolerations") or () if one not in tolerations]
    if more:
        spec["tolerations"] = [*tolerations, *more]
    return ""
