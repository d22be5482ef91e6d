"""The Gantt chart of simulated schedules: nodes by time, one panel per policy.

A job is a block as high as the cores it holds on each node. Blue jobs started in their turn, orange
jobs were backfilled. A node is dark grey while it was down. The curve below each panel is the
number of pending jobs. matplotlib (extra ``draw``) draws it for ``fluxqueue sim``.
"""

from __future__ import annotations

import colorsys
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fluxqueue.errors import InvalidSettings
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.request import CPU
from fluxqueue.process.distribution import install_command
from fluxqueue.simulation.schedule_figures import Figures, clock
from fluxqueue.simulation.simulated_jobs import NodeEvent
from fluxqueue.simulation.simulator import RunRecord

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PICTURES = (".svg", ".png", ".pdf")
LANES_MAX = 64
"""Most cores of a node that are drawn one by one. On larger nodes several share a lane."""

IN_TURN_HUE, BACKFILLED_HUE = 0.58, 0.075
DOWN = "#4a4a4a"
QUEUE = "#b03a48"
NODE_LABELS_MAX = 40
LABEL_SHARE = 0.012
LABEL_ROWS = 0.8
"""Smaller blocks have no number.

The limits are a share of the axis for the width, and rows for the height.
"""


@dataclass(frozen=True, slots=True)
class Panel:
    """One policy's run to draw."""

    figures: Figures
    records: Sequence[RunRecord]
    nodes: Sequence[NodeFact]
    faults: Sequence[NodeEvent] = ()


@dataclass(frozen=True, slots=True)
class GanttBlock:
    """A rectangle: job, time span (seconds), and rows from the top (a node is one row high)."""

    record: RunRecord
    since: int
    until: int
    top: float
    height: float


def check_format(output: Path) -> None:
    """Raise unless the suffix is in ``PICTURES``. Called before the work to draw."""
    if output.suffix not in PICTURES:
        raise InvalidSettings(
            f"cannot draw a {output.suffix or 'file without a suffix'}",
            where=str(output),
            hint=f"one of {', '.join(PICTURES)}",
        )
    if not output.parent.is_dir():
        raise InvalidSettings(
            "there is no such folder", where=str(output.parent), hint="create it first"
        )


def draw(panels: Sequence[Panel], output: Path) -> None:
    """Draw all panels below each other into ``output``. Its suffix gives the format.

    Raises
    ------
    InvalidSettings
        matplotlib is not installed, or the suffix is not in ``PICTURES``.
    """
    check_format(output)
    try:
        import matplotlib
    except ImportError as error:
        raise InvalidSettings(
            "drawing needs matplotlib", where=str(output), hint=install_command("draw")
        ) from error
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "fluxqueue"
    from matplotlib import pyplot

    heights = [part for one in panels for part in (_panel_height(one), 0.7)]
    figure, axes = pyplot.subplots(
        len(heights),
        1,
        figsize=(15, sum(heights) + 0.75 * len(panels)),
        height_ratios=heights,
        sharex=True,
        squeeze=False,
    )
    end_h = max((_end_h(one) for one in panels), default=1.0)
    queues = [_waiting(panel, end_h) for panel in panels]
    longest = max((max(waiting) for _, waiting in queues), default=0)
    for number, panel in enumerate(panels):
        _draw_schedule(axes[2 * number][0], panel, end_h)
        _draw_queue(axes[2 * number + 1][0], *queues[number], longest)
    axes[-1][0].set_xlabel("hours since the first submission")
    _draw_legend(figure)
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.35 / figure.get_figheight()), h_pad=0.3)
    figure.savefig(output, dpi=130, metadata={"Date": None} if output.suffix == ".svg" else None)
    pyplot.close(figure)


def _panel_height(panel: Panel) -> float:
    return max(1.6, min(8.0, 0.16 * len(panel.nodes)))


def _end_h(panel: Panel) -> float:
    ends = [until for one in panel.records for _, until, _ in one.spans]
    return max(ends, default=1) / 3600


# --- blocks ------------------------------------------------------------------------------------


