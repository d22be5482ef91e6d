"""Conditions behind the notes "wait until ..." that are not followed by a GET to repeat."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

Get = Callable[[str], Awaitable[tuple[int, Any]]]


@dataclass
class Waiter:
    """Looks at the cluster for one scenario. ``definition`` is the CRD made last."""

    get: Get
    namespace: str
    definition: Any

    async def until(self, condition: Callable[[Waiter], Awaitable[bool]], timeout_s: float) -> bool:
        """Poll. Whether it came true in time."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if await condition(self):
                return True
            await asyncio.sleep(0.1)
        return False

    async def items(self, plural: str, group: str = "") -> list[Any]:
        """The objects of the scenario's namespace."""
        root = f"/apis/{group}/v1" if group else "/api/v1"
        code, body = await self.get(f"{root}/namespaces/{self.namespace}/{plural}")
        return list(body["items"]) if code == 200 else []


async def _definition_served(at: Waiter) -> bool:
    spec = at.definition["spec"]
    for version in spec["versions"]:
        path = f"/apis/{spec['group']}/{version['name']}/{spec['names']['plural']}"
        if version["served"] and (await at.get(path))[0] != 200:
            return False
    name = at.definition["metadata"]["name"]
    path = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}"
    _, body = await at.get(path)
    conditions = (body.get("status") or {}).get("conditions") or ()
    return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)


async def _all_bound(at: Waiter) -> bool:
    pods = await at.items("pods")
    ungated = [p for p in pods if not p["spec"].get("schedulingGates")]
    return bool(ungated) and all(p["spec"].get("nodeName") for p in ungated)


async def _both_bound(at: Waiter) -> bool:
    return len(await at.items("pods")) >= 2 and await _all_bound(at)


async def _first_bound(at: Waiter) -> bool:
    pods = await at.items("pods")
    return any(p["metadata"]["name"] == "first" and p["spec"].get("nodeName") for p in pods)


async def _ready_two(at: Waiter) -> bool:
    jobs = await at.items("jobs", "batch")
    sets = await at.items("statefulsets", "apps")
    return any((j.get("status") or {}).get("ready") == 2 for j in jobs) or any(
        (s.get("status") or {}).get("readyReplicas") == 2 for s in sets
    )


async def _two_available(at: Waiter) -> bool:
    found = await at.items("deployments", "apps")
    return any((d.get("status") or {}).get("availableReplicas") == 2 for d in found)


async def _suspended(at: Waiter) -> bool:
    jobs = await at.items("jobs", "batch")
    return bool(jobs) and all(
        any(
            c["type"] == "Suspended" and c["status"] == "True"
            for c in (j.get("status") or {}).get("conditions") or ()
        )
        for j in jobs
        if j["spec"].get("suspend") and not j["spec"].get("managedBy")
    )


async def _refused(at: Waiter) -> bool:
    pods = await at.items("pods")
    return any(
        c["type"] == "PodScheduled" and c["status"] == "False"
        for p in pods
        for c in (p.get("status") or {}).get("conditions") or ()
    )


async def _counted(at: Waiter) -> bool:
    """The budgets count the pods that run, as their status shows."""
    budgets = await at.items("poddisruptionbudgets", "policy")
    return bool(budgets) and all(
        (b.get("status") or {}).get("currentHealthy", 0) > 0 for b in budgets
    )


_CONDITIONS: dict[str, Callable[[Waiter], Awaitable[bool]]] = {
    "wait until the CRD is Established and its path answers 200": _definition_served,
    "wait until both pods are bound": _both_bound,
    "wait until bound": _all_bound,
    "wait until first is bound and fills node-2": _first_bound,
    "wait until status.ready is 2": _ready_two,
    "wait until both pods are ready": _ready_two,
    "wait until both are ready": _ready_two,
    "wait until two are available": _two_available,
    "wait until Suspended is True": _suspended,
    "wait until the scheduler has refused it": _refused,
    "wait until the budget has seen the pod": _counted,
}


def condition_for(note: str) -> Callable[[Waiter], Awaitable[bool]] | None:
    """The condition of a note, or None: then the next GET is repeated."""
    return _CONDITIONS.get(note)
