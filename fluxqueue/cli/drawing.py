"""The picture of ``fluxqueue graph``: one box per node, filled by its use, grouped by level.

It needs matplotlib (extra ``draw``), which nothing else imports.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fluxqueue.errors import InvalidSettings
from fluxqueue.fluxjob.levels import UNKNOWN, Levels, levels_in_use, path_of
from fluxqueue.fluxjob.request import CPU
from fluxqueue.process.distribution import install_command

if TYPE_CHECKING:
    from fluxqueue.client.cluster_view import ClusterView
    from fluxqueue.fluxjob.node import NodeFact

COLUMNS_MAX = 20
USED, FREE, DOWN = "#3b6ea5", "#e6edf5", "#c9c9c9"


def draw(view: ClusterView, levels: Levels, output: Path) -> None:
    """Draw topology and occupancy into ``output``. Its suffix selects the format.

    Raises
    ------
    InvalidSettings
        matplotlib is not installed.
    """
    try:
        import matplotlib
    except ImportError as error:
        raise InvalidSettings(
            "drawing needs matplotlib", where=str(output), hint=install_command("draw")
        ) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    groups = _group(view.nodes, levels_in_use(levels, view.nodes))
    rows = sum(math.ceil(len(group) / COLUMNS_MAX) + 1 for group in groups.values())
    width = min(COLUMNS_MAX, max(map(len, groups.values())))
    figure, axes = pyplot.subplots(figsize=(1.0 + 0.8 * width, 0.6 + 0.7 * rows))
    top = 0.0
    for title, group in groups.items():
        axes.text(0, -top - 0.65, title, fontsize=9, fontweight="bold", va="center")
        for position, node in enumerate(group):
            row, column = divmod(position, COLUMNS_MAX)
            _box(axes, node, view.used.get(node.name, {}), column, -top - 2 - row)
        top += 1 + math.ceil(len(group) / COLUMNS_MAX)
    axes.set_xlim(-0.1, width + 0.1)
    axes.set_ylim(-top - 0.1, 0)
    axes.axis("off")
    figure.tight_layout()
    figure.savefig(output, dpi=150)
    pyplot.close(figure)


def _group(nodes: Sequence[NodeFact], levels: Levels) -> dict[str, list[NodeFact]]:
    groups: dict[str, list[NodeFact]] = {}
    for node in nodes:
        parts = [place or UNKNOWN for place in path_of(levels, node.labels)]
        groups.setdefault(" / ".join(["cluster", *parts]), []).append(node)
    return dict(sorted(groups.items()))


def _box(axes: Any, node: NodeFact, used: dict[str, int], x: float, y: float) -> None:
    from matplotlib.patches import Rectangle

    total = node.capacity.get(CPU, 0)
    share = min(1.0, used.get(CPU, 0) / total) if total else 0.0
    is_open = node.is_up and node.is_schedulable
    axes.add_patch(Rectangle((x + 0.05, y + 0.1), 0.9, 0.8, facecolor=FREE if is_open else DOWN))
    axes.add_patch(Rectangle((x + 0.05, y + 0.1), 0.9 * share, 0.8, facecolor=USED))
    label = f"{node.name}\n{used.get(CPU, 0) / 1000:g}/{total / 1000:g} cpu"
    axes.text(x + 0.5, y + 0.5, label, ha="center", va="center", fontsize=6)
