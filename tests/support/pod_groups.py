"""Pods with the labels of a group, and clusters that serve PodGroups of Kubernetes."""

from __future__ import annotations

from typing import Any

from fluxqueue.errors import NotFound
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import CRDS
from fluxqueue.workload.kinds.pod_group import Assembly
from fluxqueue.workload.pod_request import slot_kind
from tests.support.e2e.custom_kinds import definition
from tests.support.e2e.lives import POD_GROUP
from tests.support.waiting import eventually
from tests.support.workloads import bare_pod, container

GATE = {"schedulingGates": [{"name": "fluxqueue"}]}


def member(name: str, cpu: str = "1", *, phase: str = "Pending", **more: Any) -> dict[str, Any]:
    """A pod that waits, or one that was released where its phase says so."""
    meta = more.pop("meta", {}) | {"name": name, "uid": f"uid-{name}"}
    spec = {"containers": [container(requests={"cpu": cpu})]} | (GATE if phase == "Pending" else {})
    return bare_pod(meta=meta, **{**spec, **more}) | {"status": {"phase": phase}}


def group(
    *pods: dict[str, Any], least: int | None = 3, most: int | None = 3, **more: Any
) -> dict[str, Any]:
    """What stands for a group of ``pods``."""
    return Assembly(
        uid="g",
        name="mpi",
        fluxjob="mpi-group",
        namespace="default",
        user="alice",
        created="2026-01-01T00:00:00Z",
        spec={"minimum": least, "maximum": most, **more.pop("spec", {})},
        members={pod["metadata"]["uid"]: pod for pod in pods},
        slot_kinds={pod["metadata"]["uid"]: slot_kind(pod) for pod in pods},
        jobs=more.pop("jobs", {}),
    ).assemble()


async def serve(admin: KubeClient) -> None:
    """Serve PodGroups as Kubernetes 1.37 does."""
    await admin.create(CRDS, None, definition(POD_GROUP))

    async def is_served() -> bool:
        try:
            await admin.list(POD_GROUP)
        except NotFound:
            return False
        return True

    await eventually(is_served, "PodGroups are served")
