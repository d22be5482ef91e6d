"""``fluxqueue up`` says on a terminal which step of its start is under way."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress

import pytest

from fluxqueue.cli.step_line import StepLine


def test_a_terminal_shows_the_step_and_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    master, slave = os.openpty()
    with os.fdopen(slave, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        with StepLine("starting") as steps:
            steps.begin("database and cluster")
            steps.begin("webhook")
    shown = b""
    with suppress(OSError):  # the end of what a closed terminal has
        while part := os.read(master, 65536):
            shown += part
    os.close(master)
    assert b"starting: " in shown
    assert shown.endswith((b"\x1b[2K", b"\x1b[?25h")), "the line is removed at the end"


def test_a_file_shows_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    file = io.StringIO()
    monkeypatch.setattr(sys, "stderr", file)
    with StepLine("starting") as steps:
        steps.begin("webhook")
    assert file.getvalue() == ""