def blocks(panel: Panel) -> Iterator[GanttBlock]:
    """Yield all rectangles of a schedule. On each node a job takes the lowest free lanes."""
    rows = {fact.name: row for row, fact in enumerate(panel.nodes)}
    cores = {fact.name: max(1, fact.capacity.get(CPU, 0) // 1000) for fact in panel.nodes}
    spans = sorted(
        (
            (since, until, index)
            for index, record in enumerate(panel.records)
            for since, until, _ in record.spans
        ),
    )
    placed = {
        (index, since): placement
        for index, record in enumerate(panel.records)
        for since, _, placement in record.spans
    }
    busy_until: dict[str, list[int]] = {
        name: [0] * min(LANES_MAX, count) for name, count in cores.items()
    }
    for since, until, index in spans:
        taken: dict[str, int] = {}
        for slot in placed[index, since].slots:
            taken[slot.node] = taken.get(slot.node, 0) + dict(slot.resources).get(CPU, 0)
        pieces: list[tuple[float, float]] = []
        for node, cpu_m in taken.items():
            lanes = busy_until[node]
            wanted = max(1, math.ceil(cpu_m / 1000 / cores[node] * len(lanes)))
            free = [lane for lane, end in enumerate(lanes) if end <= since][:wanted]
            for lane in free:
                lanes[lane] = until
            pieces += [(rows[node] + low / len(lanes), n / len(lanes)) for low, n in _runs(free)]
        for top, height in _joined(pieces):
            yield GanttBlock(panel.records[index], since, until, top, height)


def _runs(lanes: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield neighbouring lanes as first lane and count."""
    start = last = -2
    for lane in lanes:
        if lane != last + 1:
            if start >= 0:
                yield start, last - start + 1
            start = lane
        last = lane
    if start >= 0:
        yield start, last - start + 1


def _joined(pieces: list[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    """Yield touching pieces as one: whole nodes next to each other make one block."""
    top = bottom = -1.0
    for low, height in sorted(pieces):
        if low > bottom + 1e-9:
            if bottom > top:
                yield top, bottom - top
            top = low
        bottom = low + height
    if bottom > top:
        yield top, bottom - top


# --- drawing -----------------------------------------------------------------------------------


def _colour(record: RunRecord) -> tuple[float, float, float]:
    """Return a shade of its class. Neighbours in time differ by the golden ratio."""
    shade = (record.job.number * 0.618034) % 1
    hue = BACKFILLED_HUE if record.is_backfilled else IN_TURN_HUE
    return colorsys.hls_to_rgb(hue + 0.05 * (shade - 0.5), 0.5 + 0.3 * shade, 0.6)


def _draw_schedule(axes: Axes, panel: Panel, end_h: float) -> None:
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Rectangle

    drawn = list(blocks(panel))
    axes.add_collection(
        PatchCollection(
            [
                Rectangle((b.since / 3600, b.top), (b.until - b.since) / 3600, b.height)
                for b in drawn
            ],
            facecolors=[_colour(block.record) for block in drawn],
            edgecolors="white",
            linewidths=0.4,
        )
    )
    _label_blocks(axes, drawn, end_h)
    for row, since, until in _down_times(panel, end_h):
        axes.add_patch(Rectangle((since, row + 0.1), until - since, 0.8, color=DOWN, zorder=3))
    axes.set_xlim(0, end_h * 1.005)
    axes.set_ylim(len(panel.nodes), 0)
    axes.set_facecolor("#f3f4f6")
    step = max(1, math.ceil(len(panel.nodes) / NODE_LABELS_MAX * 2))
    axes.set_yticks(
        [row + 0.5 for row in range(0, len(panel.nodes), step)],
        [fact.name for fact in panel.nodes[::step]],
        fontsize=7,
    )
    axes.tick_params(axis="x", length=0)
    axes.set_title(_title(panel.figures), fontsize=10, loc="left")


def _label_blocks(axes: Axes, drawn: Sequence[GanttBlock], end_h: float) -> None:
    """Draw job numbers where they fit."""
    for block in drawn:
        number, width_h = str(block.record.job.number), (block.until - block.since) / 3600
        if width_h < LABEL_SHARE * end_h * (len(number) / 2) or block.height < LABEL_ROWS:
            continue
        axes.text(
            block.since / 3600 + width_h / 2,
            block.top + block.height / 2,
            number,
            fontsize=6.5,
            ha="center",
            va="center",
        )


def _down_times(panel: Panel, end_h: float) -> Iterator[tuple[int, float, float]]:
    rows = {fact.name: row for row, fact in enumerate(panel.nodes)}
    down: dict[str, float] = {}
    for event in sorted(panel.faults, key=lambda one: one.at_s):
        if not event.is_up:
            down[event.node] = event.at_s / 3600
        elif event.node in down:
            yield rows[event.node], down.pop(event.node), min(end_h, event.at_s / 3600)
    for node, since in down.items():
        yield rows[node], since, end_h


def _waiting(panel: Panel, end_h: float) -> tuple[list[float], list[int]]:
    """Return when the number of pending jobs changes (hours), and the number from then on."""
    changes: dict[int, int] = {}
    for record in panel.records:
        if record.started_s is not None:
            changes[record.job.submit_s] = changes.get(record.job.submit_s, 0) + 1
            changes[record.started_s] = changes.get(record.started_s, 0) - 1
    times, waiting = [0.0], [0]
    for at in sorted(changes):
        times.append(at / 3600)
        waiting.append(waiting[-1] + changes[at])
    return [*times, end_h], [*waiting, waiting[-1]]


def _draw_queue(axes: Axes, times_h: Sequence[float], waiting: Sequence[int], longest: int) -> None:
    """Draw the strip below a panel, at the same scale for all panels."""
    axes.fill_between(times_h, waiting, step="post", color=QUEUE, alpha=0.35, linewidth=0)
    axes.set_ylim(0, max(1, longest) * 1.1)
    axes.set_ylabel("waiting", fontsize=8)
    axes.tick_params(axis="y", labelsize=7)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _title(one: Figures) -> str:
    return (
        f"{one.policy}   makespan {clock(one.makespan_s)}   utilisation {one.utilisation:.1%}   "
        f"mean wait {clock(one.mean_wait_s)}   mean bounded slowdown {one.mean_slowdown:.1f}   "
        f"{one.backfilled} of {one.jobs} backfilled"
    )


def _draw_legend(figure: Any) -> None:
    from matplotlib.patches import Patch

    shades: list[tuple[str, tuple[float, float, float] | str]] = [
        ("started in its turn", colorsys.hls_to_rgb(IN_TURN_HUE, 0.62, 0.6)),
        ("backfilled", colorsys.hls_to_rgb(BACKFILLED_HUE, 0.62, 0.6)),
        ("node down", DOWN),
        ("jobs that wait", QUEUE),
    ]
    figure.legend(
        handles=[Patch(color=colour, label=label) for label, colour in shades],
        loc="upper right",
        ncols=len(shades),
        fontsize=8,
        frameon=False,
    )
