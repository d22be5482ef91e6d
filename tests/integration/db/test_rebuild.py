"""Rows taken over from the cluster: numbers, slots, releases half done, and rows from yesterday."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy.exc import IntegrityError

from fluxqueue.db import leadership
from fluxqueue.db.store.cluster_rows import save_foreign
from fluxqueue.db.store.desired_state import read_pending_releases
from fluxqueue.db.store.rebuild import Found, TakenOver, prepare, put_back, take_over
from fluxqueue.db.task_queue import TaskName
from fluxqueue.fluxjob.holders import ANNOTATION, author_reason
from fluxqueue.fluxjob.node import ForeignPod
from fluxqueue.fluxjob.states import FluxJobState as S
from fluxqueue.scheduler.adoption import PlacedPod
from fluxqueue.scheduler.record import DecisionRecord
from fluxqueue.scheduler.resource_set import GivenSlots
from tests.support.pool_model import request
from tests.support.rows import Rows, but, cpu_node, pod, workload

CPU = {"cpu": 1, "pods": 1}


def _record(
    state: S, jobid: int | None, *nodes: str, version: int = 9, **more: Any
) -> DecisionRecord:
    given = GivenSlots(tuple((n, {"cpu": 1}) for n in nodes), 100, None) if nodes else None
    return DecisionRecord(
        f"flux-{jobid}", state=state, jobid=jobid, version=version, given=given, **more
    )


def _found(
    uid: str, record: DecisionRecord | None, *nodes: str, size: int = 1, **more: Any
) -> Found:
    """A workload with pods that run on ``nodes``."""
    run = [pod(f"{uid}-{n}", "Running", is_gated=False, node=node) for n, node in enumerate(nodes)]
    seen = workload(uid, request(size, cpu=1), is_suspended=not nodes, pods=tuple(run))
    placed = tuple(PlacedPod(p.uid, p.name, p.node, {"cpu": 1}, p.phase) for p in run)
    return Found(but(seen, **more), record, placed)


async def _take(rows: Rows, *found: Found) -> TakenOver:
    async with rows.database.begin() as tx:
        return await take_over(tx, found)


async def _jobids(rows: Rows) -> dict[str, int]:
    found = await rows.fetch("SELECT uid, jobid FROM fluxjobs")
    return {row["uid"]: row["jobid"] for row in found}


async def test_numbers_are_kept_and_new_ones_come_after(rows: Rows) -> None:
    """Also where two claim the same: one has it, the other gets a new one."""
    await rows.add_nodes(cpu_node("n0"))
    taken = await _take(
        rows,
        _found("a", _record(S.RUNNING, 70, "n0"), "n0"),
        _found("b", _record(S.PENDING, 12)),
        _found("c", _record(S.PENDING, 12)),
        _found("d", None),
    )
    assert (taken.created, taken.adopted) == (4, 1)
    jobids = await _jobids(rows)
    assert (jobids["a"], jobids["b"]) == (70, 12)
    assert 70 < jobids["c"] < jobids["d"]
    await rows.see(workload("later"))
    assert (await _jobids(rows))["later"] > jobids["d"]
    await rows.check()


async def test_a_release_half_done_goes_on(rows: Rows) -> None:
    """Allocated, the Job perhaps unsuspended, its pods gated or not made yet: the same slots."""
    await rows.add_nodes(cpu_node("n0", cpu=2), cpu_node("n1", cpu=2))
    half = _found("a", _record(S.ALLOCATED, 1, "n1", "n0"), size=2, is_suspended=False)
    gated = replace(half, seen=replace(half.seen, pods=(pod("a-0"), pod("a-1"))))
    await _take(rows, gated, _found("b", _record(S.ALLOCATED, 2, "n0")))
    assert await rows.states() == {"a": "Allocated", "b": "Allocated"}
    assert set(await rows.asked(TaskName.RELEASE)) == {"a", "b"}
    assert {u.pod_uid: u.to.name for u in await rows.reconcile("a")} == {"a-0": "n1", "a-1": "n0"}
    assert [slot[1] for slot in await rows.slots("b")] == ["n0"]
    await rows.match()
    await rows.check()


async def test_a_slot_that_another_has_by_now_is_not_claimed(rows: Rows) -> None:
    """``a`` gave a slot back that ``b`` was given, and R still lists it. ``f`` is of others."""
    await rows.add_nodes(cpu_node("n0", cpu=1), cpu_node("n1", cpu=1), cpu_node("n2", cpu=1))
    async with rows.database.begin() as tx:
        await save_foreign(tx, [ForeignPod("f", "x", "f", "n2", {"cpu": 1})], [])
    await _take(
        rows,
        _found("a", _record(S.RUNNING, 1, "n0", "n1", "n2"), "n0", size=3),
        _found("b", _record(S.RUNNING, 2, "n1"), "n1"),
        _found("c", _record(S.ALLOCATED, 3, "n2"), is_suspended=False),
    )
    await rows.check()
    held = [(slot[1], slot[2]) for slot in await rows.slots("a")]
    assert held == [("n0", "held"), ("n1", "returned"), ("n2", "returned")]
    assert (await rows.states())["c"] == "Pending", "what it had is taken: it waits again"
    assert "c" in await rows.asked(TaskName.RELEASE), "and is suspended until its turn comes"


async def test_page_by_page_as_at_once(rows: Rows) -> None:
    """No job of an earlier page is given what a pod of a later one has, or a number of its own."""
    await rows.add_nodes(cpu_node("n0", cpu=1), cpu_node("n1", cpu=1))
    await rows.see(workload("old"))
    async with rows.database.begin() as tx:
        await prepare(tx, ["old"], highest_jobid=9)
    pages = (
        ({"n1": 1}, _found("new", None)),
        ({"n1": 1}, _found("a", _record(S.RUNNING, 2, "n0", "n1"), "n0", size=2)),
        ({}, _found("b", _record(S.RUNNING, 9, "n1"), "n1")),
    )
    for held, found in pages:
        beside = {(node, name): cpu for node, cpu in held.items() for name in CPU}
        async with rows.database.begin() as tx:
            await take_over(tx, [found], beside)
    await rows.check()
    assert [(slot[1], slot[2]) for slot in await rows.slots("a")] == [
        ("n0", "held"),
        ("n1", "returned"),
    ]
    jobids = await _jobids(rows)
    assert (jobids["a"], jobids["b"]) == (2, 9)
    assert jobids["new"] > 9


async def test_what_older_rows_had_given_is_free_before_the_first_page(rows: Rows) -> None:
    """Rows of yesterday have ``a`` on n0, where ``b`` runs with a slot to come by now."""
    await rows.add_nodes(cpu_node("n0", cpu=2), cpu_node("n1", cpu=2))
    await _take(rows, _found("a", _record(S.RUNNING, 1, "n0", "n0"), "n0", "n0", size=2))
    async with rows.database.begin() as tx:
        await prepare(tx, ["a"], highest_jobid=2)
    await _take(rows, _found("b", _record(S.RUNNING, 2, "n0", "n0", version=30), "n0", size=2))
    await _take(
        rows, _found("a", _record(S.RUNNING, 1, "n1", "n1", version=30), "n1", "n1", size=2)
    )
    await rows.check()
    assert [(slot[1], slot[2]) for slot in await rows.slots("b")] == [
        ("n0", "held"),
        ("n0", "free"),
    ]


async def test_who_cannot_be_taken_over_has_what_its_pods_use(rows: Rows) -> None:
    """A page was prepared that then could not be written: it runs on, and its room is its own."""
    await rows.add_nodes(cpu_node("n0", cpu=2), cpu_node("n1", cpu=2))
    a = _found("a", _record(S.RUNNING, 1, "n0", "n0", "n1"), "n0", "n0", size=3)
    await _take(rows, a, _found("b", _record(S.RUNNING, 2, "n1"), "n1"))
    async with rows.database.begin() as tx:
        await prepare(tx, ["a", "b"], highest_jobid=2)
        await put_back(tx, ["a"])
    await _take(rows, _found("b", _record(S.RUNNING, 2, "n1", version=30), "n1"))
    assert [slot[1:3] for slot in await rows.slots("a")] == [
        ("n0", "held"),
        ("n0", "held"),
        ("n1", "returned"),
    ]
    await rows.check()
    await rows.see(workload("c", request(2, cpu=1)))
    await rows.match()
    assert (await rows.states())["c"] == "Pending", "one cpu is left, on n1"
    async with rows.database.begin() as tx:
        await put_back(tx, ["a", "b", "c"])
    await rows.check()


async def test_what_ended_stays_ended_and_is_told_once(rows: Rows) -> None:
    """One end in the audit trail, its number and nodes as before. No Event is emitted again."""
    record = _record(S.COMPLETED, 5, "n0", started_at_s=110, ended_at_s=130)
    await _take(rows, _found("a", record, result="Completed", wanted=0))
    assert await rows.states() == {"a": "Completed"}
    ends = "SELECT count(*) FROM history WHERE uid = 'a' AND event = 'Completed'"
    assert await rows.value(ends) == 1
    assert await rows.value("SELECT extract(epoch FROM ended_at) FROM fluxjobs") == 130
    used = "SELECT slots, cpu_s FROM accounting"
    assert await rows.fetch(used) == [{"slots": 1, "cpu_s": pytest.approx(0.03)}]
    assert await rows.value("SELECT published ->> 'told' = state FROM fluxjobs")
    await rows.check()


async def test_states_are_set_at_once_and_history_says_so(rows: Rows) -> None:
    """A waiting row becomes a running one, without the states between. Other writers may not."""
    await rows.add_nodes(cpu_node("n0"))
    await rows.see(workload("a"))
    await rows.execute("DELETE FROM history")
    await _take(rows, _found("a", _record(S.RUNNING, 5, "n0", started_at_s=110), "n0"))
    assert await rows.fetch(
        "SELECT event, detail ->> 'from' AS was, detail -> 'rebuilt' AS how FROM history"
    ) == [{"event": "Running", "was": "Pending", "how": True}]
    assert await rows.value("SELECT count(*) FROM accounting") == 0
    await rows.see(workload("b"))
    with pytest.raises(IntegrityError, match="Pending -> Running is not a transition"):
        await rows.execute("UPDATE fluxjobs SET state = 'Running' WHERE uid = 'b'")


async def test_a_group_whose_pods_have_ended_gathers_no_more(rows: Rows) -> None:
    """One has ended with all its pods, of one a pod is left, and one had nothing to keep."""
    await rows.add_nodes(cpu_node("n0", cpu=2))
    gathered = {"is_gathered": True, "gather_reason": "missing", "gather_s": 60}
    await _take(
        rows,
        _found(
            *("a", _record(S.COMPLETED, 1, "n0", started_at_s=110, ended_at_s=130)),
            **{"result": "Completed", "wanted": 0, "missing": 2, **gathered},
        ),
        _found("b", _record(S.RUNNING, 2, "n0", "n0"), "n0", missing=1, **gathered),
        _found("c", _record(S.ALLOCATED, 3, "gone", "gone"), size=2, missing=2, **gathered),
    )
    assert await rows.states() == {"a": "Completed", "b": "Running", "c": "Gathering"}
    found = await rows.fetch("SELECT observed FROM fluxjobs ORDER BY uid")
    assert [row["observed"]["missing"] for row in found] == [2, 1, 2]
    await rows.check()


async def test_slots_of_unequal_pods_keep_their_kinds(rows: Rows) -> None:
    """Half released, its other pods get what was theirs: they are not matched anew."""
    await rows.add_nodes(cpu_node("n0", cpu=3))
    record = _record(S.ALLOCATED, 1, "n0", "n0")
    assert record.given is not None
    record = replace(record, given=replace(record.given, kinds=("small", "large")))
    half = _found("a", record, size=2, is_suspended=False)
    pods = (replace(pod("a-0"), kind="large"), replace(pod("a-1"), kind="small"))
    await _take(rows, replace(half, seen=replace(half.seen, pods=pods)))
    assert sorted(one.pod_uid for one in await rows.reconcile("a")) == ["a-0", "a-1"]
    held = await rows.fetch("SELECT kind, pod_uid FROM allocation_slots ORDER BY number")
    assert [tuple(row.values()) for row in held] == [("small", "a-1"), ("large", "a-0")]
    await rows.check()


async def test_what_an_operator_set_is_set_again(rows: Rows) -> None:
    """Held by hand, with a priority and a queue of its own."""
    record = _record(S.HELD, 5, held_by="ann", set_priority=7, set_queue="fast", place=9)
    await _take(rows, _found("a", record))
    (row,) = await rows.fetch(
        "SELECT state, held_by, overrides -> 'priority' AS set_priority, priority, queue, place"
        " FROM fluxjobs"
    )
    assert row == {
        "state": "Held",
        "held_by": "ann",
        "set_priority": 7,
        "priority": 7,
        "queue": "fast",
        "place": 9,
    }


async def test_the_reason_of_a_hold_is_kept(rows: Rows) -> None:
    """Whatever holds it: an administrator, a failed start, its annotation, its author."""
    failed = "its pods did not start in 3 tries: no node took them"
    by_annotation = "held by its annotation fluxqueue/hold"
    author = {"held_by": "author", "author_hold": "suspended"}
    noted = {"has_hold": True, "held_by": "author"}
    await _take(
        rows,
        _found("admin", _record(S.HELD, 1, held_by="admin", reason="held by admin")),
        _found("start", _record(S.HELD, 2, held_by="start", reason=failed)),
        _found("noted", _record(S.HELD, 3, held_by="author", reason=by_annotation), **noted),
        _found("fresh", None, **noted),
        _found("stopped", _record(S.HELD, 4, **author, reason="suspended by its author")),
        _found("let-go", _record(S.HELD, 5, held_by="author", reason=by_annotation)),
    )
    told = await rows.fetch("SELECT uid, state, reason FROM fluxjobs ORDER BY uid")
    found = {row["uid"]: (row["state"], row["reason"]) for row in told}
    assert found.pop("let-go") == ("Pending", "")
    assert found == {
        "admin": ("Held", "held by admin"),
        "start": ("Held", failed),
        "noted": ("Held", by_annotation),
        "fresh": ("Held", author_reason(ANNOTATION)),
        "stopped": ("Held", "suspended by its author"),
    }
    # A controller that begins anew looks at all of them once more.
    await rows.see(workload("admin"))
    assert await rows.value("SELECT reason FROM fluxjobs WHERE uid = 'admin'") == "held by admin"


async def test_what_its_author_suspended_stays_suspended(rows: Rows) -> None:
    """While it waited, or while it ran: no release goes out, and it waits until it is resumed."""
    await rows.add_nodes(cpu_node("n0", cpu=4))
    told = {"held_by": "author", "author_hold": "suspended"}
    await _take(
        rows,
        _found("waited", _record(S.HELD, 1, **told)),
        _found("ran", _record(S.RUNNING, 2, "n0")),
        _found("unheld", _record(S.HELD, 3, held_by="author", reason="held by its annotation")),
    )
    assert await rows.asked(TaskName.RELEASE) == []
    for uid in ("waited", "ran", "unheld"):
        await rows.see(workload(uid, generation=7))
    await rows.reconcile("ran")
    assert await rows.states() == {"waited": "Held", "ran": "Held", "unheld": "Pending"}
    await rows.see(workload("waited", is_suspended=False, generation=8))
    assert (await rows.states())["waited"] == "Pending"
    await rows.check()


async def test_what_waits_gated_tells_itself_that_its_author_suspended_it(rows: Rows) -> None:
    """With a record or without: no release goes out that would resume it."""
    facts: dict[str, Any] = {"waits_gated": True, "generation": 2}
    await _take(
        rows,
        _found("unknown", None, **facts),
        _found("waited", _record(S.PENDING, 1), **facts),
        _found("ours", None, **{**facts, "is_suspended_again": True}),
    )
    assert await rows.asked(TaskName.RELEASE) == ["ours"]
    assert await rows.states() == {"unknown": "Held", "waited": "Held", "ours": "Pending"}
    await rows.see(workload("unknown", is_suspended=False, **{**facts, "generation": 3}))
    assert (await rows.states())["unknown"] == "Pending"
    await rows.check()


async def test_an_unreadable_record_leaves_the_pods(rows: Rows) -> None:
    """No R: the pods hold slots where they run, and keep them."""
    await rows.add_nodes(cpu_node("n0", cpu=2), cpu_node("n1", cpu=2))
    await _take(rows, _found("a", _record(S.RUNNING, 3), "n1", "n0", size=2))
    assert {(s[1], s[3]) for s in await rows.slots("a")} == {("n1", "a-0"), ("n0", "a-1")}
    await rows.check()


async def test_rows_of_yesterday_follow_the_cluster(rows: Rows) -> None:
    """Running elsewhere, waiting again, held, over: whatever the older row says."""
    await rows.add_nodes(*(cpu_node(f"n{n}", cpu=1) for n in range(3)))
    for uid in ("moved", "back", "held", "over"):
        await rows.see(workload(uid))
    await rows.match()
    before = await rows.slots("moved")
    other = next(n for n in ("n0", "n1", "n2") if n != before[0][1])
    taken = await _take(
        rows,
        _found("moved", _record(S.RUNNING, 1, other, version=50), other),
        _found("back", _record(S.PENDING, 2, version=50), is_suspended=False),
        _found("held", _record(S.HELD, 3, version=50, held_by="ann")),
        _found("over", _record(S.FAILED, 4, other, version=50), result="Failed", wanted=0),
    )
    assert (taken.created, taken.corrected, taken.adopted) == (0, 4, 1)
    expected = {"moved": "Running", "back": "Pending", "held": "Held", "over": "Failed"}
    assert await rows.states() == expected
    assert [(slot[1], slot[3]) for slot in await rows.slots("moved")] == [(other, "moved-0")]
    assert await rows.asked(TaskName.RELEASE) != []
    assert await rows.fetch("SELECT uid, run, result FROM accounting") == [
        {"uid": "over", "run": 1, "result": "Failed"}
    ]
    assert await rows.value("SELECT min(version) FROM fluxjobs") > 50
    await rows.check()
    await rows.match()
    await rows.check()


async def test_a_crash_in_the_middle_is_no_crash(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One transaction: it begins anew from nothing, and numbers are still those of before."""
    from fluxqueue.db.store import rebuild

    await rows.add_nodes(cpu_node("n0"))
    found = _found("a", _record(S.RUNNING, 70, "n0"), "n0")

    async def die(*_: Any) -> None:
        raise RuntimeError("kill -9")

    with monkeypatch.context() as patch:
        patch.setattr(rebuild, "_ask", die)
        with pytest.raises(RuntimeError):
            await _take(rows, found)
    assert await rows.states() == {}
    await _take(rows, found)
    assert await _jobids(rows) == {"a": 70}
    await _take(rows, found)
    assert await rows.states() == {"a": "Running"}
    await rows.check()


