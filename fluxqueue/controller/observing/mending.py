"""Mending: what a resync has found is written page by page, and one that cannot be costs no other.

Called by ``comparing`` with what ``resync.find`` told. Each page is compared again and written in a
transaction of its own. Where that fails for another reason than that the database is away, the page
is halved until the one is found that it fails for: that one is taken over by what the cluster shows
of it, without its record, and if that fails too it is left as it is until the next resync.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field

from fluxqueue import metrics
from fluxqueue.controller.observing import resync
from fluxqueue.db.database import Transaction
from fluxqueue.db.leadership import hold_decisions
from fluxqueue.db.life.present import read_present
from fluxqueue.db.life.rebuild import (
    NodeResource,
    analyze,
    note_preemptions,
    put_back,
)
from fluxqueue.errors import LostLeadership, Transient
from fluxqueue.fluxjob.observation import WorkloadGone, WorkloadSeen

logger = logging.getLogger(__name__)

ANALYZE_FROM = 1000
"""Rows made from which the planner is told: it knows nothing of a table just filled."""

Begin = Callable[[], AbstractAsyncContextManager[Transaction]]
Gone = Mapping[str, WorkloadGone]
Remember = Callable[[list[WorkloadSeen], Gone], None]


@dataclass(slots=True)
class Mending:
    """One resync's writing.

    Parameters
    ----------
    begin : opens a transaction under the controller's term.
    writing : held while a page is compared and written, so that what is seen and what is written
        go in one order.
    see, see_gone : make observations.
    is_unsure : tells whether ``see`` met something spoilt with a past that is not known yet. It is
        seen again after ``recall``.
    remember : is told what was written.
    begin_beside : opens a transaction that holds up no other.
    """

    begin: Begin
    writing: asyncio.Lock
    sight: resync.Sight
    suspects: resync.Suspects
    see: resync.See
    see_gone: resync.SeeGone
    remember: Remember
    is_unsure: Callable[[], bool]
    recall: Callable[[], Awaitable[bool]]
    begin_beside: Begin
    mended: resync.Mended = field(default_factory=resync.Mended)
    disbelieved: dict[str, str] = field(default_factory=dict)
    """UID -> why it was taken over by its pods alone."""
    refused: dict[str, str] = field(default_factory=dict)
    """UID -> why nothing could be written of it."""
    _held: Counter[NodeResource] = field(default_factory=Counter)
    _analyzed: int = 0

    @property
    def is_takeover_in_pages(self) -> bool:
        """Whether somebody is taken over, and not all at once: ``rebuild.prepare`` comes before."""
        wanted = len(self.suspects.others) + len(self.suspects.found)
        return wanted > resync.WRITE_PAGE and bool(self.suspects.found)

    async def run(self) -> resync.Mended:
        """Write everything that is different.

        Raises
        ------
        LostLeadership, Transient
            Nothing of the present page was written.
        """
        self._held = self.suspects.held(self.suspects.found)
        # The others first: what has ended makes room.
        pages = deque(_pages([*self.suspects.others, *self.suspects.found]))
        while pages:
            page = pages.popleft()
            its = self.suspects.held(page)
            self._held.subtract(its)
            error = await self._try(page)
            if error is not None and len(page) > 1:
                self._held.update(its)
                middle = len(page) // 2
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
        """Write a page; why it could not be, None where it is written."""
        try:
            async with self.writing:
                while not await self._write(page, doubted):
                    await self.recall()
        except (LostLeadership, Transient):
            raise
        except Exception as error:  # noqa: BLE001  whatever it is, it is of one of these
            return error
        return None

    async def _write(self, page: Sequence[str], doubted: Collection[str]) -> bool:
        """Write a page. False where it has to be seen again first, and nothing was written."""
        is_room_measured = bool(self.suspects.found)
        sight = self.sight.of(page)
        async with self.begin() as tx:
            if is_room_measured:
                await hold_decisions(tx)
            present = await read_present(tx, page)
            differences = resync.compare(sight, present, page, self.see, self.see_gone, doubted)
            if self.is_unsure():
                return False
            taken = await resync.write(
                tx, differences, self._held, is_room_measured=is_room_measured
            )
        seen = [*differences.changed, *(one.seen for one in differences.found)]
        self.remember(seen, differences.gone)
        self.mended.add(differences, taken)
        return True

    async def _take_alone(self, uid: str, error: Exception) -> bool:
        """What it fails for stands in its record, or else in its objects; tell whether it was
        written without the former.
        """
        again = await self._try([uid], doubted={uid})
        kept = self.disbelieved if again is None else self.refused
        kept[uid] = _told(again or error)
        metrics.RESYNC_TROUBLES.labels("record" if again is None else "workload").inc()
        logger.warning(
            "FluxJob not believed" if again is None else "workload cannot be written",
            extra={"action": "resync", "uid": uid, "error": kept[uid]},
            exc_info=again,
        )
        return again is None

    async def _analyze(self) -> None:
        made = self.mended.rows_made
        if made >= max(ANALYZE_FROM, 2 * self._analyzed):
            async with self.begin_beside() as tx:
                await analyze(tx)
            self._analyzed = made


def _told(error: Exception) -> str:
    """The first line: a driver shows the whole statement with all its values behind it."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"[:500]


def _pages(uids: Sequence[str]) -> Iterable[Sequence[str]]:
    size = resync.WRITE_PAGE
    return (uids[start : start + size] for start in range(0, len(uids), size))
