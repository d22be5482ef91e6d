"""Carrying out the plan on the running system, and undoing at the end whatever still stands.

Every fault is a real one: signals to processes, terminated sessions, a proxy that fails. What was
done is kept in ``log``, with the time of day as the parts' own logs have it.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import psycopg
from sqlalchemy.exc import SQLAlchemyError

from fluxqueue.errors import ApiUnavailable, DatabaseUnavailable, NotFound
from fluxqueue.kube.resources import NODES
from localcluster import NodeShape
from tests.chaos.plan import NODES as NODE_NAMES
from tests.chaos.plan import Step
from tests.support.api_proxy import ApiProxy
from tests.support.e2e import database
from tests.support.e2e.world import World

NODE_SHAPES = {name: NodeShape(name, cpu="16", memory="64Gi") for name in NODE_NAMES}


@dataclass(slots=True)
class Chaos:
    """The hand that does it."""

    world: World
    proxy: ApiProxy
    when_database_is_lost: Callable[[], None] = lambda: None
    log: list[str] = field(default_factory=list)
    _frozen: set[int] = field(default_factory=set)
    _away: set[str] = field(default_factory=set)

    async def run(self, plan: Sequence[Step]) -> None:
        """Do everything at its time. Steps that last may overlap."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for step in plan:
                await asyncio.sleep(max(0.0, began + step.at_s - time.monotonic()))
                self.log.append(f"{datetime.now(tz=UTC):%H:%M:%S.%f} {step}")
                group.create_task(self._do(step))

    async def _do(self, step: Step) -> None:
        match step.kind:
            case "kill":
                self._signal(step.target, signal.SIGKILL)
            case "restart-cluster":
                # Not kill -9: it writes its objects a moment later than it answers, and would
                # then go back in time, as no etcd does.
                self._signal("cluster", signal.SIGTERM)
            case "freeze":
                pid = self.world.stack.parts[step.target].pid
                await self._freeze([pid] if pid else [], step.lasts_s)
            case "kill-database":
                postgres = self.world.stack.postgres
                assert postgres is not None
                await asyncio.to_thread(postgres.kill)
            case "lose-database":
                await self._lose_database()
            case "freeze-database":
                await self._freeze(self._database_processes(), step.lasts_s)
            case "cut":
                await asyncio.to_thread(self._cut)
            case "silence-node" | "lose-node":
                await self._lose_node(step)
            case _:
                await self._fail_calls(step)

    def _signal(self, name: str, number: signal.Signals) -> None:
        pid = self.world.stack.parts[name].pid
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    async def _freeze(self, pids: Sequence[int], lasts_s: float) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
                self._frozen.add(pid)
        try:
            await asyncio.sleep(lasts_s)
        finally:
            self._thaw(pids)

    def _thaw(self, pids: Sequence[int]) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
            self._frozen.discard(pid)

    def _database_processes(self) -> list[int]:
        postgres = self.world.stack.postgres
        assert postgres is not None
        pid = postgres.pid
        if pid is None:
            return []
        with suppress(OSError):
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text()
            return [pid, *map(int, children.split())]
        return [pid]

    async def _lose_database(self) -> None:
        """No event says so. The server may be starting, or be killed meanwhile."""
        while True:
            try:
                await database.empty(self.world.stack)
            except (psycopg.Error, SQLAlchemyError, DatabaseUnavailable, OSError):
                await asyncio.sleep(0.5)
            else:
                self.when_database_is_lost()
                return

    def _cut(self) -> None:
        """Terminate a few sessions of any process."""
        url = self.world.stack.database_url
        with (
            suppress(psycopg.Error),
            psycopg.connect(url, autocommit=True, connect_timeout=2) as server,
        ):
            server.execute(
                "SELECT pg_terminate_backend(pid) FROM (SELECT pid FROM pg_stat_activity"
                " WHERE application_name LIKE 'fluxqueue-%' ORDER BY random() LIMIT 3) some"
            )

    async def _lose_node(self, step: Step) -> None:
        """Its kubelet says nothing for a while, or it leaves the cluster. Then it is back."""
        fleet, name = self.world.late_nodes.fleet, step.target
        if name in self._away:
            return
        self._away.add(name)
        is_lost = step.kind == "lose-node"
        if is_lost:
            with suppress(ApiUnavailable):  # its kubelet has gone all the same
                await fleet.remove(name)
        else:
            fleet.silence(name)
        await asyncio.sleep(step.lasts_s)
        while name in self._away:
            with suppress(ApiUnavailable):
                await (fleet.add(NODE_SHAPES[name]) if is_lost else fleet.revive(name))
                self._away.discard(name)

    async def _fail_calls(self, step: Step) -> None:
        self.proxy.faults = {**self.proxy.faults, step.target: step.share}
        try:
            await asyncio.sleep(step.lasts_s)
        finally:
            self.proxy.faults = {k: v for k, v in self.proxy.faults.items() if k != step.target}

    def end(self) -> None:
        """Let everything run again, whatever was under way."""
        self.proxy.faults = {}
        self._thaw(sorted(self._frozen))


@asynccontextmanager
async def late_nodes(world: World) -> AsyncIterator[None]:
    """Two nodes of this process, which it can take away and give back."""
    for shape in NODE_SHAPES.values():
        await world.late_nodes.add(shape)
    yield
    for name in NODE_NAMES:
        await world.late_nodes.fleet.remove(name)
        with suppress(NotFound):
            await world.client.delete(NODES, None, name)
