"""What users do meanwhile: a stream of Jobs and Pods from a seed. Some fail, some are cancelled.

Users try again until they are heard, as ``kubectl`` in a loop does. They see the cluster without
the proxy's faults, but not without a dead webhook.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fluxqueue.errors import ApiError, ApiUnavailable, Conflict, NotFound
from fluxqueue.kube.resources import JOBS, PODS, ApiResource
from tests.support.e2e.objects import Obj, bare_pod, job
from tests.support.e2e.space import Space

LOOK_EVERY = 20
UNFINISHED_MAX = 60
"""More than this does not make a run harder, only longer where the machine is slow."""


@dataclass(slots=True)
class Load:
    """Everything that was submitted. ``deleted`` holds the names that users took back.

    ``history_lost``: the UIDs of what was submitted before the database was lost. If the cluster
    too has forgotten one of them (a pod of a lost node), its end is not known.
    """

    space: Space
    seed: int
    bodies: dict[str, Obj] = field(default_factory=dict)
    uids: dict[str, str] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)
    history_lost: frozenset[str] = frozenset()

    async def run(self, is_over: Callable[[], bool], *, pause_s: float) -> None:
        """Submit until it is over."""
        die = random.Random(self.seed)
        number = 0
        while not is_over():
            if number % LOOK_EVERY == 0 and await self._unfinished() > UNFINISHED_MAX:
                await asyncio.sleep(1)
                continue
            body = _draw(die, number)
            name = body["metadata"]["name"]
            self.bodies[name] = body
            self.uids[name] = (await self._create(body))["metadata"]["uid"]
            if die.random() < 0.12:
                await self._delete(die.choice(sorted(set(self.bodies) - self.deleted)))
            number += 1
            await asyncio.sleep(die.uniform(0, 2 * pause_s))

    async def _unfinished(self) -> int:
        """How much is still to end, as far as it can be seen now."""
        try:
            jobs = (await self.space.client.list(JOBS, self.space.name)).items
            pods = (await self.space.client.list(PODS, self.space.name)).items
        except (ApiUnavailable, ApiError):
            return 0
        bare = [pod for pod in pods if not pod["metadata"].get("ownerReferences")]
        return sum(not has_ended(one) for one in (*jobs, *bare))

    def lose_history(self) -> None:
        """The database is another from now on."""
        self.history_lost = frozenset(self.uids.values())

    async def _create(self, body: Obj) -> Obj:
        resource, name = _resource(body), body["metadata"]["name"]
        is_there = False
        while True:
            try:
                if is_there:
                    return await self.space.client.get(resource, self.space.name, name)
                return await self.space.create(body)
            except Conflict:  # it was made, only the answer was lost
                is_there = True
            except (ApiUnavailable, ApiError):
                await asyncio.sleep(0.2)

    async def _delete(self, name: str) -> None:
        self.deleted.add(name)
        while True:
            try:
                await self.space.delete(name, _resource(self.bodies[name]))
            except NotFound:
                return
            except (ApiUnavailable, ApiError):
                await asyncio.sleep(0.2)
            else:
                return


def has_ended(workload: Obj) -> bool:
    """Whether a Job or Pod has ended, by its status."""
    status = workload.get("status") or {}
    if status.get("phase"):
        return status["phase"] in {"Succeeded", "Failed"}
    conditions = status.get("conditions") or ()
    return any(c["type"] in {"Complete", "Failed"} and c["status"] == "True" for c in conditions)


def _resource(body: Obj) -> ApiResource:
    return JOBS if body["kind"] == "Job" else PODS


def _draw(die: random.Random, number: int) -> Obj:
    name = f"w{number:04}"
    run = {"duration": f"{die.randrange(100, 1500)}ms"}
    if die.random() < 0.2:
        return bare_pod(name, cpu=str(die.randint(1, 4)), run=run)
    pods = die.choice((1, 1, 2, 3, 4))
    more: dict[str, Any] = {"completionMode": "Indexed"} if die.random() < 0.5 else {}
    if die.random() < 0.15:
        run["fail-times"] = "1"
    if die.random() < 0.07:
        run |= {"exit-code": "3"}
        more["backoffLimit"] = 0
    else:
        more["backoffLimit"] = 50  # pods of lost nodes count as failures
    if die.random() < 0.2:
        more["completions"] = pods + die.randint(0, 4)
    wishes = {"priority": str(die.randint(0, 3))} if die.random() < 0.3 else {}
    if die.random() < 0.5:
        wishes["duration"] = "10m"
    cpu = str(die.choice((1, 2, 4, 8, 15)))
    pool = die.choice(("main", None))
    return job(name, pods=pods, cpu=cpu, pool=pool, run=run, wishes=wishes, **more)
