"""Carrying out a task's effects: all at once, each failure its own, the task tried again.

Shared by the tasks that name workloads. What has failed goes on being owed by its row; the task
ends with an error, and procrastinate runs it again, more slowly each time, until nothing is owed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from fluxqueue import metrics
from fluxqueue.db.life.owed import note_failures
from fluxqueue.db.task_queue import TaskName
from fluxqueue.errors import EffectsFailed, FluxQueueError
from fluxqueue.worker.context import WorkerContext

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Done = TypeVar("Done")


async def all_at_once(
    items: Sequence[Item], effect: Callable[[Item], Awaitable[Done]]
) -> tuple[list[Done], dict[int, str]]:
    """Carry out ``effect`` for each item; the client bounds how many calls are open.

    Gives what was done, and the errors in words by the number of the item.
    """
    outcomes = await asyncio.gather(*(effect(item) for item in items), return_exceptions=True)
    done: list[Done] = []
    failed: dict[int, str] = {}
    for number, outcome in enumerate(outcomes):
        if not isinstance(outcome, BaseException):
            done.append(outcome)
        elif isinstance(outcome, FluxQueueError):
            failed[number] = str(outcome) or type(outcome).__name__
        elif isinstance(outcome, Exception):
            # A defect in one effect must not take the rest of the batch with it.
            logger.error("effect broke", exc_info=outcome)
            failed[number] = f"{type(outcome).__name__}: {outcome}"
        else:
            raise outcome
    return done, failed


async def conclude(
    context: WorkerContext, task: TaskName, done: int, failed: Mapping[str, str]
) -> None:
    """Count what was done; end the task with an error where something failed.

    Raises
    ------
    EffectsFailed
        ``failed`` (words by the UID of the workload) is not empty.
    """
    metrics.EFFECTS.labels(task.value, "done").inc(done)
    metrics.EFFECTS.labels(task.value, "failed").inc(len(failed))
    for uid, error in failed.items():
        logger.warning(
            "effect failed and will be tried again",
            extra={"action": task.value, "uid": uid, "error": error},
        )
    if failed:
        await note_failures(context.database, failed)
        uid, error = next(iter(failed.items()))
        raise EffectsFailed(f"{len(failed)} of {done + len(failed)} failed, first {uid}: {error}")
