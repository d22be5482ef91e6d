"""What makes pods and can be suspended waits suspended, without a pod, and is released whole.

The operators themselves are not here: the tests make what these would, once an object goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fluxqueue.errors import Invalid, NotFound
from fluxqueue.kube import steer
from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.resources import FLUXJOBS, JOBS, PODS, ApiResource
from fluxqueue.scheduler.resource_set import read_resource_set
from tests.support.e2e.custom_kinds import JOB_SET, MPI_JOB, define
from tests.support.e2e.group_members import (
    SIZES,
    assert_each_ran_once_in_order,
    phases,
    until_queued,
)
from tests.support.e2e.kills import kill_part
from tests.support.e2e.objects import FOR_EVER, Obj
from tests.support.e2e.owned_pods import (
    all_are,
    create,
    delete_all,
    fill,
    job_of,
    make_room,
    pod_of,
    reference,
    template,
    until_told,
    until_waiting,
)
from tests.support.e2e.space import Space, make_space, remove_space
from tests.support.owners import job_set_spec
from tests.support.waiting import eventually

FIELD = {"JobSet": ("spec", "suspend"), "MPIJob": ("spec", "runPolicy", "suspend")}


def is_suspended(owner: Obj) -> Any:
    here: Any = owner
    for name in FIELD[owner["kind"]]:
        here = here.get(name) or {}
    return here


async def get(space: Space, resource: ApiResource, name: str) -> Obj:
    found = await space.client.get(resource, space.name, name)
    return {**found, "kind": resource.kind}


async def until_suspended(space: Space, resource: ApiResource, name: str, expected: bool) -> Obj:
    """Until an object goes on, or does not."""

    async def look() -> Obj | None:
        found = await get(space, resource, name)
        return found if bool(is_suspended(found)) is expected else None

    return await eventually(look, f"{resource.kind} {name} suspended: {expected}")


async def make_jobs(space: Space, made: Obj, names: Sequence[str] = ()) -> list[str]:
    """As the JobSet controller does, from the templates as admission left them."""
    owner, found = reference(JOB_SET, made), []
    for part in made["spec"]["replicatedJobs"]:
        if names and part["name"] not in names:
            continue
        spec, name = part["template"]["spec"], f"{made['metadata']['name']}-{part['name']}-0"
        await space.create(job_of(owner, name, spec["template"], pods=spec["parallelism"]))
        found.append(name)
    return found


async def say(space: Space, resource: ApiResource, name: str, condition: str) -> None:
    """The operator writes down how it has ended."""
    status = {"status": {"conditions": [{"type": condition, "status": "True"}]}}
    await space.client.patch(resource, space.name, name, status, kind=PatchKind.MERGE)


async def test_a_jobset_waits_suspended_and_starts_whole(space: Space) -> None:
    """No pod lies around while it waits. Its Jobs' pods get the slots of their own kind."""
    await fill(space)
    spec = job_set_spec(driver=(1, template()), workers=(3, template(cpu="8")))
    made = await create(space, JOB_SET, "train", spec)
    assert made["spec"]["suspend"] is True
    assert made["metadata"]["annotations"]["fluxqueue/user"]
    waiting = await until_waiting(space, "train-jobset")
    assert waiting["spec"]["size"] == 4
    assert waiting["spec"]["workload"] == {
        "apiVersion": JOB_SET.api_version,
        "kind": "JobSet",
        "name": "train",
        "uid": made["metadata"]["uid"],
    }
    assert [one["uid"] for one in waiting["metadata"]["ownerReferences"]] == [
        made["metadata"]["uid"]
    ]
    assert len(await phases(space)) == 4
    await make_room(space)
    going = await until_suspended(space, JOB_SET, "train", False)

    async def is_told() -> bool:
        found = await space.events_on(made["metadata"]["uid"])
        return "Started" in [one["reason"] for one in found]

    await eventually(is_told, "its start is told on the JobSet")
    # One after the other, as its controller may: the slots of those to come are kept.
    (driver,) = await make_jobs(space, going, ["driver"])
    await space.until_job(driver)
    (workers,) = await make_jobs(space, going, ["workers"])
    await space.until_job(workers)
    await say(space, JOB_SET, "train", "Completed")
    done = await until_told(space, "train-jobset", "Completed")
    slots = read_resource_set(done["status"]["R"]).slots
    assert sorted(has["cpu"] for _, has in slots) == [1000, 8000, 8000, 8000]
    assert len((await space.client.list(FLUXJOBS, space.name)).items) == 1
    sql = "SELECT count(*) AS runs FROM allocations WHERE uid = :uid"
    assert await space.world.rows(sql, uid=made["metadata"]["uid"]) == [{"runs": 1}]


