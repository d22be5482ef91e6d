"""``fluxqueue graph``: the present cluster as a Flux graph (JGF) or a picture (SVG, PNG).

It reads nodes and pods through the API server, so it needs no database. It also makes the graph for
``resource-query --from-cluster``.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fluxqueue.cli.user.printing import cut, terminal_width
from fluxqueue.errors import InvalidSettings

if TYPE_CHECKING:
    from fluxion.model.store import ResourceGraph
    from fluxqueue.fluxjob.levels import Levels
    from fluxqueue.fluxjob.node import NodeFact

PICTURES = (".svg", ".png")
MEMORY_GRANULE_BYTES = 1 << 32
"""One memory vertex is 4 GiB, because Flux allocates whole vertices."""


def graph(
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="FILE.json, FILE.svg or FILE.png")
    ] = None,
    kubeconfig: Annotated[Path | None, typer.Option(help="which cluster")] = None,
    level: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME=NODE-LABEL instead of FLUXQUEUE_LEVELS, repeat with the top level first"
        ),
    ] = None,
    whole: Annotated[
        bool, typer.Option("--whole", help="all capacity, not only what is free")
    ] = False,
    shows_levels: Annotated[
        bool, typer.Option("--levels", help="show the levels and the number of places of each")
    ] = False,
) -> None:
    """Export the cluster's graph as JGF, or draw its topology and the use of each node."""
    from fluxqueue.client.cluster_view import read_cluster
    from fluxqueue.fluxjob.levels import parse_levels

    if output is not None:
        _check_output(output)
    levels = parse_levels(",".join(level), "--level") if level else configured_levels()
    view = asyncio.run(read_cluster(kubeconfig))
    if shows_levels:
        typer.echo(render_levels(levels, view.nodes, terminal_width()))
        return
    if output is not None and output.suffix in PICTURES:
        from fluxqueue.cli.drawing import draw

        draw(view, levels, output)
        typer.echo(f"wrote {output}")
        return
    import orjson

    from fluxion.formats.export import whole_jgf
    from fluxion.model.from_nodes import graph_from_nodes

    nodes = view.nodes if whole else view.free_nodes()
    built = graph_from_nodes(nodes, levels=levels, memory_granule_bytes=MEMORY_GRANULE_BYTES)
    text = orjson.dumps(whole_jgf(built)).decode()
    if output is None:
        typer.echo(text)
        return
    output.write_text(text + "\n", encoding="utf-8")
    typer.echo(f"wrote {output}: {len(built)} vertices")


def configured_levels() -> Levels:
    """Return the levels from the environment, as the controller and the workers read them."""
    from fluxqueue.fluxjob.levels import parse_levels
    from fluxqueue.process.settings import Settings

    return parse_levels(Settings.from_env(os.environ).levels)


def render_levels(levels: Levels, nodes: Sequence[NodeFact], width: int = 0) -> str:
    """Return a table of the levels, top first.

    ``fluxqueue/within`` takes a name or a label from it. ``width`` cuts the lines, 0 does not.
    """
    from fluxqueue.fluxjob.tree import count_levels

    rows = [("LEVEL", "PLACES", "NODES", "UNKNOWN", "LABELS")]
    for one in count_levels(levels, nodes):
        labels = ", ".join(one.level.labels)
        counts = (str(one.places), str(one.nodes), str(one.unknown))
        rows.append((one.level.name, *counts, labels))
    ready = sum(node.is_up and node.is_schedulable for node in nodes)
    rows.append(("node", str(len(nodes)), str(ready), "0", "kubernetes.io/hostname"))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = (
        "   ".join([*(cell.ljust(w) for cell, w in zip(row, widths, strict=False)), row[4]])
        for row in rows
    )
    return "\n".join(cut(line, width) if width else line for line in lines)


def ask_cluster(text: bytes, policy: str | None) -> tuple[int, str]:
    """Return what the scheduling cycle would decide about a jobspec: exit status and words."""
    import time

    from fluxqueue.cli.what_if import ask, matcher_of, read_question
    from fluxqueue.client.cluster_view import read_cluster
    from fluxqueue.process.settings import Settings

    levels = configured_levels()
    jobspec = read_question(text, levels)
    view = asyncio.run(read_cluster(None))
    chosen = policy or Settings.from_env(os.environ).match_policy
    found = ask(matcher_of(view, levels, chosen), jobspec, int(time.time()))
    return found.status, found.text


def graph_from_cluster(takes_shares: bool) -> ResourceGraph:
    """Return the graph of what is free in the cluster that kubectl would use.

    With ``takes_shares`` it has one consumable pool per resource (``cpu`` in millicores). What is
    in use then counts as used by other pods.
    """
    from fluxion.model.from_nodes import graph_from_nodes
    from fluxqueue.client.cluster_view import read_cluster

    view = asyncio.run(read_cluster(None))
    if takes_shares:
        levels = configured_levels()
        return graph_from_nodes(view.nodes, levels=levels, takes_shares=True, foreign=view.used)
    return graph_from_nodes(
        view.free_nodes(), levels=configured_levels(), memory_granule_bytes=MEMORY_GRANULE_BYTES
    )


def resource_query(context: typer.Context) -> None:
    """Match by hand on any Fluxion graph, with resource-query's arguments and commands."""
    from fluxion.resource_query import main as run

    raise typer.Exit(run(context.args, from_cluster=graph_from_cluster, ask_cluster=ask_cluster))


def _check_output(output: Path) -> None:
    """Refuse an output that cannot be written, before anything is read."""
    if output.suffix not in (".json", *PICTURES):
        raise InvalidSettings(
            f"invalid output format {output.suffix or '(no suffix)'}",
            where=str(output),
            hint=f"one of .json, {', '.join(PICTURES)}",
        )
    if output.is_dir() or not output.absolute().parent.is_dir():
        raise InvalidSettings(
            "cannot be written: the folder does not exist, or the path is a folder",
            where=str(output),
        )
