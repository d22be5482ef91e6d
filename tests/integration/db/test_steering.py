"""Steering on real rows: each change by state, twice, by user. What accounting says of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from fluxqueue.db.reading import accounting
from fluxqueue.db.store import steering as store
from fluxqueue.db.store.desired_state import (
    Released,
    finish,
    read_pending_releases,
)
from fluxqueue.db.store.pending_actions import sweep
from fluxqueue.db.store.reconciling import reconcile
from fluxqueue.db.task_queue import TaskName
from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.holders import RELEASABLE
from tests.support import steering
from tests.support.pool_model import request
from tests.support.rows import Rows, cpu_node, pod, workload
from tests.support.running_rows import let_go, run, see_running

ALICE = "alice@host"


async def act(
    verb: Callable[..., Any], rows: Rows, *names: str, actor: str = ALICE, **more: object
) -> list[str]:
    """Run a command. Its messages, those refused with ``no:`` in front."""
    outcomes = await verb(rows.database, "default", names, actor, **more)
    return [one.message if one.is_done else f"no: {one.message}" for one in outcomes]


async def reason(rows: Rows, uid: str = "a") -> str:
    """Its reason."""
    return str(await rows.value("SELECT reason FROM fluxjobs WHERE uid = :uid", uid=uid))


async def test_what_was_held_stands_behind_what_was_not(rows: Rows) -> None:
    """What is held does not start. Released, it has a new place. Twice is once."""
    await rows.see(workload("a"), workload("b"))
    assert await act(steering.hold, rows, "a", "2") == ["is held", "is held"]
    assert await act(steering.hold, rows, "a") == [], "the spec says it already"
    await rows.execute("UPDATE fluxjobs SET overrides = overrides - 'spec' WHERE uid = 'a'")
    assert await act(steering.hold, rows, "a") == [f"is held by {ALICE} already"]
    await rows.add_nodes(cpu_node("n0", cpu=1))
    await rows.match()
    assert await rows.states() == {"a": "Held", "b": "Held"}
    assert await reason(rows) == f"held by {ALICE}"
    assert await act(steering.release, rows, "b", "a-job", "a") == [
        "is released",
        "is released",
        "is not held by hand",
    ]
    await rows.match()
    assert await rows.states() == {"a": "Pending", "b": "Allocated"}
    lines = await accounting.history(rows.database, "default", "a")
    assert [(line.actor, line.event) for line in lines] == [
        ("test", "Pending"),
        (ALICE, "hold"),
        (ALICE, "Held"),
        (ALICE, "release"),
        (ALICE, "Pending"),
    ]


async def test_a_release_leaves_what_its_author_holds(rows: Rows) -> None:
    """And an operator's hold gives way to the author's, not to the queue."""
    await rows.see(
        workload("a", held_by="author"),
        workload("b", held_by="author", has_hold=True),
        workload("c", is_paused=True),
    )
    assert await act(steering.release, rows, *"abc") == ["is not held by hand"] * 3
    assert await rows.states() == {"a": "Held", "b": "Held", "c": "Held"}
    assert await act(steering.hold, rows, "a") == ["is held"]
    await rows.see(workload("a", held_by="author", wanted=1, generation=9))
    assert await rows.value("SELECT held_by FROM fluxjobs WHERE uid = 'a'") == ALICE
    (told,) = await act(steering.release, rows, "a")
    assert told == f"is no longer held by {ALICE}, but suspended by its author"
    await rows.see(workload("a"), workload("b"), workload("c"))
    assert await rows.states() == {"a": "Pending", "b": "Pending", "c": "Pending"}
    assert await reason(rows) == ""


async def test_what_does_not_fit_the_state_is_refused_with_its_name(rows: Rows) -> None:
    """Running is not held or moved. What is over is over. A reserved name is no holder."""
    await run(rows)
    assert await act(steering.hold, rows, "a") == [
        "no: is Running: only what waits can be held; requeue or cancel it"
    ]
    assert await act(steering.steer, rows, "a", queue="default") == [
        "no: is Running: only what waits can be moved; requeue it first"
    ]
    await rows.see(workload("a", result="Completed", wanted=0))
    await rows.reconcile("a")
    await rows.execute("UPDATE fluxjobs SET overrides = overrides - 'spec' WHERE uid = 'a'")
    for verb in (steering.hold, steering.cancel, steering.requeue):
        (message,) = await act(verb, rows, "a")
        assert message.startswith("no: is Completed"), message
    await rows.see(workload("b"))
    assert await act(steering.hold, rows, "b", actor="author") == ["is held"]
    assert await rows.value("SELECT held_by FROM fluxjobs WHERE uid = 'b'") == "user author"


@pytest.mark.parametrize("holder", sorted(RELEASABLE))
async def test_what_fluxqueue_has_set_aside_is_released_by_hand(rows: Rows, holder: str) -> None:
    """As often as it is set aside."""
    await rows.see(workload("a"))
    for _ in range(2):
        await rows.execute(
            "UPDATE fluxjobs SET state = 'Held', held_by = :holder, reason = 'set aside'",
            holder=holder,
        )
        assert await act(steering.release, rows, "a") == ["is released"]
        assert await rows.states() == {"a": "Pending"}


async def test_cancel_asks_for_the_deletion_and_ends_when_it_has_happened(rows: Rows) -> None:
    """Waiting or running: nothing starts any more, and the row ends by what is seen."""
    await run(rows)
    await rows.see(workload("w", request(cpu=1)))
    assert [one.split(":")[0] for one in await act(steering.cancel, rows, "a", "w")] == [
        "is being cancelled",
        "is being cancelled",
    ]
    assert "by alice@host already" in str(await cancel_deleted(rows, of("a"), "somebody"))
    await see_running(rows)  # what is seen late does not take it back
    await rows.match()
    assert await rows.states() == {"a": "Running", "w": "Pending"}
    for uid in ("a", "w"):
        wanted = await rows.wanted(uid)
        assert wanted is not None
        assert wanted.is_deleted
    await rows.see(workload("a", is_deleting=True), workload("w", is_deleting=True))
    await rows.reconcile("a", "w")
    assert await rows.states() == {"a": "Cancelled", "w": "Cancelled"}
    assert await reason(rows) == await reason(rows, "w") == f"cancelled by {ALICE}"
    assert "is Cancelled" in str(await cancel_deleted(rows, of("a"), "somebody"))
    await rows.check()


async def test_requeue_waits_for_the_pods_and_keeps_the_place(rows: Rows) -> None:
    """Suspended by an effect. Slots come back pod by pod. Then it waits and runs again."""
    await run(rows, pods=2)
    await rows.see(workload("later", request(cpu=4)))
    (told,) = await act(steering.requeue, rows, "a")
    assert told.startswith("is being requeued")
    assert await act(steering.requeue, rows, "a") == [f"is being requeued by {ALICE} already"]
    wanted = await rows.wanted("a")
    assert wanted is not None
    assert wanted.is_suspended
    await rows.reconcile("a")
    assert (await rows.states())["a"] == "Running"  # its pods still run
    left = (pod("a-1", "Running", is_gated=False, is_terminating=True, node="n0"),)
    await rows.see(workload("a", request(2, cpu=1), pods=left, generation=3))
    await rows.reconcile("a")
    assert [state for _, _, state, _ in await rows.slots("a")] == ["returned", "held"]
    await rows.see(workload("a", request(2, cpu=1), generation=3))
    await rows.reconcile("a")
    assert await rows.states() == {"a": "Pending", "later": "Pending"}
    assert await reason(rows) == f"requeued by {ALICE}"
    assert await act(steering.requeue, rows, "a") == ["is Pending: it waits already"]
    (line,) = await accounting.runs(rows.database, "default", "a")
    assert (line.run, line.result, line.slots, line.nodes) == (1, "Requeued", 2, 1)
    await rows.match()
    assert (await rows.states())["a"] == "Allocated"
    assert await rows.value("SELECT requeues FROM fluxjobs WHERE uid = 'a'") == 1
    await rows.check()


async def test_dependencies_that_changed_while_it_ran_are_looked_at_when_it_waits_again(
    rows: Rows,
) -> None:
    """They are not looked at while it runs. Requeued it does not wait for that for ever."""
    await run(rows)
    edge = ({"type": "afterany", "job": "nobody"},)
    for edges in (edge, ()):
        await see_running(rows, depends_on=edges)
        await rows.reconcile(*await rows.take_tasks(TaskName.RECONCILE))
    await act(steering.requeue, rows, "a")
    await rows.see(workload("a", request(cpu=1), generation=3))
    while uids := await rows.take_tasks(TaskName.RECONCILE):
        await rows.reconcile(*uids)
    assert await rows.states() == {"a": "Pending"}
    await rows.match()
    assert await rows.states() == {"a": "Allocated"}


async def test_requeue_before_its_pods_are_seen_waits_until_there_are_none(rows: Rows) -> None:
    """Its template names its node: pods come without a gate, and its room is not yet another's."""
    asked = request(cpu=4)
    job = partial(workload, "a", asked, is_pinnable=True)
    await rows.add_nodes(cpu_node("n0", cpu=4))
    await rows.see(job(generation=1, is_idle=True))
    await rows.match()
    (pending,) = await read_pending_releases(rows.database, ["a"])
    await finish(rows.database, [Released(pending, is_made=True, generation=2, pinned_to="n0")])
    await act(steering.requeue, rows, "a")
    await rows.see(job(generation=1, is_idle=True))  # as it was before its release
    await rows.reconcile("a")
    assert await rows.states() == {"a": "Allocated"}
    (pending,) = await read_pending_releases(rows.database, ["a"])
    await finish(rows.database, [Released(pending, generation=2)])
    started = (pod("a-1", "Running", is_gated=False, is_terminating=True, node="n0"),)
    await rows.see(job(generation=3, pinned_to="n0", pods=started))
    await rows.reconcile("a")
    assert await rows.states() == {"a": "Running"}
    await rows.see(job(generation=3, pinned_to="n0", is_idle=True))
    await rows.reconcile("a")
    assert await rows.states() == {"a": "Pending"}
    await rows.check()


