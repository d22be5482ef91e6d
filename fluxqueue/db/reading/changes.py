"""What has happened to FluxJobs since a line of ``history``, for a reader that follows. Reads only.

The numbers of lines are given out before their transactions commit, so a line may become visible
after one with a higher number. Numbers that were passed over are therefore asked for again, for as
long as a transaction may last (``Follower``).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple

from fluxqueue.db.queries import Q
from fluxqueue.db.reader import DatabaseReader

LATE_S = 60.0
"""No transaction lasts as long: the server ends those that idle or take too long."""
MISSED_MAX = 2000
"""Numbers that are asked for again at once. The oldest are given up first."""
STEP = 500
"""Lines read at once."""


class ChangeRow(NamedTuple):
    """A line of ``history``, and the present state of its job."""

    id: int
    at: datetime
    jobid: int
    event: str
    actor: str
    reason: str | None
    namespace: str
    name: str
    user: str
    queue: str
    state: str


async def last_line(reader: DatabaseReader) -> int:
    """The highest number there is, 0 where there is none."""
    (line,) = await reader.fetch(Q.last_line, int)
    return line


async def lines_after(reader: DatabaseReader, after: int, *, limit: int = STEP) -> list[ChangeRow]:
    """Lines behind a number, in their order."""
    return await reader.fetch(Q.lines_after, ChangeRow, after=after, limit=limit)


class Follower:
    """Reads on from a line, and leaves none out that becomes visible late.

    Parameters
    ----------
    after : the last line that is known.
    """

    def __init__(self, reader: DatabaseReader, after: int) -> None:
        self._reader, self._last = reader, after
        self._missed: dict[int, float] = {}

    async def read(self, now_s: float) -> list[ChangeRow]:
        """Return new lines, of those behind ``STEP`` at most. ``now_s`` is monotonic."""
        missed = list(self._missed)
        rows = await self._reader.fetch(Q.missed_lines, ChangeRow, missed=missed) if missed else []
        new = await lines_after(self._reader, self._last)
        self._note(rows, new, now_s)
        return [*rows, *new]

    def _note(self, late: Sequence[ChangeRow], new: Sequence[ChangeRow], now_s: float) -> None:
        for row in late:
            del self._missed[row.id]
        seen = {row.id for row in new}
        if seen:
            highest = max(seen)
            begin = max(self._last + 1, highest - MISSED_MAX)
            self._missed |= {one: now_s for one in range(begin, highest) if one not in seen}
            self._last = highest
        kept = [(one, at) for one, at in self._missed.items() if now_s - at < LATE_S]
        self._missed = dict(kept[-MISSED_MAX:])
