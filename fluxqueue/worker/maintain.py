"""The periodic tasks: recover what was lost, and clean up.

``sweep`` recovers after any crash. Tasks of crashed workers run again, and pending actions without
a task are deferred. ``maintain`` runs less often. It deletes old finished rows and checks the drift
view, which must be empty. Drift that is present twice is repaired if that is safe, else reported
with the way out. The controller compares rows and cluster (``controller.observing.resync_diff``),
because only it observes the cluster.
"""

from __future__ import annotations

import logging
from dataclasses import asdict

from fluxqueue.db import retention, task_queue
from fluxqueue.db.reading.snapshot import drift
from fluxqueue.db.store import drift_repair
from fluxqueue.db.store.pending_actions import sweep
from fluxqueue.errors import DatabaseUnavailable
from fluxqueue.process import metrics
from fluxqueue.process.pacing import GRACE_S, SWEEP_S
from fluxqueue.worker.context import WorkerContext

logger = logging.getLogger(__name__)

SWEEP, MAINTAIN = "sweep", "maintain"
"""The names of these loops where the times of loops are reported."""

Drift = frozenset[tuple[str, str]]
"""Broken invariants with their subjects."""


class Maintenance:
    """Run the periodic tasks. Any worker may run each, and repetitions are harmless."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._drift: Drift = frozenset()

    async def sweep(self) -> None:
        """Give tasks of crashed workers to others. Defer pending actions without a task."""
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
            logger.info(
                "was pending_actions and in no task", extra={"action": task, "number": number}
            )

    async def maintain(self) -> None:
        """Prune, repair and report once.

        Only drift that lasts from one run to the next is repaired. A step that fails does not
        prevent the others.
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
        rows = await drift(self._context.database)
        now = frozenset((row.invariant, row.subject) for row in rows)
        for row in rows:
            logger.error("drift", extra={"action": "drift", **asdict(row)})
        # Drift that is seen once may be a change under way. A repair could interfere with it.
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
