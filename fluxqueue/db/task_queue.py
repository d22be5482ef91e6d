"""The procrastinate application: names, queues, and how failed tasks are retried.

Tasks that act on workloads name them (``uids``). The rows' own triggers (``sql/20_tasks.sql``)
defer them in the same transaction. The rows say what is pending. A task that comes twice, or after
another that did its work, does nothing. ``database`` and ``worker`` use this module.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

import procrastinate
import psycopg
import psycopg_pool
from procrastinate import BaseRetryStrategy, RetryDecision
from procrastinate.exceptions import ConnectorException
from procrastinate.jobs import Job as Task
from procrastinate.jobs import Notification, Status
from procrastinate.manager import JobManager, NotificationCallback

from fluxqueue.db.doorbell import Doorbell
from fluxqueue.db.engine import (
    check_writable,
    connect_args,
    is_passing,
    libpq_url,
    translated_errors,
)
from fluxqueue.db.queries import Q
from fluxqueue.process.settings import Settings

POOL_MAX = 4
"""Connections of procrastinate's own pool: fetch, finish, heartbeat, and one to spare."""


RECONNECT_S = 1.0
"""How long the pool doubles its pauses between attempts; after that each use of it tries anew.

Its own five minutes end in pauses of half a minute, which would pass after the database is back.
"""

CONNECT_WITHIN_S = 5.0
"""How long a request waits for a connection.

A request that began while the server was away waits for this time, even when the server is back.
Then its loop is started again.
"""

FINISH_PAUSE_S, FINISH_WITHIN_S = 0.2, 30.0
"""Pause and limit of the attempts to write the end of a task while the server is away.

If the server is away for longer, the loop ends, and its worker with it. Its tasks are then given to
other workers.
"""

WAIT_S = 60.0
"""How often an idle listening connection is checked (seconds)."""

RETRY_MIN_S, RETRY_MAX_S = 1, 30

HEARTBEAT_S, STALLED_S = 3.0, 15.0
"""How often a worker reports that it lives, and the silence after which it loses its tasks."""


class TaskName(StrEnum):
    """Tasks of the worker pool."""

    SCHEDULE = "schedule"
    REVIEW = "review"
    RELEASE = "release"
    RECONCILE = "reconcile"
    STATUS = "status"
    SWEEP = "sweep"
    MAINTAIN = "maintain"

    @property
    def queue(self) -> str:
        """Return the procrastinate queue of the task.

        ``schedule`` and ``review`` have one owner, the process that holds the matcher. Any worker
        takes the rest. ``later`` contains what may wait for a moment. No insert wakes a worker for
        it.
        """
        return _QUEUES.get(self, LATER)


EFFECTS, LATER = "effects", "later"
CROWDED = "crowded"
"""Tasks of EFFECTS behind the first ones of a namespace (``fluxqueue_defer`` in the database).

Namespaces take turns among them (``fluxqueue_defer_crowded``)."""
_QUEUES = {
    TaskName.SCHEDULE: "schedule",
    TaskName.REVIEW: "review",
    TaskName.RELEASE: EFFECTS,
    TaskName.RECONCILE: EFFECTS,
}


class TaskBackoff(BaseRetryStrategy):
    """Retry for ever, more and more slowly. Each task ends when nothing is pending any more."""

    def get_retry_decision(self, *, exception: BaseException, job: Task) -> RetryDecision:
        """Return when a task that has failed is run again."""
        del exception  # the log has the error; all are tried again
        return RetryDecision(
            retry_in={"seconds": min(RETRY_MAX_S, RETRY_MIN_S * 2 ** min(job.attempts, 10))}
        )


