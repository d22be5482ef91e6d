"""The ``fluxqueue`` command, and ``kubectl fluxqueue``: one file per subcommand or subject.

What a user types stands in ``cli.user`` and needs a kubeconfig only; the others are the
administrator's, and the parts of the system itself.

Errors of our own tree become one line on standard error: exit code 2 for input that must change,
1 for everything else.
"""

from __future__ import annotations

import gc
import importlib
import os
import sys
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core

from fluxqueue import __version__
from fluxqueue.errors import FluxQueueError, InvalidInput

GC_THRESHOLDS = (50_000, 4, 500)
"""New objects between two runs of the garbage collector: what is imported stays, and looking
through it every 700 objects was a sixth of the time that a process takes to start. Then the runs
after which it looks through what outlived them; all stands still for that, 0.6 s for a million."""

USERS = "Jobs and queues, with a kubeconfig"
ADMINISTRATORS = "The system itself, for its administrator"


@dataclass(frozen=True, slots=True)
class Verb:
    """Where a command is: ``module:name`` below ``fluxqueue.cli``, a function or a Typer."""

    where: str
    panel: str = ADMINISTRATORS
    settings: dict[str, Any] = field(default_factory=dict)

    def load(self, name: str) -> Any:
        """Import it, and make the command of it."""
        module, _, attribute = self.where.partition(":")
        found = getattr(importlib.import_module(f"fluxqueue.cli.{module}"), attribute)
        if not isinstance(found, typer.Typer):
            alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            alone.command(name, rich_help_panel=self.panel, **self.settings)(found)
            return typer.main.get_command(alone)
        group = typer.main.get_group(found)
        group.name, group.rich_help_panel = name, self.panel
        return group


VERBS = {
    "jobs": Verb("user.jobs:jobs", USERS),
    "nodes": Verb("user.places:nodes", USERS),
    "tree": Verb("user.places:tree", USERS),
    "queues": Verb("user.places:queues", USERS),
    "top": Verb("user.top:top", USERS),
    "submit": Verb("user.submit:submit", USERS),
    "wait": Verb("user.waiting:wait", USERS),
    "explain": Verb("user.explain:explain", USERS),
    "history": Verb("user.books:history", USERS),
    "acct": Verb("user.books:acct", USERS),
    "hold": Verb("user.steer:hold", USERS),
    "release": Verb("user.steer:release", USERS),
    "requeue": Verb("user.steer:requeue", USERS),
    "priority": Verb("user.steer:priority", USERS),
    "move": Verb("user.steer:move", USERS),
    "cancel": Verb("user.steer:cancel", USERS),
    "drain": Verb("user.steer:drain", USERS),
    "undrain": Verb("user.steer:undrain", USERS),
    "version": Verb("user.version:version", USERS),
    "up": Verb("up:up"),
    "check": Verb("check:check"),
    "install": Verb("install:install"),
    "demo": Verb("demo:demo"),
    "sim": Verb("sim:sim"),
    "controller": Verb("processes:controller"),
    "worker": Verb("processes:worker"),
    "view": Verb("processes:view"),
    "graph": Verb("graph:graph"),
    "certs": Verb("certs:certs"),
    "uninstall": Verb("uninstall:uninstall"),
    "resource-query": Verb(
        "graph:resource_query",
        settings={
            "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
            "add_help_option": False,
        },
    ),
    "db": Verb("db:app"),
}
"""In the order in which help lists them."""


class _Loading(MutableMapping[str, Any]):
    """Commands by name, each imported when it is looked up and not when the names are listed."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = VERBS[name].load(name)
        return self._loaded[name]

    def get(self, name: str, default: Any = None) -> Any:
        """As of any mapping, but a KeyError of what is imported is no word about ``name``."""
        return self[name] if name in self else default  # noqa: SIM401  which is this function

    def __setitem__(self, name: str, command: Any) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(VERBS)

    def __len__(self) -> int:
        return len(VERBS)

    def __contains__(self, name: object) -> bool:
        return name in VERBS


class Verbs(typer.core.TyperGroup):
    """The command of commands: who types one would wait for the imports of all the others."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Loading()

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  as the base class has it
        """Their names."""
        return list(self.commands)


app = typer.Typer(
    cls=Verbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="A durable, queue-based job controller for Kubernetes with a Flux graph matcher.",
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
    gc.set_threshold(*GC_THRESHOLDS)
    if sys.stdout is None:  # closed (``>&-``): what is printed goes nowhere, what is done is done
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115  for ever
    try:
        app(prog_name="kubectl fluxqueue" if called.startswith("kubectl") else "fluxqueue")
    except InvalidInput as error:
        print(f"fluxqueue: {error}", file=sys.stderr)
        sys.exit(2)
    except FluxQueueError as error:
        print(f"fluxqueue: {error}", file=sys.stderr)
        sys.exit(1)
    except OSError as error:  # a full disk below standard output, a file that cannot be read
        print(f"fluxqueue: {error}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