async def test_who_resumes_what_is_being_requeued_is_overruled(rows: Rows) -> None:
    """Its author resumes it while its pods end: it is suspended again, and waits its turn."""
    await run(rows)
    await act(steering.requeue, rows, "a")
    (pending,) = await read_pending_releases(rows.database, ["a"])
    await finish(rows.database, [Released(pending, generation=2)])
    assert await read_pending_releases(rows.database, ["a"]) == []
    await rows.see(workload("a", is_suspended=False, generation=2))  # seen late
    assert await read_pending_releases(rows.database, ["a"]) == []
    await rows.see(workload("a", is_suspended=False, generation=4))
    (pending,) = await read_pending_releases(rows.database, ["a"])
    assert pending.wanted is not None
    assert pending.wanted.is_suspended


async def test_a_late_suspension_of_ours_is_not_its_authors(rows: Rows) -> None:
    """Resumed by its author, it must be suspended till its turn, which comes before that."""
    await rows.add_nodes(cpu_node("n0"))
    await rows.see(workload("a", held_by="author", generation=1))
    await rows.see(workload("a", is_suspended=False, generation=2))
    (late,) = await read_pending_releases(rows.database, ["a"])
    await rows.match()
    await rows.see(workload("a", is_suspended=False, generation=2, has_affinity=True))
    await finish(rows.database, [Released(late, is_made=True, generation=2)])
    await rows.see(workload("a", is_suspended_again=True, generation=3))
    assert await rows.states() == {"a": "Allocated"}
    assert await rows.value("SELECT coalesce(author_hold, vacate_by) FROM fluxjobs") is None
    (pending,) = await read_pending_releases(rows.database, ["a"])
    await finish(rows.database, [Released(pending, is_made=True, generation=4)])
    await rows.see(workload("a", is_suspended=False, generation=4))
    await rows.see(workload("a", generation=5))
    assert await rows.value("SELECT author_hold FROM fluxjobs") == "suspended", "this one is his"


