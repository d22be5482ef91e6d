"""Which pods are of which group: founding, joining, names used again, other users, a restart."""

from __future__ import annotations

from typing import Any

from fluxqueue.controller.groups import Groups
from fluxqueue.db.life.observations import KnownGroup
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
    if not is_gated:
        notes["fluxqueue/jobid"] = "7"
    gates = [{"name": "fluxqueue"}] if is_gated else []
    pod = bare_pod(name, meta={"annotations": notes, **meta}, schedulingGates=gates)
    pod["metadata"] |= {"uid": f"uid-{name}", "name": name}
    return pod | {"status": {"phase": phase}}


def make(jobs: dict[str, Obj] | None = None, declared: Any = None) -> Groups:
    return Groups((jobs or {}).get, lambda *_: declared)


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
    """They gain nothing, block nobody, and both are told of the other."""
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


def test_who_disagree_on_the_size_get_the_larger_one() -> None:
    groups = make()
    uid = see(groups, member("a", size="2-2"))
    see(groups, member("b", size="4-6"))
    stands = groups.object(uid or "")
    assert stands is not None
    assert (stands["spec"]["minimum"], stands["spec"]["maximum"]) == (4, 6)


def test_a_podgroup_object_says_what_the_pods_do_not() -> None:
    unsaid, said = make(), make(declared=(4, 60))
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
