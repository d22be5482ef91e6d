"""``fluxqueue hold|release|requeue|priority|move|cancel`` and ``drain|undrain``.

Each is one patch. A command writes the requested change into the FluxJob's spec. Admission checks
it in the user's own name, and the controller carries it out. So the rights are those of RBAC, and
the API server's audit log and ``history`` show each change with its user.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fluxqueue.cli.messages import complain
from fluxqueue.cli.user import printing
from fluxqueue.cli.user.access import REFUSED, Access, ClusterAccess, with_access
from fluxqueue.cli.user.complete import complete_jobs, complete_nodes, complete_queues
from fluxqueue.client.refusals import sentence
from fluxqueue.errors import ApiError, InvalidInput

if TYPE_CHECKING:
    from fluxqueue.kube.resources import ApiResource

FIELD_MANAGER = "kubectl-fluxqueue"
INT32 = range(-(2**31), 2**31)

Names = Annotated[
    list[str],
    typer.Argument(help="names of workloads or FluxJobs, or jobids", autocompletion=complete_jobs),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="let the API server check it, and change nothing")
]
Output = Annotated[
    str, typer.Option("--output", "-o", help="table (a sentence), json, yaml or name")
]
Write = Callable[[ClusterAccess, Mapping[str, Any], bool], Awaitable[Any]]


def _patching(spec: Mapping[str, Any]) -> Write:
    async def write(cluster: ClusterAccess, fluxjob: Mapping[str, Any], dry_run: bool) -> None:
        from fluxqueue.kube import steer

        await steer.change_spec(cluster.client, fluxjob, spec, dry_run=dry_run)

    return write


def _by_name(verb: str) -> Write:
    async def write(cluster: ClusterAccess, fluxjob: Mapping[str, Any], dry_run: bool) -> None:
        from fluxqueue.kube import steer

        await getattr(steer, verb)(cluster.client, fluxjob, dry_run=dry_run)

    return write


@with_access()
def hold(access: Access, names: Names, dry_run: DryRun = False, output: Output = "table") -> None:
    """Keep waiting jobs from starting until they are released."""

    _steer(access, names, _by_name("hold"), "hold", dry_run, output)


@with_access()
def release(
    access: Access, names: Names, dry_run: DryRun = False, output: Output = "table"
) -> None:
    """Return held jobs to their places in the queue."""

    _steer(access, names, _by_name("release"), "release", dry_run, output)


@with_access()
def requeue(
    access: Access, names: Names, dry_run: DryRun = False, output: Output = "table"
) -> None:
    """End the pods of running jobs and return these to their old place in the queue."""
    _steer(access, names, _by_name("requeue"), "requeue", dry_run, output)


@with_access()
def priority(
    access: Access,
    names: Names,
    value: Annotated[int | None, typer.Option("--set", help="higher goes first")] = None,
    clear: Annotated[
        bool, typer.Option("--clear", help="return to the priority of its author")
    ] = False,
    dry_run: DryRun = False,
    output: Output = "table",
) -> None:
    """Set the priority of jobs: `priority NAME... N`, or --set N, or --clear."""
    if value is None and not clear and len(names) > 1:
        names, value = names[:-1], _number(names[-1])
    if (value is None) != clear:
        raise InvalidInput("needs a number or --clear", where="priority", hint="priority train 10")
    if value is not None and value not in INT32:
        raise InvalidInput("is out of range", where="priority", value=value, hint="a 32-bit number")
    if clear and len(names) > 1 and names[-1].isdigit() and not all(map(str.isdigit, names)):
        # The number would be read as a jobid, and would change a job that was not meant.
        raise InvalidInput(
            "a number and --clear cannot be combined", where="PRIORITY", value=names[-1],
            hint="leave out one of them, or put a jobid before the names",
        )  # fmt: skip
    what = "return to its author's priority" if clear else f"priority {value}"
    _steer(access, names, _patching({"priority": value}), what, dry_run, output)


@with_access()
def move(
    access: Access,
    names: Names,
    queue: Annotated[
        str, typer.Option("--to", help="name of the queue", autocompletion=complete_queues)
    ] = "",
    dry_run: DryRun = False,
    output: Output = "table",
) -> None:
    """Move waiting jobs to another queue: `move NAME... QUEUE`, or --to QUEUE."""
    if not queue and len(names) > 1:
        names, queue = names[:-1], names[-1]
    if not queue:
        raise InvalidInput(
            "needs the name of a queue", where="--to", hint="fluxqueue move train batch"
        )

    async def write(cluster: ClusterAccess, fluxjob: Mapping[str, Any], dry_run: bool) -> None:
        await _check_queue(cluster, queue)
        await _patching({"queue": queue})(cluster, fluxjob, dry_run)

    _steer(access, names, write, f"move to queue {queue}", dry_run, output)


async def _check_queue(cluster: ClusterAccess, name: str) -> None:
    """Refuse a queue that does not exist, if there are queues that the user may list."""
    from fluxqueue.kube.resources import FLUXQUEUES

    try:
        known = [one["metadata"]["name"] for one in (await cluster.client.list(FLUXQUEUES)).items]
    except ApiError as error:
        if error.code not in {403, 404}:
            raise
        return
    if known and name not in known:
        raise InvalidInput(f"there is no queue {name!r}", hint=f"choose {', '.join(sorted(known))}")


@with_access()
def cancel(access: Access, names: Names, dry_run: DryRun = False, output: Output = "table") -> None:
    """Delete jobs, waiting or running."""

    _steer(access, names, _by_name("cancel"), "cancellation", dry_run, output)


def _number(text: str) -> int:
    with suppress(ValueError):
        return int(text)
    raise InvalidInput(f"{text!r} is not a number", where="PRIORITY", value=text, hint="or --clear")


def _steer(
    access: Access, names: Sequence[str], write: Write, what: str, dry_run: bool, output: str
) -> None:
    """Do it for each name and print each result. Exit with 1 if one was refused."""
    printing.check_output(output, ("table", "json", "yaml", "name"))

    async def all_of_them(cluster: ClusterAccess) -> list[dict[str, Any]]:
        return [await _one(cluster, name, write, what, dry_run) for name in names]

    outcomes = access.run(all_of_them)
    is_data = output in {"json", "yaml"}
    if is_data:
        printing.document(outcomes, output)
    for one in outcomes:
        if not one["isDone"] and not is_data:
            complain(f"{one['reference']}: {one['message']}")
        elif output == "name":
            typer.echo(f"fluxjob.jobs.converged-computing.org/{one['fluxjob']}")
        elif output == "table":
            typer.echo(f"{one['fluxjob']}{_numbered(one)}: {one['message']}")
    if not all(one["isDone"] for one in outcomes):
        raise typer.Exit(REFUSED)


def _numbered(outcome: Mapping[str, Any]) -> str:
    return f" (job {outcome['jobid']})" if outcome["jobid"] else ""


async def _one(
    cluster: ClusterAccess, reference: str, write: Write, what: str, dry_run: bool
) -> dict[str, Any]:
    from fluxqueue.client.fluxjob_lists import find

    outcome: dict[str, Any] = {"reference": reference, "fluxjob": "", "jobid": None}
    try:
        fluxjob = await find(cluster.client, cluster.one_namespace, reference)
        outcome["fluxjob"] = fluxjob["metadata"]["name"]
        outcome["jobid"] = (fluxjob.get("status") or {}).get("jobid")
        await write(cluster, fluxjob, dry_run)
    except ApiError as error:
        return {**outcome, "isDone": False, "message": sentence(error)}
    except InvalidInput as error:
        way_out = f". Fix: {error.hint}" if error.hint else ""
        return {**outcome, "isDone": False, "message": f"{error.message}{way_out}"}
    return {
        **outcome,
        "isDone": True,
        "message": f"{what} requested{' (dry run)' if dry_run else ''}",
    }


NodeNames = Annotated[
    list[str], typer.Argument(help="names of nodes", autocompletion=complete_nodes)
]


@with_access(is_namespaced=False)
def drain(
    access: Access,
    nodes: NodeNames,
    reason: Annotated[
        str, typer.Option("--reason", "-r", help="reason that `nodes -o wide` shows")
    ],
    dry_run: DryRun = False,
) -> None:
    """Start nothing more on nodes. Running jobs there finish, waiting jobs use other nodes."""
    _cordon(access, nodes, True, reason, dry_run)


@with_access(is_namespaced=False)
def undrain(access: Access, nodes: NodeNames, dry_run: DryRun = False) -> None:
    """Start jobs on nodes again."""
    _cordon(access, nodes, False, None, dry_run)


def _cordon(
    access: Access, nodes: Sequence[str], is_on: bool, reason: str | None, dry_run: bool
) -> None:
    from fluxqueue.kube.resources import NODES
    from fluxqueue.workload.labels import DRAIN_REASON

    if not all(nodes):
        raise InvalidInput("the name of the node is empty", where="NODE", hint="fluxqueue nodes")
    patch = {
        "metadata": {"annotations": {DRAIN_REASON: reason}},
        "spec": {"unschedulable": True if is_on else None},
    }

    async def all_of_them(cluster: ClusterAccess) -> list[str]:
        return [await _patch(cluster, NODES, name, patch, dry_run) for name in nodes]

    refusals = access.run(all_of_them)
    for name, refusal in zip(nodes, refusals, strict=True):
        said = f"takes {'no new jobs' if is_on else 'jobs again'}{' (dry run)' * dry_run}"
        typer.echo(f"{name}: {refusal or said}", err=bool(refusal))
    if any(refusals):
        raise typer.Exit(REFUSED)


async def _patch(
    cluster: ClusterAccess,
    resource: ApiResource,
    name: str,
    patch: Mapping[str, Any],
    dry_run: bool,
) -> str:
    """Patch one object. Return an empty text, or the refusal."""
    try:
        await cluster.client.patch(
            resource, None, name, patch, field_manager=FIELD_MANAGER, dry_run=dry_run
        )
    except ApiError as error:
        return sentence(error)
    return ""
