"""Slots of pods with a choice of nodes: they follow their pods, and never take room twice."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fluxqueue.fluxjob.observation import WorkloadSeen
from fluxqueue.fluxjob.pod_facts import PodFact
from fluxqueue.fluxjob.start_watch import StartRules
from tests.support.looks import look, pass_time, unbound
from tests.support.pool_model import request
from tests.support.rows import Rows, amounts, cpu_node, pod, rebuilt, workload

RULES = StartRules(unschedulable_s=5, timeout_s=300, tries_max=3)
NODES = ("n0", "n1", "n2")


def unsure(
    uid: str = "a", count: int = 1, cpu: int = 2, *, is_whole: bool = False, **more: Any
) -> WorkloadSeen:
    """A BatchJob with a constraint that is left to kube-scheduler."""
    first = {"ignored": ["pod affinity"], "is_pinnable": True, "spare_failures": 0}
    pods = tuple(replace(one, uses=(("cpu", cpu),)) for one in more.pop("pods", ()))
    asks = request(count, cpu=cpu, is_exclusive=is_whole)
    return workload(uid, asks, **(first | more), pods=pods)


async def start(rows: Rows, count: int = 1, cpu: int = 2) -> None:
    """Allocate it, and release its pods to their nodes."""
    await rows.add_nodes(*(cpu_node(name) for name in NODES))
    await rows.see(unsure(count=count, cpu=cpu))
    await rows.match()
    gated = tuple(pod(f"a{n}") for n in range(count))
    await resume(rows, *gated, count=count, cpu=cpu)
    await look(rows, "a", RULES)


async def resume(rows: Rows, *pods: PodFact, count: int = 1, cpu: int = 2) -> None:
    """See it resumed, with these pods."""
    await rows.see(unsure(count=count, cpu=cpu, is_suspended=False, generation=2, pods=tuple(pods)))


async def choices(rows: Rows) -> list[tuple[str, list[str] | None]]:
    """The node of each live slot, and the further ones."""
    found = await rows.fetch(
        "SELECT s.node, s.others FROM allocation_slots s JOIN allocations a"
        " ON a.id = s.allocation_id WHERE a.is_live AND s.state <> 'returned' ORDER BY a.id, number"
    )
    return [(row["node"], row["others"]) for row in found]


async def test_a_slot_follows_its_pod(rows: Rows) -> None:
    """The template names no node, the pod names all three, and the ledger knows where it is."""
    await rows.add_nodes(*(cpu_node(name) for name in NODES))
    await rows.see(unsure())
    await rows.match()
    assert await choices(rows) == [("n0", ["n1", "n2"])]
    wanted = await rows.wanted("a")
    assert wanted is not None
    assert wanted.pin is None
    await resume(rows, pod("a0"))
    (ungate,) = (await look(rows, "a", RULES)).ungates
    assert (ungate.to.name, ungate.others) == ("n0", ("n1", "n2"))
    await rows.match()
    assert await choices(rows) == [("n0", ["n1", "n2"])], "it is not bound yet"

    await rows.forget_tasks()
    await resume(rows, pod("a0", "Running", is_gated=False, node="n2"))
    await look(rows, "a", RULES)
    assert await rows.is_cycle_asked()
    before = await rows.value("SELECT version FROM fluxjobs WHERE uid = 'a'")
    await rows.match()
    assert await choices(rows) == [("n2", None)]
    assert await rows.value("SELECT version FROM fluxjobs WHERE uid = 'a'") > before
    assert await rows.fetch("SELECT FROM pods WHERE unmanaged IS NOT NULL") == []
    await rows.check()
    matcher = rows.matcher
    assert matcher is not None
    assert matcher._matcher is not None
    assert amounts(matcher._matcher.ledger) == amounts(await rebuilt(rows))


async def test_a_pod_on_the_node_of_its_slot_has_no_choice_any_more(rows: Rows) -> None:
    """Also after the matcher was read anew."""
    await start(rows)
    await resume(rows, pod("a0", "Running", is_gated=False, node="n0"))
    await look(rows, "a", RULES)
    await rows.begin_term()
    await rows.match()
    assert await choices(rows) == [("n0", None)]
    await rows.check()


async def test_a_pod_that_is_bound_as_a_cycle_begins_is_followed_in_the_same_run(
    rows: Rows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cycle takes the task that was to wake the matcher for it."""
    await start(rows)
    runner = rows.matcher
    assert runner is not None
    cycle = runner._cycle

    async def bound_before() -> bool:
        monkeypatch.undo()
        await resume(rows, pod("a0", "Running", is_gated=False, node="n2"))
        await look(rows, "a", RULES)
        return await cycle()

    monkeypatch.setattr(runner, "_cycle", bound_before)
    await rows.match()
    assert await choices(rows) == [("n2", None)]


