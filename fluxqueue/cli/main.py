"""The ``fluxqueue`` command, and ``kubectl fluxqueue``: one file per subcommand or subject.

What a user types stands in ``cli.user`` and needs a kubeconfig only; the others are the
administrator's, and the parts of the system itself.

Errors of our own tree become one line on standard error: exit code 2 for input that must change,
1 for everything else.
"""

from __future__ import annotations

import gc
import sys
from pathlib import Path
from typing import Annotated

import typer

from fluxqueue import __version__
from fluxqueue.cli import (
    certs,
    check,
    db,
    demo,
    graph,
    install,
    processes,
    sim,
    steering,
    uninstall,
    up,
)
from fluxqueue.cli.user import books, explain, jobs, places, steer, submit, top, version, waiting
from fluxqueue.errors import FluxQueueError, InvalidInput

GC_OBJECTS = 50_000
"""New objects between two runs of the garbage collector. What is imported stays; looking through it
every 700 objects was a sixth of the time that a process takes to start."""

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="A durable, queue-based job controller for Kubernetes with a Flux graph matcher.",
)

USERS = "Jobs and queues, with a kubeconfig"
for verb in (
    jobs.jobs,
    places.nodes,
    places.tree,
    places.queues,
    top.top,
    submit.submit,
    waiting.wait,
    explain.explain,
    books.history,
    books.acct,
    steer.hold,
    steer.release,
    steer.requeue,
    steer.priority,
    steer.move,
    steer.cancel,
    steer.drain,
    steer.undrain,
    version.version,
):
    app.command(verb.__name__, rich_help_panel=USERS)(verb)

steering.register(db.app)
app.add_typer(db.app, name="db")
app.command("up")(up.up)
app.command("check")(check.check)
app.command("install")(install.install)
app.command("demo")(demo.demo)
app.command("sim")(sim.sim)
app.command("controller")(processes.controller)
app.command("worker")(processes.worker)
app.command("view")(processes.view)
app.command("graph")(graph.graph)
app.command("certs")(certs.certs)
app.command("uninstall")(uninstall.uninstall)


@app.command(
    "resource-query",
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
    add_help_option=False,
)
def resource_query(context: typer.Context) -> None:
    """Match by hand on any Fluxion graph: resource-query's arguments and command language."""
    from fluxqueue.cli.resource_query import main as run

    raise typer.Exit(
        run(
            context.args,
            from_cluster=graph.graph_from_cluster,
            ask_cluster=graph.ask_cluster,
        )
    )


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fluxqueue {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="and exit")
    ] = False,
) -> None:
    """Options of the command itself."""


def main() -> None:
    """Run the command line; the console script's entry point, under both of its names."""
    called = Path(sys.argv[0]).name
    gc.set_threshold(GC_OBJECTS, 20, 100)
    try:
        app(prog_name="kubectl fluxqueue" if called.startswith("kubectl") else "fluxqueue")
    except InvalidInput as error:
        print(f"fluxqueue: {error}", file=sys.stderr)
        sys.exit(2)
    except FluxQueueError as error:
        print(f"fluxqueue: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
