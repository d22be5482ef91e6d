"""The database as the processes use it: one engine, one task application, transactions.

The entry point of a process makes it once and hands it to the stores. Transactions begin only here,
so error translation and the actor of the audit trail cannot be forgotten.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any, Self

from sqlalchemy.ext.asyncio import AsyncConnection

from fluxqueue.db.engine import create_engine, translated_errors
from fluxqueue.db.epoch import Marks, begin_anew
from fluxqueue.db.queries import Q
from fluxqueue.db.reader import DatabaseReader, DatabaseReading, statement
from fluxqueue.db.task_queue import TaskName, make_app
from fluxqueue.errors import DatabaseWentBack
from fluxqueue.process.settings import Settings


class Transaction(DatabaseReading):
    """An open transaction that may write.

    ``seen`` are the marks of its process, and ``found`` those that it has read itself (``epoch``).
    """

    def __init__(self, connection: AsyncConnection, seen: Marks) -> None:
        super().__init__(connection)
        self.seen, self.found = seen, Marks()

    async def execute(self, query: str, /, **values: Any) -> int:
        """Run one statement and return the number of rows it touched.

        Many rows go into one statement, as arrays or as JSON. One statement for each (executemany)
        would be a pipeline. If a client stops in the midst of a pipeline, the server believes that
        it is active. No time-out then ends its transaction, and its locks block all others for as
        long as it hangs.
        """
        return (await self.connection.execute(*statement(query, values))).rowcount

    async def lock_fluxjobs(self, uids: Collection[str]) -> list[str]:
        """Lock rows all at once in the order of their UIDs, and return those that exist.

        All transactions use this order. Another order would cause deadlocks.
        """
        return await self.fetch(Q.lock_fluxjobs, str, uids=list(uids))

    async def defer(self, task: TaskName, uids: Collection[str]) -> None:
        """Defer ``task`` for workloads with rows that this transaction has not locked.

        A transaction that writes a row puts the pending effect into the row (``reconcile_at`` and
        similar columns), and the row's trigger defers the task.
        """
        if uids:
            await self.execute(Q.defer_task, task=task.value, uids=sorted(uids))

    async def wake_matcher(self) -> None:
        """Ask for a cycle for a reason that no row shows."""
        await self.execute(Q.wake_matcher)


class Database(DatabaseReader):
    """One process's access to the queue database.

    Parameters
    ----------
    settings : where the database is, pool sizes and time-outs.
    role : the part of fluxqueue this process is; stands in ``history`` for its changes.

    ``cluster_uid`` is set by ``cluster_identity.bind``: a role is only taken in its cluster.
    """

    def __init__(self, settings: Settings, *, role: str) -> None:
        self.role = role
        self.cluster_uid: str | None = None
        self.seen = Marks()
        self.engine = create_engine(settings.database_url, settings, role=role)
        self.app = make_app(settings, role=role)

    async def __aenter__(self) -> Self:
        with translated_errors():
            await self.app.open_async()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.app.close_async()
        await super().__aexit__(*error)

    @asynccontextmanager
    async def begin(self, *, at_one_instant: bool = False) -> AsyncIterator[Transaction]:
        """Open a transaction, and commit at the end.

        ``at_one_instant``: all its statements see the same rows. It must only read.

        Raises
        ------
        DatabaseUnavailable
            Postgres went away. Whether the commit arrived is then unknown, so everything done in
            a transaction must be safe to do again.
        DatabaseWentBack
            The transaction has seen that. All terms are over by then.
        """
        with translated_errors():
            try:
                async with self._begin(at_one_instant) as tx:
                    yield tx
            except DatabaseWentBack:
                async with self._begin() as tx:
                    await begin_anew(tx)
                raise

    @asynccontextmanager
    async def _begin(self, at_one_instant: bool = False) -> AsyncIterator[Transaction]:
        async with self.engine.connect() as connection:
            if at_one_instant:
                await connection.execution_options(isolation_level="REPEATABLE READ")
            async with connection.begin():
                tx = Transaction(connection, self.seen)
                yield tx
        # After the commit: what is rolled back was never there.
        self.seen.note(tx.found)

    async def execute(self, query: str, /, **values: Any) -> int:
        """Run one statement as its own transaction, and return the number of rows it touched."""
        with translated_errors():
            async with self.engine.connect() as connection:
                await connection.execution_options(isolation_level="AUTOCOMMIT")
                return await Transaction(connection, self.seen).execute(query, **values)

    async def defer_review(self, namespace: str, name: str, uid: str) -> None:
        """Have the holder of the matcher answer a PlacementReview.

        Several requests count as one.
        """
        task = TaskName.REVIEW
        with translated_errors():
            await self.app.configure_task(task.value, queue=task.queue).defer_async(
                namespace=namespace, name=name, uid=uid
            )

    async def wake_matcher(self) -> None:
        """Ask for a cycle outside any transaction."""
        await self.execute(Q.wake_matcher)
