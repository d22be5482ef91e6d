"""Draining the outbox: claim a batch, carry it out, remember what failed, until nothing is due.

Shared by all effect tasks. An effect that fails keeps its row, with its error and a growing pause;
no effect is ever given up, because each row exists exactly as long as something is owed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from fluxqueue import metrics
from fluxqueue.db.outbox import OutboxRow, Outcome, finish_and_claim
from fluxqueue.db.task_queue import TaskName
from fluxqueue.errors import FluxQueueError
from fluxqueue.worker.context import WorkerContext

logger = logging.getLogger(__name__)

Effect = Callable[[OutboxRow], Awaitable[None]]
BatchEffect = Callable[[Sequence[OutboxRow]], Awaitable[dict[int, str]]]

BATCH_MAX = 100


async def drain(context: WorkerContext, task: TaskName, carry_out: BatchEffect) -> None:
    """Run ``carry_out`` over all due rows of ``task``, batch by batch.

    ``carry_out`` gives the ids that failed with their errors; all others are done.
    """
    outcome = Outcome()
    while rows := await finish_and_claim(context.database, task, outcome, limit=BATCH_MAX):
        failed = await carry_out(rows)
        outcome = Outcome([row.id for row in rows if row.id not in failed], failed)
        metrics.EFFECTS.labels(task.value, "done").inc(len(outcome.done))
        metrics.EFFECTS.labels(task.value, "failed").inc(len(failed))
        _log_failures(task, rows, failed)


def _log_failures(task: TaskName, rows: Sequence[OutboxRow], failed: dict[int, str]) -> None:
    for row in rows:
        if row.id in failed:
            logger.warning(
                "effect failed and will be tried again",
                extra={
                    "action": task.value,
                    "key": row.key,
                    "attempts": row.attempts,
                    "error": failed[row.id],
                },
            )


async def one_by_one(rows: Sequence[OutboxRow], effect: Effect) -> dict[int, str]:
    """Carry out each row by itself, all at once; the client bounds how many calls are open."""
    outcomes = await asyncio.gather(*(attempt(effect, row) for row in rows))
    return {row.id: error for row, error in zip(rows, outcomes, strict=True) if error}


async def attempt(effect: Effect, row: OutboxRow) -> str | None:
    """Carry out one effect; give its error, if any, in words."""
    try:
        await effect(row)
    except FluxQueueError as error:
        return str(error) or type(error).__name__
    except Exception as error:
        # A defect in one effect must not take the rest of the batch with it.
        logger.exception("effect broke", extra={"key": row.key})
        return f"{type(error).__name__}: {error}"
    return None
