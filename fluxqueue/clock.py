"""The clock of controller, worker and command line. Tests pass ``ManualClock``.

The core (fluxjob ... scheduler) takes integer seconds as arguments and never sees a clock. Timeouts
of a single call (``kube.client``, ``localpg``) use the machine's own clock. Times that processes
agree on (terms, due times) come from the database.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """What the outer layers may ask of time."""

    def now_s(self) -> int:
        """Whole seconds since the epoch."""

    def monotonic_s(self) -> float:
        """Seconds that never step back, for timeouts and durations."""

    async def sleep(self, delay_s: float) -> None:
        """Wait for ``delay_s`` seconds of this clock."""


class SystemClock:
    """The machine's clock."""

    def now_s(self) -> int:
        """Whole seconds since the epoch."""
        return int(time.time())

    def monotonic_s(self) -> float:
        """Seconds that never step back."""
        return time.monotonic()

    async def sleep(self, delay_s: float) -> None:
        """Wait for ``delay_s`` seconds. A cancelled task ends here at the latest.

        Libraries can swallow a cancellation and raise an error of their own, for example if the
        database is gone while a worker stops. A loop that continues after every error would then
        never end.
        """
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError
        await asyncio.sleep(delay_s)


class ManualClock:
    """A clock that moves only by ``advance`` and ``sleep``."""

    def __init__(self, at_s: int = 1_700_000_000) -> None:
        self._at_s = float(at_s)

    def now_s(self) -> int:
        """Whole seconds since the epoch."""
        return int(self._at_s)

    def monotonic_s(self) -> float:
        """The same time. It never steps back by itself."""
        return self._at_s

    def advance(self, delta_s: float) -> None:
        """Move the clock forward by ``delta_s`` seconds."""
        self._at_s += delta_s

    async def sleep(self, delay_s: float) -> None:
        """Advance at once, and let other tasks run."""
        self.advance(delay_s)
        await asyncio.sleep(0)
