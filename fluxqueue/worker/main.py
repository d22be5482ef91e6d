"""One worker process: effect tasks always, the ``schedule`` task while it holds the matcher's role.

Entry point of ``fluxqueue worker``. It supervises what procrastinate would give up: a worker loop
that ends, for whatever reason, is started again, because a database restart ends its listener and
a failed heartbeat ends it altogether (docs/architecture.md, "What a crash can do").
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress

from fluxqueue import metrics
from fluxqueue.db import leadership
from fluxqueue.db.task_queue import TaskName
from fluxqueue.errors import DatabaseUnavailable, LostLeadership
from fluxqueue.worker.context import WorkerContext
from fluxqueue.worker.drain import drain
from fluxqueue.worker.maintain import maintain_for_ever, sweep_for_ever
from fluxqueue.worker.publish import publish_batch
from fluxqueue.worker.queue_keeping import QueueKeeper
from fluxqueue.worker.release import release_batch, settle_batch
from fluxqueue.worker.schedule import ROLE, Matcher

logger = logging.getLogger(__name__)

RESTART_MIN_S, RESTART_MAX_S = 0.2, 5.0


class Worker:
    """Runs until cancelled; cancelling lets running tasks finish within the shutdown time."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._matcher: Matcher | None = None
        self._register_tasks()

    def _register_tasks(self) -> None:
        context, app = self._context, self._context.database.app

        def register(task: TaskName, body: Callable[[], Awaitable[None]]) -> None:
            # No retry: it does not go together with a queueing lock, and the rows carry their own.
            app.task(name=task.value, queue=task.queue, queueing_lock=task.value)(body)

        async def release() -> None:
            await drain(context, TaskName.RELEASE, lambda rows: release_batch(context, rows))

        async def ungate() -> None:
            await drain(context, TaskName.UNGATE, lambda rows: settle_batch(context, rows))

        async def cleanup() -> None:
            await drain(context, TaskName.CLEANUP, lambda rows: settle_batch(context, rows))

        async def status() -> None:
            await drain(context, TaskName.STATUS, lambda rows: publish_batch(context, rows))

        register(TaskName.RELEASE, release)
        register(TaskName.UNGATE, ungate)
        register(TaskName.CLEANUP, cleanup)
        register(TaskName.STATUS, status)
        register(TaskName.SCHEDULE, self._schedule)

    async def _schedule(self) -> None:
        if self._matcher is not None:
            await self._matcher.run()

    async def run(self) -> None:
        """Run all loops until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_running("effects", self._run_effects))
            group.create_task(self._keep_running("matcher", self._lead_while_possible))
            group.create_task(sweep_for_ever(self._context))
            group.create_task(maintain_for_ever(self._context))

    async def _keep_running(self, name: str, body: Callable[[], Awaitable[None]]) -> None:
        """Start ``body`` again whenever it ends, ever slower while it keeps failing."""
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
        await self._run_queue("effects", self._context.settings.worker_concurrency)

    async def _run_queue(self, queue: str, concurrency: int) -> None:
        settings = self._context.settings
        await self._context.database.app.run_worker_async(
            queues=[queue],
            name=f"{self._context.identity}-{queue}",
            concurrency=concurrency,
            fetch_job_polling_interval=settings.worker_polling_s,
            shutdown_graceful_timeout=settings.worker_shutdown_s,
            install_signal_handlers=False,
            delete_jobs="successful",
        )

    async def _lead_while_possible(self) -> None:
        """Wait for the matcher's role, then match until it is lost."""
        context = self._context
        duration_s = context.settings.matcher_lease_s
        while True:
            context.heartbeats.beat("matcher", within_s=context.patience_s)
            term = await self._try_lead()
            if term is not None:
                break
            await context.clock.sleep(duration_s / 5)
        logger.info("holds the matcher's role", extra={"action": "lead", "term": term})
        self._matcher = Matcher(context, term)
        metrics.lead(ROLE, term)
        try:
            await context.database.wake(TaskName.SCHEDULE)
            await self._match_and_renew(term, duration_s)
        finally:
            self._matcher = None
            metrics.stop_leading(ROLE)
            with suppress(DatabaseUnavailable):
                await leadership.resign(context.database, ROLE, context.identity, term=term)

    async def _try_lead(self) -> int | None:
        context = self._context
        return await leadership.try_acquire(
            context.database, ROLE, context.identity, duration_s=context.settings.matcher_lease_s
        )

    async def _match_and_renew(self, term: int, duration_s: float) -> None:
        context = self._context
        matching = asyncio.create_task(self._run_queue("schedule", 1))
        keeping = asyncio.create_task(QueueKeeper(context, ROLE, term).run())
        try:
            while not matching.done():
                context.heartbeats.beat("matcher", within_s=context.patience_s)
                await asyncio.wait([matching], timeout=duration_s / 5)
                if not await leadership.renew(
                    context.database, ROLE, context.identity, term=term, duration_s=duration_s
                ):
                    raise LostLeadership(f"role {ROLE}: term {term} is over")
                if self._matcher is not None and self._matcher.is_forecast_due:
                    await context.database.wake(TaskName.SCHEDULE)
        finally:
            for task in (keeping, matching):
                task.cancel()
                with suppress(asyncio.CancelledError, Exception):
                    await task
