"""Which pods are of which group: founding, joining, names used again, other users, a restart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fluxqueue.clock import ManualClock
from fluxqueue.controller.observing.group_assembly import WINDOWS_MAX, Groups
from fluxqueue.controller.observing.owners import Owner
from fluxqueue.controller.observing.pod_groups import Declared, read_declared
from fluxqueue.controller.observing.read_workload import age
from fluxqueue.db.store.known import KnownGroup
from fluxqueue.fluxjob.facts import WorkloadFacts
from fluxqueue.workload.kinds.pod_group import POD_GROUP
from tests.support.workloads import bare_pod, batch_job, owner

Obj = dict[str, Any]


def member(
    name: str,
    group: str = "mpi",
    size: str = "2-2",
    *,
    user: str = "alice",
    phase: str = "Pending",
    is_gated: bool = True,
    users: str = "",
    **meta: Any,
) -> Obj:
    """A pod as admission leaves it."""
    notes = {"fluxqueue/group": f"{group} {size}", "fluxqueue/user": user}
    if users:
        notes["fluxqueue/group-users"] = users
    marks = {} if is_gated else {"fluxqueue/jobid": "7"}
    gates = [{"name": "fluxqueue"}] if is_gated else []
    pod = bare_pod(
        name, meta={"annotations": notes, "labels": marks, **meta}, schedulingGates=gates
    )
    pod["metadata"] |= {"uid": f"uid-{name}", "name": name}
    return pod | {"status": {"phase": phase}}


WINDOW_S = 1.0


def make(
    jobs: dict[str, Obj] | None = None,
    declared: Any = None,
    *,
    owners: dict[str, Owner] | None = None,
    clock: ManualClock | None = None,
) -> Groups:
    """``owners``: the topmost one of each pod, by its UID."""
    return Groups(
        (jobs or {}).get,
        lambda *_: declared,
        top=lambda pod: (owners or {}).get(pod["metadata"]["uid"]),
        clock=clock or ManualClock(),
        window_s=WINDOW_S,
    )


def see(groups: Groups, pod: Obj) -> str | None:
    """As the observer does on an event."""
    uid = groups.place(pod)
    if uid is not None:
        groups.keep(uid, pod)
    return uid


def end(groups: Groups, *names: str) -> None:
    for name in names:
        pod = member(name, phase="Succeeded", is_gated=False)
        uid = groups.place(pod)
        assert uid is not None
        groups.keep(uid, pod)


def test_pods_of_one_name_and_namespace_are_one_group() -> None:
    groups = make()
    first = see(groups, member("a"))
    assert first is not None
    assert see(groups, member("b")) == first
    assert see(groups, member("c", group="other")) != first
    assert see(groups, member("d", namespace="elsewhere")) != first
    stands = groups.object(first)
    assert stands is not None
    assert sorted(stands["members"]) == ["uid-a", "uid-b"]
    assert stands["metadata"]["fluxjob"] == "mpi-group"


def test_who_was_not_marked_or_not_held_is_of_no_group() -> None:
    groups = make()
    assert groups.place(bare_pod()) is None
    loose = member("a")
    loose["spec"]["schedulingGates"] = []
    assert groups.place(loose) is None


def test_a_name_used_again_is_another_group_also_while_old_pods_are_there() -> None:
    groups = make()
    first = see(groups, member("a", size="1-1"))
    end(groups, "a")
    second = see(groups, member("b", size="1-1"))
    assert first != second
    assert second is not None
    stands = groups.object(second)
    assert stands is not None
    assert stands["metadata"]["fluxjob"] not in {"mpi-group", ""}
    groups.forget("uid-a")
    assert first not in groups
    assert groups.object(first or "") is None


def test_while_a_job_may_make_another_pod_the_group_goes_on() -> None:
    job = batch_job("pi", parallelism=1, completions=1)
    groups = make({"uid-pi": job})
    made_by = {"ownerReferences": [owner("Job", "pi")]}
    first = see(groups, member("a", **made_by))
    failed = member("a", phase="Failed", is_gated=False, **made_by)
    assert see(groups, failed) == first
    assert see(groups, member("b", **made_by)) == first
    assert groups.of_job("uid-pi") == [first]


def test_pods_of_somebody_else_are_a_group_by_themselves() -> None:
    """They gain nothing, block no job, and each reason names the other."""
    groups = make()
    alices, bobs = see(groups, member("a")), see(groups, member("b", user="bob"))
    assert None not in {alices, bobs}
    assert alices != bobs
    for uid, other in ((alices, "bob"), (bobs, "alice")):
        stands = groups.object(uid or "")
        assert stands is not None
        found = POD_GROUP.gathering(stands)
        assert found is not None
        assert found.missing == 1
        assert f"another group of this name is of {other}" in found.reason


def test_a_user_who_is_named_may_join() -> None:
    groups = make()
    alices = see(groups, member("a", users="bob"))
    assert see(groups, member("b", user="bob")) == alices
    assert see(groups, member("c", user="mallory", users="mallory")) != alices


def test_what_bob_writes_on_his_pods_does_not_open_the_group_of_alice() -> None:
    groups = make()
    alices = see(groups, member("a", size="3-3", users="bob"))
    assert see(groups, member("b", size="3-3", user="bob", users="mallory")) == alices
    assert see(groups, member("c", size="3-3", user="mallory")) != alices


def test_nobody_is_drawn_away_from_his_own_group() -> None:
    """Bob adds Alice to a group with the name of hers, unasked, and it is the newer one."""
    groups = make()
    alices = see(groups, member("a", size="3-3"))
    bobs = see(groups, member("b", size="3-3", user="bob", users="alice"))
    assert bobs != alices
    assert see(groups, member("c", size="3-3")) == alices


def test_groups_of_one_second_are_in_the_order_of_their_first_pods() -> None:
    groups = make()
    found = []
    for number, name in enumerate(("zebra", "ant", "moth")):
        found.append(see(groups, member(f"{name}-0", name, resourceVersion=str(98 + number))))
        see(groups, member(f"{name}-1", name))
    ages = [age(stands(groups, uid)) for uid in found]
    assert ages == sorted(set(ages))


def test_who_disagree_on_the_size_get_the_larger_one() -> None:
    groups = make()
    uid = see(groups, member("a", size="2-2"))
    see(groups, member("b", size="4-6"))
    stands = groups.object(uid or "")
    assert stands is not None
    assert (stands["spec"]["minimum"], stands["spec"]["maximum"]) == (4, 6)


def test_a_podgroup_object_says_what_the_pods_do_not() -> None:
    unsaid, said = make(), make(declared=Declared(4, 60))
    for groups, expected in ((unsaid, (None, None)), (said, (4, 60))):
        uid = see(groups, member("a", size="?-"))
        stands = groups.object(uid or "")
        assert stands is not None
        assert (stands["spec"]["minimum"], stands["spec"]["patience_s"]) == expected


def test_a_new_process_goes_on_with_what_rows_and_fluxjobs_know() -> None:
    known = KnownGroup(
        "g", "default", "mpi", "mpi-group", "alice", "2026-01-01T00:00:00Z", frozenset({"uid-a"})
    )
    groups = make()
    groups.know([known])
    groups.know([known])
    assert see(groups, member("a", is_gated=False, phase="Running")) == "g"
    assert see(groups, member("b")) == "g"
    groups.listed()
    assert "g" in groups
    stands = groups.object("g")
    assert stands is not None
    assert stands["metadata"]["fluxjob"] == "mpi-group"


def test_a_group_whose_pods_went_unseen_is_forgotten() -> None:
    groups = make()
    groups.know([KnownGroup("g", "default", "mpi", "mpi-group", "alice", "", frozenset({"x"}))])
    groups.listed()
    assert "g" not in groups
    assert see(groups, member("a")) != "g"


def test_ended_pods_of_a_group_that_nobody_knows_found_none() -> None:
    groups = make()
    assert groups.place(member("a", phase="Succeeded", is_gated=False)) is None


WEB = Owner("apps/v1", "Deployment", "web", "uid-web")
MARK = {"group": "web-7f9c", "size": "?- ReplicaSet"}


def stands(groups: Groups, uid: str | None) -> Obj:
    found = groups.object(uid or "")
    assert found is not None
    return found


def missing(groups: Groups, uid: str | None) -> int:
    found = POD_GROUP.gathering(stands(groups, uid))
    return 0 if found is None else found.missing


def test_pods_are_of_their_topmost_owner_once_that_is_known() -> None:
    owners: dict[str, Owner] = {}
    groups = make(owners=owners)
    assert see(groups, member("a", **MARK)) is None
    owners |= {"uid-a": WEB, "uid-b": WEB}
    uid = see(groups, member("a", **MARK))
    assert uid is not None
    assert see(groups, member("b", group="web-5c4d", size="?- ReplicaSet")) == uid
    made = stands(groups, uid)
    assert made["metadata"]["fluxjob"] == "web-deployment"
    assert POD_GROUP.shown_as(made) == ("apps/v1", "Deployment")
    assert POD_GROUP.facts(made, WorkloadFacts()).made_by == "Deployment web"


def test_an_owner_that_does_not_say_starts_with_those_that_come_in_its_window() -> None:
    clock = ManualClock()
    owners = {f"uid-{name}": WEB for name in "abc"}
    groups = make(owners=owners, clock=clock)
    uid = see(groups, member("a", **MARK)) or ""
    assert missing(groups, uid) == 1
    clock.advance(WINDOW_S / 2)
    see(groups, member("b", **MARK))
    clock.advance(WINDOW_S * 0.75)
    assert missing(groups, uid) == 1
    assert groups.closes_in_s(uid) == WINDOW_S / 4
    clock.advance(WINDOW_S / 4)
    assert missing(groups, uid) == 0
    assert groups.closes_in_s(uid) is None
    see(groups, member("c", **MARK))
    assert POD_GROUP.size(stands(groups, uid)) == 2
    groups.forget("uid-a")
    groups.forget("uid-b")
    assert missing(groups, uid) == 0


def test_a_window_does_not_stay_open_for_ever() -> None:
    clock = ManualClock()
    names = [f"p{number}" for number in range(4 * WINDOWS_MAX)]
    groups = make(owners={f"uid-{name}": WEB for name in names}, clock=clock)
    for name in names:
        uid = see(groups, member(name, **MARK)) or ""
        if missing(groups, uid) == 0:
            break
        clock.advance(WINDOW_S / 2)
    assert POD_GROUP.size(stands(groups, uid)) == 2 * WINDOWS_MAX + 1


def test_an_owner_that_says_how_many_is_waited_for() -> None:
    """And asked again meanwhile: it may be changed."""
    owner = Owner("x.io/v1", "Gang", "web", "uid-web", size=2)
    owners = {"uid-a": replace(owner, size=3), "uid-b": owner}
    groups = make(owners=owners)
    uid = see(groups, member("a", **MARK)) or ""
    assert groups.closes_in_s(uid) is None
    assert groups.gathering(uid) is not None
    assert missing(groups, uid) == 2
    owners["uid-a"] = owner
    assert groups.look(member("a", **MARK)) == uid
    assert missing(groups, uid) == 1
    see(groups, member("b", **MARK))
    assert missing(groups, uid) == 0
    assert groups.gathering(uid) is None
    groups.forget("uid-a")
    assert missing(groups, uid) == 0, "it has been complete"


def test_what_the_pods_say_goes_before_what_their_owner_says() -> None:
    owners = {"uid-a": replace(WEB, size=9)}
    groups = make(owners=owners)
    uid = see(groups, member("a", group="web-7f9c", size="1- ReplicaSet"))
    assert missing(groups, uid) == 0


def test_an_owner_of_the_same_name_is_another_group() -> None:
    owners = {"uid-a": WEB, "uid-b": replace(WEB, uid="uid-other")}
    groups = make(owners=owners)
    first, second = (see(groups, member(name, **MARK)) for name in "ab")
    assert first != second
    assert stands(groups, second)["metadata"]["fluxjob"] != "web-deployment"


def test_a_new_process_knows_an_owners_group_and_how_many_it_started_with() -> None:
    known = KnownGroup("g", "default", "web", "web-deployment", "alice", "", frozenset(), size=4)
    groups = make(owners={"uid-a": WEB})
    groups.know([known])
    assert see(groups, member("a", **MARK)) == "g"
    assert missing(groups, "g") == 0
    assert stands(groups, "g")["spec"]["minimum"] == 4


def test_objects_say_of_which_groups_they_speak() -> None:
    """Coscheduling's, Kubernetes' own, and those of a Workload as it was in 1.35."""

    def said(**spec: Any) -> dict[str, Declared]:
        return dict(read_declared({"metadata": {"name": "g"}, "spec": spec}))

    assert said(minMember=3, scheduleTimeoutSeconds=9) == {"g": Declared(3, 9)}
    gang = {"gang": {"minCount": 4}}
    topology = {"topology": [{"key": "topology.kubernetes.io/zone"}]}
    own = said(schedulingPolicy=gang, schedulingConstraints=topology, priority=7)
    assert own == {"g": Declared(4, None, "topology.kubernetes.io/zone", 7)}
    assert said(schedulingPolicy={"basic": {}}, priority=0) == {"g": Declared(1)}
    parts = [{"name": "a", "policy": gang}, {"name": "b", "policy": {"basic": {}}}, {"name": "c"}]
    assert said(podGroups=parts) == {"g.a": Declared(4), "g.b": Declared(1)}
    assert said(podGroupTemplates=parts) == {}
    assert said() == {}


def test_a_podgroup_says_how_its_pods_lie_and_how_much_they_matter() -> None:
    groups = make(declared=Declared(1, None, "zone", 7))
    uid = see(groups, member("a", size="?-"))
    stands = groups.object(uid or "")
    assert stands is not None
    wishes = POD_GROUP.wishes(stands)
    assert (wishes.within, wishes.priority) == ("zone", 7)


def test_replicas_of_a_workloads_group_are_groups_of_their_own() -> None:
    groups = make()
    uids = [see(groups, member(f"p{n}", group=f"w.part.{n}", size="?-")) for n in range(2)]
    assert len(set(uids)) == 2
    assert groups.declared_by("default", "w.part") == uids
    assert groups.declared_by("default", "w") == []


def test_a_driver_and_what_its_service_account_makes_are_one_group() -> None:
    """Also if the followers are seen first, as after a restart."""
    notes = {"fluxqueue/followers": "2 cpu=1"}
    driver = member("app", "app", "1- Pod")
    driver["metadata"]["annotations"] |= notes
    account = "system:serviceaccount:default:default"

    def executor(name: str, user: str = account) -> Obj:
        made = member(name, "app", "?- Pod", user=user)
        reference = owner("Pod", "app") | {"apiVersion": "v1"}
        return made | {"metadata": made["metadata"] | {"ownerReferences": [reference]}}

    of = Owner("v1", "Pod", "app", "uid-app")
    names = ("e1", "e2", "theirs")
    groups = make(owners={f"uid-{name}": of for name in names})
    found = see(groups, driver)
    assert found is not None
    assert see(groups, executor("e1")) == found
    assert see(groups, executor("theirs", user="mallory")) != found
    stands = groups.object(found)
    assert stands is not None
    assert stands["metadata"]["fluxjob"] == "app-pod"
    assert stands["slotKinds"]["uid-e1"].startswith("followers-")
    again = make(owners={f"uid-{name}": of for name in names})
    pods = frozenset({"uid-app", "uid-e2"})
    again.know([KnownGroup(found, "default", "app", "app-pod", "alice", "", pods, 3)])
    assert see(again, executor("e2")) == found
    assert see(again, driver) == found
    stands = again.object(found)
    assert stands is not None
    assert stands["slotKinds"]["uid-e2"].startswith("followers-")
    assert stands["of"].uid == "uid-app"
    assert POD_GROUP.to_request(stands).size == 3
