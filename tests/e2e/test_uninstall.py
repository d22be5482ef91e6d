"""``fluxqueue uninstall`` beside the living queue: nothing waits for it any more, or is hurt."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
import pytest_asyncio

from fluxqueue.errors import NotFound
from fluxqueue.kube.installation import VIEW_NAME, VIEW_NAMESPACE, put, tell_view
from fluxqueue.kube.resources import CONFIGMAPS, FLUXJOBS, JOBS, MUTATING_WEBHOOKS, PODS
from fluxqueue.kube.webhook_configuration import NAME
from fluxqueue.workload.labels import AUTHOR_SUSPENDED
from fluxqueue.workload.pods import gate_index
from tests.support.e2e.objects import FOR_EVER, bare_pod, job
from tests.support.e2e.space import WAITING, Space
from tests.support.e2e.world import World
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

MANY = 30


@pytest_asyncio.fixture(loop_scope="session", autouse=True)
async def _installed_again(world: World) -> AsyncIterator[None]:
    """Put back the webhook configuration, and the word of a view server that runs, for the tests
    that come after."""
    client, view = world.client, None
    found = await client.get(MUTATING_WEBHOOKS, None, NAME)
    with suppress(NotFound):
        view = await client.get(CONFIGMAPS, VIEW_NAMESPACE, VIEW_NAME)
    yield
    meta = {key: found["metadata"][key] for key in ("name", "labels")}
    await put(client, MUTATING_WEBHOOKS, {**found, "metadata": meta})
    if view is not None:
        await tell_view(client, view["data"]["url"], view["data"]["ca.crt"])
    await eventually(lambda: _gates_again(world), "the webhook is asked again")


async def _gates_again(world: World) -> bool:
    """The API server asks it a moment after the configuration is there."""
    probe = await world.client.create(JOBS, "default", job("probe"), dry_run=True)
    return bool(probe["spec"].get("suspend"))


async def _start(world: World, *arguments: str) -> asyncio.subprocess.Process:
    # The chart's policies, where the suite runs under its rights. The embedded cluster has none.
    policies = ("--remove-policies",) if world.kind == "real" else ()
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "fluxqueue",
        "uninstall",
        *policies,
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "KUBECONFIG": str(world.kubeconfig)},
    )


async def _uninstall(world: World, *arguments: str) -> str:
    process = await _start(world, *arguments)
    told, errors = await process.communicate()
    assert process.returncode == 0, told.decode() + errors.decode()
    return told.decode()


async def _job(space: Space, name: str) -> dict[str, Any]:
    return await space.client.get(JOBS, space.name, name)


def _is_gated(obj: dict[str, Any]) -> bool:
    spec = obj["spec"]
    return gate_index(spec.get("template", {}).get("spec") or spec) is not None


async def _fill(space: Space) -> dict[str, Any]:
    """One Job runs for ever on the only node of its pool. The rest waits behind it."""
    # One that may be given more pods is released pod by pod: its template keeps the gate.
    await space.create(
        job("runs", cpu="16", pool="single", run=FOR_EVER, backoffLimit=3, completions=2)
    )
    await space.until_state("runs", "Running")
    await space.create(job("waits", pods=2, cpu="8", pool="single"))
    await space.create(job("theirs", cpu="16", pool="single", suspend=True))
    await space.create(bare_pod("alone", cpu="16", nodeSelector={"pool": "single"}))
    for name in ("waits", "alone"):
        await space.until_state(name, *WAITING)
    await space.until_state("theirs", "Held")
    (pod,) = await space.pods("runs")
    return pod


@pytest.mark.long("seconds on a whole cluster. The usual case of its module stays")
async def test_what_waits_is_let_go_and_what_runs_is_left_alone(space: Space) -> None:
    """With controller and workers alive, which must not suspend again what was released."""
    world, client = space.world, space.client
    running = await _fill(space)
    told = await _uninstall(world)
    assert f"webhook configuration {NAME}: removed" in told
    assert f"{space.name}/runs" in told, "its later pods would have the gate"
    with pytest.raises(NotFound):
        await client.get(MUTATING_WEBHOOKS, None, NAME)
    waits, theirs = await _job(space, "waits"), await _job(space, "theirs")
    assert not waits["spec"].get("suspend")
    assert theirs["spec"]["suspend"], "its author suspended it"
    assert AUTHOR_SUSPENDED not in (theirs["metadata"].get("annotations") or {})
    alone = await client.get(PODS, space.name, "alone")
    assert not any(_is_gated(one) for one in (waits, theirs, alone))
    (still,) = await space.pods("runs")
    assert still["metadata"]["uid"] == running["metadata"]["uid"]
    await _until_the_queue_has_taken_note(space, waits["metadata"]["uid"])
    assert not (await _job(space, "waits"))["spec"].get("suspend"), "suspended again"
    fresh = await space.create(job("fresh", cpu="1"))
    assert not _is_gated(fresh)
    assert not fresh["spec"].get("suspend")
    await space.until_job("fresh")
    await space.delete("runs")
    await space.until_job("waits")
    finalizers = [
        one["metadata"].get("finalizers") for one in (await client.list(FLUXJOBS, space.name)).items
    ]
    assert not any(finalizers)


async def _until_the_queue_has_taken_note(space: Space, uid: str) -> None:
    """The controller has seen the change, and the workers have done what they do about it."""

    async def is_noted() -> bool:
        rows = await space.world.rows(
            "SELECT 1 FROM fluxjobs WHERE uid = :uid AND NOT observed ? 'is_suspended'"
            " AND NOT EXISTS (SELECT FROM pending_actions WHERE uid = :uid"
            " AND task IN ('release', 'reconcile'))",
            uid=uid,
        )
        return bool(rows)

    await eventually(is_noted, "the queue knows that it is unsuspended")


@pytest.mark.long("seconds on a whole cluster. The usual case of its module stays")
async def test_a_repeat_finds_nothing_and_says_so(space: Space) -> None:
    await _uninstall(space.world)
    told = await _uninstall(space.world)
    assert f"webhook configuration {NAME}: was not there" in told
    assert "Jobs released: 0" in told
    assert "pods ungated: 0" in told
    assert "remains: FluxJobs, FluxQueues" in told
    assert "kubectl delete crd fluxjobs.jobs.converged-computing.org fluxnodepools.jobs." in told
    assert " resourcesharingpolicies.jobs.converged-computing.org)" in told


@pytest.mark.long("what is let go and what a repeat finds are in `make test`")
async def test_left_suspended_on_request(space: Space) -> None:
    await _fill(space)
    await _uninstall(space.world, "--leave-suspended")
    waits = await _job(space, "waits")
    assert waits["spec"]["suspend"]
    assert not _is_gated(waits)


@pytest.mark.long("what is let go and what a repeat finds are in `make test`")
async def test_what_is_held_stays_suspended(space: Space) -> None:
    """No "do not run this" is overruled, also not that of a Job that has run before."""
    await space.create(job("stopped", cpu="1", run=FOR_EVER))
    await space.until_state("stopped", "Running")
    await space.client.patch(JOBS, space.name, "stopped", {"spec": {"suspend": True}})
    await space.create(job("noted", cpu="1", wishes={"hold": "true"}))
    for name in ("stopped", "noted"):
        await space.until_state(name, "Held")
    told = await _uninstall(space.world)
    assert "stays suspended: 2 held Jobs" in told
    for name in ("stopped", "noted"):
        assert f"{space.name}/{name}" in told
        found = await _job(space, name)
        assert found["spec"]["suspend"]
        assert not _is_gated(found)


@pytest.mark.long("kills the hook at each of its steps and starts it again")
async def test_killed_half_way_and_repeated(space: Space) -> None:
    await _fill(space)
    names = [f"w{n}" for n in range(MANY)]
    for name in names:
        await space.create(job(name, cpu="16", pool="single"))
    process = await _start(space.world)

    async def has_begun() -> bool:
        jobs = (await space.client.list(JOBS, space.name)).items
        return process.returncode is not None or not all(_is_gated(one) for one in jobs)

    await eventually(has_begun, "the first is let go")
    if process.returncode is None:
        process.send_signal(signal.SIGKILL)
    await process.wait()
    await _uninstall(space.world)
    jobs = (await space.client.list(JOBS, space.name)).items
    assert {one["metadata"]["name"] for one in jobs if _is_gated(one)} == {"runs"}
    assert not any(_is_gated(pod) for pod in (await space.client.list(PODS, space.name)).items)


@pytest.mark.long("what is let go and what a repeat finds are in `make test`")
async def test_staying_lets_go_the_later_pods_of_what_runs(space: Space) -> None:
    """A Job that makes one pod after the other ends although its template keeps the gate."""
    await space.create(
        job("series", cpu="16", pool="single", completions=4, parallelism=1, run={"duration": "1s"})
    )
    await space.until_state("series", "Running")
    told = await _uninstall(space.world, "--wait", "60")
    assert "running Jobs" not in told, "none was left at the end"
    await space.until_job("series")