async def test_a_requeued_one_that_ends_first_has_ended(rows: Rows) -> None:
    """Its last pod succeeds before the suspension arrives."""
    await run(rows)
    await act(steering.requeue, rows, "a")
    await rows.see(workload("a", wanted=0, result="Completed", is_suspended=False))
    await rows.reconcile("a")
    assert await rows.states() == {"a": "Completed"}


async def test_a_bare_pod_is_not_requeued(rows: Rows) -> None:
    """It cannot be suspended."""
    await run(rows, workload_kind="Pod", is_suspendable=False)
    (message,) = await act(steering.requeue, rows, "a")
    assert message.startswith("no: is a Pod")


async def test_an_author_who_suspends_a_running_job_gets_it_held(rows: Rows) -> None:
    """Its slots come back with its pods, and resuming queues it again."""
    await run(rows, pods=2)
    ending = tuple(
        pod(f"a-{n}", "Running", is_gated=False, is_terminating=True, node="n0") for n in range(2)
    )
    stopped = workload("a", request(2, cpu=1), pods=ending, is_suspended=True, generation=3)
    await rows.see(stopped)
    assert await reason(rows) == "suspended by its author; goes back to the queue as its pods end"
    await rows.reconcile("a")
    assert (await rows.states())["a"] == "Running"
    assert await rows.wanted("a") is None  # its author's word stands
    await rows.see(workload("a", request(2, cpu=1), is_suspended=True, generation=3))
    await rows.reconcile("a")
    await rows.match()
    assert await rows.states() == {"a": "Held"}
    assert await reason(rows) == "suspended by its author"
    assert await rows.slots("a") == []
    await rows.see(workload("a", request(2, cpu=1), is_suspended=True, generation=3, wanted=1))
    assert await rows.states() == {"a": "Held"}
    await rows.see(workload("a", request(2, cpu=1), is_suspended=False, generation=4))
    assert await rows.states() == {"a": "Pending"}
    wanted = await rows.wanted("a")
    assert wanted is not None
    assert wanted.is_suspended  # until its turn
    await rows.match()
    assert await rows.states() == {"a": "Allocated"}
    await rows.check()


