"""What other processes use of the machine makes a test slower, and what it uses itself does not."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from tests.support import machine
from tests.support.machine import SharedMachine, slower_by


@pytest.mark.parametrize(
    ("others_s", "elapsed_s", "processors", "slower"),
    [(0, 10, 2, 1.0), (10, 10, 2, 2.0), (15, 10, 2, 4.0), (99, 10, 2, 10.0), (0, 0, 2, 1.0)],
)
def test_the_factor(others_s: float, elapsed_s: float, processors: int, slower: float) -> None:
    assert slower_by(others_s, elapsed_s, processors) == pytest.approx(slower)


def test_what_our_processes_use_is_ours() -> None:
    """A child that spins, and one that has ended, count as the test."""
    run = [sys.executable, "-c"]
    _, busy_s, own_s = machine._now()
    subprocess.run([*run, "import time\nwhile time.process_time() < 0.3: pass"], check=True)
    with subprocess.Popen([*run, "import time\nwhile True: pass"]) as child:
        while machine._used_s(psutil.Process(child.pid)) < 0.3:
            pass
        _, busy_after_s, own_after_s = machine._now()
        child.kill()
    assert own_after_s - own_s >= 0.6
    assert busy_after_s - busy_s >= 0.5


def test_nothing_is_faster_than_alone() -> None:
    with SharedMachine() as shared:
        sum(range(100_000))
    assert shared.slower >= 1.0
