"""Controller and worker as real processes: probes that tell the truth, metrics that are scraped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import pytest_asyncio

from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.installation import install_definitions
from fluxqueue.kube.resources import FLUXJOBS, JOBS, LEASES
from fluxqueue.workload.labels import GATE, MANAGED, OWN_NAMESPACE
from fluxqueue_devtools.localpg import LocalPostgres
from fluxqueue_devtools.localpg.held_port import HeldPort
from localcluster import (
    ControllerOptions,
    LocalCluster,
    LocalClusterConfig,
    NodeShape,
)
from tests.support.clusters import config_of
from tests.support.postgres import copied_server
from tests.support.waiting import eventually, until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.xdist_group("probes"),
]


class Probed:
    """One process of ours and its endpoint."""

    def __init__(self, part: str, process: asyncio.subprocess.Process, port: int) -> None:
        self.part, self.process, self.port = part, process, port

    async def get(self, path: str) -> tuple[int, str]:
        """Status and text. Status 0 while no server listens."""
        url = f"http://127.0.0.1:{self.port}{path}"
        timeout = aiohttp.ClientTimeout(total=60)
        try:
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(url) as answer,
            ):
                return answer.status, await answer.text()
        except aiohttp.ClientError:
            return 0, ""

    async def until(self, path: str, status: int, text: str = "") -> str:
        """Wait for an answer."""

        def is_so(answer: tuple[int, str]) -> bool:
            return answer[0] == status and text in answer[1]

        what = f"{path} of {self.part}: {status} {text}"
        return (await until(lambda: self.get(path), is_so, what))[1]

    async def value(self, series: str) -> float | None:
        """One series of ``/metrics``, given as it is written there."""
        status, text = await self.get("/metrics")
        assert status == 200
        found = re.search(rf"^{re.escape(series)} (\S+)$", text, re.MULTILINE)
        return float(found[1]) if found else None

    async def until_value(self, series: str, expected: float) -> None:
        """Wait for a number that is read from the rows now and then."""

        await until(
            lambda: self.value(series),
            lambda found: found == expected,
            f"{series} {expected} of {self.part}",
        )


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster() -> AsyncIterator[LocalCluster]:
    """An embedded cluster with one node and our definitions."""
    async with _cluster() as running:
        yield running


@asynccontextmanager
async def _cluster() -> AsyncIterator[LocalCluster]:
    config = LocalClusterConfig(nodes=[NodeShape("n1")], options=ControllerOptions.quick())
    async with LocalCluster(config) as running:
        async with KubeClient(config_of(running)) as client:
            await install_definitions(client, OWN_NAMESPACE)
        yield running


Starter = Callable[..., Awaitable[Probed]]


@pytest_asyncio.fixture(loop_scope="module")
async def start(tmp_path: Path, cluster: LocalCluster) -> AsyncIterator[Starter]:
    """Start parts. All are ended with the test."""
    async with contextlib.AsyncExitStack() as exits:

        async def run(part: str, url: str, at: LocalCluster = cluster, **environ: str) -> Probed:
            at.write_kubeconfig(tmp_path / "kubeconfig")
            return await exits.enter_async_context(_running(part, url, tmp_path, environ))

        yield run


@dataclass(frozen=True)
class Pair:
    """A controller and a worker that several tests look at, and their own database."""

    controller: Probed
    worker: Probed
    postgres: LocalPostgres


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pair(
    cluster: LocalCluster,
    _postgres_template: LocalPostgres,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Pair]:
    """Both are ready."""
    folder = tmp_path_factory.mktemp("pair")
    cluster.write_kubeconfig(folder / "kubeconfig")
    with copied_server(_postgres_template) as server, server:
        async with (
            _running("controller", server.url, folder, {}) as controller,
            _running("worker", server.url, folder, {}) as worker,
        ):
            for one in (controller, worker):
                await one.until("/readyz", 200, "ok")
            yield Pair(controller, worker, server)


@asynccontextmanager
async def _running(
    part: str, url: str, folder: Path, environ: dict[str, str]
) -> AsyncIterator[Probed]:
    held = HeldPort()
    port = int(environ.pop("port", 0)) or held.port
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "fluxqueue",
        part,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={
            **os.environ,
            "DATABASE_URL": url,
            "KUBECONFIG": str(folder / "kubeconfig"),
            "FLUXQUEUE_HTTP_PORT": str(port),
            **environ,
        },
    )
    assert process.stderr is not None
    reading = asyncio.create_task(process.stderr.read())
    try:
        yield Probed(part, process, port)
    finally:
        held.release()
        if process.returncode is None:
            process.terminate()
        try:
            await asyncio.wait_for(process.wait(), 60)
        except TimeoutError:
            process.kill()
        (folder / f"{part}-{port}.log").write_bytes(await reading)


def _job(name: str) -> dict[str, Any]:
    """As admission leaves it."""
    spec = {
        "containers": [{"name": "main", "image": "registry.example/app:1"}],
        "restartPolicy": "Never",
        "schedulingGates": [{"name": GATE}],
    }
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default", "labels": {MANAGED: "true"}},
        "spec": {"suspend": True, "template": {"metadata": {}, "spec": spec}},
    }


async def test_a_job_goes_through_and_the_metrics_say_so(pair: Pair, cluster: LocalCluster) -> None:
    controller, worker = pair.controller, pair.worker
    async with KubeClient(config_of(cluster)) as client:
        await client.create(JOBS, "default", _job("one"))

        async def is_over() -> bool:
            found = (await client.list(FLUXJOBS, "default")).items
            return any((one.get("status") or {}).get("state") == "Completed" for one in found)

        await eventually(is_over, "the FluxJob completes")
    assert await worker.value('fluxqueue_is_leader{role="matcher"}') == 1
    assert await worker.value('fluxqueue_decisions_total{outcome="allocated"}') == 1
    assert await worker.value("fluxqueue_submit_to_ungated_seconds_count") == 1
    assert (await worker.value("fluxqueue_cycle_duration_seconds_count") or 0) >= 1
    assert (await worker.value('fluxqueue_effects_total{kind="release",outcome="done"}') or 0) >= 1
    for verb in ("PATCH", "PUT"):  # the BatchJob is released, and its FluxJob shows it
        requests = f'fluxqueue_api_requests_total{{code="200",verb="{verb}"}}'
        assert (await worker.value(requests) or 0) >= 1
    assert await worker.value('fluxqueue_fluxjobs{queue="default",state="Pending"}') is None
    assert await controller.value('fluxqueue_is_leader{role="controller"}') == 1
    assert (await controller.value('fluxqueue_leadership_term{role="controller"}') or 0) >= 1
    for series in (
        'fluxqueue_fluxjobs{queue="default",state="Running"}',
        'fluxqueue_pending_actions{task="release"}',
        "fluxqueue_drift_rows",
    ):
        await controller.until_value(series, 0)
    assert (await controller.value('fluxqueue_api_requests_total{code="201",verb="POST"}') or 0) > 0


@pytest.mark.long("starts processes of its own, for seconds of processor time")
async def test_queue_lengths_and_ages_are_shown(start: Starter, database_url: str) -> None:
    """With no worker at all, what is submitted waits, and grows older."""
    async with _cluster() as cluster, KubeClient(config_of(cluster)) as client:
        controller = await start("controller", database_url, at=cluster)
        for number in range(3):
            await client.create(JOBS, "default", _job(f"wait-{number}"))

        async def is_shown() -> bool:
            if (await controller.get("/metrics"))[0] == 0:
                return False
            length = await controller.value('fluxqueue_fluxjobs{queue="default",state="Pending"}')
            age = await controller.value(
                'fluxqueue_oldest_waiting_seconds{queue="default",state="Pending"}'
            )
            return length == 3 and (age or 0) > 0

        await eventually(is_shown, "three wait")


@pytest.mark.long("starts processes of its own, for seconds of processor time")
async def test_a_standby_is_ready_and_shows_nothing_of_the_queue(
    start: Starter, cluster: LocalCluster, pair: Pair
) -> None:
    leader = pair.controller
    await leader.until("/metrics", 200, 'fluxqueue_is_leader{role="controller"} 1.0')
    standby = await start("controller", pair.postgres.url)
    await standby.until("/readyz", 200, "ok")
    assert await standby.value('fluxqueue_is_leader{role="controller"}') in {None, 0}
    assert await standby.value('fluxqueue_fluxjobs{queue="default",state="Pending"}') is None
    async with KubeClient(config_of(cluster)) as client:
        lease = await client.get(LEASES, OWN_NAMESPACE, "fluxqueue-controller")
    assert str(leader.process.pid) in lease["spec"]["holderIdentity"]


@pytest.mark.long("starts processes of its own, for seconds of processor time")
async def test_waiting_for_the_migration_is_healthy_and_not_ready(
    start: Starter, empty_database_url: str
) -> None:
    worker = await start("worker", empty_database_url)
    await worker.until("/readyz", 503, "waits for the database")
    assert await worker.get("/healthz") == (200, "ok\n")


async def test_a_database_that_is_away_makes_them_unready_and_not_unhealthy(pair: Pair) -> None:
    both = (pair.controller, pair.worker)
    await asyncio.to_thread(pair.postgres.stop)
    await asyncio.gather(*(one.until("/readyz", 503, "database: ") for one in both))
    assert [(await one.get("/healthz"))[0] for one in both] == [200, 200]
    await asyncio.to_thread(pair.postgres.start)
    await asyncio.gather(*(one.until("/readyz", 200, "ok") for one in both))
    for one in both:
        assert (await one.value('fluxqueue_database_errors_total{kind="unavailable"}') or 0) > 0


@pytest.mark.long("starts processes of its own, for seconds of processor time")
async def test_an_api_server_that_is_away_makes_it_unready(
    start: Starter, database_url: str
) -> None:
    async with _cluster() as cluster:
        worker = await start("worker", database_url, at=cluster)
        await worker.until("/readyz", 200, "ok")
    await worker.until("/readyz", 503, "API server: ")
    assert (await worker.get("/healthz"))[0] == 200


@pytest.mark.long("starts processes of its own, for seconds of processor time")
async def test_a_port_that_is_taken_is_refused_with_the_way_out(
    start: Starter, database_url: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        worker = await start("worker", database_url, port=str(other.getsockname()[1]))
        assert await asyncio.wait_for(worker.process.wait(), 150) == 2