async def test_nobody_decides_before_a_controller_has_looked(rows: Rows) -> None:
    """A term that has begun, and one with a silent holder. Then the queue goes on."""
    await rows.add_nodes(cpu_node("n0"))
    await rows.see(workload("a"))
    term = await leadership.seize(rows.database, leadership.CONTROLLER, "c")
    await rows.match()
    assert await rows.states() == {"a": "Pending"}
    async with rows.database.begin() as tx:
        assert await leadership.confirm(tx, leadership.CONTROLLER, term=term, duration_s=60)
    await rows.match()
    assert await rows.states() == {"a": "Allocated"}
    await rows.see(workload("b"))
    await rows.execute("UPDATE leadership SET expires_at = now() WHERE role = 'controller'")
    await rows.match()
    assert (await rows.states())["b"] == "Pending"


async def test_what_is_held_and_was_let_go_meanwhile_is_suspended_again(rows: Rows) -> None:
    """Its author unsuspended it while the database was away. An operator holds it."""
    record = _record(S.HELD, 5, held_by="ann")
    await _take(rows, _found("a", record, is_suspended=False))
    assert await rows.states() == {"a": "Held"}
    (pending,) = await read_pending_releases(rows.database, ["a"])
    assert pending.wanted is not None
    assert pending.wanted.is_suspended
