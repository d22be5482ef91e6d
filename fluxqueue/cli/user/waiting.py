"""``fluxqueue wait``: wait for states of jobs, with an exit code for scripts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from fluxqueue.cli.messages import complain
from fluxqueue.cli.user.access import (
    DONE,
    NEVER,
    NOT_YET,
    Access,
    ClusterAccess,
    with_access,
)
from fluxqueue.cli.user.complete import complete_jobs, complete_states

if TYPE_CHECKING:
    from fluxqueue.client.follower import FluxJobFollower
    from fluxqueue.client.handles import AsyncJobHandle


@with_access()
def wait(
    access: Access,
    names: Annotated[
        list[str],
        typer.Argument(help="names of workloads, or jobids", autocompletion=complete_jobs),
    ],
    until: Annotated[
        str,
        typer.Option(
            "--for", help="states, or started, ended, ...", autocompletion=complete_states
        ),
    ] = "completed",
    timeout: Annotated[
        str, typer.Option(help="longest wait: 90s, 15m, 2h (default: no limit)")
    ] = "",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="print nothing")] = False,
) -> None:
    """Wait until jobs are in a state. Exit code 0: all are, 3: timeout, 4: one never will be.

    Examples:

      fluxqueue wait train && fluxqueue submit report.sh

      fluxqueue wait a b c --for started --timeout 10m
    """
    from fluxqueue.client.fluxjob_lists import find, parse_states
    from fluxqueue.workload.annotations import parse_duration

    wanted = parse_states(until, "--for")
    limit = float(parse_duration(timeout, "--timeout")) if timeout else None

    async def one(cluster: ClusterAccess, follower: FluxJobFollower, name: str) -> int:
        from fluxqueue.client.handles import follow_handle

        found = await find(cluster.client, cluster.one_namespace, name)
        at = (cluster.one_namespace, found["metadata"]["name"])
        handle = await follow_handle(cluster.client, follower, *at)
        return await until_state(handle, wanted, None if quiet else typer.echo)

    async def work(cluster: ClusterAccess) -> int:
        from fluxqueue.client.follower import FluxJobFollower

        follower = FluxJobFollower(cluster.client, cluster.one_namespace)
        try:
            async with asyncio.timeout(limit):
                return max(await asyncio.gather(*(one(cluster, follower, name) for name in names)))
        except TimeoutError:
            complain(f"fluxqueue: not {until} within {timeout}")
            return NOT_YET
        finally:
            await follower.close()

    if code := access.run(work):
        raise typer.Exit(code)


async def until_state(
    handle: AsyncJobHandle, wanted: frozenset[str], tell: Callable[[str], None] | None = None
) -> int:
    """Follow one job until it is in one of ``wanted`` (0) or never will be (4).

    ``tell`` gets a line for each state.
    """
    last = ""

    def note(state: str, reason: str) -> None:
        nonlocal last
        if tell is not None and state != last:
            tell(f"{handle.fluxjob} {state}{f': {reason}' if reason else ''}")
        last = state

    return DONE if await handle.reach(wanted, note) else NEVER
