"""Pods of ReplicaSets, StatefulSets and DaemonSets: selectors, hashes, bodies. Pure."""

from __future__ import annotations

import copy
import hashlib
from datetime import datetime

import orjson

from localcluster.client.resources import Resource
from localcluster.loops.objects import condition_of, is_ready, later, owner_reference, read_time
from localcluster.obj import Obj

_SAFE = "bcdfghjklmnpqrstvwxz2456789"


def safe_hash(*parts: object) -> str:
    """Return a short hash in the letters that Kubernetes uses in generated names."""
    data = orjson.dumps(parts, option=orjson.OPT_SORT_KEYS)
    number = int.from_bytes(hashlib.sha256(data).digest()[:4], "big")
    return "".join(_SAFE[ord(digit) % len(_SAFE)] for digit in str(number))


def matches_selector(selector: Obj, labels: dict[str, str]) -> bool:
    """Return whether labels match a LabelSelector (matchLabels and matchExpressions)."""
    if any(labels.get(k) != v for k, v in (selector.get("matchLabels") or {}).items()):
        return False
    for expression in selector.get("matchExpressions") or ():
        value = labels.get(expression["key"])
        operator, values = expression["operator"], expression.get("values") or ()
        is_met = {
            "In": value in values,
            "NotIn": value is None or value not in values,
            "Exists": value is not None,
            "DoesNotExist": value is None,
        }[operator]
        if not is_met:
            return False
    return True


def pod_from_template(
    owner: Obj, resource: Resource, *, name: str = "", extra_labels: dict[str, str] | None = None
) -> Obj:
    """Return a pod body of ``owner``'s template. Without ``name`` the server generates one."""
    template = copy.deepcopy(owner["spec"]["template"])
    metadata = template.get("metadata") or {}
    own = owner["metadata"]
    pod_metadata: Obj = {
        "generateName": f"{own['name']}-",
        "namespace": own["namespace"],
        "labels": dict(metadata.get("labels") or {}) | (extra_labels or {}),
        "ownerReferences": [owner_reference(owner, resource.api_version, resource.kind)],
    }
    if name:
        pod_metadata["name"] = name
    for key in ("annotations", "finalizers"):
        if metadata.get(key):
            pod_metadata[key] = metadata[key]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": pod_metadata,
        "spec": template["spec"],
    }


def available_in_s(pod: Obj, min_ready_s: int, now: datetime) -> float | None:
    """Return the seconds until a ready pod counts as available, or None if it is not ready.

    0 means that it is available now.
    """
    ready = condition_of(pod, "Ready")
    if ready is None or not is_ready(pod):
        return None
    since = read_time(ready.get("lastTransitionTime"))
    if not min_ready_s or since is None:
        return 0.0
    return max(0.0, (later(since, min_ready_s) - now).total_seconds())
