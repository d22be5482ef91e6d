"""Dependencies and begin times on real rows: what is looked at, and what becomes of names."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fluxqueue.db.queries import Q
from fluxqueue.db.task_queue import TaskName
from fluxqueue.fluxjob.dependency import DependencyKind, Edge, Target, outcome
from fluxqueue.fluxjob.states import FluxJobState
from tests.support.pool_model import request
from tests.support.rows import Rows, cpu_node, workload


def edges(text: str) -> tuple[dict[str, str], ...]:
    """``afterok:a afterany:b`` as an observation carries it."""
    pairs = [word.split(":") for word in text.split()]
    return tuple({"type": kind, "job": name} for kind, name in pairs)


async def look(rows: Rows) -> None:
    """Drain what is due, until nothing is."""
    while uids := await rows.take_tasks(TaskName.RECONCILE):
        await rows.reconcile(*uids)


async def end(rows: Rows, uid: str, result: str = "Completed") -> None:
    """It ends while it waits. For its dependents that is an end like any other."""
    await rows.see(workload(uid, wanted=0, result=result))
    await look(rows)


async def told(rows: Rows, uid: str) -> tuple[str, str | None, str | None, str]:
    """State, held_by, blocked_by and reason."""
    (row,) = await rows.fetch(
        "SELECT state, held_by, blocked_by, reason FROM fluxjobs WHERE uid = :uid", uid=uid
    )
    return row["state"], row["held_by"], row["blocked_by"], row["reason"]


@pytest.mark.parametrize("has_started", [False, True])
async def test_sql_knows_the_same_rule(rows: Rows, has_started: bool) -> None:
    """Every kind in every state."""
    answers = await rows.fetch(
        "SELECT k, s, fluxjob_dependency_outcome(k, s, CASE WHEN :started THEN now() END) AS o"
        " FROM unnest(CAST(:kinds AS text[])) k, unnest(CAST(:states AS text[])) s",
        started=has_started,
        kinds=[str(kind) for kind in DependencyKind],
        states=[str(state) for state in FluxJobState],
    )
    for row in answers:
        target = Target(1, FluxJobState(row["s"]), has_started)
        assert row["o"] == outcome(Edge(DependencyKind(row["k"]), "x", target)), row


async def test_afterok_waits_and_is_let_go(rows: Rows) -> None:
    """It is beside the queue, with the reason, until what it names has completed."""
    await rows.add_nodes(cpu_node("n0"))
    await rows.see(workload("a"), workload("b", depends_on=edges("afterok:a")))
    await look(rows)
    assert await told(rows, "b") == (
        "Pending", None, "dependency", "depends on a (job 1), which is Pending",
    )  # fmt: skip
    await rows.match()
    assert await rows.states() == {"a": "Allocated", "b": "Pending"}
    await rows.see(workload("a", wanted=0, result="Completed"))
    await rows.reconcile("a")
    await look(rows)
    assert await told(rows, "b") == ("Pending", None, None, "")
    await rows.match()
    assert (await rows.states())["b"] == "Allocated"


async def test_a_failed_dependency_holds_and_its_successor_lets_go(rows: Rows) -> None:
    """A name stands for the newest workload that has it, as long as the edge is open."""
    await rows.see(workload("a"), workload("b", depends_on=edges("afterok:a")))
    await end(rows, "a", "Failed")
    state, held_by, _, reason = await told(rows, "b")
    assert (state, held_by) == ("Held", "dependency")
    assert reason.startswith("can never run: afterok:a (job 1 is Failed)")
    await rows.see(workload("a2", workload_name="a", name="a-job"))
    await look(rows)
    assert (await told(rows, "b"))[:3] == ("Pending", None, "dependency")
    await end(rows, "a2")
    assert (await told(rows, "b"))[2] is None


async def test_an_unknown_name_is_waited_for(rows: Rows) -> None:
    """Not lost, not refused. It resolves when that is submitted."""
    await rows.see(workload("b", depends_on=edges("afterok:a")))
    await look(rows)
    assert (await told(rows, "b"))[3] == "depends on a, which does not exist yet"
    await rows.see(workload("a"))
    await look(rows)
    assert (await told(rows, "b"))[3] == "depends on a (job 2), which is Pending"


async def test_a_number_is_a_jobid_and_counts_in_its_namespace(rows: Rows) -> None:
    """Names and numbers of other namespaces mean nothing here."""
    await rows.see(workload("a"), workload("elsewhere", namespace="other"))
    await rows.see(workload("b", depends_on=edges("afterany:1")))
    await rows.see(workload("c", depends_on=edges("afterany:2 afterany:elsewhere")))
    await end(rows, "a")
    await rows.see(workload("elsewhere", namespace="other", wanted=0, result="Completed"))
    await look(rows)
    assert (await told(rows, "b"))[2] is None
    assert "does not exist" in (await told(rows, "c"))[3]


async def test_what_is_gone_is_found_by_its_number_only(rows: Rows) -> None:
    """A Job of the same name is yet to come, for all we know."""
    await rows.see(workload("a"))
    await end(rows, "a")
    await rows.execute("UPDATE fluxjobs SET is_gone = true")
    await rows.see(
        workload("b", depends_on=edges("afterok:a")), workload("c", depends_on=edges("afterok:1"))
    )
    await look(rows)
    assert "does not exist" in (await told(rows, "b"))[3]
    assert (await told(rows, "c"))[2] is None


async def test_a_circle_is_held_and_named_until_it_is_opened(rows: Rows) -> None:
    """All of it, whichever user closed it. Jobs behind it wait."""
    await rows.see(workload("a", depends_on=edges("afterok:b")))
    await rows.see(workload("behind", depends_on=edges("afterany:a")))
    await rows.see(workload("b", depends_on=edges("afterany:c")))
    await rows.see(workload("c", depends_on=edges("after:a")))
    await look(rows)
    for uid, circle in (("a", "a -> b -> c -> a"), ("b", "b -> c -> a -> b")):
        state, held_by, _, reason = await told(rows, uid)
        assert (state, held_by) == ("Held", "dependency")
        assert circle in reason
    assert (await told(rows, "behind"))[0] == "Pending"
    await rows.see(workload("c"))
    await look(rows)
    assert {uid: (await told(rows, uid))[0] for uid in "abc"} == dict.fromkeys("abc", "Pending")
    await end(rows, "c")
    await end(rows, "b")
    assert (await told(rows, "a"))[2] is None


async def test_a_held_dependent_is_looked_at_when_it_is_let_go(rows: Rows) -> None:
    """Its author's hold does not hide what it depends on."""
    seen = workload("b", depends_on=edges("afterok:a"), held_by="author", has_hold=True)
    await rows.see(workload("a"), seen)
    await look(rows)
    await end(rows, "a", "Failed")
    assert (await told(rows, "b"))[:2] == ("Held", "author")
    await rows.see(workload("b", depends_on=edges("afterok:a")))
    await look(rows)
    assert (await told(rows, "b"))[:2] == ("Held", "dependency")
    await rows.see(workload("b"))
    await look(rows)
    assert (await told(rows, "b"))[:3] == ("Pending", None, None)


