"""Builders of Kubernetes objects for tests: the smallest honest Job, Pod and Node.

Called by unit and integration tests. Each call gives a fresh object.
"""

from __future__ import annotations

import base64
import json
from typing import Any

import jsonpatch

Obj = dict[str, Any]


def container(name: str = "main", **resources: Any) -> Obj:
    """A container. ``requests=`` and ``limits=`` become its resources."""
    return {"name": name, "image": "registry.example/app:1", "resources": resources}


def batch_job(
    name: str = "pi", *, meta: Obj | None = None, pod: Obj | None = None, **spec: Any
) -> Obj:
    """A BatchJob as admission sees it: with the server's defaults, without status."""
    pod_spec = {"containers": [container()], "restartPolicy": "Never", **(pod or {})}
    template = spec.pop("template_meta", {})
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", **(meta or {})},
        "spec": {
            "parallelism": 1,
            "completions": 1,
            "suspend": False,
            "template": {"metadata": template, "spec": pod_spec},
            **spec,
        },
    }


def bare_pod(name: str = "solo", *, meta: Obj | None = None, **spec: Any) -> Obj:
    """A Pod without owner."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", **(meta or {})},
        "spec": {"containers": [container()], "restartPolicy": "Never", **spec},
    }


def owner(kind: str, name: str = "owner") -> Obj:
    """A controlling owner reference."""
    version = {"Job": "batch/v1", "Node": "v1", "CronJob": "batch/v1"}.get(kind, "apps/v1")
    return {
        "apiVersion": version,
        "kind": kind,
        "name": name,
        "uid": f"uid-{name}",
        "controller": True,
    }


def patched(obj: Obj, response: Obj) -> Obj:
    """``obj`` with the patch of an AdmissionReview's response."""
    patch = base64.b64decode(response.get("patch", base64.b64encode(b"[]")))
    found: Obj = jsonpatch.apply_patch(obj, json.loads(patch))
    return found


def admission_review(obj: Obj, *, operation: str = "CREATE", namespace: str = "default") -> Obj:
    """The AdmissionReview that the API server sends for ``obj``."""
    group = str(obj.get("apiVersion", "")).rpartition("/")[0]
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "review-1",
            "kind": {"group": group, "version": "v1", "kind": obj["kind"]},
            "namespace": namespace,
            "name": obj["metadata"].get("name"),
            "operation": operation,
            "userInfo": {"username": "someone"},
            "object": obj,
            "oldObject": None,
            "dryRun": False,
        },
    }
