"""``fluxqueue up`` says on a terminal which step of its start is under way."""

from __future__ import annotations

import io
import os
import sys

import pytest

from fluxqueue.cli.up import StartSteps


def test_a_terminal_shows_the_step_and_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = os.openpty()
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        with StartSteps() as steps:
            steps.begin("database and cluster")
            steps.begin("webhook")
        shown = os.read(master, 65536).decode()
    os.close(master)
    assert "starting: " in shown
    assert shown.endswith(("\x1b[2K", "\x1b[?25h")), "the line is removed at the end"


def test_a_file_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    with StartSteps() as steps:
        steps.begin("webhook")
    assert file.getvalue() == ""
