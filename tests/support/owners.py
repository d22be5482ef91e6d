"""Objects of kinds that make pods and can be suspended: one of each that is built in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluxqueue.workload.owner_kinds import OwnerKind

Obj = dict[str, Any]

_KUBEFLOW = {
    "MPIJob": "mpiReplicaSpecs",
    "PyTorchJob": "pytorchReplicaSpecs",
    "TFJob": "tfReplicaSpecs",
    "XGBoostJob": "xgbReplicaSpecs",
    "PaddleJob": "paddleReplicaSpecs",
    "JAXJob": "jaxReplicaSpecs",
}


def job_set_spec(**jobs: tuple[int, Mapping[str, Any]]) -> Obj:
    """A JobSet's spec: of each name a Job of so many pods from a template."""
    return {
        "replicatedJobs": [
            {"name": name, "replicas": 1, "template": {"spec": {"parallelism": n, "template": of}}}
            for name, (n, of) in jobs.items()
        ]
    }


def spec_of(entry: OwnerKind, template: Mapping[str, Any], pods: int = 2) -> Obj:
    """The spec of an object of a kind that is built in, of so many pods."""
    if entry.kind in _KUBEFLOW:
        replicas = {"replicas": pods, "template": template}
        return {_KUBEFLOW[entry.kind]: {"Worker": replicas}, "runPolicy": {"ttl": 1}}
    if entry.group == "ray.io":
        workers = [{"replicas": pods - 1, "template": template}]
        cluster = {"headGroupSpec": {"template": template}, "workerGroupSpecs": workers}
        is_job = entry.kind == "RayJob"
        return {"rayClusterSpec": cluster, "shutdownAfterJobFinishes": True} if is_job else cluster
    if entry.templates_in is not None:
        return {"runtimeRef": {"name": "torch-distributed"}, "trainer": {"numNodes": pods}}
    return job_set_spec(workers=(pods, template))
