"""The time machine over what a live system recorded: the same policy gives the same order."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fluxqueue.cli.main import app
from fluxqueue.policy.queue_policy import queue_policy
from fluxqueue.simulation.recorded_day import RecordedDay, parse_day
from fluxqueue.simulation.replay import ALL, Replay, as_recorded, replay
from fluxqueue.simulation.what_changes import parse_changes
from tests.support.e2e.objects import job
from tests.support.e2e.space import Space

pytestmark = [pytest.mark.slow, pytest.mark.long("ten Jobs one after the other")]
JOBS = 10


async def test_a_replay_of_a_live_system(space: Space, tmp_path: Path) -> None:
    """Ten Jobs that each need the whole pool, and what more nodes would have done."""
    names = [f"turn-{number}" for number in range(JOBS)]
    for name in names:
        await space.create(job(name, pods=4, cpu="16", pool="main", wishes={"duration": "1m"}))
    await space.until_all_complete(names)
    await space.until_nothing_pending()

    kept = tmp_path / "day.json"
    told = await asyncio.to_thread(
        CliRunner().invoke,
        app,
        ["sim", "--from-history", "--from", "10m", "--save-history", str(kept),
         "--database-url", space.world.stack.database_url],
    )  # fmt: skip
    assert told.exit_code == 0, told.exception
    assert "use of cores" in told.output
    day = _only(parse_day(json.loads(kept.read_text()), "day.json"), space.name)
    assert len(day.jobs) == JOBS
    began_s = time.monotonic()
    again = await asyncio.to_thread(replay, day, queue_policy("easy"))
    assert time.monotonic() - began_s < 20
    recorded = sorted(day.jobs, key=lambda one: (one.started_s or 0, one.jobid))
    assert _order(again) == [one.jobid for one in recorded]
    moved = [abs((one.started_s or 0) - (one.job.started_s or 0)) for one in again.jobs]
    span_s = max(one.ended_s or 0 for one in day.jobs) - min(one.submitted_s for one in day.jobs)
    assert max(moved) <= max(JOBS, span_s / 2), "a replay leaves out starts of pods only"

    more = replay(day, queue_policy("easy"), parse_changes("", (f"8:{_node(day)}",), ()))
    assert more.outcome.waits[ALL].mean_s <= again.outcome.waits[ALL].mean_s
    assert more.outcome.waits[ALL].mean_s < as_recorded(day).waits[ALL].mean_s


def _only(day: RecordedDay, namespace: str) -> RecordedDay:
    """Return the day with the jobs of this test."""
    return replace(day, jobs=tuple(one for one in day.jobs if one.namespace == namespace))


def _order(found: Replay) -> list[int]:
    in_order = sorted(found.jobs, key=lambda one: (one.started_s or 0, one.job.jobid))
    return [one.job.jobid for one in in_order]


def _node(day: RecordedDay) -> str:
    return day.jobs[0].places[0].node
