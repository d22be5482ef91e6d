"""One controller process. While it holds the Lease it observes, and kopf runs in its loop.

This is the entry point of ``fluxqueue controller``. A Lease decides which process leads. Each
leader begins a new term in the database. After that, an older leader that was paused can commit
nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from datetime import timedelta
from typing import Any

from fluxqueue.clock import Clock
from fluxqueue.controller.certificates import CertificateKeeper, CertificateNames
from fluxqueue.controller.observing.flusher import LOOP as OBSERVE
from fluxqueue.controller.observing.observer import Observer
from fluxqueue.controller.observing.resync_schedule import LOOP as RESYNC
from fluxqueue.controller.operator import build_registry, run_operator
from fluxqueue.controller.queue_metrics import show_for_ever
from fluxqueue.controller.reviews import LOOP as REVIEWS
from fluxqueue.controller.reviews import ReviewWatch
from fluxqueue.controller.steering_watch import LOOP as STEER
from fluxqueue.controller.steering_watch import SteeringWatch
from fluxqueue.controller.term import Term
from fluxqueue.db.database import Database, Transaction
from fluxqueue.db.epoch import ANNOTATION, read_marks
from fluxqueue.db.leadership import CONTROLLER
from fluxqueue.db.liveness import LATE_S, Liveness
from fluxqueue.errors import (
    Conflict,
    DatabaseUnavailable,
    LostLeadership,
    NotFound,
)
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.lease import LeaseElector, LeaseIdentity, LeaseTimes
from fluxqueue.kube.resources import FLUXJOBS
from fluxqueue.nodepools.cluster.pool_following import PoolFollower
from fluxqueue.process import metrics
from fluxqueue.process.certs.pairs import service_names
from fluxqueue.process.certs.rotation import Lives
from fluxqueue.process.endpoint import Heartbeats
from fluxqueue.process.settings import Settings
from fluxqueue.workload.kinds.table import kind_of_fluxjob

logger = logging.getLogger(__name__)

LEASE = "fluxqueue-controller"
RESTART_S = 1.0


class Controller:
    """Observes while it leads, and stands by while another process does."""

    def __init__(
        self,
        database: Database,
        client: KubeClient,
        settings: Settings,
        clock: Clock,
        *,
        identity: str,
        heartbeats: Heartbeats | None = None,
        take_signals: Callable[[], None] = lambda: None,
    ) -> None:
        self._database, self._client = database, client
        self._take_signals = take_signals
        self._settings, self._clock = settings, clock
        self._identity = identity
        self._heartbeats = heartbeats or Heartbeats()
        self._liveness = Liveness(clock, identity)
        self._observer: Observer | None = None
        self._steering = self._watch_steering()
        self._reviews = self._watch_reviews()
        self._electing: asyncio.Task[None] | None = None
        self._leading: list[asyncio.Task[None]] = []
        self._elector = LeaseElector(
            client.reserved(),
            LeaseIdentity(settings.own_namespace, LEASE, identity),
            LeaseTimes(settings.lease_duration_s, settings.lease_renew_s),
            on_started=self._start_leading,
            on_lost=self._stop_leading,
            # Marks outlive all processes there, in case the database does not.
            annotations=lambda: {ANNOTATION: database.seen.to_text()},
            on_seen=lambda said: database.seen.note(read_marks(said.get(ANNOTATION, "{}"))),
        )

    async def run(self, stop: asyncio.Event) -> None:
        """Run until ``stop`` is set."""
        self._electing = asyncio.create_task(self._elector.run())
        try:
            await stop.wait()
        finally:
            await _cancel(self._electing)
            self._stop_leading()
            for task in self._leading:
                await _cancel(task)

    @property
    def is_synced(self) -> bool:
        """Return whether the process is ready.

        A leader is ready when it has seen the whole cluster. Other processes stand by.
        """
        is_behind = self._elector.is_leader and not (self._observer and self._observer.is_synced)
        return not is_behind

    def problem(self) -> str | None:
        """Return the problem that only a restart solves, such as a loop that ended or is stuck."""
        if self._electing is not None and self._electing.done():
            return "the election has ended"
        if self._elector.is_leader and any(task.done() for task in self._leading):
            return "a loop of the leader has ended"
        return self._heartbeats.problem()

    def _start_leading(self, term: int) -> None:
        logger.info("leads", extra={"action": "lead", "lease_term": term})
        metrics.lead(CONTROLLER, term)
        for loop in (OBSERVE, STEER, REVIEWS):
            self._liveness.expect(loop)
        patience_s = LATE_S + 2 * int(self._settings.resync_interval_s)
        self._liveness.expect(RESYNC, patience_s=patience_s, is_periodic=True)
        self._steering, self._reviews = self._watch_steering(), self._watch_reviews()
        loops = [
            self._observe(),
            self._operate(),
            self._steering.run(),
            self._reviews.run(),
            self._liveness.keep(self._database),
            show_for_ever(self._database, self._clock, self._heartbeats),
        ]
        if self._settings.cert_secret:
            loops.append(self._keep_certificates())
        if self._settings.follow_pools:
            client = self._client.in_background()
            loops.append(PoolFollower(client, self._clock, self._heartbeats).run())
        self._leading = [asyncio.create_task(loop) for loop in loops]

    def _stop_leading(self) -> None:
        metrics.stop_leading(CONTROLLER)
        self._liveness.forget(OBSERVE, STEER, REVIEWS, RESYNC)
        self._observer = None
        for task in self._leading:
            task.cancel()

    async def _keep_certificates(self) -> None:
        settings, namespace = self._settings, self._settings.own_namespace
        life = timedelta(days=settings.cert_days)
        names = CertificateNames(
            namespace=namespace,
            secret=settings.cert_secret,
            configuration=settings.cert_configuration,
            hosts=service_names(settings.cert_service, namespace),
        )
        lives = Lives(serving=life, ca=10 * life)
        await CertificateKeeper(
            self._client, self._clock, names, lives, heartbeats=self._heartbeats
        ).run()

    async def _operate(self) -> None:
        """Run kopf for our own resources, and restart it if it ends."""
        registry = build_registry(
            self._client.config,
            on_fluxjob_seen=lambda fluxjob: self._steering.see(dict(fluxjob)),
            on_fluxjob_deleted=lambda fluxjob: self._steering.see_deleted(dict(fluxjob)),
            on_fluxjob_let_go=self._on_fluxjob_let_go,
            on_review_seen=lambda review: self._reviews.see(dict(review)),
            on_review_deleted=lambda review: self._reviews.see_deleted(dict(review)),
        )
        while True:
            try:
                await run_operator(registry, take_signals=self._take_signals)
            except Exception:
                logger.exception("kopf ended and is started again")
            await self._clock.sleep(RESTART_S)

    async def _observe(self) -> None:
        """Observe while the process holds the Lease, under one database term after another."""
        while self._elector.is_leader:
            try:
                term = await Term.begin(self._database, self._settings, self._clock, self._identity)
                self._observer = Observer(
                    term, self._client, self._settings, self._clock, self._liveness
                )
                await self._observer.run()
            except (DatabaseUnavailable, LostLeadership) as error:
                self._liveness.fail(OBSERVE, error)
                logger.warning("observation ended", extra={"action": "lead", "error": str(error)})
            except Exception as error:
                self._liveness.fail(OBSERVE, error)
                logger.exception("observation ended and is started again")
            await self._clock.sleep(RESTART_S)

    def _watch_steering(self) -> SteeringWatch:
        def stands(workload_uid: str) -> bool:
            return self._observer is not None and self._observer.goes_on(workload_uid)

        def on_lost(workload_uid: str) -> None:
            if self._observer is not None:
                self._observer.router.on_fluxjob_deleted(workload_uid)

        def begin() -> AbstractAsyncContextManager[Transaction]:
            if self._observer is None:
                raise LostLeadership("no term has begun")
            return self._observer.term.begin_write()

        def find(workload_uid: str) -> Mapping[str, Any] | None:
            return None if self._observer is None else self._observer.find(workload_uid)

        return SteeringWatch(
            self._client,
            self._clock,
            begin=begin,
            stands=stands,
            find=find,
            on_lost=on_lost,
            liveness=self._liveness,
        )

    def _watch_reviews(self) -> ReviewWatch:
        return ReviewWatch(
            self._database,
            self._client,
            self._clock,
            per_minute=self._settings.reviews_per_minute,
            keep_s=self._settings.review_keep_s,
            liveness=self._liveness,
        )

    async def _on_fluxjob_let_go(self, fluxjob: Mapping[str, Any]) -> None:
        """Delete a FluxJob without owner. If its workload exists, the leader creates it again.

        The new FluxJob has the workload as its owner.
        """
        meta, workload = fluxjob["metadata"], fluxjob["spec"]["workload"]
        has_object = kind_of_fluxjob(fluxjob).has_object
        observer = self._observer
        if not has_object and (observer is None or observer.stands(workload["uid"])):
            return  # the observer deletes it with the last of its pods
        # Before the deletion: its event may arrive first, and would count as a cancellation.
        self._steering.forgive(fluxjob)
        try:
            await self._client.delete(FLUXJOBS, meta["namespace"], meta["name"], uid=meta["uid"])
        except (NotFound, Conflict):
            return  # it is gone, or its name belongs to another


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError, Exception):
        await task
