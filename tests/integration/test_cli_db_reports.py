"""``fluxqueue db list``, ``history`` and ``accounting`` as a shell sees them."""

from __future__ import annotations

import asyncio
import json

import pytest
from typer.testing import CliRunner, Result

from fluxqueue.cli.main import app
from fluxqueue.db.database import Database
from fluxqueue.errors import InvalidInput
from tests.support import steering
from tests.support.pool_model import request
from tests.support.rows import Rows, cpu_node, settings_for, workload


@pytest.fixture
def url(database_url: str) -> str:
    """``a`` and ``b`` wait in two namespaces, ``b`` as carol wanted, and ``over`` has ended."""

    async def fill() -> None:
        async with Database(settings_for(database_url), role="test") as database:
            rows = Rows(database)
            await rows.see(workload("a"), workload("b", namespace="other"), workload("over"))
            await rows.see(workload("over", is_deleting=True))
            await rows.reconcile("over")
            await rows.execute("INSERT INTO fluxqueues (name) VALUES ('batch')")
            await steering.steer(database, "other", ["b"], "carol", priority=7, queue="batch")

    asyncio.run(fill())
    return database_url


def run(url: str, *arguments: str) -> Result:
    """The command, with the database in its environment."""
    return CliRunner().invoke(app, ("db", *arguments), env={"DATABASE_URL": url})


def test_the_list_is_in_the_order_of_turns(url: str) -> None:
    """What has ended is not in it. Wide and JSON say more."""
    rows = [line.split() for line in run(url, "list").stdout.splitlines()]
    assert rows[0][:3] == ["JOBID", "NAMESPACE", "NAME"]
    assert [row[2] for row in rows[1:]] == ["b", "a"]
    assert len(run(url, "list", "-q", "batch").stdout.splitlines()) == 2
    assert "SUBMITTED_AT" in run(url, "list", "-o", "wide").stdout
    found = json.loads(run(url, "list", "-n", "other", "-o", "json").stdout)
    assert [(one["name"], one["priority"], one["queue"]) for one in found] == [("b", 7, "batch")]


def test_what_runs_is_listed_with_where(url: str) -> None:
    """What waits is nowhere."""

    async def match() -> None:
        async with Database(settings_for(url), role="test") as database:
            rows = Rows(database)
            await rows.see(workload("wide", request(10, cpu=1)))
            await rows.add_nodes(*(cpu_node(f"n{n}", 4) for n in (1, 2, 3)))
            await rows.match()

    asyncio.run(match())
    found = {one["name"]: one for one in json.loads(run(url, "list", "-o", "json").stdout)}
    assert found["wide"]["nodes"] == "n[1-3]"
    assert found["a"]["nodes"] == "n1"
    header, *lines = run(url, "list").stdout.splitlines()
    at = header.index("NODES")
    assert {line[at:].split()[0] for line in lines} == {"n1", "n[1-3]"}


def test_the_history_names_who_changed_a_job(url: str) -> None:
    """Each command, and the transition that followed."""
    lines = run(url, "history", "2", "-n", "other").stdout.splitlines()
    assert [line.split()[3:5] for line in lines[1:]] == [
        ["test", "Pending"],
        ["carol", "priority"],
        ["carol", "move"],
    ]


@pytest.mark.parametrize("command", ["history", "accounting"])
def test_nothing_known_is_no_answer(url: str, command: str) -> None:
    """Rather than an empty table."""
    result = run(url, command, "nobody")
    assert result.exit_code == 1
    assert "nobody: not found in namespace default" in result.output


def test_the_books_are_summed_and_shown_run_by_run(url: str) -> None:
    """What never ran is in them too."""
    found = json.loads(run(url, "accounting", "--by", "result", "-o", "json").stdout)
    assert [(one["result"], one["runs"], one["cpu_h"]) for one in found] == [("Cancelled", 1, 0)]
    assert json.loads(run(url, "accounting", "--until", "1h", "-o", "json").stdout) == []
    assert "Cancelled" in run(url, "accounting", "over").stdout


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (("accounting", "--by", "colour"), "--by"),
        (("accounting", "--since", "soon"), "--since"),
    ],
)
def test_bad_input_names_its_place(url: str, arguments: tuple[str, ...], where: str) -> None:
    """The entry point prints it and exits 2."""
    error = run(url, *arguments).exception
    assert isinstance(error, InvalidInput)
    assert error.where == where
