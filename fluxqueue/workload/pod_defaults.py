"""What the API server adds to a pod at admission: defaults of LimitRanges, and its RuntimeClass.

``surroundings`` calls it for the pod templates of workloads, so that a slot has the size of the
pods that will come. A completed pod stays as it is. Refusals are left to the API server. Pure.

Sources: the admission plugins LimitRanger and RuntimeClass, and the defaults of ``v1.PodSpec``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fluxqueue.workload.objects import Object
from fluxqueue.workload.pod_resources import container_requests, is_pod_level

_CONTAINER = "Container"


def default_requests(limit_ranges: Iterable[Object]) -> dict[str, Any]:
    """Return the requests of a container that names none, by resource.

    The first LimitRange with a default for a resource wins. The API server has no order of its own,
    so the order of their names is taken.
    """
    found: dict[str, Any] = {}
    for limit_range in sorted(limit_ranges, key=lambda one: str(one["metadata"]["name"])):
        for item in (limit_range.get("spec") or {}).get("limits") or ():
            if item.get("type") == _CONTAINER:
                found = _defaults_of(item) | found
    return found


def _defaults_of(item: Object) -> dict[str, Any]:
    """Return the default requests of one entry, with those that the API server derives."""
    limits = {**(item.get("max") or {}), **(item.get("default") or {})}
    return {**(item.get("min") or {}), **limits, **(item.get("defaultRequest") or {})}


def with_default_requests(spec: Object, requests: Mapping[str, Any]) -> Object:
    """Return a pod spec after LimitRanger, with the default ``requests`` of its namespace.

    Raises
    ------
    InvalidInput
        A quantity cannot be read.
    """
    if not requests:
        return spec
    changed = dict(_with_pod_level_requests(spec))
    for key in ("containers", "initContainers"):
        if spec.get(key):
            changed[key] = [_completed(container, requests) for container in spec[key]]
    return changed


def _completed(container: Object, requests: Mapping[str, Any]) -> Object:
    resources = container.get("resources") or {}
    own = resources.get("requests") or {}
    # A limit without a request is the request, before any LimitRange is looked at.
    named = {*own, *(resources.get("limits") or {})}
    more = {name: amount for name, amount in requests.items() if name not in named}
    if not more:
        return container
    return {**container, "resources": {**resources, "requests": {**own, **more}}}


def _with_pod_level_requests(spec: Object) -> Object:
    """Return a pod spec with the requests that follow from its pod-level limits.

    The API server derives them before LimitRanger, from the containers as their author wrote them.
    """
    resources = spec.get("resources") or {}
    limits, own = resources.get("limits") or {}, resources.get("requests") or {}
    lacking = [name for name in limits if name not in own and is_pod_level(name)]
    if not lacking:
        return spec
    asked = container_requests(spec)
    unit = {name: f"{asked[name]}m" if name == "cpu" else str(asked[name]) for name in asked}
    requests = {**own, **{name: unit.get(name, limits[name]) for name in lacking}}
    return {**spec, "resources": {**resources, "requests": requests}}


def with_runtime_class(spec: Object, runtime_class: Object | None) -> Object:
    """Return a pod spec with the overhead, node selector and tolerations of its RuntimeClass."""
    if runtime_class is None:
        return spec
    changed = dict(spec)
    overhead = (runtime_class.get("overhead") or {}).get("podFixed")
    if overhead and not spec.get("overhead"):
        changed["overhead"] = overhead
    scheduling = runtime_class.get("scheduling") or {}
    if scheduling.get("nodeSelector"):
        # The API server refuses a pod that contradicts its class.
        selector = {**scheduling["nodeSelector"], **(spec.get("nodeSelector") or {})}
        changed["nodeSelector"] = selector
    own = list(spec.get("tolerations") or ())
    more = [one for one in scheduling.get("tolerations") or () if one not in own]
    if more:
        changed["tolerations"] = [*own, *more]
    return changed
