"""Groups of pods across objects: gathered, started as one, followed to the end of the last pod."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from fluxqueue.errors import Invalid
from fluxqueue.kube import steer
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import FLUXJOBS, JOBS, PODS
from fluxqueue.scheduler.resource_set import read_resource_set
from tests.support.e2e.custom_kinds import MPI_JOB, POD_GROUP, define
from tests.support.e2e.group_members import (
    SIZES,
    acting,
    assert_each_ran_once_in_order,
    create_mixed,
    member,
    phases,
    until_reason,
)
from tests.support.e2e.kills import kill_part
from tests.support.e2e.objects import FOR_EVER, Obj, bare_pod, job
from tests.support.e2e.space import Space, make_space, remove_space
from tests.support.upstream import MANIFESTS
from tests.support.waiting import eventually, until

LAMMPS = MANIFESTS / "flux-k8s/examples/lammps/lammps_mpijob.yaml"


def member_job(name: str, group: str, size: int | str, **more: Any) -> Obj:
    """A Job with pods of a group."""
    made = job(name, pool="main", **more)
    made["metadata"]["annotations"] |= {
        "fluxqueue/pod-group": group,
        "fluxqueue/group-size": str(size),
    }
    return made


async def test_a_group_gathers_and_starts_as_one(space: Space) -> None:
    """Visible with its first pod. Unequal pods get slots of their own kind. Free with the last."""
    await space.create(member("launcher", "mpi", 3, cpu="2"))
    found = await until_reason(space, "mpi", "Gathering", "1 of 3 pods; missing 2")
    assert found["spec"]["size"] == 3
    await space.create(member("worker-0", "mpi", 3, cpu="8"))
    await until_reason(space, "mpi", "Gathering", "2 of 3 pods; missing 1")
    assert set((await phases(space)).values()) == {"Pending"}
    await space.create(member("worker-1", "mpi", 3, cpu="8"))
    done = await space.until_state("mpi", "Completed")
    slots = read_resource_set(done["status"]["R"]).slots
    assert sorted(has["cpu"] for _, has in slots) == [2000, 8000, 8000]
    assert [one["count"] for one in done["spec"]["jobspec"]["resources"]] == [1, 2]
    assert set((await phases(space)).values()) == {"Succeeded"}


async def test_jobs_and_pods_of_one_group_wait_for_each_other(space: Space) -> None:
    """Pods of two Jobs and a bare Pod. The spelling of before does as well."""
    await space.create(member_job("left", "trio", 5, pods=2))
    await until_reason(space, "trio", "Gathering", "2 of 5 pods; missing 3")
    await space.create(member_job("right", "trio", 5, pods=2))
    solo = member("solo", "trio", 5)
    solo["metadata"]["labels"] = {"fluence.pod-group": "trio", "fluence.group-size": "5"}
    solo["spec"]["schedulerName"] = "fluence"
    await until_reason(space, "trio", "Gathering", "4 of 5 pods; missing 1")
    await space.create(solo)
    await space.until_all_complete(["left", "right"])
    done = await space.until_state("trio", "Completed")
    assert done["spec"]["size"] == 5
    assert len((await space.client.list(FLUXJOBS, space.name)).items) == 1


async def test_a_job_as_large_as_its_group_is_the_group(space: Space) -> None:
    """A Job with fewer pods is not left out, and one with more gets an Event."""
    await space.create(member_job("whole", "whole-group", 3, pods=3))
    await space.until_job("whole")
    assert await space.fluxjob("whole-group") is None
    with pytest.raises(Invalid, match=r"fluxqueue/group-size.*is 2, and the Job runs 3 pods"):
        await space.create(member_job("more", "small", 2, pods=3))


async def test_a_member_that_is_deleted_is_missed_and_then_not(space: Space) -> None:
    """While it gathers another may take its place. While it runs its slot goes back at once."""
    await space.create(member("a", "pair", 2, cpu="16", run=FOR_EVER))
    await until_reason(space, "pair", "Gathering", "1 of 2 pods; missing 1")
    await space.delete("a", PODS)
    await space.until_gone(FLUXJOBS, "pair-group")
    await space.create(member("b", "pair", 2, cpu="16", run=FOR_EVER))
    await space.create(member("c", "pair", 2, cpu="16", run=FOR_EVER))
    running = await space.until_state("pair", "Running")
    await space.delete("b", PODS)
    sql = "SELECT number FROM allocation_slots s JOIN allocations a ON a.id = s.allocation_id"
    left = f"{sql} JOIN fluxjobs f USING (uid) WHERE f.name = 'pair-group' AND NOT f.is_gone"

    async def one_is_back() -> bool:
        uid = running["spec"]["workload"]["uid"]
        found = await space.world.rows(f"{left} AND f.uid = :uid AND s.state = 'held'", uid=uid)
        return len(found) == 1

    await eventually(one_is_back, what="the slot of the deleted pod is given back")
    await space.delete("c", PODS)
    await space.until_gone(FLUXJOBS, "pair-group")


async def test_a_group_starts_with_its_least_size_and_grows(space: Space) -> None:
    """Three of five fit beside another. The others follow when that has ended."""
    big = bare_pod("big", cpu="16", run=FOR_EVER, nodeSelector={"pool": "main"})
    await space.create(big)
    await space.until_state("big", "Running")
    names = [f"p{number}" for number in range(4)]
    await space.create_all(member(name, "grown", "3-4", cpu="16", run=FOR_EVER) for name in names)
    await until_reason(space, "grown", "Running", "1 of its pods waits for a slot")

    await until(
        lambda: phases(space),
        lambda found: sorted(found.values()) == ["Pending", *["Running"] * 4],
        what="three pods run, and one waits",
    )
    await space.delete("big", PODS)

    async def all_run() -> bool:
        return list((await phases(space)).values()) == ["Running"] * 4

    await eventually(all_run, what="the fourth pod runs")
    for name in names:
        await space.delete(name, PODS)
    await space.until_gone(FLUXJOBS, "grown-group")


async def test_a_name_that_is_used_again_is_another_group(space: Space) -> None:
    """Also while pods of the first are still there, and in another namespace at any time."""
    await space.create_all(member(f"one-{number}", "same", 2) for number in range(2))
    first = await space.until_state("same", "Completed")
    other = await make_space(space.world)
    try:
        await other.create(member("there", "same", 2))
        await until_reason(other, "same", "Gathering", "1 of 2 pods; missing 1")
    finally:
        await remove_space(other)
    await space.create_all(member(f"two-{number}", "same", 2) for number in range(2))

    async def second() -> Obj | None:
        found = (await space.client.list(FLUXJOBS, space.name)).items
        done = [one for one in found if (one.get("status") or {}).get("state") == "Completed"]
        return next(
            (one for one in done if one["metadata"]["uid"] != first["metadata"]["uid"]), None
        )

    again = await eventually(second, what="the second group of the name is over")
    assert again["spec"]["workload"]["name"] == "same"
    assert again["spec"]["workload"]["uid"] != first["spec"]["workload"]["uid"]


@pytest.mark.long("seconds on a whole cluster. The usual case of its module stays")
async def test_groups_that_come_out_of_step_do_not_clog(space: Space) -> None:
    """Fluence's open wound: six groups with pods that arrive mixed, on room for two of them."""
    pods = [
        (number, member(f"g{group}-{number}", f"g{group}", size, cpu="5"))
        for group, size in enumerate(SIZES)
        for number in range(size)
    ]
    recording = space.recording()
    async with recording:
        await create_mixed(space, pods)
        for group in range(len(SIZES)):
            await space.until_state(f"g{group}", "Completed")
        await recording.until(lambda seen: all(one.is_over for one in seen.present()), "all over")
    assert max(recording.peak_cpu_m().values()) <= 15_000
    for state in recording.states():
        for group, size in enumerate(SIZES):
            its = [one for one in state.values() if one.name.startswith(f"g{group}-")]
            assert len(its) == size or all(one.is_gated for one in its), "let go incomplete"
    await assert_each_ran_once_in_order(space)


