"""Workloads run: on the nodes their FluxJob names, never more than fit, to their end."""

from __future__ import annotations

import pytest

from fluxqueue.fluxjob.hostlist import expand
from fluxqueue.kube.resources import JOBS, PODS
from fluxqueue.workload.labels import MANAGED
from tests.support.e2e.health import assert_invariants
from tests.support.e2e.objects import FOR_EVER, QUICK, bare_pod, job
from tests.support.e2e.space import Space
from tests.support.waiting import eventually


async def test_a_job_runs_on_exactly_the_nodes_its_fluxjob_names(space: Space) -> None:
    """The decision is the truth: pods are bound where it says, and nowhere else."""
    await space.create(job("gang", pods=4, cpu="12", run=FOR_EVER))
    async with space.recording() as seen:
        await seen.until(
            lambda r: [p.phase for p in r.present("gang")] == ["Running"] * 4, "four running pods"
        )
        fluxjob = await space.until_state("gang", "Running")
        assert sorted(expand(fluxjob["status"]["nodes"])) == sorted(
            str(pod.node) for pod in seen.present("gang")
        )
        await assert_invariants(space.world)


async def test_four_pods_of_8_cores_on_16_cores_run_two_at_a_time(space: Space) -> None:
    """The first demo of the lineage: two run, two wait, all complete."""
    names = [f"pi-{n}" for n in range(4)]
    async with space.recording() as seen:
        await space.create_all(job(name, cpu="8", pool="single", run=FOR_EVER) for name in names)
        for pair in (names[:2], names[2:]):
            await seen.until(
                lambda r, pair=pair: (  # type: ignore[misc]
                    [p.phase for name in pair for p in r.present(name)] == ["Running"] * 2
                ),
                f"{pair} run",
            )
            for name in pair:
                await space.finish(name)
        await space.until_all_complete(names)
    assert len(seen.seen()) == 4
    assert seen.most_at_once() == 2
    assert seen.peak_cpu_m() == {"single": 16_000}


async def test_more_completions_than_parallelism_run_in_the_same_slots(space: Space) -> None:
    """A Job of many pods takes as many slots as run at once, and keeps them until the end."""
    async with space.recording() as seen:
        await space.create(job("rounds", pods=2, cpu="8", pool="single", completions=5))
        done = await space.until_job("rounds")
    assert done["status"]["succeeded"] == 5
    assert seen.most_at_once() <= 2


async def test_each_index_of_an_indexed_job_runs_once(space: Space) -> None:
    """Indexes are Kubernetes' own. Every one runs, each in its slot."""
    async with space.recording() as seen:
        await space.create(job("indexed", pods=6, cpu="4", completionMode="Indexed"))
        done = await space.until_job("indexed")
    assert done["status"]["completedIndexes"] == "0-5"
    assert sorted(str(pod.index) for pod in seen.seen("indexed").values()) == list("012345")


async def test_a_failed_pods_slot_goes_to_its_replacement(space: Space) -> None:
    """An index fails and is replaced on the same node. No other job gets the slot meanwhile."""
    async with space.recording() as seen:
        body = job(
            "fails",
            pods=2,
            cpu="16",
            pool="main",
            run={**QUICK, "fail-times": "1"},
            completionMode="Indexed",
            backoffLimit=6,
        )
        await space.create(body)
        done = await space.until_job("fails")
    assert done["status"]["failed"] == 2
    nodes_of = {
        index: {pod.node for pod in seen.seen("fails").values() if pod.index == index}
        for index in ("0", "1")
    }
    assert [len(nodes) for nodes in nodes_of.values()] == [1, 1]
    assert nodes_of["0"] != nodes_of["1"]
    assert seen.most_at_once() <= 2


async def test_a_job_that_fails_for_good_gives_everything_back(space: Space) -> None:
    """backoffLimit ends it. The Job behind it starts."""
    await space.create(
        job("bad", cpu="16", pool="single", run={**QUICK, "exit-code": "1"}, backoffLimit=0)
    )
    await space.create(job("next", cpu="16", pool="single"))
    await space.until_job("bad", "Failed")
    await space.until_job("next")
    assert (await space.until_state("bad", "Failed"))["status"]["endTime"]


