"""The procrastinate application's names, and waking a task inside the caller's transaction.

A task drains rows; it carries no arguments, so any number of wishes to run it are one waiting task
(``queueing_lock`` = its name). ``wake`` is used by every transaction that leaves work behind.

Why ``wake`` alone is not enough: a task that was *waiting* when we asked may be fetched before we
commit, and then does not see our rows. ``Database.begin`` therefore asks once more after the
commit for the tasks that were already waiting, and the worker's sweep covers a crash in between.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import procrastinate
import psycopg_pool
from procrastinate.exceptions import AlreadyEnqueued
from procrastinate.jobs import JobDeferrer
from sqlalchemy.ext.asyncio import AsyncConnection

from fluxqueue.db.engine import check_writable, connect_args, libpq_url
from fluxqueue.settings import Settings

POOL_MAX = 4
"""Connections of procrastinate's own pool: fetch, finish, heartbeat, and one to spare."""


RECONNECT_S = 1.0
"""The pool doubles its pauses between attempts for this long, then each use of it tries anew. (Its
own five minutes end in pauses of half a minute, which would pass after the database is back.)"""


class TaskName(StrEnum):
    """Tasks of the worker pool; the outbox kinds carry the names of the tasks that drain them."""

    SCHEDULE = "schedule"
    RELEASE = "release"
    UNGATE = "ungate"
    CLEANUP = "cleanup"
    STATUS = "status"
    MAINTAIN = "maintain"

    @property
    def queue(self) -> str:
        """The procrastinate queue: ``schedule`` has one owner, the rest any worker."""
        return "schedule" if self is TaskName.SCHEDULE else "effects"


def make_app(settings: Settings, *, role: str) -> procrastinate.App:
    """Build the application on a small pool of its own, with the engine's connection settings."""
    connector = procrastinate.PsycopgConnector(
        conninfo=libpq_url(settings.database_url),
        kwargs=connect_args(settings, role=role),
        min_size=1,
        max_size=POOL_MAX,
        timeout=settings.db_pool_timeout_s,
        pool_factory=_writable_pool,
    )
    return procrastinate.App(connector=connector)


def _writable_pool(**options: Any) -> psycopg_pool.AsyncConnectionPool[Any]:
    ours = {"check": check_writable, "reconnect_timeout": RECONNECT_S}
    return psycopg_pool.AsyncConnectionPool(**{**options, **ours})


async def wake(app: procrastinate.App, task: TaskName, connection: AsyncConnection) -> bool:
    """Ask for ``task`` within the transaction of ``connection``.

    Returns False where it is already waiting: the caller must ask again after its commit.
    """
    raw = (await connection.get_raw_connection()).driver_connection
    try:
        async with connection.begin_nested():
            await _deferrer(app, task, connection=raw).defer_async()
    except AlreadyEnqueued:
        return False
    return True


async def wake_now(app: procrastinate.App, task: TaskName) -> None:
    """Ask for ``task`` on the application's own connection; harmless if it is already waiting."""
    try:
        await _deferrer(app, task).defer_async()
    except AlreadyEnqueued:
        return


def _deferrer(app: procrastinate.App, task: TaskName, **options: Any) -> JobDeferrer:
    return app.configure_task(task.value, queue=task.queue, queueing_lock=task.value, **options)
