"""One worker process: tasks for workloads, and ``schedule`` while it has the matcher's role.

This is the entry point of ``fluxqueue worker``. It supervises what procrastinate would give up. A
worker loop that ends, for whatever reason, is started again. A database restart ends the loop's
listener, and a failed heartbeat ends the whole loop (docs/developer/concurrency.md,
"procrastinate").
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

import procrastinate

from fluxqueue.db import leadership
from fluxqueue.db.doorbell import Doorbell
from fluxqueue.db.liveness import LATE_S
from fluxqueue.db.task_queue import (
    CROWDED,
    EFFECTS,
    HEARTBEAT_S,
    LATER,
    STALLED_S,
    TaskBackoff,
    TaskName,
    app_on,
    every,
)
from fluxqueue.errors import DatabaseUnavailable, LostLeadership
from fluxqueue.process import metrics
from fluxqueue.process.pacing import SWEEP_S
from fluxqueue.worker import (
    calendar_keeping,
    node_pool_keeping,
    node_protecting,
    queue_keeping,
    sharing_keeping,
)
from fluxqueue.worker.context import WorkerContext
from fluxqueue.worker.maintain import MAINTAIN, SWEEP, Maintenance
from fluxqueue.worker.reconcile_pods import reconcile_workloads
from fluxqueue.worker.release import release_workloads
from fluxqueue.worker.review_tasks import Reviewer
from fluxqueue.worker.schedule import LOOP as CYCLE
from fluxqueue.worker.schedule import ROLE, CycleRunner
from fluxqueue.worker.status import write_statuses

logger = logging.getLogger(__name__)

LEADING = (
    CYCLE,
    *(
        one.LOOP
        for one in (
            calendar_keeping,
            node_pool_keeping,
            node_protecting,
            queue_keeping,
            sharing_keeping,
        )
    ),
)
"""The loops of the holder of the matcher's role."""

RESTART_MIN_S, RESTART_MAX_S = 0.2, 5.0

CROWDED_PART = 4
"""The tasks of a namespace with many at once get this part of a worker's tasks in addition.

They keep the client as busy as all tasks together would. More of them at once end later."""

NET_S = 60.0
"""The interval in seconds at which a loop tries to take a task without a doorbell signal.

See ``db/doorbell.py``.
"""


