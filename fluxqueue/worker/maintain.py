"""The periodic tasks: what keeps the queue going when something was lost, and what cleans up.

``sweep`` is the net under every crash: tasks of workers that died run again, and what is owed and
in no task is deferred. ``maintain`` is coarser: old finished rows, and the drift view, which must
be empty: what stands in it twice is repaired where that is safe, else reported with the way out.
Rows and cluster are compared by the controller, which alone sees the cluster
(``controller.observing.resync``).
"""

from __future__ import annotations

import logging

from fluxqueue import metrics
from fluxqueue.db import retention, task_queue
from fluxqueue.db.life import drift_repair
from fluxqueue.db.life.owed import sweep
from fluxqueue.errors import DatabaseUnavailable
from fluxqueue.worker.context import WorkerContext

logger = logging.getLogger(__name__)

SWEEP, MAINTAIN = "sweep", "maintain"
"""Their names where the times of loops are reported."""

SWEEP_S = 2
"""How often somebody looks for what was lost."""

GRACE_S = 3.0
"""How long something may be owed before a task for it must be there."""

Drift = frozenset[tuple[str, str]]
"""Broken invariants with their subjects."""


class Maintenance:
    """The periodic tasks of one worker; any worker may run each, and repeating one is harmless."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._drift: Drift = frozenset()

    async def sweep(self) -> None:
        """Give the tasks of dead workers to others, and defer what is owed and in no task."""
        with self._context.liveness.turn(SWEEP):
            await self._sweep()

    async def _sweep(self) -> None:
        database = self._context.database
        self._context.heartbeats.beat("sweep", within_s=SWEEP_S + self._context.patience_s)
        for task in await task_queue.rescue_stalled(database.app):
            metrics.RESCUED.labels(task).inc()
            logger.warning("task of a dead worker", extra={"action": "rescue", "task": task})
        async with database.begin() as tx:
            found = await sweep(tx, grace_s=GRACE_S)
        for task, number in found.items():
            metrics.SWEPT.labels(task).inc(number)
            logger.info("was owed and in no task", extra={"action": task, "number": number})

    async def maintain(self) -> None:
        """Prune, repair and report once. Only drift that lasts from one time to the next.

        What fails of it keeps nothing else from being done.
        """
        with self._context.liveness.turn(MAINTAIN):
            await self._maintain()

    async def _maintain(self) -> None:
        settings = self._context.settings
        within_s = settings.maintain_interval_s + self._context.patience_s
        self._context.heartbeats.beat("maintain", within_s=within_s)
        failed: list[Exception] = []
        for step in (self._prune, self._analyze, self._look_after_drift):
            try:
                await step()
            except DatabaseUnavailable:
                raise
            except Exception as error:
                logger.exception("maintenance failed", extra={"action": "maintain"})
                failed.append(error)
        if failed:
            raise failed[0]

    async def _prune(self) -> None:
        settings = self._context.settings
        await retention.delete_old_rows(
            self._context.database,
            retention_s=settings.history_retention_s,
            accounting_retention_s=settings.accounting_retention_s,
        )

    async def _analyze(self) -> None:
        analyzed = await retention.analyze_unknown(self._context.database)
        if analyzed:
            logger.info("statistics made", extra={"action": "maintain", "tables": analyzed})

    async def _look_after_drift(self) -> None:
        rows = await drift_repair.drift(self._context.database)
        now = frozenset((row["invariant"], row["subject"]) for row in rows)
        for row in rows:
            logger.error("drift", extra={"action": "drift", **row})
        for invariant in sorted({invariant for invariant, _ in now & self._drift}):
            healed = await drift_repair.repair(self._context.database, invariant)
            extra = {"action": "heal", "invariant": invariant, "healed": healed}
            if healed:
                metrics.HEALED.labels(invariant).inc(healed)
                logger.warning("drift repaired", extra=extra)
            else:
                way_out = drift_repair.WAY_OUT.get(invariant, "see docs/admin/runbook.md")
                logger.error("drift that stays", extra={**extra, "way_out": way_out})
        self._drift = now
