"""What goes next: priority, submission order, gangs, backfill, and what never can."""

from __future__ import annotations

import pytest

from tests.support.e2e.health import assert_invariants
from tests.support.e2e.objects import FOR_EVER, bare_pod, job
from tests.support.e2e.space import WAITING, Space
from tests.support.waiting import eventually, until


async def _block(space: Space, cpu: str = "16") -> None:
    """Occupy the node ``single`` until the Job ``blocker`` is deleted."""
    await space.create(job("blocker", cpu=cpu, pool="single", run=FOR_EVER))
    await space.until_state("blocker", "Running")


async def test_higher_priority_goes_first(space: Space) -> None:
    """Whatever was submitted first. Without a maxPriority of the queue, 10 counts as 0."""
    await _block(space)
    async with space.recording() as seen:
        for name, priority in (("low", "-5"), ("middle", "-1"), ("high", "10")):
            await space.create(job(name, cpu="16", pool="single", wishes={"priority": priority}))
            await space.until_state(name, *WAITING)
        await space.delete("blocker")
        await space.until_all_complete(["low", "middle", "high"])
        assert seen.order() == ["blocker", "high", "middle", "low"]


@pytest.mark.long("seconds on a whole cluster. The usual case of its module stays")
async def test_equal_priority_goes_in_the_order_of_submission(space: Space) -> None:
    """First come, first served."""
    await _block(space)
    names = [f"turn-{n}" for n in (3, 1, 2)]
    async with space.recording() as seen:
        for name in names:
            await space.create(job(name, cpu="16", pool="single"))
            await space.until_state(name, *WAITING)
        await space.delete("blocker")
        await space.until_all_complete(names)
        assert seen.order() == ["blocker", *names]


async def test_two_gangs_that_need_everything_never_interleave(space: Space) -> None:
    """All or nothing: the second starts when the first is gone, not when some of it is."""
    gangs = ["gang-a", "gang-b"]
    async with space.recording() as seen:
        await space.create_all(
            job(name, pods=8, cpu="8", pool="main", run=FOR_EVER) for name in gangs
        )
        for name in gangs:
            await seen.until(
                lambda r, name=name: (  # type: ignore[misc]
                    [pod.phase for pod in r.present(name)] == ["Running"] * 8
                ),
                f"eight running pods of {name}",
            )
            await space.delete(name)
    assert seen.order() == gangs
    assert not seen.overlap(*gangs)


async def test_a_gang_that_does_not_fit_whole_starts_no_pod(space: Space) -> None:
    """Room for one of two pods is no reason to start one."""
    await _block(space, cpu="8")
    await space.create(job("gang", pods=2, cpu="8", pool="single"))
    await space.until_state("gang", *WAITING)
    await space.create(job("after", cpu="1", pool="main"))
    await space.until_job("after")  # the queue has looked at both
    assert not await space.pods("gang")
    await space.delete("blocker")
    await space.until_job("gang")


async def test_backfill_fills_the_gap_and_does_not_delay_the_head(space: Space) -> None:
    """What ends before the reserved start may go first. What would delay it may not."""
    async with space.recording() as seen:
        first = job("first", cpu="12", pool="single", run=FOR_EVER, activeDeadlineSeconds=3000)
        await space.create(first)
        await space.until_state("first", "Running")
        await space.create(job("head", cpu="16", pool="single", activeDeadlineSeconds=600))
        head = await space.until_state("head", "Reserved")
        assert head["status"]["expectedStart"]
        await space.create(job("long", cpu="4", pool="single", activeDeadlineSeconds=36000))
        await space.create(job("short", cpu="4", pool="single", activeDeadlineSeconds=300))
        await space.until_job("short")
        for waiting in ("head", "long"):
            await space.until_state(waiting, *WAITING)
        await space.delete("first")
        await space.until_all_complete(["head", "long"])
    assert seen.order() == ["first", "short", "head", "long"]
    assert seen.overlap("first", "short")


