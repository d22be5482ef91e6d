"""Prefect: a server, a worker for Kubernetes with the job template of our docs, and a flow run.

The pods run the flow for real. They reach the server, because they are processes of this machine.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from uuid import UUID

from common import LIMIT_S, NAMESPACE, POOL, QUEUE, SECONDS, main, remember, remembered

TEMPLATE = Path(__file__).parents[3] / "docs" / "examples" / "prefect" / "base-job-template.json"
PREFECT = str(Path(sys.executable).with_name("prefect"))
WORK_POOL = "fluxqueue"
PR_SET_PDEATHSIG = 1
LOGS_S = 30
"""Longest wait for the last line of a log."""


def _set_up() -> int:
    """Choose a free port, and set what Prefect reads when it is imported."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    os.environ |= {
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_WORKER_QUERY_SECONDS": "1",
        "PREFECT_WORKER_ENABLE_CANCELLATION": "true",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        # One namespace: the observer watches all of them otherwise.
        "PREFECT_INTEGRATIONS_KUBERNETES_OBSERVER_NAMESPACES": NAMESPACE,
    }
    return port


def _start(exits: ExitStack, *words: str) -> None:
    """Start a part of Prefect, which ends with this program, however that ends."""
    process = subprocess.Popen([PREFECT, *words], start_new_session=True, preexec_fn=_end_with_us)  # noqa: PLW1509
    exits.callback(process.wait)
    exits.callback(process.terminate)


def _end_with_us() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _until_ready() -> None:
    url = f"{os.environ['PREFECT_API_URL']}/health"
    end = time.monotonic() + LIMIT_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.5)


async def _flow_run(name: str) -> bool:
    from prefect import flow, get_client
    from prefect.deployments import run_deployment

    source = await flow.from_source(
        source=str(Path(__file__).parent), entrypoint="prefect_flow.py:work"
    )
    variables = {
        "namespace": NAMESPACE,
        "image": "host",
        "queue": QUEUE,
        "cpu_request": "4",
        "time_limit": "10m",
        "node_selector": {"pool": POOL},
    }
    await source.deploy(
        name="engine", work_pool_name=WORK_POOL, job_variables=variables, print_next_steps=False
    )
    parameters = {"seconds": float(SECONDS)}
    made = await run_deployment("work/engine", flow_run_name=name, parameters=parameters, timeout=0)
    remember(f"{os.environ['PREFECT_API_URL']} {made.id}")
    async with get_client() as client:
        return await asyncio.wait_for(_end(client, made.id), LIMIT_S)


async def _end(client: object, flow_run: object) -> bool:
    """Wait for the last state of a flow run, and print it with its logs."""
    from prefect.client.schemas.filters import LogFilter, LogFilterFlowRunId

    while True:
        found = await client.read_flow_run(flow_run)  # type: ignore[attr-defined]
        if found.state is not None and found.state.is_final():
            break
        await asyncio.sleep(0.5)
    print(f"state: {found.state}", flush=True)
    which = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[flow_run]))
    end = time.monotonic() + LOGS_S
    while True:
        logs = await client.read_logs(which)  # type: ignore[attr-defined]
        # A pod sends its last lines after its last state.
        is_whole = any(one.message.startswith("Finished in state") for one in logs)
        if is_whole or time.monotonic() > end:
            break
        await asyncio.sleep(0.5)
    print("\n".join(f"logs: {one.message}" for one in logs), flush=True)
    return bool(found.state.is_completed())


def run(name: str) -> bool:
    """Start what Prefect needs, deploy the flow, and wait for its end."""
    port = _set_up()
    with ExitStack() as exits:
        _start(exits, "server", "start", "--port", str(port))
        _until_ready()
        subprocess.run(
            [PREFECT, "work-pool", "create", WORK_POOL, "--type", "kubernetes",
             "--base-job-template", str(TEMPLATE)],
            check=True,
        )  # fmt: skip
        _start(exits, "worker", "start", "--pool", WORK_POOL, "--name", "engine")
        return asyncio.run(_flow_run(name))


def cancel(_: str) -> None:
    """Cancel the flow run once its Job is there, as a user does at a terminal."""
    os.environ["PREFECT_API_URL"], flow_run = remembered().split()
    asyncio.run(_until_submitted(flow_run))
    subprocess.run([PREFECT, "flow-run", "cancel", flow_run], check=True)


async def _until_submitted(flow_run: str) -> None:
    from prefect import get_client

    async with get_client() as client, asyncio.timeout(LIMIT_S):
        while not (await client.read_flow_run(UUID(flow_run))).infrastructure_pid:
            await asyncio.sleep(0.5)


main(run, cancel)
