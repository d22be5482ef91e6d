"""Access that only reads: for ``db.reading``, and all that the view server has.

``Database`` is a Reader that may write as well. A Reader by itself connects as the role
``fluxqueue_reader`` (``sql/70_reader.sql``), to a standby as well as to the primary. The server
keeps its transactions read-only, so that not even a defect of fluxqueue writes through it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self, TypeVar

import orjson
from psycopg import AsyncConnection, Error, OperationalError, sql
from sqlalchemy import TextClause, text
from sqlalchemy.ext.asyncio import AsyncConnection as Connection
from sqlalchemy.ext.asyncio import AsyncEngine

from fluxqueue.db.engine import READER, create_engine, libpq_url, translated_errors
from fluxqueue.db.queries import Q
from fluxqueue.errors import InvalidSettings
from fluxqueue.process.settings import Settings

PATIENCE_S = 5


_DOCUMENT = re.compile(r"CAST\(:(\w+) AS jsonb\)")


@functools.lru_cache(maxsize=1024)
def _parsed(words: str) -> tuple[TextClause, frozenset[str]]:
    return text(words), frozenset(_DOCUMENT.findall(words))


def statement(words: str, values: Mapping[str, Any]) -> tuple[TextClause, Mapping[str, Any]]:
    """Return a statement with its values. What it casts to ``jsonb`` is sent as JSON.

    A text is sent as it is. Each statement is parsed once: finding its parameters costs more than
    running a short one.
    """
    clause, documents = _parsed(words)
    said = ((name, values[name]) for name in documents if not isinstance(values[name], str))
    return clause, {**values, **{name: orjson.dumps(one).decode() for name, one in said}}


T = TypeVar("T")


def value(found: Any) -> Any:
    """Return the only column of a row as it is, for ``fetch``: for what may be NULL, or is JSON."""
    return found


def columns(*found: Any) -> tuple[Any, ...]:
    """Return the columns of a row as they are, for ``fetch``: for pairs that become a dict."""
    return found


class DatabaseReading:
    """An open transaction that is read from: statements of ``db.queries`` with named parameters.

    A parameter that the statement casts to ``jsonb`` is any value that JSON can have.
    """

    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def fetch(self, query: str, row: Callable[..., T], /, **values: Any) -> list[T]:
        """Run one statement and return its rows, each as ``row`` of its columns in their order.

        ``row`` is the class of the row, or ``str`` and the like for a single column. A test
        compares the columns of each statement with the fields of its class.
        """
        result = await self.connection.execute(*statement(query, values))
        return [row(*columns) for columns in result]

    async def fetch_one(self, query: str, row: Callable[..., T], /, **values: Any) -> T | None:
        """Run one statement and return its first row, if any."""
        columns = (await self.connection.execute(*statement(query, values))).first()
        return None if columns is None else row(*columns)


class DatabaseReader:
    """One process's access to the queue database, to look at it.

    Parameters
    ----------
    settings : where the database is, pool sizes and time-outs.
    role : the part of fluxqueue this process is, as ``pg_stat_activity`` shows it.
    """

    engine: AsyncEngine

    def __init__(self, settings: Settings, *, role: str) -> None:
        self.engine = create_engine(settings.database_url, settings, role=role, is_reader=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.engine.dispose()

    async def check(self) -> None:
        """Check that the login may do what a Reader does. A server that is away gives no answer.

        Raises
        ------
        InvalidSettings
            It may not act as the role that reads, or there is no such role.
        """
        # A separate connection: errors before a session begins come without a code.
        plain = libpq_url(self.engine.url.render_as_string(hide_password=False))
        try:
            async with await AsyncConnection.connect(plain, connect_timeout=PATIENCE_S) as session:
                await session.execute(sql.SQL("SET ROLE {}").format(sql.Identifier(READER)))
        except OperationalError:
            return
        except Error as error:
            raise InvalidSettings(
                f"the login may not act as {READER}: {str(error).strip()}",
                where="DATABASE_URL",
                hint="docs/admin/psql.md says how the role is made, and who is put into it",
            ) from error

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[DatabaseReading]:
        """Open a transaction: all that is read in it is of one moment or later.

        Raises
        ------
        DatabaseUnavailable
            Postgres went away, or takes too long.
        """
        with translated_errors():
            async with self.engine.begin() as connection:
                yield DatabaseReading(connection)

    async def ping(self) -> None:
        """Make sure that the database answers.

        Raises
        ------
        DatabaseUnavailable
            It does not.
        """
        await self.fetch(Q.now_s, int)

    async def fetch(self, query: str, row: Callable[..., T], /, **values: Any) -> list[T]:
        """Run one statement that is a transaction by itself, and return its rows.

        Raises
        ------
        DatabaseUnavailable
            As of ``begin``.
        """
        with translated_errors():
            async with self.engine.connect() as connection:
                await connection.execution_options(isolation_level="AUTOCOMMIT")
                return await DatabaseReading(connection).fetch(query, row, **values)
