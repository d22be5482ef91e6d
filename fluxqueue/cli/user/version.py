"""``fluxqueue version``: the versions of this command, of the cluster, and of our API there."""

from __future__ import annotations

from typing import Annotated

import typer

from fluxqueue import __version__
from fluxqueue.cli.user.access import Access, ClusterAccess, with_access


@with_access(is_namespaced=False)
def version(
    access: Access,
    client: Annotated[
        bool, typer.Option("--client", help="only the version of this command")
    ] = False,
    output: Annotated[str, typer.Option("--output", "-o", help="table, json or yaml")] = "table",
) -> None:
    """Print the versions of this command, of Kubernetes, and of our API in the cluster."""
    from fluxqueue.cli.user import printing

    printing.check_output(output, ("table", "json", "yaml"))
    found = {"client": __version__, **({} if client else access.run(_ask))}
    if output != "table":
        printing.document(found, output)
        return
    for name, value in found.items():
        typer.echo(f"{name}: {value}")


async def _ask(cluster: ClusterAccess) -> dict[str, str]:
    from fluxqueue.errors import NotFound
    from fluxqueue.kube.resources import FLUXJOBS

    kubernetes = await cluster.client.request("GET", "/version")
    try:
        group = await cluster.client.request("GET", f"/apis/{FLUXJOBS.group}")
        served = ", ".join(one["groupVersion"] for one in group["versions"])
    except NotFound:
        served = "not installed"
    return {"kubernetes": kubernetes["gitVersion"], "api": served}
