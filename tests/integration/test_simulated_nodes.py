"""Our node agents under a real control plane: they are kubelet enough for the real controllers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
from localcluster.loops.objects import is_true

from fluxqueue.errors import NotFound
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import JOBS, NAMESPACES, NODES, PODS, SERVICE_ACCOUNTS
from localcluster import NodeShape, SimulatedNodes
from tests.support.control_plane import ControlPlane
from tests.support.waiting import eventually, until

pytestmark = pytest.mark.real_cluster

NOTE = "localcluster/"


@pytest_asyncio.fixture
async def nodes(control_plane: ControlPlane, client: KubeClient) -> AsyncIterator[SimulatedNodes]:
    """Two nodes, gone after the test."""
    shapes = [NodeShape(f"agent-{number}", cpu="4") for number in (1, 2)]
    async with SimulatedNodes(control_plane.config, shapes) as running:
        yield running
        for node in (await client.list(NODES)).items:
            await client.delete(NODES, None, node["metadata"]["name"])


@pytest_asyncio.fixture
async def namespace(client: KubeClient, nodes: SimulatedNodes) -> AsyncIterator[str]:
    """A namespace of the test's own. The nodes are there to end its pods."""
    made = await client.create(NAMESPACES, None, {"metadata": {"generateName": "test-"}})
    name: str = made["metadata"]["name"]

    await until(
        lambda: client.list(SERVICE_ACCOUNTS, name),
        lambda found: bool(found.items),
        "the default service account",
    )
    yield name
    await client.delete(NAMESPACES, None, name)

    async def is_gone() -> bool:
        try:
            await client.get(NAMESPACES, None, name)
        except NotFound:
            return True
        return False

    await eventually(is_gone, f"the end of namespace {name}")


def _batch_job(name: str, notes: dict[str, str], **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}
    template = {
        "metadata": {"annotations": {f"{NOTE}{key}": value for key, value in notes.items()}},
        "spec": {"containers": [container], "restartPolicy": "Never"},
    }
    return {"metadata": {"name": name}, "spec": {"template": template, **spec}}


async def _until(client: KubeClient, namespace: str, name: str, condition: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    async def look() -> bool:
        found.update(await client.get(JOBS, namespace, name))
        return is_true(found, condition)

    await eventually(look, f"{name} {condition}")
    return found


async def test_a_batchjob_runs_to_complete(client: KubeClient, namespace: str) -> None:
    """More pods than fit at once: each is bound, runs, ends, and makes room."""
    job = _batch_job("many", {"duration": "200ms"}, parallelism=12, completions=24)
    await client.create(JOBS, namespace, job)
    done = await _until(client, namespace, "many", "Complete")
    assert done["status"]["succeeded"] == 24
    pods = (await client.list(PODS, namespace)).items
    assert {pod["spec"]["nodeName"] for pod in pods} == {"agent-1", "agent-2"}


async def test_exit_codes_reach_the_job_controller(client: KubeClient, namespace: str) -> None:
    """podFailurePolicy reads them out of the container statuses that we write."""
    rule = {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}
    job = _batch_job(
        "odd", {"duration": "0", "exit-code": "42"}, podFailurePolicy={"rules": [rule]}
    )
    await client.create(JOBS, namespace, job)
    failed = await _until(client, namespace, "odd", "Failed")
    condition = next(c for c in failed["status"]["conditions"] if c["type"] == "Failed")
    assert condition["reason"] == "PodFailurePolicy"
    assert "exit code 42" in condition["message"]


async def test_a_deleted_batchjob_takes_its_running_pods_along(
    client: KubeClient, namespace: str
) -> None:
    """The nodes end the pods that foreground deletion waits for."""
    job = _batch_job("long", {"never-ends": "true"}, parallelism=3)
    await client.create(JOBS, namespace, job)

    async def all_run() -> bool:
        pods = (await client.list(PODS, namespace)).items
        return [pod["status"]["phase"] for pod in pods] == ["Running"] * 3

    await eventually(all_run, "three running pods")
    await client.delete(JOBS, namespace, "long", propagation="Foreground")

    async def is_gone() -> bool:
        jobs, pods = await client.list(JOBS, namespace), await client.list(PODS, namespace)
        return not jobs.items and not pods.items

    await eventually(is_gone, "the end of the BatchJob and its pods")


async def test_a_node_joins_and_takes_what_waits(
    client: KubeClient, nodes: SimulatedNodes, namespace: str
) -> None:
    """A pod too big for the others starts as soon as there is room."""
    job = _batch_job("big", {"duration": "0"})
    pod_spec = job["spec"]["template"]["spec"]
    pod_spec["containers"][0]["resources"]["requests"]["cpu"] = "8"
    await client.create(JOBS, namespace, job)

    async def is_refused() -> bool:
        pods = (await client.list(PODS, namespace)).items
        conditions = [c for pod in pods for c in pod["status"].get("conditions") or ()]
        return any(c.get("reason") == "Unschedulable" for c in conditions)

    await eventually(is_refused, "a pod that fits nowhere")
    await nodes.add(NodeShape("agent-big", cpu="16"))
    await _until(client, namespace, "big", "Complete")


async def test_a_node_that_returns_with_another_size_says_so(
    control_plane: ControlPlane, client: KubeClient, nodes: SimulatedNodes
) -> None:
    """The Node object of before is there still. Pods must be placed by what the node has now."""
    for shape in (NodeShape("agent-1", cpu="16", gpus=2), NodeShape("agent-1", cpu="8")):
        async with SimulatedNodes(control_plane.config, [shape]):
            node = await client.get(NODES, None, "agent-1")
        for sizes in (node["status"]["capacity"], node["status"]["allocatable"]):
            assert sizes["cpu"] == shape.cpu
            assert sizes.get("nvidia.com/gpu") == (str(shape.gpus) if shape.gpus else None)
