"""``fluxqueue up``: all parts in the foreground, until Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from fluxqueue.cli.stack_options import ClusterShape, StackOptions, default_data_dir


def up(
    nodes: Annotated[int, typer.Option(min=1, help="nodes of the embedded cluster")] = 4,
    cpu: Annotated[str, typer.Option(help="cores of each node")] = "16",
    memory: Annotated[str, typer.Option(help="memory of each node")] = "64Gi",
    gpus: Annotated[int, typer.Option(min=0, help="GPUs of each node")] = 0,
    workers: Annotated[int, typer.Option(min=1, help="worker processes")] = 1,
    kubeconfig: Annotated[
        Path | None, typer.Option(help="use this cluster instead of the embedded one")
    ] = None,
    database_url: Annotated[
        str, typer.Option(help="use this database instead of the embedded one")
    ] = "",
    webhook_host: Annotated[
        str, typer.Option(help="host name under which the cluster reaches this machine")
    ] = "127.0.0.1",
    view: Annotated[bool, typer.Option(help="start a view server (history, acct, /api/v1)")] = True,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="folder for database, cluster and logs (default: .fluxqueue)"),
    ] = None,
) -> None:
    """Run all parts here: database, cluster, webhook, controller, workers, view server."""
    options = StackOptions(
        data_dir=(data_dir or default_data_dir()).absolute(),
        shape=ClusterShape(nodes=nodes, cpu=cpu, memory=memory, gpus=gpus),
        kubeconfig=kubeconfig,
        database_url=database_url or os.environ.get("DATABASE_URL", ""),
        workers=workers,
        webhook_host=webhook_host,
        has_view=view,
    )
    asyncio.run(_run(options))


async def _run(options: StackOptions) -> None:
    stop, ready = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    serving = asyncio.create_task(_serve(options, stop, ready))
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not ready.is_set():
        serving.cancel()  # abandon a start under way, and stop in order what has started
    with suppress(asyncio.CancelledError):
        await serving


async def _serve(options: StackOptions, stop: asyncio.Event, ready: asyncio.Event) -> None:
    from fluxqueue.cli.stack import Stack

    typer.echo(f"starting in {options.data_dir}")
    async with Stack(options) as stack:
        ready.set()
        typer.echo(f"kubeconfig  export KUBECONFIG={stack.kubeconfig.absolute()}")
        typer.echo(f"psql        {stack.psql_command}")
        if stack.view_url:
            typer.echo(f"view        {stack.view_url}/openapi.json")
        typer.echo(f"logs        {options.data_dir / 'logs'}")
        if shutil.which("kubectl"):
            typer.echo("try         kubectl get fluxjobs -A -w")
        typer.echo("ready (Ctrl-C stops it)")
        await stop.wait()
        typer.echo("stopping")
