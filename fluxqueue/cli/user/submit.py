"""``fluxqueue submit``: a Job from a command line or a script, with waiting and logs.

The Job is an ordinary one with our annotations: a manifest can say the same. Each of its pods runs
the command, as with srun, and JOB_COMPLETION_INDEX distinguishes them. A script runs once.
"""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from fluxqueue.cli.messages import complain
from fluxqueue.cli.option_class import with_options
from fluxqueue.cli.user import printing
from fluxqueue.cli.user.access import NEVER, NOT_YET, Access, ClusterAccess, with_access
from fluxqueue.cli.user.complete import complete_queues
from fluxqueue.client.batch.job_manifest import (
    GPU,
    IMAGE_VARIABLE,
    job_manifest,
    read_command,
)
from fluxqueue.client.batch.site_names import VARIABLE
from fluxqueue.errors import ApiError, ApiUnavailable, NotQueued

if TYPE_CHECKING:
    from fluxqueue.client.handles import AsyncJobHandle

EXPLAINED_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True)
class SubmitOptions:
    """The options of ``fluxqueue submit``."""

    command: Annotated[
        list[str], typer.Argument(help="a script with #FLUX: or #SBATCH lines, or -- and a command")
    ]
    image: Annotated[str, typer.Option(envvar=IMAGE_VARIABLE, help="container image")] = ""
    name: Annotated[str, typer.Option("--name", "-J", help="default: made from the command")] = ""
    nodes: Annotated[
        str, typer.Option("--nodes", "-N", help="number of different nodes for the pods")
    ] = ""
    tasks: Annotated[
        int, typer.Option("--tasks", min=0, help="number of pods, which start together")
    ] = 0
    array: Annotated[
        str,
        typer.Option("--array", "-a", help="independent tasks: 0-99, 1,3,7, 0-99%4 (4 at once)"),
    ] = ""
    cpus: Annotated[str, typer.Option(help="per pod: 4, 500m")] = ""
    memory: Annotated[str, typer.Option("--memory", help="per pod: 4Gi")] = ""
    gpus: Annotated[int, typer.Option(min=0, help=f"per pod ({GPU})")] = 0
    time: Annotated[str, typer.Option("--time", "-t", help="longest run: 90s, 2h30m, 1:30:00")] = ""
    queue: Annotated[str, typer.Option("--queue", "-q", autocompletion=complete_queues)] = ""
    priority: Annotated[str, typer.Option(help="higher goes first")] = ""
    within: Annotated[str, typer.Option(help="all pods within one node, rack, zone, ...")] = ""
    depends_on: Annotated[str, typer.Option("--depends-on", help="afterok:a,b")] = ""
    begin: Annotated[str, typer.Option(help="not before: +2h, 2030-01-31T08:00:00Z")] = ""
    site_file: Annotated[
        str,
        typer.Option(
            "--directives",
            envvar=VARIABLE,
            help="file with what --constraint, --gres, --qos and others mean here",
        ),
    ] = ""
    env: Annotated[list[str] | None, typer.Option("--env", "-e", help="NAME=VALUE")] = None
    hold: Annotated[bool, typer.Option("--hold", help="hold it until it is released")] = False
    exclusive: Annotated[bool, typer.Option("--exclusive", help="whole nodes")] = False
    requeue: Annotated[
        bool, typer.Option("--requeue", help="start again if a pod is lost with its node")
    ] = False
    each_pod: Annotated[
        bool, typer.Option("--each-pod", help="a script runs in a pod for each task, not once")
    ] = False
    wait: Annotated[bool, typer.Option("--wait", help="wait until it has ended")] = False
    attach: Annotated[bool, typer.Option("--attach", help="wait, and print its logs")] = False
    timeout: Annotated[str, typer.Option(help="with --wait or --attach: 15m, 2h")] = ""
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="show whether it is accepted, and when and where it would start"
        ),
    ] = False
    output: Annotated[str, typer.Option("--output", "-o", help="table, name, json or yaml")] = (
        "table"
    )


