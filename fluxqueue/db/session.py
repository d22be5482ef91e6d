"""What every session of ours fixes, and what it asks of the server it talks to.

``engine.py`` and ``migrate.py`` send ``PINNED`` with each connection. ``check_server`` runs before
a migration and before controller and worker start. A role, a database or a server can set any
parameter for us, so nothing here may rely on a default.
"""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import psycopg
from psycopg.rows import class_row

from fluxqueue.db.queries import Q
from fluxqueue.errors import DatabaseUnavailable, InvalidSettings

log = logging.getLogger(__name__)

PINNED = {
    # How values are written as text. The driver parses ISO dates and hexadecimal bytes only.
    "DateStyle": "ISO, MDY",
    "IntervalStyle": "postgres",
    "TimeZone": "UTC",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    # How statements are read.
    "standard_conforming_strings": "on",
    "array_nulls": "on",
    "transform_null_equals": "off",
    "plpgsql.extra_errors": "none",
    "check_function_bodies": "on",
    # How transactions behave. They lock the rows they decide on. A stricter level brings no safety
    # and makes transactions fail that would have waited.
    "default_transaction_isolation": "read committed",
    "default_transaction_deferrable": "off",
    "lock_timeout": "0",
    "idle_session_timeout": "0",
    "row_security": "on",
    "exit_on_error": "off",
    "client_min_messages": "notice",
}
"""Parameters that a role or database may set and that would change what our statements do."""

ENCODING = "UTF8"
SUPPORTED = (15, 18)
"""First and last major version of Postgres that the tests run on."""
CLOCK_TOLERANCE = timedelta(seconds=5)
_CONNECT_TIMEOUT_S = 5


class ServerSettings(NamedTuple):
    """What a server says of itself. ``clock``: its time in epoch seconds."""

    encoding: str
    major: int
    version: str
    replication_role: str
    synchronous_commit: str
    transaction_timeout: str | None
    database: str
    clock: float


def options(**more: str) -> str:
    """Return libpq's ``options``: the pinned parameters, then ``more``, which wins."""
    return " ".join(f"-c {name}={_escaped(value)}" for name, value in {**PINNED, **more}.items())


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace(" ", "\\ ")


def check_server(plain_url: str, *, now: datetime | None = None) -> None:
    """Refuse a server with settings that would lose or garble data, and warn of the rest.

    Parameters: ``plain_url`` as libpq reads it. ``now`` is this machine's clock, for tests.

    Raises: ``InvalidSettings`` naming the setting, its value and the way out.
    ``DatabaseUnavailable`` when the server does not answer.
    """
    try:
        with psycopg.connect(
            plain_url,
            connect_timeout=_CONNECT_TIMEOUT_S,
            options=options(),
            client_encoding=ENCODING,
            row_factory=class_row(ServerSettings),
            autocommit=True,
        ) as session:
            found = session.execute(Q.server_settings).fetchone()
    except psycopg.NotSupportedError as error:  # a server encoding that has no UTF-8 counterpart
        raise InvalidSettings(str(error).strip(), where="DATABASE_URL") from error
    except psycopg.OperationalError as error:
        raise DatabaseUnavailable(str(error).strip()) from error
    assert found is not None
    _refuse(found)
    _warn(found, now or datetime.now(UTC))


def _refuse(found: ServerSettings) -> None:
    if found.encoding != ENCODING:
        raise InvalidSettings(
            f"{found.encoding} of database {found.database} cannot hold every text",
            where="server_encoding",
            value=found.encoding,
            hint="create the database with ENCODING 'UTF8' TEMPLATE template0",
        )
    if found.major < SUPPORTED[0]:
        raise InvalidSettings(
            f"Postgres {found.version} is too old",
            where="server_version",
            value=found.version,
            hint=f"use Postgres {SUPPORTED[0]} to {SUPPORTED[1]}",
        )
    if found.replication_role != "origin":
        raise InvalidSettings(
            f"{found.replication_role} disables triggers, and the queue's rules are triggers",
            where="session_replication_role",
            value=found.replication_role,
            hint="ALTER ROLE ... RESET session_replication_role",
        )


def _warn(found: ServerSettings, now: datetime) -> None:
    if found.major > SUPPORTED[1]:
        log.warning(
            "this version of Postgres is newer than any that was tested",
            extra={"action": "check_server", "version": found.version, "tested": SUPPORTED[1]},
        )
    if found.synchronous_commit == "off":
        log.warning(
            "synchronous_commit is off: a crash of the server can lose the last decisions",
            extra={"action": "check_server", "fix": "ALTER ROLE ... SET synchronous_commit = on"},
        )
    if found.transaction_timeout not in (None, "0"):
        log.warning(
            "transaction_timeout ends long transactions: a resync of a large cluster may fail",
            extra={
                "action": "check_server",
                "value": found.transaction_timeout,
                "fix": "ALTER ROLE ... SET transaction_timeout = 0",
            },
        )
    difference = timedelta(seconds=now.timestamp() - found.clock)
    if abs(difference) > CLOCK_TOLERANCE:
        log.warning(
            "this machine's clock and the database's differ: start times are wrong by as much",
            extra={
                "action": "check_server",
                "difference_s": round(difference.total_seconds(), 1),
                "fix": "synchronise both clocks (NTP)",
            },
        )
