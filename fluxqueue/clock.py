"""The clock that controller, worker and command line are handed; tests hand over ``ManualClock``.

The core (fluxjob ... scheduler) takes integer seconds as arguments instead and never sees a clock.
Time-outs of a single call (``kube.client``, ``localpg``) go by the machine's own clock, and what
processes agree on (terms, due times) by the database's. ``Pace`` says how often loops work,
``Lately`` how much has happened just now.
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
    """What the edges may ask of time."""

    def now_s(self) -> int:
        """Whole seconds since the epoch."""

    def monotonic_s(self) -> float:
        """Seconds that never step back: for time-outs and durations."""

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
        """Wait for ``delay_s`` seconds.

        A task that was cancelled ends here even where its cancellation was lost on the way:
        libraries turn it into errors of their own (a worker whose database has gone while it
        stops), and a loop that carries on after every error would never end.
        """
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise asyncio.CancelledError
        await asyncio.sleep(delay_s)


class ManualClock:
    """A clock that only moves when told; ``sleep`` moves it."""

    def __init__(self, at_s: int = 1_700_000_000) -> None:
        self._at_s = float(at_s)

    def now_s(self) -> int:
        """Whole seconds since the epoch."""
        return int(self._at_s)

    def monotonic_s(self) -> float:
        """The same time; it never steps back by itself."""
        return self._at_s

    def advance(self, delta_s: float) -> None:
        """Move the clock forward by ``delta_s`` seconds."""
        self._at_s += delta_s

    async def sleep(self, delay_s: float) -> None:
        """Advance at once and let others run."""
        self.advance(delay_s)
        await asyncio.sleep(0)


class Rest(NamedTuple):
    """How long a batch is rested from: ``each_s``, and ``times`` what it took but for ``most_s`` at
    most.
    """

    each_s: float
    times: float
    most_s: float


class Pace:
    """Rest after work, in times of what the work took: under load fewer, larger batches.

    Who works in batches that cost about the same however large they are does less in all when he
    lets some more come together; each also costs what he does not see (``Rest.each_s``): tasks, and
    statements of others. A few in a row go without rest (the generic cell rate algorithm, ITU-T
    I.371), so who has little to do keeps nobody waiting.

    Parameters
    ----------
    clock : whose time it is.
    delay_s : how much longer than at its quickest the API server takes to answer at present
        (seconds). While it answers at once, larger batches would spare nobody anything, and a rest
        of more than ``DELAYS`` such delays would only keep those waiting who come one by one.

    ``is_awaited``: whether somebody waits for the room that a batch finds. Nodes are idle
    meanwhile, which costs more than our own time, and the rest is short (``AWAITED``); but where
    the API server is what all wait for, room that is found sooner is not used sooner, and the rest
    grows with the delay (``AWAITED_DELAYS``), up to that of others. Where all have what they want,
    batches may be larger (``CALM``); and where they come faster than one in ``PIECE_S``, the rest
    grows with the last batch (``size``), up to ``CALM_MAX_S``. Where they come more slowly, a
    longer rest would only keep them waiting.
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
        """When all rest that is due would be over."""

    async def rest(self) -> None:
        """Wait until the next batch may begin."""
        pause_s = self._rested_s - self.CREDIT_S - self._clock.monotonic_s()
        if pause_s > 0:
            await self._clock.sleep(pause_s)

    @contextmanager
    def work(self) -> Iterator[None]:
        """Do one batch; rest follows from how long it took."""
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
    """How many of something there were within the last ``span_s`` seconds of ``clock``."""

    def __init__(self, clock: Clock, span_s: float) -> None:
        self._clock, self._span_s = clock, span_s
        self._found: deque[tuple[float, int]] = deque()

    def count(self, more: int) -> int:
        """Note ``more`` that are there now, and tell how many there were, with these."""
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
    """Read a Kubernetes time (fractions are dropped) as epoch seconds."""
    return int(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp())
