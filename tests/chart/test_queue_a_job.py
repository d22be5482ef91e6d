"""`helm test` really run: the rendered pod's own command, against the whole running system."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fluxqueue.kube.resources import JOBS, NAMESPACES, SERVICE_ACCOUNTS
from tests.chart.rendering import container, environment
from tests.support.e2e.world import World, embedded_world
from tests.support.waiting import until

pytestmark = [
    pytest.mark.long("helm test against a world of its own, and a Job whose time runs out"),
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.xdist_group("helm test"),
]

NAME = "fluxqueue-test"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world() -> AsyncIterator[World]:
    """Database, cluster, webhook, controller and workers."""
    with tempfile.TemporaryDirectory(prefix="fluxqueue-chart-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        async with embedded_world(folder) as running:
            yield running


async def _namespace(world: World, **labels: str) -> str:
    body = {"metadata": {"generateName": "helm-test-", "labels": labels}}
    made = await world.client.create(NAMESPACES, None, body)
    name: str = made["metadata"]["name"]

    await until(
        lambda: world.client.list(SERVICE_ACCOUNTS, name),
        lambda found: bool(found.items),
        "the default service account",
    )
    return name


async def _helm_test(world: World, namespace: str, **more: Any) -> tuple[int, str]:
    """Run the container of the test pod as it is rendered. Give exit code and output."""
    one = container("Pod", NAME, {"test": {"namespace": namespace, "timeoutSeconds": 150}})
    given = environment(one)
    variables = {**given, "KUBECONFIG": str(world.kubeconfig), **more}
    assert one["command"] == ["python", "-c"]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        *one["args"],
        env={**os.environ, **variables},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def test_a_job_is_queued_runs_and_is_taken_away(world: World) -> None:
    namespace = await _namespace(world)
    code, output = await _helm_test(world, namespace)
    assert code == 0, output
    assert f"created Job {namespace}/fluxqueue-test-" in output
    assert "-job: " in output
    assert "2 pods succeeded" in output
    await _until_its_job_is_gone(world, namespace)


async def _until_its_job_is_gone(world: World, namespace: str) -> None:
    """It is deleted in the background, pods first."""

    await until(
        lambda: world.client.list(JOBS, namespace),
        lambda found: not found.items,
        "the test's Job is gone",
    )


async def test_a_namespace_that_is_not_managed_fails_it(world: World) -> None:
    """A system that takes nothing in must not pass for one that works."""
    namespace = await _namespace(world, **{"fluxqueue/managed": "false"})
    code, output = await _helm_test(world, namespace)
    assert code != 0
    assert f"is namespace {namespace} managed?" in output
    await _until_its_job_is_gone(world, namespace)


async def test_a_job_that_cannot_run_fails_it_in_time(world: World) -> None:
    """It says what it waited for."""
    namespace = await _namespace(world)
    job = json.loads(environment(container("Pod", NAME))["TEST_JOB"])
    (one,) = job["spec"]["template"]["spec"]["containers"]
    one["resources"] = {"requests": {"cpu": "4000"}}
    code, output = await _helm_test(world, namespace, TEST_JOB=json.dumps(job), TEST_TIMEOUT_S="20")
    assert code != 0
    assert "not done within 20 s" in output
    assert "Unsatisfiable" in output
