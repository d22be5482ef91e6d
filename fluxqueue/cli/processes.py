"""``fluxqueue controller`` and ``fluxqueue worker``: one process of each part.

Composition roots: they read the settings, open the doors to database and cluster, and run until
SIGTERM or SIGINT. A database that is not there yet is waited for, never crashed over.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from fluxqueue.clock import SystemClock
from fluxqueue.errors import InvalidSettings
from fluxqueue.settings import Settings

if TYPE_CHECKING:
    from fluxqueue.kube.client import KubeClient
    from fluxqueue.kube.config import ClusterConfig

IdentityOption = Annotated[
    str,
    typer.Option(help="name of this process; the same name takes its leadership back at once"),
]
LivenessOption = Annotated[
    str, typer.Option(help="address of the liveness endpoint, e.g. http://0.0.0.0:8081/healthz")
]


def controller(identity: IdentityOption = "", liveness: LivenessOption = "") -> None:
    """Run a controller: it observes the cluster while it holds the Lease."""
    settings = _settings("controller")
    asyncio.run(_run_controller(settings, identity or _own_name("controller"), liveness or None))


def worker(identity: IdentityOption = "") -> None:
    """Run a worker: it matches while it holds the role, and carries out effects always."""
    settings = _settings("worker")
    asyncio.run(_run_worker(settings, identity or _own_name("worker")))


def _settings(part: str) -> Settings:
    from fluxqueue import logs

    settings = Settings.from_env(os.environ)
    if not settings.database_url:
        raise InvalidSettings(
            f"the {part} needs a database",
            where="DATABASE_URL",
            hint="set it; `fluxqueue up` brings a database of its own",
        )
    logs.set_up(settings.log_level, as_json=settings.log_json)
    return settings


def _own_name(part: str) -> str:
    return f"{part}-{socket.gethostname()}-{os.getpid()}"


async def _run_controller(settings: Settings, identity: str, liveness: str | None) -> None:
    from fluxqueue.controller.main import Controller
    from fluxqueue.db.database import Database
    from fluxqueue.kube.config import load_config

    config = load_config(settings.kubeconfig or None)
    await _wait_for_schema(settings)
    stop = asyncio.Event()
    async with (
        Database(settings, role="controller") as database,
        _client(config, settings) as client,
    ):
        running = Controller(
            database,
            client,
            settings,
            SystemClock(),
            identity=identity,
            liveness_endpoint=liveness,
        )
        await running.run(stop)


async def _run_worker(settings: Settings, identity: str) -> None:
    from fluxqueue.db.database import Database
    from fluxqueue.kube.config import load_config
    from fluxqueue.worker.context import WorkerContext
    from fluxqueue.worker.main import Worker

    config = load_config(settings.kubeconfig or None)
    await _wait_for_schema(settings)
    async with (
        Database(settings, role="worker") as database,
        _client(config, settings) as client,
    ):
        context = WorkerContext(database, client, settings, SystemClock(), identity)
        running = asyncio.create_task(Worker(context).run())
        _on_signals(running.cancel)
        with suppress(asyncio.CancelledError):
            await running


def _client(config: ClusterConfig, settings: Settings) -> KubeClient:
    from fluxqueue.kube.client import KubeClient

    return KubeClient(
        config, concurrency=settings.kube_concurrency, timeout_s=settings.kube_timeout_s
    )


def _on_signals(stop: object) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)  # type: ignore[arg-type]


async def _wait_for_schema(settings: Settings) -> None:
    """Wait until the database answers and has been migrated; says what it waits for."""
    from fluxqueue.db import migrate

    await asyncio.to_thread(migrate.wait_for_database, settings.database_url)
    await asyncio.to_thread(migrate.wait_for_head, settings.database_url)
