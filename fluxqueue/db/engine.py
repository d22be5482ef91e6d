"""Connections to Postgres: URLs, the async engine, and what a driver error means to callers.

Called by everything in ``db`` and, through it, by controller, worker and command line. Holds no SQL
of ours and no rows.
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

from fluxqueue import metrics
from fluxqueue.db import session
from fluxqueue.db.revisions import head
from fluxqueue.errors import DatabaseUnavailable, InvalidSettings
from fluxqueue.settings import Settings

APPLICATION = "fluxqueue-"
"""Beginning of the name of every connection: ``fluxqueue-<role>/<newest revision it knows>``."""

SEARCH_PATH = "public,procrastinate"
"""Ours first. Procrastinate's functions call each other without naming their schema."""

READER = "fluxqueue_reader"
"""The role that may look and change nothing; the migration makes it (``sql/70_reader.sql``)."""

_LOOKS_ONLY = {"role": READER, "default_transaction_read_only": "on"}

_PLANS_ONCE = {"plan_cache_mode": "force_generic_plan"}
"""Statements are few and come again and again. By itself the server plans many of them anew each
time, since it thinks of our arrays as of ten elements: a quarter of its processor time for a gang
of ten. Analyzing a table has them planned anew, and vacuuming, which hot tables ask for soon."""

_PREPARES_AT_ONCE = {"prepare_threshold": 0}
"""As few and as often asked: by itself the driver prepares them the sixth time on a connection."""

_SCHEMES = ("postgresql+psycopg://", "postgresql://", "postgres://")
_PORT_MAX = 65535
_KEEPALIVES = {
    # A peer that vanished without a word is noticed within half a minute, not after two hours.
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}
_CONNECT_TIMEOUT_S = 5
_IDLE_IN_TRANSACTION_S = 20.0
"""A process that hangs within a transaction holds up whoever needs its rows for no longer than
this; the longest pause of one that works, a cycle over a full queue, is a tenth of a second."""
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
"""Beginnings of the SQLSTATE codes that time mends."""


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
    # Libpq looks at them only when it connects, and says it as it says that nobody answers there,
    # for which one waits.
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
    says which part of fluxqueue connects; ``pg_stat_activity`` shows it, and what its code knows
    of the schema: as long as it is connected, no migration goes beyond that (``migrate.upgrade``).
    ``is_reader``: the session may only look, as ``READER``, and a standby will do.
    """
    timeout_ms = int(settings.statement_timeout_s * 1000)
    idle_ms = min(2 * timeout_ms, int(_IDLE_IN_TRANSACTION_S * 1000))
    return {
        **_KEEPALIVES,
        "connect_timeout": _CONNECT_TIMEOUT_S,
        **({} if is_reader else _PREPARES_AT_ONCE),
        # Of several hosts the one that takes writes; a standby or a read-only server is none.
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
    """Make the async engine of a process; its owner awaits ``engine.dispose()`` at the end.

    Connects lazily, so a database that is down shows at the first use, as
    ``DatabaseUnavailable`` inside ``translated_errors``.
    """
    engine = create_async_engine(
        sqlalchemy_url(url),
        connect_args=connect_args(settings, role=role, is_reader=is_reader),
        pool_size=settings.db_pool_size,
        max_overflow=settings.db_pool_overflow,
        pool_timeout=settings.db_pool_timeout_s,
        pool_recycle=_RECYCLE_S,
        # No ping before use: it would double the cost of short transactions. After a restart of
        # the server the first use fails, empties the pool, and every loop of ours tries again.
        pool_pre_ping=False,
        # Few connections do most of the work: their plans are made, and their caches filled.
        pool_use_lifo=True,
    )
    event.listen(engine.sync_engine, "handle_error", _drop_read_only)
    return engine


def _drop_read_only(context: ExceptionContext) -> None:
    """A session that is read-only stays so after the server takes writes again: open new ones."""
    if getattr(context.original_exception, "sqlstate", None) == _READ_ONLY:
        context.is_disconnect = True


async def check_writable(connection: psycopg.AsyncConnection[Any]) -> None:
    """Check of a psycopg pool: the connection is alive, and its server takes writes.

    Asks the server nothing: that would double the cost of each short statement. A server that has
    ended a session has said so on its socket.

    Raises
    ------
    psycopg.OperationalError
        It is of no use; the pool then opens another.
    """
    if _is_ended(connection.pgconn):
        await connection.close()
        raise psycopg.OperationalError("the server has ended the session")
    for name in ("default_transaction_read_only", "in_hot_standby"):
        if connection.info.parameter_status(name) == "on":
            await connection.close()  # the pool would keep one that still answers
            raise psycopg.OperationalError(f"the server is read-only ({name})")


def _is_ended(session: psycopg.pq.abc.PGconn) -> bool:
    """Whether an idle session is over; what the server has sent meanwhile is taken in."""
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
    """Turn the driver's "not now" into ``DatabaseUnavailable``; let every real error through.

    For use around a transaction, from sync and async code alike, procrastinate's calls included.
    The whole transaction may be run again then: it did not commit, or, when the connection broke
    during the commit itself, nobody knows. Integrity and programming errors keep their own types.
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
    """Whether time mends what a driver's error says."""
    if not isinstance(error, psycopg.Error):
        return False
    if error.sqlstate is not None:
        return error.sqlstate.startswith(_PASSING_STATES)
    # Without a code the server never answered: refused, reset, or the connection is closed.
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
