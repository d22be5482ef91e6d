"""Drivers start with slots for the pods that they make, and these pods get them."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.errors import Invalid
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import FLUXJOBS, PODS
from tests.support.e2e.group_members import acting, phases
from tests.support.e2e.kills import kill_part
from tests.support.e2e.objects import FOR_EVER, Obj, bare_pod
from tests.support.e2e.space import Space
from tests.support.waiting import until

MAIN = {"pool": "main"}


def spark(name: str) -> Obj:
    """A driver of 8 cpu that makes two executors of 16 cpu, as spark-submit writes it."""
    pod = bare_pod(name, cpu="8", run=FOR_EVER, nodeSelector=MAIN)
    pod["metadata"]["labels"] = {"spark-role": "driver", "spark-app-selector": name}
    conf = ["spark.executor.instances=2", "spark.executor.cores=16", "spark.executor.memory=100m"]
    words = [word for one in conf for word in ("--conf", one)]
    pod["spec"]["containers"][0]["args"] = ["driver", *words, "local:///app.jar"]
    return pod


def executor(driver: Obj, name: str, *, cpu: str = "16", run: Any = FOR_EVER) -> Obj:
    pod = bare_pod(name, cpu=cpu, run=run, nodeSelector=MAIN)
    meta = driver["metadata"]
    pod["metadata"]["labels"] = {"spark-role": "executor", "spark-app-selector": meta["name"]}
    pod["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "Pod", "controller": True} | {k: meta[k] for k in NAMED}
    ]
    return pod


NAMED = ("name", "uid")


async def until_phases(space: Space, wanted: dict[str, str]) -> None:
    await until(lambda: phases(space), lambda found: found == wanted, what=f"the pods are {wanted}")


async def slots(space: Space, fluxjob: str) -> list[str]:
    """The states of the slots of a live allocation."""
    sql = (
        "SELECT s.state FROM allocation_slots s JOIN allocations a ON a.id = s.allocation_id"
        " JOIN fluxjobs f USING (uid) WHERE f.name = :name AND f.namespace = :namespace"
        " AND a.ended_at IS NULL AND s.state <> 'returned'"
    )
    rows = await space.world.rows(sql, name=fluxjob, namespace=space.name)
    return sorted(row["state"] for row in rows)


async def until_slots(space: Space, fluxjob: str, wanted: list[str]) -> None:
    await until(
        lambda: slots(space, fluxjob),
        lambda found: found == wanted,
        what=f"the slots of {fluxjob} are {wanted}",
    )


async def test_a_driver_starts_with_room_for_its_executors(space: Space) -> None:
    """Two of three do not fit at once. The second starts when the slots of the first are free."""
    made = [await space.create(spark(name)) for name in ("one", "two")]
    first = await space.until_state("one", "Running")
    assert first["spec"]["size"] == 3
    await space.until_state("two", "Reserved", "Pending")
    account: KubeClient = await acting(space, f"system:serviceaccount:{space.name}:default")
    for number in (1, 2):
        await account.create(PODS, space.name, executor(made[0], f"one-{number}"))
    running = {"one": "Running", "one-1": "Running", "one-2": "Running", "two": "Pending"}
    await until_phases(space, running)
    assert await slots(space, "one-pod") == ["held"] * 3
    assert len((await space.client.list(FLUXJOBS, space.name)).items) == 2
    # An executor that fails keeps its slot for the next one, also while the controller is away.
    await space.delete("one-2", PODS)
    await until_slots(space, "one-pod", ["free", "held", "held"])
    await kill_part(space.world, "controller")
    await account.create(PODS, space.name, executor(made[0], "one-3"))
    await until_phases(space, {"one": "Running", "one-1": "Running", "one-3": "Running"} | WAITS)
    assert await slots(space, "one-pod") == ["held"] * 3
    # The driver ends, and takes its executors with it.
    await space.delete("one", PODS)
    await space.until_state("two", "Running")


WAITS = {"two": "Pending"}


async def test_a_driver_of_any_kind_says_what_follows(space: Space) -> None:
    """A follower asks to be queued. One that is too large for its slot waits for another."""
    pod = bare_pod("main", cpu="1", run=FOR_EVER, nodeSelector=MAIN)
    pod["metadata"]["annotations"]["fluxqueue/followers"] = "2 cpu=2"
    driver = await space.create(pod)
    found = await space.until_state("main", "Running")
    assert [one["count"] for one in found["spec"]["jobspec"]["resources"]] == [1, 2]
    for name, cpu in (("small", "2"), ("large", "3")):
        follower = executor(driver, name, cpu=cpu)
        follower["metadata"]["labels"] = {"fluxqueue/managed": "true"}
        await space.create(follower)
    await until_phases(space, dict.fromkeys(("main", "small", "large"), "Running"))
    assert await slots(space, "main-pod") == ["free", "held", "held", "held"]
    await space.delete("main", PODS)
    await space.until_gone(FLUXJOBS, "main-pod")


async def test_a_driver_that_ends_returns_the_slots_that_nobody_took(space: Space) -> None:
    pod = spark("short")
    pod["metadata"]["annotations"] = bare_pod("x")["metadata"]["annotations"]
    await space.create(pod)
    await space.until_state("short", "Completed")
    assert await slots(space, "short-pod") == []


async def test_a_bad_annotation_is_refused(space: Space) -> None:
    pod = bare_pod("main")
    pod["metadata"]["annotations"]["fluxqueue/followers"] = "two of 2 cpu"
    with pytest.raises(Invalid, match=r"fluxqueue/followers.*two of 2 cpu.*2 cpu=4,memory=8Gi"):
        await space.create(pod)