async def test_an_author_who_resumes_in_time_keeps_what_is_left(rows: Rows) -> None:
    """Suspended and resumed before its pods are gone: it never leaves."""
    await run(rows)
    ending = (pod("a-0", "Running", is_gated=False, is_terminating=True, node="n0"),)
    await rows.see(workload("a", pods=ending, is_suspended=True, generation=3))
    await rows.see(workload("a", pods=ending, is_suspended=False, generation=4))
    await rows.reconcile("a")
    fresh = (pod("a-9"),)
    await rows.see(workload("a", pods=fresh, is_suspended=False, generation=4))
    (ungate,) = await rows.reconcile("a")
    assert ungate.pod_uid == "a-9"


async def test_our_own_suspension_is_not_taken_for_the_authors(rows: Rows) -> None:
    """What is seen late, from before our release, changes nothing."""
    await rows.add_nodes(cpu_node("n0"))
    await rows.see(workload("a", generation=1))
    await rows.match()
    await let_go(rows, "a")
    await rows.see(workload("a", generation=1, wanted=1))
    await rows.reconcile("a")
    assert await rows.states() == {"a": "Allocated"}


async def test_priority_and_queue_by_hand_win_over_the_author(rows: Rows) -> None:
    """Also over later observations. Cleared, the author's counts again."""
    await rows.execute("INSERT INTO fluxqueues (name) VALUES ('batch')")
    await rows.see(workload("a", priority=3))
    assert await act(steering.steer, rows, "a", priority=9) == ["has priority 9"]
    assert await act(steering.steer, rows, "a", queue="batch") == ["is in queue batch"]
    assert await act(steering.steer, rows, "a", queue="x") == [
        "no: there is no queue x; known are batch, default"
    ]
    await rows.see(workload("a", priority=4))
    row = await rows.fetch("SELECT priority, queue FROM fluxjobs")
    assert row == [{"priority": 9, "queue": "batch"}]
    assert await act(steering.steer, rows, "a", priority=None) == ["has priority 4"]


async def test_every_run_is_in_the_books(rows: Rows) -> None:
    """Sums follow the slots' own times. What never ran is there too."""
    await run(rows, pods=2, user_name="bob")
    await rows.see(workload("never", request(cpu=99), user_name="bob"))
    await rows.execute("UPDATE allocation_slots SET given_at = now() - interval '1 hour'")
    await rows.execute(
        """UPDATE allocation_slots SET resources = '{"cpu": 1500, "nvidia.com/gpu": 2}'"""
    )
    await rows.see(workload("a", request(2, cpu=1), wanted=0, result="Failed", user_name="bob"))
    await rows.see(workload("never", is_deleting=True, user_name="bob"))
    await rows.reconcile("a", "never")
    (line,) = await accounting.use(rows.database, accounting.Period(), by=("user", "queue"))
    assert (line.user, line.queue, line.runs) == ("bob", "default", 2)
    assert float(line.cpu_h) == pytest.approx(3.0, abs=0.02)
    assert float(line.gpu_h) == pytest.approx(4.0, abs=0.02)
    (never,) = await accounting.runs(rows.database, "default", "never")
    assert (never.result, never.allocated_at, never.slots) == ("Cancelled", None, 0)
    with pytest.raises(InvalidInput, match="known are user, queue"):
        await accounting.use(rows.database, accounting.Period(), by=("color",))