async def test_after_is_satisfied_by_a_start_and_stays_so(rows: Rows) -> None:
    """Also if what has started is requeued."""
    await rows.add_nodes(cpu_node("n0"))
    await rows.see(workload("a"), workload("b", depends_on=edges("after:a")))
    await rows.match()
    await rows.execute("UPDATE fluxjobs SET state = 'Running' WHERE uid = 'a'")
    await look(rows)
    assert (await told(rows, "b"))[2] is None
    assert await rows.value("SELECT is_satisfied FROM dependencies") is True


async def test_a_begin_time_is_waited_for_by_a_task(rows: Rows) -> None:
    """No cycle looks at it, and the sweep wakes it when its time has come. The past is no wait."""
    await rows.add_nodes(cpu_node("n0"))
    await rows.see(workload("past", begin_at_s=1), workload("late", begin_at_s=4_000_000_000))
    await look(rows)
    await rows.match()
    assert await rows.states() == {"past": "Allocated", "late": "Pending"}
    assert (await told(rows, "late"))[2:] == (
        "begin-time", "is not to start before 2096-10-02T07:06:40Z",
    )  # fmt: skip
    assert await rows.asked(TaskName.RECONCILE) == ["late"]
    assert await rows.take_tasks(TaskName.RECONCILE) == []
    await rows.execute("UPDATE fluxjobs SET begin_at = now() + interval '20 ms' WHERE uid = 'late'")
    await rows.execute("SELECT pg_sleep(0.03)")
    await look(rows)
    assert (await told(rows, "late"))[2:] == (None, "")
    await rows.match()
    assert (await rows.states())["late"] == "Allocated"


