"""``fluxqueue graph``: the current cluster as a Flux graph (JGF) or as a picture (SVG, PNG).

Reads nodes and pods through the API server, so it needs no database; also hands the graph to
``resource-query --from-cluster``.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fluxqueue.errors import InvalidSettings

if TYPE_CHECKING:
    from fluxqueue.fluxjob.node import NodeFact
    from fluxqueue.graph.store import ResourceGraph

PICTURES = (".svg", ".png")
MEMORY_GRANULE_BYTES = 1 << 32
"""One memory vertex is 4 GiB: Flux gives vertices as a whole."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Nodes, and what all bound pods use of each: node -> resource -> base units."""

    nodes: list[NodeFact]
    used: dict[str, dict[str, int]]

    def free_nodes(self) -> list[NodeFact]:
        """The nodes with only what nobody uses as their capacity."""
        return [
            replace(
                node,
                capacity={
                    name: max(0, amount - self.used.get(node.name, {}).get(name, 0))
                    for name, amount in node.capacity.items()
                },
            )
            for node in self.nodes
        ]


def graph(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="FILE.json, FILE.svg or FILE.png")
    ] = None,
    kubeconfig: Annotated[Path | None, typer.Option(help="which cluster")] = None,
    level: Annotated[
        list[str] | None,
        typer.Option(help="TYPE=NODE-LABEL, a level of the graph; may be repeated, top first"),
    ] = None,
    whole: Annotated[bool, typer.Option("--whole", help="all there is, not only the free")] = False,
) -> None:
    """Export the cluster's graph as JGF, or draw its topology with the occupancy of each node."""
    import orjson

    from fluxqueue.graph.export import whole_jgf
    from fluxqueue.graph.from_nodes import DEFAULT_LEVELS, graph_from_nodes

    view = asyncio.run(read_cluster(kubeconfig))
    levels = _levels(level) if level else DEFAULT_LEVELS
    if output is not None and output.suffix in PICTURES:
        from fluxqueue.cli.drawing import draw

        draw(view, [label for _, label in levels], output)
        typer.echo(f"wrote {output}")
        return
    nodes = view.nodes if whole else view.free_nodes()
    built = graph_from_nodes(nodes, levels=levels, memory_granule_bytes=MEMORY_GRANULE_BYTES)
    text = orjson.dumps(whole_jgf(built)).decode()
    if output is None:
        typer.echo(text)
        return
    output.write_text(text + "\n", encoding="utf-8")
    typer.echo(f"wrote {output}: {len(built)} vertices")


def graph_from_cluster() -> ResourceGraph:
    """The graph of what is free now in the cluster that kubectl would use."""
    from fluxqueue.graph.from_nodes import graph_from_nodes

    view = asyncio.run(read_cluster(None))
    return graph_from_nodes(view.free_nodes(), memory_granule_bytes=MEMORY_GRANULE_BYTES)


def _levels(given: list[str]) -> tuple[tuple[str, str], ...]:
    pairs = [text.partition("=") for text in given]
    for text, (kind, _, label) in zip(given, pairs, strict=True):
        if not kind or not label:
            raise InvalidSettings(
                f"{text!r} is no level", where="--level", value=text, hint="zone=my.org/zone"
            )
    return tuple((kind, label) for kind, _, label in pairs)


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