async def test_a_refused_pod_gives_its_slot_back(rows: Rows) -> None:
    """Its replacement gets another, on another node where there is one."""
    await run(rows)
    await rows.add_nodes(cpu_node("n1"))
    refused = replace(pod("a-0", "Failed", is_gated=False, node="n0"), is_refused=True)
    await rows.see(workload("a", pods=(refused,), is_suspended=False, generation=2))
    await rows.reconcile("a")
    assert [state for _, _, state, _ in await rows.slots("a")] == ["returned"]
    await rows.see(workload("a", pods=(pod("a-1"),), is_suspended=False, generation=2))
    await rows.reconcile("a")
    await rows.match()
    (ungate,) = await rows.reconcile("a")
    assert (ungate.pod_uid, ungate.to.name) == ("a-1", "n1")
    await rows.check()


async def test_a_pod_stranded_on_a_node_that_is_gone_is_given_up(rows: Rows) -> None:
    """Released, bound to none: deleted, so that its Job makes another. A bound one is not."""
    await rows.add_nodes(cpu_node("n0"))
    await rows.see(workload("a", pods=(pod("p"),)))
    await rows.match()
    await rows.reconcile("a")
    await rows.see(workload("a", pods=(pod("p", is_gated=False),), is_suspended=False))
    await rows.reconcile("a")
    await rows.forget_tasks()
    await rows.add_nodes(gone=("n0",))
    assert await rows.asked(TaskName.RECONCILE) == ["a"]
    async with rows.database.begin() as tx:
        reconciled = await reconcile(tx, ["a"])
    assert [one.pod_uid for one in reconciled.evictions] == ["p"]
    await rows.forget_tasks()
    async with rows.database.begin() as tx:
        assert (await sweep(tx))["reconcile"] == 1, "until it is deleted"


def of(uid: str, namespace: str = "default") -> store.FluxJobOf:
    """The FluxJob of a workload of ``rows.workload``."""
    return store.FluxJobOf(namespace, f"{uid}-job", uid)


async def apply_spec_changes(
    rows: Rows, fluxjob: store.FluxJobOf, values: dict[str, object], by: dict[str, str]
) -> list[store.SteeringOutcome] | None:
    """What the controller does with a spec."""
    async with rows.database.begin() as tx:
        return await store.apply_spec_changes(tx, fluxjob, values, by)


async def cancel_deleted(
    rows: Rows, fluxjob: store.FluxJobOf, actor: str
) -> store.SteeringOutcome | None:
    """What the controller does with a deletion."""
    async with rows.database.begin() as tx:
        return await store.cancel_deleted(tx, fluxjob, actor)


async def test_a_fluxjob_that_lies_about_its_workload_steers_nothing(rows: Rows) -> None:
    """Made in a namespace of one's own, with the UID of another user's work."""
    await rows.see(workload("a"))
    lies = of("a", "mine")
    assert await apply_spec_changes(rows, lies, {"hold": True}, {"hold": "eve"}) is None
    assert await cancel_deleted(rows, lies, "eve") is None
    assert await rows.states() == {"a": "Pending"}


async def test_what_a_spec_says_is_heeded_once(rows: Rows) -> None:
    """By any user. Seen again, it changes nothing."""
    await rows.see(workload("a"))
    assert await apply_spec_changes(rows, of("nobody"), {"hold": True}, {}) is None
    said = {"hold": True, "priority": 7}
    by = {"hold": "bob", "priority": "eve"}
    outcomes = await apply_spec_changes(rows, of("a"), said, by)
    assert outcomes is not None
    assert [(one.reference, one.is_done) for one in outcomes] == [
        ("spec.hold", True),
        ("spec.priority", True),
    ]
    assert await rows.states() == {"a": "Held"}
    assert await reason(rows) == "held by bob"
    assert await apply_spec_changes(rows, of("a"), said, by) == []
    actors = "SELECT actor FROM history WHERE event IN ('hold', 'priority') ORDER BY id"
    assert [row["actor"] for row in await rows.fetch(actors)] == ["bob", "eve"]
    assert await apply_spec_changes(rows, of("a"), {}, by) is not None
    assert await rows.states() == {"a": "Pending"}
    assert await rows.value("SELECT NOT overrides ? 'priority' AND priority = 0 FROM fluxjobs")


