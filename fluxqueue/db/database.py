"""The database as the processes use it: one engine, one task application, transactions that wake.

Made once per process by its entry point and handed to the stores. The only place that begins a
transaction, so that error translation, the actor of the audit trail and the wake-up after commit
cannot be forgotten.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

from sqlalchemy import TextClause, text
from sqlalchemy.ext.asyncio import AsyncConnection

from fluxqueue.db.engine import create_engine, translated_errors
from fluxqueue.db.task_queue import TaskName, make_app, wake, wake_now
from fluxqueue.settings import Settings


@functools.lru_cache(maxsize=1024)
def statement(sql: str) -> TextClause:
    """Parse each statement once: looking for its parameters costs more than running a short one."""
    return text(sql)


class Transaction:
    """An open transaction: statements as text with named parameters, and tasks to wake."""

    def __init__(self, database: Database, connection: AsyncConnection) -> None:
        self._database = database
        self.connection = connection
        self._wanted: set[TaskName] = set()
        self._already_waiting: set[TaskName] = set()

    async def fetch(self, sql: str, **values: Any) -> list[dict[str, Any]]:
        """Run one statement and give all its rows."""
        result = await self.connection.execute(statement(sql), values)
        keys = tuple(result.keys())
        return [dict(zip(keys, row, strict=True)) for row in result]

    async def fetch_one(self, sql: str, **values: Any) -> dict[str, Any] | None:
        """Run one statement and give its first row, if any."""
        result = await self.connection.execute(statement(sql), values)
        row = result.mappings().first()
        return None if row is None else dict(row)

    async def execute(self, sql: str, **values: Any) -> int:
        """Run one statement and give the number of rows it touched.

        Many rows go into one statement as arrays. One statement for each (executemany) would be a
        pipeline: of a client that stops in the midst of it the server believes that it is active,
        no time-out ends its transaction, and its locks hold up everybody for as long as it hangs.
        """
        return (await self.connection.execute(statement(sql), values)).rowcount

    def wake(self, *tasks: TaskName) -> None:
        """Ask for tasks with this transaction; asking twice is asking once."""
        self._wanted.update(tasks)

    async def defer_tasks(self) -> None:
        """Defer the tasks asked for. ``Database.begin`` does this last, just before the commit.

        Last and in one order, because two transactions that defer the same task wait for each
        other (a unique index on the queueing lock): before row locks that would be a deadlock,
        and early in a long cycle it would hold up everybody else.
        """
        for task in sorted(self._wanted - self._already_waiting):
            if not await wake(self._database.app, task, self.connection):
                self._already_waiting.add(task)

    async def wake_again(self) -> None:
        """After the commit: ask once more for what was waiting before it, and may have run since.

        That run did not see our rows.
        """
        for task in sorted(self._already_waiting):
            await wake_now(self._database.app, task)


class Database:
    """One process's access to the queue database.

    Parameters
    ----------
    settings : where the database is, pool sizes and time-outs.
    role : the part of fluxqueue this process is; stands in ``history`` for its changes.
    """

    def __init__(self, settings: Settings, *, role: str) -> None:
        self.role = role
        self.engine = create_engine(settings.database_url, settings, role=role)
        self.app = make_app(settings, role=role)

    async def __aenter__(self) -> Self:
        with translated_errors():
            await self.app.open_async()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.app.close_async()
        await self.engine.dispose()

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Transaction]:
        """Open a transaction; commit at the end, then wake what was already waiting.

        Raises
        ------
        DatabaseUnavailable
            Postgres went away. Whether the commit arrived is then unknown, so everything done in
            a transaction must be safe to do again.
        """
        with translated_errors():
            async with self.engine.begin() as connection:
                transaction = Transaction(self, connection)
                yield transaction
                await transaction.defer_tasks()
            await transaction.wake_again()

    async def wake(self, *tasks: TaskName) -> None:
        """Ask for tasks outside any transaction."""
        with translated_errors():
            for task in tasks:
                await wake_now(self.app, task)
