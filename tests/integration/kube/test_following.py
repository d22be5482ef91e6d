"""The one watch of a client, and the logs that it follows, on a server that misbehaves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import pytest

from fluxqueue.client.follower import FluxJobFollower
from fluxqueue.client.handles import handle_of
from fluxqueue.client.pod_logs import LogFollower, LogLine, until_released
from fluxqueue.errors import ApiError, ApiUnavailable
from fluxqueue.kube.client import KubeClient
from tests.support.waiting import WAIT_S

from .conftest import FaultyApi, json_answer, status, stream

OUTAGE = 7
"""Answers, more than one request retries."""
GONE = {"type": "ERROR", "object": {"kind": "Status", "code": 410}}


def fluxjob(name: str, version: int, state: str = "Pending", uid: str = "") -> dict[str, Any]:
    """One as the server sends it."""
    return {
        "metadata": {
            "namespace": "n", "name": f"{name}-job", "uid": f"fluxjob-{uid or name}",
            "resourceVersion": str(version), "creationTimestamp": "2030-01-01T00:00:00Z",
        },
        "spec": {
            "workload": {"kind": "Job", "name": name, "uid": uid or name}, "jobspec": {"a": 1},
        },
        "status": {"state": state, "R": {"large": True}},
    }  # fmt: skip


def listed(version: int, *items: dict[str, Any]) -> dict[str, Any]:
    """A list of one page."""
    return {"metadata": {"resourceVersion": str(version)}, "items": list(items)}


def event(kind: str, obj: dict[str, Any]) -> dict[str, Any]:
    """An event of a watch."""
    return {"type": kind, "object": obj}


def of(uid: str) -> Callable[[Any], bool]:
    """The test for the FluxJob of a workload."""
    return lambda one: bool(one["spec"]["workload"]["uid"] == uid)


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.01)


async def test_one_job_is_watched_by_its_name_and_two_by_their_namespace(
    client: KubeClient, faulty: FaultyApi
) -> None:
    """The second watch begins where the first one was. What was cut is resumed."""
    faulty.then(
        json_answer(listed(5)),
        stream(event("ADDED", fluxjob("a", 7)), stays_open=True),
    )
    follower = FluxJobFollower(client, "n")
    a = await follower.follow("a-job", of("a"))
    await _until(lambda: a.version == 1)
    faulty.then(
        stream(event("ADDED", fluxjob("b", 6)), event("MODIFIED", fluxjob("a", 8)), is_cut=True),
        stream(event("MODIFIED", fluxjob("a", 9, "Running")), stays_open=True),
    )
    b = await follower.follow("b-job", of("b"))
    await _until(lambda: len(faulty.seen) == 4 and a.version == 3)
    watches = [
        (one.query["resourceVersion"], one.query.get("fieldSelector", ""))
        for one in faulty.seen[1:]
    ]
    assert watches == [("5", "metadata.name=a-job"), ("7", ""), ("8", "")]
    assert b.object is not None
    assert a.object is not None
    assert a.object["status"] == {"state": "Running"}, "without what is large"
    assert "jobspec" not in a.object["spec"]
    await follower.close()


async def test_what_was_missed_is_read_again(client: KubeClient, faulty: FaultyApi) -> None:
    """After a 410: a later state, and that a job is gone."""
    faulty.then(
        json_answer(listed(5)),
        stream(event("ADDED", fluxjob("a", 6)), event("ADDED", fluxjob("b", 7)), GONE),
        json_answer(listed(30, fluxjob("a", 20, "Running"), fluxjob("other", 21))),
        stream(stays_open=True),
    )
    follower = FluxJobFollower(client, "n")
    a, b = await asyncio.gather(
        follower.follow("a-job", of("a")), follower.follow("b-job", of("b"))
    )
    await _until(lambda: len(faulty.seen) == 4)
    assert a.object is not None
    assert (a.object["status"]["state"], a.is_gone, b.is_gone) == ("Running", False, True)
    assert faulty.seen[3].query["resourceVersion"] == "30"
    await follower.close()


async def test_an_outage_while_what_was_missed_is_read_ends_no_wait(
    client: KubeClient, faulty: FaultyApi
) -> None:
    """A restart of the API server: the watch has expired, and the list fails for a while."""
    faulty.then(
        json_answer(listed(5)),
        stream(event("ADDED", fluxjob("a", 6)), GONE),
        *[status(503, "ServiceUnavailable")] * OUTAGE,
        json_answer(listed(30, fluxjob("a", 20, "Running"))),
        stream(stays_open=True),
    )
    follower = FluxJobFollower(client, "n")
    a = await follower.follow("a-job", of("a"))
    await _until(lambda: a.version == 2)
    assert a.object is not None
    assert a.object["status"]["state"] == "Running"
    await follower.close()


async def test_an_event_that_cannot_be_read_ends_the_waits_with_an_error(
    client: KubeClient, faulty: FaultyApi
) -> None:
    faulty.then(json_answer(listed(5)), stream(event("ADDED", {"kind": "FluxJob"})))
    follower = FluxJobFollower(client, "n")
    a = await follower.follow("a-job", of("a"))
    with pytest.raises(ApiUnavailable, match="the watch of FluxJobs has ended"):
        await asyncio.wait_for(a.changed(0), WAIT_S)
    await follower.close()


async def test_a_name_that_is_used_again_is_another_job(
    client: KubeClient, faulty: FaultyApi
) -> None:
    """Its FluxJob may come before the answer to the creation of its workload."""
    faulty.then(
        json_answer(listed(5)),
        stream(
            event("DELETED", fluxjob("a", 6, "Completed", uid="old")),
            event("ADDED", fluxjob("a", 7, uid="new")),
            stays_open=True,
        ),
    )
    follower = FluxJobFollower(client, "n")
    old, new = await follower.follow("a-job", of("old")), await follower.follow("a-job")
    await _until(lambda: old.is_gone)
    assert new.object is None
    new.mean(of("new"))
    await _until(lambda: new.object is not None)
    assert not new.is_gone
    await follower.close()


async def test_a_refused_watch_ends_the_waiting(client: KubeClient, faulty: FaultyApi) -> None:
    """It is said, and the next job begins a new watch."""
    faulty.then(json_answer(listed(5)), status(403, "Forbidden"))
    follower = FluxJobFollower(client, "n")
    a = await follower.follow("a-job", of("a"))
    with pytest.raises(ApiError, match="403"):
        await asyncio.wait_for(a.changed(0), WAIT_S)
    faulty.then(json_answer(listed(8)), stream(event("ADDED", fluxjob("b", 9)), stays_open=True))
    b = await follower.follow("b-job", of("b"))
    await asyncio.wait_for(b.changed(0), WAIT_S)
    await follower.close()


@pytest.mark.parametrize("way", ["cancel", "cancel without waiting", "delete"])
async def test_a_job_that_is_cancelled_before_the_queue_has_seen_it_is_gone(
    client: KubeClient, faulty: FaultyApi, way: str
) -> None:
    """No FluxJob comes, so nothing else would tell."""

    async def respond(request: Any) -> Any:
        if "watch" in request.query:
            return await stream(stays_open=True)(request)
        if request.path.endswith(("/fluxjobs", "/pods")):
            return await json_answer(listed(5))(request)
        code = 200 if request.method == "DELETE" else 404
        return await status(code, "NotFound")(request)

    faulty.then(*[respond] * 20)
    follower = FluxJobFollower(client, "n")
    made = {
        "kind": "Job",
        "metadata": {
            "namespace": "n", "name": "a", "uid": "a", "creationTimestamp": "2030-01-01T00:00:00Z",
        },
    }  # fmt: skip
    handle = await handle_of(client, follower, made)
    waiting = asyncio.create_task(handle.wait())
    if way == "delete":
        await handle.delete()
    else:
        await handle.cancel(wait=way == "cancel")
    await asyncio.wait_for(waiting, WAIT_S)
    assert (handle.state, handle.done()) == ("Gone", True)
    await follower.close()


def pod(name: str, version: int, phase: str = "Running", state: str = "running") -> dict[str, Any]:
    """A pod of one container."""
    return {
        "metadata": {"namespace": "n", "name": name, "uid": name, "resourceVersion": str(version)},
        "spec": {"containers": [{"name": "main"}]},
        "status": {
            "phase": phase,
            "containerStatuses": [{"name": "main", "restartCount": 0, "state": {state: {}}}],
        },
    }


def log(*lines: str, is_cut: bool = False) -> Any:
    """A followed log with its times."""
    return stream(*(f"{line}\n".encode() for line in lines), is_cut=is_cut)


async def test_each_line_of_a_log_comes_once(client: KubeClient, faulty: FaultyApi) -> None:
    """The stream is cut, then ended by the server, while the container runs on."""
    t1, t2, t3 = (f"2030-01-01T00:00:00.{n}00000000Z" for n in "123")
    ended = pod("p", 9, "Succeeded", "terminated")
    over = asyncio.Event()
    follower = LogFollower(client, "n", "job=x", until_over=_waiter(over))
    got: list[LogLine] = []

    async def read() -> None:
        async with aclosing(follower.lines()) as lines:
            async for line in lines:
                got.append(line)  # noqa: PERF401  it is looked at meanwhile

    logs = iter(
        [
            log(f"{t1} one", f"{t2} two", is_cut=True),
            # The server knows whole seconds only, so it sends the lines of that second again.
            log(f"{t1} one", f"{t2} two", f"{t2} two", f"{t3} three"),
            log(f"{t1} one", f"{t2} two", f"{t2} two", f"{t3} three", f"{t3} "),
        ]
    )
    states = iter([json_answer(pod("p", 4)), json_answer(ended)])

    async def respond(request: Any) -> Any:
        if request.path.endswith("/log"):
            return await next(logs)(request)
        if request.path.endswith("/pods/p"):
            return await next(states)(request)
        if "watch" in request.query:
            return await stream(stays_open=True)(request)
        return await json_answer(listed(5, pod("p", 4)))(request)

    faulty.then(*[respond] * 20)
    reading = asyncio.create_task(read())
    await _until(lambda: len(got) == 5)
    over.set()
    await asyncio.wait_for(reading, WAIT_S)
    assert [str(line) for line in got] == ["one", "two", "two", "three", ""]
    since = [one.query.get("sinceTime") for one in faulty.seen if one.path.endswith("/log")]
    assert since == [None, t2, t3]


def _waiter(over: asyncio.Event) -> Any:
    async def wait() -> None:
        await over.wait()

    return wait


async def test_resources_are_free_when_each_pod_has_ended_or_is_gone(
    client: KubeClient, faulty: FaultyApi
) -> None:
    """A pod that comes meanwhile counts. After a 410 the list decides."""
    faulty.then(
        json_answer(listed(5, pod("a", 3), pod("b", 4), pod("c", 2, "Failed"))),
        stream(
            event("DELETED", pod("a", 6)), event("ADDED", pod("d", 7, "Pending")),
            event("MODIFIED", pod("b", 8, "Succeeded")), GONE,
        ),
        json_answer(listed(9, pod("d", 7, "Pending"))),
        stream(event("DELETED", pod("d", 10)), stays_open=True),
    )  # fmt: skip
    await asyncio.wait_for(until_released(client, "n", "job=x"), WAIT_S)
    assert len(faulty.seen) == 4


async def test_pods_that_may_be_listed_and_not_watched(
    client: KubeClient, faulty: FaultyApi
) -> None:
    """They are listed again. A user that may not list them gets an error."""
    faulty.then(
        json_answer(listed(5, pod("a", 3))), status(403, "Forbidden"), json_answer(listed(9))
    )
    await asyncio.wait_for(until_released(client, "n", "job=x"), WAIT_S)
    faulty.then(status(403, "Forbidden"))
    with pytest.raises(ApiError, match="403"):
        await until_released(client, "n", "job=x")
