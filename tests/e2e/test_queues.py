"""Named queues as their administrator and their users see them: made, limited, stopped, deleted."""

from __future__ import annotations

import pytest

from fluxqueue.errors import Invalid, NotFound
from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.resources import FLUXQUEUES, NAMESPACES
from tests.support.e2e.database import empty, everybody_killed
from tests.support.e2e.objects import FOR_EVER, job
from tests.support.e2e.queues import Queues, queue
from tests.support.e2e.space import WAITING, Space
from tests.support.waiting import eventually


async def _reason(space: Space, name: str) -> str:
    found = await space.fluxjob(name)
    return str(((found or {}).get("status") or {}).get("reason", ""))


async def test_the_default_queue_is_there_and_comes_back(space: Space) -> None:
    """Made by the controller with what the workers are set to. Deleting it is no way to lose it."""
    found = await space.client.get(FLUXQUEUES, None, "default")
    assert found["spec"]["policy"] == "easy"
    assert found["spec"]["enabled"] is True
    await space.client.delete(FLUXQUEUES, None, "default")

    async def is_back() -> bool:
        try:
            again = await space.client.get(FLUXQUEUES, None, "default")
        except NotFound:
            return False
        return bool(again["metadata"]["uid"] != found["metadata"]["uid"])

    await eventually(is_back, "the queue default again")
    await space.create(job("plain"))
    await space.until_job("plain")


async def test_two_queues_a_limit_a_refusal_and_a_stop(space: Space, queues: Queues) -> None:
    """The story of docs/admin/queues.md, each step visible with kubectl."""
    await queues.make("batch", limits={"perUser": {"jobs": 1}, "perJob": {"cpu": 8}})
    await queues.make("express", priority=100)

    # A limit on what one user runs: the second waits, and says for what.
    await space.create(queues.job("one", "batch", pool="main", run=FOR_EVER))
    await space.until_state("one", "Running")
    await space.create(queues.job("two", "batch", pool="main"))
    two = await space.until_state("two", *WAITING)
    await space.until_true(lambda: _tells(space, "two", "limits.perUser.jobs is 1"), "the limit")
    assert two["spec"]["user"], "admission wrote down who submitted it"
    await queues.until_status("batch", running=1, pending=1, held=0)

    # It blocks no other job: a job of the other queue runs beside it.
    await space.create(queues.job("fast", "express", pool="main"))
    await space.until_job("fast")
    fast = await space.fluxjob("fast")
    assert fast is not None
    assert fast["status"]["priority"] == 100
    assert fast["status"]["priorityParts"]["queue"] == 100

    # A job over a limit of one job is held, with limit, value and way out, and a Warning.
    wide = await space.create(queues.job("wide", "batch", pods=3, cpu="3", pool="main"))
    await space.until_state("wide", "Held")
    reason = await _reason(space, "wide")
    assert "spec.limits.perJob.cpu is 8 cpu, the job asks for 9 cpu" in reason
    await space.until_true(
        lambda: _warned(space, wide["metadata"]["uid"], "limits.perJob.cpu"), "a Warning"
    )
    # The administrator raises the limit, and it is taken in without being submitted again.
    await queues.change("batch", limits={"perJob": {"cpu": 9}})
    await space.until_state("wide", *WAITING)

    # Stopped: what runs goes on, nothing else starts. Started again, it goes on by itself.
    await queues.change("batch", started=False)
    await space.until_true(lambda: _tells(space, "two", "is stopped"), "the stop")
    await space.delete("one")
    await queues.until_status("batch", running=0, pending=2)
    await queues.change("batch", started=True)
    await space.until_all_complete(["two", "wide"])


async def test_a_queue_that_is_not_there_holds_until_it_is(space: Space, queues: Queues) -> None:
    """Nothing is lost: neither before the queue is made nor after it is deleted."""
    await space.create(queues.job("early", "later", pool="main"))
    await space.until_state("early", "Held")
    assert f"there is no FluxQueue {queues.name('later')!r}" in await _reason(space, "early")
    await queues.make("later", started=False)
    await space.until_state("early", *WAITING)
    await queues.delete("later")
    await space.until_state("early", "Held")
    await queues.make("later")
    await space.until_job("early")


