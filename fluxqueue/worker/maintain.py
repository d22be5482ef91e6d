"""The ``maintain`` task and the sweep: what keeps the queue going when a wake-up was lost.

The sweep runs in every worker about once a second and wakes the tasks that have something due; it
is the net under every crash between a commit and its wake-up. ``maintain`` is coarser: tasks whose
worker died, old finished rows, and the drift view, which must be empty: what stands in it twice is
repaired where that is safe, else reported with the way out. Rows and cluster are compared by the
controller, which alone sees the cluster (``controller.resync``).
"""

from __future__ import annotations

import logging

from fluxqueue import metrics
from fluxqueue.db import outbox, retention
from fluxqueue.db.life import drift_repair
from fluxqueue.errors import DatabaseUnavailable
from fluxqueue.worker.context import WorkerContext

logger = logging.getLogger(__name__)

SWEEP_S = 1.0

Drift = frozenset[tuple[str, str]]
"""Broken invariants with their subjects."""


async def sweep_for_ever(context: WorkerContext) -> None:
    """Wake what is due, every second, whatever else happens."""
    while True:
        context.heartbeats.beat("sweep", within_s=context.patience_s)
        try:
            await context.database.wake(*await outbox.due_tasks(context.database))
        except DatabaseUnavailable as error:
            logger.warning("database away", extra={"action": "sweep", "error": str(error)})
        except Exception:
            # The sweep is the last net: a defect may cost one round, never the loop.
            logger.exception("sweep failed")
        await context.clock.sleep(SWEEP_S)


async def maintain_for_ever(context: WorkerContext) -> None:
    """Run ``maintain`` at its interval; any worker may, repeating it is harmless."""
    within_s = context.settings.maintain_interval_s + context.patience_s
    drift: Drift = frozenset()
    while True:
        context.heartbeats.beat("maintain", within_s=within_s)
        try:
            drift = await maintain(context, drift)
        except DatabaseUnavailable as error:
            logger.warning("database away", extra={"action": "maintain", "error": str(error)})
        except Exception:
            logger.exception("maintain failed")
        await context.clock.sleep(context.settings.maintain_interval_s)


async def maintain(context: WorkerContext, before: Drift = frozenset()) -> Drift:
    """Rescue, prune, repair and report once.

    ``before`` is the drift of the last time, the answer that of now: only what lasts is touched.
    """
    database = context.database
    rescued = await retention.rescue_stalled_tasks(database)
    for task in rescued:
        metrics.RESCUED.labels(task).inc()
    if rescued:
        logger.warning("stalled tasks removed", extra={"action": "rescue", "tasks": rescued})
    await retention.delete_old_rows(
        database,
        retention_s=context.settings.history_retention_s,
        accounting_retention_s=context.settings.accounting_retention_s,
    )
    analyzed = await retention.analyze_unknown(database)
    if analyzed:
        logger.info("statistics made", extra={"action": "maintain", "tables": analyzed})
    return await _look_after_drift(context, before)


async def _look_after_drift(context: WorkerContext, before: Drift) -> Drift:
    rows = await retention.drift(context.database)
    now = frozenset((row["invariant"], row["subject"]) for row in rows)
    for row in rows:
        logger.error("drift", extra={"action": "drift", **row})
    for invariant in sorted({invariant for invariant, _ in now & before}):
        healed = await drift_repair.repair(context.database, invariant)
        extra = {"action": "heal", "invariant": invariant, "healed": healed}
        if healed:
            metrics.HEALED.labels(invariant).inc(healed)
            logger.warning("drift repaired", extra=extra)
        else:
            way_out = drift_repair.WAY_OUT.get(invariant, "see docs/runbook.md")
            logger.error("drift that stays", extra={**extra, "way_out": way_out})
    return now
