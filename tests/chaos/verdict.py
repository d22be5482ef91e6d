"""The judgement at the end: everything has ended exactly once, nothing is broken, nothing leaks."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from contextlib import suppress
from typing import Any

from fluxqueue.errors import ApiUnavailable, DatabaseUnavailable
from fluxqueue.kube.resources import FLUXJOBS, JOBS, PODS
from tests.chaos.load import Load, has_ended
from tests.support.e2e.health import assert_invariants, what_is_left
from tests.support.e2e.recording import Recording
from tests.support.e2e.space import Space
from tests.support.e2e.world import World
from tests.support.waiting import eventually, until

FINAL = ("Completed", "Failed", "Cancelled")
LOOK_S = 0.5
"""Between two looks at everything, which on a busy machine keep it busy."""
_ENDS = """
SELECT f.uid, f.workload_name AS name, f.state,
       (SELECT count(*) FROM history h WHERE h.uid = f.uid
        AND h.event IN ('Completed', 'Failed', 'Cancelled')) AS ends
FROM fluxjobs f WHERE f.namespace = :space
"""
_SESSIONS = """
SELECT application_name AS name, state, count(*) AS n,
       max(extract(epoch FROM now() - state_change)) AS for_s FROM pg_stat_activity
WHERE datname = current_database() GROUP BY 1, 2
"""
_ROLLBACK_S = 5.0
"""Between a statement that fails and the ROLLBACK after it, on a busy machine."""
_SESSIONS_MAX = 15
"""Of one process: its engine's pool with overflow, procrastinate's pool, its listener."""


async def until_all_have_ended(space: Space, load: Load, *, patience_s: float) -> None:
    """Wait until no Job and no Pod of the load is still to end, in the cluster and in the rows.

    A slow machine has all the time it needs, as long as ever fewer are left: it fails when for
    ``patience_s`` there was no end more than before.
    """
    unfinished: list[str] | None = None
    fewest, since_s = float("inf"), time.monotonic()
    while unfinished is None or unfinished:
        assert time.monotonic() - since_s < patience_s, await _what_hangs(
            space, f"nothing more ended within {patience_s:g} s", unfinished
        )
        await asyncio.sleep(LOOK_S)
        with suppress(DatabaseUnavailable, ApiUnavailable):  # the last faults may still be mending
            unfinished = await _unfinished(space, load)
            left = len(load.bodies.keys() & set(unfinished))  # pods of Jobs come before they go
            if left < fewest:
                fewest, since_s = left, time.monotonic()


async def _unfinished(space: Space, load: Load) -> list[str]:
    jobs = (await space.client.list(JOBS, space.name)).items
    pods = (await space.client.list(PODS, space.name)).items
    rows = await space.world.rows(_ENDS, space=space.name)
    known = {row["uid"] for row in rows}
    present = {one["metadata"]["uid"] for one in (*jobs, *pods)}
    forgotten = load.history_lost - present
    there = {uid: name for name, uid in load.uids.items() if name not in load.deleted}
    return [
        *(one["metadata"]["name"] for one in (*jobs, *pods) if not has_ended(one)),
        *(row["name"] for row in rows if not row["ends"]),
        *(name for uid, name in there.items() if uid not in known | forgotten),
    ]


async def _what_hangs(space: Space, what: str, unfinished: list[str] | None) -> str:
    if unfinished is None:
        return f"{what}: database or API server could not be read at all"
    names = list(dict.fromkeys(unfinished))
    found = [await _describe(space, name) for name in names[:5]]
    return "\n".join([f"{what}: not {names}, such as", *map(str, found)])


async def _describe(space: Space, name: str) -> dict[str, Any]:
    fluxjob = await space.fluxjob(name)
    rows = await space.world.rows(
        "SELECT * FROM fluxjobs WHERE workload_name = :name AND namespace = :space",
        name=name,
        space=space.name,
    )
    pending = await space.world.rows(
        "SELECT task, since, last_error FROM pending_actions WHERE uid IN"
        " (SELECT uid FROM fluxjobs WHERE workload_name = :name AND namespace = :space)",
        name=name,
        space=space.name,
    )
    listed = (await space.client.list(PODS, space.name)).items
    pods = [
        {"name": p["metadata"]["name"], "spec": p["spec"], "status": p["status"]}
        for p in listed
        if p["metadata"]["name"] == name or p["metadata"]["name"].startswith(f"{name}-")
    ]
    return {
        "name": name,
        "status": (fluxjob or {}).get("status"),
        "row": {k: v for k, v in (rows[0] if rows else {}).items() if k != "request"},
        "pending_actions": pending,
        "pods": pods,
    }


async def assert_ended_once(space: Space) -> None:
    """One end each, and the one that the object shows."""
    rows = await space.world.rows(_ENDS, space=space.name)
    other = [row for row in rows if row["ends"] != 1]
    assert not other, f"ended more than once, or never: {other}"
    objects = {
        one["metadata"]["uid"]: one
        for resource in (JOBS, PODS)
        for one in (await space.client.list(resource, space.name)).items
    }
    wrong = [
        (row["name"], row["state"])
        for row in rows
        if row["uid"] in objects and row["state"] != _result(objects[row["uid"]])
    ]
    assert not wrong, f"rows say otherwise than the objects: {wrong}"


async def until_told(space: Space) -> None:
    """Every FluxJob shows an end."""

    async def look() -> bool:
        fluxjobs = (await space.client.list(FLUXJOBS, space.name)).items
        return all((one.get("status") or {}).get("state") in FINAL for one in fluxjobs)

    await eventually(look, "every FluxJob shows its end")


def _result(one: dict[str, Any]) -> str:
    phase = one["status"].get("phase")
    if phase is not None:
        return {"Succeeded": "Completed", "Failed": "Failed"}[phase]
    conditions = {c["type"] for c in one["status"]["conditions"] if c["status"] == "True"}
    return "Completed" if "Complete" in conditions else "Failed"


def assert_nothing_ran_twice(seen: Recording, load: Load) -> None:
    """No index twice at once, never more pods than slots, no node over its capacity."""
    sizes = {name: body["spec"].get("parallelism", 1) for name, body in load.bodies.items()}
    for using in seen.in_use():
        now = Counter(pod.owner for pod in using)
        over = {owner: n for owner, n in now.items() if n > sizes.get(owner, 1)}
        assert not over, f"more pods than slots: {over}"
        indexed = [(pod.owner, pod.index) for pod in using if pod.index is not None]
        assert len(indexed) == len(set(indexed)), f"an index ran twice at once: {using}"
    capacity = {"gpu-1": 8_000, "gpu-2": 8_000}
    full = {n: cpu for n, cpu in seen.peak_cpu_m().items() if cpu > capacity.get(n, 16_000)}
    assert not full, f"nodes over capacity: {full}"


async def assert_clean(world: World) -> None:
    """Nothing is left in the rows, every invariant holds, and no session leaks."""
    await until(lambda: what_is_left(world), lambda left: not left, "nothing left in the rows")
    await assert_invariants(world)
    sessions = await world.rows(_SESSIONS)
    aborted = [row for row in sessions if "aborted" in (row["state"] or "")]
    assert not [row for row in aborted if row["for_s"] > _ROLLBACK_S], aborted
    for name in ("fluxqueue-worker", "fluxqueue-controller"):
        count = sum(row["n"] for row in sessions if row["name"].startswith(f"{name}/"))
        assert count <= 2 * _SESSIONS_MAX, f"two processes of {name} have {count} sessions"
