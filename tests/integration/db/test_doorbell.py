"""The doorbell: loops hear of new tasks, and of what is due, and are left alone otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import procrastinate
import pytest

from fluxqueue.clock import SystemClock
from fluxqueue.db.doorbell import Doorbell
from fluxqueue.db.task_queue import app_on
from tests.support.rows import Rows
from tests.support.waiting import eventually, until

NEVER_S = 600.0
LISTENERS = "SELECT pid FROM pg_stat_activity WHERE query ~* '^listen' AND state = 'idle'"


class House:
    """A doorbell, loops that wait for it, and what they have run."""

    def __init__(self, doorbell: Doorbell, connector: procrastinate.BaseConnector) -> None:
        self.doorbell = doorbell
        self.ran: list[tuple[str, int]] = []
        self._app = app_on(connector, doorbell)
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> House:
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._stack.aclose()

    async def live(self, queue: str) -> None:
        """Run a loop for ``queue``. It looks for nothing by itself."""

        @self._app.task(name=f"note-{queue}", queue=queue)
        async def note(n: int) -> None:
            self.ran.append((queue, n))

        await self.run(
            self._app.run_worker_async(
                queues=[queue],
                concurrency=1,
                fetch_job_polling_interval=NEVER_S,
                install_signal_handlers=False,
                delete_jobs="successful",
            )
        )

    async def run(self, body: Any) -> None:
        """Run something until the end of the block."""
        await self._stack.enter_async_context(running(body))

    async def defer(self, queue: str, n: int, **when: Any) -> None:
        """Have a task run, in ``when``."""
        await self._app.configure_task(f"note-{queue}", queue=queue, **when).defer_async(n=n)

    async def until_ran(self, *expected: tuple[str, int]) -> None:
        """Wait until exactly these have run."""

        await eventually(lambda: sorted(self.ran) == sorted(expected), "it is run")


@asynccontextmanager
async def running(body: Any) -> AsyncIterator[None]:
    """Run ``body`` beside the block."""
    task = asyncio.create_task(body)
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


@asynccontextmanager
async def house(rows: Rows, *told: str, every_s: float) -> AsyncIterator[House]:
    """A process with a doorbell that has not rung yet."""
    connector = rows.database.app.connector
    doorbell = Doorbell(connector, SystemClock(), told=told, every_s=every_s)
    async with House(doorbell, connector) as built:
        yield built


async def test_new_tasks_are_told_at_once_over_one_connection(rows: Rows) -> None:
    """Each to the loops of its queue."""
    async with house(rows, "a", "b", every_s=NEVER_S) as built:
        await built.run(built.doorbell.listen())
        for queue in ("a", "b"):
            await built.live(queue)
        await eventually(lambda: rows.fetch(LISTENERS), "it listens")
        expected = []
        for n in range(10):
            for queue in ("a", "b"):
                expected.append((queue, n))
                await built.defer(queue, n)
                await built.until_ran(*expected)
        assert len(await rows.fetch(LISTENERS)) == 1


async def test_what_is_due_is_found_by_looking(rows: Rows) -> None:
    """What was put off, and what no bell rang for. What is not due yet stays where it is."""
    async with house(rows, every_s=0.05) as built:
        for queue in ("a", "later"):
            await built.live(queue)
        await built.run(built.doorbell.look())
        await built.defer("later", 1, schedule_in={"hours": 1})
        await built.defer("later", 2, schedule_in={"seconds": 1})
        await built.defer("a", 3)
        await built.until_ran(("a", 3), ("later", 2))


async def test_a_listener_that_is_cut_off_listens_again(rows: Rows) -> None:
    """As after a restart of the database."""
    async with house(rows, "a", every_s=NEVER_S) as built:
        await built.live("a")
        await built.run(built.doorbell.listen())
        (old,) = await eventually(lambda: rows.fetch(LISTENERS), "it listens")
        await rows.fetch("SELECT pg_terminate_backend(:pid)", pid=old["pid"])

        await until(
            lambda: rows.fetch(LISTENERS),
            lambda found: [row["pid"] for row in found] not in ([], [old["pid"]]),
            "it listens again",
        )
        await built.defer("a", 1)
        await built.until_ran(("a", 1))


async def test_nobody_tries_to_take_what_is_not_there(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taking locks rows, looking does not: an idle loop does neither."""
    taken: list[tuple[str, ...]] = []
    looked = 0
    connector = rows.database.app.connector
    ask = connector.execute_query_all_async
    take = connector.execute_query_one_async

    async def asks(query: str, **values: Any) -> Any:
        nonlocal looked
        looked += "unnest" in query
        return await ask(query, **values)

    async def takes(query: str, **values: Any) -> Any:
        if "fetch_job" in query:
            taken.append(tuple(values["queues"]))
        return await take(query, **values)

    monkeypatch.setattr(connector, "execute_query_all_async", asks)
    monkeypatch.setattr(connector, "execute_query_one_async", takes)
    async with house(rows, every_s=0.01) as built:
        for queue in ("a", "b"):
            await built.live(queue)
        await built.run(built.doorbell.look())

        await eventually(lambda: looked > 50, "it looks")
        assert sorted(taken) == [("a",), ("b",)], "as they began, and never since"
        await built.defer("b", 1)
        await built.until_ran(("b", 1))
        assert taken.count(("a",)) == 1, "the others are not woken"


async def test_who_listens_sleeps(rows: Rows, monkeypatch: pytest.MonkeyPatch) -> None:
    """psycopg wakes ten times a second, though nothing has come."""
    loop = asyncio.get_running_loop()
    add_reader, waits = loop.add_reader, []

    def add(fd: int, *args: Any) -> None:
        waits.append(fd)
        add_reader(fd, *args)

    connector = rows.database.app.connector
    assert isinstance(connector, procrastinate.PsycopgConnector)
    async with connector.pool.connection() as connection:
        await connection.execute("LISTEN nothing")
        monkeypatch.setattr(loop, "add_reader", add)
        assert [one async for one in connection.notifies(timeout=0.5)] == []
    assert waits.count(connection.fileno()) <= 2


class _Losing:
    """A connector that loses the first cancellation, as ``asyncio.wait_for`` of Python 3.11 may."""

    def __init__(self, connector: procrastinate.BaseConnector) -> None:
        self._connector = connector
        self.lost = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connector, name)

    async def listen_notify(self, **options: Any) -> None:
        try:
            await self._connector.listen_notify(**options)
        except asyncio.CancelledError:
            self.lost += 1
            await self._connector.listen_notify(**options)


async def test_it_ends_although_a_cancellation_is_lost(rows: Rows) -> None:
    """A worker would otherwise never stop, if it hears of a task at that very moment."""
    connector: Any = _Losing(rows.database.app.connector)
    doorbell = Doorbell(connector, SystemClock(), told=("a",), every_s=NEVER_S)
    listening = asyncio.create_task(doorbell.listen())
    await eventually(lambda: rows.fetch(LISTENERS), "it listens")
    listening.cancel()
    done, _ = await asyncio.wait([listening], timeout=30)
    assert done, "it still listens"
    assert listening.cancelled()
    assert connector.lost == 1
