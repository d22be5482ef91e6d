"""How the story is shown: a live table and bars on a terminal, plain lines elsewhere.

Both show the same facts. ``LiveScreen`` redraws. ``PlainScreen`` prints each change of a small
scene, and figures every two seconds for a large one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Literal, Protocol, Self

from rich.columns import Columns
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fluxqueue.db.reading.figures import FluxJobLine, NodeFigures
from fluxqueue.fluxjob.hostlist import compress

ROWS_MIN = 4
OTHER_ROWS = 16
"""Height of everything except the FluxJobs.

These are the sum, headings and the bars of 21 nodes in pairs.
"""

SMALL_SCENE = 12
PROGRESS_S = 2.0
_WIDTHS = {"JOBID": 5, "NAME": 12, "STATE": 13, "SIZE": 4, "NODES": 18, "WAIT": 7}
_NUMBERS = frozenset({"JOBID", "SIZE", "WAIT"})
_COLOURS = {
    "Pending": "yellow",
    "Provisioning": "bright_magenta",
    "Reserved": "magenta",
    "Allocated": "cyan",
    "Running": "bold cyan",
    "Completed": "green",
    "Failed": "red",
    "Unsatisfiable": "bold red",
}
_ORDER = (
    *("Unsatisfiable", "Running", "Allocated", "Reserved", "Provisioning", "Pending", "Failed"),
    "Completed",
)


@dataclass(frozen=True, slots=True)
class Frame:
    """One moment of a scene. ``elapsed_s`` counts from the scene's start."""

    elapsed_s: float
    lines: Sequence[FluxJobLine]
    nodes: Sequence[NodeFigures]
    pods_running: int
    pods_seen: int

    @property
    def states(self) -> Counter[str]:
        """Return the number of FluxJobs by state."""
        return Counter(line.state for line in self.lines)


class Screen(Protocol):
    """What the play needs of a screen. It is a context manager."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def say(self, text: str) -> None:
        """Show a line that stays."""

    def show(self, frame: Frame) -> None:
        """Show the present moment."""


class PlainScreen:
    """Lines for logs and pipes."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._states: dict[str, str] = {}
        self._next_progress_s = 0.0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def say(self, text: str) -> None:
        """Show a line that stays."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)
        self._states, self._next_progress_s = {}, 0.0

    def show(self, frame: Frame) -> None:
        """Show the changes of a small scene one by one, and sums of a large scene."""
        if len(frame.lines) <= SMALL_SCENE:
            for line in frame.lines:
                if self._states.get(line.uid) != line.state:
                    self._states[line.uid] = line.state
                    self._print(frame, describe_line(line))
        elif frame.elapsed_s >= self._next_progress_s:
            self._next_progress_s = frame.elapsed_s + PROGRESS_S
            self._print(frame, describe_frame(frame))

    def _print(self, frame: Frame, text: str) -> None:
        line = f"{frame.elapsed_s:7.1f} s  {text}"
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class LiveScreen:
    """A table of FluxJobs and bars of node occupancy, redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=8, transient=True)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def say(self, text: str) -> None:
        """Show a line that stays, above the picture."""
        self._live.console.print(text, markup=False, highlight=False)

    def show(self, frame: Frame) -> None:
        """Redraw."""
        self._live.update(draw(frame, self._live.console.size.height))


def choose_screen(console: Console, *, is_plain: bool) -> Screen:
    """Return the live screen on a terminal, unless plain lines are asked for."""
    return PlainScreen(console) if is_plain or not console.is_terminal else LiveScreen(console)


def draw(frame: Frame, height: int) -> RenderableType:
    """Return the picture of one moment, for a terminal of ``height`` rows."""
    return Group(
        Text(f"{frame.elapsed_s:6.1f} s  {describe_frame(frame)}", style="bold"),
        _table(frame.lines, max(ROWS_MIN, height - OTHER_ROWS)),
        Columns([_bar(node) for node in frame.nodes], padding=(0, 3)),
    )


def _table(lines: Sequence[FluxJobLine], rows_max: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim", expand=True)
    for heading, width in _WIDTHS.items():
        justify: Literal["left", "right"] = "right" if heading in _NUMBERS else "left"
        table.add_column(heading, width=width, justify=justify, no_wrap=True)
    table.add_column("REASON", ratio=1, no_wrap=True)
    ranked = sorted(lines, key=_rank)
    for line in ranked[:rows_max]:
        table.add_row(
            str(line.jobid),
            line.name,
            Text(line.state, style=_COLOURS.get(line.state, "")),
            str(line.size),
            _hosts(line),
            f"{line.waited_s:.1f} s",
            line.reason,
        )
    if len(ranked) > rows_max:
        table.add_row("", f"... {len(ranked) - rows_max} more", "", "", "", "", "")
    return table


def _rank(line: FluxJobLine) -> tuple[int, int]:
    """Return the sort key of a line: active jobs first in queue order, ended jobs last.

    The job that ended last comes first among the ended ones.
    """
    rank = _ORDER.index(line.state) if line.state in _ORDER else len(_ORDER)
    has_ended = line.state in {"Completed", "Failed", "Cancelled"}
    return rank, -line.jobid if has_ended else line.jobid


def _bar(node: NodeFigures) -> RenderableType:
    row = Table.grid(padding=(0, 1))
    row.add_row(
        f"{node.node:<8}",
        # Used is blue and free is green. Without colours only the used part is drawn.
        ProgressBar(
            total=max(1, node.capacity_m),
            completed=node.allocated_m,
            width=16,
            style="green",
            complete_style="blue",
            finished_style="blue",
        ),
        f"{node.allocated_m / 1000:>4g}/{node.capacity_m / 1000:g}",
    )
    return row


def describe_line(line: FluxJobLine) -> str:
    """Return one FluxJob in words: ``pi-1 Running on pi-1 (waited 0.1 s)``."""
    where = f" on {_hosts(line)}" if line.nodes and line.ran_s is not None else ""
    why = f": {line.reason}" if line.reason else ""
    waited = f" (waited {line.waited_s:.1f} s)" if line.state in {"Allocated", "Running"} else ""
    return f"{line.name:<12} {line.state}{where}{waited}{why}"


def describe_frame(frame: Frame) -> str:
    """Return all FluxJobs in sums."""
    states = ", ".join(f"{frame.states[s]} {s}" for s in reversed(_ORDER) if frame.states[s])
    allocated = sum(node.allocated_m for node in frame.nodes) // 1000
    capacity = sum(node.capacity_m for node in frame.nodes) // 1000
    return (
        f"{states or 'nothing queued yet'} | pods {frame.pods_running} running,"
        f" {frame.pods_seen} seen | cores {allocated}/{capacity}"
    )


def _hosts(line: FluxJobLine) -> str:
    return compress(sorted(line.nodes, key=lambda name: (len(name), name)))
