"""One controller process: kopf always, the observer while it holds the Lease.

Entry point of ``fluxqueue controller``. Leadership is decided by a Lease, and each leader begins a
new term in the database: an older leader that was paused can commit nothing after that.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from fluxqueue.clock import Clock
from fluxqueue.controller.observer import ROLE, Observer
from fluxqueue.controller.operator import build_registry, run_operator
from fluxqueue.db import leadership
from fluxqueue.db.database import Database
from fluxqueue.errors import Conflict, DatabaseUnavailable, LostLeadership, NotFound
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.lease import LeaseElector
from fluxqueue.kube.resources import FLUXJOBS
from fluxqueue.settings import Settings

logger = logging.getLogger(__name__)

LEASE = "fluxqueue-controller"
RESTART_S = 1.0


class Controller:
    """Observes while it leads; stands ready while another does."""

    def __init__(
        self,
        database: Database,
        client: KubeClient,
        settings: Settings,
        clock: Clock,
        *,
        identity: str,
        liveness_endpoint: str | None = None,
    ) -> None:
        self._database, self._client = database, client
        self._settings, self._clock = settings, clock
        self._identity = identity
        self._liveness_endpoint = liveness_endpoint
        self._observer: Observer | None = None
        self._observing: asyncio.Task[None] | None = None
        self._elector = LeaseElector(
            client.reserved(),
            settings.own_namespace,
            LEASE,
            identity,
            on_started=self._start_observing,
            on_lost=self._stop_observing,
            duration_s=settings.lease_duration_s,
            renew_s=settings.lease_renew_s,
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Run until ``stop`` is set (kopf sets it on SIGTERM and SIGINT)."""
        electing = asyncio.create_task(self._elector.run())
        registry = build_registry(
            self._client.config,
            on_fluxjob_deleted=self._on_fluxjob_deleted,
            on_fluxjob_let_go=self._on_fluxjob_let_go,
            probe=self._probe,
        )
        try:
            while not stop.is_set():
                try:
                    await run_operator(
                        registry, liveness_endpoint=self._liveness_endpoint, stop=stop
                    )
                    break  # ended by a signal or by ``stop``
                except Exception:
                    logger.exception("kopf ended and is started again")
                    await self._clock.sleep(RESTART_S)
        finally:
            await _cancel(electing)
            self._stop_observing()
            if self._observing is not None:
                await _cancel(self._observing)

    def _start_observing(self, term: int) -> None:
        logger.info("leads", extra={"action": "lead", "lease_term": term})
        self._observing = asyncio.create_task(self._observe())

    def _stop_observing(self) -> None:
        self._observer = None
        if self._observing is not None:
            self._observing.cancel()

    async def _observe(self) -> None:
        """Observe under one database term after the other while the Lease is ours."""
        while self._elector.is_leader:
            try:
                term = await leadership.seize(self._database, ROLE, self._identity)
                self._observer = Observer(
                    self._database, self._client, self._settings, self._clock, term
                )
                await self._observer.run()
            except (DatabaseUnavailable, LostLeadership) as error:
                logger.warning("observation ended", extra={"action": "lead", "error": str(error)})
            except Exception:
                logger.exception("observation ended and is started again")
            await self._clock.sleep(RESTART_S)

    def _on_fluxjob_deleted(self, workload_uid: str) -> None:
        if self._observer is not None:
            self._observer.on_fluxjob_deleted(workload_uid)

    async def _on_fluxjob_let_go(self, namespace: str, name: str, uid: str) -> None:
        """Delete it; where its workload still exists, the leader makes it again with its owner."""
        try:
            await self._client.delete(FLUXJOBS, namespace, name, uid=uid)
        except (NotFound, Conflict):
            return  # it is gone, or another of its name is there

    def _probe(self) -> Mapping[str, Any]:
        return {
            "leader": self._elector.is_leader,
            "synced": self._observer is not None and self._observer.is_synced,
        }


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError, Exception):
        await task
