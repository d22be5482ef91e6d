"""The ``maintain`` task and the sweep: what keeps the queue going when a wake-up was lost.

The sweep runs in every worker about once a second and wakes the tasks that have something due; it
is the net under every crash between a commit and its wake-up. ``maintain`` is coarser: tasks whose
worker died, old finished rows, and the drift view, which must be empty.
"""

from __future__ import annotations

import asyncio
import logging

from fluxqueue import metrics
from fluxqueue.db import outbox, upkeep
from fluxqueue.errors import DatabaseUnavailable
from fluxqueue.worker.context import WorkerContext

logger = logging.getLogger(__name__)

SWEEP_S = 1.0


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
    while True:
        context.heartbeats.beat("maintain", within_s=within_s)
        try:
            await maintain(context)
        except DatabaseUnavailable as error:
            logger.warning("database away", extra={"action": "maintain", "error": str(error)})
        except Exception:
            logger.exception("maintain failed")
        await context.clock.sleep(context.settings.maintain_interval_s)


async def maintain(context: WorkerContext) -> None:
    """Rescue, prune and report once."""
    rescued = await upkeep.rescue_stalled_tasks(context.database)
    for task in rescued:
        metrics.RESCUED.labels(task).inc()
    if rescued:
        logger.warning("stalled tasks removed", extra={"action": "rescue", "tasks": rescued})
    await upkeep.delete_old_rows(context.database, retention_s=context.settings.history_retention_s)
    for row in await upkeep.drift(context.database):
        logger.error("drift", extra={"action": "drift", **row})
    await asyncio.sleep(0)