@with_access()
@with_options(SubmitOptions)
def submit(access: Access, options: SubmitOptions) -> None:
    """Submit a Job from a script or a command.

    Examples:

      fluxqueue submit --image python:3.13 --tasks 4 --cpus 2 -- python -c 'print("hello")'

      fluxqueue submit train.sh --image pytorch/pytorch --attach

      fluxqueue submit train.sh --array 0-99%8 --time 10m

      fluxqueue submit train.sh --dry-run -o yaml
    """
    from fluxqueue.client.batch.directive_values import pair
    from fluxqueue.client.batch.job_options import JobOptions, apply_options, shape_options
    from fluxqueue.client.batch.script_notes import notes_on

    printing.check_output(options.output, ("table", "name", "json", "yaml"))
    said = {name: getattr(options, name) for name in JobOptions.__annotations__}
    said["env"] = dict(pair(one, "--env") for one in options.env or ())
    asked = cast(JobOptions, said)
    request = read_command(options.command, site_file=options.site_file, **shape_options(asked))
    request = apply_options(request, asked)
    manifest = job_manifest(request)
    if request.ignored:
        complain(f"ignored: {', '.join(request.ignored)}")
    for note in notes_on(request):
        complain(f"note: {note}")

    async def work(cluster: ClusterAccess) -> int:
        return await _submit(
            cluster,
            manifest,
            options.output,
            dry_run=options.dry_run,
            waits=options.wait or options.attach or request.waits,
            attaches=options.attach,
            timeout=options.timeout,
        )

    if code := access.run(work):
        raise typer.Exit(code)


async def _submit(
    cluster: ClusterAccess,
    manifest: dict[str, Any],
    output: str,
    *,
    dry_run: bool,
    waits: bool,
    attaches: bool,
    timeout: str,
) -> int:
    from fluxqueue.client.batch.pod_connections import create_job
    from fluxqueue.workload.annotations import parse_duration

    limit = float(parse_duration(timeout, "--timeout")) if timeout else None
    made = await create_job(
        cluster.client,
        cluster.one_namespace,
        manifest,
        field_manager="kubectl-fluxqueue",
        dry_run=dry_run,
    )
    _tell(made, output, dry_run)
    if dry_run and output == "table":
        await _explain(cluster, manifest)
    if dry_run or not waits:
        return 0
    try:
        async with asyncio.timeout(limit):
            return await _until_ended(cluster, made, attaches)
    except TimeoutError:
        complain(f"fluxqueue: not ended within {timeout}, but it continues")
        return NOT_YET


async def _explain(cluster: ClusterAccess, manifest: dict[str, Any]) -> None:
    """Print when it would start. Users without the right to ask still see the dry run."""
    from fluxqueue.cli.user.explain import ask, tell
    from fluxqueue.client.refusals import sentence

    try:
        review = await ask(cluster, {"manifest": manifest}, EXPLAINED_WITHIN_S)
    except ApiError as error:
        complain(f"fluxqueue: not explained: {sentence(error)}")
    except ApiUnavailable as error:
        complain(f"fluxqueue: not explained: {error}")
    else:
        tell(review, "table", manifest["metadata"]["name"])


def _tell(job: dict[str, Any], output: str, dry_run: bool) -> None:
    name = job["metadata"]["name"]
    if output in {"json", "yaml"}:
        printing.document(job, output)
    elif output == "name":
        typer.echo(f"job.batch/{name}")
    else:
        typer.echo(f"{name}: submitted{' (dry run)' if dry_run else ''}")


async def _until_ended(cluster: ClusterAccess, job: dict[str, Any], attaches: bool) -> int:
    """Print each change of state on standard error, and the logs on standard output."""
    from fluxqueue.cli.user.waiting import until_state
    from fluxqueue.client.follower import FluxJobFollower
    from fluxqueue.client.handles import handle_of
    from fluxqueue.fluxjob.states import FluxJobState

    follower = FluxJobFollower(cluster.client, job["metadata"]["namespace"])
    try:
        handle = await handle_of(cluster.client, follower, job)
        logs = asyncio.create_task(_attach(handle, job)) if attaches else None
        code = await until_state(handle, frozenset({FluxJobState.COMPLETED.value}), complain)
        if logs is not None:
            await logs
    except NotQueued as error:
        complain(f"fluxqueue: {error}")
        return NEVER
    finally:
        await follower.close()
    return code


async def _attach(handle: AsyncJobHandle, job: dict[str, Any]) -> None:
    """Print the logs of each pod as they come. With several pods each line has a prefix."""
    is_many = job["spec"].get("completions", 1) != 1

    def no_logs(pod: str, error: Exception) -> None:
        complain(f"{pod}: no logs: {error}")

    async with aclosing(handle.logs(follow=True, on_trouble=no_logs)) as lines:
        async for line in lines:
            index = line.pod if line.index is None else str(line.index)
            typer.echo(f"{index}: {line.text}" if is_many else line.text)
