"""``fluxqueue graph``: the current cluster as a Flux graph (JGF) or as a picture (SVG, PNG).

Reads nodes and pods through the API server, so it needs no database; also hands the graph to
``resource-query --from-cluster``.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fluxqueue.errors import InvalidSettings

if TYPE_CHECKING:
    from fluxqueue.graph.store import ResourceGraph

PICTURES = (".svg", ".png")
MEMORY_GRANULE_BYTES = 1 << 32
"""One memory vertex is 4 GiB: Flux gives vertices as a whole."""


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

    from fluxqueue.cli.cluster_view import read_cluster
    from fluxqueue.graph.formats.export import whole_jgf
    from fluxqueue.graph.from_nodes import DEFAULT_LEVELS, graph_from_nodes

    if output is not None:
        _check_output(output)
    levels = _levels(level) if level else DEFAULT_LEVELS
    view = asyncio.run(read_cluster(kubeconfig))
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


def graph_from_cluster(takes_shares: bool) -> ResourceGraph:
    """The graph of what is free now in the cluster that kubectl would use; with ``takes_shares``
    one consumable pool per resource (``cpu`` in millicores), what is used being used by others."""
    from fluxqueue.cli.cluster_view import read_cluster
    from fluxqueue.graph.from_nodes import graph_from_nodes

    view = asyncio.run(read_cluster(None))
    if takes_shares:
        return graph_from_nodes(view.nodes, takes_shares=True, foreign=view.used)
    return graph_from_nodes(view.free_nodes(), memory_granule_bytes=MEMORY_GRANULE_BYTES)


def _check_output(output: Path) -> None:
    """Refuse before anything is read what could not be written at the end."""
    if output.suffix not in (".json", *PICTURES):
        raise InvalidSettings(
            f"{output.suffix or 'no suffix'} is no format that can be written",
            where=str(output),
            hint=f"one of .json, {', '.join(PICTURES)}",
        )
    if output.is_dir() or not output.absolute().parent.is_dir():
        raise InvalidSettings("cannot be written: no such folder, or a folder", where=str(output))


def _levels(given: list[str]) -> tuple[tuple[str, str], ...]:
    pairs = [text.partition("=") for text in given]
    for text, (kind, _, label) in zip(given, pairs, strict=True):
        if not kind or not label:
            raise InvalidSettings(
                f"{text!r} is no level", where="--level", value=text, hint="zone=my.org/zone"
            )
    return tuple((kind, label) for kind, _, label in pairs)