async def test_running_work_outlives_its_queue(space: Space, queues: Queues) -> None:
    """Deleting a queue, or disabling it, stops nothing that runs."""
    await queues.make("short-lived")
    await space.create(queues.job("runs", "short-lived", run=FOR_EVER, pool="main"))
    await space.until_state("runs", "Running")
    await queues.change("short-lived", enabled=False)
    await space.create(queues.job("late", "short-lived", pool="main"))
    await space.until_state("late", "Held")
    assert "spec.enabled is false" in await _reason(space, "late")
    await queues.delete("short-lived")
    await space.until_true(lambda: _tells(space, "late", "there is no FluxQueue"), "the new reason")
    found = await space.fluxjob("runs")
    assert found is not None
    assert found["status"]["state"] == "Running"


@pytest.mark.long("seconds of processor time for a crash that a cheaper test covers in parts")
@pytest.mark.slow
async def test_what_a_queue_took_in_outlives_the_database(space: Space, queues: Queues) -> None:
    """Disabled meanwhile, every row lost: what waited waits on in its order, what comes is held."""
    taken_in = ["first", "second"]
    await queues.make("shut")
    await space.create(job("blocks", cpu="14", pool="single", run=FOR_EVER))
    await space.until_state("blocks", "Running")
    for name in taken_in:
        await space.create(queues.job(name, "shut", cpu="16", pool="single"))
        await space.until_state(name, *WAITING)
    await queues.change("shut", enabled=False)
    async with everybody_killed(space.world.stack):
        await space.create(queues.job("late", "shut", cpu="1"))
        await empty(space.world.stack)
    await space.until_state("late", "Held")
    assert "spec.enabled is false" in await _reason(space, "late")
    rows = await space.world.rows(
        "SELECT workload_name, state IN ('Pending', 'Reserved') AS waits FROM fluxjobs"
        " WHERE namespace = :space AND queue = :queue ORDER BY jobid",
        space=space.name,
        queue=queues.name("shut"),
    )
    expected = {"first": True, "second": True, "late": False}
    assert {row["workload_name"]: row["waits"] for row in rows} == expected
    async with space.recording() as seen:
        await space.delete("blocks")
        await space.until_all_complete(taken_in)
        assert [name for name in seen.order() if name in taken_in] == taken_in
    await space.delete("late")


async def test_namespaces_that_are_not_allowed(space: Space, queues: Queues) -> None:
    """By selector. A label on the namespace lets its jobs in."""
    key = {"matchLabels": {"team": space.name}}
    await queues.make("team", allowedNamespaces={"selector": key})
    await space.create(queues.job("guest", "team", pool="main"))
    await space.until_state("guest", "Held")
    assert "spec.allowedNamespaces does not have namespace" in await _reason(space, "guest")
    labels = {"metadata": {"labels": {"team": space.name}}}
    await space.client.patch(NAMESPACES, None, space.name, labels, kind=PatchKind.MERGE)
    await space.until_job("guest")


async def test_what_is_wrong_is_refused_when_it_is_applied(space: Space) -> None:
    """With the field, and what is allowed."""
    for spec, message in (
        ({"policy": "lifo"}, "spec.policy"),
        ({"minPriority": 2, "maxPriority": 1}, "minPriority must not be more than maxPriority"),
        ({"reservationDepth": 3}, "reservationDepth counts for policy hybrid only"),
        ({"defaultDuration": "soon"}, "write seconds or a sum of days"),
        ({"limits": {"perUser": {"cpu": "lots"}}}, "spec.limits.perUser.cpu"),
        ({"limits": {"total": {"jobs": -1}}}, "spec.limits.total.jobs"),
        ({"allowedNamespaces": {}}, "give names, selector, or both"),
        ({"fairShare": {"halfLife": "0"}}, "write seconds or a sum of days"),
        ({"preemption": {"grace": "30s"}}, "spec.preemption.within"),
        ({"preemption": {"within": "anybody"}}, "spec.preemption.within"),
        ({"preemption": {"within": "lowerPriority", "grace": "0"}}, "leave it out for none"),
    ):
        try:
            await space.client.create(FLUXQUEUES, None, queue(f"{space.name}-wrong", **spec))
        except Invalid as refusal:
            assert message in str(refusal)  # noqa: PT017 every one of the table
        else:
            raise AssertionError(f"accepted: {spec}")


async def _tells(space: Space, name: str, words: str) -> bool:
    return words in await _reason(space, name)


async def _warned(space: Space, uid: str, words: str) -> bool:
    events = await space.events_on(uid)
    return any(
        one["type"] == "Warning" and one["reason"] == "HeldByQueue" and words in one["message"]
        for one in events
    )
