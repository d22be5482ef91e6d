"""What is shown: every state once in plain lines, and a picture of every moment."""

from __future__ import annotations

import io

from rich.console import Console

from fluxqueue.db.reading.figures import FluxJobLine, NodeFigures
from fluxqueue_devtools.demo.screen import Frame, LiveScreen, PlainScreen, choose_screen, draw

NODES = [NodeFigures("node-1", 16000, 8000, 0), NodeFigures("node-2", 32000, 0, 500)]


def line(number: int, state: str, reason: str = "") -> FluxJobLine:
    """The FluxJob ``job-<number>``."""
    ran_s = 1.0 if state in {"Running", "Completed"} else None
    nodes = ["node-1", "node-10", "node-2"] if ran_s else []
    return FluxJobLine(f"u{number}", number, f"job-{number}", state, reason, 3, nodes, 0.25, ran_s)


def frame(elapsed_s: float, *lines: FluxJobLine) -> Frame:
    """A moment with 8 of 48 cores allocated."""
    return Frame(elapsed_s, lines, NODES, 1, 2)


def test_plain_lines_tell_each_change_of_a_small_scene_once() -> None:
    """A state that has not changed is not told again."""
    out = io.StringIO()
    with PlainScreen(Console(file=out, width=40)) as screen:
        screen.show(frame(0.1, line(1, "Pending", "waits for 3 slots of [8] cpu")))
        screen.show(frame(0.2, line(1, "Pending", "waits for 3 slots of [8] cpu")))
        screen.show(frame(0.3, line(1, "Running")))
    assert out.getvalue().splitlines() == [
        "    0.1 s  job-1        Pending: waits for 3 slots of [8] cpu",
        "    0.3 s  job-1        Running on node-[1-2,10] (waited 0.2 s)",
    ]


def test_plain_lines_sum_up_a_large_scene_every_two_seconds() -> None:
    """Frames come four times a second, lines do not."""
    out = io.StringIO()
    many = [line(number, "Pending") for number in range(15)] + [line(99, "Running")]
    with PlainScreen(Console(file=out, width=40)) as screen:
        for quarter in range(12):
            screen.show(frame(quarter / 4, *many))
    told = out.getvalue().splitlines()
    assert len(told) == 2
    assert "15 Pending, 1 Running | pods 1 running, 2 seen | cores 8/48" in told[0]


def test_the_picture_shows_what_goes_on_and_counts_the_rest() -> None:
    """Running first, then the queue. Nodes as bars with their figures."""
    out = io.StringIO()
    console = Console(file=out, width=120, force_terminal=False)
    console.print(
        draw(frame(3.0, *[line(n, "Pending") for n in range(20)], line(50, "Running")), 30)
    )
    text = out.getvalue()
    assert text.index("job-50") < text.index("job-0")
    assert "... 7 more" in text
    assert "8/16" in text
    assert "0/32" in text


def test_the_live_screen_needs_a_terminal() -> None:
    """Pipes and ``--plain`` get lines."""
    terminal = Console(file=io.StringIO(), force_terminal=True)
    assert isinstance(choose_screen(terminal, is_plain=False), LiveScreen)
    assert isinstance(choose_screen(terminal, is_plain=True), PlainScreen)
    assert isinstance(choose_screen(Console(file=io.StringIO()), is_plain=False), PlainScreen)
