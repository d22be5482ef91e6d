"""The environment that the chart gives, against a real Postgres that asks for a password.

The URL has none. Libpq takes it from ``PGPASSWORD`` and the TLS mode from ``PGSSLMODE``, for every
way in which we connect: psycopg, SQLAlchemy, procrastinate.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest
from psycopg import sql

from fluxqueue.db.database import Database
from fluxqueue.process.settings import Settings
from tests.chart.rendering import container, environment
from tests.support.postgres import PostgresServer
from tests.support.sql import dicts

ROLE = f"chart_user_{os.getpid()}"
PASSWORD = "p@ss:w/o?rd &%41#"
"""Every character that would have to be escaped in a URL."""


@pytest.fixture
def given(postgres: PostgresServer) -> Iterator[dict[str, str]]:
    """What a container is given for a database with one user, its owner."""
    with psycopg.connect(postgres.admin_url, autocommit=True) as connection:
        name = sql.Identifier(ROLE)
        connection.execute(
            sql.SQL("CREATE ROLE {} LOGIN PASSWORD {}").format(name, sql.Literal(PASSWORD))
        )
        connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(name, name))
        yield _variables(urlsplit(postgres.admin_url).hostname, urlsplit(postgres.admin_url).port)
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))
        connection.execute(sql.SQL("DROP ROLE {}").format(name))


def _variables(host: str | None, port: int | None, sslmode: str = "prefer") -> dict[str, str]:
    values: dict[str, Any] = {
        "postgres": {"enabled": False},
        "externalDatabase": {
            "existingSecret": "queue",
            "host": host,
            "port": port or 5432,
            "user": ROLE,
            "name": ROLE,
            "sslmode": sslmode,
        },
    }
    rendered = environment(container("Deployment", "fluxqueue-worker", values))
    assert rendered["PGPASSWORD"] == {"secretKeyRef": {"name": "queue", "key": "password"}}
    plain = {name: rendered[name] for name in ("DATABASE_URL", "PGSSLMODE")}
    return {**plain, "PGPASSWORD": PASSWORD}


def _fluxqueue(given: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fluxqueue", *arguments],
        check=False,
        env={**os.environ, **given},
        capture_output=True,
        text=True,
        timeout=300,
    )


@pytest.mark.long("starts processes of its own, for seconds of processor time")
def test_a_user_who_owns_the_database_can_migrate_it(given: dict[str, str]) -> None:
    """No superuser, no extension: what an ordinary managed Postgres gives."""
    upgraded = _fluxqueue(given, "db", "upgrade")
    assert upgraded.returncode == 0, upgraded.stderr
    checked = _fluxqueue(given, "db", "check")
    assert checked.returncode == 0, checked.stdout + checked.stderr


async def test_every_way_of_connecting_finds_the_password(
    given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _fluxqueue(given, "db", "upgrade").returncode == 0
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    settings = Settings.from_env(os.environ)
    async with Database(settings, role="test") as database:
        await database.wake_matcher()
        async with database.begin() as tx:
            (row,) = await dicts(tx, "SELECT current_user AS name")
    assert row is not None
    assert row["name"] == ROLE


@pytest.mark.long("starts processes of its own, for seconds of processor time")
def test_a_wrong_password_is_named_and_not_shown(given: dict[str, str]) -> None:
    waited = _fluxqueue({**given, "PGPASSWORD": "wrong-one"}, "db", "wait", "--timeout", "1")
    assert waited.returncode == 1
    assert "password authentication failed" in waited.stderr
    assert "wrong-one" not in waited.stderr + waited.stdout


@pytest.mark.long("starts processes of its own, for seconds of processor time")
def test_the_tls_mode_is_obeyed(given: dict[str, str], postgres: PostgresServer) -> None:
    """A server without TLS is refused where TLS is required, rather than talked to in clear."""
    with psycopg.connect(postgres.admin_url) as connection:
        row = connection.execute("SHOW ssl").fetchone()
    if row != ("off",):
        pytest.skip("this server speaks TLS; the embedded one does not")
    address = urlsplit(postgres.admin_url)
    required = _variables(address.hostname, address.port, "require")
    waited = _fluxqueue(required, "db", "wait", "--timeout", "1")
    assert waited.returncode == 1
    assert "SSL" in waited.stderr
    assert _fluxqueue(given, "db", "upgrade").returncode == 0
