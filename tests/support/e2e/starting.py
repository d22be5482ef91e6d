"""What FluxJobs say while they start."""

from __future__ import annotations

from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.resources import NODES, PODS
from fluxqueue.workload.labels import HOSTNAME
from fluxqueue.workload.pods import gate_index
from tests.support.e2e.objects import Obj
from tests.support.e2e.space import Space
from tests.support.waiting import eventually, until


async def status_of(space: Space, name: str) -> Obj:
    """The status of a FluxJob, empty without one."""
    return (await space.fluxjob(name) or {}).get("status") or {}


async def words_of(space: Space, name: str, *words: str, timeout_s: float = 60) -> Obj:
    """The status of a FluxJob once its reason has all of ``words``."""
    what = f"{name} says {words}"
    return await until(
        lambda: status_of(space, name),
        lambda told: all(word in told.get("reason", "") for word in words),
        what,
        timeout_s=timeout_s,
    )


async def until_silent(space: Space, name: str) -> None:
    """Wait until the FluxJob has no reason any more."""
    await until(
        lambda: status_of(space, name),
        lambda told: told.get("reason") == "",
        f"the reason of {name} is gone",
    )


OTHERS = "example.org/licence"
"""A gate that is not ours: its owner removes it later."""


HELD_OPEN = {"schedulingGates": [{"name": OTHERS}]}


TAINT = {"key": "example.org/repair", "value": "yes", "effect": "NoSchedule"}


async def released_pods(space: Space, name: str, count: int) -> list[Obj]:
    """Its pods once all have their node, and only the gate of the others is left."""

    async def look() -> list[Obj] | None:
        pods = await space.pods(name)
        has_all = len(pods) == count and all(gate_index(pod["spec"]) is None for pod in pods)
        return pods if has_all and all(sent_to(pod) for pod in pods) else None

    return await eventually(look, f"{count} pods of {name} are released") or []


def sent_to(pod: Obj) -> str | None:
    """The node that a released pod names."""
    node: str | None = (pod["spec"].get("nodeSelector") or {}).get(HOSTNAME)
    return node


async def let_in(space: Space, name: str, count: int) -> None:
    """Remove the gate of the others from all pods of a Job until ``count`` of them run."""

    async def all_run() -> bool:
        pods = await space.pods(name)
        for pod in pods:
            if {"name": OTHERS} in (pod["spec"].get("schedulingGates") or []):
                body = {"spec": {"schedulingGates": [{"$patch": "delete", "name": OTHERS}]}}
                at = (PODS, space.name, pod["metadata"]["name"])
                await space.client.patch(*at, body, kind=PatchKind.STRATEGIC)
        # A pod that was deleted may not have its replacement yet.
        return [pod["status"].get("phase") for pod in pods] == ["Running"] * count

    await eventually(all_run, f"the pods of {name} run", timeout_s=120)


async def close(space: Space, node: str, how: str) -> None:
    """Let a node take no more pods."""
    for_ever = {"taints": [{**TAINT, "effect": "NoExecute"}]}
    bodies = {"cordon": {"unschedulable": True}, "taint": {"taints": [TAINT]}, "expel": for_ever}
    body = bodies[how]
    await space.client.patch(NODES, None, node, {"spec": body}, kind=PatchKind.STRATEGIC)
