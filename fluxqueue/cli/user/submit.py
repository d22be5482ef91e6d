"""``fluxqueue submit``: a Job from a command line or a script, with waiting and logs.

The Job is an ordinary one with our annotations: a manifest can say the same. Each of its pods runs
the command, as with srun. JOB_COMPLETION_INDEX distinguishes them.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from dataclasses import replace
from typing import Annotated, Any

import typer

from fluxqueue.cli.messages import complain
from fluxqueue.cli.user.access import NEVER, NOT_YET, Access, ClusterAccess, with_access
from fluxqueue.cli.user.complete import complete_queues
from fluxqueue.client.batch.job_manifest import (
    GPU,
    IMAGE_VARIABLE,
    job_manifest,
    local_time,
    read_command,
)
from fluxqueue.client.batch.site_names import VARIABLE
from fluxqueue.errors import ApiError, ApiUnavailable, InvalidInput, NotFound

APPEARS_S = 60.0
EXPLAINED_WITHIN_S = 30.0
_LOOK_S = 0.2


@with_access()
def submit(
    access: Access,
    command: Annotated[
        list[str], typer.Argument(help="a script with #FLUX: or #SBATCH lines, or -- and a command")
    ],
    image: Annotated[str, typer.Option(envvar=IMAGE_VARIABLE, help="container image")] = "",
    name: Annotated[str, typer.Option("--name", "-J", help="default: made from the command")] = "",
    nodes: Annotated[
        str, typer.Option("--nodes", "-N", help="number of different nodes for the pods")
    ] = "",
    tasks: Annotated[
        int, typer.Option("--tasks", min=0, help="number of pods, which start together")
    ] = 0,
    array: Annotated[
        str,
        typer.Option("--array", "-a", help="independent tasks: 0-99, 1,3,7, 0-99%4 (4 at once)"),
    ] = "",
    cpus: Annotated[str, typer.Option(help="per pod: 4, 500m")] = "",
    memory: Annotated[str, typer.Option("--memory", help="per pod: 4Gi")] = "",
    gpus: Annotated[int, typer.Option(min=0, help=f"per pod ({GPU})")] = 0,
    time: Annotated[
        str, typer.Option("--time", "-t", help="longest run: 90s, 2h30m, 1:30:00")
    ] = "",
    queue: Annotated[str, typer.Option("--queue", "-q", autocompletion=complete_queues)] = "",
    priority: Annotated[str, typer.Option(help="higher goes first")] = "",
    within: Annotated[str, typer.Option(help="all pods within one node, rack, zone, ...")] = "",
    depends_on: Annotated[str, typer.Option("--depends-on", help="afterok:a,b")] = "",
    begin: Annotated[str, typer.Option(help="not before: +2h, 2030-01-31T08:00:00Z")] = "",
    site_file: Annotated[
        str,
        typer.Option(
            "--directives",
            envvar=VARIABLE,
            help="file with the site's names for --constraint, --gres and --qos",
        ),
    ] = "",
    env: Annotated[list[str] | None, typer.Option("--env", "-e", help="NAME=VALUE")] = None,
    hold: Annotated[bool, typer.Option("--hold", help="hold it until it is released")] = False,
    exclusive: Annotated[bool, typer.Option("--exclusive", help="whole nodes")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="wait until it has ended")] = False,
    attach: Annotated[bool, typer.Option("--attach", help="wait, and print its logs")] = False,
    timeout: Annotated[str, typer.Option(help="with --wait or --attach: 15m, 2h")] = "",
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="show whether it is accepted, and when and where it would start"
        ),
    ] = False,
    output: Annotated[str, typer.Option("--output", "-o", help="table, name, json or yaml")] = (
        "table"
    ),
) -> None:
    """Submit a Job from a script or a command.

    Examples:

      fluxqueue submit --image python:3.13 --tasks 4 --cpus 2 -- python -c 'print("hello")'

      fluxqueue submit train.sh --image pytorch/pytorch --attach

      fluxqueue submit train.sh --array 0-99%8 --time 10m

      fluxqueue submit train.sh --dry-run -o yaml
    """
    from fluxqueue.client.batch.begin_time import begin_time
    from fluxqueue.client.batch.script_request import duration, pair
    from fluxqueue.workload.quantity import parse_quantity

    _check_output(output)
    for option, amount in (("--cpus", cpus), ("--memory", memory)):
        if amount:
            parse_quantity(amount, where=option)
    given: dict[str, Any] = {
        "name": name, "image": image, "cpus": cpus, "memory": memory, "queue": queue,
        "priority": priority, "within": within, "depends_on": depends_on,
        "begin": begin_time(begin, local_time(), "--begin") if begin else "",
        "duration": duration(time, "time", "submit") if time else "", "is_held": hold,
    }  # fmt: skip
    request = read_command(
        command,
        site_file=site_file,
        nodes=nodes,
        tasks=tasks,
        array=array,
        cpus=cpus,
        memory=memory,
        gpus=gpus,
        exclusive=exclusive,
    )
    request = replace(request, **{key: one for key, one in given.items() if one})
    pairs = [pair(one, "--env") for one in env or ()]
    request = replace(request, environment=(*request.environment, *pairs))
    manifest = job_manifest(request)
    if request.ignored:
        complain(f"ignored: {', '.join(request.ignored)}")

    async def work(cluster: ClusterAccess) -> int:
        return await _submit(
            cluster,
            manifest,
            output,
            dry_run=dry_run,
            waits=wait or attach or request.waits,
            attaches=attach,
            timeout=timeout,
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
    from fluxqueue.kube.resources import JOBS
    from fluxqueue.workload.annotations import parse_duration

    limit = float(parse_duration(timeout, "--timeout")) if timeout else None
    made = await cluster.client.create(
        JOBS, cluster.one_namespace, manifest, dry_run=dry_run, field_manager="kubectl-fluxqueue"
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


def _check_output(output: str) -> None:
    known = ("table", "name", "json", "yaml")
    if output not in known:
        raise InvalidInput(
            f"invalid output format {output!r}", where="-o", value=output, hint=", ".join(known)
        )


def _tell(job: dict[str, Any], output: str, dry_run: bool) -> None:
    name = job["metadata"]["name"]
    if output == "json":
        typer.echo(json.dumps(job, indent=2))
    elif output == "yaml":
        import yaml

        typer.echo(yaml.safe_dump(job, sort_keys=False), nl=False)
    elif output == "name":
        typer.echo(f"job.batch/{name}")
    else:
        typer.echo(f"{name}: submitted{' (dry run)' if dry_run else ''}")


async def _until_ended(cluster: ClusterAccess, job: dict[str, Any], attaches: bool) -> int:
    """Print each change of state on standard error, and the logs on standard output."""
    from fluxqueue.cli.user.waiting import until_state
    from fluxqueue.fluxjob.states import FluxJobState

    def tell(text: str) -> None:
        complain(text)

    fluxjob = await _appears(cluster, job)
    if fluxjob is None:
        return NEVER
    logs = asyncio.create_task(_attach(cluster, job)) if attaches else None
    code = await until_state(cluster, fluxjob, frozenset({FluxJobState.COMPLETED.value}), tell)
    if logs is not None:
        await logs
    return code


async def _appears(cluster: ClusterAccess, job: dict[str, Any]) -> dict[str, Any] | None:
    """Return the FluxJob of the Job, or None with a message if the controller makes none."""
    from fluxqueue.kube.resources import FLUXJOBS
    from fluxqueue.workload.fluxjob_name import name_for

    meta = job["metadata"]
    name, uid = name_for(meta["name"], "job"), meta["uid"]
    try:
        async with asyncio.timeout(APPEARS_S):
            while True:
                try:
                    found = await cluster.client.get(FLUXJOBS, cluster.one_namespace, name)
                    if found["spec"]["workload"]["uid"] == uid:
                        return found
                except NotFound:
                    pass
                await asyncio.sleep(_LOOK_S)
    except TimeoutError:
        typer.echo(
            f"fluxqueue: no FluxJob {name} after {APPEARS_S:.0f} s: does the controller run, "
            "and is the namespace managed?",
            err=True,
        )
        return None


async def _attach(cluster: ClusterAccess, job: dict[str, Any]) -> None:
    """Print the logs of each pod as they come. With several pods each line has a prefix."""
    from fluxqueue.kube.resources import JOBS, PODS

    namespace, name = cluster.one_namespace, job["metadata"]["name"]
    is_many = job["spec"].get("completions", 1) != 1
    running: dict[str, asyncio.Task[None]] = {}
    selector = f"batch.kubernetes.io/job-name={name}"
    while True:
        try:
            seen = await cluster.client.get(JOBS, namespace, name)
        except NotFound:
            seen = {}
        pods = (await cluster.client.list(PODS, namespace, label_selector=selector)).items
        for pod in pods:
            begun = (pod.get("status") or {}).get("phase") in {"Running", "Succeeded", "Failed"}
            if begun and pod["metadata"]["name"] not in running:
                running[pod["metadata"]["name"]] = asyncio.create_task(
                    _print_logs(cluster, pod, is_many)
                )
        conditions = (seen.get("status") or {}).get("conditions") or ()
        if not seen or any(
            one["type"] in {"Complete", "Failed"} and one["status"] == "True" for one in conditions
        ):
            break
        await asyncio.sleep(_LOOK_S)
    await asyncio.gather(*running.values())


async def _print_logs(cluster: ClusterAccess, pod: dict[str, Any], is_many: bool) -> None:
    from fluxqueue.kube.resources import PODS
    from fluxqueue.workload.labels import COMPLETION_INDEX

    meta = pod["metadata"]
    index = (meta.get("annotations") or {}).get(COMPLETION_INDEX, meta["name"])
    prefix = f"{index}: " if is_many else ""
    path = PODS.path(meta["namespace"], meta["name"], "log")
    try:
        async with aclosing(cluster.client.lines(path, {"follow": "true"})) as lines:
            async for line in lines:
                typer.echo(f"{prefix}{line.decode('utf-8', 'replace')}")
    except (ApiError, ApiUnavailable) as error:
        complain(f"{meta['name']}: no logs: {error}")