def every(seconds: float) -> str:
    """Return an interval as procrastinate reads it: the longest one of even steps within it.

    Six fields, as of croniter: after minute, hour, day, month and day of the week, the second.
    """
    whole = max(1, int(seconds))
    if whole < 60:
        return f"* * * * * */{_even_step(whole)}"
    minutes = min(whole // 60, 60)
    return "0 * * * * 0" if minutes == 60 else f"*/{_even_step(minutes)} * * * * 0"


def _even_step(at_most: int) -> int:
    """Return the longest step within ``at_most`` that divides sixty."""
    return max(step for step in range(1, at_most + 1) if 60 % step == 0)


def make_app(settings: Settings, *, role: str) -> procrastinate.App:
    """Build the application on a small pool of its own, with the engine's connection settings."""
    connector = procrastinate.PsycopgConnector(
        conninfo=libpq_url(settings.database_url),
        kwargs=connect_args(settings, role=role),
        min_size=1,
        max_size=POOL_MAX,
        timeout=min(settings.db_pool_timeout_s, CONNECT_WITHIN_S),
        pool_factory=_writable_pool,
        # Each of its operations is one statement. LISTEN takes the keyword itself (not in kwargs).
        configure=_autocommit,
    )
    return app_on(connector)


def app_on(
    connector: procrastinate.BaseConnector, doorbell: Doorbell | None = None
) -> procrastinate.App:
    """Build an application on an existing connector.

    ``doorbell`` wakes its loops. An application that only defers needs none.
    """
    app = procrastinate.App(connector=connector)
    app.job_manager = PatientManager(connector, doorbell)
    return app


class PatientManager(JobManager):
    """A job manager that retries the end of a task, and fetches only where there may be a task.

    It writes how a task has ended even if the server goes away at that moment. procrastinate tries
    once. A task without a written end is ``doing`` for ever, and no process takes it from a live
    worker. procrastinate also fetches until an answer is empty, mostly twice a task.
    """

    def __init__(
        self, connector: procrastinate.BaseConnector, doorbell: Doorbell | None = None
    ) -> None:
        super().__init__(connector)
        self._doorbell = doorbell
        self._heard: Counter[tuple[str, ...]] = Counter()
        """Notifications so far, by the queues that are listened to."""
        self._dry: dict[int, int] = {}
        """Workers that took the last task there was, and the notifications they had by then."""

    async def fetch_job(self, queues: Iterable[str] | None, worker_id: int) -> Task | None:
        """Take a task; None where there is none."""
        names = tuple(queues or ())
        if self._dry.pop(worker_id, None) == self._heard[names]:
            return None
        while True:
            heard = self._heard[names]
            row = await self.connector.execute_query_one_async(
                query=Q.fetch_task, queues=queues, worker_id=worker_id
            )
            # Race: a task may be notified after the statement has looked. The loop forgets the
            # notification when this returns, so the task would be missed.
            is_over = heard == self._heard[names]
            if row.get("id") is not None:
                if is_over and not row.get("is_more"):
                    self._dry[worker_id] = heard
                return Task.from_row(row)
            if is_over:
                return None

    async def listen_for_jobs(
        self, *, on_notification: NotificationCallback, queues: Iterable[str] | None = None
    ) -> None:
        """Notify of each task that is deferred, until cancelled."""

        async def hear(*, channel: str, notification: Notification) -> None:
            self._heard[tuple(queues or ())] += 1
            await on_notification(channel=channel, notification=notification)

        assert self._doorbell is not None, "an application that is run has one"
        with self._doorbell.rings(queues or (), hear):
            await asyncio.Event().wait()

    async def finish_job(self, *args: Any, **options: Any) -> None:
        """Write that a task is over."""
        await _patiently(lambda: super(PatientManager, self).finish_job(*args, **options))

    async def retry_job(self, *args: Any, **options: Any) -> None:
        """Write that a task is to run again."""
        await _patiently(lambda: super(PatientManager, self).retry_job(*args, **options))


async def _patiently(write: Callable[[], Awaitable[None]]) -> None:
    give_up_at, is_repeated = time.monotonic() + FINISH_WITHIN_S, False
    while True:
        try:
            return await write()
        except ConnectorException as error:
            if not is_passing(error.__cause__):
                if is_repeated:
                    return None  # no longer ``doing``: it was written, and only the answer was lost
                raise
            if time.monotonic() > give_up_at:
                raise
        is_repeated = True
        await asyncio.sleep(FINISH_PAUSE_S)


async def _autocommit(connection: Any) -> None:
    await connection.set_autocommit(True)


class _PatientConnection(psycopg.AsyncConnection[Any]):
    """A connection that wakes only when something comes.

    psycopg's own also wakes ten times a second, so that a signal ends a wait where no loop handles
    signals. A connection that listens all day would never be idle.
    """

    async def wait(self, *args: Any, **options: Any) -> Any:
        return await super().wait(*args, **{"interval": WAIT_S, **options})


def _writable_pool(**options: Any) -> psycopg_pool.AsyncConnectionPool[Any]:
    ours = {
        "check": check_writable,
        "reconnect_timeout": RECONNECT_S,
        "connection_class": _PatientConnection,
    }
    return psycopg_pool.AsyncConnectionPool(**{**options, **ours})


async def rescue_stalled(app: procrastinate.App) -> list[str]:
    """Have the tasks of crashed workers run again at once, and return their names.

    procrastinate leaves them ``doing`` for ever. A periodic task is not repeated: its next time
    comes.
    """
    rescued: list[str] = []
    with translated_errors():
        for task in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=STALLED_S):
            assert task.id is not None, "it was read from its table"
            if task.queueing_lock is None:
                if task.task_name == TaskName.REVIEW:
                    # Count before the task can be taken again: the next worker must know of the
                    # crash.
                    await app.connector.execute_query_async(Q.count_crash, task_id=task.id)
                await app.job_manager.retry_job_by_id_async(task.id, datetime.now(UTC))
            else:
                await app.job_manager.finish_job_by_id_async(
                    task.id, Status.ABORTED, delete_job=True
                )
            rescued.append(task.task_name)
    return rescued
