"""What operators make: queued whole by the topmost owner, on definitions of the same structure.

The operators themselves are not here: the tests make what these would, from the templates as
admission left them.
"""

from __future__ import annotations

import pytest

from fluxqueue.kube.resources import FLUXJOBS, JOBS, PODS
from tests.support.e2e.custom_kinds import (
    GANG,
    JOB_SET,
    MINI_CLUSTER,
    RAY_CLUSTER,
    RAY_JOB,
    WORKFLOW,
    define,
)
from tests.support.e2e.group_members import (
    SIZES,
    assert_each_ran_once_in_order,
    until_queued,
)
from tests.support.e2e.kills import kill_part
from tests.support.e2e.objects import FOR_EVER, Obj
from tests.support.e2e.owned_pods import (
    ASKS,
    all_are,
    create,
    delete_all,
    job_of,
    pod_of,
    reference,
    template,
    until_told,
)
from tests.support.e2e.space import Space, make_space, remove_space
from tests.support.owners import job_set_spec


async def test_a_rayjob_is_the_owner_of_its_clusters_pods(space: Space) -> None:
    """Pod -> RayCluster -> RayJob. A worker group that is made larger grows it. (It keeps its
    cluster at its end, so its operator forbids suspension.)
    """
    cluster = {
        "headGroupSpec": {"template": template(run=FOR_EVER)},
        "workerGroupSpecs": [{"replicas": 2, "template": template(cpu="2", run=FOR_EVER)}],
    }
    made = await create(space, RAY_JOB, "tune", {"rayClusterSpec": cluster})
    inner = made["spec"]["rayClusterSpec"]
    between = await create(space, RAY_CLUSTER, "tune-x7", inner, owner=reference(RAY_JOB, made))
    owner = reference(RAY_CLUSTER, between)
    await space.create(pod_of(owner, "head", inner["headGroupSpec"]["template"]))
    await until_told(space, "tune-rayjob", "Gathering", "1 of 3 pods; missing 2")
    worker = inner["workerGroupSpecs"][0]["template"]
    for name in ("w0", "w1"):
        await space.create(pod_of(owner, name, worker))
    await all_are(space, "Running", 3)
    await space.create(pod_of(owner, "w2", worker))
    await all_are(space, "Running", 4)
    await delete_all(space, ("head", "w0", "w1", "w2"))
    await space.until_gone(FLUXJOBS, "tune-rayjob")


async def test_a_set_of_jobs_is_of_what_made_it(space: Space) -> None:
    """Pod -> Job -> JobSet -> Workflow, which hands its labels on: its nodes start as one."""
    made = await create(space, WORKFLOW, "tune", {"templates": []})
    await define(space, JOB_SET)
    body: Obj = {"apiVersion": JOB_SET.api_version, "kind": "JobSet"}
    body["metadata"] = {"name": "tune", "labels": ASKS}
    body["metadata"]["ownerReferences"] = [reference(WORKFLOW, made)]
    body["spec"] = job_set_spec(node=(3, template(cpu="8")))
    between = await space.client.create(JOB_SET, space.name, body)
    assert "suspend" not in between["spec"]
    (node,) = between["spec"]["replicatedJobs"]
    inner = node["template"]["spec"]["template"]
    await space.create(job_of(reference(JOB_SET, between), "tune-node-0", inner, pods=3))
    await space.until_job("tune-node-0")
    done = await until_told(space, "tune-workflow", "Completed")
    assert (done["spec"]["size"], done["spec"]["workload"]["kind"]) == (3, "Workflow")
    assert len((await space.client.list(FLUXJOBS, space.name)).items) == 1