async def test_a_deleted_waiting_job_leaves_the_queue_at_once(space: Space) -> None:
    """Nothing waits for it any more, and psql does not show it."""
    await _block(space)
    await space.create_all(job(name, cpu="16", pool="single") for name in ("goes", "stays"))
    for name in ("goes", "stays"):
        await space.until_state(name, *WAITING)
    await space.delete("goes")

    async def queued() -> list[str]:
        sql = "SELECT name FROM queue WHERE namespace = :namespace"
        return [row["name"] for row in await space.world.rows(sql, namespace=space.name)]

    await until(queued, lambda found: found == ["stays"], "only one Job in the queue")
    await space.delete("blocker")
    await space.until_job("stays")


async def test_a_deleted_running_job_gives_back_when_its_pods_are_gone(space: Space) -> None:
    """Its pods take two seconds to stop. Until then their cores are theirs."""
    async with space.recording() as seen:
        stubborn = {**FOR_EVER, "termination": "2s"}
        patient = {"terminationGracePeriodSeconds": 10}
        await space.create(
            job("stubborn", pods=2, cpu="8", pool="single", run=stubborn, pod=patient)
        )
        await seen.until(
            lambda r: [p.phase for p in r.present("stubborn")] == ["Running"] * 2, "two pods"
        )
        await space.create(job("next", cpu="16", pool="single"))
        await space.until_state("next", *WAITING)
        await space.delete("stubborn")
        await space.until_job("next")
    assert not seen.overlap("stubborn", "next")
    assert seen.peak_cpu_m() == {"single": 16_000}


async def test_what_no_node_can_hold_is_said_at_once_and_blocks_nobody(space: Space) -> None:
    """Unsatisfiable, in words, on the FluxJob and as an event on the Job, whatever waits before."""
    await _block(space)
    await space.create(job("waits", cpu="16", pool="single"))
    await space.until_state("waits", *WAITING)
    made = await space.create(job("huge", cpu="40"))
    told = await space.until_state("huge", "Unsatisfiable")
    assert "needs 40 cpu on one node; the largest of" in told["status"]["reason"]

    async def event() -> list[str]:
        found = await space.events_on(made["metadata"]["uid"])
        return [one["message"] for one in found if one["reason"] == "Unsatisfiable"]

    assert "needs 40 cpu on one node" in (await eventually(event, "an event on the Job"))[0]
    await space.create(job("small", pool="main"))
    await space.until_job("small")
    await assert_invariants(space.world)
    await space.delete("blocker")
    await space.until_job("waits")


async def test_a_gang_larger_than_the_cluster_is_unsatisfiable(space: Space) -> None:
    """Every pod alone would fit. All together never will."""
    await space.create(job("many", pods=9, cpu="9", pool="main"))
    told = await space.until_state("many", "Unsatisfiable")
    assert "needs 9 slots of 9 cpu; the empty cluster holds" in told["status"]["reason"]


async def test_an_impossible_pod_is_unsatisfiable_too(space: Space) -> None:
    """Bare Pods get the same reason."""
    await space.create(bare_pod("huge", cpu="40"))
    told = await space.until_state("huge", "Unsatisfiable")
    assert "needs 40 cpu" in told["status"]["reason"]


async def test_a_name_can_be_used_again_right_after_its_deletion(space: Space) -> None:
    """The new Job is another workload, with a FluxJob of its own."""
    old = await space.create(job("again", cpu="16", pool="single", run=FOR_EVER))
    await space.until_state("again", "Running")
    await space.delete("again")
    new = await space.create(job("again", cpu="16", pool="single"))
    assert new["metadata"]["uid"] != old["metadata"]["uid"]
    await space.until_job("again")
    told = await space.until_state("again", "Completed")
    assert told["spec"]["workload"]["uid"] == new["metadata"]["uid"]
