"""The Python client: handles, functions in pods, arrays and the executor, on the whole system."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fluxqueue.client import (
    ApiError,
    AsyncClient,
    InvalidInput,
    QueuedTimeout,
    RunningTimeout,
    WorkFailed,
)
from fluxqueue.kube.config import load_kubeconfig
from fluxqueue.kube.resources import FLUXJOBS, FLUXQUEUES, JOBS, PODS, ROLE_BINDINGS
from tests.support.chart_rights import CLUSTER_ROLES
from tests.support.e2e.health import assert_no_allocation
from tests.support.e2e.objects import FOR_EVER, job
from tests.support.e2e.space import Space
from tests.support.host_programs import HOST, host_programs, keep_running
from tests.support.waiting import WAIT_S, eventually

pytest.importorskip("cloudpickle")


@pytest_asyncio.fixture(loop_scope="session")
async def client(space: Space, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[AsyncClient]:
    """A client in the test's namespace, where programs of the image ``HOST`` run for real."""
    keep_running(monkeypatch)
    async with (
        host_programs(space.client, space.name),
        AsyncClient(kubeconfig=space.world.kubeconfig, namespace=space.name) as made,
    ):
        yield made


async def test_a_function_runs_in_a_pod_and_its_value_comes_back(client: AsyncClient) -> None:
    """With its arguments, and without a file or an image of its own."""
    offset = 40
    handle = await client.submit(
        lambda a, *, b: {"sum": a + b + offset}, args=[1], kwargs={"b": 1}, image=HOST
    )
    assert await handle.result() == {"sum": 42}
    assert (handle.state, handle.done(), handle.kind) == ("Completed", True, "Job")
    assert handle.raise_for_state() is handle
    assert handle.jobid is not None
    assert handle.started is not None
    assert handle.ended is not None


async def test_the_error_of_a_function_is_raised_here(client: AsyncClient) -> None:
    """With its class and its arguments. The place where it was raised is its cause."""

    def broken() -> None:
        raise LookupError("no such table", 7)

    handle = await client.submit(broken, image=HOST)
    with pytest.raises(LookupError) as caught:
        await handle.result()
    assert caught.value.args == ("no such table", 7)
    assert "in broken" in str(caught.value.__cause__)
    assert handle.state == "Failed"
    with pytest.raises(WorkFailed, match=f"{handle.name} Failed"):
        handle.raise_for_state()


async def test_a_large_value_comes_through_the_log(client: AsyncClient, space: Space) -> None:
    """A termination message has 4 KB."""
    import random

    if space.world.kind == "real":
        pytest.skip("a control plane without kubelets has no logs")
    handle = await client.submit(lambda: random.Random(1).randbytes(50_000), image=HOST)
    assert await handle.result() == random.Random(1).randbytes(50_000)


async def test_a_map_has_its_values_in_order(client: AsyncClient) -> None:
    """Each task starts by itself. The value of one is there before the others end."""
    array = await client.map(lambda x, y: x * y, range(6), range(10, 16), image=HOST)
    assert len(array) == 6
    assert [one async for one in array] == [0, 11, 24, 39, 56, 75]


async def test_a_handle_follows_its_job(client: AsyncClient, space: Space) -> None:
    """Held, released, started, requeued, cancelled: the handle shows it without being asked."""
    body = job("life", pods=2, cpu="1", run=FOR_EVER, wishes={"hold": "true"})
    handle = await client.submit(body)
    seen: list[str] = []

    async def record() -> None:
        async with aclosing(handle.changes()) as changes:
            async for state, _ in changes:
                seen.append(state)

    recording = asyncio.create_task(record())
    assert await handle.reach(frozenset({"Held"}))
    with pytest.raises(QueuedTimeout, match=r"not started within 0\.2 s"):
        await handle.wait(queued_timeout=0.2)
    unheld = {"metadata": {"annotations": {"fluxqueue/hold": None}}}
    await space.client.patch(JOBS, space.name, "life", unheld)
    assert await handle.reach(frozenset({"Running"}))
    with pytest.raises(RunningTimeout):
        await handle.wait(queued_timeout=1000, running_timeout=0.2)
    first = await handle.pods()
    assert [one["index"] for one in first] == [None, None]
    assert {one["node"] for one in first} == set(handle.nodes)
    await handle.requeue()
    former = {one["name"] for one in first}

    async def is_again_running() -> bool:
        pods = await handle.pods()
        names = {one["name"] for one in pods if one["phase"] == "Running"}
        return len(names) == 2 and not names & former

    await eventually(is_again_running, "two other pods run")
    assert await handle.reach(frozenset({"Running"}))
    explained = await handle.explain()
    assert explained.verdict == "Now"
    await handle.cancel()
    # Its resources are free when cancel returns.
    assert not [
        pod for pod in (await space.client.list(PODS, space.name)).items
        if pod["status"].get("phase") == "Running"
    ]  # fmt: skip
    await recording
    assert seen[0] in {"Pending", "Held"}
    assert "Running" in seen
    assert seen[-1] in {"Gone", "Cancelled"}


