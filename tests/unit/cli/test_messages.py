"""Messages break between words on a terminal, and nowhere else."""

from __future__ import annotations

import gc
import sys

import pytest

from fluxqueue.cli import main as entry
from fluxqueue.cli.messages import wrapped


@pytest.mark.parametrize(
    ("message", "width", "lines"),
    [
        ("a b c", 0, ["a b c"]),
        ("x" * 90, 80, ["x" * 90]),
        ("see https://example.org/a-b-c now", 24, ["see", "  https://example.org/a-b-c", "  now"]),
        ("first line\nsecond line of this", 20, ["first line", "second line of this"]),
        ("one two three four five", 20, ["one two three four", "  five"]),
    ],
)  # fmt: skip
def test_words_stay_whole(message: str, width: int, lines: list[str]) -> None:
    assert wrapped(message, width).splitlines() == lines


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["jobz"], "No such command 'jobz'. Did you mean 'jobs'? Fix: fluxqueue -h"),
        (["jobs", "--bogus"], "No such option: --bogus"),
        (["jobs", "--limit", "-1"], "Invalid value for '--limit'"),
        (["drain", "node-1"], "Missing option '--reason' / '-r'. Fix: fluxqueue drain -h"),
        (["db", "nosuch"], "No such command 'nosuch'. Fix: fluxqueue db -h"),
        (["up", "--nodes", "2", "--cpu", "abc"], "--cpu: 'abc' is not a quantity. Fix: write"),
        (["jobs", "--state", "asleep"], "--state: 'asleep' is not a state. Fix: one of"),
    ],
)
def test_errors_have_one_look(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    told: str,
) -> None:
    """A wrong command line is refused as a wrong value is: one line, and a way out."""
    assert _run(monkeypatch, *words) == 2
    error = capsys.readouterr().err
    assert error.startswith("fluxqueue: ")
    assert told in error
    assert ". Fix: " in error or "? Fix: " in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(("words", "code"), [(["--version"], 0), (["jobs", "-h"], 0), ([], 2)])
def test_help_is_no_error(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    code: int,
) -> None:
    assert _run(monkeypatch, *words) == code
    assert "fluxqueue:" not in capsys.readouterr().err


def _run(monkeypatch: pytest.MonkeyPatch, *words: str) -> object:
    """Run a command line in this process. Return its exit code."""
    monkeypatch.setattr(sys, "argv", ["fluxqueue", *words])
    before = gc.get_threshold()
    try:
        with pytest.raises(SystemExit) as ended:
            entry.main()
    finally:
        gc.set_threshold(*before)
    return ended.value.code
