"""``fluxqueue wait``: wait for states of jobs, with an exit code for scripts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from typing import Annotated, Any

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
from fluxqueue.errors import Gone, NotFound

GONE = "Gone"
"""Stands for the state of a FluxJob that no longer exists."""


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
    from fluxqueue.client.fluxjobs import find, parse_states
    from fluxqueue.workload.annotations import parse_duration

    wanted = parse_states(until, "--for")
    limit = float(parse_duration(timeout, "--timeout")) if timeout else None

    async def one(cluster: ClusterAccess, name: str) -> int:
        fluxjob = await find(cluster.client, cluster.one_namespace, name)
        return await until_state(cluster, fluxjob, wanted, None if quiet else typer.echo)

    async def work(cluster: ClusterAccess) -> int:
        try:
            async with asyncio.timeout(limit):
                return max(await asyncio.gather(*(one(cluster, name) for name in names)))
        except TimeoutError:
            complain(f"fluxqueue: not {until} within {timeout}")
            return NOT_YET

    if code := access.run(work):
        raise typer.Exit(code)


async def until_state(
    cluster: ClusterAccess, fluxjob: Mapping[str, Any], wanted: frozenset[str], tell: Any = None
) -> int:
    """Follow one FluxJob until it is in one of ``wanted`` (0) or never will be (4).

    A state of a started job counts as reached if the job has started and ended meanwhile.
    """
    from fluxqueue.client.fluxjobs import HOLDING, read_line
    from fluxqueue.fluxjob.states import FINAL

    name, last = fluxjob["metadata"]["name"], ""
    async with aclosing(_states(cluster, fluxjob)) as states:
        async for one in states:
            line = read_line(one) if one else None
            state = line.state if line else GONE
            if tell and state != last:
                reason = f": {line.reason}" if line and line.reason else ""
                tell(f"{name} {state}{reason}")
            last = state
            has_started = line is not None and line.started is not None
            if state in wanted or (wanted & HOLDING and has_started and state in FINAL):
                return DONE
            if state == GONE or state in FINAL:
                break
    return NEVER


async def _states(cluster: ClusterAccess, fluxjob: Mapping[str, Any]) -> Any:
    """Yield the FluxJob now and after each change, then None if it is gone or replaced."""
    from fluxqueue.kube.resources import FLUXJOBS

    meta = fluxjob["metadata"]
    where, name, uid = meta["namespace"], meta["name"], meta["uid"]
    while True:
        try:
            found = await cluster.client.get(FLUXJOBS, where, name)
        except NotFound:
            break
        if found["metadata"]["uid"] != uid:
            break
        yield found
        try:
            events = cluster.client.watch(
                FLUXJOBS,
                where,
                resource_version=found["metadata"]["resourceVersion"],
                field_selector=f"metadata.name={name}",
            )
            async with aclosing(events) as events:
                async for event in events:
                    if event.type == "MODIFIED":
                        yield event.object
                    elif event.type == "DELETED":
                        # Yield its last state too: it may have ended the moment before.
                        yield event.object
                        yield None
                        return
        except Gone:
            continue
    yield None
