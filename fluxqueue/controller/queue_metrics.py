"""Show the numbers of the queue as metrics, from the rows, in the leading controller only.

``main`` starts and cancels it with the leadership. A process that no longer leads shows nothing, so
two processes never show the same numbers.
"""

from __future__ import annotations

import logging

from fluxqueue.clock import Clock
from fluxqueue.db.database import Database
from fluxqueue.db.reading.gauges import QueueGauges, read_gauges
from fluxqueue.db.task_queue import TaskName
from fluxqueue.errors import DatabaseUnavailable
from fluxqueue.fluxjob.states import FINAL, FluxJobState
from fluxqueue.process import metrics
from fluxqueue.process.endpoint import Heartbeats

logger = logging.getLogger(__name__)

INTERVAL_S = 10.0
LOOP = "gauges"
PATIENCE_S = 600.0
"""Longest time (seconds) of a round, which may run into the time-outs of its statements."""

_LIVE = tuple(state for state in FluxJobState if state not in FINAL)
_WAITING = tuple(state for state in FluxJobState if state.is_waiting)
_EFFECTS = (TaskName.RELEASE, TaskName.RECONCILE, TaskName.STATUS)
_ALL = (
    metrics.FLUXJOBS,
    metrics.OLDEST_WAITING_S,
    metrics.PENDING_ACTIONS,
    metrics.OWED_AGE_S,
    metrics.TASKS,
)


async def show_for_ever(database: Database, clock: Clock, heartbeats: Heartbeats) -> None:
    """Read and show until cancelled. While the database is unavailable, nothing is shown."""
    try:
        while True:
            heartbeats.beat(LOOP, within_s=PATIENCE_S)
            try:
                show(await read_gauges(database))
            except DatabaseUnavailable as error:
                hide()
                logger.info("database away", extra={"action": LOOP, "error": str(error)})
            except Exception:
                hide()
                logger.exception("numbers not read")
            await clock.sleep(INTERVAL_S)
    finally:
        heartbeats.stop(LOOP)
        hide()


def show(found: QueueGauges) -> None:
    """Replace all numbers. A missing number becomes 0, so that its series does not end."""
    hide()
    for queue in {queue for queue, _ in found.fluxjobs} | {"default"}:
        for state in _LIVE:
            number = found.fluxjobs.get((queue, state), 0)
            metrics.FLUXJOBS.labels(queue, str(state)).set(number)
        for state in _WAITING:
            oldest_s = found.oldest_s.get((queue, state), 0.0)
            metrics.OLDEST_WAITING_S.labels(queue, str(state)).set(oldest_s)
    for task in {*found.pending_actions, *map(str, _EFFECTS)}:
        metrics.PENDING_ACTIONS.labels(task).set(found.pending_actions.get(task, 0))
        metrics.OWED_AGE_S.labels(task).set(found.overdue_s.get(task, 0.0))
    for word, number in found.tasks.items():
        metrics.TASKS.labels(word).set(number)
    metrics.DRIFT.set(found.drift)
    metrics.LOST_SLOTS.set(found.lost)


def hide() -> None:
    """Clear all numbers."""
    for gauge in _ALL:
        gauge.clear()
    metrics.DRIFT.set(0)
    metrics.LOST_SLOTS.set(0)
