"""Slots have the size that pods really ask for, though admission makes pods larger."""

from __future__ import annotations

from pathlib import Path

import pytest

from fluxqueue.workload.resources import effective_request
from tests.e2e.health import assert_invariants
from tests.e2e.injector import INJECT, injected_sidecars
from tests.e2e.objects import FOR_EVER, Obj, job
from tests.e2e.space import Space


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
    """Their pods come without a gate, so that the first may be bound before its size is known."""
    async with injected_sidecars(space, tmp_path / "certs"):
        for name in ("a", "b"):
            await space.create(meshed(name, pods=1, cpu="8", more="2"))
        for name in ("a", "b"):
            await space.until_running(name, 1)
        assert await node_of(space, "a") != await node_of(space, "b")
        await assert_invariants(space.world)
