"""The definition of a JobSet, its Jobs and its status. Pure.

``jobset_controller`` calls it. Only what a demo needs is simulated: Jobs of each replicated job,
suspension, and the end. Start order, failure policies and networks are left out.
"""

from __future__ import annotations

import copy
from datetime import datetime

from localcluster.client.resources import JOBS, Resource
from localcluster.loops.objects import condition_of, is_true, owner_reference, write_time
from localcluster.obj import Obj

JOBSETS = Resource("jobset.x-k8s.io", "v1alpha2", "jobsets", "JobSet", True)
LABELS = "jobset.sigs.k8s.io/"
_APPROVED = "https://github.com/kubernetes-sigs/jobset"
_COLUMNS = (
    ("TerminalState", ".status.terminalState", "string"),
    ("Restarts", ".status.restarts", "string"),
    ("Completed", '.status.conditions[?(@.type=="Completed")].status', "string"),
    ("Suspended", ".spec.suspend", "string"),
    ("Age", ".metadata.creationTimestamp", "date"),
)


def definition() -> Obj:
    """Return the CustomResourceDefinition. Its schema accepts every field."""
    schema = {
        "type": "object",
        "properties": {
            name: {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
            for name in ("spec", "status")
        },
    }
    version = {
        "name": JOBSETS.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
        "additionalPrinterColumns": [
            {"name": name, "jsonPath": path, "type": kind} for name, path, kind in _COLUMNS
        ],
    }
    names = {"plural": JOBSETS.plural, "singular": "jobset", "kind": JOBSETS.kind}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": JOBSETS.key,
            "annotations": {"api-approved.kubernetes.io": _APPROVED},
        },
        "spec": {
            "group": JOBSETS.group,
            "scope": "Namespaced",
            "names": names,
            "versions": [version],
        },
    }


def jobs_of(jobset: Obj) -> list[Obj]:
    """Return the Jobs that a JobSet has, suspended as it is."""
    return [
        _job(jobset, part, number)
        for part in jobset["spec"].get("replicatedJobs") or ()
        for number in range(part.get("replicas", 1))
    ]


def _job(jobset: Obj, part: Obj, number: int) -> Obj:
    own, template = jobset["metadata"], copy.deepcopy(part["template"])
    labels = {
        f"{LABELS}jobset-name": own["name"],
        f"{LABELS}replicatedjob-name": part["name"],
        f"{LABELS}job-index": str(number),
    }
    meta, spec = template.get("metadata") or {}, template["spec"]
    pod_meta = spec["template"].setdefault("metadata", {})
    pod_meta["labels"] = {**(pod_meta.get("labels") or {}), **labels}
    spec.setdefault("completionMode", "Indexed")
    spec["template"]["spec"].setdefault("restartPolicy", "OnFailure")
    spec["suspend"] = bool(jobset["spec"].get("suspend"))
    return {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.kind,
        "metadata": {
            "name": f"{own['name']}-{part['name']}-{number}",
            "namespace": own["namespace"],
            "labels": {**(meta.get("labels") or {}), **labels},
            "annotations": meta.get("annotations") or {},
            "ownerReferences": [owner_reference(jobset, JOBSETS.api_version, JOBSETS.kind)],
        },
        "spec": spec,
    }


def next_status(jobset: Obj, jobs: list[Obj], now: datetime) -> Obj:
    """Return the status with these Jobs. The first failure or the last success ends a JobSet."""
    status: Obj = {"restarts": 0, **(jobset.get("status") or {})}
    if is_over(jobset):
        return status
    wanted = len(jobs_of(jobset))
    done = sum(is_true(job, "Complete") for job in jobs)
    failed = [job["metadata"]["name"] for job in jobs if is_true(job, "Failed")]
    if failed:
        return _ended(status, "Failed", "FailedJobs", f"Job {failed[0]} failed", now)
    if jobs and done >= wanted:
        message = "jobset completed successfully"
        return _ended(status, "Completed", "AllJobsCompleted", message, now)
    return status


def _ended(status: Obj, kind: str, reason: str, message: str, now: datetime) -> Obj:
    condition = {
        "type": kind,
        "status": "True",
        "reason": reason,
        "message": message,
        "lastTransitionTime": write_time(now),
    }
    return {
        **status,
        "terminalState": kind,
        "conditions": [*(status.get("conditions") or ()), condition],
    }


def is_over(jobset: Obj) -> bool:
    """Return whether a JobSet has ended."""
    return any(condition_of(jobset, kind) is not None for kind in ("Completed", "Failed"))
