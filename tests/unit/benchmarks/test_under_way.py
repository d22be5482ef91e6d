"""A benchmark says on a terminal that it is under way. Its table stays what it is."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from benchmarks.under_way import under_way

FOLDER = Path(__file__).parents[3] / "benchmarks"


def test_a_terminal_shows_it_and_a_file_gets_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = os.openpty()
    table = io.StringIO()
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setattr(sys, "stdout", table)
        monkeypatch.setenv("TERM", "xterm")
        with under_way("matcher"):
            print("| a | 1 |")
    shown = b""
    with suppress(OSError):  # the end of what a closed terminal has
        while part := os.read(master, 65536):
            shown += part
    os.close(master)
    assert b"matcher" in shown
    assert b"| a |" not in shown
    assert table.getvalue() == "| a | 1 |\n"


def test_a_file_gets_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    with under_way("matcher"):
        pass
    assert file.getvalue() == ""


def test_every_benchmark_does() -> None:
    programs = [
        path
        for path in FOLDER.rglob("*.py")
        if 'if __name__ == "__main__":' in path.read_text(encoding="utf-8")
    ]
    assert len(programs) > 10
    for path in programs:
        assert "    with under_way(" in path.read_text(encoding="utf-8"), path
