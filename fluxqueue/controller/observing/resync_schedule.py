"""Resync, the schedule: at the start of a term and at regular intervals.

Part of ``observer``. It decides when a resync is due, and in which order it proceeds.
``resync_diff`` finds the differences. ``resync_repair`` writes them page by page, and ``flusher``
continues between two pages.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from functools import partial

from fluxqueue.controller.observing.flusher import Flusher
from fluxqueue.controller.observing.fluxjob_creator import report_unwritten
from fluxqueue.controller.observing.group_assembly import list_groups
from fluxqueue.controller.observing.observer_parts import ObserverParts
from fluxqueue.controller.observing.resync_diff import (
    Repaired,
    Suspects,
    find,
    read_rows,
)
from fluxqueue.controller.observing.resync_repair import ResyncRepair
from fluxqueue.controller.observing.sight import Published, Sight, list_fluxjobs
from fluxqueue.controller.observing.watches import RETRY_MAX_S, RETRY_MIN_S, insist
from fluxqueue.db.store.known import Known, read_known
from fluxqueue.db.store.queues import queue_names
from fluxqueue.db.store.rebuild import prepare
from fluxqueue.db.store.rule_rows import read_stored_rules
from fluxqueue.errors import ApiError, ApiUnavailable, DatabaseUnavailable, LostLeadership
from fluxqueue.process.settings import Settings

logger = logging.getLogger(__name__)

LOOP = "resync"
"""Name of the loop in reports of loop times."""

PAGE = 1000
"""Nodes or unmanaged pods per write."""
RESYNC_RETRY_S = 30.0


class ResyncSchedule:
    """Compares all rows with the whole cluster.

    ``is_begun`` says whether the rows have been reconciled with the cluster once.
    """

    def __init__(
        self,
        parts: ObserverParts,
        settings: Settings,
        flusher: Flusher,
    ) -> None:
        self._term, self._client, self._clock = parts.term, parts.client, parts.clock
        self._liveness, self._settings = parts.liveness, settings
        self._workloads, self._router, self._watches = parts.workloads, parts.router, parts.watches
        self._foreign = parts.router.foreign
        self._flusher, self._creator = flusher, parts.creator
        self.is_begun = False

    async def begin(self) -> None:
        """Read the rows, then the cluster, and reconcile both before any decision is made."""
        # Rows before cluster: what was managed must be known before its objects are seen.
        known = await self._read_known()
        self._workloads.know(known.flux_uids, known.namespaces)
        # FluxJobs also record the groups, in case the rows were lost.
        told = await insist(self._clock, partial(list_groups, self._client), "FluxJobs")
        groups = [*known.groups, *told]
        # Before the watches start: the first pod event would otherwise found a new group.
        self._router.know_groups(groups)
        self._foreign.know(known.foreign)
        self._flusher.know_sizes(known.learned)
        await self._watches.begin(known.suspended)
        # After the pods are listed: until then, every known group seems to be empty.
        await self._router.end_listing(groups)
        pause = RETRY_MIN_S
        while True:
            try:
                await self.compare()
            except (DatabaseUnavailable, ApiUnavailable, ApiError) as error:
                self._liveness.fail(LOOP, error)
                logger.warning("resync failed", extra={"action": "begin", "error": str(error)})
                await self._clock.sleep(pause)
                pause = min(2 * pause, RETRY_MAX_S)
            except Exception as error:
                self._liveness.fail(LOOP, error)
                raise
            else:
                self._liveness.succeed(LOOP)
                self.is_begun = True
                return

    async def run(self) -> None:
        """Read the cluster and compare everything at regular intervals, while writing continues.

        Raises
        ------
        LostLeadership
            Another controller has begun a term.
        """
        pause_s = self._settings.resync_interval_s
        while True:
            await self._clock.sleep(pause_s)
            try:
                await self.resync()
                self._liveness.succeed(LOOP)
                pause_s = self._settings.resync_interval_s
                continue
            except LostLeadership:
                raise
            except (DatabaseUnavailable, ApiUnavailable, ApiError) as error:
                self._liveness.fail(LOOP, error)
                logger.warning("resync failed", extra={"action": "resync", "error": str(error)})
            except Exception as error:
                self._liveness.fail(LOOP, error)
                logger.exception("resync failed and is repeated")
            pause_s = min(RESYNC_RETRY_S, self._settings.resync_interval_s)

    async def resync(self) -> None:
        """Read the cluster again and compare everything.

        Raises
        ------
        ApiUnavailable, ApiError, DatabaseUnavailable, LostLeadership
            The resync must be repeated.
        """
        await self._watches.read_anew()
        await self.compare()

    async def compare(self) -> None:
        """Compare all rows with the whole cluster, and store the differences page by page."""
        # Before the list: FluxJob events from now on are newer than the list.
        self._workloads.begin_listing()
        # FluxJobs before rows: a status newer than its row then proves the row outdated.
        sight = self._sight(await list_fluxjobs(self._client))
        await self._watches.queues.ensure_default()
        suspects = await find(sight, read_rows(self._term.database))
        for uid in self._workloads.take_listed(suspects.flux_uids):
            self._router.mark_workload(uid)
        # Only now: before, every workload seems to lack its FluxJob.
        self._creator.is_known.set()
        # Before the workloads: a takeover is measured against nodes and unmanaged pods.
        await self._write_surroundings()
        mended = await self._mend(sight, suspects)
        # Last: only now rows and cluster agree, and decisions may resume.
        await self._term.believe()
        mended.tell()

    async def _read_known(self) -> Known:
        while True:
            try:
                async with self._term.begin_write() as tx:
                    return await read_known(tx)
            except DatabaseUnavailable as error:
                logger.warning("database away", extra={"action": "begin", "error": str(error)})
                await self._clock.sleep(RETRY_MAX_S / 5)

    async def _write_surroundings(self) -> None:
        """Write queues, policies, nodes, unmanaged pods: what workloads are measured against."""
        async with self._term.begin_write() as tx:
            known, names = await read_known(tx), await queue_names(tx)
            rules = [
                (one, await read_stored_rules(tx, one.kind.rows)) for one in self._watches.rules
            ]
        self._foreign.know(known.foreign)
        await self._flusher.write_queues({*names, *self._watches.queues.names()})
        for watch, stored in rules:
            await self._flusher.write_rules(watch, {*watch.names(), *(one.name for one in stored)})
        await self._flusher.write_autoscaler()
        for page in _pages(sorted({*known.nodes, *self._watches.node_names()})):
            await self._flusher.write_nodes(page)
        for page in _pages([*{*known.foreign, *self._workloads.pods}]):
            await self._flusher.write_foreign(page)

    async def _mend(self, sight: Sight, suspects: Suspects) -> Repaired:
        """Check the suspects again, and write the differences."""
        repair = ResyncRepair(
            self._term.begin_write,
            self._flusher.lock,
            sight,
            suspects,
            self._flusher.see,
            self._flusher.see_gone,
            self._flusher.remember,
            self._flusher.is_unsure,
            self._flusher.recall,
            self._term.database.begin,
        )
        if repair.is_takeover_in_pages:
            await self._prepare(suspects)
        mended = await repair.run()
        objects = self._workloads.objects
        for uid, error in repair.refused.items():
            if uid in objects:
                await report_unwritten(self._client, objects[uid], error, self._clock.now_s())
        return mended

    async def _prepare(self, suspects: Suspects) -> None:
        """Suspend all decisions and prepare the outdated rows for a takeover in pages.

        Between two pages the rows match neither their earlier state nor the cluster, so no process
        may act on them.
        """
        # In a transaction of its own, first: no process may act once the first page is prepared.
        await self._term.doubt()
        for page in _pages(suspects.outdated) or [[]]:
            async with self._term.begin_write() as tx:
                await prepare(tx, page, highest_jobid=suspects.highest_jobid)

    def _sight(self, fluxjobs: Mapping[str, Published]) -> Sight:
        return Sight(
            self._workloads.objects,
            self._workloads.pods_of,
            fluxjobs,
            self._watches.hosts(),
            self._settings.default_cpu_m,
        )


def _pages(keys: Sequence[str]) -> list[Sequence[str]]:
    return [keys[start : start + PAGE] for start in range(0, len(keys), PAGE)]
