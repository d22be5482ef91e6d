"""How much of the machine was left for a test: what other processes used of its processors.

For judgements of how soon something happens. A test that shares the machine with four others is
slower, and a fixed tolerance would hide what the test is about.
"""

from __future__ import annotations

import os
import time
from typing import Self

import psutil

SHARE_MIN = 0.1
"""The least share that is believed: below it nothing can be judged."""


def slower_by(used_by_others_s: float, elapsed_s: float, processors: int) -> float:
    """Return how many times slower the machine is for us than without the others.

    Parameters
    ----------
    used_by_others_s : processor seconds of all other processes in that time.
    """
    share = 1.0 - used_by_others_s / max(elapsed_s * processors, 1e-9)
    return 1.0 / min(1.0, max(share, SHARE_MIN))


class SharedMachine:
    """Measure what others used while it is entered. ``slower`` is the factor of ``slower_by``."""

    def __init__(self) -> None:
        self.slower = 1.0
        self._began = (0.0, 0.0, 0.0)

    def __enter__(self) -> Self:
        self._began = _now()
        return self

    def __exit__(self, *_: object) -> None:
        elapsed_s, busy_s, own_s = (
            now - then for now, then in zip(_now(), self._began, strict=True)
        )
        # Processes of ours that ended are in no sum any more: the others are never less than none.
        others_s = max(0.0, busy_s - max(0.0, own_s))
        self.slower = slower_by(others_s, elapsed_s, os.cpu_count() or 1)


def _now() -> tuple[float, float, float]:
    """Return the time, the processor seconds of the machine, and those of our process tree."""
    all_times = psutil.cpu_times()
    busy_s = sum(all_times) - all_times.idle - getattr(all_times, "iowait", 0.0)
    # Linux counts the time of guests as time of users, too.
    busy_s -= getattr(all_times, "guest", 0.0) + getattr(all_times, "guest_nice", 0.0)
    this = psutil.Process()
    return time.monotonic(), busy_s, sum(map(_used_s, [this, *this.children(recursive=True)]))


def _used_s(process: psutil.Process) -> float:
    try:
        used = process.cpu_times()
    except psutil.Error:
        return 0.0
    return float(used.user + used.system + used.children_user + used.children_system)
