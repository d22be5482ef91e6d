"""Pods and Jobs of owners of other kinds: how they are made and what is waited for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fluxqueue.errors import NotFound
from fluxqueue.kube.resources import FLUXJOBS, PODS, ApiResource
from tests.support.e2e.custom_kinds import define
from tests.support.e2e.group_members import phases
from tests.support.e2e.objects import FOR_EVER, Obj, bare_pod, job
from tests.support.e2e.space import WAITING, Space
from tests.support.owners import job_set_spec
from tests.support.waiting import eventually, until

ASKS = {"fluxqueue/managed": "true"}
MAIN = {"pool": "main"}


def template(*, cpu: str = "1", run: Any = None) -> Obj:
    """A pod template of the pool ``main``."""
    pod = bare_pod("x", cpu=cpu, nodeSelector=MAIN, **({} if run is None else {"run": run}))
    return {"metadata": {"annotations": pod["metadata"]["annotations"]}, "spec": pod["spec"]}


def pod_of(owner: Obj, name: str, made_from: Obj) -> Obj:
    """A Pod as an operator makes it."""
    meta = {**made_from["metadata"], "name": name, "ownerReferences": [owner]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": made_from["spec"]}


def job_of(owner: Obj, name: str, made_from: Obj, *, pods: int, **spec: Any) -> Obj:
    """A Job as an operator makes it."""
    made = job(name, pods=pods, **spec)
    made["metadata"]["ownerReferences"] = [owner]
    made["spec"]["template"] = made_from
    return made


def reference(resource: ApiResource, made: Obj) -> Obj:
    meta = made["metadata"]
    return {
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
    }


async def create(
    space: Space, resource: ApiResource, name: str, spec: Obj, *, owner: Obj | None = None
) -> Obj:
    """An operator's object that asks to be queued, unless it is made by another."""
    await define(space, resource)
    meta: Obj = {"name": name, "labels": {} if owner else ASKS}
    meta |= {"ownerReferences": [owner]} if owner else {}
    body = {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": meta}
    return await space.client.create(resource, space.name, body | {"spec": spec})


async def until_told(space: Space, name: str, state: str, words: str = "") -> Obj:
    """Until the FluxJob ``name`` is in a state and says so."""

    async def look() -> Obj | None:
        found = (await space.client.list(FLUXJOBS, space.name)).items
        for one in found:
            status = one.get("status") or {}
            is_so = status.get("state") == state and words in status.get("reason", "")
            if one["metadata"]["name"] == name and is_so:
                return one
        return None

    return await eventually(look, what=f"{name} {state}: {words}")


async def all_are(space: Space, phase: str, count: int) -> None:
    await until(
        lambda: phases(space),
        lambda found: list(found.values()) == [phase] * count,
        what=f"{count} pods {phase}",
    )


async def delete_all(space: Space, pods: Iterable[str]) -> None:
    for name in pods:
        await space.delete(name, PODS)


async def until_waiting(space: Space, name: str) -> Obj:
    """Until a FluxJob says that it is in the queue."""

    async def look() -> Obj | None:
        try:
            found = await space.client.get(FLUXJOBS, space.name, name)
        except NotFound:
            return None
        return found if (found.get("status") or {}).get("state") in WAITING else None

    return await eventually(look, f"{name} waits")


async def fill(space: Space) -> None:
    """Nothing else fits into the pool ``main``."""
    pods = [
        bare_pod(f"fill-{number}", cpu="16", nodeSelector=MAIN, run=FOR_EVER) for number in range(4)
    ]
    await space.create_all(pods)
    await all_are(space, "Running", 4)


async def make_room(space: Space) -> None:
    await delete_all(space, [f"fill-{number}" for number in range(4)])


RUNTIMES = {
    "torch": job_set_spec(data=(1, template()), node=(1, template(cpu="8"))),
    "endless": job_set_spec(node=(1, template(cpu="16", run=FOR_EVER))),
}


def asks(runtime: str, nodes: int) -> Obj:
    """A TrainJob's spec."""
    return {"runtimeRef": {"name": runtime}, "trainer": {"numNodes": nodes}}