async def test_a_handle_shows_its_place_and_changes_it(client: AsyncClient, space: Space) -> None:
    """Its position, its expected start, another priority, a hold, and another queue."""
    night = f"{space.name}-night"
    kind = {"apiVersion": FLUXQUEUES.api_version, "kind": FLUXQUEUES.kind}
    await space.client.create(FLUXQUEUES, None, {**kind, "metadata": {"name": night}})

    def whole(name: str) -> dict[str, Any]:
        return job(name, cpu="16", pool="single", run=FOR_EVER, wishes={"duration": "1h"})

    runs = await client.submit(whole("runs"))
    assert await runs.reach(frozenset({"Running"}))
    first, second = await client.submit(whole("first")), await client.submit(whole("second"))

    async def are(*places: int) -> None:
        await eventually(
            lambda: (first.position, second.position) == places, f"first and second are {places}"
        )

    await are(1, 2)

    await eventually(
        lambda: first.expected_start is not None and first.expected_start.tzinfo is not None,
        "the start of the first is expected",
    )
    await second.priority(10)
    await are(2, 1)
    await second.hold()
    assert await second.reach(frozenset({"Held"}))
    await second.release()
    await second.priority(None)
    await are(1, 2)
    await first.move(night)

    await eventually(lambda: first.queue == night, "the first is in the other queue")
    for handle in (first, second, runs):
        await handle.cancel()
    await space.client.delete(FLUXQUEUES, None, night)


async def test_an_array_that_is_cancelled_frees_its_nodes(
    client: AsyncClient, space: Space
) -> None:
    """Also the tasks that have not started: none starts afterwards."""
    import time

    array = await client.map(time.sleep, [1000] * 40, image=HOST, cpus=8)
    assert await array.handle.reach(frozenset({"Running"}))
    await array.handle.cancel()
    pods = (await space.client.list(PODS, space.name)).items
    assert {pod["status"].get("phase") for pod in pods} <= {"Succeeded", "Failed"}
    await assert_no_allocation(space)


async def test_one_failed_call_of_a_map_is_raised_in_its_turn(client: AsyncClient) -> None:
    """Those before it have their values."""
    array = await client.map(lambda x: 12 // x, [3, 4, 0, 6], image=HOST)
    values = aiter(array)
    assert [await anext(values), await anext(values)] == [4, 3]
    with pytest.raises(ZeroDivisionError):
        await anext(values)


async def test_a_jobspec_is_submitted_with_one_pod_for_each_slot(client: AsyncClient) -> None:
    """Its shape and its time limit are those of the document."""
    jobspec = {
        "version": 1,
        "resources": [
            {"type": "node", "count": 2, "with": [
                {"type": "slot", "count": 1, "label": "t", "with": [
                    {"type": "core", "count": 2}, {"type": "memory", "count": 1, "unit": "GiB"}]}]}
        ],
        "tasks": [{"command": ["true"], "slot": "t", "count": {"per_slot": 1}}],
        "attributes": {"system": {"duration": 600}},
    }  # fmt: skip
    handle = await client.submit(jobspec, image="a", name="shaped", hold=True)
    assert await handle.reach(frozenset({"Held"}))
    await handle.release()
    await handle.wait()
    assert handle.state == "Completed"
    assert len(set(handle.nodes)) == 2
    pods = (await client.connection.list(PODS, client.namespace)).items
    requests = [one["spec"]["containers"][0]["resources"]["requests"] for one in pods]
    assert requests == [{"cpu": "2", "memory": "1073741824"}] * 2


async def test_logs_go_on_after_a_requeue(client: AsyncClient, space: Space) -> None:
    """The lines of the second start follow those of the first, until the job has ended."""
    if space.world.kind == "real":
        pytest.skip("a control plane without kubelets has no logs")
    body = job("talks", pods=2, cpu="1", run={**FOR_EVER, "logs": "begins"})
    handle = await client.submit(body)
    lines = handle.logs(follow=True)
    async with aclosing(lines):
        async with asyncio.timeout(WAIT_S):
            first = [await anext(lines) for _ in range(2)]
            await handle.requeue()
            second = [await anext(lines) for _ in range(2)]
            assert {str(line) for line in (*first, *second)} == {"begins"}
            assert len({line.pod for line in (*first, *second)}) == 4
            await space.finish("talks")
            assert [line async for line in lines] == []
    assert handle.state == "Completed"
    assert sorted(str(line) for line in [one async for one in handle.logs()]) == ["begins"] * 2


async def test_what_cannot_be_submitted_is_refused(client: AsyncClient) -> None:
    """With the field and the way out, before anything is created."""
    with pytest.raises(InvalidInput, match="no image given"):
        await client.submit(["true"])
    wrong: Any = {"cpu": 1}
    with pytest.raises(TypeError, match="'cpu' is not an option"):
        await client.submit(["true"], **wrong)
    with pytest.raises(InvalidInput, match="is not a kind that can be queued"):
        await client.submit({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}})
    with pytest.raises(InvalidInput, match="no such workload"):
        await client.job("nothing")