async def test_a_slot_that_is_no_longer_needed_is_returned_before_the_end(space: Space) -> None:
    """With one completion left of three, the second slot serves the next Job meanwhile."""
    async with space.recording() as seen:
        three = job("three", pods=2, cpu="8", pool="single", run=FOR_EVER, completions=3)
        await space.create(three)
        await space.create(job("next", cpu="8", pool="single", run=FOR_EVER))
        await space.until_running("three", 2)
        await space.finish("three")
        await seen.until(
            lambda r: all(
                sum(one.phase == "Running" for one in r.present(name)) == 1
                for name in ("three", "next")
            ),
            "the third pod runs beside the next Job",
        )
        await space.finish("three")
        await space.until_job("three")
    assert seen.peak_cpu_m() == {"single": 16_000}


async def test_a_bare_pod_is_a_workload_of_one(space: Space) -> None:
    """It waits for room like a Job, runs where its FluxJob says, and ends."""
    await space.create(job("first", cpu="16", pool="single", run=FOR_EVER))
    await space.until_state("first", "Running")
    await space.create(bare_pod("solo", cpu="4", nodeSelector={"pool": "single"}))
    await space.until_state("solo", "Pending", "Reserved")
    pod = await space.client.get(PODS, space.name, "solo")
    assert pod["spec"]["schedulingGates"] == [{"name": "fluxqueue"}]
    await space.delete("first")
    fluxjob = await space.until_state("solo", "Completed")
    pod = await space.client.get(PODS, space.name, "solo")
    assert (pod["status"]["phase"], pod["spec"]["nodeName"]) == ("Succeeded", "single")
    assert fluxjob["status"]["nodes"] == "single"


async def test_a_job_its_author_suspended_is_held_until_its_author_lets_it_go(
    space: Space,
) -> None:
    """It is not ours to unsuspend, however much room there is."""
    await space.create(job("held", suspend=True))
    await space.until_state("held", "Held")
    await space.create(job("other"))
    await space.until_job("other")  # the queue has gone past it
    held = await space.fluxjob("held")
    assert held is not None
    assert held["status"]["state"] == "Held"
    assert not await space.pods("held")
    await _unsuspend(space, "held")
    await space.until_job("held")


async def test_a_job_let_go_while_others_run_is_suspended_until_its_turn(space: Space) -> None:
    """Its deadline must not run while it waits, and no pod of it exists."""
    await space.create(job("first", cpu="16", pool="single", run=FOR_EVER))
    await space.until_state("first", "Running")
    await space.create(job("held", cpu="16", pool="single", suspend=True))
    await space.until_state("held", "Held")
    await _unsuspend(space, "held")
    await space.until_state("held", "Pending", "Reserved")

    async def is_suspended_again() -> bool:
        found = await space.client.get(JOBS, space.name, "held")
        return bool(found["spec"]["suspend"]) and not await space.pods("held")

    await space.until_true(is_suspended_again, "the Job waits suspended")
    await space.delete("first")
    await space.until_job("held")


async def test_a_job_without_its_label_goes_on(space: Space) -> None:
    """We watch those that have it: its removal neither strands a Job nor frees its node."""
    off = {"metadata": {"labels": {MANAGED: None}}}
    for name in ("runs", "waits"):
        await space.create(job(name, cpu="16", pool="single", run=FOR_EVER))
    await space.until_state("runs", "Running")
    await space.until_state("waits", "Pending", "Reserved")
    for name in ("runs", "waits"):
        await space.client.patch(JOBS, space.name, name, off)

        async def is_labelled() -> bool:
            found = await space.client.get(JOBS, space.name, name)  # noqa: B023
            return (found["metadata"].get("labels") or {}).get(MANAGED) == "true"

        await space.until_true(is_labelled, f"{name} bears its label again")
    assert await space.pods("runs")
    assert not await space.pods("waits")
    await space.delete("runs")
    await space.until_state("waits", "Running")
    await space.delete("waits")


async def _unsuspend(space: Space, name: str) -> None:
    await space.client.patch(JOBS, space.name, name, {"spec": {"suspend": False}})


@pytest.mark.long("seconds on a whole cluster. The usual case of its module stays")
async def test_a_burst_of_jobs_all_complete(space: Space) -> None:
    """Thirty Jobs at once: nothing is lost, no node is ever over its capacity."""
    async with space.recording() as seen:
        names = [f"burst-{n}" for n in range(30)]
        await space.create_all(
            job(name, pods=1 + n % 4, cpu=str(1 + n % 8)) for n, name in enumerate(names)
        )
        await space.until_all_complete(names)

        async def all_told() -> bool:
            return all(
                one is not None and one["status"]["state"] == "Completed"
                for one in [await space.fluxjob(name) for name in names]
            )

        await eventually(all_told, "thirty FluxJobs Completed")
    over = {node: cpu for node, cpu in seen.peak_cpu_m().items() if cpu > 16_000}
    assert not over
