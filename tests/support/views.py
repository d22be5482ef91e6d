"""A healthy cluster and its rows, for tests of the check: break one thing, expect one finding."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from typing import Any

from fluxqueue.checking.both_sides import CheckedCluster, CheckView
from fluxqueue.db.reading.snapshot import AllocationRow, FluxJobRow, Rows, SlotRow, UsageRow
from tests.support.workloads import batch_job

NOW_S = 1_800_000_000
CREATED = "2027-01-15T07:59:50Z"
"""Ten seconds before ``NOW_S``."""

Obj = dict[str, Any]

_NEEDS = {"cpu": 8000, "pods": 1}


@dataclass
class Scenery:
    """One Job of two pods on node-1 (16 cores), one foreign pod on node-2, all in order."""

    jobs: list[Obj] = field(default_factory=list)
    pods: list[Obj] = field(default_factory=list)
    nodes: list[Obj] = field(default_factory=list)
    fluxjobs: list[Obj] = field(default_factory=list)
    rows: dict[str, list[Any]] = field(default_factory=dict)

    def view(self, *, unseen_s: int = 300) -> CheckView:
        """Both sides, indexed."""
        cluster = CheckedCluster(
            *(tuple(kind) for kind in (self.jobs, self.pods, self.nodes, self.fluxjobs))
        )
        rows = Rows(now_s=NOW_S, **{name: tuple(rows) for name, rows in self.rows.items()})
        return CheckView(cluster, rows, NOW_S, unseen_s=unseen_s, default_cpu_m=1000)


def healthy() -> Scenery:
    """A fresh scenery in which every invariant holds."""
    job = batch_job(
        meta={"creationTimestamp": CREATED},
        pod={"schedulingGates": [{"name": "fluxqueue"}]},
        parallelism=2,
        completions=2,
    )
    return Scenery(
        jobs=[job],
        pods=[running_pod("pi-a"), running_pod("pi-b"), foreign_pod("agent", "node-2", "2")],
        nodes=[node("node-1"), node("node-2")],
        fluxjobs=[fluxjob("pi", "Running", jobid=1)],
        rows={
            "fluxjobs": [fluxjob_row("pi", "Running", jobid=1)],
            "allocations": [AllocationRow(id=7, uid="uid-pi", until_s=None)],
            "slots": [slot(0, "uid-pi-a"), slot(1, "uid-pi-b")],
            "usage": [
                UsageRow("node-1", "cpu", 16000, 16000, 0, 0),
                UsageRow("node-1", "pods", 110, 2, 0, 108),
                UsageRow("node-2", "cpu", 16000, 0, 2000, 14000),
                UsageRow("node-2", "pods", 110, 0, 1, 109),
            ],
            "reservations": [],
            "late": [],
            "drift": [],
        },
    )


def running_pod(name: str, *, owner: str = "pi", node: str = "node-1", cpu: str = "8") -> Obj:
    """An ungated pod of a Job, bound and running."""
    reference = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "name": owner,
        "uid": f"uid-{owner}",
        "controller": True,
    }
    pod = foreign_pod(name, node, cpu)
    pod["metadata"]["ownerReferences"] = [reference]
    return pod


def foreign_pod(name: str, node: str, cpu: str) -> Obj:
    """A bound, running pod without owner and without our gate."""
    container = {"name": "main", "image": "x", "resources": {"requests": {"cpu": cpu}}}
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "creationTimestamp": CREATED,
        },
        "spec": {"nodeName": node, "containers": [container]},
        "status": {"phase": "Running"},
    }


def node(name: str) -> Obj:
    """A ready node of 16 cores."""
    return {
        "metadata": {"name": name, "uid": f"uid-{name}"},
        "spec": {},
        "status": {
            "allocatable": {"cpu": "16", "pods": "110"},
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def fluxjob(workload: str, state: str, *, jobid: int) -> Obj:
    """The FluxJob of a Job."""
    return {
        "metadata": {"name": f"{workload}-job", "namespace": "default", "uid": f"f-{workload}"},
        "spec": {"workload": {"kind": "Job", "name": workload, "uid": f"uid-{workload}"}},
        "status": {"state": state, "jobid": jobid},
    }


def fluxjob_row(
    workload: str,
    state: str,
    *,
    jobid: int,
    is_gone: bool = False,
    has_reservation: bool = False,
    allocated_at_s: int | None = NOW_S - 60,
) -> FluxJobRow:
    """The row of a Job of two pods."""
    return FluxJobRow(
        uid=f"uid-{workload}",
        jobid=jobid,
        namespace="default",
        name=f"{workload}-job",
        workload_kind="Job",
        workload_name=workload,
        flux_uid=f"f-{workload}",
        state=state,
        reason="",
        size=2,
        is_gone=is_gone,
        allocated_at_s=allocated_at_s,
        has_reservation=has_reservation,
    )


def slot(
    number: int, pod_uid: str | None, *, node: str = "node-1", state: str | None = None
) -> SlotRow:
    """A slot of the Job's allocation."""
    chosen = state or ("held" if pod_uid else "free")
    return SlotRow(7, "uid-pi", number, node, copy.copy(_NEEDS), chosen, pod_uid)
