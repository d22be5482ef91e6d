"""Steering with a user's own rights: by patches of the FluxJob, and by its deletion."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fluxqueue.errors import ApiError
from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.resources import FLUXJOBS, JOBS, PODS
from tests.support.e2e.health import assert_invariants
from tests.support.e2e.objects import FOR_EVER, Obj, bare_pod, job
from tests.support.e2e.space import Space
from tests.support.waiting import eventually

pytestmark = pytest.mark.slow


async def _patch(space: Space, name: str, **spec: Any) -> Obj:
    """As kubectl patches it, under the user's own name."""
    fluxjob = await space.fluxjob(name)
    assert fluxjob is not None
    return await space.client.patch(
        FLUXJOBS,
        space.name,
        fluxjob["metadata"]["name"],
        {"spec": spec},
        kind=PatchKind.MERGE,
        field_manager="kubectl",
    )


async def _until_status(space: Space, name: str, **wanted: Any) -> Obj:
    async def look() -> Obj | None:
        status = ((await space.fluxjob(name)) or {}).get("status") or {}
        return status if {key: status.get(key) for key in wanted} == wanted else None

    found = await eventually(look, f"{name}: {wanted}")
    assert found is not None
    return found


async def test_hold_and_release_by_patch(space: Space) -> None:
    """Held before anything starts, by name. Removed, it goes on. The user's name stands there."""
    await space.create(job("full", pods=1, cpu="16", pool="single", run=FOR_EVER))
    await space.until_state("full", "Running")
    await space.create(job("next", cpu="16", pool="single"))
    await space.until_state("next", "Pending", "Reserved")
    patched = await _patch(space, "next", hold=True)
    (who,) = set(patched["spec"]["steeredBy"].values())
    assert patched["spec"]["steeredBy"] == {"hold": who}
    held = await _until_status(space, "next", state="Held", reason=f"held by {who}")
    assert held["operator"]["heldBy"] == who
    await space.delete("full")
    await space.until_gone(JOBS, "full")
    assert (await space.until_state("next", "Held"))["status"]["state"] == "Held"
    await _patch(space, "next", hold=None)
    await space.until_state("next", "Completed")
    with pytest.raises(ApiError, match=r"spec\.hold = 'true': is Completed: it is over"):
        await _patch(space, "next", hold=True)
    await assert_invariants(space.world)


async def test_priority_begin_time_and_requeue_by_patch(space: Space) -> None:
    """Each wins over what the workload says, and null gives it back. A request is applied once."""
    await space.create(job("runs", cpu="16", pool="single", run=FOR_EVER))
    await space.until_state("runs", "Running")
    await space.create(job("waits", cpu="16", pool="single", run=FOR_EVER))
    await space.until_state("waits", "Pending", "Reserved")
    await _patch(space, "waits", priority=7)
    await _until_status(space, "waits", priority=7)
    await _patch(space, "waits", priority=None)
    await _until_status(space, "waits", priority=0)
    begin = (datetime.now(tz=UTC) + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ")
    await _patch(space, "waits", beginTime=begin)
    await _until_status(space, "waits", reason=f"is not to start before {begin}")
    await _patch(space, "waits", beginTime=None, priority=9)
    await _until_status(space, "waits", priority=9)  # else the other could be released again first
    await _patch(space, "runs", requeue="make room")
    await space.until_state("waits", "Running")
    waits = await space.until_state("runs", "Pending", "Reserved")
    assert waits["status"]["operator"] == {"requeue": "make room"}
    with pytest.raises(ApiError, match="only what waits can be held"):
        await _patch(space, "waits", hold=True)
    await assert_invariants(space.world)


async def test_what_is_not_steered_is_refused(space: Space) -> None:
    """With the field, the value and the way out. Nothing changes."""
    await space.create(job("a", cpu="16", pool="single", run=FOR_EVER))
    await space.until_state("a", "Running")
    with pytest.raises(
        ApiError, match=r"spec\.size = 5: says what Job a asks for.*change only hold"
    ):
        await _patch(space, "a", size=5)
    with pytest.raises(ApiError, match=r"spec\.queue = 'gold': is Running: only what waits"):
        await _patch(space, "a", queue="gold")
    forged = await _patch(space, "a", steeredBy={"hold": "somebody else"})
    assert "steeredBy" not in forged["spec"] or not forged["spec"]["steeredBy"]


async def test_what_only_the_rows_know_is_told_by_an_event(space: Space) -> None:
    """A queue that is not there: the FluxJob stays where it is, and says why."""
    await space.create(job("full", cpu="16", pool="single", run=FOR_EVER))
    await space.until_state("full", "Running")
    await space.create(job("waits", cpu="16", pool="single"))
    await space.until_state("waits", "Pending", "Reserved")
    await _patch(space, "waits", queue="nowhere")
    fluxjob = await space.fluxjob("waits")
    assert fluxjob is not None

    async def is_told() -> bool:
        told = await space.events_on(fluxjob["metadata"]["uid"])
        return any("there is no queue nowhere; known are" in one["message"] for one in told)

    await eventually(is_told, "a Warning")
    assert (await space.until_state("waits", "Pending", "Reserved"))["status"]["queue"] == "default"


async def test_history_names_the_user_that_cancelled(space: Space) -> None:
    """By the field of the spec: waiting and running, a Job and a pod."""
    await space.create(job("runs", cpu="16", pool="single", run=FOR_EVER))
    await space.until_state("runs", "Running")
    await space.create_all([job("waits", cpu="16", pool="single"), bare_pod("alone", cpu="99")])
    await space.until_state("waits", "Pending", "Reserved")
    await space.until_state("alone", "Unsatisfiable")
    for name in ("waits", "alone", "runs"):
        await _patch(space, name, cancel=True)
    for kind, name in ((JOBS, "runs"), (JOBS, "waits"), (PODS, "alone")):
        await space.until_gone(kind, name)
    await space.create(job("next", cpu="16", pool="single"))
    await space.until_job("next")
    said = await space.world.rows(
        "SELECT DISTINCT h.actor FROM history h JOIN fluxjobs f USING (uid)"
        " WHERE f.namespace = :namespace AND f.state = 'Cancelled' AND h.event = 'cancel'",
        namespace=space.name,
    )
    assert [row["actor"] for row in said] == ["admin"]
    await assert_invariants(space.world)


async def test_deleting_the_fluxjob_cancels(space: Space) -> None:
    """Its Job goes, waiting or running, and what it held with it."""
    await space.create(job("runs", cpu="16", pool="single", run=FOR_EVER))
    await space.until_state("runs", "Running")
    await space.create(job("waits", cpu="16", pool="single", run=FOR_EVER))
    await space.until_state("waits", "Pending", "Reserved")
    for name in ("runs", "waits"):
        await space.delete(f"{name}-job", FLUXJOBS)
        await space.until_gone(JOBS, name)
    await space.create(job("next", cpu="16", pool="single"))
    await space.until_job("next")
    said = await space.world.rows(
        "SELECT DISTINCT cancel_by FROM fluxjobs"
        " WHERE namespace = :namespace AND state = 'Cancelled'",
        namespace=space.name,
    )
    assert [row["cancel_by"] for row in said] == ["deletion of its FluxJob"]
    await assert_invariants(space.world)
