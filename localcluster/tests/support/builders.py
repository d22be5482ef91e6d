"""Small Kubernetes objects for tests of the controllers' decisions."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from localcluster.controllers.job_pods import INDEX_KEY, TRACKING_FINALIZER
from localcluster.loops.objects import write_time
from localcluster.obj import Obj

NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)


def at(seconds: float) -> str:
    """A time relative to NOW, as written in objects."""
    return write_time(NOW + timedelta(seconds=seconds))


def job(**spec: Any) -> Obj:
    """A Job with defaults filled in. ``status`` and ``metadata`` are taken out of ``spec``."""
    status = spec.pop("status", {})
    metadata = spec.pop("metadata", {})
    template = spec.pop("template", {"spec": {"restartPolicy": "Never", "containers": [{}]}})
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "namespace": "n",
            "name": "j",
            "uid": "job-uid",
            "generation": 1,
            "resourceVersion": "1",
            **metadata,
        },
        "spec": {
            "parallelism": 1,
            "completions": 1,
            "backoffLimit": 6,
            "completionMode": "NonIndexed",
            "suspend": False,
            "podReplacementPolicy": "TerminatingOrFailed",
            "template": template,
            **spec,
        },
        "status": status,
    }


def pod(
    name: str,
    phase: str = "Running",
    *,
    index: int | None = None,
    ready: bool | None = None,
    deleted: bool = False,
    tracked: bool = True,
    ended_s: float = -60.0,
    exit_code: int | None = None,
    **metadata: Any,
) -> Obj:
    """A pod of the Job. Finished ones ended ``ended_s`` relative to NOW."""
    is_ready = phase == "Running" if ready is None else ready
    status: Obj = {
        "phase": phase,
        "conditions": [{"type": "Ready", "status": str(is_ready), "lastTransitionTime": at(-90)}],
    }
    if phase in {"Succeeded", "Failed"}:
        code = exit_code if exit_code is not None else int(phase == "Failed")
        terminated = {"exitCode": code, "finishedAt": at(ended_s)}
        status["containerStatuses"] = [{"name": "main", "state": {"terminated": terminated}}]
    meta: Obj = {
        "namespace": "n",
        "name": name,
        "uid": f"uid-{name}",
        "creationTimestamp": at(-100),
        "annotations": {INDEX_KEY: str(index)} if index is not None else {},
    }
    if tracked:
        meta["finalizers"] = [TRACKING_FINALIZER]
    if deleted:
        meta |= {"deletionTimestamp": at(20), "deletionGracePeriodSeconds": 30}
    annotations = meta["annotations"] | metadata.pop("annotations", {})
    meta |= {**metadata, "annotations": annotations}
    return {"metadata": meta, "spec": {"nodeName": "node-1", "containers": []}, "status": status}
