"""Probe Jobs of another tenant, one after the other, while an attack runs: how soon they go on.

``Probing`` measures. ``assert_on_time`` judges by the goals. ``make adversary`` prints the figures.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, Self

from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.config import load_kubeconfig
from fluxqueue.kube.resources import CONFIGMAPS, JOBS
from tests.adversary.tenants import Tenant
from tests.support.e2e.objects import job
from tests.support.figures import write_down
from tests.support.machine import SharedMachine
from tests.support.waiting import WAIT_S, Pauses

ADMITTED_S, RELEASED_S = 1.0, 2.0
"""The goals: a probe is admitted, and released, within so much."""
POOL = "gpu"
"""Nodes on which the attackers run nothing: a full cluster is no attack."""
CALM, CALM_S = 2, 0.3
"""Probes before the attack, and what one takes at most on a machine that does nothing else. A
machine that is slower already is given as many times longer."""
TOLERANCE = 2.0
"""Tests allow twice the goals, beside what other processes took of the machine
(``tests.support.machine``). ``make adversary`` prints the figures as they are."""
_PAUSE_S = 0.15


class Probing:
    """``async with``: a few probes before, then one after the other until it is left."""

    def __init__(self, victim: Tenant, attack: str) -> None:
        self._victim, self._attack = victim, attack
        self.admitted: list[float] = []
        self.released: list[float] = []
        self.plain: list[float] = []
        self.calm_s = 0.0
        self._pauses = Pauses()
        self._machine = SharedMachine()
        self._task: asyncio.Task[None] | None = None
        self._is_over = False
        world = victim.space.world
        # Connections of its own: those of the attacker may all be busy.
        self._root = KubeClient(load_kubeconfig(str(world.kubeconfig)), timeout_s=WAIT_S)
        self._client = self._root.acting_as(victim.user)

    async def __aenter__(self) -> Self:
        for _ in range(CALM):
            self.calm_s = max(self.calm_s, (await self._probe())[1])
        await self._pauses.__aenter__()
        self._machine.__enter__()
        self._task = asyncio.create_task(self._go_on())
        return self

    async def __aexit__(self, *raised: Any) -> None:
        assert self._task is not None
        self._is_over = True
        try:
            await self._task
        finally:
            self._machine.__exit__(*raised)
            await self._pauses.__aexit__(*raised)
            await self._root.close()
        self._write_down()

    async def until(self, probes: int) -> None:
        """Wait until so many probes were made, beside those that were made before."""
        wanted = len(self.released) + probes
        assert self._task is not None
        while len(self.released) < wanted and not self._task.done():
            await asyncio.sleep(0.02)

    async def _go_on(self) -> None:
        while not self._is_over:
            admitted_s, released_s = await self._probe()
            self.admitted.append(admitted_s)
            self.released.append(released_s)
            self.plain.append(await self._ask_plainly())
            await asyncio.sleep(_PAUSE_S)

    async def _ask_plainly(self) -> float:
        """Seconds that the API server takes for as many requests, without any part of ours.

        A release has a creation and two patches behind it, and the FluxJob one creation.
        """
        namespace = self._victim.space.name
        body = {"metadata": {"generateName": "plain-"}, "data": {}}
        began = time.monotonic()
        made = await self._client.create(CONFIGMAPS, namespace, body)
        name = made["metadata"]["name"]
        for number in range(3):
            patch = {"data": {"step": str(number)}}
            await self._client.patch(CONFIGMAPS, namespace, name, patch)
        took_s = time.monotonic() - began
        await self._client.delete(CONFIGMAPS, namespace, name)
        return took_s

    async def _probe(self) -> tuple[float, float]:
        """Seconds until one Job is admitted, and until it is released, from its submission."""
        namespace = self._victim.space.name
        body = job("probe", cpu="100m", pool=POOL, run={"duration": "1s"})
        body["metadata"] = {**body["metadata"], "generateName": "probe-"}
        del body["metadata"]["name"]
        began = time.monotonic()
        made = await self._client.create(JOBS, namespace, body)
        admitted_s = time.monotonic() - began
        assert made["spec"]["suspend"] is True, "admission has not seen the probe"
        name = made["metadata"]["name"]
        while made["spec"].get("suspend"):
            assert time.monotonic() - began < WAIT_S, f"{name} is not released"
            await asyncio.sleep(0.02)
            made = await self._client.get(JOBS, namespace, name)
        released_s = time.monotonic() - began
        await self._client.delete(JOBS, namespace, name, propagation="Background")
        return admitted_s, released_s

    def assert_on_time(self) -> None:
        """No probe was held up: the goals with a tolerance for how busy this machine is.

        What the API server takes of a tenant's plain requests meanwhile is not ours to give back.
        """
        slower, pause_s = self._machine.slower, self._pauses.longest_s
        plain_s = max(self.plain)
        times = TOLERANCE * max(slower, self.calm_s / CALM_S)
        assert self.released, "no probe was made"
        said = f"calm {self.calm_s:.2f} s, pause {pause_s:.2f} s, {slower:.1f} times slower, "
        said += f"plain requests {plain_s:.2f} s"
        for what, took, goal_s in (
            ("admitted", self.admitted, ADMITTED_S),
            ("released", self.released, RELEASED_S),
        ):
            limit_s = goal_s * times + pause_s + plain_s
            assert max(took) <= limit_s, f"{what} after {max(took):.2f} s; {said}"

    def _write_down(self) -> None:
        if self.released:
            write_down(
                "probe",
                attack=self._attack,
                cluster=self._victim.space.world.kind,
                admitted=max(self.admitted),
                released=max(self.released),
                plain=max(self.plain),
                slower=self._machine.slower,
            )
