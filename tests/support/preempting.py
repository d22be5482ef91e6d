"""Jobs that preempt others, in rows: how they start and leave, and what is then asked for."""

from __future__ import annotations

from typing import Any

from fluxqueue.clock import ManualClock, SystemClock
from fluxqueue.fluxjob.observation import WorkloadSeen
from fluxqueue.fluxjob.pod_facts import PodFact
from tests.support.pool_model import request
from tests.support.rows import Rows, but, pod
from tests.support.seen import job

LOWER: dict[str, Any] = {"within": "lowerPriority"}


def now_as_database(rows: Rows) -> ManualClock:
    """A clock that begins at the database's time and goes by hand."""
    rows.clock = ManualClock(SystemClock().now_s())
    return rows.clock


async def start(rows: Rows, clock: ManualClock, *jobs: WorkloadSeen) -> None:
    """Start jobs one after the other, a second apart, each with a running pod."""
    for one in jobs:
        await rows.see(one)
        await rows.match()
        await rows.see(but(one, is_suspended=False, pods=pods_of(one, "Pending")))
        await rows.reconcile(one.uid)
        await rows.see(running(one))
        await rows.reconcile(one.uid)
        clock.advance(1)


def pods_of(one: WorkloadSeen, phase: str) -> tuple[PodFact, ...]:
    """Its pods. Those that run have no gate any more."""
    return tuple(pod(f"{one.uid}-{n}", phase, is_gated=phase == "Pending") for n in range(one.size))


def running(one: WorkloadSeen) -> WorkloadSeen:
    """The same with its pods running."""
    return but(one, is_suspended=False, pods=pods_of(one, "Running"))


async def leave(rows: Rows, one: WorkloadSeen) -> None:
    """It is suspended and its pods are gone."""
    await rows.see(but(one, is_suspended=True, pods=()))
    await rows.reconcile(one.uid)


async def vacating(rows: Rows) -> dict[str, str]:
    """For which job each victim must leave, by UID."""
    found = await rows.fetch("SELECT uid, vacate_by FROM fluxjobs WHERE vacate_by IS NOT NULL")
    return {row["uid"]: row["vacate_by"] for row in found}


async def events(rows: Rows, uid: str) -> list[tuple[str, str]]:
    """The Events that it will get."""
    notices = await rows.value("SELECT notices FROM fluxjobs WHERE uid = :uid", uid=uid)
    return [(one["event"], one["message"]) for one in notices]


async def pending_actions(rows: Rows) -> int:
    """Rows of preemptions that are left."""
    return int(await rows.value("SELECT count(*) FROM preemptions"))


LOW = [job(name, "q", request(cpu=4)) for name in ("a", "b", "c")]
HIGH = job("high", "q", request(cpu=4), priority=10)
