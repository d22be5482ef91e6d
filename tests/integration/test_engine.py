"""Connections: where names resolve, and which errors mean "not now"."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import procrastinate
import psycopg
import pytest
import sqlalchemy.exc
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from fluxqueue.db.engine import (
    connect_args,
    create_engine,
    libpq_url,
    sqlalchemy_url,
    translated_errors,
)
from fluxqueue.db.revisions import head
from fluxqueue.errors import DatabaseUnavailable, InvalidSettings
from fluxqueue.process.settings import Settings
from fluxqueue_devtools.localpg import LocalPostgres

SETTINGS = Settings(db_pool_size=1, db_pool_overflow=1, db_pool_timeout_s=0.2)
INSERT = text("INSERT INTO leadership VALUES (:role, 1, 'me', now())")


@asynccontextmanager
async def engine_of(
    url: str, settings: Settings = SETTINGS, *, is_reader: bool = False
) -> AsyncIterator[AsyncEngine]:
    """An engine that is disposed of."""
    engine = create_engine(url, settings, role="test", is_reader=is_reader)
    try:
        yield engine
    finally:
        await engine.dispose()


@pytest.mark.parametrize("scheme", ["postgres", "postgresql", "postgresql+psycopg"])
def test_every_spelling_of_the_scheme_is_understood(scheme: str) -> None:
    """People paste URLs from many places."""
    assert libpq_url(f"{scheme}://u:p@h:1/d?sslmode=require") == (
        "postgresql://u:p@h:1/d?sslmode=require"
    )
    assert sqlalchemy_url(f"{scheme}://u@h/d") == "postgresql+psycopg://u@h/d"


@pytest.mark.parametrize("port", ["46443,g:5433", ""])
def test_several_ports_and_none_are_ports(port: str) -> None:
    """One for each host, and libpq's own default."""
    assert libpq_url(f"postgresql://u@h:{port}/d") == f"postgresql://u@h:{port}/d"


@pytest.mark.parametrize("port", ["434567", "0", "5432x", "5432,g:-1"])
def test_what_is_no_port_is_said_at_once(port: str) -> None:
    """Libpq says so when it connects. A process that waits for the database would wait for ever."""
    with pytest.raises(InvalidSettings, match=r"is no port, which is a number from 1 to 65535"):
        libpq_url(f"postgresql://u:p@h:{port}/d")


async def test_our_views_and_procrastinates_tables_need_no_schema_name(database_url: str) -> None:
    """``public``, then ``procrastinate``. The connection says its user and what it knows."""
    async with engine_of(database_url) as engine, engine.connect() as connection:
        for table in ("queue", "procrastinate_jobs"):
            assert await connection.scalar(text(f"SELECT count(*) FROM {table}")) == 0
        name = await connection.scalar(text("SELECT current_setting('application_name')"))
        assert name == f"fluxqueue-test/{head()}"


@pytest.mark.parametrize(("is_reader", "mode"), [(False, "force_generic_plan"), (True, "auto")])
async def test_statements_are_planned_once_but_for_readers(
    database_url: str, *, is_reader: bool, mode: str
) -> None:
    """What readers look for differs from one time to the next."""
    async with engine_of(database_url, is_reader=is_reader) as engine, engine.connect() as one:
        found = await one.scalar(text("SELECT current_setting('plan_cache_mode')"))
    assert found == mode


@pytest.mark.parametrize(("is_reader", "number"), [(False, 1), (True, 0)])
async def test_statements_are_prepared_at_once_but_for_readers(
    database_url: str, *, is_reader: bool, number: int
) -> None:
    """Few connections ask the same few things all day. Readers ask for this and that."""
    asked = text("SELECT count(*) FROM queue")
    prepared = text("SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%queue'")
    async with engine_of(database_url, is_reader=is_reader) as engine, engine.connect() as one:
        await one.scalar(asked)
        assert await one.scalar(prepared) == number


@pytest.mark.long("starts processes of its own, for seconds of processor time")
async def test_socket_urls_work_too(own_postgres: LocalPostgres) -> None:
    """SQLAlchemy and libpq read the host parameter alike."""
    async with engine_of(own_postgres.socket_url) as engine, engine.connect() as connection:
        assert await connection.scalar(text("SELECT count(*) FROM queue")) == 0


async def test_a_slow_statement_is_ended_and_retryable(database_url: str) -> None:
    """No statement holds a connection for ever."""
    settings = Settings(statement_timeout_s=1)
    async with engine_of(database_url, settings) as engine, engine.connect() as connection:
        with pytest.raises(DatabaseUnavailable, match="statement timeout"), translated_errors():
            await connection.execute(text("SELECT pg_sleep(60)"))


async def test_a_process_that_hangs_in_a_transaction_loses_its_locks(database_url: str) -> None:
    """It says nothing and ends nothing: the server ends it, and others get at its rows."""
    settings = Settings(statement_timeout_s=1)
    async with engine_of(database_url, settings) as hanging, hanging.connect() as connection:
        await connection.execute(INSERT, {"role": "hangs"})
        async with engine_of(database_url) as engine, engine.connect() as other:
            await other.execute(INSERT, {"role": "hangs"})  # waits for the first
            await other.rollback()
        with pytest.raises(DatabaseUnavailable, match="idle-in-transaction"), translated_errors():
            await connection.execute(text("SELECT 1"))


