"""When each loop of a process last succeeded: a metric, and a row that ``fluxqueue check`` reads.

Loops of controller and worker say when they begin, succeed and fail, in memory. ``keep`` writes the
times down at a bounded rate, one statement for all loops. A loop that has nothing to do counts as
succeeding. Ages are written, not times, so that no two clocks are compared.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fluxqueue.clock import Clock
from fluxqueue.db.database import Database
from fluxqueue.db.queries import Q
from fluxqueue.errors import DatabaseUnavailable, LostLeadership
from fluxqueue.process import metrics

logger = logging.getLogger(__name__)

EVERY_S = 15.0
"""How often the times are written (seconds)."""
LATE_S = 300
"""A loop that has not succeeded for so long is late (seconds)."""
TEXT_MAX = 500


@dataclass(slots=True)
class _Loop:
    """``busy_since_s``: when its present turn began. None while it has nothing to do."""

    patience_s: int
    is_periodic: bool
    began_s: float
    succeeded_s: float | None = None
    failed_s: float | None = None
    busy_since_s: float | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True)
class LoopTimes:
    """What one process says of one loop. Ages in seconds, None where it never happened."""

    loop: str
    began_s: float
    succeeded_s: float | None
    failed_s: float | None
    error: str | None
    patience_s: int


class Liveness:
    """The loops of one process. ``holder`` names the process."""

    def __init__(self, clock: Clock, holder: str) -> None:
        self._clock, self._holder = clock, holder
        self._loops: dict[str, _Loop] = {}

    def expect(self, loop: str, *, patience_s: int = LATE_S, is_periodic: bool = False) -> None:
        """``loop`` runs in this process from now on.

        ``is_periodic``: it has something to do each time, so only its success counts.
        """
        now_s = self._clock.monotonic_s()
        self._loops[loop] = _Loop(patience_s, is_periodic, now_s)

    def forget(self, *loops: str) -> None:
        """These do not run in this process any more."""
        for loop in loops:
            if self._loops.pop(loop, None) is not None:
                for gauge in (metrics.LAST_SUCCESS, metrics.LOOP_PATIENCE_S):
                    gauge.remove(loop)

    def begin(self, loop: str) -> None:
        """A turn of ``loop`` begins."""
        if (one := self._loops.get(loop)) is not None and one.busy_since_s is None:
            one.busy_since_s = self._clock.monotonic_s()

    def succeed(self, loop: str) -> None:
        """A turn of ``loop`` has succeeded. It waits for more to do."""
        if (one := self._loops.get(loop)) is not None:
            one.succeeded_s, one.busy_since_s, one.error = self._clock.monotonic_s(), None, None

    def fail(self, loop: str, error: BaseException | str) -> None:
        """A turn of ``loop`` has failed."""
        if (one := self._loops.get(loop)) is not None:
            one.failed_s, one.busy_since_s = self._clock.monotonic_s(), None
            said = str(error) or type(error).__name__
            one.error = said.partition("\n")[0].replace("\0", "")[:TEXT_MAX]

    @contextmanager
    def turn(self, loop: str) -> Iterator[None]:
        """One turn of ``loop``: it succeeds or fails with what is done inside."""
        self.begin(loop)
        try:
            yield
        except LostLeadership:
            self.succeed(loop)  # another process does it
            raise
        except Exception as error:
            self.fail(loop, error)
            raise
        else:
            self.succeed(loop)

    def times(self) -> list[LoopTimes]:
        """What is written now. A loop that waits for something to do succeeds meanwhile."""
        now_s = self._clock.monotonic_s()
        found = []
        for name, one in sorted(self._loops.items()):
            is_waiting = one.busy_since_s is None and one.error is None and not one.is_periodic
            if is_waiting:
                one.succeeded_s = now_s
            ages = [
                None if at_s is None else round(now_s - at_s, 3)
                for at_s in (one.began_s, one.succeeded_s, one.failed_s)
            ]
            found.append(
                LoopTimes(name, ages[0] or 0.0, ages[1], ages[2], one.error, one.patience_s)
            )
        return found

    async def write(self, database: Database) -> None:
        """Write the times down, and show them as metrics.

        Raises
        ------
        DatabaseUnavailable
            Postgres is away. The next time comes.
        """
        times = self.times()
        now_s = self._clock.now_s()
        for one in times:
            metrics.LOOP_PATIENCE_S.labels(one.loop).set(one.patience_s)
            age_s = one.began_s if one.succeeded_s is None else one.succeeded_s
            metrics.LAST_SUCCESS.labels(one.loop).set(now_s - age_s)
        if times:
            await database.execute(Q.write_loops, rows=times, holder=self._holder)

    async def keep(self, database: Database) -> None:
        """Write the times down again and again, until cancelled."""
        while True:
            try:
                await self.write(database)
            except DatabaseUnavailable as error:
                logger.info("database away", extra={"action": "loops", "error": str(error)})
            except Exception:
                logger.exception("times of loops not written")
            await self._clock.sleep(EVERY_S)
