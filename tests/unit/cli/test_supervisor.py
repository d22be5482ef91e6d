"""Parts start again whatever ended them, and whatever kept them from starting for a while."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from fluxqueue_devtools import supervisor
from fluxqueue_devtools.supervisor import StackPart
from tests.support.waiting import eventually


async def test_what_cannot_be_started_for_a_while_is_started_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A machine without a free process or file would else leave the part dead for good."""
    monkeypatch.setattr(supervisor, "RESTART_MAX_S", 0.05)
    program, away = tmp_path / "python", tmp_path / "away"
    program.symlink_to(sys.executable)
    part = StackPart(
        "sleeper", [str(program), "-c", "import signal; signal.pause()"], tmp_path / "log"
    )
    await part.start()
    try:
        first = part.pid
        assert first is not None
        program.rename(away)
        os.kill(first, signal.SIGKILL)

        await eventually(
            lambda: "sleeper does not start" in capsys.readouterr().err, "a start that fails"
        )
        away.rename(program)

        await eventually(lambda: part.pid not in {None, first}, "the part started again")
    finally:
        await part.stop(timeout_s=5)
    assert part.pid is None
