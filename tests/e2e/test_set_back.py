"""The database goes back while controller and workers run on: a failover to a replica that lags.

They see that by themselves, decide nothing on the old rows, compare rows and cluster, and go on.
It becomes the copy before the last work, or one from before an earlier turn. The first of these
knows no job at all.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from fluxqueue.kube.resources import FLUXJOBS, PODS
from tests.support.e2e.database import dump, set_back
from tests.support.e2e.health import assert_invariants
from tests.support.e2e.kills import kill_part
from tests.support.e2e.objects import FOR_EVER, QUICK, job
from tests.support.e2e.space import Space
from tests.support.figures import write_down
from tests.support.waiting import until

pytestmark = pytest.mark.slow

ROUNDS = int(os.environ.get("FLUXQUEUE_TEST_SET_BACK", "1"))
JOBS = int(os.environ.get("FLUXQUEUE_TEST_SET_BACK_JOBS", "12"))
"""How many jobs run meanwhile."""
AGAIN_S = 10.0
"""Decisions go on within this time. A loaded machine gets three times as much in the test."""


async def _placed(space: Space) -> dict[str, tuple[str, str]]:
    """Node and jobid of each pod that runs, by name."""
    pods = (await space.client.list(PODS, space.name)).items
    return {
        pod["metadata"]["name"]: (
            pod["spec"]["nodeName"],
            pod["metadata"]["labels"].get("fluxqueue/jobid", ""),
        )
        for pod in pods
        if pod["spec"].get("nodeName") and not pod["metadata"].get("deletionTimestamp")
    }


async def _numbers(space: Space) -> dict[str, int]:
    fluxjobs = (await space.client.list(FLUXJOBS, space.name)).items
    found = ((one["metadata"]["name"], one.get("status") or {}) for one in fluxjobs)
    return {name: status["jobid"] for name, status in found if "jobid" in status}


async def _terms(space: Space) -> int:
    (row,) = await space.world.rows("SELECT sum(term)::int AS terms FROM leadership")
    return int(row["terms"])


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of the database, when it was made, and how many terms its leaders had had."""

    file: Path
    made_s: float
    terms: int


async def _copy(space: Space, file: Path) -> Copy:
    await dump(space.world.stack, file)
    return Copy(file, time.monotonic(), await _terms(space))


async def _until_seen(space: Space, copy: Copy) -> float:
    """Return when a process saw that the database went back."""

    await until(
        lambda: _terms(space),
        lambda found: found > copy.terms,
        "a process sees that the database went back",
    )
    return time.monotonic()


async def _start(space: Space, names: list[str]) -> None:
    await space.create_all(job(name, cpu="100m", run=FOR_EVER) for name in names)
    await asyncio.gather(*(space.until_state(name, "Running") for name in names))


@pytest.mark.cases_long("a part is killed in the middle of it")
@pytest.mark.parametrize("killed", ["", "controller", "worker-1"])
async def test_a_database_goes_back_under_running_jobs(
    space: Space, tmp_path: Path, killed: str
) -> None:
    copies, chance = [await _copy(space, tmp_path / "first.dump")], random.Random(killed)
    await _start(space, [f"old-{number}" for number in range(JOBS)])
    for turn in range(ROUNDS):
        given = set((await _numbers(space)).values())
        copies.append(await _copy(space, tmp_path / f"{turn}.dump"))
        # What the copy does not know: ended, deleted, started, held.
        await space.create(job(f"brief-{turn}", cpu="100m", run=QUICK))
        await space.until_job(f"brief-{turn}")
        await space.delete(f"brief-{turn}")
        await _start(space, [f"new-{turn}-{number}" for number in range(3)])
        await space.delete(f"old-{turn}")
        await space.create(job(f"held-{turn}", wishes={"hold": "true"}))
        await space.until_state(f"held-{turn}", "Held")
        before, numbers = await _placed(space), await _numbers(space)

        copy = copies[-1] if killed and not turn else chance.choice(copies[:-1])
        await set_back(space.world.stack, copy.file)
        went_back_s = time.monotonic()
        seeing = asyncio.create_task(_until_seen(space, copy))
        if killed:
            await seeing
            await kill_part(space.world, killed)
        await space.create(job(f"probe-{turn}", cpu="100m", run=FOR_EVER))
        await space.until_state(f"probe-{turn}", "Running")
        again_s = time.monotonic() - await seeing
        by_s = went_back_s - copy.made_s
        print(f"back by {by_s:.0f} s, decides again {again_s:.1f} s after it is seen")

        after, all_numbers = await _placed(space), await _numbers(space)
        gone = {name for name in before if name.startswith(f"old-{turn}-")}
        assert {name: after.get(name) for name in before if name not in gone} == {
            name: place for name, place in before.items() if name not in gone
        }
        assert {name: all_numbers[name] for name in numbers if name in all_numbers} == {
            name: number for name, number in numbers.items() if name in all_numbers
        }
        assert len(set(all_numbers.values())) == len(all_numbers), "two jobs have one number"
        assert all_numbers[f"probe-{turn}-job"] > max(given | set(numbers.values()))
        reason = (await space.fluxjob(f"held-{turn}") or {})["status"]["reason"]
        assert "annotation" in reason
        assert killed or again_s < 3 * AGAIN_S, f"{again_s:.1f} s until decisions went on"
        await assert_invariants(space.world)
        write_down("set-back", by=by_s, again=again_s, killed=killed)