async def test_a_further_pod_wakes_the_matcher_when_it_is_bound(rows: Rows) -> None:
    """The first one runs already, so nothing else about the job changes, and nothing is due."""
    await start(rows, count=2)
    first = pod("a0", "Running", is_gated=False, node="n1")
    await resume(rows, first, pod("a1", is_gated=False), count=2)
    await look(rows, "a", RULES)
    await rows.match()
    await rows.forget_tasks()
    await resume(rows, first, pod("a1", is_gated=False), count=2)
    assert not await rows.is_cycle_asked(), "it is not bound yet"

    await resume(rows, first, pod("a1", is_gated=False, node="n2"), count=2)
    assert await rows.is_cycle_asked()
    await rows.match()
    assert await choices(rows) == [("n1", None), ("n2", None)]
    await rows.forget_tasks()
    await resume(rows, first, pod("a1", "Running", is_gated=False, node="n2"), count=2)
    assert not await rows.is_cycle_asked(), "it has no choice any more"


async def test_room_that_was_given_away_is_not_booked_twice(rows: Rows) -> None:
    """Another job has the node by now. The pod counts beside its slot."""
    await start(rows)
    await rows.see(workload("b", request(2, cpu=4)))
    await rows.match()
    assert [node for node, _ in await choices(rows)] == ["n0", "n1", "n2"]
    await resume(rows, pod("a0", "Running", is_gated=False, node="n2"))
    await look(rows, "a", RULES)
    await rows.match()
    assert (await choices(rows))[0] == ("n0", None)
    (found,) = await rows.fetch("SELECT unmanaged FROM pods")
    assert found["unmanaged"] == {"cpu": 2}
    assert await rows.drift() == []


async def test_two_pods_on_one_node_take_its_room_together(rows: Rows) -> None:
    """Both have the same choice. The second has no room beside the first."""
    await start(rows, count=2, cpu=3)
    assert await choices(rows) == [("n0", ["n2"]), ("n1", ["n2"])]
    there = (pod(f"a{n}", "Running", is_gated=False, node="n2") for n in range(2))
    await resume(rows, *there, count=2, cpu=3)
    await look(rows, "a", RULES)
    await rows.match()
    assert await choices(rows) == [("n2", None), ("n1", None)]
    assert await rows.drift() == []


async def test_all_nodes_of_a_pod_that_is_not_bound_count_as_refused(rows: Rows) -> None:
    """The next try looks at others first."""
    await start(rows)
    await resume(rows, unbound("a0"))
    await pass_time(rows, 6)
    found = await look(rows, "a", RULES)
    assert found.start_failures == ["Unschedulable"]
    assert await rows.value("SELECT fluxjob_refused_nodes('a')") == ["n0", "n1", "n2"]
    said = await rows.value("SELECT reason FROM fluxjobs WHERE uid = 'a'")
    assert "a0 to n0 or 2 others" in said


async def test_a_pod_that_takes_its_node_whole_names_one_and_is_repaired(rows: Rows) -> None:
    """With a choice, another job could get a part of its node before it is bound.

    After the refusal it is tried on another idle node.
    """
    await rows.add_nodes(*(cpu_node(name) for name in NODES))
    await rows.see(unsure(is_whole=True))
    await rows.match()
    assert await choices(rows) == [("n0", None)]
    for tries, node in enumerate(("n0", "n1"), start=1):
        at = {"is_whole": True, "is_suspended": False, "generation": 2 * tries}
        await rows.see(unsure(**at, pods=(pod("a0"),)))
        (ungate,) = (await look(rows, "a", RULES)).ungates
        assert (ungate.to.name, ungate.others) == (node, ())
        await rows.see(unsure(**at, pods=(unbound("a0"),)))
        await look(rows, "a", RULES)
        await pass_time(rows, 6)
        assert (await look(rows, "a", RULES)).start_failures == ["Unschedulable"]
        at |= {"is_suspended": True, "generation": 2 * tries + 1, "is_idle": True}
        await rows.see(unsure(**at))
        await look(rows, "a", RULES)
        await pass_time(rows, 100)
        await look(rows, "a", RULES)
        await rows.match()
    assert await choices(rows) == [("n2", None)]
    await rows.check()
