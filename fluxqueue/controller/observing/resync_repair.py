"""Resync, the repair: write the differences page by page, isolating defective workloads.

``resync_schedule`` calls it with the result of ``resync_diff.find``. Each page is compared again
and written in a transaction of its own. If that fails although the database is available, the page
is halved until the defective workload is found.

That workload is taken over by what the cluster shows of it, without its record. If that fails too,
it stays as it is until the next resync.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from fluxqueue.controller.observing import resync_diff
from fluxqueue.controller.observing.sight import Sight
from fluxqueue.db.database import Transaction
from fluxqueue.db.leadership import hold_decisions
from fluxqueue.db.store.rebuild import (
    NodeResource,
    analyze,
    note_preemptions,
    put_back,
)
from fluxqueue.db.store.resync_rows import read_present
from fluxqueue.errors import LostLeadership, Transient
from fluxqueue.fluxjob.observation import WorkloadGone, WorkloadSeen
from fluxqueue.process import metrics

logger = logging.getLogger(__name__)

ANALYZE_FROM = 1000
"""Created rows from which the planner's statistics are updated.

The planner has no statistics for a table that was just filled."""

Begin = Callable[[], AbstractAsyncContextManager[Transaction]]
Gone = Mapping[str, WorkloadGone]
Remember = Callable[[list[WorkloadSeen], Gone], None]


@dataclass(slots=True)
class ResyncRepair:
    """The writing of one resync.

    Parameters
    ----------
    begin : opens a transaction under the controller's term.
    writing : lock that is held while a page is compared and written, so that observations and
        writes have one order.
    see, see_gone : make observations.
    is_unsure : returns whether ``see`` met an unreadable workload with an unknown past. It is
        observed again after ``recall``.
    remember : receives what was written.
    begin_beside : opens a transaction that blocks no other.
    """

    begin: Begin
    writing: asyncio.Lock
    sight: Sight
    suspects: resync_diff.Suspects
    see: resync_diff.See
    see_gone: resync_diff.SeeGone
    remember: Remember
    is_unsure: Callable[[], bool]
    recall: Callable[[], Awaitable[bool]]
    begin_beside: Begin
    mended: resync_diff.Repaired = field(default_factory=resync_diff.Repaired)
    disbelieved: dict[str, str] = field(default_factory=dict)
    """UID -> why the workload was taken over by its pods alone."""
    refused: dict[str, str] = field(default_factory=dict)
    """UID -> why nothing could be written for the workload."""
    _held: Counter[NodeResource] = field(default_factory=Counter)
    _analyzed: int = 0

    @property
    def is_takeover_in_pages(self) -> bool:
        """Return whether a takeover needs several pages. If so, ``rebuild.prepare`` comes first."""
        wanted = len(self.suspects.others) + len(self.suspects.found)
        return wanted > resync_diff.WRITE_PAGE and bool(self.suspects.found)

    async def run(self) -> resync_diff.Repaired:
        """Write all differences.

        Raises
        ------
        LostLeadership, Transient
            Nothing of the present page was written.
        """
        self._held = self.suspects.held(self.suspects.found)
        # The others first: workloads that have ended free capacity for the takeover.
        pages = deque(_pages([*self.suspects.others, *self.suspects.found]))
        while pages:
            page = pages.popleft()
            its = self.suspects.held(page)
            # ``_held`` counts only workloads still to come: this page is measured against them.
            self._held.subtract(its)
            error = await self._try(page)
            if error is not None and len(page) > 1:
                # The page failed: its pods still use their nodes.
                self._held.update(its)
                middle = len(page) // 2
                # ``extendleft`` reverses: the first half comes next, so the order of submission is
                # kept.
                pages.extendleft((page[middle:], page[:middle]))
            elif error is not None and not await self._take_alone(page[0], error):
                self._held.update(its)
            await self._analyze()
        if self.refused and self.is_takeover_in_pages:
            async with self.writing, self.begin() as tx:
                await put_back(tx, sorted(self.refused))
        if self.suspects.found:
            async with self.writing, self.begin() as tx:
                await note_preemptions(tx)
        return self.mended

    async def _try(self, page: Sequence[str], doubted: Collection[str] = ()) -> Exception | None:
        """Write a page. Return the error if it could not be written, else None."""
        try:
            async with self.writing:
                # Under the lock: an observation must not be overtaken by a newer write.
                while not await self._write(page, doubted):
                    await self.recall()
        except (LostLeadership, Transient):
            raise
        except Exception as error:  # noqa: BLE001  any defect of one workload
            return error
        return None

    async def _write(self, page: Sequence[str], doubted: Collection[str]) -> bool:
        """Write a page. Return False, without writing, if it must be observed again first."""
        is_room_measured = bool(self.suspects.found)
        sight = self.sight.of(page)
        async with self.begin() as tx:
            # No decision may commit between the measurement of free capacity and the takeover.
            if is_room_measured:
                await hold_decisions(tx)
            # After the sight was taken: a pod gets its slot before it is seen to run.
            present = await read_present(tx, page)
            differences = resync_diff.compare(
                sight, present, page, self.see, self.see_gone, doubted
            )
            if self.is_unsure():
                return False
            taken = await resync_diff.write(
                tx, differences, self._held, is_room_measured=is_room_measured
            )
        # After the commit: a rolled-back page must not count as written.
        seen = [*differences.changed, *(one.seen for one in differences.found)]
        self.remember(seen, differences.gone)
        self.mended.add(differences, taken)
        return True

    async def _take_alone(self, uid: str, error: Exception) -> bool:
        """Write a workload without its record. Return whether that succeeded.

        The defect is in its record if it succeeds, else in its objects.
        """
        again = await self._try([uid], doubted={uid})
        kept = self.disbelieved if again is None else self.refused
        kept[uid] = _told(again or error)
        metrics.RESYNC_TROUBLES.labels("record" if again is None else "workload").inc()
        logger.warning(
            "FluxJob not believed" if again is None else "workload cannot be written",
            extra={"action": "resync_diff", "uid": uid, "error": kept[uid]},
            exc_info=again,
        )
        return again is None

    async def _analyze(self) -> None:
        made = self.mended.rows_made
        if made >= max(ANALYZE_FROM, 2 * self._analyzed):
            # In a transaction of its own, which blocks no other.
            async with self.begin_beside() as tx:
                await analyze(tx)
            self._analyzed = made


def _told(error: Exception) -> str:
    """Return the first line of an error. A driver adds the whole statement with all its values."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"[:500]


def _pages(uids: Sequence[str]) -> Iterable[Sequence[str]]:
    size = resync_diff.WRITE_PAGE
    return (uids[start : start + size] for start in range(0, len(uids), size))
