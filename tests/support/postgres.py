"""Real Postgres for tests: one server and one migrated database per process, wiped between tests.

Used by the fixtures in ``tests/conftest.py``. The server is the embedded one without fsync, or the
one that ``TEST_DATABASE_URL`` names (its user must be allowed to create databases; nothing but
databases named ``fluxqueue_test_*`` is touched there).
"""

from __future__ import annotations

import itertools
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from psycopg import sql
from psycopg.types.json import Jsonb

from fluxqueue.db import migrate
from fluxqueue_devtools.localpg import LocalPostgres, PostgresBinaries
from fluxqueue_devtools.localpg.binaries import installed_binaries

EXTERNAL_VARIABLE = "TEST_DATABASE_URL"


def by_major(*programs: str) -> list[Any]:
    """One server of each Postgres version that is here with these programs beside it.

    Parameters of a test or fixture. The versions before the newest are marked ``long``.
    """
    found: dict[int, PostgresBinaries] = {}
    for one in installed_binaries():
        if all((one.folder / name).exists() for name in programs):
            found.setdefault(one.major, one)
    newest = max(found, default=0)
    again = pytest.mark.long("all that is shown on the newest Postgres, on an older one again")
    return [
        pytest.param(one, id=f"postgres{major}", marks=[] if major == newest else [again])
        for major, one in sorted(found.items(), reverse=True)
    ]


def with_database(url: str, name: str) -> str:
    """Return ``url`` with another database name."""
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


class WipedDatabase:
    """A migrated database, used over and over: making one anew takes longer than most tests.

    Only rows and sequences are put back, in milliseconds. Tests that change more (tables, settings,
    what the planner knows) are marked ``own_database``.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        with psycopg.connect(url, autocommit=True) as connection:
            tables = connection.execute(_TABLES).fetchall()
            tables = [sql.Identifier(*name) for name in connection.execute(_TABLES)]
            self._seeds = [(table, _rows(connection, table)) for table in tables]

    def wipe(self) -> None:
        """Make it as it was. Clients that are still connected to it are cut off."""
        with psycopg.connect(self.url) as connection:
            connection.execute(_CUT_OFF)
            # Neither triggers nor foreign keys: no row is to have consequences.
            connection.execute("SET LOCAL session_replication_role = replica")
            for table, seeds in self._seeds:
                connection.execute(sql.SQL("DELETE FROM {}").format(table))
                if seeds:
                    fill = "INSERT INTO {0} SELECT * FROM jsonb_populate_recordset(NULL::{0}, %s)"
                    connection.execute(sql.SQL(fill).format(table), [Jsonb(seeds)])
            connection.execute(_RESTART)


_TABLES = """
SELECT schemaname, tablename FROM pg_tables
WHERE schemaname NOT IN ('pg_catalog', 'information_schema')
"""
_CUT_OFF = """
SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
_RESTART = """
SELECT setval(format('%I.%I', schemaname, sequencename)::regclass, start_value, false)
FROM pg_sequences
"""


def _rows(connection: psycopg.Connection[Any], table: sql.Identifier) -> list[Any]:
    found = connection.execute(sql.SQL("SELECT to_jsonb(one) FROM {} AS one").format(table))
    return [row for (row,) in found]


@dataclass
class PostgresServer:
    """A running server on which databases may be made and dropped."""

    admin_url: str
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _template: str | None = None
    _wiped: WipedDatabase | None = None

    def _execute(self, statement: sql.Composable) -> None:
        with psycopg.connect(self.admin_url, autocommit=True) as connection:
            connection.execute(statement)

    def create(self, *, migrated: bool = True) -> str:
        """Make a database, at head or empty, and return its URL."""
        template = self._template_name() if migrated else "template0"
        name = f"fluxqueue_test_{os.getpid()}_{next(self._numbers)}"
        self._execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY file_copy").format(
                sql.Identifier(name), sql.Identifier(template)
            )
        )
        return with_database(self.admin_url, name)

    def drop(self, url: str) -> None:
        """Drop a database together with all its connections."""
        name = urlsplit(url).path.lstrip("/")
        self._execute(
            sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name))
        )

    def wiped(self) -> str:
        """The URL of the database that tests share, with no more in it than after the migration."""
        if self._wiped is None:
            self._wiped = WipedDatabase(self.create())
        else:
            self._wiped.wipe()
        return self._wiped.url

    def _template_name(self) -> str:
        if self._template is None:
            url = self.create(migrated=False)
            migrate.upgrade(url)
            self._template = urlsplit(url).path.lstrip("/")
        return self._template

    def close(self) -> None:
        """Drop what outlives a test."""
        if self._wiped is not None:
            self.drop(self._wiped.url)
        if self._template is not None:
            self.drop(with_database(self.admin_url, self._template))


@contextmanager
def running_server(binaries: PostgresBinaries | None = None) -> Iterator[PostgresServer]:
    """Yield the external server when one is named, else an embedded one that ends afterwards."""
    external = os.environ.get(EXTERNAL_VARIABLE, "")
    if external and binaries is None:
        server = PostgresServer(external)
        yield server
        server.close()
        return
    with tempfile.TemporaryDirectory(prefix="fluxqueue-test-pg-") as folder:
        Path(folder).chmod(0o755)  # where the server runs as another user it must reach its data
        with LocalPostgres(Path(folder) / "server", durable=False, binaries=binaries) as local:
            yield PostgresServer(local.url)


@contextmanager
def copied_server(template: LocalPostgres) -> Iterator[LocalPostgres]:
    """Yield a server on a copy of a template's data, not started. It is stopped afterwards."""
    with tempfile.TemporaryDirectory(prefix="fluxqueue-test-pg-") as folder:
        Path(folder).chmod(0o755)
        server = LocalPostgres(Path(folder) / "server", durable=False)
        data, of = server.data, template.data
        assert of.read_pid_file() is None, "a template must be stopped before it is copied"
        data.root.mkdir()
        shutil.copytree(of.pgdata, data.pgdata, symlinks=True)
        shutil.copy2(of.root / "password", data.root)
        yield server
        server.stop()


def make_migrated_template(folder: Path) -> LocalPostgres:
    """Make a data directory at head and stop its server, ready to be copied."""
    with LocalPostgres(folder, durable=False) as local:
        migrate.upgrade(local.url)
    return local
