"""Connections to Postgres: URLs, the async engine, and what a driver error means to callers.

Everything in ``db`` calls it and, through ``db``, controller, worker and command line. It holds no
rows and no SQL of fluxqueue.
"""

from __future__ import annotations

import contextlib
import select
from collections.abc import Iterator
from typing import Any

import psycopg
import sqlalchemy.exc
from procrastinate.exceptions import ConnectorException
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import event
from sqlalchemy.engine import ExceptionContext
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from fluxqueue.db import session
from fluxqueue.db.revisions import head
from fluxqueue.errors import DatabaseUnavailable, InvalidSettings
from fluxqueue.process import metrics
from fluxqueue.process.settings import Settings

APPLICATION = "fluxqueue-"
"""Beginning of the name of every connection: ``fluxqueue-<role>/<newest revision it knows>``."""

SEARCH_PATH = "public,procrastinate"
"""The schema of fluxqueue first.

Procrastinate's functions call each other without naming their schema.
"""

READER = "fluxqueue_reader"
"""The role that may read and change nothing. The migration makes it (``sql/70_reader.sql``)."""

_LOOKS_ONLY = {"role": READER, "default_transaction_read_only": "on"}

_PLANS_ONCE = {"plan_cache_mode": "force_generic_plan"}
"""Makes the server plan each statement once, because statements are few and recur.

By itself the server plans many of them anew each time, since it assumes ten elements in an array.
That costs a quarter of its processor time for a gang of ten. Statements are planned anew after
their table is analyzed, and after vacuuming, which hot tables soon require.
"""

_PREPARES_AT_ONCE = {"prepare_threshold": 0}
"""Makes the driver prepare each statement at once, because statements are few and recur.

By itself the driver prepares a statement the sixth time on a connection.
"""

