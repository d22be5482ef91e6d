"""Carry out a task's effects: all at once, with separate failures and a retry of the task.

It is shared by the tasks that name workloads. A failed effect stays pending in its row. The task
ends with an error, and procrastinate runs it again, more slowly each time, until nothing is
pending. A lasting failure (a defect, a refusal) is reported on its FluxJob, and delays no other.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from fluxqueue.db.store.pending_actions import note_failures
from fluxqueue.db.task_queue import TaskName
from fluxqueue.errors import Conflict, EffectsFailed, FluxQueueError, LostLeadership, Transient
from fluxqueue.process import metrics
from fluxqueue.worker.context import WorkerContext

logger = logging.getLogger(__name__)

Item = TypeVar("Item")
Done = TypeVar("Done")


@dataclass(frozen=True, slots=True)
class Failure:
    """Say why an effect failed. ``is_lasting``: time does not cure it, so the FluxJob shows it."""

    error: str
    is_lasting: bool = False

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """Return the failure for an exception. A defect is named by its type."""
        if isinstance(error, FluxQueueError):
            is_lasting = not isinstance(error, Transient | Conflict | LostLeadership)
            return cls(str(error) or type(error).__name__, is_lasting)
        return cls(f"{type(error).__name__}: {error}", is_lasting=True)


async def all_at_once(
    items: Sequence[Item], effect: Callable[[Item], Awaitable[Done]]
) -> tuple[list[Done], dict[int, Failure]]:
    """Carry out ``effect`` for each item. The client bounds how many calls are open.

    Returns what was done, and the failures by the number of the item.
    """

    async def carry_out(item: Item) -> Done:
        return await effect(item)

    outcomes = await asyncio.gather(*map(carry_out, items), return_exceptions=True)
    done: list[Done] = []
    failed: dict[int, Failure] = {}
    for number, outcome in enumerate(outcomes):
        if not isinstance(outcome, BaseException):
            done.append(outcome)
        elif isinstance(outcome, Exception):
            if not isinstance(outcome, FluxQueueError):
                # A defect in one effect must not stop the rest of the batch.
                logger.error("effect broke", exc_info=outcome)
            failed[number] = Failure.of(outcome)
        else:
            raise outcome
    return done, failed


async def one_by_one(
    uids: Sequence[str], work: Callable[[Sequence[str]], Awaitable[Done]]
) -> tuple[list[Done], dict[str, Failure]]:
    """Do ``work`` on all at once, or on halves where that fails, to find the one that fails.

    Returns what was done, part by part, and the failures by UID.

    Raises
    ------
    Transient, LostLeadership
        The cause is none of the UIDs. The task is run again.
    """
    done: list[Done] = []
    failed: dict[str, Failure] = {}
    waiting = [list(uids)]
    while waiting:
        part = waiting.pop()
        try:
            done.append(await work(part))
        except (Transient, LostLeadership):
            raise
        except Exception as error:
            middle = len(part) // 2
            if not middle:
                logger.exception("cannot be done", extra={"uid": part[0] if part else ""})
                if not part:
                    raise
                failed[part[0]] = Failure.of(error)
                continue
            waiting += [part[middle:], part[:middle]]
    return done, failed


async def conclude(
    context: WorkerContext, task: TaskName, done: int, failed: Mapping[str, Failure]
) -> None:
    """Count what was done, and end the task with an error if something failed.

    Raises
    ------
    EffectsFailed
        ``failed`` (by the UID of the workload) is not empty.
    """
    metrics.EFFECTS.labels(task.value, "done").inc(done)
    metrics.EFFECTS.labels(task.value, "failed").inc(len(failed))
    for uid, one in failed.items():
        logger.warning(
            "effect failed and will be tried again",
            extra={"action": task.value, "uid": uid, "error": one.error},
        )
    if not failed:
        context.liveness.succeed(task.value)
        return
    uid, first = next(iter(failed.items()))
    _note(context, task, done, failed)
    await note_failures(
        context.database,
        {uid: one.error for uid, one in failed.items()},
        lasting={uid for uid, one in failed.items() if one.is_lasting},
        task=task.value,
    )
    raise EffectsFailed(f"{len(failed)} of {done + len(failed)} failed, first {uid}: {first.error}")


def _note(context: WorkerContext, task: TaskName, done: int, failed: Mapping[str, Failure]) -> None:
    """Report the result of the loop. One refused object is no failure of the loop.

    The refusal is reported on its FluxJob.
    """
    is_of_one = len(failed) == 1 and all(one.is_lasting for one in failed.values())
    if done or is_of_one:
        context.liveness.succeed(task.value)
    else:
        context.liveness.fail(task.value, next(iter(failed.values())).error)
