"""How a command reaches the cluster: kubeconfig, context, namespace, impersonation.

The options are those of kubectl. ``with_access`` adds them to a command, which gets an ``Access``.
Refusals of the API server are printed here, in one place and in its own words.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, TypeVar

import typer

from fluxqueue.cli.messages import complain
from fluxqueue.cli.user.complete import complete_namespaces
from fluxqueue.client.refusals import sentence
from fluxqueue.errors import ApiError

if TYPE_CHECKING:
    from fluxqueue.kube.client import KubeClient

T = TypeVar("T")

DONE, REFUSED, BAD_INPUT, NOT_YET, NEVER = 0, 1, 2, 3, 4
"""Exit codes of every command. docs/user/cli.md lists them."""
INTERRUPTED = 130
TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """An open connection. ``namespace`` None means all namespaces."""

    client: KubeClient
    namespace: str | None
    impersonated: str = ""

    @property
    def one_namespace(self) -> str:
        """The namespace of a command that acts in one."""
        return self.namespace or "default"


@dataclass(frozen=True, slots=True)
class Access:
    """Which cluster, and as which user. The defaults are kubectl's."""

    kubeconfig: Path | None = None
    context: str = ""
    impersonate: str = ""
    namespace: str = ""
    is_everywhere: bool = False

    def run(self, work: Callable[[ClusterAccess], Awaitable[T]]) -> T:
        """Run ``work`` on the cluster. A refusal is printed and ends the command with code 1."""
        try:
            return asyncio.run(self._run(work))
        except ApiError as error:
            refuse(error)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None

    async def _run(self, work: Callable[[ClusterAccess], Awaitable[T]]) -> T:
        from fluxqueue.kube.client import KubeClient
        from fluxqueue.kube.config import load_config

        kubeconfig = str(self.kubeconfig) if self.kubeconfig else None
        config = load_config(kubeconfig, self.context or None)
        async with KubeClient(config, timeout_s=TIMEOUT_S) as client:
            acting = client.acting_as(self.impersonate) if self.impersonate else client
            where = None if self.is_everywhere else self.namespace or config.namespace
            return await work(ClusterAccess(acting, where, self.impersonate))


def refuse(error: ApiError) -> NoReturn:
    """Print what the API server answered, and exit with 1."""
    complain(f"fluxqueue: {sentence(error)}")
    raise typer.Exit(REFUSED)


Kubeconfig = Annotated[Path | None, typer.Option(help="default: KUBECONFIG, then ~/.kube/config")]
Context = Annotated[str, typer.Option(help="context of the kubeconfig")]
User = Annotated[str, typer.Option("--as", help="impersonate this user")]
Namespace = Annotated[
    str,
    typer.Option(
        "--namespace",
        "-n",
        help="default: that of the context",
        autocompletion=complete_namespaces,
    ),
]
Everywhere = Annotated[bool, typer.Option("--all-namespaces", "-A", help="in every namespace")]

_CLUSTER = {"kubeconfig": Kubeconfig, "context": Context, "impersonate": User}
_DEFAULTS: dict[str, Any] = {
    "kubeconfig": None, "context": "", "impersonate": "", "namespace": "", "is_everywhere": False
}  # fmt: skip


def with_access(
    *, is_namespaced: bool = True, may_be_everywhere: bool = False
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of ``Access`` to a command, which gets an ``Access`` first."""
    options: dict[str, Any] = dict(_CLUSTER)
    if is_namespaced:
        options["namespace"] = Namespace
    if may_be_everywhere:
        options["is_everywhere"] = Everywhere

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
        added = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=_DEFAULTS[name], annotation=kind
            )
            for name, kind in options.items()
        ]

        @functools.wraps(command)
        def wrapped(**given: Any) -> None:
            access = Access(**{name: given.pop(name) for name in options})
            command(access, **given)

        named = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
        untyped: Any = wrapped
        untyped.__signature__ = inspect.Signature([*named, *added])
        untyped.__annotations__ = {one.name: one.annotation for one in (*named, *added)}
        del untyped.__wrapped__
        return wrapped

    return decorate
