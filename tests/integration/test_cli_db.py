"""``fluxqueue db``: exit codes and the one line that each command prints."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import psycopg
import pytest
from typer.testing import CliRunner, Result

from fluxqueue.cli.db import app
from fluxqueue.db import migrate
from fluxqueue.errors import InvalidSettings


@pytest.fixture(autouse=True)
def _restored_logging() -> Iterator[None]:
    """The commands set up logs for their process. Here that process is ours."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


def run(*args: str, **environ: str) -> Result:
    """Run one sub-command with nothing but ``environ`` about the database."""
    return CliRunner().invoke(app, list(args), env={"DATABASE_URL": "", **environ})


def test_the_way_of_a_database_through_all_commands(empty_database_url: str) -> None:
    """current, check, upgrade, check, downgrade, as an operator would type them."""
    environ = {"DATABASE_URL": empty_database_url}
    newest = migrate.head()
    steps = [
        (("current",), 0, f"revision none, newest {newest}\n"),
        (("check",), 1, f"the database is at revision none, this code needs {newest}\n"),
        (("upgrade",), 0, f"revision {newest}\n"),
        (("upgrade", "--pre"), 0, f"revision {newest}\n"),
        (("wait", "--timeout", "30"), 0, ""),
        (("check",), 0, "the database and the code agree\n"),
        (("downgrade", "0001"), 0, "revision 0001\n"),
        (("downgrade", "base"), 0, "revision none\n"),
    ]
    for args, code, output in steps:
        result = run(*args, **environ)
        assert (result.exit_code, result.output) == (code, output), (args, result.exception)


def test_the_option_wins_over_the_environment(empty_database_url: str) -> None:
    """``--database-url`` is nearer to the user than a variable."""
    result = run(
        "upgrade", "--database-url", empty_database_url, DATABASE_URL="postgresql://nowhere/x"
    )
    assert result.exit_code == 0, result.exception
    with psycopg.connect(empty_database_url) as connection:
        assert connection.execute("SELECT count(*) FROM queue").fetchone() == (0,)


def test_a_revision_and_pre_exclude_each_other(empty_database_url: str) -> None:
    """Neither is silently ignored."""
    result = run("upgrade", "0001", "--pre", DATABASE_URL=empty_database_url)
    assert isinstance(result.exception, InvalidSettings)
    assert "--pre" in str(result.exception)
    assert migrate.current(empty_database_url) is None


@pytest.mark.parametrize("command", ["upgrade", "current", "check", "wait"])
def test_without_a_database_the_message_says_how_to_name_one(command: str) -> None:
    """``cli/main.py`` prints the error and exits 2."""
    result = run(command)
    assert isinstance(result.exception, InvalidSettings)
    assert "DATABASE_URL" in str(result.exception)
    assert "--database-url" in str(result.exception)
