"""Migrations as functions: upgrade a database, compare it with the tables, wait for it.

``fluxqueue db ...`` calls it, ``fluxqueue up`` before anything else starts, and the tests.
Blocking; async callers use ``asyncio.to_thread``. The revisions are in ``migrations/`` beside the
package. Only ``tables.py`` decides what a table looks like.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import alembic.command
import psycopg
from alembic import op
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.util.exc import CommandError
from sqlalchemy import Connection, NullPool, create_engine, text

from fluxqueue.db import revisions as files
from fluxqueue.db import session
from fluxqueue.db.engine import APPLICATION, libpq_url, sqlalchemy_url
from fluxqueue.db.queries import Q
from fluxqueue.db.revisions import head, startable
from fluxqueue.db.tables import metadata
from fluxqueue.errors import DatabaseUnavailable, InvalidSettings, OlderCodeRuns, SchemaMismatch

log = logging.getLogger(__name__)

HEAD, BASE = "head", "base"
PRE = "pre"
"""As far as this code needs to start. *Post* revisions at the end are left for later."""

_OTHER_TEXT = "other functions, triggers or views: another text of revision"
_LACKS = (
    *("the database is at", "add_table:", "add_column", "add_index", "add_constraint", "add_fk"),
    *("modify_type", "modify_nullable", "modify_default", _OTHER_TEXT),
)
"""How differences begin that keep this code from working."""

_PARTS = ("controller", "worker")
"""Roles of the processes that may not meet a schema their code does not know."""

_LOCK_KEY = 0x666C7578  # "flux"; one number for all starters of all versions
_LOCK_WAIT_MAX_S = 900.0
_LOCK_POLL_S = 0.2
_STATEMENT_LOCK_TIMEOUT = "30s"

_CONNECT_TIMEOUT_S = 5
_BACKOFF_FIRST_S = 0.1
_BACKOFF_MAX_S = 5.0

_PROCRASTINATE_MIN = (3, 8)  # transactional defer through ``connection=``
_PROCRASTINATE_BELOW = (4,)
_PROCRASTINATE_LAST_MIGRATION = "03.04.00_50"


def upgrade(url: str, revision: str = HEAD) -> None:
    """Apply migrations up to ``revision``. Do nothing when the database is there already.

    Any number of starters may call this at once: one migrates, the others wait and find it done. A
    newer database that this code still works on is left as it is, so that code that was rolled back
    starts again.

    Raises: ``DatabaseUnavailable``. ``OlderCodeRuns`` before a *post* revision that a process which
    uses the database does not know. ``InvalidSettings`` for an unknown revision, a database too new
    for this code, or an unsuitable procrastinate. ``SchemaMismatch`` as of ``refuse_mismatch``.
    """
    check_procrastinate()
    session.check_server(libpq_url(url))
    _upgrade(url, revision)
    if revision in (HEAD, PRE):
        refuse_mismatch(url)


def _upgrade(url: str, revision: str) -> None:
    with _migrating(url) as connection:
        found = MigrationContext.configure(connection).get_current_revision()
        is_named = revision not in (HEAD, PRE)
        if not is_named and found is not None and found not in revisions():
            _accept_newer(connection, found)
            return
        target = {HEAD: head(), PRE: startable()}.get(revision, revision)
        if {found, target} <= set(revisions()) and not files.after(found, until=target):
            return
        _refuse_beside_older(connection, found, target)
        connection.rollback()  # looking has begun a transaction, and Alembic is to begin its own
        _run(connection, lambda config: alembic.command.upgrade(config, target))


def downgrade(url: str, revision: str) -> None:
    """Undo migrations down to ``revision`` (``base`` undoes all and drops all data)."""
    with _migrating(url) as connection:
        _run(connection, lambda config: alembic.command.downgrade(config, revision))


def current(url: str) -> str | None:
    """Return the database's revision, None when no migration was ever applied."""
    with _connection(url) as connection:
        return MigrationContext.configure(connection).get_current_revision()


def revisions() -> list[str]:
    """Return all revisions that this code has, oldest first."""
    return [one.number for one in files.known()]


def left_out(found: str | None) -> list[str]:
    """Return the *post* revisions that a database at ``found`` has yet to get.

    Empty where it is too old, or too new, for this code anyway.
    """
    missing = files.after(found) if found in revisions() else []
    return [one.number for one in missing] if all(one.is_post for one in missing) else []


