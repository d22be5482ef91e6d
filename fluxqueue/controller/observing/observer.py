"""The observer: assembles, starts and stops all that follows the cluster for one term.

``controller.controller_process`` creates one for each term. Three parts run in parallel.
``event_router`` turns informer events into marks. ``flusher`` writes what is marked, one
transaction per batch. ``resync_schedule`` is the resync.

Their memory is only a cache: a new process reads the rows and the cluster and continues. None of
them decides about placement. The worker's tasks act on the rows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from fluxqueue.clock import Clock
from fluxqueue.controller.observing.dirty_set import DirtySet
from fluxqueue.controller.observing.event_router import EventRouter
from fluxqueue.controller.observing.flusher import Flusher
from fluxqueue.controller.observing.fluxjob_creator import FluxJobCreator, Lookups
from fluxqueue.controller.observing.observer_parts import ObserverParts
from fluxqueue.controller.observing.quarantine import Quarantine
from fluxqueue.controller.observing.read_workload import WorkloadReader
from fluxqueue.controller.observing.recall import recall
from fluxqueue.controller.observing.resync_schedule import ResyncSchedule
from fluxqueue.controller.observing.watches import Watches
from fluxqueue.controller.observing.workloads import Workloads
from fluxqueue.controller.term import Term
from fluxqueue.db.liveness import Liveness
from fluxqueue.db.store.last_readings import Past
from fluxqueue.explain.variants import span
from fluxqueue.fluxjob.levels import parse_levels
from fluxqueue.kube.client import KubeClient
from fluxqueue.process.settings import Settings
from fluxqueue.workload.owner_kind_settings import parse_owner_kinds
from fluxqueue.workload.site import Site
from fluxqueue.workload.surroundings import complete

logger = logging.getLogger(__name__)


class Observer:
    """Follows the cluster while its term lasts."""

    def __init__(
        self,
        term: Term,
        client: KubeClient,
        settings: Settings,
        clock: Clock,
        liveness: Liveness | None = None,
    ) -> None:
        self.term, self._client = term, client
        self._liveness = liveness or Liveness(clock, "controller")
        site = Site(
            settings.default_cpu_m, parse_levels(settings.levels), settings.gather_timeout_s
        )
        self._levels = site.levels
        owner_kinds = parse_owner_kinds(settings.owner_kinds)
        self.workloads = Workloads()
        # Nodes and queues belong to no namespace: their names are no UIDs, so they share one lane.
        dirty = DirtySet(clock, self.workloads.namespace_of)
        self.quarantine = Quarantine(client, clock, term.begin_write)
        self.creator = FluxJobCreator(
            client,
            clock,
            site,
            Lookups(
                find=self.workloads.find_unwrapped,
                recall=self._recall,
                stands=self.stands,
                class_values=self._class_values,
                complete=self._complete,
            ),
            on_made=self._on_made,
        )
        self.router = EventRouter(
            client,
            clock,
            owner_kinds,
            window_s=settings.arrival_window_s,
            dirty=dirty,
            workloads=self.workloads,
            creator=self.creator,
            quarantine=self.quarantine,
        )
        self.router.foreign.own_namespace = settings.own_namespace
        self.watches = Watches(
            client,
            clock,
            owner_kinds,
            self.router,
            quarantine=self.quarantine,
            default_queue={
                "policy": settings.queue_policy,
                "defaultDuration": span(settings.default_duration_s),
            },
        )
        parts = ObserverParts(
            term=term,
            client=client,
            clock=clock,
            liveness=self._liveness,
            workloads=self.workloads,
            dirty=dirty,
            quarantine=self.quarantine,
            creator=self.creator,
            router=self.router,
            watches=self.watches,
        )
        are_pods_changed = self.watches.surroundings.are_pods_changed
        reader = WorkloadReader(site, self._complete, are_pods_changed)
        self.flusher = Flusher(parts, reader=reader, recall=self._recall)
        self.resync = ResyncSchedule(parts, settings, self.flusher)

    @property
    def is_synced(self) -> bool:
        """Return whether the cluster was read once and the rows were reconciled with it."""
        return self.resync.is_begun

    def find(self, uid: str) -> Mapping[str, Any] | None:
        """Return the object of an existing workload, in the form that its kind reads."""
        return self.workloads.objects.get(uid)

    def stands(self, uid: str) -> bool:
        """Return whether a workload without an object exists.

        Before the first resync that is not known, so the answer is True.
        """
        return not self.resync.is_begun or uid in self.workloads.objects

    def goes_on(self, uid: str) -> bool:
        """Return whether a workload exists and is not being deleted."""
        found = self.find(uid)
        return found is not None and not found["metadata"].get("deletionTimestamp")

    async def _recall(self, uids: AbstractSet[str]) -> dict[str, Past]:
        return await recall(self.term.database, self._client, uids, self.workloads.objects)

    def _class_values(self) -> Mapping[str, int]:
        return self.watches.class_values()

    def _complete(self, workload: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a workload with its pods as admission completes them, or as it is."""
        try:
            return complete(workload, self.watches.surroundings, self._levels)
        except Exception as error:  # noqa: BLE001  its readers report what cannot be read
            logger.info("workload is not completed", extra={"error": str(error)})
            return workload

    def _on_made(self, uid: str, flux_uid: str, flux_version: str) -> None:
        self.router.on_fluxjob_made(uid, flux_uid, flux_version)

    async def run(self) -> None:
        """Observe until cancelled or until the term is lost.

        Raises
        ------
        LostLeadership
            Another controller has begun a term.
        """
        beside: list[asyncio.Task[None]] = []
        try:
            # Already during ``begin``, which marks workloads and so requests FluxJobs.
            beside.append(self._start(self.creator.run()))
            beside.append(self._start(self.router.run()))
            await self.resync.begin()
            # After ``begin``, which must have reconciled rows and cluster once.
            beside.append(self._start(self.quarantine.run()))
            beside.append(self._start(self.watches.run()))
            beside.append(self._start(self.term.confirm_for_ever()))
            beside.append(self._start(self.resync.run()))
            await self.flusher.run()
        finally:
            for task in beside:
                task.cancel()
            # Timers first: they must not act while the watches stop.
            await self.router.stop()
            await self.watches.stop()

    def _start(self, loop: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a loop beside the writing one. If it fails, all loops end and are started again."""
        task = asyncio.create_task(loop)
        task.add_done_callback(self._see_end)
        return task

    def _see_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.flusher.lose(error)
