"""The time from the end of the pods that held some room to the start of the next gang in it.

Each pod takes a whole node, so the pod before it on its node is known. ``__main__`` runs the scenes
on Kubernetes alone and with fluxqueue.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime

import psycopg

from benchmarks.throughput import load
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import JOBS, PODS, ApiResource
from fluxqueue.workload.objects import Object
from fluxqueue.workload.pods import gate_index
from fluxqueue_devtools.localpg import LocalPostgres

STAGES = ("observe", "decide", "release", "pods made", "ungated", "bound", "run")
"""What the time is spent on, in this order. Each stage ends with the event of its name."""
POD_DURATION = "2s"
ALONE = 5
"""Gangs that are measured one by one, on idle nodes."""

_TRIGGER = """
CREATE TABLE IF NOT EXISTS bench_returns (node text, at timestamptz);
CREATE OR REPLACE FUNCTION bench_note_return() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN INSERT INTO bench_returns VALUES (NEW.node, clock_timestamp()); RETURN NULL; END $$;
CREATE OR REPLACE TRIGGER bench_returns AFTER UPDATE OF state ON allocation_slots
FOR EACH ROW WHEN (NEW.state = 'returned') EXECUTE FUNCTION bench_note_return();
"""
_NO_TRIGGER = """
DROP TRIGGER bench_returns ON allocation_slots; DROP FUNCTION bench_note_return;
DROP TABLE bench_returns;
"""


@dataclass(slots=True)
class PodLife:
    """What a pod's events tell, in seconds of the monotonic clock."""

    job: str
    node: str | None = None
    at_s: dict[str, float] = field(default_factory=dict)

    def reached(self, stage: str) -> None:
        """Note the first time only."""
        self.at_s.setdefault(stage, time.monotonic())


@dataclass(frozen=True, slots=True)
class Turnaround:
    """One gang that followed others: seconds from their end to its first pod, by stage.

    A stage that was over before the room was free has 0. What is not measured is absent.
    """

    total_s: float
    stages_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Turnarounds:
    """All of one mode. ``alone_s``: submission to the first running pod, on idle nodes."""

    turns: Sequence[Turnaround]
    alone_s: Sequence[float]

    def total_s(self, quantile: float) -> float:
        """A quantile over all gangs."""
        return _quantile([one.total_s for one in self.turns], quantile)

    def stage_s(self, stage: str, quantile: float) -> float | None:
        """A quantile of one stage, None where it is not measured."""
        found = [one.stages_s[stage] for one in self.turns if stage in one.stages_s]
        return _quantile(found, quantile) if found else None


@dataclass(frozen=True, slots=True)
class Burst:
    """Seconds from the first submission of a burst until all pods of a gang have run.

    ``alone_s``: the median of single gangs on idle nodes.
    """

    alone_s: float
    first_s: float
    last_s: float


def _quantile(values: Iterable[float], quantile: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(quantile * len(ordered)))]


class PodWatch:
    """The pods and Jobs of one namespace, as watches see them."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self._client, self._namespace = client, namespace
        self.pods: dict[str, PodLife] = {}
        self.resumed_s: dict[str, float] = {}
        self._changed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Watch while the block runs."""
        self._tasks = [
            asyncio.create_task(self._watch(resource, see, await self._version(resource)))
            for resource, see in ((PODS, self._see_pod), (JOBS, self._see_job))
        ]
        try:
            yield
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _version(self, resource: ApiResource) -> str:
        return (await self._client.list(resource, self._namespace)).resource_version

    async def _watch(
        self, resource: ApiResource, see: Callable[[Object], None], version: str
    ) -> None:
        while True:
            watch = self._client.watch(resource, self._namespace, resource_version=version)
            async for event in watch:
                version = event.object["metadata"]["resourceVersion"]
                if event.type in {"ADDED", "MODIFIED"}:
                    see(event.object)
                    self._changed.set()

    def _see_job(self, job: Object) -> None:
        if not job["spec"].get("suspend"):
            self.resumed_s.setdefault(job["metadata"]["name"], time.monotonic())

    def _see_pod(self, pod: Object) -> None:
        job = pod["metadata"]["labels"]["batch.kubernetes.io/job-name"]
        life = self.pods.setdefault(pod["metadata"]["uid"], PodLife(job))
        life.reached("pods made")
        if gate_index(pod["spec"]) is None:
            life.reached("ungated")
        if life.node is None and pod["spec"].get("nodeName"):
            life.node = pod["spec"]["nodeName"]
            life.reached("bound")
        phase = pod["status"].get("phase")
        if phase in {"Running", "Succeeded"}:
            life.reached("run")
        if phase == "Succeeded":
            life.reached("end")

    def of(self, job: str) -> list[PodLife]:
        """The pods of one Job that have succeeded. A node may have refused others."""
        return [life for life in self.pods.values() if life.job == job and "end" in life.at_s]

    async def until(self, stage: str, number: int) -> None:
        """Wait until so many pods have reached a stage."""
        async with asyncio.timeout(load.TIMEOUT_S):
            while sum(stage in life.at_s for life in self.pods.values()) < number:
                self._changed.clear()
                waiting = asyncio.create_task(self._changed.wait())
                done, _ = await asyncio.wait(
                    {waiting, *self._tasks}, return_when=asyncio.FIRST_COMPLETED
                )
                for task in done - {waiting}:
                    task.result()


async def alone(client: KubeClient, namespace: str, shape: load.Load) -> list[float]:
    """Run gangs one by one. Seconds from submission until all pods of each have run."""
    found = []
    for _ in range(ALONE):
        lives = PodWatch(client, namespace)
        async with lives.watched():
            began_s = time.monotonic()
            await load.create_all(client, namespace, load.jobs_of(load.single(shape)))
            await lives.until("run", shape.pods)
            found.append(max(life.at_s["run"] for life in lives.pods.values()) - began_s)
            await lives.until("end", shape.pods)
        await load.empty_namespace(client, namespace)
    return found


