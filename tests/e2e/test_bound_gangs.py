"""Placed gangs in a PodGroup of Kubernetes: kube-scheduler binds all of their pods, or none.

They need a real control plane of Kubernetes 1.37 or later: the scheduler of the embedded cluster
knows no groups.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fluxqueue.kube import steer
from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.resources import JOBS, PODS
from fluxqueue.workload.labels import HOSTNAME
from tests.support.control_plane import ControlPlane, Options, features_here, missing_reason
from tests.support.e2e.health import assert_invariants
from tests.support.e2e.lives import POD_GROUP
from tests.support.e2e.objects import FOR_EVER, Obj, bare_pod, job
from tests.support.e2e.space import Space, make_space, remove_space
from tests.support.e2e.starting import HELD_OPEN, let_in, released_pods, sent_to
from tests.support.e2e.world import SOONER, World, real_world
from tests.support.waiting import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.real_cluster,
    pytest.mark.long("a world of its own, for a feature of Kubernetes that few clusters have"),
    pytest.mark.xdist_group("world of bound gangs"),
]
GROUP = {"FLUXQUEUE_BIND_GANGS": "group"}


@pytest_asyncio.fixture(
    loop_scope="session",
    scope="module",
)
async def bound_world() -> AsyncIterator[World]:
    """A world of this module's own, in which gangs are bound as groups."""
    with tempfile.TemporaryDirectory(prefix="fluxqueue-bound-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        environ = {**SOONER, **GROUP}
        if reason := missing_reason():
            pytest.skip(reason)
        feature = features_here().groups
        if feature is None or "CompositePodGroup" not in feature.gates:
            pytest.skip("this minor has no PodGroups that fluxqueue makes")
        options = Options(feature=feature)
        async with (
            ControlPlane(options=options) as plane,
            real_world(folder, plane, environ=environ) as world,
        ):
            yield world


@pytest_asyncio.fixture(loop_scope="session")
async def bound_space(bound_world: World) -> AsyncIterator[Space]:
    """A namespace in it."""
    made = await make_space(bound_world)
    yield made
    await remove_space(made)
    await assert_invariants(bound_world)


def gang(name: str, **more: Any) -> Obj:
    """Four pods that need a node each."""
    four = {"pods": 4, "cpu": "12", "pool": "main", "run": FOR_EVER}
    return job(name, completionMode="Indexed", **{**four, **more})


async def group_of(space: Space, name: str) -> Obj:
    """The PodGroup that the pods of a Job name, once fluxqueue has made it."""

    async def look() -> Obj | None:
        named = {
            (one["spec"].get("schedulingGroup") or {}).get("podGroupName")
            for one in await space.pods(name)
        }
        found = (await space.client.list(POD_GROUP, space.name)).items
        return next((one for one in found if one["metadata"]["name"] in named), None)

    return await eventually(look, f"the PodGroup of {name}") or {}


def least(group: Obj) -> int:
    size: int = group["spec"]["schedulingPolicy"]["gang"]["minCount"]
    return size


async def test_a_gang_starts_in_a_group_of_its_size(bound_space: Space) -> None:
    """All of its pods name it, also after a requeue. It belongs to the Job."""
    space = bound_space
    await space.create(gang("whole"))
    first = await in_one_group(space, "whole")
    owner = (await group_of(space, "whole"))["metadata"]["ownerReferences"][0]
    assert (owner["kind"], owner["name"]) == ("Job", "whole")
    await steer.requeue(space.client, await space.until_state("whole", "Running"))

    async def are_new() -> bool:
        pods = {one["metadata"]["uid"] for one in await space.pods("whole")}
        return bool(pods) and not pods & first

    await eventually(are_new, "its pods are new")
    await in_one_group(space, "whole")


async def in_one_group(space: Space, name: str) -> set[str]:
    """Wait until its pods run in the group that fluxqueue made. Return their UIDs."""
    pods = await space.until_running(name, 4)
    group = await group_of(space, name)
    named = {one["spec"]["schedulingGroup"]["podGroupName"] for one in pods}
    assert named == {group["metadata"]["name"]}
    assert least(group) == 4
    return {one["metadata"]["uid"] for one in pods}


async def test_a_single_pod_and_a_gang_that_is_not_placed_need_no_group(
    bound_space: Space,
) -> None:
    space = bound_space
    await space.create(job("one", completionMode="Indexed", run=FOR_EVER))
    await space.create(job("plain", pods=2, cpu="9", pool="main", run=FOR_EVER))
    pods = [*await space.until_running("one", 1), *await space.until_running("plain", 2)]
    assert not any(one["spec"].get("schedulingGroup") for one in pods)


async def test_an_edited_group_is_corrected(bound_space: Space) -> None:
    """A user raises its least size, so kube-scheduler binds none of its pods and says nothing."""
    space = bound_space
    await space.create(gang("edited", pod=HELD_OPEN))
    await released_pods(space, "edited", 4)
    group = await group_of(space, "edited")
    more = {"spec": {"schedulingPolicy": {"gang": {"minCount": 100}}}}
    at = (POD_GROUP, space.name, group["metadata"]["name"])
    await space.client.patch(*at, more, kind=PatchKind.MERGE)
    await let_in(space, "edited", 4)
    assert least(await group_of(space, "edited")) == 4


async def test_a_deleted_group_holds_nothing_back(bound_space: Space) -> None:
    """Kubernetes keeps it while pods name it, and they are bound with it."""
    space = bound_space
    await space.create(gang("deleted", pod=HELD_OPEN))
    await released_pods(space, "deleted", 4)
    group = await group_of(space, "deleted")
    await space.client.delete(POD_GROUP, space.name, group["metadata"]["name"])
    await let_in(space, "deleted", 4)


async def test_a_late_replacement_does_not_wait_for_pods_that_have_ended(
    bound_space: Space,
) -> None:
    """It is created when the others have ended, and the group asked for four pods."""
    space = bound_space
    slow = gang(
        "late",
        run={"duration": "2s", "termination": "4s"},
        podReplacementPolicy="Failed",
        backoffLimit=4,
    )
    slow["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 5
    await space.create(slow)
    pods = await space.until_running("late", 4)
    await space.client.delete(PODS, space.name, pods[3]["metadata"]["name"])
    await space.until_job("late")


async def test_a_gang_that_becomes_smaller_before_it_is_bound_starts(bound_space: Space) -> None:
    """Its author makes it smaller while its pods wait for another gate."""
    space = bound_space
    await space.create(gang("smaller", pod=HELD_OPEN))
    await released_pods(space, "smaller", 4)
    smaller = {"spec": {"parallelism": 2, "completions": 2}}
    await space.client.patch(JOBS, space.name, "smaller", smaller, kind=PatchKind.MERGE)

    async def are_two() -> bool:
        return len(await space.pods("smaller")) == 2

    await eventually(are_two, "two pods are left")
    await let_in(space, "smaller", 2)


@pytest.mark.real_cluster
async def test_a_downgrade_leaves_no_gang_behind() -> None:
    """Kubernetes is started again without its groups: one gang runs, one waits, one comes later."""
    if reason := missing_reason():
        pytest.skip(reason)
    feature = features_here().groups
    if feature is None or "CompositePodGroup" not in feature.gates:
        pytest.skip("this minor has no PodGroups that fluxqueue makes")
    with tempfile.TemporaryDirectory(prefix="fluxqueue-bound-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        async with (
            ControlPlane(options=Options(feature=feature)) as plane,
            real_world(folder, plane, environ={**SOONER, **GROUP}) as world,
        ):
            space = await make_space(world)
            await space.create(gang("runs"))
            await in_one_group(space, "runs")
            await space.create(gang("waits"))
            await space.until_state("waits", "Pending")
            await asyncio.to_thread(plane.close_gates)
            await space.delete("runs")
            await space.until_running("waits", 4)
            await space.delete("waits")
            await space.create(gang("later"))
            pods = await space.until_running("later", 4)
            assert not any(one["spec"].get("schedulingGroup") for one in pods)
            await assert_invariants(world)
            await remove_space(space)


RACED = int(os.environ.get("FLUXQUEUE_RACED_GANGS", "60"))
"""``FLUXQUEUE_RACED_GANGS=1000`` runs more of them."""
RACED_SIZE = 3
AT_ONCE = 40
"""Gangs that are created and not seen to end. More of them would only wait."""
PART_S = 3.0
"""How long a gang may be bound in part: its pods are bound one after the other, in milliseconds."""
REFUSED = """
SELECT f.workload_name AS job, s.node FROM allocation_slots s
JOIN allocations a ON a.id = s.allocation_id JOIN fluxjobs f ON f.uid = a.uid
WHERE f.namespace = :namespace AND s.refused_at IS NOT NULL
"""


@pytest.mark.real_cluster
@pytest.mark.timeout(900 + 3 * RACED)
async def test_gangs_that_foreign_pods_race(bound_space: Space) -> None:
    """Pods that fluxqueue does not manage take room between its decision and the binding.

    No gang is bound in part, each one completes, and only nodes that refused a pod are avoided.
    """
    space = bound_space
    others = await make_space(space.world, {"fluxqueue/managed": "false"})
    parts, racing = PartlyBound(space), asyncio.create_task(race(others))
    said: set[tuple[str, str]] = set()
    listening = asyncio.create_task(hear_refusals(space, said))
    began_s = asyncio.get_running_loop().time()
    try:
        for number in range(RACED):
            racer = {"run": {"duration": "200ms"}, "cpu": "5", "pods": RACED_SIZE}
            await space.create(gang(f"g{number}", **racer))
            if number % AT_ONCE == AT_ONCE - 1:
                await parts.until_few_left(AT_ONCE // 2)
        await parts.until_few_left(0)
        took_s = asyncio.get_running_loop().time() - began_s
        assert not racing.done(), "foreign pods came all the time"
        assert not listening.done(), "the words of kube-scheduler were heard all the time"
        rows = await space.world.rows(REFUSED, namespace=space.name)
        avoided = {(one["job"], one["node"]) for one in rows}
        print(f"{RACED} gangs in {took_s:.0f} s: {len(avoided)} nodes avoided of {len(said)} named")
        assert not parts.found
        assert not avoided - said, "nodes that kube-scheduler has not named"
    finally:
        for task in (racing, listening):
            task.cancel()
        await asyncio.gather(racing, listening, return_exceptions=True)
        await remove_space(others)


async def hear_refusals(space: Space, said: set[tuple[str, str]]) -> None:
    """Note which pods kube-scheduler finds no node for: their Job, and the nodes that they name.

    The other pods of their PodGroup are Unschedulable as well, in words that name no nodes.
    """
    version = (await space.client.list(PODS, space.name)).resource_version
    while True:
        async with aclosing(
            space.client.watch(PODS, space.name, resource_version=version)
        ) as events:
            async for event in events:
                version = event.object["metadata"]["resourceVersion"]
                for one in (event.object.get("status") or {}).get("conditions") or ():
                    if re.match(r"\d+/\d+ nodes are available", one.get("message") or ""):
                        job_name = event.object["metadata"]["labels"]["job-name"]
                        said.update((job_name, node) for node in nodes_named(event.object))


def nodes_named(pod: Obj) -> list[str]:
    """The node that a released pod names, or all that it has a choice of after a failed start."""
    if (node := sent_to(pod)) is not None:
        return [node]
    required = pod["spec"]["affinity"]["nodeAffinity"]
    terms = required["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    ways = [one for term in terms for one in term.get("matchExpressions", ())]
    return [node for one in ways if one["key"] == HOSTNAME for node in one["values"]]


async def race(others: Space) -> None:
    """Fill half of the nodes with pods that come and go, and that fluxqueue does not place."""
    for number in itertools.count():
        foreign = bare_pod(f"f{number}", cpu="5", run={"duration": "400ms"})
        foreign["spec"]["nodeSelector"] = {"pool": "main"}
        await others.create(foreign)
        ended = [one for one in await own_pods(others) if one["status"].get("phase") == "Succeeded"]
        for pod in ended:
            await others.delete(pod["metadata"]["name"], PODS)
        await until_fewer(others)


async def own_pods(others: Space) -> list[Obj]:
    return (await others.client.list(PODS, others.name)).items


async def until_fewer(others: Space) -> None:
    """Wait until no more than six foreign pods have not ended."""

    async def look() -> bool:
        pods = await own_pods(others)
        return sum(one["status"].get("phase") != "Succeeded" for one in pods) <= 6

    await eventually(look, "foreign pods end")


class PartlyBound:
    """Looks for gangs that stay bound in part, until they have ended."""

    def __init__(self, space: Space) -> None:
        self._space, self._since_s = space, dict[str, float]()
        self.found: set[str] = set()

    async def until_few_left(self, most: int) -> None:
        """Wait until no more than ``most`` gangs have not ended."""

        async def look() -> bool:
            await self._look()
            jobs = (await self._space.client.list(JOBS, self._space.name)).items
            return sum(not one["status"].get("completionTime") for one in jobs) <= most

        await eventually(look, f"{most} gangs are left", timeout_s=300)

    async def _look(self) -> None:
        states: dict[str, set[bool]] = {}
        for pod in (await self._space.client.list(PODS, self._space.name)).items:
            name = pod["metadata"]["labels"]["job-name"]
            states.setdefault(name, set()).add(bool(pod["spec"].get("nodeName")))
        now_s = asyncio.get_running_loop().time()
        partly = {name for name, found in states.items() if len(found) == 2}
        self._since_s = {name: self._since_s.get(name, now_s) for name in partly}
        self.found |= {name for name, at_s in self._since_s.items() if now_s - at_s >= PART_S}
