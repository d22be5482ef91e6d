"""Migrations on real servers: up, down, up again, several at once, compared with the code."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest
from procrastinate.schema import SchemaManager

from fluxqueue.db import migrate
from fluxqueue.errors import DatabaseUnavailable, InvalidSettings, SchemaMismatch
from tests.migrations.catalog import contents
from tests.support.postgres import PostgresServer

REPOSITORY = Path(__file__).parents[2]
EMPTY = frozenset({"schema public"})


def test_empty_to_head_to_empty_to_head(url: str) -> None:
    """Everything that upgrade creates downgrade removes, and a second upgrade is like the first."""
    assert contents(url) == EMPTY
    migrate.upgrade(url)
    at_head = contents(url)
    assert any(line.startswith("relation public.fluxjobs r") for line in at_head)
    assert any(line.startswith("relation procrastinate.procrastinate_jobs r") for line in at_head)
    migrate.downgrade(url, migrate.BASE)
    assert contents(url) == EMPTY
    assert migrate.current(url) is None
    migrate.upgrade(url)
    assert contents(url) == at_head
    assert migrate.current(url) == migrate.head()


def test_each_revision_down_and_up(url: str) -> None:
    """Every single step can be undone and repeated with the same result."""
    previous: str = migrate.BASE
    for revision in migrate.revisions():
        before = contents(url)
        migrate.upgrade(url, revision)
        after = contents(url)
        assert after != before, f"revision {revision} does nothing"
        migrate.downgrade(url, previous)
        assert contents(url) == before, f"revision {revision} is not undone"
        migrate.upgrade(url, revision)
        assert contents(url) == after, f"revision {revision} differs the second time"
        previous = revision


def test_the_database_at_head_agrees_with_the_code(url: str) -> None:
    """``fluxqueue db check`` is clean after an upgrade."""
    migrate.upgrade(url)
    assert migrate.check(url) == []


@pytest.mark.cases_long("other differences")
@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ("ALTER TABLE history DROP COLUMN detail", "add_column: history.detail"),
        ("ALTER TABLE pods ADD COLUMN surplus text", "remove_column: pods.surplus"),
        ("DROP TABLE reservations", "add_table: reservations"),
        ("DROP INDEX ix_pods_workload_uid", "add_index: ix_pods_workload_uid"),
        (
            "ALTER TABLE pods ALTER COLUMN phase DROP NOT NULL",
            "modify_nullable: pods.phase: True in the database, False in the code",
        ),
    ],
)
def test_check_names_a_difference(url: str, change: str, expected: str) -> None:
    """What was altered by hand is found. Otherwise a clean check would prove nothing."""
    migrate.upgrade(url)
    with psycopg.connect(url) as connection:
        connection.execute(change.encode())
    assert migrate.check(url) == [expected]


def test_check_of_an_old_database_names_both_revisions(url: str) -> None:
    """Comparing tables before migrating would only confuse."""
    migrate.upgrade(url, "0001")
    assert migrate.check(url) == [
        f"the database is at revision 0001, this code needs {migrate.head()}"
    ]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("DROP TABLE pool_nodes", "add_table: pool_nodes"),
        ("ALTER TABLE loops DROP COLUMN error", "add_column: loops.error"),
        ("ALTER TABLE loops ALTER patience_s TYPE text", "modify_type: loops.patience_s"),
        ("UPDATE schema_floor SET digest = 'of an older commit'", "another text of revision"),
        ("ALTER TABLE schema_floor DROP COLUMN digest", "add_column: schema_floor.digest"),
    ],
)
def test_a_schema_that_is_not_what_its_revision_says_is_refused(
    url: str, change: str, told: str
) -> None:
    """By each start. The message names revision, difference and way out."""
    migrate.upgrade(url)
    with psycopg.connect(url) as connection:
        connection.execute(change.encode())
    assert any(told in one for one in migrate.check(url))
    for start in (migrate.upgrade, migrate.wait_for_head):
        with pytest.raises(SchemaMismatch, match=told) as refused:
            start(url)
        assert migrate.head() in str(refused.value)
        assert "an empty database" in str(refused.value)


def test_what_an_administrator_adds_is_no_obstacle(url: str) -> None:
    """A table, an index, a comment of their own."""
    migrate.upgrade(url)
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE ours (mine int)")
        connection.execute("CREATE INDEX ours_by_user ON fluxjobs (user_name)")
        connection.execute("COMMENT ON TABLE fluxjobs IS 'the queue'")
    migrate.upgrade(url)
    migrate.wait_for_head(url)


def test_upgrade_twice_changes_nothing(url: str) -> None:
    """Each start of ``up`` may call it."""
    migrate.upgrade(url)
    with psycopg.connect(url) as connection:
        connection.execute("INSERT INTO leadership VALUES ('worker', 1, 'me', now())")
    migrate.upgrade(url)
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT holder FROM leadership").fetchall() == [("me",)]


@pytest.mark.long("starts processes of its own, for seconds of processor time")
def test_concurrent_upgraders_migrate_once(url: str) -> None:
    """Three processes at the same moment: all succeed, the schema is whole."""
    code = "import sys; from fluxqueue.db import migrate; migrate.upgrade(sys.argv[1])"
    running = [
        subprocess.Popen(
            [sys.executable, "-c", code, url], cwd=REPOSITORY, stderr=subprocess.PIPE, text=True
        )
        for _ in range(3)
    ]
    for process in running:
        _out, error = process.communicate(timeout=250)
        assert process.returncode == 0, error
    assert migrate.current(url) == migrate.head()
    assert migrate.check(url) == []


def test_a_failed_migration_leaves_the_revision_before_it(url: str) -> None:
    """One transaction each: no half-made schema after an error."""
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE pods (mine int)")  # in the way of revision 0002
    with pytest.raises(Exception, match='"pods" already exists'):
        migrate.upgrade(url)
    assert migrate.current(url) == "0001"
    assert not any("relation public.fluxjobs" in line for line in contents(url))
    with psycopg.connect(url) as connection:
        connection.execute("DROP TABLE pods")
    migrate.upgrade(url)
    assert migrate.check(url) == []


def test_an_ordinary_owner_of_a_database_is_enough(server: PostgresServer) -> None:
    """Managed Postgres gives no superuser. Owning the database must do."""
    url = server.create(migrated=False)
    name = urlsplit(url).path.lstrip("/")
    role = f"owner_of_{name}"
    with psycopg.connect(server.admin_url, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'pw'".encode())
        connection.execute(f"ALTER DATABASE {name} OWNER TO {role}".encode())
    parts = urlsplit(url)
    as_owner = urlunsplit(parts._replace(netloc=f"{role}:pw@{parts.netloc.rpartition('@')[2]}"))
    try:
        migrate.upgrade(as_owner)
        assert migrate.check(as_owner) == []
        migrate.downgrade(as_owner, migrate.BASE)
    finally:
        server.drop(url)
        with psycopg.connect(server.admin_url, autocommit=True) as connection:
            connection.execute(f"DROP ROLE {role}".encode())


def test_unknown_revision_is_bad_input(url: str) -> None:
    """A typing error on the command line is one line, not a traceback."""
    with pytest.raises(InvalidSettings, match="9999"):
        migrate.upgrade(url, "9999")


def _as_newer_code_leaves_it(url: str, *, oldest_head: str) -> None:
    migrate.upgrade(url)
    with psycopg.connect(url) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
        connection.execute("UPDATE schema_floor SET oldest_head = %s", (oldest_head,))


def test_a_database_too_new_for_the_code_is_refused(url: str) -> None:
    """After a "post" revision an old image must not guess."""
    _as_newer_code_leaves_it(url, oldest_head="9998")
    assert not migrate.is_usable(url)
    with pytest.raises(InvalidSettings, match="9999"):
        migrate.upgrade(url)
    with pytest.raises(DatabaseUnavailable, match="at revision 9999"):
        migrate.wait_for_head(url, timeout_s=0.0)
    assert "revision 9999" in migrate.check(url)[0]


def test_code_that_was_rolled_back_starts_on_a_newer_compatible_database(url: str) -> None:
    """A "pre" revision leaves the old code working: its upgrade does nothing, its wait ends."""
    _as_newer_code_leaves_it(url, oldest_head=migrate.head())
    migrate.upgrade(url)
    migrate.wait_for_head(url, timeout_s=0.0)
    assert migrate.current(url) == "9999"


def test_frozen_text_is_what_the_code_says() -> None:
    """Until the first release revision 0002 follows tables.py and db/sql (migrations/README.md)."""
    spec = importlib.util.spec_from_file_location("freeze", REPOSITORY / "migrations/freeze.py")
    assert spec is not None
    assert spec.loader is not None
    freeze = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(freeze)
    folder = REPOSITORY / "migrations" / "sql"
    hint = "run: python migrations/freeze.py"
    assert (folder / "0002_fluxqueue_up.sql").read_text() == freeze.upgrade_text(), hint
    assert (folder / "0002_fluxqueue_down.sql").read_text() == freeze.downgrade_text(), hint


def test_procrastinates_schema_is_unchanged() -> None:
    """What we ship is its own text, so its own upgrade notes apply."""
    version = importlib.metadata.version("procrastinate")
    if not version.startswith("3.10."):
        pytest.skip(f"the text is of 3.10, installed is {version}")
    ours = (REPOSITORY / "migrations/sql/0001_procrastinate_3_10.sql").read_text()
    assert ours.endswith(SchemaManager.get_schema())


def test_revision_files_say_before_or_after_the_new_code() -> None:
    """File names are NNNN_{pre,post}_words, in one unbroken line."""
    names = sorted(path.stem for path in (REPOSITORY / "migrations/versions").glob("*.py"))
    assert [name.split("_")[0] for name in names] == migrate.revisions()
    assert {name.split("_")[1] for name in names} <= {"pre", "post"}


def test_everything_in_the_database_says_what_it_is(url: str) -> None:
    """Each table, view and column of ours has a comment: `\\d+` in psql is documentation."""
    migrate.upgrade(url)
    with psycopg.connect(url) as connection:
        lacking = connection.execute(
            """SELECT c.relname, a.attname FROM pg_class c
               LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
                    AND NOT a.attisdropped AND col_description(c.oid, a.attnum) IS NULL
               WHERE c.relnamespace = 'public'::regnamespace AND c.relkind IN ('r', 'v')
                 AND c.relname <> 'alembic_version'
                 AND (a.attname IS NOT NULL OR obj_description(c.oid, 'pg_class') IS NULL)"""
        ).fetchall()
    assert lacking == []


def test_a_reader_reads_everything_and_writes_nothing(url: str) -> None:
    """The role exists, cannot log in, and has SELECT on each table and view, and no more."""
    migrate.upgrade(url)
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT rolcanlogin, rolsuper FROM pg_roles WHERE rolname = 'fluxqueue_reader'"
        ).fetchone()
        assert found == (False, False)
        names = connection.execute(
            """SELECT relname, has_table_privilege('fluxqueue_reader', oid, 'SELECT'),
                      has_table_privilege('fluxqueue_reader', oid,
                                          'INSERT, UPDATE, DELETE, TRUNCATE')
               FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'v')
                 AND relname <> 'alembic_version'"""
        ).fetchall()
        assert len(names) > 15
        assert [name for name, reads, writes in names if not reads or writes] == []
        connection.execute("SET ROLE fluxqueue_reader")
        for name, _, _ in names:
            connection.execute(f"SELECT * FROM {name} LIMIT 1".encode())
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("DELETE FROM fluxjobs")