async def burst(client: KubeClient, namespace: str, shape: load.Load) -> Burst:
    """Submit all gangs of a load at once, and see when each has run."""
    alone_s = statistics.median(await alone(client, namespace, shape))
    lives = PodWatch(client, namespace)
    async with lives.watched():
        began_s = time.monotonic()
        await load.create_all(client, namespace, load.jobs_of(shape))
        await lives.until("end", shape.all_pods)
    jobs = {life.job for life in lives.pods.values()}
    ran_s = [max(life.at_s["run"] for life in lives.of(job)) - began_s for job in jobs]
    return Burst(alone_s, min(ran_s), max(ran_s))


async def turnarounds(
    client: KubeClient, namespace: str, shape: load.Load, postgres: LocalPostgres | None
) -> Turnarounds:
    """Run gangs of whole nodes one after the other, and measure each that follows others.

    ``postgres``: the database of fluxqueue, None for Kubernetes alone.
    """
    alone_s = await alone(client, namespace, shape)
    if postgres is not None:
        await asyncio.to_thread(_execute, postgres, _TRIGGER)
    lives = PodWatch(client, namespace)
    async with lives.watched():
        await load.create_all(client, namespace, load.jobs_of(shape))
        await lives.until("end", shape.all_pods)
    decided = await asyncio.to_thread(_decisions, postgres, namespace) if postgres else {}
    returns = await asyncio.to_thread(_returns, postgres) if postgres else {}
    if postgres is not None:
        await asyncio.to_thread(_execute, postgres, _NO_TRIGGER)
    ended = [life for life in lives.pods.values() if "end" in life.at_s]
    if postgres is None:
        # Kubernetes alone starts pod by pod, and a gang as room comes.
        return Turnarounds(pod_by_pod(ended), alone_s)
    return Turnarounds(after_others(ended, decided, lives.resumed_s, returns), alone_s)


@dataclass(frozen=True, slots=True)
class _RoomTurn:
    """A start after others: when its room was free, its first pod, and its nodes."""

    free_s: float
    first: PodLife
    nodes: Sequence[str]

    def measured(self, at_s: Mapping[str, float]) -> Turnaround:
        """Divide the time by stages, given when each ended."""
        stages, last_s = dict[str, float](), self.free_s
        for stage in STAGES:
            if stage in at_s:
                stages[stage] = max(0.0, at_s[stage] - last_s)
                last_s = max(last_s, at_s[stage])
        return Turnaround(self.first.at_s["run"] - self.free_s, stages)


def after_others(
    ended: Sequence[PodLife],
    decided_s: Mapping[str, float],
    resumed_s: Mapping[str, float],
    returns_s: Mapping[str, Sequence[float]],
) -> list[Turnaround]:
    """Return the turnaround of each gang that followed others.

    Parameters
    ----------
    ended : all pods.
    decided_s, resumed_s : by Job, when its nodes were allocated and when it was resumed.
    returns_s : by node, when slots there were returned.
    """
    found = []
    for name in dict.fromkeys(life.job for life in ended):
        turn = _turn([life for life in ended if life.job == name], ended)
        if turn is not None:
            found.append(_with_decision(turn, decided_s[name], resumed_s[name], returns_s))
    return found


def pod_by_pod(ended: Sequence[PodLife]) -> list[Turnaround]:
    """Return the turnaround of each pod that followed another one on its node."""
    turns = [(life, _turn([life], ended)) for life in ended]
    return [turn.measured(life.at_s) for life, turn in turns if turn is not None]


def _turn(own: Sequence[PodLife], ended: Sequence[PodLife]) -> _RoomTurn | None:
    """Return how pods followed others, or None if they were among the first."""
    ends = [_end_before(life, ended) for life in own]
    if None in ends:
        return None
    first = min(own, key=lambda life: life.at_s["run"])
    nodes = [life.node or "" for life in own]
    return _RoomTurn(max(end for end in ends if end is not None), first, nodes)


def _with_decision(
    turn: _RoomTurn, decided_s: float, resumed_s: float, returns: Mapping[str, Sequence[float]]
) -> Turnaround:
    seen = (max((r for r in returns[node] if r <= decided_s), default=0.0) for node in turn.nodes)
    ours = {"observe": max(seen), "decide": decided_s, "release": resumed_s}
    return turn.measured(turn.first.at_s | ours)


def _end_before(life: PodLife, ended: Sequence[PodLife]) -> float | None:
    """Return when the pod before it on its node ended, or None if there was none."""
    ends = [
        other.at_s["end"]
        for other in ended
        if other.node == life.node and other.at_s["end"] <= life.at_s["bound"]
    ]
    return max(ends, default=None)


def _execute(postgres: LocalPostgres, sql: str) -> None:
    with psycopg.connect(postgres.socket_url, autocommit=True) as connection:
        connection.execute(sql.encode())


def _monotonic_s(at: datetime) -> float:
    return at.timestamp() - time.time() + time.monotonic()


def _decisions(postgres: LocalPostgres, namespace: str) -> dict[str, float]:
    sql = "SELECT workload_name, allocated_at FROM fluxjobs WHERE namespace = %s"
    with psycopg.connect(postgres.socket_url) as connection:
        rows = connection.execute(sql, (namespace,)).fetchall()
    return {name: _monotonic_s(at) for name, at in rows if at is not None}


def _returns(postgres: LocalPostgres) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    with psycopg.connect(postgres.socket_url) as connection:
        for node, at in connection.execute("SELECT node, at FROM bench_returns"):
            found.setdefault(node, []).append(_monotonic_s(at))
    return found