async def test_a_begin_time_behind_a_dependency_counts_too(rows: Rows) -> None:
    """Both must be over."""
    seen = workload("b", depends_on=edges("afterok:a"), begin_at_s=4_000_000_000)
    await rows.see(workload("a"), seen)
    await look(rows)
    assert (await told(rows, "b"))[2] == "dependency"
    await end(rows, "a")
    assert (await told(rows, "b"))[2] == "begin-time"
    await rows.see(replace(seen, is_deleting=True))
    await rows.reconcile("b")
    await look(rows)
    assert await rows.value("SELECT reconcile_at FROM fluxjobs WHERE uid = 'b'") is None


async def test_a_begin_time_that_is_taken_back_leaves_nothing(rows: Rows) -> None:
    """Nor does an earlier one."""
    await rows.see(workload("a", begin_at_s=4_000_000_000))
    await rows.see(workload("a", begin_at_s=4_000_000_001))
    assert await rows.value("SELECT reconcile_at = begin_at FROM fluxjobs")
    await rows.see(workload("a"))
    await look(rows)
    assert await rows.value("SELECT reconcile_at FROM fluxjobs") is None
    assert await told(rows, "a") == ("Pending", None, None, "")


async def test_what_can_never_fit_is_told_although_it_is_blocked(rows: Rows) -> None:
    """And the reason of the block comes back with the nodes."""
    await rows.add_nodes(cpu_node("n0", cpu=1))
    await rows.see(workload("a", request(cpu=4), depends_on=edges("afterok:x")))
    await look(rows)
    await rows.match()
    assert (await told(rows, "a"))[0] == "Unsatisfiable"
    await rows.add_nodes(cpu_node("n1", cpu=8))
    await rows.match()
    assert await told(rows, "a") == (
        "Pending", None, "dependency", "depends on x, which does not exist yet",
    )  # fmt: skip


async def test_a_change_at_the_head_of_a_chain_has_no_chain_looked_at(rows: Rows) -> None:
    """Its author could change it again and again."""
    await rows.see(workload("l0"))
    for number in range(1, 40):
        await rows.see(workload(f"l{number}", depends_on=edges(f"afterok:l{number - 1}")))
    await look(rows)
    await rows.see(workload("l0", depends_on=edges("afterok:nobody")))
    assert set(await rows.take_tasks(TaskName.RECONCILE)) <= {"l0", "l1"}