RULES = (
    ("batch", "jobs", ["create", "get"]),
    ("", "pods", ["list", "watch"]),
    (FLUXJOBS.group, "fluxjobs", ["get", "list", "watch"]),
)
"""What a function of one's own needs."""


async def test_another_user_has_that_users_rights(
    space: Space, client: AsyncClient, tmp_path: Path
) -> None:
    """And hears the words of the command line without them."""
    async with AsyncClient(
        kubeconfig=space.world.kubeconfig, namespace=space.name, impersonate="carol"
    ) as carol:
        with pytest.raises(ApiError, match=r'"carol" cannot list .* \(ask for one of the roles'):
            await carol.submit(lambda: 1, image=HOST)
        role = f"{space.name}-runs"
        rules = [{"apiGroups": [g], "resources": [r], "verbs": verbs} for g, r, verbs in RULES]
        await space.client.create(CLUSTER_ROLES, None, {"metadata": {"name": role}, "rules": rules})
        binding = {
            "metadata": {"name": role},
            "subjects": [{"kind": "User", "name": "carol", "apiGroup": CLUSTER_ROLES.group}],
            "roleRef": {"apiGroup": CLUSTER_ROLES.group, "kind": "ClusterRole", "name": role},
        }
        await space.client.create(ROLE_BINDINGS, space.name, binding)

        async def is_allowed() -> bool:
            try:
                await carol.jobs()
            except ApiError:
                return False
            return True

        await eventually(is_allowed, "the binding counts")
        handle = await carol.submit(lambda: 1, image=HOST)
        assert await handle.result() == 1
        assert handle.to_dict()["user"] == "carol"
        with pytest.raises(ApiError, match=r"cannot patch"):
            await handle.hold()
        # A script over several nodes needs a Secret. Without the right there is no Job, either.
        (tmp_path / "two.sh").write_text("#!/bin/sh\n#SBATCH -J two -N 2\nsrun hostname\n")
        with pytest.raises(ApiError, match=r'"carol" cannot create .*secrets'):
            await carol.submit(tmp_path / "two.sh", image=HOST)
        left = (await space.client.list(JOBS, space.name)).items
        assert [one["metadata"]["name"] for one in left] == [handle.name]
    await space.client.delete(CLUSTER_ROLES, None, role)


async def test_it_works_in_a_pod(
    space: Space, client: AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the service account that is mounted there, and its namespace."""
    config = load_kubeconfig(str(space.world.kubeconfig))
    bearer = config.authorization_header()
    if bearer is None:
        pytest.skip("this user has a certificate and no token")
    authority = config.ca_pem or (config.ca_file.read_text() if config.ca_file else "")
    for name, text in (
        ("token", bearer.removeprefix("Bearer ")), ("ca.crt", authority), ("namespace", space.name)
    ):  # fmt: skip
        (tmp_path / name).write_text(text)
    host, _, port = config.server.removeprefix("https://").rpartition(":")
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", host)
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", port)
    monkeypatch.setattr("fluxqueue.kube.config.IN_CLUSTER_FOLDER", tmp_path)
    async with AsyncClient() as inside:
        assert inside.namespace == space.name
        handle = await inside.submit(lambda: "here", image=HOST)
        assert await handle.result() == "here"
