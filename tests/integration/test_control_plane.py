"""The control plane that other tests are measured against: does it do what they expect?"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fluxqueue.errors import ApiError, NotFound
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import CONFIGMAPS, JOBS, NAMESPACES, NODES, PODS, SERVICE_ACCOUNTS
from tests.support.control_plane import ASSETS_ENV, PROGRAMS, ControlPlane, missing_reason
from tests.support.waiting import WAIT_S, eventually

REPOSITORY = Path(__file__).resolve().parents[2]


def test_unset_folder_is_a_reason_to_skip() -> None:
    """The reason names the variable and what it is for."""
    reason = missing_reason({})
    assert reason is not None
    assert ASSETS_ENV in reason
    assert "kube-apiserver" in reason


def test_folder_without_all_programs_is_a_reason_to_skip(tmp_path: Path) -> None:
    """The reason names what is missing, and only that."""
    for name in PROGRAMS[1:]:
        (tmp_path / name).touch(mode=0o755)
    reason = missing_reason({ASSETS_ENV: str(tmp_path)})
    assert reason == f"{ASSETS_ENV}={tmp_path} lacks etcd"


@pytest_asyncio.fixture
async def namespace(client: KubeClient) -> AsyncIterator[str]:
    """A namespace of the test's own, usable at once."""
    made = await client.create(NAMESPACES, None, {"metadata": {"generateName": "test-"}})
    name: str = made["metadata"]["name"]
    await eventually(lambda: _exists(client, SERVICE_ACCOUNTS, name, "default"), "its account")
    yield name
    await client.delete(NAMESPACES, None, name)


@pytest_asyncio.fixture
async def node(client: KubeClient) -> AsyncIterator[str]:
    """A node that calls itself ready. No kubelet runs its pods."""
    name = "test-node"
    await client.create(NODES, None, {"metadata": {"name": name}})
    room = {"cpu": "8", "memory": "16Gi", "pods": "20"}
    ready = {"type": "Ready", "status": "True", "reason": "Test", "message": ""}
    status = {"capacity": room, "allocatable": room, "conditions": [ready]}
    await client.patch(NODES, None, name, {"status": status}, subresource="status")
    yield name
    await client.delete(NODES, None, name)


async def _exists(client: KubeClient, resource: Any, namespace: str, name: str) -> bool:
    try:
        await client.get(resource, namespace, name)
    except NotFound:
        return False
    return True


def _batch_job(parallelism: int) -> dict[str, Any]:
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}
    pod_spec = {"containers": [container], "restartPolicy": "Never"}
    spec = {"parallelism": parallelism, "completions": parallelism, "template": {"spec": pod_spec}}
    return {"metadata": {"name": "pair"}, "spec": spec}


@pytest.mark.real_cluster
async def test_pods_of_a_job_are_created_and_bound(
    client: KubeClient, namespace: str, node: str
) -> None:
    """The real Job controller and scheduler are at work, and admission is the default's."""
    await client.create(JOBS, namespace, _batch_job(2))

    pods: list[dict[str, Any]] = []

    async def both_are_bound() -> bool:
        pods[:] = (await client.list(PODS, namespace)).items
        return [pod["spec"].get("nodeName") for pod in pods] == [node, node]

    await eventually(both_are_bound, "two bound pods")
    for pod in pods:
        assert "batch.kubernetes.io/job-tracking" in pod["metadata"]["finalizers"]
        assert pod["spec"]["serviceAccountName"] == "default"
        assert next(v["name"] for v in pod["spec"]["volumes"]).startswith("kube-api-access-")


@pytest.mark.real_cluster
async def test_rbac_is_on(control_plane: ControlPlane, client: KubeClient, namespace: str) -> None:
    """A service account without a role is known and may nothing. Another name is not known."""
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": []},
    }
    answer = await client.create(
        SERVICE_ACCOUNTS, namespace, request, name="default", subresource="token"
    )
    token = answer["status"]["token"]
    for bearer, code in ((token, 403), ("no-such-token", 401), (None, 401)):
        async with KubeClient(control_plane.config_with(bearer)) as other:
            with pytest.raises(ApiError) as refusal:
                await other.list(PODS, namespace)
            assert refusal.value.code == code


@pytest.mark.real_cluster
async def test_killed_api_server_comes_back_with_its_data(
    control_plane: ControlPlane, client: KubeClient, namespace: str
) -> None:
    """``restart`` keeps the address, the credentials and what was stored."""
    made = await client.create(CONFIGMAPS, namespace, {"metadata": {"name": "kept"}})
    before = control_plane.pid("kube-apiserver")
    await asyncio.to_thread(control_plane.restart, "kube-apiserver", signal.SIGKILL)
    assert control_plane.pid("kube-apiserver") != before
    found = await client.get(CONFIGMAPS, namespace, "kept")
    assert found["metadata"]["uid"] == made["metadata"]["uid"]


@pytest.fixture
def by_hand(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """``python -m tests.support.control_plane``, ready."""
    if reason := missing_reason():
        pytest.skip(reason)
    out = tmp_path / "kubeconfig"
    command = [sys.executable, "-m", "tests.support.control_plane", "--kubeconfig-out", str(out)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ready https://127.0.0.1:")
            assert out.stat().st_mode & 0o077 == 0
            yield process
        finally:
            process.kill()


def _children(pid: int) -> dict[str, int]:
    """Name and process id of the direct children, from /proc."""
    found = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = stat.read_text()
        except OSError:
            continue  # it ended while we looked
        name, rest = text.partition("(")[2].rsplit(")", 1)
        if int(rest.split()[1]) == pid:
            found[name] = int(stat.parent.name)
    return found


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.real_cluster
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["TERM", "KILL"])
async def test_nothing_outlives_the_process_that_started_it(
    by_hand: subprocess.Popen[str], number: signal.Signals
) -> None:
    """All four programs end with their parent, also when it is killed."""
    pids = _children(by_hand.pid)
    assert len(pids) == len(PROGRAMS), pids
    os.kill(by_hand.pid, number)

    await eventually(
        lambda: not any(_is_running(pid) for pid in pids.values()), f"the end of {pids}"
    )
    status = by_hand.wait(WAIT_S)
    assert status == (0 if number is signal.SIGTERM else -signal.SIGKILL)