async def test_an_mpijob_is_over_when_it_says_so(space: Space) -> None:
    """A failed pod's slot is kept for another one. It has ended when its status says how."""
    parts = {
        "Launcher": {"replicas": 1, "template": template()},
        "Worker": {"replicas": 2, "template": template(cpu="16", run=FOR_EVER)},
    }
    made = await create(space, MPI_JOB, "amg", {"mpiReplicaSpecs": parts})
    assert made["spec"]["runPolicy"] == {"suspend": True}
    going = await until_suspended(space, MPI_JOB, "amg", False)
    owner, parts = reference(MPI_JOB, made), going["spec"]["mpiReplicaSpecs"]
    for number in range(2):
        await space.create(pod_of(owner, f"amg-{number}", parts["Worker"]["template"]))
    await until_told(space, "amg-mpijob", "Running")
    await delete_all(space, ["amg-0"])
    await space.until_gone(PODS, "amg-0")
    await space.create(pod_of(owner, "amg-0", parts["Worker"]["template"]))
    await all_are(space, "Running", 2)
    await space.create(job_of(owner, "amg-launcher", parts["Launcher"]["template"], pods=1))
    await space.until_job("amg-launcher")
    await say(space, MPI_JOB, "amg", "Failed")
    await delete_all(space, ["amg-0", "amg-1"])
    await until_told(space, "amg-mpijob", "Failed")


@pytest.mark.long("seconds on a whole cluster. The usual case of its module stays")
async def test_its_authors_suspension_is_respected(space: Space) -> None:
    """It waits until its author releases it, and then its turn. Suspended it waits."""
    await fill(space)
    spec = job_set_spec(workers=(1, template(run=FOR_EVER)))
    await create(space, JOB_SET, "mine", spec | {"suspend": True})
    await until_told(space, "mine-jobset", "Held", "suspended by its author")
    resume: Obj = {"spec": {"suspend": False}}
    at = (JOB_SET, space.name, "mine")
    await space.client.patch(*at, resume, kind=PatchKind.MERGE)
    await until_waiting(space, "mine-jobset")
    await until_suspended(space, JOB_SET, "mine", True)
    await make_room(space)
    await make_jobs(space, await until_suspended(space, JOB_SET, "mine", False))
    await until_told(space, "mine-jobset", "Running")
    await space.client.patch(*at, {"spec": {"suspend": True}}, kind=PatchKind.MERGE)
    await space.delete("mine-workers-0")
    await until_told(space, "mine-jobset", "Held", "suspended by its author")
    await space.client.patch(*at, resume, kind=PatchKind.MERGE)
    await make_jobs(space, await until_suspended(space, JOB_SET, "mine", False))
    await until_told(space, "mine-jobset", "Running")
    await space.client.delete(*at, propagation="Background")
    await space.until_gone(FLUXJOBS, "mine-jobset")


@pytest.mark.long("seconds on a whole cluster. The usual case of its module stays")
async def test_requeueing_suspends_it_again_and_cancelling_deletes_it(space: Space) -> None:
    spec = job_set_spec(workers=(2, template(cpu="16", run=FOR_EVER)))
    made = await create(space, JOB_SET, "again", spec)
    await make_jobs(space, await until_suspended(space, JOB_SET, "again", False))
    await steer.requeue(space.client, await until_told(space, "again-jobset", "Running"))
    await until_suspended(space, JOB_SET, "again", True)
    await space.delete("again-workers-0")  # as its controller does
    going = await until_suspended(space, JOB_SET, "again", False)
    await kill_part(space.world, "controller")
    await make_jobs(space, going)
    again = await until_told(space, "again-jobset", "Running")
    sql = "SELECT requeues FROM fluxjobs WHERE uid = :uid"
    assert await space.world.rows(sql, uid=made["metadata"]["uid"]) == [{"requeues": 1}]
    await steer.cancel(space.client, again)
    await space.until_gone(JOB_SET, "again")
    await space.until_gone(JOBS, "again-workers-0")


