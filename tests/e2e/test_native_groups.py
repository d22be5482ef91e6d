"""Kubernetes' own groups: pods that name a PodGroup of ``scheduling.k8s.io``.

On the embedded cluster the kind is a definition of the same structure, and nobody else heeds it; on
a real one its feature gates are open, and kube-scheduler lets no such pod go but with its group.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fluxqueue.kube.resources import FLUXJOBS, PODS, PRIORITY_CLASSES
from tests.support.control_plane import (
    ControlPlane,
    Options,
    features_here,
    missing_reason,
)
from tests.support.e2e.custom_kinds import define
from tests.support.e2e.group_members import (
    SIZES,
    assert_each_ran_once_in_order,
    create_mixed,
    phases,
    until_reason,
)
from tests.support.e2e.health import assert_invariants
from tests.support.e2e.lives import KINDS, POD_GROUP
from tests.support.e2e.objects import FOR_EVER, Obj, bare_pod, job
from tests.support.e2e.random_lives import SHORT_STEPS, live
from tests.support.e2e.space import Space, make_space, remove_space
from tests.support.e2e.world import World, embedded_world, real_world
from tests.support.kubernetes_minors import ALWAYS
from tests.support.waiting import until

ZONE = "topology.kubernetes.io/zone"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.long("a world of its own, for a feature of Kubernetes that few clusters have"),
    pytest.mark.xdist_group("world of groups"),
]


@pytest_asyncio.fixture(
    loop_scope="session",
    scope="module",
    params=["embedded", pytest.param("real", marks=pytest.mark.real_cluster)],
)
async def gang_world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """A world of this module's own, on a cluster that has such groups."""
    with tempfile.TemporaryDirectory(prefix="fluxqueue-gang-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        if request.param == "embedded":
            async with embedded_world(folder) as world:
                yield world
            return
        if reason := missing_reason():
            pytest.skip(reason)
        feature = features_here().groups
        if feature is None:
            pytest.skip("this minor has no groups of its own")
        options = Options(feature=feature)
        async with ControlPlane(options=options) as plane, real_world(folder, plane) as world:
            yield world


@pytest_asyncio.fixture(loop_scope="session")
async def gang_space(gang_world: World) -> AsyncIterator[Space]:
    """A namespace in it."""
    made = await make_space(gang_world)
    if gang_world.kind == "embedded":
        await define(made, POD_GROUP)
    yield made
    await remove_space(made)
    await assert_invariants(gang_world)


async def pod_group(space: Space, name: str, count: int, **spec: Any) -> Obj:
    body = {"apiVersion": POD_GROUP.api_version, "kind": POD_GROUP.kind, "metadata": {"name": name}}
    policy = {"schedulingPolicy": {"gang": {"minCount": count}}}
    return await space.client.create(POD_GROUP, space.name, body | {"spec": policy | spec})


def member(name: str, group: str, **more: Any) -> Obj:
    pod = bare_pod(name, nodeSelector={"pool": "main"}, **more)
    pod["spec"]["schedulingGroup"] = {"podGroupName": group}
    return pod


async def test_a_group_of_kubernetes_gathers_and_starts_as_one(gang_space: Space) -> None:
    """Its object may come after its first pod; pods beyond its least size grow it."""
    space = gang_space
    await space.create(member("a", "own", cpu="2", run=FOR_EVER))
    await until_reason(space, "own", "Gathering", "waits for PodGroup own")
    await pod_group(space, "own", 3)
    await until_reason(space, "own", "Gathering", "1 of 3 pods; missing 2")
    await space.create(member("b", "own", cpu="8", run=FOR_EVER))
    await until_reason(space, "own", "Gathering", "2 of 3 pods; missing 1")
    assert set((await phases(space)).values()) == {"Pending"}
    await space.create(member("c", "own", cpu="8", run=FOR_EVER))
    await all_run(space, 3)
    await space.create(member("d", "own", cpu="1", run=FOR_EVER))
    await all_run(space, 4)
    (fluxjob,) = (await space.client.list(FLUXJOBS, space.name)).items
    assert fluxjob["spec"]["size"] == 3
    for name in "abcd":
        await space.delete(name, PODS)
    await space.until_gone(FLUXJOBS, "own-group")


async def all_run(space: Space, count: int) -> None:
    await until(
        lambda: phases(space),
        lambda found: list(found.values()) == ["Running"] * count,
        f"{count} pods run",
    )


async def test_its_topology_and_priority_count(gang_space: Space) -> None:
    """Three pods of which a zone holds two never run in one; its class is theirs."""
    space = gang_space
    value = {"metadata": {"name": f"urgent-{space.name}"}, "value": 77}
    await space.client.create(PRIORITY_CLASSES, None, value)
    topology = {"schedulingConstraints": {"topology": [{"key": ZONE}]}}
    said = topology | {"priorityClassName": value["metadata"]["name"]}
    # The admission of a cluster that has such groups resolves the class.
    said |= {"priority": 77} if space.world.kind == "embedded" else {}
    await pod_group(space, "near", 3, **said)
    for name in ("a", "b", "c"):
        await space.create(member(name, "near", cpu="9", run=FOR_EVER))
    found = await until_reason(space, "near", "Unsatisfiable", "")
    assert found["status"]["priority"] == 77
    await space.delete("c", PODS)
    await space.delete("a", PODS)
    await space.delete("b", PODS)
    await space.until_gone(FLUXJOBS, "near-group")
    await space.client.delete(PRIORITY_CLASSES, None, value["metadata"]["name"])


async def test_groups_of_kubernetes_do_not_clog(gang_space: Space) -> None:
    """Six of them on room for two, their pods mixed: each is let go whole, and runs whole."""
    space = gang_space
    pods = []
    for group, size in enumerate(SIZES):
        await pod_group(space, f"g{group}", size)
        pods += [(n, member(f"g{group}-{n}", f"g{group}", cpu="5")) for n in range(size)]
    await create_mixed(space, pods)
    for group in range(len(SIZES)):
        await space.until_state(f"g{group}", "Completed")
    await assert_each_ran_once_in_order(space)


async def test_random_lives_with_groups_of_kubernetes(gang_space: Space) -> None:
    """They live beside all other kinds, through the same accidents."""
    await live(gang_space, 7, (*KINDS, *["NativeGroup"] * 4), steps=SHORT_STEPS)


async def test_a_job_of_such_a_group_waits_for_its_others(gang_space: Space) -> None:
    """Its template names the group: it is not suspended, its pods are counted."""
    space = gang_space
    await pod_group(space, "mixed", 3)
    part = job("part", pods=2, pool="main")
    part["spec"]["template"]["spec"]["schedulingGroup"] = {"podGroupName": "mixed"}
    await space.create(part)
    await until_reason(space, "mixed", "Gathering", "2 of 3 pods; missing 1")
    await space.create(member("solo", "mixed"))
    await space.until_job("part")
    await space.until_state("mixed", "Completed")


@pytest.mark.real_cluster
async def test_with_closed_gates_nobody_is_of_such_a_group() -> None:
    """The API server drops the field: the pod is one like any other, and waits for nobody."""
    if reason := missing_reason():
        pytest.skip(reason)
    with tempfile.TemporaryDirectory(prefix="fluxqueue-gang-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        async with (
            ControlPlane(options=Options(feature=ALWAYS)) as plane,
            real_world(folder, plane) as world,
        ):
            space = await make_space(world)
            made = await space.create(member("alone", "own"))
            assert "schedulingGroup" not in made["spec"]
            await space.until_state("alone", "Completed")
            await remove_space(space)
