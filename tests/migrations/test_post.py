"""*Post* revisions: left out at a start, refused beside older code, brought by the next release."""

from __future__ import annotations

import shutil
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

from fluxqueue.cli.db import app
from fluxqueue.db import migrate, revisions
from fluxqueue.errors import DatabaseUnavailable, InvalidSettings, OlderCodeRuns

NOW = migrate.head()
PRE, POST, LATER = (f"{int(NOW) + step:04d}" for step in (1, 2, 3))

_TEXT = '''"""A step of the test."""
from alembic import op

revision, down_revision, branch_labels, depends_on = "{number}", "{before}", None, None


def upgrade():
    op.execute("""{up}""")


def downgrade():
    op.execute("""{down}""")
'''
_ADD = "ALTER TABLE pods ADD COLUMN surplus text NOT NULL DEFAULT ''"
_DROP = "ALTER TABLE pods DROP COLUMN surplus"


@pytest.fixture
def next_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """From here on the code is a release with a *pre* and, after it, a *post* revision."""
    folder = tmp_path / "migrations"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(revisions.MIGRATIONS, folder, ignore=ignored)
    monkeypatch.setattr(revisions, "MIGRATIONS", folder)
    _add(folder, f"{PRE}_pre_surplus", _ADD, _DROP)
    floor = f"UPDATE schema_floor SET oldest_head = '{POST}'"
    _add(folder, f"{POST}_post_surplus", f"{_DROP}; {floor}", _ADD)
    return folder


def _add(folder: Path, name: str, up: str, down: str) -> None:
    number = name.split("_", maxsplit=1)[0]
    before = f"{int(number) - 1:04d}"
    (folder / "versions" / f"{name}.py").write_text(
        _TEXT.format(number=number, before=before, up=up, down=down)
    )


def _connected(url: str, *names: str) -> list[psycopg.Connection]:
    return [psycopg.connect(url, application_name=name) for name in names]


@pytest.mark.long("starts processes of its own, for seconds of processor time")
@pytest.mark.usefixtures("next_release")
def test_a_start_leaves_post_revisions_out_and_works_without(url: str) -> None:
    """From nothing and from the release before. A real difference is still found."""
    migrate.upgrade(url, NOW)
    assert not migrate.is_usable(url)
    with pytest.raises(DatabaseUnavailable, match=f"needs {PRE}"):
        migrate.wait_for_head(url, timeout_s=0.0)
    migrate.upgrade(url, migrate.PRE)
    assert migrate.current(url) == PRE
    assert migrate.left_out(PRE) == [POST]
    migrate.wait_for_head(url, timeout_s=0.0)
    assert migrate.check(url) == [], "the column is taken away by the revision to come"
    with psycopg.connect(url) as connection:
        connection.execute("ALTER TABLE history DROP COLUMN detail")
    assert migrate.check(url) == ["add_column: history.detail"]
    migrate.downgrade(url, migrate.BASE)
    migrate.upgrade(url, migrate.PRE)
    assert migrate.current(url) == PRE


@pytest.mark.usefixtures("next_release")
def test_post_revisions_come_when_no_older_code_is_connected(url: str) -> None:
    """Refused and named until it is gone. Newer code, commands and migrations do not count."""
    migrate.upgrade(url, migrate.PRE)
    older, *others = _connected(
        url,
        f"fluxqueue-worker/{NOW}",
        f"fluxqueue-controller/{POST}",
        f"fluxqueue-cli/{NOW}",
        "fluxqueue-migrate",
        "psql",
    )
    with pytest.raises(OlderCodeRuns, match=f"revision {POST}.*connected: fluxqueue-worker;"):
        migrate.upgrade(url)
    migrate.upgrade(url, migrate.PRE)
    assert migrate.current(url) == PRE
    older.close()
    migrate.upgrade(url)
    assert migrate.current(url) == POST
    assert migrate.left_out(POST) == []
    assert migrate.check(url) == []
    migrate.upgrade(url, migrate.PRE)
    assert migrate.current(url) == POST, "a start undoes nothing"
    for one in others:
        one.close()


def test_the_release_after_brings_them_unless_one_was_skipped(next_release: Path, url: str) -> None:
    """Its start applies what is in the way, beside the release before it, not beside older ones."""
    migrate.upgrade(url, migrate.PRE)
    _add(next_release, f"{LATER}_pre_more", _ADD, _DROP)
    skipped, before = _connected(url, f"fluxqueue-worker/{NOW}", f"fluxqueue-worker/{POST}")
    with pytest.raises(OlderCodeRuns, match="fluxqueue-worker"):
        migrate.upgrade(url, migrate.PRE)
    assert migrate.current(url) == PRE
    skipped.close()
    migrate.upgrade(url, migrate.PRE)
    assert migrate.current(url) == LATER
    before.close()


def test_one_release_back_works_until_they_were_applied(
    next_release: Path, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rolled-back code starts on the schema without them, and refuses the one with them."""
    migrate.upgrade(url, migrate.PRE)
    monkeypatch.setattr(revisions, "MIGRATIONS", next_release.parents[0] / "old")
    shutil.copytree(next_release, revisions.MIGRATIONS)
    for path in (revisions.MIGRATIONS / "versions").glob("*surplus*"):
        path.unlink()
    assert migrate.head() == NOW
    migrate.upgrade(url, migrate.PRE)
    migrate.wait_for_head(url, timeout_s=0.0)
    with monkeypatch.context() as newer:
        newer.setattr(revisions, "MIGRATIONS", next_release)
        migrate.upgrade(url)
    assert not migrate.is_usable(url)
    with pytest.raises(InvalidSettings, match=POST):
        migrate.upgrade(url, migrate.PRE)


@pytest.mark.usefixtures("next_release")
def test_the_command_line_says_what_is_left_out(url: str) -> None:
    """``upgrade --pre``, ``current`` and ``check`` name it, and the way to get it."""

    def run(*words: str) -> str:
        result = CliRunner().invoke(app, list(words), env={"DATABASE_URL": url})
        assert result.exit_code == 0, result.output
        return result.output

    hint = f"left out: {POST} (post). This release works without them."
    assert run("upgrade", "--pre").startswith(f"revision {PRE}\n{hint}")
    assert run("current").startswith(f"revision {PRE}, newest {POST}\n{hint}")
    assert run("check").startswith(f"the database and the code agree\n{hint}")
    assert run("upgrade") == f"revision {POST}\n"
    assert run("check") == "the database and the code agree\n"
