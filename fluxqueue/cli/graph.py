"""``fluxqueue graph``: the current cluster as a Flux graph (JGF) or as a picture (SVG, PNG).

Reads nodes and pods through the API server, so it needs no database; also hands the graph to
``resource-query --from-cluster``.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fluxqueue.errors import InvalidSettings

if TYPE_CHECKING:
    from fluxqueue.fluxjob.node import NodeFact
    from fluxqueue.graph.store import ResourceGraph

PICTURES = (".svg", ".png")


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Nodes, and what all bound pods use of each: node -> resource -> base units."""

    nodes: list[NodeFact]
    used: dict[str, dict[str, int]]


def graph(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="FILE.json, FILE.svg or FILE.png")
    ] = None,
    kubeconfig: Annotated[Path | None, typer.Option(help="which cluster")] = None,
    level: Annotated[
        list[str] | None, typer.Option(help="node label that becomes a level; may be repeated")
    ] = None,
    whole: Annotated[bool, typer.Option("--whole", help="all there is, not only the free")] = False,
) -> None:
    """Export the cluster's graph as JGF, or draw its topology with the occupancy of each node."""
    import orjson

    from fluxqueue.graph.cluster_graph import DEFAULT_LEVELS, build_cluster_graph, whole_jgf

    view = asyncio.run(read_cluster(kubeconfig))
    levels = tuple(level or DEFAULT_LEVELS)
    if output is not None and output.suffix in PICTURES:
        from fluxqueue.cli.drawing import draw

        draw(view, levels, output)
        typer.echo(f"wrote {output}")
        return
    built = build_cluster_graph(view.nodes, view.used, levels=levels, is_whole=whole)
    text = orjson.dumps(whole_jgf(built)).decode()
    if output is None:
        typer.echo(text)
        return
    output.write_text(text + "\n", encoding="utf-8")
    typer.echo(f"wrote {output}: {len(built)} vertices")


def graph_from_cluster() -> ResourceGraph:
    """The graph of what is free now in the cluster that kubectl would use."""
    from fluxqueue.graph.cluster_graph import build_cluster_graph

    view = asyncio.run(read_cluster(None))
    return build_cluster_graph(view.nodes, view.used)


async def read_cluster(kubeconfig: Path | None) -> ClusterView:
    """Read nodes, and the requests of all pods that are bound and have not ended.

    Raises
    ------
    InvalidSettings
        No usable kubeconfig, or the cluster has no nodes.
    """
    from fluxqueue.kube.client import KubeClient
    from fluxqueue.kube.config import load_config
    from fluxqueue.kube.resources import NODES, PODS
    from fluxqueue.workload.nodes import foreign_pod, node_fact

    config = load_config(str(kubeconfig) if kubeconfig else None)
    async with KubeClient(config) as client:
        nodes = [node_fact(node) for node in (await client.list(NODES)).items]
        pods: list[dict[str, Any]] = (await client.list(PODS)).items
    if not nodes:
        raise InvalidSettings("the cluster has no nodes", where=config.server)
    used: dict[str, dict[str, int]] = {}
    for pod in filter(None, map(foreign_pod, pods)):
        on_node = used.setdefault(pod.node, {})
        for name, amount in pod.resources.items():
            on_node[name] = on_node.get(name, 0) + amount
    return ClusterView(sorted(nodes, key=lambda node: (len(node.name), node.name)), used)
