"""Any part may die at any moment: nothing is lost, nothing runs twice, nothing leaks."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from fluxqueue.errors import ApiUnavailable
from tests.support.e2e.health import assert_invariants
from tests.support.e2e.kills import ALL_DONE_S, VICTIMS, kill_part
from tests.support.e2e.objects import Obj, job
from tests.support.e2e.recording import Recording
from tests.support.e2e.space import Space, create_with_patience
from tests.support.e2e.world import World
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow

WAVE = 10


def _wave(victim: str) -> list[Obj]:
    """Ten Jobs of mixed size. Half of them Indexed, so that two pods of one slot would be seen."""
    return [
        job(
            f"{victim}-{n}",
            pods=1 + n % 4,
            cpu=str(2 + n % 7),
            run={"duration": f"{300 + 200 * (n % 5)}ms"},
            **({"completionMode": "Indexed"} if n % 2 else {}),
        )
        for n in range(WAVE)
    ]


def _assert_nothing_ran_twice(seen: Recording) -> None:
    """No two pods of one index at once, never more pods than slots, no node over capacity."""
    for using in seen.in_use():
        indexed = [(pod.owner, pod.index) for pod in using if pod.index is not None]
        assert len(indexed) == len(set(indexed)), f"an index ran twice at once: {using}"
    for owner in {pod.owner for pod in seen.seen().values()}:
        assert seen.most_at_once(owner) <= 1 + int(owner.rpartition("-")[2]) % 4, owner
    capacity = {"gpu-1": 8_000, "gpu-2": 8_000}
    over = {n: cpu for n, cpu in seen.peak_cpu_m().items() if cpu > capacity.get(n, 16_000)}
    assert not over


@pytest.mark.long("each part in turn dies under ten Jobs of its own")
async def test_fifty_jobs_survive_the_death_of_every_part(space: Space) -> None:
    """kill -9 of each part in turn while ten Jobs of its own run: every Job completes."""
    names: list[str] = []
    async with space.recording() as seen:
        for victim, kill in VICTIMS.items():
            for body in _wave(victim):
                await create_with_patience(space, body)
                names.append(body["metadata"]["name"])
            await seen.until(
                lambda r, victim=victim: any(  # type: ignore[misc]
                    pod.owner.startswith(victim) for pod in r.present() if pod.is_using
                ),
                f"pods of {victim}'s wave run",
            )
            await kill(space.world)
        assert len(names) == 50
        await space.until_all_complete(names, timeout_s=ALL_DONE_S)
        _assert_nothing_ran_twice(seen)
    await _until_told(space, names)
    await assert_invariants(space.world)


async def _until_told(space: Space, names: list[str]) -> None:
    for name in names:
        await space.until_state(name, "Completed")


@contextmanager
def _frozen(pid: int) -> Iterator[None]:
    """A process that is stopped and does not know it."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def _matcher(world: World) -> tuple[str, int]:
    """The holder of the matcher's role, and its term."""
    sql = "SELECT holder, term FROM leadership WHERE role = 'matcher' AND expires_at > now()"

    async def held() -> list[dict[str, object]]:
        return await world.rows(sql)

    (row,) = await eventually(held, "somebody holds the matcher's role")
    return str(row["holder"]), int(str(row["term"]))


@pytest.mark.long("the lease of a frozen process has to end")
async def test_a_frozen_matcher_is_replaced_and_fenced(space: Space) -> None:
    """SIGSTOP in the middle of a burst: another matches on. SIGCONT has no second effect."""
    world = space.world
    holder, term = await _matcher(world)
    names = [f"burst-{n}" for n in range(20)]
    async with space.recording() as seen:
        await space.create_all(job(name, pods=1 + n % 4, cpu="4") for n, name in enumerate(names))
        with _frozen(world.pid(holder)):
            await space.until_all_complete(names, timeout_s=ALL_DONE_S)
            other, later = await _matcher(world)
            assert other != holder
            assert later > term
        more = [f"after-{n}" for n in range(10)]
        await space.create_all(job(name, pods=1 + n % 4, cpu="4") for n, name in enumerate(more))
        await space.until_all_complete(more)
        _assert_nothing_ran_twice(seen)
    terms = [row["term"] for row in await world.rows("SELECT term FROM allocations ORDER BY id")]
    assert terms == sorted(terms), "a decision was made under a term that was over"
    # What the frozen one had taken to tell is another's only when its claim has run out.
    await _until_told(space, [*names, *more])
    await assert_invariants(world)


async def test_nothing_slips_past_a_dead_webhook(space: Space) -> None:
    """While it is away Jobs are refused. A second try is served when it is back."""

    async def is_refused() -> bool:
        """It may be back before the API server asks. Then what it lets pass is taken in."""
        await kill_part(space.world, "webhook")
        try:
            made = await space.create(job("patient"), dry_run=True)
        except ApiUnavailable as error:
            return "failed calling webhook" in str(error)
        assert made["spec"]["suspend"] is True
        return False

    await eventually(is_refused, "a Job is refused")
    made = await create_with_patience(space, job("patient"))
    assert made["spec"]["suspend"] is True
    await space.until_job("patient")


async def test_the_cluster_goes_on_while_the_database_is_away(space: Space) -> None:
    """Jobs are admitted without Postgres, and queued when it is back."""
    postgres = space.world.stack.postgres
    assert postgres is not None
    await asyncio.to_thread(postgres.kill)
    made = await space.create(job("meanwhile"))
    assert made["spec"]["suspend"] is True
    await space.until_job("meanwhile")
