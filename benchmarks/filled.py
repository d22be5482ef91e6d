"""An embedded API server that is full of Jobs and their FluxJobs, as a process of its own.

Used by the benchmarks of what reads very many of them: ``bench-resync``, ``bench-jobs``. The
objects are put into its store beside admission: by requests they would take a quarter of an hour.
``python -m benchmarks.filled --jobs 50000 --kubeconfig FILE`` serves until it is stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.under_way import under_way
from fluxqueue.clock import to_rfc3339
from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.installation import install_definitions
from fluxqueue.kube.resources import FLUXJOBS, JOBS, NODES, PODS
from fluxqueue.kube.resources import NAMESPACES as SPACES
from fluxqueue.scheduler.resource_set import to_resource_set
from fluxqueue.workload import labels
from fluxqueue.workload.fluxjob_object import FluxJobStatus, build
from fluxqueue.workload.kinds.table import kind_of
from fluxqueue.workload.site import Site
from localcluster import LocalCluster, LocalClusterConfig
from tests.support.clusters import config_of

Obj = dict[str, Any]
NAMESPACES = 20
RUNNING_SHARE = 50
"""One of so many runs; the others wait."""
BEGAN_S = 1_767_225_600
SLOT = {"cpu": 1000, "memory": 2**30, "pods": 1}
_POD_SPEC = {
    "restartPolicy": "Never",
    "containers": [
        {
            "name": "main",
            "image": "registry.example/app:1",
            "resources": {"requests": {"cpu": "1", "memory": "1Gi"}},
        }
    ],
}
_GATED = {**_POD_SPEC, "schedulingGates": [{"name": labels.GATE}]}


def job(number: int) -> Obj:
    """A Job as admission left it, and as its release left it where it runs."""
    runs = is_running(number)
    name = f"job-{number}"
    return {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.kind,
        "metadata": {
            "name": name,
            "namespace": f"team-{number % NAMESPACES}",
            "uid": f"{number:08x}-0000-4000-8000-000000000001",
            "generation": 2 if runs else 1,
            "creationTimestamp": to_rfc3339(BEGAN_S + number // 10),
            "labels": {labels.MANAGED: "true"},
            "annotations": {labels.USER: f"user-{number % 50}", labels.DURATION: "1h"},
        },
        "spec": {
            "parallelism": 1,
            "completions": 1,
            "backoffLimit": 6,
            "completionMode": "NonIndexed",
            "suspend": not runs,
            "template": {"metadata": {"labels": {labels.MANAGED: "true"}}, "spec": _GATED},
        },
        "status": {"active": 1} if runs else {},
    }


def is_running(number: int) -> bool:
    """Whether it is one of those that run."""
    return number % RUNNING_SHARE == 0


def _node_of(number: int) -> str:
    return f"node-{number // RUNNING_SHARE // 32}"


def _pod(owner: Obj, number: int) -> Obj:
    meta = owner["metadata"]
    reference = {"apiVersion": JOBS.api_version, "kind": JOBS.kind, "controller": True}
    return {
        "apiVersion": PODS.api_version,
        "kind": PODS.kind,
        "metadata": {
            "name": f"{meta['name']}-abcde",
            "namespace": meta["namespace"],
            "uid": f"{number:08x}-0000-4000-8000-000000000002",
            "creationTimestamp": meta["creationTimestamp"],
            "labels": {labels.MANAGED: "true"},
            "ownerReferences": [{**reference, "name": meta["name"], "uid": meta["uid"]}],
        },
        "spec": {**_POD_SPEC, "nodeName": _node_of(number)},
        "status": {"phase": "Running"},
    }


def _fluxjob(owner: Obj, spec: Obj, number: int) -> Obj:
    """``spec``: that of any of them, since all ask for the same."""
    meta = owner["metadata"]
    state = FluxJobState.RUNNING if is_running(number) else FluxJobState.PENDING
    more: Obj = {"reason": "waits for 1 cpu and 1Gi of memory on a node"}
    if is_running(number):
        slots = [(_node_of(number), SLOT)]
        more = {
            "nodes": [_node_of(number)],
            "started_at_s": BEGAN_S + number,
            "resource_set": to_resource_set(slots, starts_at=BEGAN_S + number, until=None),
        }
    workload = {**spec["spec"]["workload"], "name": meta["name"], "uid": meta["uid"]}
    return {
        **spec,
        "metadata": {
            **spec["metadata"],
            "name": f"{meta['name']}-job",
            "namespace": meta["namespace"],
            "uid": f"{number:08x}-0000-4000-8000-000000000003",
            "generation": 1,
            "creationTimestamp": meta["creationTimestamp"],
            "ownerReferences": [{**workload, "controller": True, "blockOwnerDeletion": False}],
        },
        "spec": {**spec["spec"], "workload": workload, "user": f"user-{number % 50}"},
        "status": FluxJobStatus(
            state=state,
            version=5,
            workload_uid=meta["uid"],
            jobid=number + 1,
            queue="default",
            priority=0,
            **more,
        ).render(),
    }


def _namespace(name: str) -> Obj:
    meta = {"name": name, "uid": f"uid-{name}", "labels": {"kubernetes.io/metadata.name": name}}
    return {
        "apiVersion": SPACES.api_version,
        "kind": SPACES.kind,
        "metadata": meta,
        "spec": {"finalizers": ["kubernetes"]},
        "status": {"phase": "Active"},
    }


def _node(number: int) -> Obj:
    name = f"node-{number}"
    amounts = {"cpu": "32", "memory": "128Gi", "pods": "110"}
    return {
        "apiVersion": NODES.api_version,
        "kind": NODES.kind,
        "metadata": {"name": name, "uid": f"uid-{name}", "labels": {labels.HOSTNAME: name}},
        "spec": {},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def fill(cluster: LocalCluster, number: int) -> None:
    """Put them all into the store."""
    store = cluster.server.machinery.store
    spec = build(job(1), kind_of(job(1)).to_request(job(1), site=Site()), priority=0)
    for one in range(NAMESPACES):
        store.create((SPACES.group, SPACES.plural), _namespace(f"team-{one}"))
    for one in range(number // RUNNING_SHARE // 32 + 1):
        store.create((NODES.group, NODES.plural), _node(one))
    for one in range(number):
        workload = job(one)
        store.create((JOBS.group, JOBS.plural), workload)
        store.create((FLUXJOBS.group, FLUXJOBS.plural), _fluxjob(workload, spec, one))
        if is_running(one):
            store.create((PODS.group, PODS.plural), _pod(workload, one))
    store.compact()


async def _serve(number: int, kubeconfig: Path) -> None:
    quiet = LocalClusterConfig(run_controllers=False, run_scheduler=False, run_nodes=False)
    async with LocalCluster(quiet) as cluster:
        async with KubeClient(config_of(cluster)) as client:
            await install_definitions(client, labels.OWN_NAMESPACE)
        fill(cluster, number)
        cluster.write_kubeconfig(kubeconfig)
        print("ready", flush=True)
        await asyncio.Event().wait()


@asynccontextmanager
async def filled_server(number: int, kubeconfig: Path) -> AsyncIterator[float]:
    """Run it. Gives the seconds that filling took."""
    began_s = time.perf_counter()
    command = [sys.executable, "-m", "benchmarks.filled", "--jobs", str(number)]
    process = await asyncio.create_subprocess_exec(
        *command, "--kubeconfig", str(kubeconfig), stdout=PIPE
    )
    try:
        assert process.stdout is not None
        if not await process.stdout.readline():
            raise RuntimeError("the API server did not start")
        yield time.perf_counter() - began_s
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def main() -> None:
    """Serve until stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, required=True)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    arguments = parser.parse_args()
    asyncio.run(_serve(arguments.jobs, arguments.kubeconfig))


if __name__ == "__main__":
    with under_way("filled"):
        main()