@pytest.mark.long("seconds of processor time for a crash that a cheaper test covers in parts")
async def test_a_group_survives_its_controller(space: Space) -> None:
    """Killed while it gathers, and again while it runs: nothing is started twice or forgotten."""
    await space.create(member("a", "tough", 3))
    await until_reason(space, "tough", "Gathering", "1 of 3 pods; missing 2")
    await kill_part(space.world, "controller")
    await space.create(member("b", "tough", 3))
    before = await until_reason(space, "tough", "Gathering", "2 of 3 pods; missing 1")
    await space.create(member("c", "tough", 3, run=FOR_EVER))
    await until_reason(space, "tough", "Running", "")
    await kill_part(space.world, "controller")
    await space.delete("c", PODS)
    done = await space.until_state("tough", "Completed")
    assert done["metadata"]["uid"] == before["metadata"]["uid"]
    assert len((await space.client.list(FLUXJOBS, space.name)).items) == 1


async def test_cancelling_a_group_deletes_its_pods_and_jobs(space: Space) -> None:
    """All of it goes. One of its pods alone, or its Job, would come again."""
    await space.create(member_job("part", "whole", 3, pods=2, run=FOR_EVER))
    await space.create(member("solo", "whole", 3, run=FOR_EVER))
    await steer.cancel(space.client, await space.until_state("whole", "Running"))
    await space.until_gone(FLUXJOBS, "whole-group")
    await space.until_gone(JOBS, "part")
    assert await phases(space) == {}


