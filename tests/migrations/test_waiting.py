"""Starting before the database does: wait, say so, never crash-loop."""

from __future__ import annotations

import importlib.metadata
import logging
import threading
from collections.abc import Callable

import psycopg
import pytest

from fluxqueue.db import migrate
from fluxqueue.errors import DatabaseUnavailable, InvalidSettings
from fluxqueue_devtools.localpg import LocalPostgres


@pytest.mark.long("starts processes of its own, for seconds of processor time")
def test_waits_until_the_server_comes_up(
    own_postgres: LocalPostgres, caplog: pytest.LogCaptureFixture
) -> None:
    """The first tries fail and are logged with their reason. Then it goes on."""
    own_postgres.stop()
    naps: list[float] = []

    def sleep(delay_s: float) -> None:
        naps.append(delay_s)
        if len(naps) == 3:
            own_postgres.start()

    with caplog.at_level(logging.WARNING):
        migrate.wait_for_database(own_postgres.url, sleep=sleep)
    assert naps == [0.1, 0.2, 0.4]
    assert all("refused" in vars(record)["why"] for record in caplog.records)
    assert [record.message for record in caplog.records] == ["waiting for the database"] * 3


def test_the_wait_backs_off_to_five_seconds_and_ends_in_time(own_postgres: LocalPostgres) -> None:
    """With a time limit the last error is in the message."""
    own_postgres.stop()
    naps: list[float] = []
    with pytest.raises(DatabaseUnavailable, match=r"within 60 s: .*refused"):
        migrate.wait_for_database(
            own_postgres.url,
            timeout_s=60,
            sleep=naps.append,
            monotonic_s=lambda: sum(naps),
        )
    assert max(naps) == 5.0
    assert 50 < sum(naps) <= 60


@pytest.mark.cases_long("the other commands")
@pytest.mark.parametrize("call", [migrate.upgrade, migrate.current, migrate.check])
def test_an_absent_database_is_unavailable_not_a_traceback(
    own_postgres: LocalPostgres, call: Callable[[str], object]
) -> None:
    """Each entry point says "not now", which its callers retry."""
    own_postgres.stop()
    with pytest.raises(DatabaseUnavailable, match="refused"):
        call(own_postgres.url)


def test_waiting_for_head_sees_somebody_elses_upgrade(empty_database_url: str) -> None:
    """A worker started together with the migration Job goes on as soon as that is done."""
    other = threading.Thread(target=migrate.upgrade, args=(empty_database_url,))
    other.start()
    migrate.wait_for_head(empty_database_url, timeout_s=200)
    other.join()
    assert migrate.current(empty_database_url) == migrate.head()


def test_waiting_for_head_without_an_upgrade_says_what_to_run(empty_database_url: str) -> None:
    """The way out stands in the message."""
    with pytest.raises(DatabaseUnavailable, match="fluxqueue db upgrade"):
        migrate.wait_for_head(empty_database_url, timeout_s=0.5)


def test_the_lock_of_a_dead_migrator_is_free(empty_database_url: str) -> None:
    """kill -9 in the middle of a migration must not block the next one."""
    with psycopg.connect(empty_database_url, autocommit=True) as dead:
        assert migrate._try_lock(dead)
        upgrading = threading.Thread(target=migrate.upgrade, args=(empty_database_url,))
        upgrading.start()
        upgrading.join(timeout=1)
        assert upgrading.is_alive(), "the upgrade did not wait for the lock"
        with psycopg.connect(empty_database_url, autocommit=True) as admin:
            admin.execute("SELECT pg_terminate_backend(%s)", (dead.info.backend_pid,))
    upgrading.join(timeout=200)
    assert migrate.current(empty_database_url) == migrate.head()


@pytest.mark.parametrize("url", ["mysql://u:secret@h/d", "postgresql://u:secret@h/d?nonsense=1"])
def test_a_broken_url_is_named_without_its_password(url: str) -> None:
    """Error messages end in logs, passwords must not."""
    with pytest.raises(InvalidSettings, match="DATABASE_URL") as caught:
        migrate.wait_for_database(url)
    assert "secret" not in str(caught.value)
    assert "secret" not in repr(caught.value.value)


@pytest.mark.parametrize("version", ["3.7.3", "4.0.0", "2.15"])
def test_unsuitable_procrastinate_is_refused(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    """The range is checked at start-up, before anything fails in the middle."""
    monkeypatch.setattr(importlib.metadata, "version", lambda _name: version)
    with pytest.raises(InvalidSettings, match=f"{version} is not supported.*>=3.8,<4"):
        migrate.check_procrastinate()


def test_procrastinate_with_a_newer_schema_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release inside the range that brings migrations of its own needs one of ours first."""
    monkeypatch.setattr(migrate, "_PROCRASTINATE_LAST_MIGRATION", "03.03.00_01")
    with pytest.raises(InvalidSettings, match=r"has schema 03\.04\.00_50"):
        migrate.check_procrastinate()
    monkeypatch.undo()
    migrate.check_procrastinate()