@pytest.mark.long("seconds on a whole cluster. The usual case of its module stays")
async def test_jobsets_do_not_clog(space: Space) -> None:
    """Six of them on room for two. Their Jobs are made late, in any order."""
    going: dict[str, Obj] = {}
    for number, size in enumerate(SIZES):
        spec = job_set_spec(a=(1, template(cpu="5")), b=(size - 1, template(cpu="5")))
        await create(space, JOB_SET, f"s{number}", spec)
        await until_queued(space, number + 1)  # within one second the order is not known

    async def operate() -> bool:
        for number in range(len(SIZES)):
            found = await get(space, JOB_SET, f"s{number}")
            if f"s{number}" not in going and not is_suspended(found):
                going[f"s{number}"] = found
                for part in ("b", "a"):
                    await make_jobs(space, found, [part])
        fluxjobs = (await space.client.list(FLUXJOBS, space.name)).items
        states = [(one.get("status") or {}).get("state") for one in fluxjobs]
        return states == ["Completed"] * len(SIZES)

    recording = space.recording()
    async with recording:
        await eventually(operate, "all JobSets run", timeout_s=120)
        await recording.until(lambda seen: all(one.is_over for one in seen.present()), "all over")
    assert max(recording.peak_cpu_m().values()) <= 15_000
    await assert_each_ran_once_in_order(space)


async def test_where_all_sets_are_managed_it_need_not_ask(space: Space) -> None:
    managed = await make_space(space.world, {"fluxqueue/sets": "managed"})
    try:
        await define(managed, JOB_SET)
        body = {"apiVersion": JOB_SET.api_version, "kind": "JobSet", "metadata": {"name": "all"}}
        spec = job_set_spec(workers=(2, template()))
        made = await managed.client.create(JOB_SET, managed.name, body | {"spec": spec})
        assert made["spec"]["suspend"] is True
        (name,) = await make_jobs(managed, await until_suspended(managed, JOB_SET, "all", False))
        await managed.until_job(name)
        await until_told(managed, "all-jobset", "Completed")
    finally:
        await remove_space(managed)


async def test_what_it_wishes_is_checked_when_it_is_made(space: Space) -> None:
    """With the path of what is wrong. Nothing of it is stored."""
    wrong = template()
    wrong["metadata"]["annotations"]["fluxqueue/duration"] = "soon"
    with pytest.raises(Invalid, match=r"spec\.replicatedJobs.*duration.*soon"):
        await create(space, JOB_SET, "wrong", job_set_spec(workers=(1, wrong)))
    with pytest.raises(NotFound):
        await space.client.get(JOB_SET, space.name, "wrong")


async def test_nobody_says_for_himself_what_admission_writes(space: Space) -> None:
    """A forged submitter is overwritten, and a later edit of it undone."""
    spec = job_set_spec(workers=(1, template(run=FOR_EVER)))
    body: Obj = {"apiVersion": JOB_SET.api_version, "kind": "JobSet", "spec": spec}
    await define(space, JOB_SET)
    forged = {"fluxqueue/user": "root", "fluxqueue/suspended": "true"}
    body["metadata"] = {"name": "forged", "annotations": forged}
    body["spec"] = spec | {"suspend": True}
    await space.client.create(JOB_SET, space.name, body)
    ask = {"metadata": {"labels": {"fluxqueue/managed": "true"}}}
    at = (JOB_SET, space.name, "forged")
    made = await space.client.patch(*at, ask, kind=PatchKind.MERGE)
    assert made["metadata"]["annotations"]["fluxqueue/user"] != "root"
    # It waited so far because its author suspended it.
    held = await until_told(space, "forged-jobset", "Held", "suspended by its author")
    assert held["spec"]["user"] != "root"
    again = {"metadata": {"annotations": {"fluxqueue/user": "root", "fluxqueue/suspended": None}}}
    made = await space.client.patch(*at, again, kind=PatchKind.MERGE)
    assert made["metadata"]["annotations"]["fluxqueue/user"] != "root"
    assert made["metadata"]["annotations"]["fluxqueue/suspended"] == "true"