class Worker:
    """Run until cancelled. Running tasks then finish within the shutdown time."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._matcher: CycleRunner | None = None
        self._reviewer: Reviewer | None = None
        connector = context.database.app.connector
        # Tasks in ``later`` are collected for a moment. A review waits until the changes that its
        # user made just before have been observed. Polling finds both.
        told = (EFFECTS, CROWDED, TaskName.SCHEDULE.queue)
        every_s = context.settings.worker_polling_s
        self._doorbell = Doorbell(connector, context.clock, told=told, every_s=every_s)
        self._app = app_on(connector, self._doorbell)
        # Each loop of an application defers all its periodic tasks, so these tasks have their own
        # application.
        self._later = app_on(connector, self._doorbell)
        self._register_tasks()
        self._register_later(Maintenance(context))

    def _register_tasks(self) -> None:
        context = self._context

        # The database finds the turn of a task by its lane (``db/sql/20_tasks.sql``).
        async def release(uids: list[str], lane: str = "") -> None:
            del lane
            await release_workloads(context, uids)

        async def reconcile(uids: list[str], lane: str = "") -> None:
            del lane
            await reconcile_workloads(context, uids)

        for name, body in ((TaskName.RELEASE, release), (TaskName.RECONCILE, reconcile)):
            self._app.task(name=name.value, queue=name.queue, retry=TaskBackoff())(body)
        # No retry for a cycle: its pending work is in the rows, and they cause the next cycle.
        schedule, review = TaskName.SCHEDULE, TaskName.REVIEW
        self._app.task(name=schedule.value, queue=schedule.queue)(self._schedule)
        self._app.task(name=review.value, queue=review.queue, retry=TaskBackoff())(self._review)

    def _register_later(self, maintenance: Maintenance) -> None:
        context = self._context

        async def status(uids: list[str]) -> None:
            await write_statuses(context, uids)

        async def sweep(timestamp: int) -> None:
            del timestamp  # the planned time, which does not matter
            await maintenance.sweep()

        async def maintain(timestamp: int) -> None:
            del timestamp
            await maintenance.maintain()

        self._later.task(name=TaskName.STATUS.value, queue=LATER, retry=TaskBackoff())(status)
        periodic = (
            (TaskName.SWEEP, sweep, SWEEP_S),
            (TaskName.MAINTAIN, maintain, context.settings.maintain_interval_s),
        )
        for name, body, seconds in periodic:
            # No retry: it is not compatible with a queueing lock, and the next run comes anyway.
            task = self._later.task(name=name.value, queue=LATER, queueing_lock=name.value)(body)
            self._later.periodic(cron=every(seconds))(task)

    async def _schedule(self) -> None:
        if self._matcher is not None:
            with self._context.liveness.turn(CYCLE):
                await self._matcher.run()

    async def _review(self, namespace: str, name: str, uid: str, crashes: int = 0) -> None:
        if self._reviewer is None:
            raise LostLeadership(f"role {ROLE}: its next holder answers")
        await self._reviewer.review(namespace, name, uid, crashes=crashes)

    async def run(self) -> None:
        """Run all loops until cancelled."""
        self._expect_loops()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_running("listen", self._doorbell.listen))
            group.create_task(self._keep_running("look", self._doorbell.look))
            group.create_task(self._keep_running(EFFECTS, self._run_effects))
            group.create_task(self._keep_running(CROWDED, self._run_crowded))
            group.create_task(self._keep_running(LATER, self._run_later))
            group.create_task(self._keep_running("matcher", self._lead_while_possible))
            group.create_task(self._context.liveness.keep(self._context.database))

    def _expect_loops(self) -> None:
        liveness, settings = self._context.liveness, self._context.settings
        for task in (TaskName.RELEASE, TaskName.RECONCILE, TaskName.STATUS):
            liveness.expect(task.value)
        liveness.expect(SWEEP, is_periodic=True)
        patience_s = LATE_S + 2 * int(settings.maintain_interval_s)
        liveness.expect(MAINTAIN, patience_s=patience_s, is_periodic=True)

    async def _keep_running(self, name: str, body: Callable[[], Awaitable[None]]) -> None:
        """Start ``body`` again whenever it ends, more slowly each time while it fails."""
        pause = RESTART_MIN_S
        clock = self._context.clock
        while True:
            started = clock.monotonic_s()
            try:
                await body()
            except DatabaseUnavailable as error:
                logger.warning("database away", extra={"action": name, "error": str(error)})
            except Exception:
                logger.exception("loop ended and is started again", extra={"action": name})
            lasted = clock.monotonic_s() - started
            pause = RESTART_MIN_S if lasted > RESTART_MAX_S else min(2 * pause, RESTART_MAX_S)
            await clock.sleep(pause)

    async def _run_effects(self) -> None:
        await self._run_queue(EFFECTS, self._context.settings.worker_concurrency)

    async def _run_crowded(self) -> None:
        concurrency = self._context.settings.worker_concurrency // CROWDED_PART
        await self._run_queue(CROWDED, max(1, concurrency))

    async def _run_later(self) -> None:
        concurrency = self._context.settings.worker_concurrency
        await self._run_queue(LATER, concurrency, app=self._later)

    async def _run_reviews(self) -> None:
        await self._run_queue(TaskName.REVIEW.queue, 1)

    async def _run_queue(
        self, queue: str, concurrency: int, *, app: procrastinate.App | None = None
    ) -> None:
        settings = self._context.settings
        await (app or self._app).run_worker_async(
            queues=[queue],
            name=f"{self._context.identity}-{queue}",
            concurrency=concurrency,
            fetch_job_polling_interval=NET_S,
            shutdown_graceful_timeout=settings.worker_shutdown_s,
            install_signal_handlers=False,
            update_heartbeat_interval=HEARTBEAT_S,
            stalled_worker_timeout=STALLED_S,
            delete_jobs="successful",
        )

    async def _lead_while_possible(self) -> None:
        """Wait for the matcher's role, then match until the role is lost."""
        context = self._context
        duration_s = context.settings.matcher_lease_s
        while True:
            context.heartbeats.beat("matcher", within_s=context.patience_s)
            term = await self._try_lead()
            if term is not None:
                break
            await context.clock.sleep(duration_s / 5)
        logger.info("holds the matcher's role", extra={"action": "lead", "term": term})
        self._matcher = CycleRunner(context, term)
        self._reviewer = Reviewer(context, self._matcher)
        metrics.lead(ROLE, term)
        for loop in LEADING:
            context.liveness.expect(loop)
        try:
            await context.database.wake_matcher()
            await self._match_and_renew(term, duration_s)
        finally:
            self._matcher = self._reviewer = None
            metrics.stop_leading(ROLE)
            context.liveness.forget(*LEADING)
            with suppress(DatabaseUnavailable):
                await leadership.resign(context.database, ROLE, context.identity, term=term)

    async def _try_lead(self) -> int | None:
        context = self._context
        return await leadership.try_acquire(
            context.database, ROLE, context.identity, duration_s=context.settings.matcher_lease_s
        )

    async def _match_and_renew(self, term: int, duration_s: float) -> None:
        context = self._context
        matching = asyncio.create_task(self._run_queue(TaskName.SCHEDULE.queue, 1))
        reviewing = asyncio.create_task(
            self._keep_running(TaskName.REVIEW.queue, self._run_reviews)
        )
        matcher = self._matcher
        assert matcher is not None, "this process has just taken the role"
        keepers = (
            queue_keeping.QueueKeeper(context, ROLE, term),
            sharing_keeping.SharingKeeper(context, matcher),
            calendar_keeping.CalendarKeeper(context, matcher),
            node_pool_keeping.NodePoolKeeper(context, matcher.nodes.changed),
            node_protecting.NodeProtector(context, matcher),
        )
        beside = [asyncio.create_task(one.run()) for one in keepers]
        try:
            while not matching.done():
                context.heartbeats.beat("matcher", within_s=context.patience_s)
                await asyncio.wait([matching], timeout=duration_s / 5)
                if not await leadership.renew(
                    context.database, ROLE, context.identity, term=term, duration_s=duration_s
                ):
                    raise LostLeadership(f"role {ROLE}: term {term} is over")
                if self._matcher is not None and self._matcher.is_due:
                    await context.database.wake_matcher()
        finally:
            for task in (*reversed(beside), reviewing, matching):
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task