async def test_a_full_pool_is_retryable(database_url: str) -> None:
    """Waiting for a connection has an end."""
    async with engine_of(database_url) as engine, engine.connect(), engine.connect():
        with pytest.raises(DatabaseUnavailable, match="limit"), translated_errors():
            await engine.connect()


async def test_a_killed_server_is_retryable_and_one_try_after_its_return_mends_the_pool(
    own_postgres: LocalPostgres,
) -> None:
    """During the outage "not now". After it the first use empties the pool, the next succeeds."""
    async with engine_of(own_postgres.url) as engine:
        async with engine.connect() as connection:
            await asyncio.to_thread(own_postgres.kill)
            with pytest.raises(DatabaseUnavailable), translated_errors():
                await connection.execute(text("SELECT 1"))
        with pytest.raises(DatabaseUnavailable, match="refused"), translated_errors():
            await engine.connect()
        await asyncio.to_thread(own_postgres.start)
        async with engine.connect() as connection:
            await connection.execute(text("SELECT 1"))
        await asyncio.to_thread(own_postgres.stop)
        await asyncio.to_thread(own_postgres.start)  # with an idle connection in the pool
        with pytest.raises(DatabaseUnavailable), translated_errors():
            async with engine.connect() as connection:
                await connection.execute(text("SELECT 1"))
        async with engine.connect() as connection:
            assert await connection.scalar(text("SELECT count(*) FROM queue")) == 0


async def test_a_deadlock_is_retryable(database_url: str) -> None:
    """Two transactions that wait for each other: one must try again."""
    lock = text("SELECT pg_advisory_xact_lock(:key)")

    async def cross(connection: AsyncConnection, key: int) -> None:
        with translated_errors():
            await connection.execute(lock, {"key": key})
            await connection.rollback()

    engines = engine_of(database_url)
    async with engines as engine, engine.connect() as one, engine.connect() as two:
        await one.execute(lock, {"key": 1})
        await two.execute(lock, {"key": 2})
        results = await asyncio.gather(cross(one, 2), cross(two, 1), return_exceptions=True)
    errors = [result for result in results if result is not None]
    assert len(errors) == 1
    assert isinstance(errors[0], DatabaseUnavailable)
    assert "deadlock" in str(errors[0])


async def test_a_broken_rule_is_not_retryable(database_url: str) -> None:
    """A constraint's refusal would be refused again. It keeps its type."""
    async with engine_of(database_url) as engine, engine.begin() as connection:
        await connection.execute(INSERT, {"role": "matcher"})
        with pytest.raises(sqlalchemy.exc.IntegrityError), translated_errors():
            await connection.execute(INSERT, {"role": "matcher"})
        await connection.rollback()


def test_a_wrong_statement_is_not_retryable(database_url: str) -> None:
    """A programming error must surface, not be retried in silence."""
    failure = pytest.raises(psycopg.errors.UndefinedTable)
    with psycopg.connect(database_url) as connection, failure, translated_errors():
        connection.execute("SELECT * FROM no_such_table")


def application(url: str, *, timeout_s: float = 60) -> procrastinate.App:
    """Procrastinate with our connection settings. It waits ``timeout_s`` for a connection."""
    connector = procrastinate.PsycopgConnector(
        conninfo=libpq_url(url), kwargs=connect_args(SETTINGS, role="test"), timeout=timeout_s
    )
    return procrastinate.App(connector=connector)


async def test_procrastinates_errors_are_translated(own_postgres: LocalPostgres) -> None:
    """It wraps the driver's errors in its own. "not now" stays "not now"."""
    app = application(own_postgres.url, timeout_s=0.5)
    async with app.open_async():
        await asyncio.to_thread(own_postgres.stop)
        with pytest.raises(DatabaseUnavailable), translated_errors():
            await app.configure_task("any").defer_async()


async def test_tasks_live_in_the_callers_transaction_and_run(database_url: str) -> None:
    """The vendored schema in its own Postgres schema does all that the worker needs."""
    app = application(database_url)
    ran: list[str] = []

    @app.task(name="note")
    async def note(word: str) -> None:
        ran.append(word)

    async with engine_of(database_url) as engine, app.open_async():
        for word, keep in (("dropped", False), ("kept", True)):
            async with engine.connect() as connection:
                raw = (await connection.get_raw_connection()).driver_connection
                await connection.execute(INSERT, {"role": word})
                await note.configure(connection=raw).defer_async(word=word)
                await (connection.commit() if keep else connection.rollback())
        await app.run_worker_async(wait=False, install_signal_handlers=False)
        async with engine.connect() as connection:
            roles = (await connection.scalars(text("SELECT role FROM leadership"))).all()
    assert (ran, list(roles)) == (["kept"], ["kept"])