def check(url: str) -> list[str]:
    """Compare the database with the code. An empty list means that they agree.

    Each item is a sentence: the revision is too old, or a table differs. While *post* revisions are
    left out, the items that these take away or tighten may still be there.
    """
    with _connection(url) as connection:
        context = MigrationContext.configure(
            connection,
            opts={"compare_type": True, "compare_server_default": True, "include_name": is_ours},
        )
        found = context.get_current_revision()
        is_behind = bool(left_out(found))
        if found != head() and not is_behind:
            return [f"the database is at revision {found or 'none'}, this code needs {startable()}"]
        found_here = map(_without_comments, compare_metadata(context, metadata))
        differences = [item for item in found_here if item]
        told = [_describe(item) for item in differences if not (is_behind and _is_for_post(item))]
        is_same = _stored_digest(connection) == files.digest(str(found))
        return told if is_same else [*told, f"{_OTHER_TEXT} {found}"]


def lacking(url: str) -> list[str]:
    """Return the differences that ``check`` finds and that keep this code from working.

    What an administrator has added is none. A newer revision is left to the code that made it.
    """
    is_newer = current(url) not in revisions() and is_usable(url)
    return [] if is_newer else [one for one in check(url) if one.startswith(_LACKS)]


def refuse_mismatch(url: str) -> None:
    """Make sure that the schema is what its revision says.

    Raises: ``SchemaMismatch`` with the revision, the difference and the way out.
    """
    found = lacking(url)
    if found:
        more = f" and {len(found) - 3} more (fluxqueue db check)" if len(found) > 3 else ""
        raise SchemaMismatch(
            f"the schema at revision {current(url)} does not fit this code:"
            f" {', '.join(found[:3])}{more}",
            where="database",
            hint="another version of this revision has made it, or it was changed by hand. Create"
            " an empty database and start again: the controller fills it from the cluster, and"
            " only history and accounting are lost (docs/admin/upgrade.md)",
        )


def note_digest(ctx: MigrationContext, heads: set[str], **_: Any) -> None:
    """Store which text made the schema, in the transaction of each revision (``env.py``)."""
    if ctx.connection is not None and _has_floor(ctx.connection):
        ctx.connection.execute(
            text(Q.note_digest),
            {"digest": files.digest(max(heads, default=""))},
        )


def _has_floor(connection: Connection) -> bool:
    found = connection.execute(text("SELECT to_regclass('public.schema_floor')")).scalar()
    return found is not None


def _stored_digest(connection: Connection) -> str | None:
    if not _has_floor(connection):
        return None
    # Through JSON: an older text of the revision has no such column.
    return connection.execute(text(Q.stored_digest)).scalar()


def create_revision(url: str, slug: str, kind: str) -> Path:
    """Write the next revision file from the difference between ``tables.py`` and the database.

    For developers. Parameters: ``slug`` in words_with_underscores, ``kind`` ``pre`` or ``post``.
    """
    if kind not in ("pre", "post") or not re.fullmatch(r"[a-z0-9_]+", slug):
        raise InvalidSettings(
            f"{kind!r} {slug!r} cannot name a migration",
            where="migration",
            hint="kind is pre or post; the slug is lower_case_words",
        )
    number = f"{int(head()) + 1:04d}"
    name = f"{kind}_{slug}"
    with _migrating(url) as connection:
        _run(
            connection,
            lambda config: alembic.command.revision(
                config, message=name, autogenerate=True, rev_id=number
            ),
        )
    return files.MIGRATIONS / "versions" / f"{number}_{name}.py"


def wait_for_database(
    url: str,
    *,
    timeout_s: float | None = None,
    sleep: Callable[[float], None] = time.sleep,
    monotonic_s: Callable[[], float] = time.monotonic,
) -> None:
    """Return once the database accepts a connection. Back off from 0.1 to 5 s, and log it.

    Parameters: ``timeout_s`` None waits for ever, so that a starting process does not crash-loop.

    Raises: ``DatabaseUnavailable`` when the time is over, ``InvalidSettings`` for a broken URL.
    """
    plain, delay_s, started_s = libpq_url(url), _BACKOFF_FIRST_S, monotonic_s()
    while True:
        try:
            psycopg.connect(plain, connect_timeout=_CONNECT_TIMEOUT_S).close()
            return
        except psycopg.OperationalError as error:
            waited_s = monotonic_s() - started_s
            reason = str(error).strip().replace("\n", "; ")
            if timeout_s is not None and waited_s + delay_s > timeout_s:
                within = f" within {timeout_s:g} s" if timeout_s else ""
                raise DatabaseUnavailable(
                    f"the database did not answer{within}: {reason}"
                ) from error
        log.warning(
            "waiting for the database",
            extra={"action": "wait_for_database", "waited_s": round(waited_s, 1), "why": reason},
        )
        sleep(delay_s)
        delay_s = min(delay_s * 2, _BACKOFF_MAX_S)


