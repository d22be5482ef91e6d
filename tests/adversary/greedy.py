"""``Life``: a greedy tenant does everything that ``edit`` allows, beside an honest one.

The large Job of the honest tenant waits for all nodes of a small pool, and is promised a start. The
greedy tenant keeps the nodes for as long as it can. An operator sometimes raises a limit.
``test_greedy_lives`` runs lives side by side, each with a queue and nodes of its own.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from fluxqueue.clock import SystemClock
from fluxqueue.errors import NotFound
from fluxqueue.kube.resources import FLUXJOBS, JOBS, PODS
from tests.adversary.tenants import Tenant
from tests.support.e2e.objects import FOR_EVER, job
from tests.support.greedy_lives import is_broken
from tests.support.waiting import eventually

Obj = dict[str, Any]

NODES, CPU = 2, 4
STEPS = 30
RAISED_S = 40
DUE_S = 20
"""So long after a promised start the greedy tenant is stopped: it has broken the promise."""
STUBBORN = {"termination": "10m"}
"""A pod takes all of its grace."""
VERBS = {
    "submit": 6,
    "raise": 3,
    "remove_limit": 2,
    "lower": 1,
    "delete_pod": 2,
    "delete": 1,
    "suspend": 2,
    "resume": 3,
    "grow": 3,
    "shrink": 1,
    "hold": 1,
    "release": 2,
    "operator": 0.3,
}
"""How often each is drawn, relative to the others."""
PROMISES = """
    SELECT f.jobid, f.name, (p.detail ->> 'starts_at')::bigint AS starts_at,
           (SELECT min(extract(epoch FROM h.at)::bigint) FROM history h
            WHERE h.uid = f.uid AND h.id > p.id AND h.event = 'Allocated') AS started_at,
           (SELECT x.detail ->> 'excuse' FROM history x WHERE x.uid = f.uid
              AND x.event = 'PromiseExcused' ORDER BY x.id LIMIT 1) AS excuse
    FROM fluxjobs f JOIN LATERAL (
        SELECT * FROM history h WHERE h.uid = f.uid AND h.event = 'Promised'
        ORDER BY h.id LIMIT 1) p ON true
    WHERE f.namespace = :space
"""
WAITING = "SELECT 1 FROM fluxjobs WHERE namespace = :space AND state IN ('Pending', 'Reserved')"
THERE = """
    SELECT workload_name AS name FROM fluxjobs
    WHERE namespace = :space AND ended_at IS NULL ORDER BY jobid