async def test_what_a_spec_says_and_cannot_be_is_told_and_not_done_later(rows: Rows) -> None:
    """A queue that is not there, a hold of what runs."""
    await run(rows)
    said = {"hold": True, "queue": "nowhere"}
    outcomes = await apply_spec_changes(rows, of("a"), said, {"hold": "bob", "queue": "bob"})
    assert outcomes is not None
    assert [one.message.split(":")[0] for one in outcomes if not one.is_done] == [
        "is Running",
        "is Running",
    ]
    assert await apply_spec_changes(rows, of("a"), said, {}) == []
    assert await rows.states() == {"a": "Running"}


async def test_a_begin_time_set_by_hand_wins_over_the_authors(rows: Rows) -> None:
    """Also when the author's is seen again. Removed, it may start at any time."""
    later = "2100-01-01T00:00:00Z"
    await rows.see(workload("a"))
    await apply_spec_changes(rows, of("a"), {"beginTime": later}, {"beginTime": "bob"})
    await rows.see(workload("a", begin_at_s=1))
    assert await rows.value("SELECT blocked_by FROM fluxjobs") == "begin-time"
    assert await reason(rows) == f"is not to start before {later}"
    await apply_spec_changes(rows, of("a"), {}, {"beginTime": "bob"})
    await rows.see(workload("a", begin_at_s=4102444800))
    assert await rows.value("SELECT blocked_by FROM fluxjobs") is None


async def test_the_deletion_of_a_fluxjob_cancels_its_workload(rows: Rows) -> None:
    """As the command does. What has ended stays as it is."""
    await rows.see(workload("a"), workload("b", result="Completed", wanted=0))
    await rows.reconcile("b")
    cancelled = await cancel_deleted(rows, of("a"), "somebody")
    assert cancelled is not None
    assert cancelled.is_done
    wanted = await rows.wanted("a")
    assert wanted is not None
    assert wanted.is_deleted
    over = await cancel_deleted(rows, of("b"), "somebody")
    assert over is not None
    assert not over.is_done


async def test_a_cancellation_by_the_spec_names_its_user_and_stays(rows: Rows) -> None:
    """It comes after the other fields of the same patch. It cannot be withdrawn."""
    await rows.see(workload("a"))
    both = {"cancel": True, "priority": 7}
    done = await apply_spec_changes(rows, of("a"), both, dict.fromkeys(both, "bob"))
    assert done is not None
    assert [(one.reference, one.is_done) for one in done] == [
        ("spec.priority", True),
        ("spec.cancel", True),
    ]
    assert await rows.value("SELECT cancel_by FROM fluxjobs") == "bob"
    (late,) = await apply_spec_changes(rows, of("a"), {"priority": 7}, {"cancel": "eve"}) or ()
    assert not late.is_done
    assert "is being cancelled by bob" in late.message
    wanted = await rows.wanted("a")
    assert wanted is not None
    assert wanted.is_deleted


async def test_a_cancellation_that_never_began_can_be_removed(rows: Rows) -> None:
    """The pods would be made again, so the row refuses it."""
    await rows.see(workload("a", made_by="ReplicaSet web"))
    (refused,) = await apply_spec_changes(rows, of("a"), {"cancel": True}, {"cancel": "bob"}) or ()
    assert not refused.is_done
    assert "ReplicaSet web would make again" in refused.message
    (removed,) = await apply_spec_changes(rows, of("a"), {}, {"cancel": "bob"}) or ()
    assert removed.is_done


@pytest.mark.parametrize(
    ("field", "value"),
    [("beginTime", "999999-01-01T00:00:00Z"), ("beginTime", "at noon"), ("priority", 2**40)],
)
async def test_a_value_that_no_row_takes_costs_only_itself(
    rows: Rows, field: str, value: object
) -> None:
    """All other fields are applied. It is reported, and not tried again until it is changed."""
    await rows.see(workload("a", begin_at_s=None))
    said = {"hold": True, field: value}
    outcomes = await apply_spec_changes(rows, of("a"), said, dict.fromkeys(said, "bob"))
    assert outcomes is not None
    assert {one.reference: one.is_done for one in outcomes} == {
        "spec.hold": True,
        f"spec.{field}": False,
    }
    assert await rows.states() == {"a": "Held"}
    assert await apply_spec_changes(rows, of("a"), said, {}) == []