def is_usable(url: str) -> bool:
    """Return whether this code works on the database as it is.

    It does from its last *pre* revision on, and on a newer one that leaves it working.
    """
    with _connection(url) as connection:
        return _is_usable(connection, MigrationContext.configure(connection).get_current_revision())


def _is_usable(connection: Connection, found: str | None) -> bool:
    if found is None or found in revisions():
        return found is not None and not files.after(found, until=startable())
    # Newer code made it. The schema records the oldest code that still works on it.
    if not _has_floor(connection):
        return False
    oldest = connection.execute(text(Q.oldest_head)).scalar()
    return oldest is not None and str(oldest) <= head()


def wait_for_head(url: str, *, timeout_s: float | None = None) -> None:
    """Wait for the database, then for another process to upgrade it.

    That is a migration Job or another starter. It upgrades as far as this code needs: *post*
    revisions may be left out.

    Raises: ``DatabaseUnavailable`` when the time is over, ``InvalidSettings`` for a server that
    fluxqueue cannot work on (``session.check_server``), ``SchemaMismatch`` as of
    ``refuse_mismatch``.
    """
    deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
    wait_for_database(url, timeout_s=timeout_s)
    session.check_server(libpq_url(url))
    while not is_usable(url):
        found = current(url)
        if deadline_s is not None and time.monotonic() > deadline_s:
            raise DatabaseUnavailable(
                f"the database is at revision {found or 'none'}, this code needs {startable()}: "
                "run `fluxqueue db upgrade` of the newest release in use"
            )
        log.warning(
            "waiting for the migrations",
            extra={"action": "wait_for_head", "revision": found, "needs": startable()},
        )
        time.sleep(1.0)
    refuse_mismatch(url)
    if later := left_out(current(url)):
        log.info("post revisions are left out", extra={"action": "wait_for_head", "later": later})


def check_procrastinate() -> None:
    """Refuse an installed procrastinate that does not fit the schema in our migrations.

    Raises: ``InvalidSettings`` naming the installed version and what is allowed.
    """
    version = importlib.metadata.version("procrastinate")
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if not _PROCRASTINATE_MIN <= numbers < _PROCRASTINATE_BELOW:
        raise InvalidSettings(
            f"version {version} is not supported",
            where="procrastinate",
            value=version,
            hint="install procrastinate>=3.8,<4",
        )
    newest = max(path.name for path in _procrastinate_migrations().glob("*.sql"))
    if not newest.startswith(_PROCRASTINATE_LAST_MIGRATION):
        raise InvalidSettings(
            f"version {version} has schema {newest.split('_pre')[0].split('_post')[0]}, "
            f"our migrations bring {_PROCRASTINATE_LAST_MIGRATION}",
            where="procrastinate",
            value=version,
            hint="install another version, or add its schema changes as a migration",
        )


def is_ours(name: str | None, kind: str, parents: Any) -> bool:  # noqa: ARG001  Alembic's signature
    """Restrict Alembic's comparison to the schema ``public``."""
    if kind == "schema":
        return name in (None, "public")
    return not (kind == "table" and str(name).startswith("procrastinate_"))


def run_sql_file(name: str) -> None:
    """Execute ``migrations/sql/<name>``, several statements at once, for revisions only.

    It bypasses SQLAlchemy and uses psycopg. Without parameters psycopg sends the text as it is, so
    that ``%`` and ``:name`` in function bodies need no escape.
    """
    statements = (files.MIGRATIONS / "sql" / name).read_text(encoding="utf-8")
    driver = op.get_bind().connection.driver_connection
    assert driver is not None
    driver.execute(statements)


# -- inside --------------------------------------------------------------------------------------


def _accept_newer(connection: Connection, found: str) -> None:
    """Leave a database of newer code as it is.

    Raises: ``InvalidSettings`` if it is too new.
    """
    if not _is_usable(connection, found):
        raise InvalidSettings(
            f"the database is at revision {found}, which no longer takes code that knows {head()}",
            where="migration",
            hint="start the newer release; going back past it needs a backup of before",
        )
    log.warning(
        "the database is newer than this code, which still works on it",
        extra={"action": "upgrade", "revision": found, "knows": head()},
    )


def _refuse_beside_older(connection: Connection, found: str | None, target: str) -> None:
    """Make sure that no part which does not know the *post* revisions to come is connected.

    The name of every fluxqueue connection says what its code knows. Commands of an older release do
    not count: they fail, which does no harm. A database without any revision has no users.
    """
    posts = [one.number for one in files.after(found, until=target) if one.is_post]
    if found is None or not posts:
        return
    names = connection.execute(
        text(Q.connected_processes),
        {"ours": f"{APPLICATION}%/%"},
    ).scalars()
    older = sorted(
        part
        for part, _, knows in (name.partition("/") for name in names)
        if part.removeprefix(APPLICATION) in _PARTS and knows < posts[-1]
    )
    if older:
        raise OlderCodeRuns(
            f"revision {posts[-1]} is for databases that no older code uses, and older code is "
            f"connected: {', '.join(older)}; finish the upgrade to the release that brought it, "
            "or stop those processes, then repeat this"
        )


