"""Pods count with what they ask for themselves, whatever slot they were given. A workload that came
to ask for something else is decided for anew.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fluxqueue.db.queries import Q
from fluxqueue.db.store.notices import UNMANAGED_USE
from fluxqueue.db.store.observations import is_reshaped
from fluxqueue.db.store.reconciling import Ungate
from fluxqueue.fluxjob.holders import AUTHOR, CHANGED, CHANGED_REASON
from fluxqueue.fluxjob.pod_facts import PodFact
from fluxqueue.fluxjob.request import CPU
from tests.support.pool_model import request
from tests.support.rows import Rows, but, cpu_node, pod, workload
from tests.support.sql import dicts


def asking(uid: str, cpu: int, **more: Any) -> PodFact:
    """A pod that asks for so many cpus."""
    return replace(pod(uid, **more), uses=((CPU, cpu),))


def bound(uid: str, cpu: int, node: str) -> PodFact:
    """A pod that runs there without our release."""
    return asking(uid, cpu, phase="Running", is_gated=False, node=node)


async def usage(rows: Rows, node: str) -> tuple[int, int, int]:
    """Allocated, unmanaged and free cpus of a node. Invariant 5 holds."""
    (row,) = await rows.fetch(
        "SELECT capacity, allocated, foreign_used, free FROM node_usage"
        " WHERE node = :node AND resource = 'cpu'",
        node=node,
    )
    assert row["allocated"] + row["foreign_used"] + row["free"] == row["capacity"]
    return int(row["allocated"]), int(row["foreign_used"]), int(row["free"])


async def notices(rows: Rows, uid: str) -> list[str]:
    found = await rows.value("SELECT notices FROM fluxjobs WHERE uid = :uid", uid=uid)
    assert {one["event"] for one in found} == {UNMANAGED_USE}
    return [one["message"] for one in found]


@pytest.mark.parametrize("held_by", ["author", None])
async def test_pods_of_what_waits_count_as_unmanaged(rows: Rows, held_by: str | None) -> None:
    """A decoy, held or without room, owns pods that run: the node is full for others."""
    await rows.add_nodes(cpu_node("n0", cpu=4))
    decoy = workload("decoy", request(cpu=64 if held_by is None else 1), held_by=held_by)
    await rows.see(replace(decoy, pods=(bound("hidden", 3, "n0"),)))
    assert await usage(rows, "n0") == (0, 3, 1)
    assert "hidden takes" in (await notices(rows, "decoy"))[0]

    await rows.see(workload("gang", request(cpu=2)))
    await rows.match()
    assert (await rows.states())["gang"] != "Allocated"

    await rows.see(decoy)  # its pod is gone
    assert await usage(rows, "n0") == (0, 0, 4)
    await rows.match()
    assert (await rows.states())["gang"] == "Allocated"


async def test_what_unmanaged_pods_use_is_read_once(rows: Rows) -> None:
    """A restart reads each pod once, not once for each node. An update reads those of its nodes."""
    await rows.execute(
        "INSERT INTO foreign_usage (pod_uid, namespace, name, node, resources)"
        " SELECT 'u' || n, 'x', 'p' || n, 'n' || n % 2000, '{\"cpu\": 1}'"
        " FROM generate_series(1, 20000) n"
    )
    await rows.execute("ANALYZE foreign_usage")
    async with rows.database.begin() as tx:
        await tx.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        every = await dicts(tx, f"EXPLAIN {Q.foreign_use}")
        some = await dicts(tx, f"EXPLAIN {Q.foreign_use_of}", names=["n1"])
    plans = ["\n".join(row["QUERY PLAN"] for row in plan) for plan in (every, some)]
    assert "SubPlan" not in plans[0], plans[0]
    assert "Seq Scan on foreign_usage" not in plans[1], plans[1]


async def test_a_pod_larger_than_its_slot_counts_with_the_rest_of_it(rows: Rows) -> None:
    """One takes the slot, another has none, and a third is on a node where its job has nothing."""
    await rows.add_nodes(cpu_node("n0", cpu=8), cpu_node("n1", cpu=8))
    asked = request(cpu=1)
    await rows.see(workload("a", asked))
    await rows.match()
    await rows.see(workload("a", asked, pods=(asking("a0", 1),), is_suspended=False))
    (ungate,) = await rows.reconcile("a")
    there = ungate.to.name
    elsewhere = "n1" if there == "n0" else "n0"
    pods = (bound("a0", 5, there), bound("a1", 2, there), bound("a2", 3, elsewhere))
    await rows.see(workload("a", asked, pods=pods, is_suspended=False))
    await rows.reconcile("a")
    # What its pod grew by in place its slot grows by, too. What has no slot is unmanaged.
    assert await usage(rows, there) == (5, 2, 1)
    assert await usage(rows, elsewhere) == (0, 3, 5)

    await rows.see(workload("a", asked, pods=pods[:1], is_suspended=False))
    assert (await usage(rows, there))[1] == (await usage(rows, elsewhere))[1] == 0
    await rows.see(workload("a", asked, pods=pods[:2], is_suspended=False, result="Completed"))
    await rows.reconcile("a")
    assert await usage(rows, there) == (5, 2, 1)


async def test_a_pod_that_first_shows_larger_than_its_slot(rows: Rows) -> None:
    """It came ungated, as of a template that names its node, and asks for more than was decided."""
    await rows.add_nodes(cpu_node("n0", cpu=8))
    asked = request(cpu=1)
    await rows.see(workload("a", asked, is_pinnable=True))
    await rows.match()
    pinned = workload("a", asked, is_pinnable=True, pinned_to="n0", is_suspended=False)
    await rows.see(replace(pinned, pods=(bound("a0", 6, "n0"),)))
    await rows.reconcile("a")
    assert await usage(rows, "n0") == (1, 5, 2)
    assert "takes" in (await notices(rows, "a"))[0]


async def test_a_gated_pod_larger_than_its_slot_stays_gated(rows: Rows) -> None:
    await rows.add_nodes(cpu_node("n0", cpu=8))
    await rows.see(workload("a", request(2, cpu=1)))
    await rows.match()
    pods = (asking("small", 1), asking("wide", 7))
    await rows.see(workload("a", request(2, cpu=1), pods=pods, is_suspended=False))
    ungates: list[Ungate] = await rows.reconcile("a")
    assert [one.pod_uid for one in ungates] == ["small"]


async def release(rows: Rows) -> None:
    await rows.add_nodes(cpu_node("n0", cpu=8))
    await rows.see(workload("a", request(2, cpu=1)))
    await rows.match()
    await rows.execute(
        "UPDATE fluxjobs SET released_generation = 2, release_at = NULL WHERE uid = 'a'"
    )
    await rows.see(workload("a", request(2, cpu=1), is_suspended=False, generation=2))


async def row_of(rows: Rows) -> dict[str, Any]:
    (row,) = await rows.fetch(
        "SELECT state, vacate_by, reason, request, size, release_at FROM fluxjobs WHERE uid = 'a'"
    )
    return row


async def test_suspended_edited_and_resumed_is_decided_for_anew(rows: Rows) -> None:
    """Its old slots are given to none of its pods, and what it asks for now is what is matched."""
    await release(rows)
    edited = workload("a", request(2, cpu=3), is_suspended=True, generation=4)
    await rows.see(edited)
    assert (await row_of(rows))["vacate_by"] == AUTHOR
    resumed = but(edited, is_suspended=False, generation=5, pods=(asking("big", 3),))
    await rows.see(resumed)
    row = await row_of(rows)
    assert (row["vacate_by"], row["reason"]) == (CHANGED, CHANGED_REASON)
    assert row["release_at"] is not None  # it is suspended again
    assert await rows.reconcile("a") == []
    again = but(resumed, is_suspended=True, is_suspended_again=True, generation=6, pods=())
    await rows.see(again)
    await rows.reconcile("a")
    row = await row_of(rows)
    assert (row["state"], row["request"]) == ("Pending", again.request)
    await rows.match()
    assert await usage(rows, "n0") == (6, 0, 2)


async def test_resumed_as_it_was_keeps_its_slots(rows: Rows) -> None:
    await release(rows)
    seen = workload("a", request(2, cpu=1), is_suspended=True, generation=3)
    await rows.see(seen)
    await rows.see(but(seen, is_suspended=False, generation=4))
    row = await row_of(rows)
    assert (row["state"], row["vacate_by"]) == ("Allocated", None)


async def test_an_edit_whose_suspension_nobody_saw_is_found_by_what_is_asked(rows: Rows) -> None:
    await release(rows)
    before = workload("a", request(2, cpu=1), is_suspended=False, generation=2)
    now = workload("a", request(2, cpu=3), is_suspended=False, generation=5)
    await rows.see_after({"a": before}, now)
    assert (await row_of(rows))["vacate_by"] == CHANGED


def test_what_counts_as_another_shape() -> None:
    before = workload("a", request(2, cpu=1), generation=2)
    assert not is_reshaped(None, before)
    # Parallelism: what runs grows, and nothing of it is stopped.
    assert not is_reshaped(before, workload("a", request(4, cpu=1), generation=3))
    # A setting of ours, or an annotation: the object's spec is as it was.
    assert not is_reshaped(before, workload("a", request(2, cpu=2), generation=2))
    assert is_reshaped(before, workload("a", request(2, cpu=2), generation=3))
    # A LimitRange changed while it was released: its author has edited nothing.
    same = before.request
    assert not is_reshaped(before, workload("a", request(2, cpu=2), generation=3, authored=same))
    other = workload("a", request(2, cpu=2), generation=3).request
    assert is_reshaped(before, workload("a", request(2, cpu=1), generation=3, authored=other))
    bare = {"is_suspendable": False}
    assert not is_reshaped(before, workload("a", request(2, cpu=2), generation=3, **bare))