@pytest.mark.long("seconds on a whole cluster. The usual case of its module stays")
async def test_pods_that_do_not_come_are_said_to_be_overdue(space: Space) -> None:
    """In the reason, and with a Warning on the FluxJob. It waits on, and starts when they come."""
    await define(space, POD_GROUP)
    kind = {"apiVersion": POD_GROUP.api_version, "kind": POD_GROUP.kind}
    body = {**kind, "metadata": {"name": "late"}}
    spec = {"minMember": 2, "scheduleTimeoutSeconds": 1}
    await space.client.create(POD_GROUP, space.name, body | {"spec": spec})
    for name in ("a", "b"):
        pod = bare_pod(name, nodeSelector={"pool": "main"})
        pod["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "late"}
        pod["metadata"]["annotations"]["fluxqueue/priority"] = str(ord(name))
        await space.create(pod)
        if name == "a":
            words = "1 of 2 pods; missing 1; overdue: it has gathered for more than 1 s"
            waiting = await until_reason(space, "late", "Gathering", words)

    async def is_warned() -> bool:
        found = await space.events_on(waiting["metadata"]["uid"])
        return ("Warning", "Overdue") in [(one["type"], one["reason"]) for one in found]

    await eventually(is_warned, "the Warning is there")
    done = await space.until_state("late", "Completed")
    (ignored,) = [
        one for one in done["status"]["conditions"] if one["type"] == "ConstraintsIgnored"
    ]
    assert "fluxqueue/priority where pods disagree (the oldest's counts)" in ignored["message"]


@pytest.mark.skipif(not LAMMPS.is_file(), reason=f"{LAMMPS} is not there")
async def test_the_workers_of_an_mpijob_of_before_start_as_a_group(space: Space) -> None:
    """LAMMPS as it was run with Fluence: PodGroup with minMember 4, 24 workers by an operator."""
    documents = list(yaml.safe_load_all(LAMMPS.read_text(encoding="utf-8")))
    for resource, document in zip((POD_GROUP, MPI_JOB), documents, strict=True):
        await define(space, resource)
        made = await space.client.create(resource, space.name, document)
    worker = documents[1]["spec"]["mpiReplicaSpecs"]["Worker"]
    owner = {"apiVersion": "kubeflow.org/v2beta1", "kind": "MPIJob", "name": "lammps"}
    owner |= {"uid": made["metadata"]["uid"], "controller": True}
    recording = space.recording()
    async with recording:
        for number in range(worker["replicas"]):
            meta = {**worker["template"]["metadata"], "name": f"lammps-worker-{number}"}
            meta.pop("app", None)
            notes = {"localcluster/duration": "1s"}
            meta |= {"ownerReferences": [owner], "annotations": notes}
            spec = worker["template"]["spec"] | {"restartPolicy": "Never"}
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
            stored = await space.create(pod)
            assert stored["spec"]["schedulerName"] == "default-scheduler"
        await space.until_state("lammps", "Completed")
        await recording.until(lambda seen: len(seen.present()) == 24, "all were seen")
        await recording.until(lambda seen: all(one.is_over for one in seen.present()), "all over")
    for state in recording.states():
        let_go = [one for one in state.values() if not one.is_gated]
        assert not let_go or len(state) >= 4, "started with fewer than minMember"


async def test_who_joins_a_group_is_its_user_or_is_named(space: Space) -> None:
    """Bob may make pods in the namespace, and write on them anything: the name of the group of
    Alice makes another group, and neither starts. Where her pods name Bob, Bob's pods join.
    That they name her is not enough."""
    alice, bob = await acting(space, "alice"), await acting(space, "bob")
    users = {"fluxqueue/group-users": "alice,bob"}

    async def make(client: KubeClient, name: str, group: str, **notes: str) -> None:
        pod = member(name, group, 2)
        pod["metadata"]["annotations"] |= notes
        await client.create(PODS, space.name, pod)

    await make(alice, "hers", "closed")
    await until_reason(space, "closed", "Gathering", "1 of 2 pods; missing 1")
    await make(bob, "his", "closed", **users)
    sql = (
        "SELECT user_name, state, (observed ->> 'missing')::int AS missing FROM fluxjobs"
        " WHERE namespace = :namespace ORDER BY user_name"
    )

    async def are_two() -> bool:
        rows = await space.world.rows(sql, namespace=space.name)
        return [(row["user_name"], row["state"], row["missing"]) for row in rows] == [
            ("alice", "Gathering", 1),
            ("bob", "Gathering", 1),
        ]

    await space.until_true(are_two, "two groups of one name")
    await make(alice, "hers-too", "closed")
    await space.until_state("closed", "Completed")
    await make(alice, "open", "open", **users)
    await make(bob, "open-too", "open", **users)
    await space.until_state("open", "Completed")
    assert (await phases(space))["his"] == "Pending"
    await space.delete("his", PODS)
