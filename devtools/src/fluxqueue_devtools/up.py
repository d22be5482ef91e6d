"""``fluxqueue up``: all parts in the foreground, until Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fluxqueue.cli.check_invariants import default_data_dir
from fluxqueue.cli.option_class import with_options
from fluxqueue.cli.step_line import StepLine
from fluxqueue.errors import InvalidInput
from fluxqueue_devtools.shell import export_lines
from fluxqueue_devtools.stack_options import ClusterShape, StackOptions

if TYPE_CHECKING:
    from fluxqueue_devtools.stack import Stack

TRY = (
    "fluxqueue submit --name hello --image busybox --cpus 4 -- sleep 60",
    "fluxqueue jobs",
    "fluxqueue explain hello",
)
"""The commands that ``up`` proposes. They need no file and no kubectl."""
RUNS_HERE = "pods run their commands on this machine, with your rights: no image, no isolation"


@dataclass(frozen=True, slots=True)
class UpOptions:
    """The options of ``fluxqueue up``."""

    nodes: Annotated[
        int | None,
        typer.Option(min=1, help="so many equal nodes, instead of the cluster of the pages"),
    ] = None
    cpu: Annotated[str, typer.Option(help="cores of each of these nodes")] = "16"
    memory: Annotated[str, typer.Option(help="memory of each of these nodes")] = "64Gi"
    gpus: Annotated[int, typer.Option(min=0, help="GPUs of each of these nodes")] = 0
    workers: Annotated[int, typer.Option(min=1, help="worker processes")] = 1
    kubeconfig: Annotated[
        Path | None, typer.Option(help="use this cluster instead of the embedded one")
    ] = None
    database_url: Annotated[
        str, typer.Option(help="use this database instead of the embedded one")
    ] = ""
    webhook_host: Annotated[
        str, typer.Option(help="host name under which the cluster reaches this machine")
    ] = "127.0.0.1"
    view: Annotated[bool, typer.Option(help="start a view server (history, acct, /api/v1)")] = True
    run_programs: Annotated[
        bool,
        typer.Option(
            help="run the commands of pods on this machine, as you: no image, no isolation"
        ),
    ] = False
    data_dir: Annotated[
        Path | None,
        typer.Option(help="folder for database, cluster and logs (default: .fluxqueue)"),
    ] = None


@with_options(UpOptions)
def up(options: UpOptions) -> None:
    """Run all parts here: database, cluster, webhook, controller, workers, view server."""
    from fluxqueue.workload.quantity import parse_quantity

    for name, amount in (("--cpu", options.cpu), ("--memory", options.memory)):
        parse_quantity(amount, where=name)
    stack = StackOptions(
        data_dir=(options.data_dir or default_data_dir()).absolute(),
        shape=ClusterShape(
            nodes=options.nodes or 0, cpu=options.cpu, memory=options.memory, gpus=options.gpus
        ),
        cluster_arguments=_cluster_arguments(options),
        kubeconfig=options.kubeconfig,
        database_url=options.database_url or os.environ.get("DATABASE_URL", ""),
        workers=options.workers,
        webhook_host=options.webhook_host,
        has_view=options.view,
    )
    asyncio.run(_run(stack))


def _cluster_arguments(options: UpOptions) -> tuple[str, ...]:
    from fluxqueue_devtools.tutorial import node_arguments

    nodes = node_arguments() if options.nodes is None else ()
    return ("--jobsets", *nodes, *(("--run-programs",) if options.run_programs else ()))


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
    from fluxqueue_devtools.stack import Stack

    typer.echo(f"starting in {options.data_dir}")
    steps = StepLine("starting")
    async with AsyncExitStack() as closing:
        with steps:
            stack = await closing.enter_async_context(Stack(options, steps.begin))
            if options.kubeconfig is None:
                steps.begin("nodes and namespaces of the pages")
                await _prepare(stack)
        ready.set()
        async with open_window(stack) as address:
            for line in _report(stack, address):
                typer.echo(line)
            typer.echo("ready (Ctrl-C stops it)")
            await stop.wait()
        typer.echo("stopping")


@asynccontextmanager
async def open_window(stack: Stack) -> AsyncIterator[str]:
    """Open a local proxy to the view server, and yield its address, or why there is none."""
    from fluxqueue.cli.user.local_proxy import LocalProxy, Upstream
    from fluxqueue.client.view_server import view_address
    from fluxqueue.kube.client import KubeClient
    from fluxqueue.kube.config import load_kubeconfig

    if not stack.view_url:
        yield ""
        return
    async with KubeClient(load_kubeconfig(str(stack.kubeconfig))) as client:
        try:
            upstream = Upstream(*await view_address(client))
        except InvalidInput as error:
            # A client certificate identifies its user to the API server only.
            yield f"fluxqueue web --token TOKEN ({error.message})"
            return
        async with LocalProxy(upstream) as proxy:
            yield proxy.address()


async def _prepare(stack: Stack) -> None:
    from fluxqueue.kube.client import KubeClient
    from fluxqueue.kube.config import load_kubeconfig
    from fluxqueue_devtools.tutorial import prepare

    async with KubeClient(load_kubeconfig(str(stack.kubeconfig))) as client:
        await prepare(client)


def _report(stack: Stack, window: str) -> list[str]:
    """Return what a user copies into another shell, and where the parts are."""
    exports = export_lines(stack.kubeconfig.absolute(), stack.write_programs())
    view = [f"page  {window}", f"view  {stack.view_url}/openapi.json"] if window else []
    return [
        "copy into another shell:",
        *(f"  {line}" for line in exports),
        "then try there:",
        *(f"  {line}" for line in TRY),
        *view,
        f"logs  {stack.options.data_dir / 'logs'}",
        *([RUNS_HERE] if "--run-programs" in stack.options.cluster_arguments else ()),
    ]
