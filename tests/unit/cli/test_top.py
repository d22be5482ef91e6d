"""The board of ``fluxqueue top``: kept in order change by change, as if sorted each time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fluxqueue.cli.user.top import OTHER_ROWS, Board
from fluxqueue.client.fluxjob_lists import ORDERS, read_line
from fluxqueue.fluxjob.states import FINAL, FluxJobState

PAGE = 4


def _fluxjob(number: int, state: str, priority: int) -> dict[str, Any]:
    workload = {"kind": "Job", "name": f"w{number}"}
    times = {"startTime": f"2030-01-01T00:00:0{number}Z"} if state == "Running" else {}
    return {
        "metadata": {
            "uid": f"u{number}",
            "name": f"w{number}-job",
            "namespace": "default",
            "creationTimestamp": "2030-01-01T00:00:00Z",
        },
        "spec": {"workload": workload, "size": 2, "user": f"user-{number % 2}"},
        "status": {"state": state, "jobid": number, "priority": priority, **times},
    }


CHANGES = st.lists(
    st.tuples(
        st.integers(0, 9), st.sampled_from(list(FluxJobState)), st.integers(-2, 2), st.booleans()
    ),
    max_size=40,
)


@given(CHANGES, st.lists(st.sampled_from([b"o", b"r", b"j", b"G", b"g", b" "]), max_size=12))
def test_it_shows_what_sorting_would(
    changes: list[tuple[int, FluxJobState, int, bool]], keys: list[bytes]
) -> None:
    """Whatever comes and goes, and whichever keys are pressed between."""
    board, there = Board(), dict[str, dict[str, Any]]()
    for at, (number, state, priority, is_gone) in enumerate(changes):
        one = _fluxjob(number, state.value, priority)
        board.put(one, is_gone=is_gone)
        there.pop(one["metadata"]["uid"], None)
        if not is_gone and state not in FINAL:
            there[one["metadata"]["uid"]] = one
        if at < len(keys):
            board.press(keys[at], PAGE)
    console = Console(width=400, height=PAGE + OTHER_ROWS, file=None, color_system=None)
    with console.capture() as captured:
        console.print(board.draw(400, PAGE + OTHER_ROWS, 1_900_000_000))
    lines = captured.get().splitlines()
    key = list(ORDERS.values())[board.order]
    ordered = sorted(
        there.values(), key=lambda one: (key(read_line(one)), one["metadata"]["uid"])
    )  # fmt: skip
    ordered = ordered[::-1] if board.is_backwards else ordered
    expected = [one["spec"]["workload"]["name"] for one in ordered]
    assert [line.split()[1] for line in lines[4:-1] if line.strip()] == expected[
        board.offset : board.offset + PAGE
    ]
    running = sum(one["status"]["state"] == "Running" for one in ordered)
    assert lines[1].startswith(f"{len(ordered)} jobs, {2 * running} pods started")


@pytest.mark.parametrize("width", [80, 100, 132])
def test_name_state_and_reason_fit_a_narrow_terminal(width: int) -> None:
    """One long name does not push the reason off the screen."""
    board = Board(where="default", trouble="")
    reason = "waits for 3 nodes of rack r2 held by job 17 until 14:05 UTC"
    for number, name in enumerate(("short", "a-very-long-name-of-a-job-with-a-suffix-9f3c2a")):
        board.put({
            "metadata": {"namespace": "default", "name": f"{name}-job", "uid": str(number),
                         "creationTimestamp": "2030-01-01T00:00:00Z"},
            "spec": {"workload": {"kind": "Job", "name": name}, "size": 4, "user": "alice",
                     "queue": "default"},
            "status": {"state": "Pending", "jobid": number + 1, "reason": reason,
                       "expectedStart": "2030-03-01T00:00:00Z"},
        })  # fmt: skip
    console = Console(width=width, height=20, file=None, color_system=None)
    with console.capture() as captured:
        console.print(board.draw(width, 20, 1_900_000_000))
    lines = [line for line in captured.get().splitlines() if line.strip()]
    assert max(map(len, lines)) <= width
    assert lines[2].split()[:2] == ["JOBID", "NAME"]
    assert lines[2].split()[-1] == "REASON"
    assert all("Pending" in line and "waits for" in line for line in lines[3:5])
    assert any("short" in line for line in lines[3:5])
