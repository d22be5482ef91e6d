"""Tables that fit the terminal: which columns give way, and what is never cut."""

from __future__ import annotations

from datetime import datetime

import pytest

from fluxqueue.cli.user import jobs, printing
from fluxqueue.cli.user.past_runs import what_happened
from fluxqueue.cli.user.printing import TextTable, cut, fit, short_time

HEADERS = list(jobs.SHORT)
ROW = ("12345", "a-rather-long-name-of-a-job-9f3c2a", "alice@example.com", "default",
       "Unsatisfiable", "17h12m", "1024", "node-[1-4,7-9,12]", "~17:11",
       "waits for 3 nodes of rack r2 held by job 17 until 14:05 UTC")  # fmt: skip


def lines_at(width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
             *rows: tuple[str, ...], headers: list[str] = HEADERS) -> list[str]:  # fmt: skip
    monkeypatch.setattr(printing, "terminal_width", lambda: width)
    table = TextTable(headers)
    table.write(rows)
    return capsys.readouterr().out.splitlines()


@pytest.mark.parametrize("width", [80, 90, 100, 132, 200])
def test_no_line_is_wider_than_the_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every column is there, and a state, a time and a number are whole."""
    head, line = lines_at(width, monkeypatch, capsys, ROW)
    assert max(len(head), len(line)) <= width
    assert head.split() == HEADERS
    for whole in ("12345", "Unsatisfiable", "17h12m", "1024", "~17:11"):
        assert f" {whole} " in f" {line} "


def test_a_cell_cannot_move_the_cursor(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Users choose their names, and reasons quote what others wrote."""
    row = ("1", "a\x1b[2Jb", "eve\r\n", "default", "Held", "-", "4", "-", "-", "wa\x07its\u202e")
    _, line = lines_at(200, monkeypatch, capsys, row)
    assert line.split() == [
        "1",
        "a?[2Jb",
        "eve??",
        "default",
        "Held",
        "-",
        "4",
        "-",
        "-",
        "wa?its?",
    ]


def test_the_reason_is_cut_between_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    row = ("1", "train", "bob", "default", "Pending", "-", "4", "-", "-", ROW[-1])
    _, line = lines_at(80, monkeypatch, capsys, row)
    kept = line[line.index("waits") :].removesuffix(printing.ELLIPSIS)
    assert f"{ROW[-1]} ".startswith(f"{kept} ")


def test_a_pipe_gets_everything(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _, line = lines_at(0, monkeypatch, capsys, ROW)
    assert all(cell in line for cell in ROW)


def test_later_lines_keep_the_widths(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A list that is printed as it is read does not change its columns."""
    monkeypatch.setattr(printing, "terminal_width", lambda: 40)
    table = TextTable(["NAME", "STATE", "REASON"])
    table.write([("a" * 30, "Held", "short")])
    table.write([("b" * 50, "Held", "much longer than the first one was")])
    found = capsys.readouterr().out.splitlines()
    assert len({line.index("Held") for line in found[1:]}) == 1
    assert max(map(len, found)) <= 40


def test_widths() -> None:
    """The gap shrinks first. Headers stay whole, even if there is no room at all."""
    assert fit(["NAME", "REASON"], [10, 10], 40) == ([10, 10], 3)
    assert fit(["NAME", "REASON"], [10, 10], 21) == ([10, 10], 1)
    widths, gap = fit(["NAME", "REASON"], [30, 30], 10)
    assert (widths, gap) == ([6, 6], 1)


@pytest.mark.parametrize(
    ("text", "width", "is_prose", "expected"),
    [
        ("short", 10, True, "short"),
        ("one two three", 9, True, "one two\u2026"),
        ("one two three", 8, True, "one two\u2026"),
        ("one two three", 7, True, "one\u2026"),
        ("unbreakable", 6, True, "unbre\u2026"),
        ("node-[1-4]", 6, False, "node-\u2026"),
    ],
)
def test_cut(text: str, width: int, is_prose: bool, expected: str) -> None:
    assert cut(text, width, is_prose=is_prose) == expected


def test_short_times() -> None:
    """A time of day today, a day otherwise, and nothing for nothing."""
    now = int(datetime(2030, 6, 15, 12).astimezone().timestamp())
    assert short_time(None, now) == ""
    assert short_time(now - 3600, now) == "11:00"
    assert short_time(now - 3 * 86_400, now) == "Jun12"
    assert short_time(now - 300 * 86_400, now) == "2029-08-19"


@pytest.mark.parametrize(
    ("detail", "words"),
    [
        ({"reason": "held by bob", "from": "Pending"}, "held by bob"),
        ({"starts_at": 1_795_633_518}, "starts at 2026-11-25T19:05:18Z"),
        ({"new": 10, "old": None}, "new 10"),
        ({"share": 0.0, "waited": 1.1152447624999997}, "share 0, waited 1.12"),
        ({}, ""),
    ],
)
def test_history_is_for_people(detail: dict[str, object], words: str) -> None:
    """No epoch, no None, no tail of digits."""
    assert what_happened(detail) == words
