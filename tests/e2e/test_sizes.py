"""Slots have the size that pods really ask for, though admission makes pods larger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.resources import LIMIT_RANGES, PLACEMENT_REVIEWS, RUNTIME_CLASSES
from fluxqueue.workload.pod_resources import effective_request
from tests.support.e2e.health import assert_invariants
from tests.support.e2e.injector import INJECT, injected_sidecars
from tests.support.e2e.objects import FOR_EVER, Obj, job
from tests.support.e2e.space import Space
from tests.support.waiting import eventually


def meshed(name: str, *, pods: int, cpu: str, more: str, pool: str = "main") -> Obj:
    """A Job with pods that get a sidecar of ``more`` cpu at admission."""
    body = job(name, pods=pods, cpu=cpu, pool=pool, run=FOR_EVER)
    body["spec"]["template"]["metadata"]["labels"] = {INJECT: more}
    return body


async def node_of(space: Space, name: str) -> list[str]:
    """The nodes of its running pods, one for each."""
    return [pod["spec"]["nodeName"] for pod in await space.pods(name)]


@pytest.mark.long("each Job is released twice, and the last one waits for its first pods")
async def test_pods_that_grow_at_admission_get_slots_of_their_size(
    space: Space, tmp_path: Path
) -> None:
    """A gang is placed again before any of its pods runs, and the next one is right at once."""
    async with injected_sidecars(space, tmp_path / "certs"):
        # Two pods of 8 fit one node of 16, and two of 11 do not.
        await space.create(meshed("gang", pods=2, cpu="8", more="3"))
        await space.until_running("gang", 2)
        assert len(set(await node_of(space, "gang"))) == 2
        for pod in await space.pods("gang"):
            assert effective_request(pod["spec"])["cpu"] == 11_000
        rows = await space.world.rows(
            "SELECT s.resources ->> 'cpu' AS cpu FROM allocation_slots s JOIN allocations a"
            " ON a.id = s.allocation_id JOIN fluxjobs f USING (uid)"
            " WHERE a.is_live AND f.namespace = :of",
            of=space.name,
        )
        assert [row["cpu"] for row in rows] == ["11000", "11000"]
        # The same template again: its first placement is the last.
        await space.create(meshed("next", pods=2, cpu="8", more="3"))
        await space.until_running("next", 2)
        runs = await space.world.rows(
            "SELECT name, count(*) AS n FROM accounting WHERE namespace = :of GROUP BY 1",
            of=space.name,
        )
        assert {row["name"]: row["n"] for row in runs} == {"gang": 1}
        await assert_invariants(space.world)
        for name in ("gang", "next"):
            await space.delete(name)
        # The template fits a node, its pods do not.
        await space.create(meshed("large", pods=2, cpu="16", more="1"))
        never = await space.until_state("large", "Unsatisfiable")
        assert "17 cpu" in never["status"]["reason"]


@pytest.mark.long("pods of Jobs with one node are released in the template")
async def test_jobs_of_one_node_share_no_node_that_is_too_small(
    space: Space, tmp_path: Path
) -> None:
    """Webhooks change pods here, so the first pods of a template have a gate."""
    async with injected_sidecars(space, tmp_path / "certs"):
        for name in ("a", "b"):
            await space.create(meshed(name, pods=1, cpu="8", more="2"))
        for name in ("a", "b"):
            await space.until_running(name, 1)
        assert await node_of(space, "a") != await node_of(space, "b")
        rows = await space.world.rows(
            "SELECT s.resources ->> 'cpu' AS cpu FROM allocation_slots s JOIN allocations a"
            " ON a.id = s.allocation_id JOIN fluxjobs f USING (uid)"
            " WHERE a.is_live AND f.namespace = :of",
            of=space.name,
        )
        assert [row["cpu"] for row in rows] == ["10000", "10000"]
        beyond = await space.world.rows(
            "SELECT name FROM pods WHERE namespace = :of AND unmanaged IS NOT NULL", of=space.name
        )
        assert beyond == []
        await assert_invariants(space.world)


def sizeless(name: str, *, pods: int, **pod: Any) -> Obj:
    """A Job with pods that name no size. The namespace and the cluster decide it."""
    body = job(name, pods=pods, pool="main", run=FOR_EVER, pod=pod)
    body["spec"]["template"]["spec"]["containers"][0]["resources"] = {}
    return body


async def verdict_on(space: Space, manifest: Obj) -> str:
    """What a PlacementReview says to a manifest."""
    body = {
        "apiVersion": PLACEMENT_REVIEWS.api_version,
        "kind": PLACEMENT_REVIEWS.kind,
        "metadata": {"generateName": "ask-"},
        "spec": {"manifest": manifest},
    }
    made = await space.client.create(PLACEMENT_REVIEWS, space.name, body)
    at = (PLACEMENT_REVIEWS, space.name, made["metadata"]["name"])

    async def look() -> str | None:
        found = (await space.client.get(*at)).get("status") or {}
        return str(found.get("verdict") or found.get("reason")) if "answeredAt" in found else None

    return await eventually(look, "the review is answered") or ""


@pytest.mark.long("a review is asked until it counts what was made just before")
async def test_a_limit_range_and_a_runtime_class_count_at_once(space: Space) -> None:
    """The first placement is the last, and the change of a LimitRange reaches Jobs that wait."""
    defaults = {
        "metadata": {"name": "defaults"},
        "spec": {"limits": [{"type": "Container", "defaultRequest": {"cpu": "20"}}]},
    }
    box = {
        "metadata": {"name": f"box-{space.name}"},
        "handler": "box",
        "overhead": {"podFixed": {"cpu": "2"}},
    }
    await space.client.create(LIMIT_RANGES, space.name, defaults)
    await space.client.create(RUNTIME_CLASSES, None, box)
    body = sizeless("gang", pods=2, runtimeClassName=box["metadata"]["name"])
    try:
        await eventually(lambda: _is_never(space, body), "the review counts both")
        await space.create(body)
        never = await space.until_state("gang", "Unsatisfiable")
        assert "22 cpu" in never["status"]["reason"]
        # Two pods of 7 would fit one node of 16, and two of 9 do not.
        limits = [{"type": "Container", "defaultRequest": {"cpu": "7"}}]
        patch = {"spec": {"limits": limits}}
        await space.client.patch(LIMIT_RANGES, space.name, "defaults", patch, kind=PatchKind.MERGE)
        await space.until_running("gang", 2)
        assert len(set(await node_of(space, "gang"))) == 2
        for pod in await space.pods("gang"):
            assert effective_request(pod["spec"])["cpu"] == 9_000
        learned = await space.world.rows(
            "SELECT template FROM learned_sizes WHERE namespace = :of", of=space.name
        )
        assert learned == []
        await assert_invariants(space.world)
        await space.delete("gang")
    finally:
        await space.client.delete(RUNTIME_CLASSES, None, box["metadata"]["name"])


async def _is_never(space: Space, manifest: Obj) -> bool:
    return await verdict_on(space, manifest) == "Never"
