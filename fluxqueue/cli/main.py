"""The ``fluxqueue`` command and ``kubectl fluxqueue``: one file per subcommand or subject.

Users' commands are in ``cli.user`` and need only a kubeconfig. The others are for the
administrator, or are the parts of the system itself.

Our own errors become one line on standard error. The exit code is 2 for input that must change, and
1 for everything else. The users' installation lacks the server's packages. A command that needs
one of them says how to install it.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import sys
from collections.abc import Iterator, MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core
from typer.exceptions import TyperException

from fluxqueue import __version__
from fluxqueue.cli.messages import complain
from fluxqueue.errors import FluxQueueError, InvalidInput
from fluxqueue.process.distribution import install_command

GC_THRESHOLDS = (50_000, 4, 500)
"""New objects between two runs of the garbage collector, then runs per older generation.

Imported objects stay, and scanning them every 700 objects took a sixth of the start of a process. A
scan of older generations stops everything: 0.6 s for a million objects.
"""

HELP: dict[str, Any] = {"help_option_names": ["-h", "--help"]}
USERS = "Jobs and queues, with a kubeconfig"
ADMINISTRATORS = "The system itself, for its administrator"
DEVTOOLS = "fluxqueue_devtools"
EXTRAS = {DEVTOOLS: "embedded", "fluxion": "graph", "localcluster": "embedded"}
"""Which extra of ours brings a package. The others come with ``server``."""


@dataclass(frozen=True, slots=True)
class CommandVerb:
    """A command and its place: ``module:name`` in ``package``, a function or a Typer."""

    where: str
    panel: str = ADMINISTRATORS
    package: str = "fluxqueue.cli"
    settings: dict[str, Any] = field(default_factory=dict)

    def is_installed(self) -> bool:
        """Return whether its package is there."""
        try:
            return importlib.util.find_spec(self.package) is not None
        except ModuleNotFoundError:
            return False

    def load(self, name: str) -> Any:
        """Import the function or Typer, and return its command."""
        module, _, attribute = self.where.partition(":")
        found = getattr(importlib.import_module(f"{self.package}.{module}"), attribute)
        if not isinstance(found, typer.Typer):
            alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
            command = {**self.settings}
            command["context_settings"] = HELP | command.get("context_settings", {})
            alone.command(name, rich_help_panel=self.panel, **command)(found)
            return typer.main.get_command(alone)
        group = typer.main.get_group(found)
        for one in (group, *group.commands.values()):
            one.context_settings = {**HELP, **one.context_settings}
        group.name, group.rich_help_panel = name, self.panel
        return group


VERBS = {
    "jobs": CommandVerb("user.jobs:jobs", USERS),
    "nodes": CommandVerb("user.capacity:nodes", USERS),
    "tree": CommandVerb("user.capacity:tree", USERS),
    "queues": CommandVerb("user.capacity:queues", USERS),
    "top": CommandVerb("user.top:top", USERS),
    "show": CommandVerb("user.show:show", USERS),
    "submit": CommandVerb("user.submit:submit", USERS),
    "wait": CommandVerb("user.waiting:wait", USERS),
    "explain": CommandVerb("user.explain:explain", USERS),
    "history": CommandVerb("user.past_runs:history", USERS),
    "acct": CommandVerb("user.past_runs:acct", USERS),
    "web": CommandVerb("user.web:web", USERS),
    "mcp": CommandVerb("user.mcp:mcp", USERS),
    "hold": CommandVerb("user.spec_changes:hold", USERS),
    "release": CommandVerb("user.spec_changes:release", USERS),
    "requeue": CommandVerb("user.spec_changes:requeue", USERS),
    "priority": CommandVerb("user.spec_changes:priority", USERS),
    "move": CommandVerb("user.spec_changes:move", USERS),
    "cancel": CommandVerb("user.spec_changes:cancel", USERS),
    "drain": CommandVerb("user.spec_changes:drain", USERS),
    "undrain": CommandVerb("user.spec_changes:undrain", USERS),
    "adopt": CommandVerb("user.adopt:adopt", USERS),
    "version": CommandVerb("user.version:version", USERS),
    "up": CommandVerb("up:up", package=DEVTOOLS),
    "check": CommandVerb("check_invariants:check"),
    "pools": CommandVerb("user.pools:app"),
    "install": CommandVerb("install:install"),
    "demo": CommandVerb("demo.command:demo", package=DEVTOOLS),
    "sim": CommandVerb("sim:sim"),
    "controller": CommandVerb("processes:controller"),
    "worker": CommandVerb("processes:worker"),
    "view": CommandVerb("processes:view"),
    "graph": CommandVerb("graph:graph"),
    "certs": CommandVerb("certs:certs"),
    "uninstall": CommandVerb("uninstall:uninstall"),
    "resource-query": CommandVerb(
        "graph:resource_query",
        settings={
            "context_settings": {"allow_extra_args": True, "ignore_unknown_options": True},
            "add_help_option": False,
        },
    ),
    "db": CommandVerb("db:app"),
}
"""All commands in the order of the help."""


class _Loading(MutableMapping[str, Any]):
    """Commands by name. Each is imported at its lookup, not when the names are listed."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = VERBS[name].load(name)
        return self._loaded[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return a command. Unlike ``Mapping.get`` it lets a KeyError of an import pass."""
        return self[name] if name in self else default  # noqa: SIM401  this is that function

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


class CommandGroup(typer.core.TyperGroup):
    """The command group. Running one command does not wait for the imports of the others."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _Loading()

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002  signature of the base class
        """Return the names, without those of a package that is not installed."""
        return [name for name in self.commands if VERBS[name].is_installed()]


app = typer.Typer(
    cls=CommandGroup,
    context_settings=HELP,
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
    """Define the options of the command itself."""


def main() -> None:
    """Run the command line: the entry point of the console script under both of its names."""
    called = Path(sys.argv[0]).name
    gc.set_threshold(*GC_THRESHOLDS)
    if sys.stdout is None:  # closed (``>&-``): output is dropped, and the work is still done
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115  stays open
    try:
        program = "kubectl fluxqueue" if called.startswith("kubectl") else "fluxqueue"
        code = app(prog_name=program, standalone_mode=False)
    except TyperException as error:
        _complain_of_usage(error, program)
        sys.exit(error.exit_code)
    except InvalidInput as error:
        complain(f"fluxqueue: {error}")
        sys.exit(2)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "fluxqueue", "fluxqueue_webhook"):
            raise  # a fault of ours: it needs its traceback
        message = f"this command needs the package {package}, which is not installed"
        complain(f"fluxqueue: {message} ({install_command(EXTRAS.get(package, 'server'))})")
        sys.exit(1)
    except FluxQueueError as error:
        complain(f"fluxqueue: {error}")
        sys.exit(1)
    except OSError as error:  # a full disk under standard output, or an unreadable file
        complain(f"fluxqueue: {error}")
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def _complain_of_usage(error: TyperException, program: str) -> None:
    """Print what is wrong with a command line, as all other errors are printed."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return  # the help was printed instead
    context = getattr(error, "ctx", None)
    path = program if context is None else context.command_path
    message = error.format_message().strip().removesuffix(".")
    dot = "" if message.endswith("?") else "."
    complain(f"fluxqueue: {message}{dot} Fix: {path} -h shows what it takes")


if __name__ == "__main__":
    main()
