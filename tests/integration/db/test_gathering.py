"""Groups on real rows: they gather, are matched as a whole, and each pod gets its kind of slot."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from fluxqueue.db.task_queue import TaskName
from fluxqueue.fluxjob.observation import WorkloadSeen
from fluxqueue.fluxjob.pod_facts import PodFact
from fluxqueue.jobspec import Count, Jobspec, Resource
from fluxqueue.jobspec.model import RFC14, SLOT
from fluxqueue.jobspec.render import render
from tests.support.rows import Rows, cpu_node, workload

SMALL, LARGE = "pod-small", "pod-large"
CPU_OF = {SMALL: 1, LARGE: 4}


def asked(counts: dict[str, int]) -> Jobspec:
    """A request of several kinds of slots."""
    return Jobspec(
        RFC14,
        tuple(
            Resource(
                SLOT,
                Count(count, count),
                (Resource("cpu", Count(CPU_OF[kind], CPU_OF[kind])),),
                label=kind,
            )
            for kind, count in counts.items()
        ),
    )


def pod(number: int, kind: str, **more: Any) -> PodFact:
    """A pod of a group."""
    fact = {"phase": "Pending", "is_gated": True, "kind": kind, **more}
    return PodFact(uid=f"p{number}", name=f"p{number}", **fact)


def group(least: int, *pods: PodFact, **more: Any) -> WorkloadSeen:
    """A group as the controller sees it: it starts with its first ``least`` pods."""
    live = [one for one in pods if not one.is_terminal]
    first = Counter(one.kind for one in live[:least])
    kinds = dict.fromkeys((one.kind for one in live), 0) | first
    missing = max(0, least - len(live))
    return workload(
        "g",
        asked(kinds),
        workload_kind="PodGroup",
        is_suspendable=False,
        replaces_pods=False,
        is_gathered=True,
        is_suspended=False,
        missing=missing,
        gather_reason=f"{len(live)} of {least} pods; missing {missing}" if missing else "",
        gather_s=more.pop("gather_s", 600),
        further=render(asked(dict.fromkeys(kinds, 1))),
        wanted=len(live),
        size=least,
        pods=tuple(live),
        **more,
    )


async def told(rows: Rows) -> tuple[str, str]:
    (row,) = await rows.fetch("SELECT state, reason FROM fluxjobs")
    return row["state"], row["reason"]


async def given(rows: Rows) -> list[tuple[str, str | None]]:
    """Kind and pod of each slot that is not returned."""
    found = await rows.fetch(
        "SELECT kind, pod_uid FROM allocation_slots WHERE state <> 'returned' ORDER BY number"
    )
    return [(row["kind"], row["pod_uid"]) for row in found]


async def test_it_gathers_until_its_last_pod_has_come(rows: Rows) -> None:
    """No cycle looks at it before, however much room there is."""
    await rows.add_nodes(cpu_node("n0", 8))
    await rows.see(group(2, pod(0, SMALL)))
    assert await told(rows) == ("Gathering", "1 of 2 pods; missing 1")
    await rows.match()
    assert await told(rows) == ("Gathering", "1 of 2 pods; missing 1")
    await rows.see(group(2, pod(0, SMALL), pod(1, LARGE)))
    assert await told(rows) == ("Pending", "")
    await rows.match()
    assert await rows.states() == {"g": "Allocated"}


async def test_each_pod_gets_a_slot_of_its_own_kind(rows: Rows) -> None:
    """Whatever their names: the large one would not fit a small slot."""
    await rows.add_nodes(cpu_node("n0", 4), cpu_node("n1", 2))
    pods = [pod(0, LARGE), pod(1, SMALL), pod(2, SMALL)]
    await rows.see(group(3, *pods))
    await rows.match()
    ungates = {one.pod_uid: one.to.name for one in await rows.reconcile("g")}
    assert ungates == {"p0": "n0", "p1": "n1", "p2": "n1"}
    assert sorted(await given(rows)) == [(LARGE, "p0"), (SMALL, "p1"), (SMALL, "p2")]


async def test_a_pod_that_goes_while_it_waits_is_missing_again(rows: Rows) -> None:
    """From Pending, Reserved and Unsatisfiable alike, and with a reservation gone."""
    await rows.add_nodes(cpu_node("n0", 4))
    await rows.see(group(2, pod(0, SMALL), pod(1, SMALL)))
    for state in ("Pending", "Reserved", "Unsatisfiable"):
        await rows.see(group(2, pod(0, SMALL), pod(1, SMALL)))
        await rows.execute("UPDATE fluxjobs SET state = 'Pending'")
        await rows.execute("UPDATE fluxjobs SET state = :state", state=state)
        await rows.see(group(2, pod(0, SMALL)))
        assert await told(rows) == ("Gathering", "1 of 2 pods; missing 1")


async def test_held_while_it_gathers_it_gathers_on_when_it_is_let_go(rows: Rows) -> None:
    """By any worker: the row knows that it is not complete."""
    await rows.see(group(2, pod(0, SMALL)))
    await rows.execute("UPDATE fluxjobs SET state = 'Held', held_by = 'alice'")
    assert (await told(rows))[0] == "Held"
    await rows.execute("UPDATE fluxjobs SET state = 'Pending', held_by = NULL")
    assert await told(rows) == ("Gathering", "1 of 2 pods; missing 1")


async def test_pods_that_do_not_come_are_overdue(rows: Rows) -> None:
    """It says so at its time and waits on."""
    await rows.see(group(2, pod(0, SMALL), gather_s=1000))
    assert TaskName.RECONCILE not in await rows.take_tasks(TaskName.RECONCILE)
    assert await rows.value("SELECT reconcile_at = gather_until FROM fluxjobs")
    assert await rows.value("SELECT gather_until > now() FROM fluxjobs")
    await rows.execute(
        "UPDATE fluxjobs SET gather_until = now(),"
        " published = published || jsonb_build_object('version', version)"
    )
    await rows.reconcile("g")
    state, reason = await told(rows)
    assert state == "Gathering"
    assert reason == ("1 of 2 pods; missing 1; overdue: it has gathered for more than 1000 s")
    assert await rows.value(
        "SELECT reconcile_at IS NULL AND (published ->> 'version')::bigint < version FROM fluxjobs"
    )
    await rows.see(group(2, pod(0, SMALL), pod(1, SMALL)))
    assert await told(rows) == ("Pending", "")


async def test_the_time_that_its_pods_have_is_what_was_said_last(rows: Rows) -> None:
    """Counted from its first pod: a PodGroup may be seen after that, and may be changed."""
    await rows.see(group(2, pod(0, SMALL), gather_s=1000))
    before = await rows.value("SELECT gather_until FROM fluxjobs")
    await rows.see(group(2, pod(0, SMALL), gather_s=400))
    after = await rows.value("SELECT gather_until FROM fluxjobs")
    assert (before - after).total_seconds() == 600
    assert await rows.value("SELECT reconcile_at = gather_until FROM fluxjobs")


async def test_it_grows_by_the_kinds_of_the_pods_that_wait(rows: Rows) -> None:
    """Beyond its least size each pod gets a slot as soon as one of its kind fits."""
    await rows.add_nodes(cpu_node("n0", 2))
    pods = [pod(0, SMALL), pod(1, LARGE)]
    await rows.see(group(1, *pods))
    await rows.match()
    await rows.reconcile("g")
    assert await given(rows) == [(SMALL, "p0")]
    assert await rows.value("SELECT lacking FROM fluxjobs") == 1
    await rows.add_nodes(cpu_node("n1", 4))
    await rows.match()
    ungates = {one.pod_uid: one.to.name for one in await rows.reconcile("g")}
    assert ungates == {"p1": "n1"}
    assert await given(rows) == [(SMALL, "p0"), (LARGE, "p1")]


async def test_a_slot_goes_back_with_its_pod_and_the_rest_with_the_last(rows: Rows) -> None:
    await rows.add_nodes(cpu_node("n0", 8))
    pods = [pod(0, SMALL), pod(1, LARGE)]
    await rows.see(group(2, *pods))
    await rows.match()
    await rows.reconcile("g")
    going = pod(1, LARGE, is_gated=False, phase="Running", node="n0")
    await rows.see(group(2, going))
    await rows.reconcile("g")
    assert await rows.states() == {"g": "Running"}
    assert await given(rows) == [(LARGE, "p1")]
    await rows.see(group(2, result="Completed"))
    await rows.reconcile("g")
    assert await rows.states() == {"g": "Completed"}
    assert await rows.value("SELECT count(*) FROM node_usage WHERE allocated > 0") == 0


@pytest.mark.parametrize("is_complete", [True, False])
async def test_deleted_while_it_waits_it_leaves_at_once(rows: Rows, is_complete: bool) -> None:
    pods = [pod(0, SMALL), pod(1, SMALL)][: 2 if is_complete else 1]
    await rows.see(group(2, *pods))
    await rows.see(group(2, is_deleting=True))
    await rows.reconcile("g")
    assert await rows.states() == {"g": "Cancelled"}