async def test_a_long_chain_ahead_is_not_walked_if_few_jobs_wait_behind(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs of a chain may arrive in any order, and each is looked at."""
    monkeypatch.setattr(Q, "dependencies_ahead", "SELECT 'it was walked' / 0")
    await rows.see(workload("l0"))
    for number in (*range(1, 20), 21, 20):
        await rows.see(workload(f"l{number}", depends_on=edges(f"afterok:l{number - 1}")))
    for name, other in (("a", "b"), ("b", "a")):
        await rows.see(workload(name, depends_on=edges(f"afterok:{other} afterok:l20")))
    for uid in await rows.take_tasks(TaskName.RECONCILE):
        await rows.reconcile(uid)
    assert (await told(rows, "l20"))[0] == "Pending"
    assert {(await told(rows, uid))[0] for uid in "ab"} == {"Held"}


async def test_a_circle_behind_too_many_dependencies_waits(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not walked to its end. A shorter one beside it is found."""
    monkeypatch.setattr("fluxqueue.db.store.dependencies.WALKED_MAX", 6)
    for number in range(30):
        after = edges(f"afterok:r{(number + 1) % 30}")
        await rows.see(workload(f"r{number}", depends_on=after))
    for name, other in (("a", "b"), ("b", "a")):
        await rows.see(workload(name, depends_on=edges(f"afterok:{other}")))
    uids = await rows.take_tasks(TaskName.RECONCILE)
    for uid in uids:
        await rows.reconcile(uid)
    assert (await told(rows, "r0"))[0] == "Pending"
    assert (await told(rows, "r0"))[2] == "dependency"
    assert {(await told(rows, uid))[0] for uid in "ab"} == {"Held"}


async def test_releases_come_before_looks_at_jobs_that_wait_for_others(rows: Rows) -> None:
    """A user may cause many looks. None of them starts a job of another user."""
    await rows.forget_tasks()
    await rows.see(workload("first"), workload("then", depends_on=edges("afterok:first")))
    await rows.execute("UPDATE fluxjobs SET release_at = now() WHERE uid = 'first'")
    await rows.execute("UPDATE fluxjobs SET reconcile_at = now() WHERE uid = 'first'")
    found = await rows.fetch(
        "SELECT task_name, args -> 'uids' ->> 0 AS uid FROM procrastinate.procrastinate_jobs"
        " WHERE queue_name <> 'schedule' AND status = 'todo' ORDER BY priority DESC, id"
    )
    order = [(row["task_name"], row["uid"]) for row in found]
    assert order[0] == ("release", "first")
    assert order.index(("reconcile", "first")) < order.index(("reconcile", "then"))


async def _turns(rows: Rows, **user_of: str) -> dict[str, str | None]:
    """Whether each of some singletons waits for its turn."""
    await look(rows)
    return {uid: (await told(rows, uid))[2] for uid in user_of}


async def test_one_singleton_of_a_user_and_name_runs_at_a_time(rows: Rows) -> None:
    """In the order of their numbers, also if one of them goes before its turn."""
    await rows.add_nodes(cpu_node("n0"))
    jobs = {"a": "ann", "b": "ann", "c": "ann", "d": "ann", "e": "eve"}
    for uid, user in jobs.items():
        await rows.see(workload(uid, user_name=user, depends_on=edges("singleton:train")))
    await rows.see(workload("f", namespace="other", depends_on=edges("singleton:train")))
    waits = "dependency"
    assert await _turns(rows, **jobs) == {"a": None, "b": waits, "c": waits, "d": waits, "e": None}
    assert (await told(rows, "c"))[3] == "depends on train (job 2), which is Pending"
    assert (await told(rows, "f"))[2] is None
    await rows.match()
    assert {uid for uid, state in (await rows.states()).items() if state == "Allocated"} == {
        "a", "e", "f",
    }  # fmt: skip
    await end(rows, "b", "Cancelled")
    assert (await told(rows, "c"))[3] == "depends on train (job 1), which is Allocated"
    await rows.see(workload("c", user_name="ann"))
    assert await _turns(rows, c="", d="") == {"c": None, "d": waits}
    assert (await told(rows, "d"))[3] == "depends on train (job 1), which is Allocated"
    done = workload("a", user_name="ann", depends_on=edges("singleton:train"), wanted=0)
    await rows.see(replace(done, result="Failed"))
    await rows.reconcile("a")
    assert await _turns(rows, d="") == {"d": None}
    assert await rows.value("SELECT kind FROM dependencies WHERE uid = 'a'") == "afterany"


async def test_a_singleton_waits_for_a_job_with_its_name_that_is_none(rows: Rows) -> None:
    """One that came before, and one that came later and runs when it is looked at."""
    await rows.add_nodes(cpu_node("n0"))
    await rows.see(workload("train"), workload("a", depends_on=edges("singleton:train")))
    assert await _turns(rows, a="") == {"a": "dependency"}
    await end(rows, "train")
    assert await _turns(rows, a="") == {"a": None}
    await rows.see(workload("b", depends_on=edges("singleton:later"), begin_at_s=4_000_000_000))
    await rows.see(workload("later"))
    await rows.match()
    assert (await rows.states())["later"] == "Allocated"
    assert await _turns(rows, b="") == {"b": "dependency"}
