"""A role's, a database's or a server's own settings change nothing that fluxqueue does."""

from __future__ import annotations

import datetime as dt
import logging

import psycopg
import pytest
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import text

from fluxqueue.db import migrate
from fluxqueue.db.engine import create_engine
from fluxqueue.db.session import PINNED, check_server
from fluxqueue.errors import InvalidSettings
from fluxqueue.process.settings import Settings
from fluxqueue_devtools.localpg import LocalPostgres

ODD = {
    "DateStyle": "German, DMY",
    "IntervalStyle": "iso_8601",
    "TimeZone": "Asia/Kathmandu",
    "bytea_output": "escape",
    "extra_float_digits": "-3",
    "standard_conforming_strings": "off",
    "array_nulls": "off",
    "transform_null_equals": "on",
    "plpgsql.extra_errors": "all",
    "check_function_bodies": "off",
    "default_transaction_isolation": "repeatable read",
    "default_transaction_deferrable": "on",
    "lock_timeout": "1ms",
    "idle_session_timeout": "50ms",
    "row_security": "off",
    "exit_on_error": "on",
    "client_min_messages": "error",
}
"""A value for each pinned parameter that a DBA may set and that is not ours."""


@pytest.fixture
def odd_url(own_postgres: LocalPostgres) -> str:
    """A migrated database with a role that has every odd setting."""
    with psycopg.connect(own_postgres.url, autocommit=True) as session:
        role = sql.Identifier(session.info.user)
        for name, value in ODD.items():
            command = sql.SQL("ALTER ROLE {} SET {} = {}")
            parameter = sql.SQL(".").join(sql.Identifier(part) for part in name.split("."))
            session.execute(command.format(role, parameter, sql.Literal(value)))
    return own_postgres.url


def test_every_pinned_parameter_is_tried() -> None:
    """A new one gets an odd value here, too."""
    assert set(ODD) == set(PINNED)


@pytest.mark.parametrize("is_reader", [False, True])
async def test_a_roles_settings_do_not_reach_our_sessions(odd_url: str, is_reader: bool) -> None:
    """All are ours, and dates, intervals and bytes arrive as themselves."""
    engine = create_engine(odd_url, Settings(), role="test", is_reader=is_reader)
    try:
        async with engine.connect() as connection:
            for name, value in PINNED.items():
                shown = await connection.scalar(
                    text("SELECT current_setting(:name)"), {"name": name}
                )
                assert shown == value, name
            row = (
                await connection.execute(
                    text(
                        "SELECT timestamptz '2026-03-04 05:06:07+00', interval '1 day 2 hours',"
                        " '\\xff00'::bytea, 0.1::float8, 'a\\b'"
                    )
                )
            ).one()
    finally:
        await engine.dispose()
    assert tuple(row) == (
        dt.datetime(2026, 3, 4, 5, 6, 7, tzinfo=dt.UTC),
        dt.timedelta(days=1, hours=2),
        b"\xff\x00",
        0.1,
        "a\\b",
    )


def test_migrations_run_under_odd_settings(odd_url: str) -> None:
    """Down and up again, as the role with the odd settings."""
    migrate.downgrade(odd_url, "base")
    migrate.upgrade(odd_url)
    assert migrate.current(odd_url) == migrate.head()


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN2"])
def test_an_encoding_that_cannot_hold_every_text_is_refused(
    own_postgres: LocalPostgres, encoding: str
) -> None:
    """Before the first migration, with the value and the way out."""
    with psycopg.connect(own_postgres.url, autocommit=True) as session:
        session.execute(
            sql.SQL(
                "CREATE DATABASE odd ENCODING {} TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'"
            ).format(sql.Literal(encoding))
        )
    name = conninfo_to_dict(own_postgres.url)["dbname"]
    head, _, tail = own_postgres.url.rpartition(f"/{name}")
    url = f"{head}/odd{tail}"
    for command in (migrate.upgrade, migrate.wait_for_head):
        with pytest.raises(InvalidSettings, match=rf"server_encoding.*{encoding}.*ENCODING 'UTF8'"):
            command(url)


def test_a_session_without_triggers_is_refused(own_postgres: LocalPostgres) -> None:
    """The queue's rules are triggers."""
    with psycopg.connect(own_postgres.url, autocommit=True) as session:
        session.execute(
            sql.SQL("ALTER ROLE {} SET session_replication_role = replica").format(
                sql.Identifier(session.info.user)
            )
        )
    with pytest.raises(InvalidSettings, match="session_replication_role"):
        check_server(own_postgres.url)


def test_a_version_that_is_too_old_is_refused(
    own_postgres: LocalPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fluxqueue.db.session.SUPPORTED", (99, 100))
    with pytest.raises(
        InvalidSettings, match=r"server_version: .* too old.*use Postgres 99 to 100"
    ):
        check_server(own_postgres.url)


def test_what_only_harms_a_little_is_warned_of(
    own_postgres: LocalPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    """A clock that is an hour off, and commits that a crash loses."""
    with psycopg.connect(own_postgres.url, autocommit=True) as session:
        session.execute(
            sql.SQL("ALTER ROLE {} SET synchronous_commit = off").format(
                sql.Identifier(session.info.user)
            )
        )
    with caplog.at_level(logging.WARNING):
        check_server(own_postgres.url, now=dt.datetime.now(dt.UTC) + dt.timedelta(hours=1))
    told = {record.getMessage().split(":")[0]: record for record in caplog.records}
    assert set(told) == {
        "this machine's clock and the database's differ",
        "synchronous_commit is off",
    }
    [clock] = [r for r in caplog.records if "clock" in r.getMessage()]
    assert 3590 < clock.__dict__["difference_s"] < 3610
