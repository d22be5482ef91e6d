"""A time of the cluster as the rows tell it, and its replay by the command line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import orjson
import pytest
import pytest_asyncio
from typer.testing import CliRunner

from fluxqueue.cli.main import app
from fluxqueue.db.database import Database
from fluxqueue.db.reading import recorded_days
from fluxqueue.errors import InvalidInput
from fluxqueue.policy.queue_policy import queue_policy
from fluxqueue.simulation import recorded_day
from fluxqueue.simulation.recorded_day import RecordedDay, parse_day
from fluxqueue.simulation.replay import ALL, as_recorded, replay
from tests.support.pool_model import request
from tests.support.rows import Rows, cpu_node, settings_for, workload

DAY_S = 86_400


@pytest_asyncio.fixture
async def rows(database_url: str) -> AsyncIterator[Rows]:
    """``over`` has run, ``runs`` runs, ``next`` waits, ``held`` is held, on two nodes."""
    async with Database(settings_for(database_url), role="test") as database:
        rows = Rows(database, settings=settings_for(database_url))
        await rows.add_nodes(*(cpu_node(f"n{n}", 4) for n in (1, 2)))
        await rows.see(workload("over", request(4, cpu=1, duration_s=60), user_name="ada"))
        await rows.match()
        await rows.see(workload("over", is_deleting=True))
        await rows.reconcile("over")
        await rows.see(workload("runs", request(8, cpu=1, duration_s=3600), user_name="bo"))
        await rows.match()
        await rows.see(
            workload("next", request(8, cpu=1, duration_s=60), user_name="bo"),
            workload("held", request(cpu=1, duration_s=60), held_by="author"),
        )
        await rows.match()
        yield rows


async def _read(rows: Rows, *, back_s: int = DAY_S, limit: int = 100) -> dict[str, Any]:
    now = int(await rows.value("SELECT extract(epoch FROM now())::float8"))
    found = await recorded_days.read_day(
        rows.database, since_s=now - back_s, until_s=now + 60, limit=limit
    )
    return json.loads(orjson.dumps(found, default=float))  # type: ignore[no-any-return]


async def _day(rows: Rows, **more: Any) -> RecordedDay:
    return parse_day(await _read(rows, **more), "rows")


def test_the_form_has_one_name() -> None:
    """``db`` and ``simulation`` import nothing of each other."""
    assert recorded_days.FORM == recorded_day.FORM


async def test_runs_and_what_waits(rows: Rows) -> None:
    """Each with its request and its nodes. A held job did not wait for nodes."""
    day = await _day(rows)
    by_name = {one.name: one for one in day.jobs}
    assert set(by_name) == {"over", "runs", "next"}
    over, runs, waits = by_name["over"], by_name["runs"], by_name["next"]
    assert over.ended_s is not None
    assert sum(dict(slot.resources)["cpu"] for slot in over.places) == 4
    assert not over.is_estimated
    assert [slot.node for slot in runs.places] == ["n1", "n2"]
    assert (runs.ended_s, runs.user) == (None, "bo")
    assert (waits.started_s, waits.places) == (None, ())
    assert [one.name for one in day.nodes] == ["n1", "n2"]
    assert as_recorded(day).waits[ALL].jobs == 2
    assert replay(day, queue_policy("easy")).outcome.waits[ALL].jobs == 2


async def test_jobs_without_a_row_of_their_own(rows: Rows) -> None:
    """Accounting is kept for longer: what it has stands in."""
    await rows.execute("DELETE FROM fluxjobs WHERE uid = 'over'")
    await rows.execute(
        "UPDATE accounting SET allocated_at = ended_at - interval '100 s', cpu_s = 800"
        " WHERE uid = 'over'"
    )
    over = next(one for one in (await _day(rows)).jobs if one.name == "over")
    assert over.is_estimated
    assert over.cpu_m in range(7_800, 8_001)
    assert over.request.duration_s in {100, 101}


async def test_waits_count_from_when_a_job_could_start(rows: Rows) -> None:
    """A hold before the start is no wait of the queue."""
    await rows.execute(
        "UPDATE accounting SET queued_at = queued_at - interval '2 hours' WHERE uid = 'over'"
    )
    await rows.execute(
        "INSERT INTO history (uid, jobid, actor, event, detail, at)"
        " SELECT uid, jobid, 'ada', 'Pending', '{\"from\": \"Held\"}', allocated_at"
        " FROM accounting WHERE uid = 'over'"
    )
    over = next(one for one in (await _day(rows)).jobs if one.name == "over")
    assert over.started_s is not None
    assert over.started_s - over.submitted_s in {0, 1}


async def test_what_was_before_counts_for_fair_share_only(rows: Rows) -> None:
    """A time without runs has none, and use before it is summed up."""
    await rows.execute(
        "UPDATE fluxqueues SET newcomer_points = 1000,"
        " spec = '{\"fairShare\": {\"enabled\": true}}' WHERE name = 'default'"
    )
    await rows.execute(
        "UPDATE accounting SET queued_at = now() - interval '9 hours', cpu_s = 500,"
        " allocated_at = now() - interval '9 hours', ended_at = now() - interval '8 hours'"
    )
    day = await _day(rows, back_s=3600)
    assert {one.name for one in day.jobs} == {"runs", "next"}
    assert 450 < day.used["default", "ada"] <= 500


async def test_damaged_rows_do_not_fail_the_statement(rows: Rows) -> None:
    """Amounts that are no numbers count as nothing."""
    await rows.execute(
        'UPDATE allocation_slots SET resources = \'{"cpu": "much", "memory": 5}\' WHERE number = 0'
    )
    await rows.execute(
        "INSERT INTO foreign_usage (pod_uid, namespace, name, node, resources, is_permanent)"
        " VALUES ('a', 'x', 'a', 'n1', '\"\"', true), ('b', 'x', 'b', 'n1', '{\"cpu\": 1}', true)"
    )
    day = await _day(rows)
    assert day.unmanaged == {"n1": {"cpu": 1}}


async def test_too_many_jobs_are_refused(rows: Rows) -> None:
    with pytest.raises(InvalidInput, match=r"until: there are more than 2 jobs.*Fix: replay"):
        await _read(rows, limit=2)


@pytest.mark.long("starts processes of its own, for seconds of processor time")
async def test_the_command_line(rows: Rows, database_url: str, tmp_path: Path) -> None:
    """From the database, into files, and from the file."""
    kept, swf, chart = (tmp_path / name for name in ("day.json", "day.swf", "day.svg"))
    told = await asyncio.to_thread(
        _run,
        *("--from-history", "--from", "1h", "--policy", "fcfs", "--database-url", database_url),
        *("--save-history", str(kept), "--to-swf", str(swf), "-o", str(chart)),
    )
    assert "policy fcfs" in told
    assert "use of cores" in told
    assert swf.read_text().startswith("; Version: 2.2")
    assert chart.read_bytes().startswith(b"<?xml")
    again = _run("--history", str(kept), "--policy", "fcfs")
    assert [line for line in told.splitlines() if not line.startswith("wrote")] == (
        again.splitlines()
    )
    more = _run("--history", str(kept), "--add-nodes", "2:n1", "--queue-weight", "default=x2")
    assert "2 more nodes like n1, weight of default times 2" in more


def _run(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["sim", *arguments])
    assert result.exit_code == 0, (result.output, result.exception)
    return result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--from", "tuesday"), "--from = 'tuesday': is not a time. Fix: write 2030-01-31T08"),
        (("--from", "2030-13-77"), "--from = '2030-13-77': is not a time. Fix: "),
        (("--from", "9" * 400), ": is not a time. Fix: "),
        (("--from", "2999-01-01"), "from: is not in the past. Fix: give a time before now"),
        (("--from", "0001-01-01"), "--from = '0001-01-01': is not a time of a cluster. Fix: "),
        (("--from", "1h", "--until", "2h"), "until: is not after `from`. Fix: give a later time"),
        (("--from", "90d"), "until: is more than 31 days after `from`. Fix: "),
        (("--from", "1h", "--until", "\u202e1h"), "--until"),
        (("--history", "/nowhere/x.json"), "/nowhere/x.json: cannot be read: No such file"),
        (("--history", "x", "--from", "1d"), "--from: does not go with --history"),
        (("--from", "1h"), "DATABASE_URL: no database is configured. Fix: "),
    ],
)
def test_times_that_are_not_usable(
    arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Field, value and way out."""
    monkeypatch.delenv("DATABASE_URL", raising=False)
    result = CliRunner().invoke(app, ["sim", "--from-history", *arguments])
    assert isinstance(result.exception, InvalidInput)
    assert message in str(result.exception)
    assert ". Fix: " in str(result.exception)


def test_options_of_a_replay_need_one() -> None:
    """They would have no effect on a drawn workload."""
    result = CliRunner().invoke(app, ["sim", "--add-nodes", "1:n0"])
    assert isinstance(result.exception, InvalidInput)
    assert "--add-nodes" in str(result.exception)
    assert "Fix: add --from-history" in str(result.exception)


def test_a_file_that_is_no_history(tmp_path: Path) -> None:
    file = tmp_path / "day.json"
    file.write_text("{")
    result = CliRunner().invoke(app, ["sim", "--history", str(file)])
    assert "is not JSON" in str(result.exception)
    assert "--save-history" in str(result.exception)
