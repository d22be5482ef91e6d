"""How pods say of which group they are: our spelling, those of before, admission's mark."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.errors import InvalidInput
from fluxqueue.workload.groups import Membership, read_mark, read_membership, read_users
from tests.support.workloads import bare_pod, batch_job, owner

OURS = {"fluxqueue/pod-group": "mpi", "fluxqueue/group-size": "5"}
FIVE = Membership("mpi", 5, 5)


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        ({"schedulingGroup": {"podGroupName": "mpi"}}, "mpi"),
        ({"workloadRef": {"name": "mpi", "podGroup": "workers"}}, "mpi.workers"),
        (
            {"workloadRef": {"name": "m", "podGroup": "w", "podGroupReplicaKey": "7"}},
            "m.w.7",
        ),
        ({"schedulingGroup": {}}, None),
        ({"workloadRef": {"name": "mpi"}}, None),
    ],
)
def test_reads_the_groups_of_kubernetes(spec: dict[str, Any], name: str | None) -> None:
    """Of 1.36 and later, and of 1.35. Of what something else makes only if that asks."""
    expected = None if name is None else Membership(name, None, None)
    assert read_membership(bare_pod(**spec)) == expected
    assert read_membership(batch_job(pod=spec)) == expected
    made: dict[str, Any] = {"ownerReferences": [owner("Gang", "g")]}
    assert read_membership(bare_pod(meta=made, **spec)) is None
    asking = read_membership(
        bare_pod(meta=made | {"labels": {"fluxqueue/managed": "true"}}, **spec)
    )
    assert asking is not None
    assert asking == (expected or asking)
    ours = read_membership(bare_pod(meta={"labels": OURS}, **spec))
    assert ours == FIVE


@pytest.mark.parametrize("place", ["labels", "annotations"])
@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, None),
        (OURS, FIVE),
        (OURS | {"fluxqueue/group-size": "3-5"}, Membership("mpi", 3, 5)),
        (OURS | {"fluxqueue/group-size": "1-5"}, Membership("mpi", 1, 5)),
        (OURS | {"fluxqueue/group-size": "1"}, None),
        ({"fluxqueue/pod-group": "mpi"}, Membership("mpi", None, None)),
        (
            {
                "fluence.flux-framework.org/pod-group": "mpi",
                "fluence.flux-framework.org/group-size": "5",
            },
            FIVE,
        ),
        ({"fluence.pod-group": "mpi", "fluence.group-size": "5"}, FIVE),
        ({"fluxnetes.group-name": "mpi", "fluxnetes.group-size": "5"}, FIVE),
        ({"fluence.pod-group": "mpi"}, None),
        ({"fluxqueue.pod-group": "mpi", "fluxqueue.group-size": "5"}, None),
        ({"scheduling.x-k8s.io/pod-group": "mpi"}, Membership("mpi", None, None)),
        ({"scheduling.sigs.k8s.io/pod-group": "mpi"}, Membership("mpi", None, None)),
        ({"pod-group.scheduling.sigs.k8s.io": "mpi"}, Membership("mpi", None, None)),
        (
            {"scheduling.x-k8s.io/pod-group": "mpi", "fluence.group-size": "5"},
            Membership("mpi", 5, None),
        ),
    ],
)
def test_reads_every_spelling(place: str, said: dict[str, str], expected: Any) -> None:
    assert read_membership(bare_pod(meta={place: said})) == expected
    assert read_membership(batch_job(template_meta={place: said})) == expected


def test_a_jobs_own_word_wins_over_its_templates() -> None:
    job = batch_job(meta={"annotations": OURS}, template_meta={"labels": {**OURS, "a": "b"}})
    job["metadata"]["annotations"] = OURS | {"fluxqueue/group-size": "7"}
    assert read_membership(job) == Membership("mpi", 7, 7)


@pytest.mark.parametrize(
    ("said", "field", "hint"),
    [
        (OURS | {"fluxqueue/group-size": "0"}, "group-size", "3-5"),
        (OURS | {"fluxqueue/group-size": "5-3"}, "group-size", "3-5"),
        (OURS | {"fluxqueue/group-size": "many"}, "group-size", "3-5"),
        (OURS | {"fluxqueue/pod-group": "No Name"}, "pod-group", "lower-case"),
        ({"fluxqueue/group-size": "5"}, "group-size", "name the group"),
        ({"fluence.pod-group": "x", "fluence.group-size": "x"}, "group-size", "3-5"),
    ],
)
def test_says_what_is_wrong_and_where(said: dict[str, str], field: str, hint: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        read_membership(bare_pod(meta={"labels": said}))
    assert caught.value.where.startswith("metadata.labels[")
    assert field in caught.value.where
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "membership",
    [FIVE, Membership("a.b", 3, 9), Membership("x", None, None), Membership("x", 5, None)],
)
def test_the_mark_is_read_back(membership: Membership) -> None:
    pod = bare_pod(meta={"annotations": {"fluxqueue/group": membership.mark()}})
    assert read_mark(pod) == membership


@pytest.mark.parametrize("text", ["", "x", "x 5", "x 5-y", "X 5-5", "x 5-5 6", "x -5"])
def test_a_mark_that_admission_cannot_have_written_is_none(text: str) -> None:
    assert read_mark(bare_pod(meta={"annotations": {"fluxqueue/group": text}})) is None
    assert read_mark(bare_pod()) is None


def test_who_may_join() -> None:
    pod = bare_pod(meta={"annotations": {"fluxqueue/group-users": "bob, carol,,"}})
    assert read_users(pod) == {"bob", "carol"}


def of_set(kind: str, name: str, *, scheduler: str = "", **marks: str) -> dict[str, Any]:
    """A pod that a set makes."""
    made_by = {**owner(kind, name), "apiVersion": "apps/v1"}
    pod = bare_pod(meta={"ownerReferences": [made_by], "labels": marks})
    return pod | {"spec": pod["spec"] | ({"schedulerName": scheduler} if scheduler else {})}


ASKS = {"fluxqueue/managed": "true"}


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (of_set("ReplicaSet", "web-7f9c", scheduler="fluence"), ("web-7f9c", "ReplicaSet")),
        (of_set("ReplicaSet", "web-7f9c", **ASKS), ("web-7f9c", "ReplicaSet")),
        (of_set("StatefulSet", "db", **ASKS), ("db", "StatefulSet")),
        (of_set("StatefulSet", "db"), None),
        (of_set("StatefulSet", "db", **{"fluxqueue/managed": "false"}), None),
        (of_set("MPIJob", "lammps", **ASKS), ("lammps", "MPIJob")),
        (
            of_set("StatefulSet", f"{'long-' * 40}name", **ASKS),
            (f"{'long-' * 40}name", "StatefulSet"),
        ),
        (of_set("DaemonSet", "agent", **ASKS), None),
        (of_set("DaemonSet", "agent", scheduler="fluence"), None),
    ],
)
def test_pods_of_an_owner_are_a_group_where_they_ask_to_be_queued(pod: Any, expected: Any) -> None:
    found = read_membership(pod)
    assert (found and (found.name, found.of)) == expected
    if found is not None:
        assert (found.minimum, found.maximum) == (None, None)
        assert read_mark(bare_pod(meta={"annotations": {"fluxqueue/group": found.mark()}})) == found


@pytest.mark.parametrize(
    ("size", "expected"), [("1", (1, None)), ("5", (5, None)), ("3-5", (3, 5))]
)
def test_an_owners_pods_may_say_how_many_start_at_once(size: str, expected: Any) -> None:
    """It may be scaled beyond that, unless the pods say how far."""
    found = read_membership(of_set("StatefulSet", "db", **ASKS, **{"fluxqueue/group-size": size}))
    assert found is not None
    assert (found.minimum, found.maximum) == expected


def owned_job(kind: str, *, template: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """A Job that something makes, with pods that ask to be queued."""
    job = batch_job("part", parallelism=2, completions=2)
    made_by = {**owner(kind, "all"), "apiVersion": "x.io/v1"}
    job["metadata"] |= {"ownerReferences": [made_by]}
    job["spec"]["template"]["metadata"] = template or {"labels": ASKS}
    job["spec"]["template"]["spec"] |= spec
    return job


def test_a_job_that_something_makes_is_of_that_where_its_pods_ask() -> None:
    found = read_membership(owned_job("JobSet"))
    assert found is not None
    assert (found.name, found.of) == ("all", "JobSet")
    assert read_membership(owned_job("JobSet", template={"labels": {"a": "b"}})) is None
    assert read_membership(owned_job("CronJob")) is None
    assert read_membership(batch_job("alone")) is None


def test_a_job_that_is_held_by_itself_stays_so() -> None:
    """Admission has labelled its template, and may be asked again."""
    gates = [{"name": "fluxqueue"}]
    assert read_membership(owned_job("JobSet", schedulingGates=gates)) is None
    marked = {"labels": ASKS, "annotations": {"fluxqueue/group": "all ?- JobSet"}}
    found = read_membership(owned_job("JobSet", template=marked, schedulingGates=gates))
    assert found is not None