_SCHEMES = ("postgresql+psycopg://", "postgresql://", "postgres://")
_PORT_MAX = 65535
_KEEPALIVES = {
    # A peer that vanished without closing is noticed within half a minute, not after two hours.
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
_CONNECT_TIMEOUT_S = 5
_IDLE_IN_TRANSACTION_S = 20.0
"""Longest pause within a transaction.

A process that hangs within a transaction blocks others that need its rows for no longer than this.
The longest pause of a working process, a cycle over a full queue, is a tenth of a second.
"""
_READ_ONLY = "25006"
_RECYCLE_S = 1800
_PASSING_STATES = (
    "08",  # connection failures
    _READ_ONLY,  # the old primary after a fail-over
    "40",  # deadlock, serialisation failure: the transaction may simply be run again
    "53",  # too many connections, out of memory or disk
    "55P03",  # lock_timeout
    "57P",  # shutting down, starting up
    "57014",  # statement_timeout
)
"""Beginnings of the SQLSTATE codes of errors that pass with time."""


def libpq_url(url: str) -> str:
    """Return ``url`` as libpq and psycopg want it: ``postgresql://...``.

    Raises: ``InvalidSettings`` when it is no Postgres URL. The message never shows the password.
    """
    for scheme in _SCHEMES:
        if url.startswith(scheme):
            plain = "postgresql://" + url.removeprefix(scheme)
            break
    else:
        raise _invalid_url(url, "the URL does not start with postgresql://")
    try:
        options = conninfo_to_dict(plain)
    except psycopg.ProgrammingError as error:
        raise _invalid_url(url, str(error).strip()) from error
    _check_ports(url, str(options.get("port", "")))
    return plain


def _check_ports(url: str, ports: str) -> None:
    # Libpq checks ports only when it connects. Its error then looks like that of a server that is
    # down, and a caller would wait for that server.
    for port in ports.split(","):
        if port and not (port.isascii() and port.isdecimal() and 1 <= int(port) <= _PORT_MAX):
            raise _invalid_url(url, f"{port!r} is no port, which is a number from 1 to {_PORT_MAX}")


def sqlalchemy_url(url: str) -> str:
    """Return ``url`` with the driver named, which SQLAlchemy 2.0 and 2.1 read alike."""
    return "postgresql+psycopg://" + libpq_url(url).removeprefix("postgresql://")


def _invalid_url(url: str, message: str) -> InvalidSettings:
    return InvalidSettings(
        message,
        where="DATABASE_URL",
        value=url.split("://", 1)[0],
        hint="postgresql://user:password@host:5432/database",
    )


def connect_args(settings: Settings, *, role: str, is_reader: bool = False) -> dict[str, Any]:
    """Return libpq parameters for every connection of this process.

    Also for procrastinate's ``PsycopgConnector(conninfo=..., kwargs=...)``. Parameter: ``role``
    says which part of fluxqueue connects. ``pg_stat_activity`` shows it, and what its code knows of
    the schema. As long as it is connected, no migration goes beyond that (``migrate.upgrade``).
    ``is_reader``: the session may only read, as ``READER``, and a standby is sufficient.
    """
    timeout_ms = int(settings.statement_timeout_s * 1000)
    idle_ms = min(2 * timeout_ms, int(_IDLE_IN_TRANSACTION_S * 1000))
    return {
        **_KEEPALIVES,
        "connect_timeout": _CONNECT_TIMEOUT_S,
        **({} if is_reader else _PREPARES_AT_ONCE),
        # Of several hosts, choose one that takes writes. A standby or a read-only server does not.
        "target_session_attrs": "any" if is_reader else "read-write",
        "application_name": f"{APPLICATION}{role}/{head()}",
        "client_encoding": session.ENCODING,
        "options": session.options(
            **{
                # The rows' triggers read it for ``history`` (sql/33_transitions.sql).
                "fluxqueue.actor": role,
                "fluxqueue.status_interval_s": f"{settings.status_interval_s:g}",
                "search_path": SEARCH_PATH,
                "statement_timeout": str(timeout_ms),
                "idle_in_transaction_session_timeout": str(idle_ms),
                **(_LOOKS_ONLY if is_reader else _PLANS_ONCE),
            }
        ),
    }


def create_engine(
    url: str, settings: Settings, *, role: str, is_reader: bool = False
) -> AsyncEngine:
    """Make the async engine of a process. Its owner awaits ``engine.dispose()`` at the end.

    Connects lazily, so a database that is down shows at the first use, as ``DatabaseUnavailable``
    inside ``translated_errors``.
    """
    engine = create_async_engine(
        sqlalchemy_url(url),
        connect_args=connect_args(settings, role=role, is_reader=is_reader),
        pool_size=settings.db_pool_size,
        max_overflow=settings.db_pool_overflow,
        pool_timeout=settings.db_pool_timeout_s,
        pool_recycle=_RECYCLE_S,
        # No ping before use: it would double the cost of short transactions. After a restart of the
        # server the first use fails and empties the pool, and every loop of fluxqueue tries again.
        pool_pre_ping=False,
        # Few connections do most of the work: their plans are made, and their caches filled.
        pool_use_lifo=True,
    )
    event.listen(engine.sync_engine, "handle_error", _drop_read_only)
    return engine


def _drop_read_only(context: ExceptionContext) -> None:
    """Drop read-only sessions of the pool, so that new ones open.

    A session that is read-only stays so after the server takes writes again.
    """
    if getattr(context.original_exception, "sqlstate", None) == _READ_ONLY:
        context.is_disconnect = True


async def check_writable(connection: psycopg.AsyncConnection[Any]) -> None:
    """Check of a psycopg pool: the connection is alive, and its server takes writes.

    It sends no query to the server: that would double the cost of each short statement. A server
    that ended a session has already reported that on its socket.

    Raises
    ------
    psycopg.OperationalError
        The connection is of no use. The pool then opens another.
    """
    if _is_ended(connection.pgconn):
        await connection.close()
        raise psycopg.OperationalError("the server has ended the session")
    for name in ("default_transaction_read_only", "in_hot_standby"):
        if connection.info.parameter_status(name) == "on":
            await connection.close()  # the pool would keep one that still answers
            raise psycopg.OperationalError(f"the server is read-only ({name})")


def _is_ended(session: psycopg.pq.abc.PGconn) -> bool:
    """Read what the server has sent meanwhile, and return whether an idle session is over."""
    if session.status != psycopg.pq.ConnStatus.OK:
        return True
    poll = select.poll()
    poll.register(session.socket, select.POLLIN)
    if poll.poll(0):
        try:
            session.consume_input()
        except psycopg.OperationalError:
            return True
    return session.status != psycopg.pq.ConnStatus.OK


@contextlib.contextmanager
def translated_errors() -> Iterator[None]:
    """Turn passing driver errors into ``DatabaseUnavailable``, and let every real error through.

    For use around a transaction, from sync and async code alike, procrastinate's calls included.
    The whole transaction may be run again then. Either it did not commit, or the connection broke
    during the commit itself and the outcome is unknown. Integrity and programming errors keep their
    own types.
    """
    try:
        yield
    except sqlalchemy.exc.TimeoutError as error:  # no connection became free in the pool
        raise _unavailable(error) from error
    except sqlalchemy.exc.DBAPIError as error:
        if error.connection_invalidated or is_passing(error.orig):
            raise _unavailable(error.orig) from error
        metrics.DATABASE_ERRORS.labels("other").inc()
        raise
    except ConnectorException as error:  # procrastinate's wrapping of psycopg's errors
        if is_passing(error.__cause__):
            raise _unavailable(error.__cause__) from error
        metrics.DATABASE_ERRORS.labels("other").inc()
        raise
    except psycopg.Error as error:
        if is_passing(error):
            raise _unavailable(error) from error
        metrics.DATABASE_ERRORS.labels("other").inc()
        raise


def _unavailable(error: BaseException | None) -> DatabaseUnavailable:
    metrics.DATABASE_ERRORS.labels("unavailable").inc()
    return DatabaseUnavailable(str(error).strip())


def is_passing(error: BaseException | None) -> bool:
    """Return whether a driver's error passes with time."""
    if not isinstance(error, psycopg.Error):
        return False
    if error.sqlstate is not None:
        return error.sqlstate.startswith(_PASSING_STATES)
    # Without a code the server never answered: refused, reset, or the connection is closed.
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
