"""Builders of what users apply: the smallest honest Job and Pod, with simulated run times.

Simulated nodes read durations from annotations. Everything else is plain Kubernetes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Obj = dict[str, Any]

NOTE = "localcluster/"
FOR_EVER = {"never-ends": "true"}
QUICK = {"duration": "200ms"}
"""Long enough to be seen running, short enough for a fast suite."""


def _pod_spec(requests: Mapping[str, str], spec: Mapping[str, Any]) -> Obj:
    limits = {name: value for name, value in requests.items() if "/" in name}
    resources: Obj = {"requests": dict(requests)} | ({"limits": limits} if limits else {})
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "main", "image": "none", "resources": resources}],
        **spec,
    }


def job(
    name: str,
    *,
    pods: int = 1,
    cpu: str = "1",
    pool: str | None = None,
    run: Mapping[str, str] = QUICK,
    wishes: Mapping[str, str] | None = None,
    requests: Mapping[str, str] | None = None,
    pod: Mapping[str, Any] | None = None,
    **spec: Any,
) -> Obj:
    """A Job of ``pods`` pods at once.

    ``run`` tells the simulated nodes how its pods run, ``wishes`` are its own annotations under
    ``fluxqueue/``, ``requests`` are resources beside cpu, ``spec`` are further fields of the Job.
    """
    pod_spec = _pod_spec({"cpu": cpu, **(requests or {})}, pod or {})
    if pool is not None:
        pod_spec["nodeSelector"] = {"pool": pool, **pod_spec.get("nodeSelector", {})}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "annotations": {f"fluxqueue/{key}": value for key, value in (wishes or {}).items()},
        },
        "spec": {
            "parallelism": pods,
            "completions": pods,
            **spec,
            "template": {
                "metadata": {"annotations": {f"{NOTE}{key}": v for key, v in run.items()}},
                "spec": pod_spec,
            },
        },
    }


def bare_pod(name: str, *, cpu: str = "1", run: Mapping[str, str] = QUICK, **spec: Any) -> Obj:
    """A Pod without owner."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": {f"{NOTE}{key}": v for key, v in run.items()}},
        "spec": _pod_spec({"cpu": cpu}, spec),
    }