def _procrastinate_migrations() -> Path:
    from procrastinate.schema import SchemaManager

    return Path(SchemaManager.get_migrations_path())


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(files.MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.set_main_option("file_template", "%%(rev)s_%%(slug)s")
    return config


def _run(connection: Connection, command: Callable[[Config], object]) -> None:
    config = _config()
    config.attributes["connection"] = connection
    try:
        command(config)
    except CommandError as error:
        raise InvalidSettings(str(error), where="migration", hint=f"newest: {head()}") from error


@contextlib.contextmanager
def _connection(url: str) -> Iterator[Connection]:
    engine = create_engine(
        sqlalchemy_url(url),
        poolclass=NullPool,
        connect_args={
            "connect_timeout": _CONNECT_TIMEOUT_S,
            "application_name": "fluxqueue-migrate",
            "client_encoding": session.ENCODING,
            "options": session.options(
                search_path="public",
                lock_timeout=_STATEMENT_LOCK_TIMEOUT,
                statement_timeout="0",
            ),
        },
    )
    try:
        with engine.connect() as connection:
            yield connection
    except Exception as error:
        cause = getattr(error, "orig", error)
        if isinstance(cause, psycopg.OperationalError):
            raise DatabaseUnavailable(str(cause).strip()) from error
        raise
    finally:
        engine.dispose()


@contextlib.contextmanager
def _migrating(url: str) -> Iterator[Connection]:
    """Hold the lock on one connection and yield another: no migration's commit then ends it."""
    with _advisory_lock(url), _connection(url) as connection:
        yield connection


@contextlib.contextmanager
def _advisory_lock(url: str) -> Iterator[None]:
    # Poll for the lock instead of waiting inside Postgres. A session that waits there holds a
    # snapshot. A CREATE INDEX CONCURRENTLY in a migration would then wait for that snapshot in
    # turn.
    deadline_s = time.monotonic() + _LOCK_WAIT_MAX_S
    with _plain_connection(url) as holder:
        while not _try_lock(holder):
            if time.monotonic() > deadline_s:
                raise DatabaseUnavailable(
                    f"another process has been migrating for {_LOCK_WAIT_MAX_S:g} s"
                )
            log.info("another process migrates", extra={"action": "wait_for_migration"})
            time.sleep(_LOCK_POLL_S)
        yield  # closing the connection gives the lock back, also when this process dies


@contextlib.contextmanager
def _plain_connection(url: str) -> Iterator[psycopg.Connection[Any]]:
    try:
        connection = psycopg.connect(
            libpq_url(url), autocommit=True, connect_timeout=_CONNECT_TIMEOUT_S
        )
    except psycopg.OperationalError as error:
        raise DatabaseUnavailable(str(error).strip()) from error
    with connection:
        yield connection


def _try_lock(connection: psycopg.Connection[Any]) -> bool:
    row = connection.execute("SELECT pg_try_advisory_lock(%s)", (_LOCK_KEY,)).fetchone()
    return bool(row and row[0])


def _describe(item: Any) -> str:
    if isinstance(item, list):  # several changes of one column
        return "; ".join(_describe(part) for part in item)
    verb, *subjects = item
    if verb.startswith("modify_"):
        _schema, table, column, _existing, in_database, in_code = subjects
        return f"{verb}: {table}.{column}: {in_database} in the database, {in_code} in the code"
    names = [getattr(subject, "name", subject) for subject in subjects]
    return f"{verb}: " + ".".join(str(name) for name in names if name is not None)


def _without_comments(item: Any) -> Any:
    """Return a difference without those of comments, which are SQL (``sql/05_comments.sql``)."""
    if isinstance(item, list):
        return [part for part in item if part[0] != "modify_comment"]
    return None if str(item[0]).endswith("_table_comment") else item


def _is_for_post(item: Any) -> bool:
    """Return whether a difference is of the kind that *post* revisions remove."""
    if isinstance(item, list):  # several changes of one column
        return all(_is_for_post(part) for part in item)
    verb, *subjects = item
    if verb == "modify_nullable":
        _schema, _table, _column, _existing, is_nullable, _is_nullable_in_code = subjects
        return bool(is_nullable)
    if verb == "add_index":
        return bool(subjects[0].unique)
    return str(verb).startswith(("remove_", "add_constraint"))
