"""A limit of a running job that changes: the plan follows it, and history says what moved it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fluxqueue.clock import SystemClock
from fluxqueue.db.store.ends import END_MOVED, OVERRUN, end_overruns
from fluxqueue.db.store.queues import read_rules
from fluxqueue.fluxjob.observation import WorkloadSeen
from fluxqueue.jobspec import Jobspec
from tests.support.pool_model import request
from tests.support.rows import Rows, but, cpu_node, pod, workload
from tests.support.seen import queue, see_queues

GRACE_S = 30


def limited(uid: str, duration_s: int, *, cpu: int = 4, **more: Any) -> WorkloadSeen:
    """A Job of one pod that Kubernetes ends after this time."""
    asked = replace(request(cpu=cpu, duration_s=duration_s), grace_s=more.pop("grace_s", GRACE_S))
    return workload(uid, asked, is_limited=True, grace_s=asked.grace_s, **more)


async def start(rows: Rows, seen: WorkloadSeen) -> int:
    """Start it, and return when its nodes were given."""
    await rows.see(seen)
    await rows.match()
    return int(await rows.value("SELECT starts_at FROM allocations WHERE uid = :u", u=seen.uid))


async def until(rows: Rows, uid: str) -> int | None:
    found: int | None = await rows.value(
        "SELECT until FROM allocations WHERE uid = :uid AND is_live", uid=uid
    )
    return found


async def planned(rows: Rows, uid: str) -> int:
    await rows.match()
    return int(await rows.value("SELECT starts_at FROM reservations WHERE uid = :uid", uid=uid))


async def told(rows: Rows, uid: str, event: str) -> list[dict[str, Any]]:
    found = await rows.fetch(
        "SELECT detail FROM history WHERE uid = :uid AND event = :event ORDER BY id",
        uid=uid,
        event=event,
    )
    return [row["detail"] for row in found]


@pytest.fixture
async def here(rows: Rows) -> Rows:
    rows.clock = SystemClock()
    await rows.add_nodes(cpu_node("n0", cpu=4))
    return rows


def changed(seen: WorkloadSeen, asked: Jobspec | None, **more: Any) -> WorkloadSeen:
    """The same Job after an edit of its object, released."""
    new = seen if asked is None else workload(seen.uid, asked)
    fields = {"request": new.request, "duration_s": new.duration_s, "is_suspended": False} | more
    return but(seen, **fields)


async def test_limit_and_grace_are_what_is_held(here: Rows) -> None:
    at = await start(here, limited("a", 20, grace_s=3600))
    assert await until(here, "a") == at + 20 + 3600
    await here.see(limited("b", 10))
    assert await planned(here, "b") == at + 20 + 3600


@pytest.mark.parametrize("limit_s", [36_000, 5, 2**31 - 1])
async def test_a_changed_limit_moves_the_plan_at_once(here: Rows, limit_s: int) -> None:
    """And history says which job it costs what, and because of which."""
    first = limited("a", 600)
    at = await start(here, first)
    await here.see(limited("b", 10))
    promised = await planned(here, "b")
    assert promised == at + 600 + GRACE_S
    edited = replace(request(cpu=4, duration_s=limit_s), grace_s=GRACE_S)
    await here.see(changed(first, edited))
    assert await until(here, "a") == at + limit_s + GRACE_S
    assert await planned(here, "b") == at + limit_s + GRACE_S
    (said,) = await told(here, "a", END_MOVED)
    assert f"{limit_s} s instead of 600 s" in said["message"]
    excuses = [one["excuse"] for one in await told(here, "b", "PromiseExcused")]
    assert excuses == (["later end of job 1"] if limit_s > 600 else [])
    # Seen again, it is not news, whichever worker looks.
    await here.see(changed(first, edited))
    assert len(await told(here, "a", END_MOVED)) == 1
    await here.check()


async def test_a_limit_that_is_removed_leaves_no_end(here: Rows) -> None:
    first = limited("a", 600)
    await start(here, first)
    await here.see(changed(first, request(cpu=4), is_limited=False))
    assert await until(here, "a") is None
    # A wish that nothing enforces gives it none again.
    wish = replace(request(cpu=4, duration_s=5), grace_s=GRACE_S)
    await here.see(changed(first, wish, is_limited=False))
    assert await until(here, "a") is None


async def test_a_pod_that_is_deleted_with_a_longer_grace(here: Rows) -> None:
    """What is observed counts, and no more once it is over."""
    first = limited("a", 600)
    at = await start(here, first)
    await here.see(limited("b", 10))
    await planned(here, "b")
    ending = (pod("a-0", "Running", is_gated=False, is_terminating=True, node="n0"),)
    late = changed(first, None, pods=ending, ends_at_s=at + 36_000)
    await here.see(late)
    assert await until(here, "a") == at + 36_000
    assert await planned(here, "b") == at + 36_000
    assert [one["excuse"] for one in await told(here, "b", "PromiseExcused")] == [
        "later end of job 1"
    ]
    await here.see_after({"a": late}, changed(first, None))
    assert await until(here, "a") == at + 600 + GRACE_S


async def test_a_job_with_a_limit_that_is_resumed_waits_for_its_turn(here: Rows) -> None:
    """Kubernetes counts its limit anew, so it would hold its node for longer than planned."""
    first = limited("a", 600)
    await start(here, first)
    await here.execute("UPDATE fluxjobs SET released_generation = 2 WHERE uid = 'a'")
    ending = (pod("a-0", "Running", is_gated=False, is_terminating=True, node="n0"),)
    running = (replace(ending[0], is_terminating=False),)
    await here.see(but(first, pods=running, is_suspended=False, generation=2))
    await here.reconcile("a")
    await here.see(but(first, pods=ending, generation=3))
    await here.see(but(first, pods=ending, is_suspended=False, generation=4))
    row = (await here.fetch("SELECT vacate_by, release_at FROM fluxjobs WHERE uid = 'a'"))[0]
    assert row["vacate_by"] == "restarted"
    assert row["release_at"] is not None, "it is suspended again"
    await here.see(but(first, generation=5, is_suspended_again=True))
    await here.reconcile("a")
    assert await here.states() == {"a": "Pending"}


@pytest.mark.parametrize(
    ("action", "column"), [("report", None), ("requeue", "vacate_by"), ("cancel", "cancel_by")]
)
async def test_what_a_queue_says_about_overruns(
    here: Rows, action: str, column: str | None
) -> None:
    """A limit that was raised beyond that of the queue is no longer granted than the queue's."""
    limits = {"perJob": {"durationSeconds": 60, "graceSeconds": GRACE_S}}
    rules = {"limits": limits, "overrun": {"action": action, "after": "10s"}}
    await see_queues(here, queue("default", **rules))
    first = limited("a", 20)
    at = await start(here, first)
    edited = replace(request(cpu=4, duration_s=36_000), grace_s=GRACE_S)
    await here.see(changed(first, edited))

    async def look(now: int) -> int:
        async with here.database.begin() as tx:
            return await end_overruns(tx, await read_rules(tx), now)

    granted = at + 60 + GRACE_S
    assert await look(granted + 10) == 0
    assert await look(granted + 11) == 1
    assert await look(granted + 12) == 0, "told once"
    (said,) = await told(here, "a", OVERRUN)
    assert "past its limit" in said["message"]
    row = (await here.fetch("SELECT vacate_by, cancel_by FROM fluxjobs WHERE uid = 'a'"))[0]
    assert {name for name, value in row.items() if value} == ({column} if column else set())
    if action == "requeue":
        await here.see(changed(first, edited, is_suspended=True, generation=9))
        await here.reconcile("a")
        await here.match()
        assert await here.states() == {"a": "Held"}, "its queue does not take it with that limit"


async def test_a_job_over_the_grace_of_its_queue_is_held(here: Rows) -> None:
    await see_queues(here, queue("default", limits={"perJob": {"graceSeconds": 60}}))
    await here.see(limited("a", 20, grace_s=61), workload("b", replace(request(cpu=1), grace_s=60)))
    await here.match()
    assert await here.states() == {"a": "Held", "b": "Allocated"}
    reason = await here.value("SELECT reason FROM fluxjobs WHERE uid = 'a'")
    assert "graceSeconds is 60" in reason
    assert "is 61" in reason