"""
LEFT = "SELECT 1 FROM fluxjobs WHERE namespace = :space AND ended_at IS NULL"


@dataclass(slots=True)
class Life:
    """``allowed`` are the jobids of which an operator has raised the limit."""

    honest: Tenant
    greedy: Tenant
    chance: random.Random
    place: str
    """The name of the queue, and of the pool."""
    allowed: set[int] = field(default_factory=set)
    log: list[str] = field(default_factory=list)
    made: int = 0
    began_s: float = field(default_factory=time.monotonic)

    async def live(self) -> None:
        for _ in range(STEPS):
            if not await self._rows(WAITING, self.honest) and self.chance.random() < 0.5:
                await self._submit_large()
            verb = self.chance.choices(list(VERBS), weights=list(VERBS.values()))[0]
            await self._act(verb)
            await asyncio.sleep(self.chance.uniform(0, 0.6))
        await self._until_due()
        await self._stop_greedy()

    async def broken(self, tolerance_s: float) -> tuple[int, list[str]]:
        """Return how many promises were given, and those that were broken without an excuse that an
        operator has caused."""
        given = await self._rows(PROMISES, self.honest)
        broken = []
        for one in given:
            late_s = (one["started_at"] or SystemClock().now_s()) - one["starts_at"]
            self._note(f"{one['name']} started {late_s} s after its promise: {one['excuse']}")
            if is_broken(late_s, one["excuse"], self.allowed, tolerance_s):
                broken.append(f"{one['name']}: {late_s} s late, {one['excuse'] or 'unsaid'}")
        return len(given), broken

    # --- the honest tenant ----------------------------------------------------------------------

    async def _submit_large(self) -> None:
        self.made += 1
        run = {"duration": f"{self.chance.randrange(300, 1500)}ms"}
        body = self._body(
            f"large-{self.made}", pods=NODES, cpu=str(CPU), run=run, activeDeadlineSeconds=30
        )
        answer = await self.honest.create(JOBS, body)
        assert answer.is_taken, answer
        self._note(f"large-{self.made} is submitted")

    def _body(self, name: str, **more: Any) -> Obj:
        body = job(name, pool=self.place, **more)
        body["metadata"]["labels"] = {"fluxqueue/queue": self.place}
        return body

    # --- the greedy tenant ----------------------------------------------------------------------

    async def _act(self, verb: str) -> None:
        there = [row["name"] for row in await self._rows(THERE, self.greedy)]
        name = self.chance.choice(there) if there else ""
        if verb == "submit" or not name:
            await self._submit()
            return
        act: Callable[[str], Awaitable[Any]] = getattr(self, f"_{verb}")
        with suppress(NotFound):
            await act(name)
        last = self.greedy.answers[-1]
        self._note(f"{verb} {name}: {last.code} {last.message[:60]}")

    async def _submit(self) -> None:
        chance = self.chance
        self.made += 1
        name, pods = f"greedy-{self.made}", chance.randint(1, 3)
        pod: Obj = {"terminationGracePeriodSeconds": chance.choice((0, 1, 3, 8))}
        more: Obj = {"completionMode": "Indexed"} if chance.random() < 0.5 else {}
        limit_s = chance.randint(2, 12)
        if chance.random() < 0.8:
            more["activeDeadlineSeconds"] = limit_s
        elif chance.random() < 0.5:
            pod["activeDeadlineSeconds"] = limit_s
        run = FOR_EVER | STUBBORN
        if chance.random() < 0.4:
            run = {"duration": "300ms", "exit-code": "1"} | STUBBORN
            more["backoffLimit"] = chance.choice((2, 100))
            more["podReplacementPolicy"] = chance.choice(("Failed", "TerminatingOrFailed"))
        body = self._body(
            name, pods=pods, cpu=str(chance.choice((1, 2, 4))), run=run, pod=pod, **more
        )
        if "completionMode" not in more:
            del body["spec"]["completions"]
        if chance.random() < 0.15:
            body["metadata"]["annotations"]["fluxqueue/hold"] = "true"
        answer = await self.greedy.create(JOBS, body)
        self._note(f"submit {name}: {answer.code} {pods} pods, {pod} {more}")

    async def _set(self, name: str, **spec: Any) -> None:
        await self.greedy.patch(JOBS, name, {"spec": spec})

    async def _raise(self, name: str) -> None:
        await self._set(name, activeDeadlineSeconds=RAISED_S)

    async def _remove_limit(self, name: str) -> None:
        await self._set(name, activeDeadlineSeconds=None)

    async def _lower(self, name: str) -> None:
        await self._set(name, activeDeadlineSeconds=1)

    async def _suspend(self, name: str) -> None:
        await self._set(name, suspend=True)

    async def _resume(self, name: str) -> None:
        await self._set(name, suspend=False)

    async def _grow(self, name: str) -> None:
        await self._resize(name, self.chance.randint(3, 8))

    async def _shrink(self, name: str) -> None:
        await self._resize(name, 1)

    async def _resize(self, name: str, pods: int) -> None:
        if not (await self.greedy.patch(JOBS, name, {"spec": {"parallelism": pods}})).is_taken:
            return
        await self._set(name, parallelism=pods, completions=pods)  # of an Indexed one, both

    async def _hold(self, name: str) -> None:
        await self._wish(name, "true")

    async def _release(self, name: str) -> None:
        await self._wish(name, None)

    async def _wish(self, name: str, hold: str | None) -> None:
        await self.greedy.patch(JOBS, name, {"metadata": {"annotations": {"fluxqueue/hold": hold}}})

    async def _delete(self, name: str) -> None:
        await self.greedy.delete(JOBS, name)

    async def _delete_pod(self, name: str) -> None:
        """With a grace that is longer than that of its Job."""
        for pod in await self.greedy.space.pods(name):
            path = PODS.path(self.greedy.space.name, pod["metadata"]["name"])
            grace_s = self.chance.choice((1, 600))
            await self.greedy.send("DELETE", path, {"gracePeriodSeconds": grace_s})

    # --- the operator ---------------------------------------------------------------------------

    async def _operator(self, name: str) -> None:
        space = self.greedy.space
        found = await space.client.get(JOBS, space.name, name)
        limit_s = found["spec"].get("activeDeadlineSeconds")
        fluxjob = await space.client.get(FLUXJOBS, space.name, f"{name}-job")
        jobid = (fluxjob.get("status") or {}).get("jobid")
        if limit_s is not None and jobid is not None:
            self.allowed.add(jobid)
            patch = {"spec": {"activeDeadlineSeconds": limit_s + 8}}
            await space.client.patch(JOBS, space.name, name, patch)
            self._note(f"the operator lets job {jobid} run for 8 s more")

    # --- the end --------------------------------------------------------------------------------

    async def _until_due(self) -> None:
        """Wait for promised starts only: there is no promise behind work without a limit."""

        async def look() -> bool:
            now = SystemClock().now_s()
            due = [
                one["started_at"] is not None or one["starts_at"] + DUE_S < now
                for one in await self._rows(PROMISES, self.honest)
            ]
            return all(due)

        await eventually(look, "each promise is kept or broken")

    async def _stop_greedy(self) -> None:
        space = self.greedy.space
        body = {"propagationPolicy": "Background", "gracePeriodSeconds": 0}
        await space.client.request("DELETE", JOBS.path(space.name), body=body)

        async def is_over() -> bool:
            await space.client.request("DELETE", PODS.path(space.name), body=body)
            left = [*await self._rows(LEFT, self.honest), *await self._rows(LEFT, self.greedy)]
            return not left

        await eventually(is_over, "all Jobs of the life have ended")

    async def _rows(self, sql: str, tenant: Tenant) -> list[Obj]:
        return await tenant.space.world.rows(sql, space=tenant.space.name)

    def _note(self, what: str) -> None:
        self.log.append(f"{time.monotonic() - self.began_s:6.1f} s  {what}")
