"""What ``make`` shows while it installs: how many packages of how many, on a terminal only."""

from __future__ import annotations

import os
import runpy
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

PROGRAM = runpy.run_path(str(Path(__file__).parents[3] / "requirements" / "install_lock.py"))
PIP = """
import sys
print("Collecting one==1.0 (from -r x.lock (line 1))")
print("Requirement already satisfied: two[extra]==2.0 in /somewhere")
print("Processing /wheels/three-3.0-py3-none-any.whl (from -r x.lock (line 5))")
print("Downloading one-1.0-py3-none-any.whl (1 kB)")
print("Installing collected packages: one")
print("ERROR: no space" if "{code}" != "0" else "Successfully installed one-1.0")
sys.exit({code})
"""


def _install(monkeypatch: pytest.MonkeyPatch, folder: Path, stderr: Any, code: int) -> Any:
    lock = folder / "x.lock"
    lock.write_text(
        "one==1.0 \\\n    --hash=sha256:aa\ntwo[extra]==2.0 \\\n    --hash=sha256:bb\n"
        "three==3.0 \\\n    --hash=sha256:cc\n"
    )
    pip = folder / "pip.py"
    pip.write_text(PIP.format(code=code))
    main = PROGRAM["main"]
    monkeypatch.setitem(main.__globals__, "PIP", (sys.executable, str(pip)))
    monkeypatch.setattr(sys, "stderr", stderr)
    return main(str(lock))


def test_a_terminal_shows_each_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    master, slave = os.openpty()
    with os.fdopen(slave, "w") as terminal:
        assert _install(monkeypatch, tmp_path, terminal, 0) == 0
    shown = b""
    with suppress(OSError):  # the end of what a closed terminal has
        while part := os.read(master, 65536):
            shown += part
    os.close(master)
    lines = [one.strip() for one in shown.decode().split("\r") if one.strip()]
    assert lines == ["1 of 3: one", "2 of 3: two[extra]", "3 of 3: three", "writing 3 packages"]
    assert all(len(one) < 80 for one in shown.decode().split("\r"))


def test_a_file_gets_only_what_failed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (tmp_path / "log").open("w+", encoding="utf-8") as log:
        assert _install(monkeypatch, tmp_path, log, 0) == 0
        assert log.tell() == 0
        assert _install(monkeypatch, tmp_path, log, 1) == 1
        log.seek(0)
        assert "ERROR: no space" in log.read()
