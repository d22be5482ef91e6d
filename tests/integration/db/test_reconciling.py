"""From observations to slots and back: the life of allocated workloads, node loss included."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fluxqueue.db.queries import Q
from fluxqueue.db.store.reconciling import finish, reconcile
from fluxqueue.db.store.workload_rows import StoredPod, StoredSlot, WorkloadRow
from fluxqueue.db.task_queue import TaskName
from fluxqueue.fluxjob.follow import SlotState
from fluxqueue.fluxjob.node import Destination
from fluxqueue.fluxjob.request import CPU
from tests.support.pool_model import request
from tests.support.rows import Rows, amounts, cpu_node, pod, rebuilt, workload


async def started(rows: Rows, uid: str, count: int, **more: object) -> None:
    """A FluxJob of ``count`` pods that all run."""
    asked = request(count, cpu=2)
    await rows.see(workload(uid, asked, **more))  # type: ignore[arg-type]
    await rows.match()
    gated = tuple(pod(f"{uid}{n}", index=n) for n in range(count))
    await rows.see(workload(uid, asked, pods=gated))
    ungates = await rows.reconcile(uid)
    assert {one.pod_uid for one in ungates} == {one.uid for one in gated}
    running = tuple(replace(p, phase="Running", is_gated=False) for p in gated)
    await rows.see(workload(uid, asked, pods=running))
    await rows.reconcile(uid)
    assert (await rows.states())[uid] == "Running"


def runs(uid: str) -> object:
    """A running pod."""
    return pod(uid, "Running", is_gated=False)


async def test_ungates_name_node_hostname_and_all_nodes(rows: Rows) -> None:
    """What the pod gets."""
    await rows.add_nodes(
        replace(cpu_node("n0", cpu=2), labels={"kubernetes.io/hostname": "host-0"}),
        cpu_node("n1", cpu=2),
    )
    await rows.see(workload("a", request(2, cpu=2), pods=(pod("p", index=1), pod("q", index=0))))
    await rows.match()
    ungates = {one.pod_uid: one for one in await rows.reconcile("a")}
    assert ungates["q"].to == Destination("n0", "host-0")
    assert ungates["p"].to == Destination("n1", "n1", is_labelled_index=True)
    assert ungates["p"].nodes == "n[0-1]"
    assert ungates["p"].jobid == 1
    again = {one.pod_uid for one in await rows.reconcile("a")}
    assert again == set(), "they are under way"


async def test_the_fields_of_slots_and_pods_are_read_by_their_positions(rows: Rows) -> None:
    """Each field has another value than its neighbours."""
    await rows.add_nodes(cpu_node("n0", cpu=2), cpu_node("n1", cpu=2))
    await rows.see(workload("a", request(2, cpu=2), pods=(pod("p", index=7), pod("q", index=0))))
    await rows.match()
    await rows.reconcile("a")
    await rows.execute(
        "UPDATE allocation_slots SET refused_at = given_at + interval '5 s', kind = 'k',"
        " others = '{n0}', given_at = to_timestamp(100) WHERE pod_uid = 'p'"
    )
    await rows.execute(
        "UPDATE pods SET slot_kind = 'k', sent_at = NULL, uses = '{\"cpu\": 3}',"
        " unmanaged = '{\"cpu\": 1}', unschedulable = 'no room',"
        " unschedulable_at = now() - interval '9 s', node = 'n1' WHERE uid = 'p'"
    )
    async with rows.database.begin() as tx:
        (found,) = await tx.fetch(
            Q.workloads_to_reconcile, WorkloadRow, uids=["a"], if_observed=False
        )
    (slot,) = (one for one in found.slots if one.pod_uid == "p")
    assert slot.refused_s is not None
    assert slot == StoredSlot(
        number=1,
        node="n1",
        state=SlotState.HELD,
        pod_uid="p",
        is_lost=False,
        is_gone=False,
        is_refused=True,
        index=7,
        is_spent=False,
        is_named=False,
        kind="k",
        destination=["n1", "n1", True],
        is_down=False,
        resources={"cpu": 2},
        given_s=100,
        refused_s=slot.refused_s,
        others=[["n0", "n0"]],
    )
    (seen,) = (one for one in found.pods.values() if one.uid == "p")
    assert seen.stuck_s is not None
    assert seen == StoredPod(
        uid="p",
        name="p",
        phase="Pending",
        is_gated=True,
        is_terminating=False,
        node="n1",
        index=7,
        kind="k",
        namespace="default",
        is_sent=False,
        amounts={"cpu": 3},
        is_counted=True,
        unschedulable="no room",
        stuck_s=seen.stuck_s,
    )
    assert 9 <= seen.stuck_s < 60


async def test_what_is_under_way_is_not_sent_again(rows: Rows) -> None:
    """However many look at it meanwhile. A sender that died on the way is followed by another."""
    await rows.add_nodes(cpu_node("n0", cpu=8))
    pods = tuple(pod(f"p{n}") for n in range(3))
    await rows.see(workload("a", request(3, cpu=2), pods=pods[:2]))
    await rows.match()
    async with rows.database.begin() as tx:
        first = await reconcile(tx, ["a"])
    await rows.see(workload("a", request(3, cpu=2), pods=pods))
    async with rows.database.begin() as tx:
        second = await reconcile(tx, ["a"])
    assert [one.pod_uid for one in first.ungates] == ["p0", "p1"]
    assert [one.pod_uid for one in second.ungates] == ["p2"]
    await finish(rows.database, second, let_go=["p2"], failed=[])
    assert await rows.reconcile("a") == []
    pending_actions = "SELECT count(*) FROM pending_actions WHERE task = 'reconcile'"
    assert await rows.value(pending_actions) == 0
    await rows.take_senders_for_dead()  # the senders of the first two
    assert await rows.value(pending_actions) == 1
    assert {one.pod_uid for one in await rows.reconcile("a")} == {"p0", "p1"}


async def test_what_could_not_be_let_go_is_owed_whoever_looked_meanwhile(rows: Rows) -> None:
    """Its task tries again at once. Without the task the rows tell."""
    await rows.add_nodes(cpu_node("n0", cpu=8))
    await rows.see(workload("a", request(2, cpu=2), pods=(pod("p0"), pod("p1"))))
    await rows.match()
    async with rows.database.begin() as tx:
        reconciled = await reconcile(tx, ["a"])
    assert await rows.reconcile("a") == []  # another worker: nothing to do, so nothing is pending
    await finish(rows.database, reconciled, let_go=["p0"], failed=["a"])
    assert await rows.value("SELECT count(*) FROM pending_actions WHERE task = 'reconcile'") == 1
    assert {one.pod_uid for one in await rows.reconcile("a")} == {"p1"}


async def test_the_end_returns_everything_once(rows: Rows) -> None:
    """Result and last pod, in either order. Then a second settling finds nothing to do."""
    await rows.add_nodes(cpu_node("n0"))
    await started(rows, "a", 2)
    done = workload("a", request(2, cpu=2), wanted=0, result="Failed", pods=(runs("a1"),))
    await rows.see(done)
    assert await rows.reconcile("a") == []
    assert [slot[2] for slot in await rows.slots("a")] == ["returned", "held"]
    await rows.see(replace(done, pods=()))
    await rows.reconcile("a")
    assert await rows.states() == {"a": "Failed"}
    before = await rows.fetch("SELECT * FROM fluxjobs")
    await rows.reconcile("a")
    assert await rows.fetch("SELECT * FROM fluxjobs") == before
    await rows.match()
    assert await rows.value("SELECT sum(free) FROM node_usage") == 4
    await rows.check()


async def test_an_over_workload_ungates_nobody(rows: Rows) -> None:
    """A pod that got its slot just before the end is not let in after it."""
    await rows.add_nodes(cpu_node("n0"))
    await rows.see(workload("a", pods=(pod("p"),)))
    await rows.match()
    await rows.reconcile("a")
    await rows.see(workload("a", pods=(pod("p"),), is_deleting=True))
    assert await rows.reconcile("a") == []
    await rows.see(workload("a", is_deleting=True))
    await rows.reconcile("a")
    assert await rows.states() == {"a": "Cancelled"}
    assert await rows.value("SELECT started_at FROM fluxjobs") is None
    await rows.check()


async def test_a_node_lost_before_anything_started_is_matched_anew(rows: Rows) -> None:
    """Back to its place in the queue, allocated elsewhere, given back exactly once."""
    await rows.add_nodes(cpu_node("n0"), cpu_node("n1"))
    await rows.see(workload("a", request(2, cpu=2)))
    await rows.match()
    assert {slot[1] for slot in await rows.slots("a")} == {"n0"}
    await rows.forget_tasks()
    await rows.add_nodes(gone=("n0",))
    assert await rows.asked(TaskName.RECONCILE) == ["a"], "nobody else would look at it"
    await rows.reconcile("a")
    assert await rows.states() == {"a": "Pending"}
    await rows.check()
    await rows.reconcile("a")
    await rows.match()
    assert await rows.states() == {"a": "Allocated"}
    assert {slot[1] for slot in await rows.slots("a")} == {"n1"}
    assert await rows.value("SELECT count(*) FROM allocations") == 2
    assert await rows.value("SELECT sum(free) FROM node_usage") == 0
    assert amounts(rows.matcher._matcher.ledger) == amounts(await rebuilt(rows))  # type: ignore[union-attr, arg-type]
    await rows.check()


async def test_a_node_that_is_down_counts_as_lost_for_what_has_not_started(rows: Rows) -> None:
    """A pod ungated towards it could never start. When it returns it is used again."""
    await rows.add_nodes(cpu_node("n0"))
    await rows.see(workload("a", request(2, cpu=2)))
    await rows.match()
    await rows.add_nodes(cpu_node("n0", is_up=False))
    await rows.reconcile("a")
    await rows.match()
    assert (await rows.states())["a"] in {"Pending", "Reserved"}
    await rows.add_nodes(cpu_node("n0"))
    await rows.match()
    assert await rows.states() == {"a": "Allocated"}
    await rows.check()


async def test_running_pods_on_a_lost_node_are_left_alone_and_replaced_elsewhere(
    rows: Rows,
) -> None:
    """The slot stays while the pod is there. Its replacement gets a new slot on another node."""
    await rows.add_nodes(cpu_node("n0"), cpu_node("n1"))
    await started(rows, "a", 2)
    asked = request(2, cpu=2)
    await rows.add_nodes(gone=("n0",))
    await rows.reconcile("a")
    assert [slot[2] for slot in await rows.slots("a")] == ["held", "held"]
    # The cluster removes one pod. Its controller makes another.
    await rows.see(workload("a", asked, pods=(runs("a0"), pod("b1", index=1))))  # type: ignore[arg-type]
    assert await rows.reconcile("a") == []
    assert (await rows.value("SELECT reason FROM fluxjobs")).startswith(
        "1 of its pods waits for a slot: other work has to end"
    )
    await rows.match()
    assert await rows.asked(TaskName.RECONCILE) != []
    ungates = await rows.reconcile("a")
    assert [(one.pod_uid, one.to.name) for one in ungates] == [("b1", "n1")]
    # The other pod is still there, on the node that is gone.
    assert (await rows.value("SELECT reason FROM fluxjobs")).startswith("lost: n0 is gone")
    assert await rows.value("SELECT lacking FROM fluxjobs") == 0
    assert amounts(rows.matcher._matcher.ledger) == amounts(await rebuilt(rows))  # type: ignore[union-attr, arg-type]
    await rows.match()
    assert len(await rows.slots("a")) == 3, "not topped up twice"
    await rows.check()


async def test_scaling_up_a_running_job_adds_slots_as_there_is_room(rows: Rows) -> None:
    """Parallelism raised from 1 to 4: two fit now, the last one waits and is reported."""
    await rows.add_nodes(cpu_node("n0", cpu=6))
    await started(rows, "a", 1)
    more = tuple(pod(f"m{n}") for n in range(3))
    scaled = workload("a", request(4, cpu=2), wanted=4, pods=(runs("a0"), *more))  # type: ignore[arg-type]
    await rows.see(scaled)
    await rows.reconcile("a")
    assert (await rows.value("SELECT reason FROM fluxjobs")).startswith(
        "3 of its pods wait for a slot: "
    )
    await rows.match()
    assert {one.pod_uid for one in await rows.reconcile("a")} == {"m0", "m1"}
    assert (await rows.value("SELECT reason FROM fluxjobs")).startswith(
        "1 of its pods waits for a slot: other work has to end"
    )
    await rows.match()
    await rows.add_nodes(cpu_node("n1", cpu=2))
    await rows.match()
    assert {one.to.name for one in await rows.reconcile("a") if one.pod_uid == "m2"} == {"n1"}
    await rows.check()


async def test_who_comes_while_a_slot_is_on_its_way_for_another_is_not_forgotten(
    rows: Rows,
) -> None:
    """One lacks a slot before and after, but it is another one: the matcher has to look again."""
    await rows.add_nodes(cpu_node("n0", cpu=8))
    await started(rows, "a", 1)

    def grown(*names: str) -> object:
        pods = (runs("a0"), *map(pod, names))
        return workload("a", request(3, cpu=2), wanted=1 + len(names), pods=pods)  # type: ignore[arg-type]

    await rows.see(grown("m0"))  # type: ignore[arg-type]
    await rows.reconcile("a")
    await rows.match()
    await rows.see(grown("m0", "m1"))  # type: ignore[arg-type]
    await rows.forget_tasks()
    assert [one.pod_uid for one in await rows.reconcile("a")] == ["m0"]
    assert await rows.value("SELECT lacking FROM fluxjobs") == 1
    assert await rows.is_cycle_asked()
    await rows.match()
    assert [one.pod_uid for one in await rows.reconcile("a")] == ["m1"]
    await rows.check()


async def test_what_grows_takes_its_turn(rows: Rows) -> None:
    """Growth is a request of now: it goes behind what waits, and before what comes later."""
    await rows.add_nodes(cpu_node("n0", cpu=4))
    await started(rows, "a", 1)
    await rows.see(workload("x", request(cpu=4)))
    await rows.match()
    grown = workload("a", request(2, cpu=2), wanted=2, pods=(runs("a0"), pod("m")))  # type: ignore[arg-type]
    await rows.see(workload("x", request(cpu=4), result="Failed"), workload("y", request(cpu=2)))
    await rows.see(grown, workload("z", request(cpu=2)))
    await rows.reconcile("a", "x")
    await rows.match()
    assert (await rows.states())["y"] == "Allocated"
    assert [slot[2] for slot in await rows.slots("a")] == ["held"]
    await rows.see(workload("y", request(cpu=2), result="Completed", wanted=0))
    await rows.reconcile("y")
    await rows.match()
    assert [slot[2] for slot in await rows.slots("a")] == ["held", "free"]
    assert (await rows.states())["z"] == "Pending"
    await rows.check()


async def test_top_up_keeps_the_domain_and_the_spread(rows: Rows) -> None:
    """Slots added later share the rack and take other nodes."""

    def rack(name: str, value: str) -> object:
        fact = cpu_node(name, cpu=4)
        return replace(fact, labels={**fact.labels, "rack": value})

    await rows.add_nodes(*(rack(f"n{n}", "ab"[n % 2]) for n in range(5)))  # type: ignore[arg-type]
    asked = request(2, cpu=2, is_spread=True, within="rack")
    await rows.see(workload("a", asked, pods=(pod("p0"), pod("p1"))))
    await rows.match()
    await rows.reconcile("a")
    have = {slot[1] for slot in await rows.slots("a")}
    assert len(have) == 2
    await rows.see(workload("a", asked, wanted=3, pods=(pod("p0"), pod("p1"), pod("p2"))))
    await rows.reconcile("a")
    await rows.match()
    nodes = [slot[1] for slot in await rows.slots("a")]
    racks = {"n0": "a", "n1": "b", "n2": "a", "n3": "b", "n4": "a"}
    assert len({racks[n] for n in nodes}) == 1
    expected = 3 if racks[nodes[0]] == "a" else 2
    assert len(nodes) == len(set(nodes)) == expected
    await rows.check()


async def test_a_gang_that_wishes_it_starts_anew_where_a_pod_is_lost_with_its_node(
    rows: Rows,
) -> None:
    """Not where its node is only down, nor does it wait for the pod that no event ends."""
    await rows.add_nodes(cpu_node("n0"), cpu_node("n1"), cpu_node("n2"))
    await started(rows, "a", 4, restarts_on_loss=True)
    wishes = {"restarts_on_loss": True, "is_suspended": False, "generation": 2}
    asked = request(4, cpu=2)
    alive = tuple(replace(runs(f"a{n}"), node="n0" if n < 2 else "n1") for n in range(4))  # type: ignore[type-var]
    await rows.see(workload("a", asked, pods=alive, **wishes))  # type: ignore[arg-type]
    await rows.reconcile("a")
    await rows.add_nodes(replace(cpu_node("n0"), is_up=False))
    await rows.reconcile("a")
    assert (await rows.value("SELECT reason FROM fluxjobs")).startswith("lost: n0 is down")
    assert await rows.value("SELECT vacate_by FROM fluxjobs") is None
    lost = tuple(replace(one, is_terminating=one.node == "n0") for one in alive)
    await rows.see(workload("a", asked, pods=lost, **wishes))  # type: ignore[arg-type]
    await rows.reconcile("a")
    assert await rows.value("SELECT vacate_by FROM fluxjobs") == "lost-node"
    assert (await rows.value("SELECT reason FROM fluxjobs")) == (
        "its node n0 is lost; it is placed anew"
    )
    wanted = await rows.wanted("a")
    assert wanted is not None
    assert wanted.is_suspended
    stopped = wishes | {"is_suspended": True, "is_suspended_again": True, "generation": 3}
    await rows.see(workload("a", asked, pods=lost[:2], **stopped))  # type: ignore[arg-type]
    await rows.reconcile("a")
    assert (await rows.states())["a"] == "Pending"
    await rows.match()
    assert (await rows.states())["a"] == "Allocated"
    assert {slot[1] for slot in await rows.slots("a")} == {"n1", "n2"}
    assert not await rows.value("SELECT count(*) FROM drift")


async def test_a_bare_pod_on_a_node_that_is_gone_says_so(rows: Rows) -> None:
    """What was sent there cannot be sent elsewhere. Of what is down and back nothing is said."""
    await rows.add_nodes(cpu_node("n0", cpu=2), cpu_node("n1", cpu=2))
    bare = {"workload_kind": "Pod", "is_suspendable": False, "replaces_pods": False}
    await rows.see(workload("a", request(cpu=2), pods=(pod("a"),), **bare))  # type: ignore[arg-type]
    await rows.match()
    (ungate,) = await rows.reconcile("a")
    let_go = pod("a", is_gated=False)
    await rows.see(workload("a", request(cpu=2), pods=(let_go,), **bare))  # type: ignore[arg-type]
    await rows.asked(TaskName.RECONCILE)
    await rows.add_nodes(gone=(ungate.to.name,))
    assert "a" in await rows.asked(TaskName.RECONCILE)
    await rows.reconcile("a")
    reason = await rows.value("SELECT reason FROM fluxjobs")
    assert reason == (
        f"lost: {ungate.to.name} is gone; its pod was sent there and cannot be sent elsewhere:"
        " delete it and make it again"
    )
    await rows.add_nodes(cpu_node(ungate.to.name, cpu=2))
    assert "a" in await rows.asked(TaskName.RECONCILE)
    await rows.reconcile("a")
    assert await rows.value("SELECT reason FROM fluxjobs") == ""


async def test_who_waits_for_a_lost_slot_says_for_what(rows: Rows) -> None:
    await rows.add_nodes(cpu_node("n0", cpu=2), cpu_node("n1", cpu=2))
    await started(rows, "a", 2)
    await rows.add_nodes(gone=("n1",))
    pods = (replace(runs("a0"), node="n0"), pod("b", index=1))  # type: ignore[type-var]
    await rows.see(workload("a", request(2, cpu=2), pods=pods))  # type: ignore[arg-type]
    await rows.reconcile("a")
    reason = await rows.value("SELECT reason FROM fluxjobs")
    assert reason.endswith("(in place of slot 1 on n1, which is lost: 0.002 cpu)"), reason


async def test_a_pod_that_is_made_larger_in_place_takes_its_room_and_no_slot_shrinks(
    rows: Rows,
) -> None:
    """Its node has less for others. The one that comes in its place is as large as it was."""
    await rows.add_nodes(cpu_node("n0", cpu=8))
    await started(rows, "a", 2)

    def sized(uid: str, cpu: int) -> object:
        return replace(runs(uid), node="n0", uses=((CPU, cpu),))  # type: ignore[type-var]

    async def see(*pods: object) -> list[int]:
        await rows.see(workload("a", request(2, cpu=2), pods=pods))  # type: ignore[arg-type]
        await rows.reconcile("a")
        await rows.match()
        assert amounts(rows.matcher._matcher.ledger) == amounts(await rebuilt(rows))  # type: ignore[union-attr, arg-type]
        sql = (
            "SELECT s.resources FROM allocation_slots s JOIN allocations a ON a.id = allocation_id"
            " WHERE a.uid = 'a' AND s.state <> 'returned' ORDER BY number"
        )
        return [row["resources"][CPU] for row in await rows.fetch(sql)]

    assert await see(sized("a0", 2), sized("a1", 2)) == [2, 2]
    assert await see(sized("a0", 5), sized("a1", 2)) == [5, 2]
    await rows.see(workload("b", request(cpu=2)))
    await rows.match()
    assert (await rows.states())["b"] != "Allocated"
    assert await see(sized("a0", 4), sized("a1", 1)) == [4, 2]
    assert (await rows.states())["b"] == "Allocated"
    await rows.see(workload("b", request(cpu=2), result="Completed"))
    await rows.reconcile("b")
    assert await see(pod("a2", index=0), sized("a1", 1)) == [2, 2]
    await rows.check()


@pytest.mark.parametrize("fate", ["gone", "down"])
async def test_a_pod_that_has_its_gate_yet_is_sent_elsewhere(rows: Rows, fate: str) -> None:
    """It was given a slot, and its node is lost before its gate was removed: it is not sent
    there any more. A bare Pod, which would not be made again."""
    await rows.add_nodes(cpu_node("n0", cpu=2), cpu_node("n1", cpu=2))
    bare = {"workload_kind": "Pod", "is_suspendable": False, "replaces_pods": False}
    await rows.see(workload("a", request(cpu=2), pods=(pod("a"),), **bare))  # type: ignore[arg-type]
    await rows.match()
    (ungate,) = await rows.reconcile("a")
    if fate == "gone":
        await rows.add_nodes(gone=(ungate.to.name,))
    else:
        await rows.add_nodes(cpu_node(ungate.to.name, cpu=2, is_up=False))
    await rows.take_senders_for_dead()
    assert [one.to.name for one in await rows.reconcile("a")] != [ungate.to.name]
    await rows.match()
    (again,) = await rows.reconcile("a")
    assert again.to.name != ungate.to.name
    await rows.check()
