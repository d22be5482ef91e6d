"""Slips after admission: a Job is edited into something that cannot be used."""

from __future__ import annotations

from typing import Any

from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.resources import JOBS
from tests.support.e2e.health import assert_invariants
from tests.support.e2e.objects import FOR_EVER, job
from tests.support.e2e.space import Space


async def _annotate(space: Space, name: str, **said: str | None) -> None:
    """As ``kubectl annotate --overwrite`` does."""
    annotations = {f"fluxqueue/{key.replace('_', '-')}": value for key, value in said.items()}
    await space.client.patch(JOBS, space.name, name, {"metadata": {"annotations": annotations}})


async def _condition(space: Space, name: str) -> dict[str, Any] | None:
    status = ((await space.fluxjob(name)) or {}).get("status") or {}
    found = (one for one in status.get("conditions") or () if one["type"] == "InputValid")
    return next(found, None)


async def test_a_hold_after_a_slip_is_heeded(space: Space) -> None:
    """And so is what its pods ask for by then. The slip is reported until it is mended."""
    await space.create(job("full", cpu="16", pool="single", run=FOR_EVER))
    await space.until_state("full", "Running")
    await space.create(job("next", cpu="4", pool="single", wishes={"within": "node"}))
    await space.until_state("next", "Pending", "Reserved")
    await _annotate(space, "next", within="one rack, please")
    await _annotate(space, "next", hold="true")
    path = "/spec/template/spec/containers/0/resources/requests/cpu"
    patch: Any = [{"op": "replace", "path": path, "value": "7"}]
    await space.client.patch(JOBS, space.name, "next", patch, kind=PatchKind.JSON)
    told = await space.until_true(lambda: _condition(space, "next"), "the condition")
    assert (told["status"], told["reason"]) == ("False", "InvalidAnnotation")
    assert "fluxqueue/within" in told["message"]
    assert "one rack, please" in told["message"]
    held = await space.until_state("next", "Held")
    uid = held["spec"]["workload"]["uid"]
    events = await space.events_on(uid)
    assert [one["reason"] for one in events].count("InvalidAnnotation") == 1
    await space.delete("full")
    await space.until_gone(JOBS, "full")

    async def asks_for_seven() -> bool:
        found = await space.fluxjob("next")
        text = str((found or {}).get("spec", {}).get("jobspec"))
        return "7000" in text and "'type': 'node'" in text

    await space.until_true(asks_for_seven, "the FluxJob asks for what its pods do")
    assert (await space.until_state("next", "Held"))["status"]["state"] == "Held"
    await _annotate(space, "next", within="node", hold=None)
    await space.until_state("next", "Completed")

    async def is_mended() -> bool:
        return await _condition(space, "next") is None

    await space.until_true(is_mended, "the condition goes")
    await assert_invariants(space.world)
