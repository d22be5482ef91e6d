"""The clock of controller, worker and command line. Tests pass ``ManualClock``.

The core (fluxjob ... scheduler) takes integer seconds as arguments and never sees a clock. Timeouts
of a single call (``kube.client``, ``localpg``) use the machine's own clock. Times that processes
agree on (terms, due times) come from the database.

``BatchPacer`` tells loops how often to work. ``Lately`` counts what has just happened.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import NamedTuple, Protocol


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


class Rest(NamedTuple):
    """The pause after a batch, in seconds.

    It is ``each_s`` plus ``times`` the duration of the batch, where the second part is at most
    ``most_s``.
    """

    each_s: float
    times: float
    most_s: float


class BatchPacer:
    """Pauses between batches, in proportion to the work: under load fewer, larger batches.

    If each batch has a fixed cost, fewer and larger batches are cheaper. A batch also causes costs
    elsewhere (``Rest.each_s``): tasks, and statements of other processes. A few batches in a row
    run without a pause (the generic cell rate algorithm, ITU-T I.371), so a single job does not
    wait.

    Parameters
    ----------
    clock : The clock that times are measured with.
    delay_s : Returns how much longer than its quickest answer the API server takes at present, in
        seconds.

    ``is_awaited``: jobs wait for the capacity that a batch finds. Nodes are idle meanwhile, which
    costs more than our own time, so the pause is short (``AWAITED``). If the API server is the
    bottleneck, deciding faster would not start pods any sooner. The pause then grows with the delay
    (``AWAITED_DELAYS``), up to the pause of the other case.

    If no job waits, batches may be larger (``CALM``). If jobs also come faster than one per
    ``PIECE_S``, the pause grows with the last batch (``size``), up to ``CALM_MAX_S``. If they come
    more slowly, a longer pause would only delay them.

    That growth stops at ``DELAYS`` times the delay. While the API server answers at once, larger
    batches would save nothing, and would only delay jobs that come one by one.
    """

    CREDIT_S = 1.5
    AWAITED = Rest(each_s=0.05, times=2, most_s=0.2)
    AWAITED_DELAYS = 10
    CALM = Rest(each_s=0.3, times=4, most_s=0.35)
    PIECE_S, CALM_MAX_S = 0.05, 0.9
    DELAYS = 20

    def __init__(self, clock: Clock, delay_s: Callable[[], float]) -> None:
        self._clock, self._delay_s = clock, delay_s
        self.is_awaited = True
        self.size = 0
        self._rested_s = float("-inf")
        """The time when all pauses that are due would be over."""

    async def rest(self) -> None:
        """Wait until the next batch may begin."""
        pause_s = self._rested_s - self.CREDIT_S - self._clock.monotonic_s()
        if pause_s > 0:
            await self._clock.sleep(pause_s)

    @contextmanager
    def work(self) -> Iterator[None]:
        """Run one batch, and derive the next pause from its duration."""
        began_s = self._clock.monotonic_s()
        try:
            yield
        finally:
            ended_s = self._clock.monotonic_s()
            rest = self._due()
            owed_s = max(self._rested_s, began_s) + rest.each_s + rest.times * (ended_s - began_s)
            self._rested_s = min(owed_s, ended_s + self.CREDIT_S + rest.each_s + rest.most_s)

    def _due(self) -> Rest:
        if self.is_awaited:
            each_s = min(self.CALM.each_s, self.AWAITED_DELAYS * self._delay_s())
            return self.AWAITED._replace(each_s=max(self.AWAITED.each_s, each_s))
        each_s = max(self.CALM.each_s, self.size * self.PIECE_S)
        most_s = min(self.CALM_MAX_S, self.DELAYS * self._delay_s())
        return self.CALM._replace(each_s=min(each_s, most_s))


class Lately:
    """Counts how many there were within the last ``span_s`` seconds of ``clock``."""

    def __init__(self, clock: Clock, span_s: float) -> None:
        self._clock, self._span_s = clock, span_s
        self._found: deque[tuple[float, int]] = deque()

    def count(self, more: int) -> int:
        """Record ``more`` now, and return the count within the span, these included."""
        now_s = self._clock.monotonic_s()
        while self._found and self._found[0][0] <= now_s - self._span_s:
            self._found.popleft()
        if more:
            self._found.append((now_s, more))
        return sum(number for _, number in self._found)


def to_rfc3339(at_s: int) -> str:
    """Write epoch seconds as Kubernetes writes times: ``2026-01-02T03:04:05Z``."""
    return datetime.fromtimestamp(at_s, tz=UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def from_rfc3339(text: str) -> int:
    """Read a Kubernetes time as epoch seconds. Fractions are dropped."""
    return int(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp())
