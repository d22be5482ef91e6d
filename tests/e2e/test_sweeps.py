"""Jobs with independent pods: each pod takes its turn, and never more than N run at once."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.errors import Invalid
from fluxqueue.kube.resources import PODS
from tests.support.e2e.group_members import until_reason
from tests.support.e2e.health import assert_invariants
from tests.support.e2e.kills import ALL_DONE_S, VICTIMS
from tests.support.e2e.objects import FOR_EVER, Obj, bare_pod, job
from tests.support.e2e.queues import Queues
from tests.support.e2e.recording import Recording
from tests.support.e2e.replica_sets import until_held
from tests.support.e2e.space import Space
from tests.support.waiting import eventually

SINGLE = {"pool": "single"}
"""One node of 16 cpu."""


def sweep(name: str, *, tasks: int, at_once: int, **more: Any) -> Obj:
    """Make a Job of ``tasks`` independent pods, ``at_once`` of which run at the same time."""
    wishes = {"gang": "false", **more.pop("wishes", {})}
    return job(
        name,
        pods=at_once,
        wishes=wishes,
        completions=tasks,
        completionMode="Indexed",
        **SINGLE,
        **more,
    )


async def slots(space: Space, name: str) -> list[dict[str, Any]]:
    """Return the rows of the slots of a Job, given back or not."""
    return await space.world.rows(
        "SELECT s.state FROM allocation_slots s JOIN allocations a ON a.id = s.allocation_id"
        " JOIN fluxjobs f USING (uid) WHERE f.namespace = :namespace AND f.name = :name",
        namespace=space.name,
        name=f"{name}-job",
    )


async def filler(space: Space, cpu: str) -> None:
    """Fill a part of the node until the pod is deleted."""
    pod = bare_pod("filler", cpu=cpu, run=FOR_EVER, nodeSelector=SINGLE)
    await space.create(pod)
    await space.until_state("filler", "Running")


async def test_a_sweep_starts_with_what_fits_and_grows(space: Space) -> None:
    """A gang of this size would wait for the whole node."""
    await filler(space, "8")
    await space.create(sweep("x", tasks=6, at_once=4, cpu="4", run=FOR_EVER))
    await until_reason(space, "x", "Running", "some of its pods wait for a slot")
    await until_held(space, 2 + 1)
    found = await space.fluxjob("x")
    assert found is not None
    assert found["spec"]["size"] == 1, "one pod is enough to start"
    await space.delete("filler", PODS)
    await until_held(space, 4)

    async def run_four() -> bool:
        phases = [pod["status"].get("phase") for pod in await space.pods("x")]
        return phases.count("Running") == 4

    await eventually(run_four, "4 pods run")

    async def end() -> bool:
        await space.finish("x")
        found = await space.fluxjob("x")
        return found is not None and found["status"].get("state") == "Completed"

    await eventually(end, "all tasks have run")
    await until_held(space, 0)
    (row,) = await space.world.rows(
        "SELECT cpu_s::float8 AS cpu_s, size, result FROM accounting a"
        " WHERE a.namespace = :namespace AND a.name = 'x'",
        namespace=space.name,
    )
    assert row["result"] == "Completed"
    assert row["cpu_s"] > 0


@pytest.mark.long("seconds on a whole cluster. The usual case of its module stays")
async def test_further_pods_come_in_their_turn(space: Space) -> None:
    """Work of higher priority starts as soon as a task ends. The sweep keeps one slot."""
    async with space.recording() as seen:
        low = {"wishes": {"priority": "-100"}, "run": {"duration": "1500ms"}}
        await space.create(sweep("x", tasks=12, at_once=4, cpu="4", **low))
        await until_held(space, 4)
        await space.create(job("urgent", cpu="8", run={"duration": "300ms"}, **SINGLE))
        await space.until_all_complete(["urgent"])
        ended = sum(pod["status"].get("phase") == "Succeeded" for pod in await space.pods("x"))
        assert ended < 12, "it did not wait for the end of the sweep"
        await space.until_all_complete(["x"])
        assert seen.most_at_once("x") <= 4
        assert_each_index_ran_once(seen, "x", 12)
    assert len(await slots(space, "x")) <= 12


def assert_each_index_ran_once(seen: Recording, name: str, tasks: int) -> None:
    """Check that no index ran twice at the same time, and that all of them ran."""
    for using in seen.in_use():
        indexes = [pod.index for pod in using if pod.owner == name]
        assert len(indexes) == len(set(indexes)), f"an index ran twice at once: {using}"
    ran = {pod.index for pod in seen.seen().values() if pod.owner == name}
    assert ran == {str(index) for index in range(tasks)}


async def test_each_task_counts_where_jobs_are_limited(space: Space) -> None:
    """``perUser.jobs`` of a queue is about tasks, and the reason names the limit."""
    queues = Queues(space)
    await queues.make("few", limits={"perUser": {"jobs": 2}})
    try:
        body = sweep("x", tasks=5, at_once=4, cpu="1", run=FOR_EVER)
        body["metadata"]["labels"] = {"fluxqueue/queue": queues.name("few")}
        await space.create(body)
        await until_held(space, 2)
        await until_reason(space, "x", "Running", "perUser.jobs is 2")
        await queues.change("few", limits={"perUser": {"jobs": 3}})
        await until_held(space, 3)
        await space.delete("x")
        await until_held(space, 0)
    finally:
        await queues.delete("few")


async def test_what_contradicts_a_sweep_is_refused(space: Space) -> None:
    """The message names the field and the way out."""
    for body, words in (
        (sweep("x", tasks=9, at_once=9, wishes={"within": "rack"}), "fluxqueue/within"),
        (sweep("x", tasks=100_000, at_once=100_000), "spec.parallelism"),
        (
            bare_pod("x", metadata=None)
            | {"metadata": {"name": "x", "annotations": {"fluxqueue/gang": "false"}}},
            "fluxqueue/gang",
        ),
    ):
        with pytest.raises(Invalid, match=words) as refused:
            await space.create(body)
        assert "Fix: " in str(refused.value)


async def test_a_gang_that_never_fits_is_told_that_a_sweep_would(space: Space) -> None:
    """The reason names the annotation."""
    await space.create(job("x", pods=40, cpu="4", **SINGLE))
    await until_reason(space, "x", "Unsatisfiable", 'fluxqueue/gang: "false"')
    await space.delete("x")


async def test_a_task_is_requeued_by_the_deletion_of_its_pod(space: Space) -> None:
    """Its next pod waits for its turn, and the other tasks run on."""
    body = sweep("x", tasks=3, at_once=3, cpu="4", run=FOR_EVER, backoffLimitPerIndex=2)
    await space.create(body)
    before = {p["metadata"]["uid"] for p in await space.until_running("x", 3)}
    (first, *_) = await space.pods("x")
    await space.delete(first["metadata"]["name"], PODS)

    async def is_back() -> bool:
        pods = await space.pods("x")
        running = {p["metadata"]["uid"] for p in pods if p["status"].get("phase") == "Running"}
        return len(running) == 3 and len(running & before) == 2

    await eventually(is_back, "another pod of the task runs")
    await until_held(space, 3)
    await space.delete("x")
    await until_held(space, 0)


@pytest.mark.long("an array of 100,000 tasks, of which 300 pods wait, beside other work")
async def test_an_array_of_100_000_tasks_does_not_stop_the_queue(space: Space) -> None:
    """Rows depend on the tasks at once, not on their number. Other jobs go on."""
    low = {"wishes": {"priority": "-10"}, "run": {"duration": "200ms"}}
    await space.create(sweep("x", tasks=100_000, at_once=300, cpu="1", **low))
    await until_held(space, 16)
    names = [f"beside-{n}" for n in range(5)]
    await space.create_all(
        job(name, cpu="2", run={"duration": "200ms"}, **SINGLE) for name in names
    )
    await space.until_all_complete(names)
    (pods,) = await space.world.rows(
        "SELECT count(*) AS n FROM pods WHERE namespace = :namespace", namespace=space.name
    )
    assert pods["n"] <= 300 + 16 + 5
    held = [row for row in await slots(space, "x") if row["state"] != "returned"]
    assert len(held) <= 16
    await assert_invariants(space.world)
    await space.delete("x")
    await until_held(space, 0)


@pytest.mark.long("each part in turn dies while a sweep runs")
async def test_a_sweep_survives_the_death_of_every_part(space: Space) -> None:
    """kill -9 of each part: every task runs, none twice at once, never more than three."""
    async with space.recording() as seen:
        await space.create(sweep("x", tasks=30, at_once=3, cpu="4", run={"duration": "700ms"}))
        for kill in VICTIMS.values():
            await seen.until(
                lambda r: any(pod.is_using for pod in r.present()), "a task of the sweep runs"
            )
            await kill(space.world)
        await space.until_all_complete(["x"], timeout_s=ALL_DONE_S)
        assert seen.most_at_once("x") <= 3
        assert_each_index_ran_once(seen, "x", 30)
    await space.until_state("x", "Completed")
    await assert_invariants(space.world)
