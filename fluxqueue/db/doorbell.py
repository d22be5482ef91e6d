"""Notifies the loops of a process of tasks: one listener and one periodic look for all queues.

By itself each procrastinate loop holds a connection to listen. It also tries to take a task several
times a second, in case it missed a notification. An idle process is busy with that.
``worker.worker_process`` runs one doorbell, and ``task_queue.PatientManager`` has the loops wait
for it. It takes no task and decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import procrastinate
from procrastinate.jobs import JobInserted, Notification
from procrastinate.manager import JobManager, NotificationCallback

from fluxqueue.clock import Clock
from fluxqueue.db.engine import translated_errors
from fluxqueue.db.queries import Q

AGAIN_S = 0.5
"""A listener that was cancelled and has not ended is cancelled again after so many seconds."""


class Doorbell:
    """The loops that wait for tasks, by queue, and the two ways in which they are notified.

    Parameters
    ----------
    connector : that of the application. Listening takes a connection beside its pool.
    told : queues with a notification at once for each new task. A periodic look finds tasks of
        other queues, tasks that are due later, and tasks with a lost notification.
    every_s : between two looks (seconds of ``clock``).
    """

    def __init__(
        self,
        connector: procrastinate.BaseConnector,
        clock: Clock,
        *,
        told: Iterable[str],
        every_s: float,
    ) -> None:
        self._connector, self._clock = connector, clock
        self._told, self._every_s = tuple(told), every_s
        self._waiting: dict[str, list[NotificationCallback]] = {}

    @contextmanager
    def rings(self, queues: Iterable[str], on_notification: NotificationCallback) -> Iterator[None]:
        """Have ``on_notification`` called for tasks of ``queues`` while the block lasts."""
        names = tuple(queues)
        for name in names:
            self._waiting.setdefault(name, []).append(on_notification)
        try:
            yield
        finally:
            for name in names:
                self._waiting[name].remove(on_notification)

    async def listen(self) -> None:
        """Pass on the database's notifications, until cancelled.

        Raises
        ------
        DatabaseUnavailable
            No notification arrives any more. ``look`` finds the tasks of lost ones.
        """
        listening = asyncio.ensure_future(
            JobManager(self._connector).listen_for_jobs(
                on_notification=self._on_notification, queues=self._told
            )
        )
        try:
            with translated_errors():
                await asyncio.wait([listening])
                await listening
        finally:
            # procrastinate waits with asyncio.wait_for. Before Python 3.12 that loses a
            # cancellation that comes together with a notification, so one may not be enough.
            while not listening.done():
                listening.cancel()
                await asyncio.wait([listening], timeout=AGAIN_S)

    async def look(self) -> None:
        """Ring for the queues in which a task is due, again and again, until cancelled.

        Raises
        ------
        DatabaseUnavailable
            It could not look.
        """
        while True:
            with translated_errors():
                rows = await self._connector.execute_query_all_async(
                    query=Q.due_queues,
                    queues=[name for name, loops in self._waiting.items() if loops],
                )
            for (queue,) in (row.values() for row in rows):
                await self._ring(queue, JobInserted(type="job_inserted", job_id=0))
            await self._clock.sleep(self._every_s)

    async def _on_notification(self, *, channel: str, notification: Notification) -> None:
        await self._ring(channel.partition("#")[2], notification)

    async def _ring(self, queue: str, notification: Notification) -> None:
        for on_notification in tuple(self._waiting.get(queue, ())):
            await on_notification(channel=queue, notification=notification)