@pytest.mark.long("seconds on a whole cluster. The usual case of its module stays")
async def test_an_owner_that_is_changed_while_its_pods_gather(space: Space) -> None:
    """It had four pods to come and now has two: the others are not waited for."""
    made = await create(space, MINI_CLUSTER, "flux", {"size": 4, "pod": {}})
    owner = reference(MINI_CLUSTER, made)
    pod = template(run=FOR_EVER)
    pod["metadata"]["labels"] = made["spec"]["pod"]["labels"]
    for number in range(2):
        await space.create(pod_of(owner, f"flux-{number}", pod))
    await until_told(space, "flux-minicluster", "Gathering", "2 of 4 pods; missing 2")
    smaller = await space.client.get(MINI_CLUSTER, space.name, "flux")
    smaller["spec"]["size"] = 2
    await space.client.replace(MINI_CLUSTER, space.name, "flux", smaller)
    await all_are(space, "Running", 2)
    await delete_all(space, ("flux-0", "flux-1"))
    await space.until_gone(FLUXJOBS, "flux-minicluster")


@pytest.mark.long("seconds on a whole cluster. The usual case of its module stays")
async def test_owners_whose_pods_come_out_of_step_do_not_clog(space: Space) -> None:
    """Six MiniClusters with Jobs that are made one after the other, on room for two of them."""
    recording = space.recording()
    async with recording:
        for number, size in enumerate(SIZES):
            made = await create(space, MINI_CLUSTER, f"m{number}", {"size": size, "pod": {}})
            pods = template(cpu="5")
            pods["metadata"]["labels"] = made["spec"]["pod"]["labels"]
            owner = reference(MINI_CLUSTER, made)
            indexed = {"completionMode": "Indexed"}
            await space.create(job_of(owner, f"m{number}", pods, pods=size, **indexed))
            await until_queued(space, number + 1)
        for number in range(len(SIZES)):
            await until_told(space, f"m{number}-minicluster", "Completed")
        await recording.until(lambda seen: all(one.is_over for one in seen.present()), "all over")
    for state in recording.states():
        for number, size in enumerate(SIZES):
            its = [one for one in state.values() if one.name.startswith(f"m{number}-")]
            assert len(its) == size or all(one.is_gated for one in its), "let go incomplete"
    await assert_each_ran_once_in_order(space)


@pytest.mark.long("seconds on a whole cluster. The usual case of its module stays")
async def test_a_kind_that_nobody_knows_starts_with_those_that_come(space: Space) -> None:
    """In a namespace with managed sets. It survives its controller."""
    managed = await make_space(space.world, {"fluxqueue/sets": "managed"})
    try:
        made = await create(managed, GANG, "odd", {})
        owner = reference(GANG, made)
        for number in range(3):
            await managed.create(pod_of(owner, f"odd-{number}", template(run=FOR_EVER)))
        await until_told(managed, "odd-gang", "Running")
        await all_are(managed, "Running", 3)
        await kill_part(managed.world, "controller")
        await managed.create(pod_of(owner, "odd-3", template(run=FOR_EVER)))
        await all_are(managed, "Running", 4)
        assert len((await managed.client.list(FLUXJOBS, managed.name)).items) == 1
        await delete_all(managed, (f"odd-{number}" for number in range(4)))
        await managed.until_gone(FLUXJOBS, "odd-gang")
    finally:
        await remove_space(managed)


async def test_what_does_not_ask_is_left_alone(space: Space) -> None:
    """Its Jobs are queued one by one, as any. Its pods run beside the queue."""
    await define(space, JOB_SET)
    body = {"apiVersion": JOB_SET.api_version, "kind": "JobSet", "metadata": {"name": "free"}}
    made = await space.client.create(JOB_SET, space.name, body | {"spec": {}})
    owner = reference(JOB_SET, made)
    await space.create(job_of(owner, "free-0", template(), pods=2))
    await space.create(pod_of(owner, "free-pod", template()))
    await space.until_job("free-0")
    (fluxjob,) = (await space.client.list(FLUXJOBS, space.name)).items
    assert fluxjob["metadata"]["name"] == "free-0-job"
    pod = await space.client.get(PODS, space.name, "free-pod")
    assert "fluxqueue/group" not in pod["metadata"]["annotations"]
    assert (await space.client.get(JOBS, space.name, "free-0"))["spec"]["suspend"] is False
