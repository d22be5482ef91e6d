"""``fluxqueue pools discover``: FluxNodePools for what brings nodes to this cluster already.

It reads what Karpenter and cluster-autoscaler have stored, with the rights of its
user, and prints YAML to review. The proposals are made by ``nodepools.proposals``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from fluxqueue.cli.messages import complain
from fluxqueue.cli.user.access import Access, ClusterAccess, with_access
from fluxqueue.errors import InvalidInput

if TYPE_CHECKING:
    from fluxqueue.nodepools.cluster.pool_sources import PoolSources
    from fluxqueue.nodepools.proposals.proposal import PoolProposal

STATUS = "kube-system/cluster-autoscaler-status"

app = typer.Typer(no_args_is_help=True, help="Node pools: what could bring nodes to this cluster.")


@app.callback()
def pools() -> None:
    """Node pools: what could bring nodes to this cluster."""


@app.command()
@with_access(is_namespaced=False)
def discover(
    access: Access,
    status: Annotated[
        str, typer.Option(help="NAMESPACE/NAME of the status ConfigMap of cluster-autoscaler")
    ] = STATUS,
    apply: Annotated[
        bool, typer.Option("--apply", help="create the pools that do not exist yet")
    ] = False,
) -> None:
    """Print a FluxNodePool for each shape of node that an autoscaler could add.

    Shapes come from NodeClaims of Karpenter and from present nodes. Comments say what to check
    and to fill in. Annotations name the source of each pool, which the pool then follows.

    Examples:

      fluxqueue pools discover > pools.yaml

      fluxqueue pools discover --apply
    """
    namespace, _, name = status.partition("/")
    if not namespace or not name or "/" in name:
        raise InvalidInput(
            f"{status!r} is not valid",
            where="--status",
            value=status,
            hint=f"give NAMESPACE/NAME, such as {STATUS}",
        )

    async def work(cluster: ClusterAccess) -> None:
        from fluxqueue.nodepools.cluster.pool_sources import read_pool_sources
        from fluxqueue.nodepools.proposals.proposal import render

        sources = await read_pool_sources(cluster.client, (namespace, name))
        proposals = sources.proposals()
        typer.echo(render(proposals, _notes(sources)), nl=False)
        if not proposals:
            complain("no NodePool and no node group was found")
        if apply:
            await _apply(cluster, proposals)

    access.run(work)


def _notes(sources: PoolSources) -> list[str]:
    notes = list(sources.notes)
    if sources.provisioning_classes is not None:
        known = ", ".join(sources.provisioning_classes) or "none is in use"
        notes.append(f"ProvisioningRequests are served. Classes in use: {known}.")
    return notes


async def _apply(cluster: ClusterAccess, proposals: list[PoolProposal]) -> None:
    """Create the proposed pools. One that exists already stays as it is."""
    from fluxqueue.errors import Conflict
    from fluxqueue.kube.resources import FLUX_NODE_POOLS

    for one in proposals:
        if one.spec is None:
            continue
        try:
            await cluster.client.create(FLUX_NODE_POOLS, None, one.manifest())
        except Conflict:
            complain(f"fluxnodepool {one.name} exists already, and stays as it is")
            continue
        complain(f"fluxnodepool {one.name} created")
