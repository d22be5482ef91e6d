"""The real cluster-autoscaler with its provider kwok, which adds Node objects and no machines.

``FLUXQUEUE_CLUSTER_AUTOSCALER`` names the program, built from its sources with ``-tags kwok``. The
kubelets of its nodes are our simulated ones.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from fluxqueue.errors import Conflict
from fluxqueue.kube.resources import CONFIGMAPS, CRDS, NODES
from localcluster import NodeShape
from tests.support.e2e.space import Space
from tests.support.upstream import UpstreamFiles

VARIABLE = "FLUXQUEUE_CLUSTER_AUTOSCALER"
GROUP_LABEL = "own"
"""The label of the pools of tests by which kwok makes node groups."""
NODE_GROUP = "cluster-autoscaler.kwok.nodegroup"
MANAGED = "kwok.x-k8s.io/node"
CPU, MEMORY = "8", "32Gi"
FLAGS = (
    "--cloud-provider=kwok",
    "--leader-elect=false",
    "--scan-interval=2s",
    "--scale-down-unneeded-time=10s",
    "--scale-down-delay-after-add=5s",
    "--scale-down-delay-after-delete=2s",
    "--enable-provisioning-requests=true",
    "--kube-api-content-type=application/json",
    "--capacity-buffer-controller-enabled=true",
    "--capacity-buffer-pod-injection-enabled=true",
    "--address=127.0.0.1:0",
)
"""Those of the page on node pools, with short times."""


@asynccontextmanager
async def running_autoscaler(space: Space, group: str, folder: Path) -> AsyncIterator[None]:
    """Run it with one node group of six nodes. Their kubelets join within a second."""
    program = os.environ.get(VARIABLE)
    if not program:
        pytest.skip(f"{VARIABLE} names no cluster-autoscaler")
    if space.world.kind != "real":
        pytest.skip("it is tried on a real API server only")
    await _configure(space, group)
    environ = {
        **os.environ,
        "POD_NAMESPACE": space.name,
        "KWOK_PROVIDER_MODE": "local",
        "KUBECONFIG": str(space.world.kubeconfig),
    }
    command = [program, f"--kubeconfig={space.world.kubeconfig}", *FLAGS]
    log = (folder / "cluster-autoscaler.log").open("wb")
    process = await asyncio.to_thread(
        subprocess.Popen, command, stdout=log, stderr=log, env=environ
    )
    joined = set[str]()
    kubelets = asyncio.create_task(_join(space, joined))
    try:
        yield
    finally:
        kubelets.cancel()
        process.terminate()
        await asyncio.to_thread(process.wait, 30)
        log.close()
        for name in joined:  # a kubelet that lives on would register its node again
            await space.world.late_nodes.fleet.remove(name)


async def _configure(space: Space, group: str) -> None:
    """Write the ConfigMaps of kwok, and install the definitions of its project."""
    files = UpstreamFiles("kubernetes/autoscaler")
    for kind in ("provisioningrequests", "capacitybuffers"):
        text = files.text(f"cluster-autoscaler/apis/config/crd/autoscaling.x-k8s.io_{kind}.yaml")
        for definition in filter(None, yaml.safe_load_all(text)):
            with suppress(Conflict):  # another test has defined them
                await space.client.create(CRDS, None, definition)
    settings = {
        "apiVersion": "v1alpha1",
        "readNodesFrom": "configmap",
        "nodegroups": {"fromNodeLabelKey": GROUP_LABEL},
        "nodes": {"skipTaint": True},
        "configmap": {"name": "kwok-provider-templates", "key": "templates"},
    }
    templates = {"apiVersion": "v1", "kind": "List", "items": [_template(group)]}
    for name, key, data in (
        ("kwok-provider-config", "config", settings),
        ("kwok-provider-templates", "templates", templates),
    ):
        body = {"metadata": {"name": name}, "data": {key: yaml.safe_dump(data)}}
        await space.client.create(CONFIGMAPS, space.name, body)


def _template(group: str) -> dict[str, Any]:
    sizes = {"cpu": CPU, "memory": MEMORY, "pods": "110", "ephemeral-storage": "100Gi"}
    counts = {"min-count": "0", "max-count": "6", "desired-count": "0"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": group,
            "labels": {"pool": group, GROUP_LABEL: group},
            "annotations": {f"{NODE_GROUP}/{key}": value for key, value in counts.items()},
        },
        "spec": {},
        "status": {"capacity": sizes, "allocatable": sizes},
    }


async def _join(space: Space, joined: set[str]) -> None:
    """Let a kubelet join for each node that the autoscaler adds, and end with its node."""
    nodes = space.world.late_nodes
    while True:
        await asyncio.sleep(0.5)
        found = {one["metadata"]["name"]: one["metadata"] for one in
                 (await space.client.list(NODES)).items}  # fmt: skip
        added = {n for n, meta in found.items() if MANAGED in (meta.get("annotations") or {})}
        for name in added - joined:
            labels = {key: found[name]["labels"][key] for key in ("pool", GROUP_LABEL)}
            joined.add(name)
            await nodes.add(NodeShape(name, cpu=CPU, memory=MEMORY, labels=labels))
        for name in joined - added:
            await nodes.fleet.remove(name)
            joined.discard(name)
