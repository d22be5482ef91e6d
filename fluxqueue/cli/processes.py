"""``fluxqueue controller``, ``worker`` and ``view``: one process of each part.

These are composition roots: they read the settings, connect to database and cluster, and run until
SIGTERM or SIGINT. If the database is not there yet, they wait and do not crash.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import socket
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fluxqueue.clock import SystemClock
from fluxqueue.errors import InvalidSettings
from fluxqueue.process.settings import Settings

if TYPE_CHECKING:
    from fluxqueue.db.reader import DatabaseReader
    from fluxqueue.kube.client import KubeClient
    from fluxqueue.kube.config import ClusterConfig
    from fluxqueue.process.endpoint import Endpoint
    from fluxqueue.view.http_server import ViewConfig

API_CHECK_S = 1.5
VIEW_PATIENCE_S = 10.0
"""Longest statement of the view server in seconds: a client waits for it."""
CERTIFICATE_LOOK_S = 3600.0

IdentityOption = Annotated[
    str,
    typer.Option(
        help="name of this process. With the same name it takes its leadership back at once"
    ),
]


def controller(identity: IdentityOption = "") -> None:
    """Run a controller. It observes the cluster while it holds the Lease."""
    settings = _settings("controller")
    import uvloop

    uvloop.run(_run_controller(settings, identity or _own_name("controller")))


def worker(identity: IdentityOption = "") -> None:
    """Run a worker. It always carries out effects, and matches while it holds the role."""
    settings = _settings("worker")
    import uvloop

    uvloop.run(_run_worker(settings, identity or _own_name("worker")))


def view(
    cert_dir: Annotated[Path, typer.Option(help="folder with tls.crt and tls.key")],
    certificate_for: Annotated[
        str, typer.Option(help="make and renew them for these names: a,b")
    ] = "",
    host: Annotated[str, typer.Option(help="address to listen on (default: all)")] = "",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free port")] = 8443,
) -> None:
    """Run a view server. It shows the queue to users with the right to see it."""
    from fluxqueue.view.http_server import ViewConfig

    settings = _settings("view server")
    settings = dataclasses.replace(
        settings,
        statement_timeout_s=min(settings.statement_timeout_s, VIEW_PATIENCE_S),
        db_pool_timeout_s=min(settings.db_pool_timeout_s, VIEW_PATIENCE_S / 2),
    )
    names = [name for name in certificate_for.split(",") if name]
    config = ViewConfig(cert_dir=cert_dir, host=host or None, port=port)
    import uvloop

    uvloop.run(_run_view(settings, config, names))


def _settings(part: str) -> Settings:
    from fluxqueue.process import logs

    settings = Settings.from_env(os.environ)
    if not settings.database_url:
        raise InvalidSettings(
            f"the {part} needs a database",
            where="DATABASE_URL",
            hint="set it (`fluxqueue up` starts its own database)",
        )
    logs.set_up(settings.log_level, as_json=settings.log_json)
    return settings


def _own_name(part: str) -> str:
    return f"{part}-{socket.gethostname()}-{os.getpid()}"


async def _run_controller(settings: Settings, identity: str) -> None:
    from fluxqueue.controller.controller_process import Controller
    from fluxqueue.db.cluster_identity import bind
    from fluxqueue.db.database import Database
    from fluxqueue.kube.config import load_config
    from fluxqueue.process.endpoint import Endpoint, Heartbeats

    config = load_config(settings.kubeconfig or None)
    stop, heartbeats = asyncio.Event(), Heartbeats()
    async with Endpoint(settings.http_port) as endpoint:
        await _wait_for_schema(settings, endpoint)
        async with (
            Database(settings, role="controller") as database,
            _client(config, settings) as client,
        ):
            await bind(database, await _cluster_uid(client, endpoint), config.server)

            def take_signals() -> None:
                _on_signals(stop.set)

            running = Controller(
                database,
                client,
                settings,
                SystemClock(),
                identity=identity,
                heartbeats=heartbeats,
                take_signals=take_signals,
            )

            async def synced() -> str | None:
                return (
                    None if running.is_synced else "leads, but has not read the whole cluster yet"
                )

            endpoint.live_checks["loops"] = running.problem
            endpoint.ready_checks["cluster"] = synced
            _watch_doors(endpoint, database, client)
            take_signals()
            await running.run(stop)


async def _run_worker(settings: Settings, identity: str) -> None:
    from fluxqueue.db.cluster_identity import bind
    from fluxqueue.db.database import Database
    from fluxqueue.kube.config import load_config
    from fluxqueue.process.endpoint import Endpoint
    from fluxqueue.process.shared_key import read_key
    from fluxqueue.worker.context import WorkerContext
    from fluxqueue.worker.worker_process import Worker

    key = read_key(settings.placement_key_file, "FLUXQUEUE_PLACEMENT_KEY_FILE")
    config = load_config(settings.kubeconfig or None)
    async with Endpoint(settings.http_port) as endpoint:
        await _wait_for_schema(settings, endpoint)
        async with (
            Database(settings, role="worker") as database,
            _client(config, settings) as client,
        ):
            await bind(database, await _cluster_uid(client, endpoint), config.server)
            context = WorkerContext(
                database, client, settings, SystemClock(), identity, placement_key=key
            )
            endpoint.live_checks["loops"] = context.heartbeats.problem
            _watch_doors(endpoint, database, client)
            running = asyncio.create_task(Worker(context).run())
            _on_signals(running.cancel)
            with suppress(asyncio.CancelledError):
                await running


async def _run_view(settings: Settings, config: ViewConfig, names: list[str]) -> None:
    from fluxqueue.db.cluster_identity import check_reader
    from fluxqueue.db.reader import DatabaseReader
    from fluxqueue.fluxjob.levels import parse_levels
    from fluxqueue.kube.config import load_config
    from fluxqueue.process.endpoint import Endpoint
    from fluxqueue.view.http_server import ViewServer

    stop, kube_config = asyncio.Event(), load_config(settings.kubeconfig or None)
    levels = parse_levels(settings.levels)
    async with Endpoint(settings.http_port) as endpoint:
        _make_certificate(config.cert_dir, names)
        await _wait_for_schema(settings, endpoint)
        async with (
            DatabaseReader(settings, role="view") as reader,
            _client(kube_config, settings) as client,
            ViewServer(config, reader, client, SystemClock(), levels, settings) as server,
        ):
            await reader.check()
            await check_reader(reader, await _cluster_uid(client, endpoint))
            _watch_doors(endpoint, reader, client)
            _on_signals(stop.set)
            print(f"ready port {server.port}", flush=True)
            while not stop.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout(CERTIFICATE_LOOK_S):
                        await stop.wait()
                _make_certificate(config.cert_dir, names)


def _make_certificate(folder: Path, names: list[str]) -> None:
    """Renew a certificate with less than a third of its life left. The server reloads it."""
    from fluxqueue.process.certs.folder import ensure

    if names:
        ensure(folder, names, now=datetime.now(tz=UTC))


def _watch_doors(endpoint: Endpoint, database: DatabaseReader, client: KubeClient) -> None:
    """From now on, ready means that database and API server answer."""
    from fluxqueue.errors import ApiError, ApiUnavailable, DatabaseUnavailable

    async def ask_database() -> str | None:
        try:
            await database.ping()
        except DatabaseUnavailable as error:
            return str(error)
        return None

    async def ask_api() -> str | None:
        try:
            await client.reserved().get_text("/version", timeout_s=API_CHECK_S)
        except ApiUnavailable as error:
            return str(error)
        except ApiError:
            pass  # a refusal is an answer
        return None

    endpoint.ready_checks["database"] = ask_database
    endpoint.ready_checks["API server"] = ask_api
    endpoint.started()


def _client(config: ClusterConfig, settings: Settings) -> KubeClient:
    from fluxqueue.kube.client import KubeClient

    return KubeClient(
        config, concurrency=settings.kube_concurrency, timeout_s=settings.kube_timeout_s
    )


def _on_signals(stop: object) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)  # type: ignore[arg-type]


async def _cluster_uid(client: KubeClient, endpoint: Endpoint) -> str:
    """Return the UID of the cluster, and report what it waits for."""
    from fluxqueue.kube.cluster import read_cluster_uid

    endpoint.waits_for("the API server")
    return await read_cluster_uid(client, asyncio.sleep)


async def _wait_for_schema(settings: Settings, endpoint: Endpoint) -> None:
    """Wait until the database answers and is migrated, and report what it waits for."""
    from fluxqueue.db import migrate

    endpoint.waits_for("the database and its migration")
    await asyncio.to_thread(migrate.wait_for_database, settings.database_url)
    await asyncio.to_thread(migrate.wait_for_head, settings.database_url)
