"""The database goes back while controller and workers run on: a failover to a replica that lags.

They see that by themselves, decide nothing on the old rows, compare rows and cluster, and go on.
"""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest

from fluxqueue.kube.resources import FLUXJOBS, PODS
from tests.e2e.database import dump, set_back
from tests.e2e.health import assert_invariants
from tests.e2e.objects import FOR_EVER, QUICK, job
from tests.e2e.space import Space
from tests.e2e.test_crashes import kill_part
from tests.support.waiting import eventually

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


async def _until_seen(space: Space, terms: int) -> None:
    async def look() -> bool:
        return await _terms(space) > terms

    await eventually(look, "a process sees that the database went back")


async def _start(space: Space, names: list[str]) -> None:
    await space.create_all(job(name, cpu="100m", run=FOR_EVER) for name in names)
    await asyncio.gather(*(space.until_state(name, "Running") for name in names))


@pytest.mark.parametrize("killed", ["", "controller", "worker-1"])
async def test_a_database_goes_back_under_running_jobs(
    space: Space, tmp_path: Path, killed: str
) -> None:
    await _start(space, [f"old-{number}" for number in range(JOBS)])
    for turn in range(ROUNDS):
        backup, given = tmp_path / f"{turn}.dump", set((await _numbers(space)).values())
        await dump(space.world.stack, backup)
        # What the backup does not know: ended, deleted, started, held.
        await space.create(job(f"brief-{turn}", cpu="100m", run=QUICK))
        await space.until_job(f"brief-{turn}")
        await space.delete(f"brief-{turn}")
        await _start(space, [f"new-{turn}-{number}" for number in range(3)])
        await space.delete(f"old-{turn}")
        await space.create(job(f"held-{turn}", wishes={"hold": "true"}))
        await space.until_state(f"held-{turn}", "Held")
        before, numbers = await _placed(space), await _numbers(space)

        terms = await _terms(space)
        await set_back(space.world.stack, backup)
        went_back_s = time.monotonic()
        if killed:
            await _until_seen(space, terms)
            await kill_part(space.world, killed)
        await space.create(job(f"probe-{turn}", cpu="100m", run=FOR_EVER))
        await space.until_state(f"probe-{turn}", "Running")
        again_s = time.monotonic() - went_back_s

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
