"""``fluxqueue adopt``: put a namespace under management, and say before what would change.

It reads the objects of the namespace and the FluxQueues. Its only change is the label of the
namespace. Work that is already there continues.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fluxqueue.cli.messages import complain
from fluxqueue.cli.user import printing
from fluxqueue.cli.user.access import REFUSED, Access, ClusterAccess, with_access
from fluxqueue.errors import InvalidInput

if TYPE_CHECKING:
    from fluxqueue.workload.adoption_plan import PlannedChange
    from fluxqueue.workload.aliases import Aliases

OUTPUTS = ("table", "json", "yaml")
HEADERS = ("KIND", "NAME", "NOW", "QUEUE", "REASON")


@with_access()
def adopt(
    access: Access,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only list what would change")] = False,
    aliases: Annotated[str, typer.Option(help="FLUXQUEUE_ALIASES of the installation")] = "kueue",
    queue_names: Annotated[
        str, typer.Option(help="FLUXQUEUE_QUEUE_NAMES of the installation")
    ] = "",
    output: Annotated[str, typer.Option("--output", "-o", help=", ".join(OUTPUTS))] = "table",
) -> None:
    """Manage a namespace: list what changes for its objects, and label it.

    Objects with labels of Kueue are listed as they would be read here. Work that runs continues,
    and its pods count as unmanaged. Work that waits elsewhere has to be created again.
    """
    from fluxqueue.workload.aliases import parse_aliases

    if output not in OUTPUTS:
        hint = ", ".join(OUTPUTS)
        raise InvalidInput(
            f"{output!r} is not an output format", where="-o", value=output, hint=hint
        )
    known = parse_aliases(aliases, queue_names)

    async def work(cluster: ClusterAccess) -> list[PlannedChange]:
        from fluxqueue.client.fluxjob_lists import check_namespace

        await check_namespace(cluster.client, cluster.one_namespace)
        found = await _plan(cluster, known)
        if not dry_run and not any(one.is_problem for one in found):
            await _label(cluster)
        return found

    found = access.run(work)
    _print(found, output)
    problems = sum(one.is_problem for one in found)
    if problems:
        complain(f"fluxqueue: {problems} of {len(found)} objects need a change first")
        raise typer.Exit(REFUSED)
    if output == "table":
        typer.echo("nothing was changed (dry run)" if dry_run else "the namespace is managed")


async def _plan(cluster: ClusterAccess, aliases: Aliases) -> list[PlannedChange]:
    from fluxqueue.kube.discovery import find_served
    from fluxqueue.kube.resources import FLUXQUEUES, JOBS, PODS
    from fluxqueue.workload.adoption_plan import DEFAULT_QUEUE, plan_change
    from fluxqueue.workload.owner_kinds import OwnerKinds

    client, namespace, kinds = cluster.client, cluster.one_namespace, OwnerKinds()
    listed = (await client.list(FLUXQUEUES)).items
    queues = {DEFAULT_QUEUE, *(one["metadata"]["name"] for one in listed)}
    wanted = {(one.group, one.kind) for one in kinds}
    found = []
    for resource in (JOBS, PODS, *await find_served(client, wanted)):
        of = {"apiVersion": resource.api_version, "kind": resource.kind}
        async for page in client.pages(resource, namespace):
            for item in page.items:
                one = plan_change({**of, **item}, namespace, aliases, kinds, queues)
                if one is not None:
                    found.append(one)
    return found


async def _label(cluster: ClusterAccess) -> None:
    from fluxqueue.kube.resources import NAMESPACES
    from fluxqueue.workload import labels

    body: dict[str, Any] = {"metadata": {"labels": {labels.MANAGED: "true"}}}
    await cluster.client.patch(NAMESPACES, None, cluster.one_namespace, body)


def _print(found: Sequence[PlannedChange], output: str) -> None:
    if output != "table":
        printing.document([dataclasses.asdict(one) for one in found], output)
        return
    if found:
        rows = [(one.kind, one.name, one.now, one.queue, one.note) for one in found]
        printing.TextTable(HEADERS).write(rows)
