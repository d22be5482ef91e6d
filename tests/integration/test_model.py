"""Stateful model: random lives over real rows, crashes anywhere, invariants after every step.

``FLUXQUEUE_MODEL_SEEDS=40`` runs more stories, ``FLUXQUEUE_MODEL_SEED=n`` one of them. What is
crashed is a process: its task is cancelled at whatever await it has reached, and all it had in
memory is thrown away.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from fluxqueue.db.database import Database
from fluxqueue.db.observations import save_foreign, save_gone, save_nodes, save_workloads
from fluxqueue.errors import DatabaseUnavailable, LostLeadership
from fluxqueue.fluxjob.node import ForeignPod
from fluxqueue.fluxjob.request import CPU
from tests.support.row_world import NODES, World
from tests.support.rows import Rows, amounts, rebuilt, settings_for

SEEDS = range(int(os.environ.get("FLUXQUEUE_MODEL_SEEDS", "3")))
if "FLUXQUEUE_MODEL_SEED" in os.environ:
    SEEDS = range(
        int(os.environ["FLUXQUEUE_MODEL_SEED"]), int(os.environ["FLUXQUEUE_MODEL_SEED"]) + 1
    )
STEPS = 60
ROUNDS_MAX = 60


class Story:
    """One seed: the world, the rows, and the processes between them."""

    def __init__(self, rows: Rows, seed: int) -> None:
        self.rows, self.world = rows, World(seed)
        self.random = self.world.random
        self.log: list[str] = []

    # --- the processes -----------------------------------------------------------------------

    async def observe(self) -> None:
        """The controller writes what it sees, some of it for the second time."""
        world = self.world
        present, gone = world.seen()
        some = [one for one in present if self.random.random() < 0.8]
        nodes = list(world.nodes.values())
        foreign = [
            ForeignPod(f"x-{n}-{c}", "ns", "x", n, {CPU: c}) for n, c in world.foreign.items()
        ]
        async with self.rows.database.begin() as tx:
            for start in range(0, len(some), 5):
                await save_workloads(tx, some[start : start + 5])
            if gone:
                await save_gone(tx, gone)
            await save_nodes(tx, nodes, sorted(set(NODES) - set(world.nodes)))
            known = await tx.fetch("SELECT pod_uid FROM foreign_usage")
            left = {row["pod_uid"] for row in known} - {pod.uid for pod in foreign}
            await save_foreign(tx, foreign, sorted(left))

    async def match(self) -> None:
        """The matcher runs until it has nothing more to decide."""
        await self.rows.match()
        assert self.rows.matcher is not None
        pools = self.rows.matcher._pools
        assert pools is not None
        assert amounts(pools) == amounts(await rebuilt(self.rows)), "the cache has drifted"

    async def effects(self) -> None:
        """The drains: claim, carry out, forget; each effect may happen twice."""
        for kind in ("release", "ungate", "cleanup"):
            keys = await self.rows.fetch(
                "SELECT id, key FROM outbox WHERE kind = :kind ORDER BY id LIMIT 20", kind=kind
            )
            for key in {row["key"] for row in keys}:
                if kind == "release":
                    states = await self.rows.states()
                    if states.get(key) in {"Allocated", "Running"}:
                        self.world.release(key)
                else:
                    for ungate in await self.rows.settle(key):
                        self.world.ungate(ungate)
            await self.rows.execute(
                "DELETE FROM outbox WHERE id = ANY(CAST(:ids AS bigint[]))",
                ids=[row["id"] for row in keys],
            )
        await self.rows.execute("DELETE FROM outbox WHERE kind = 'status'")

    async def hold(self) -> None:
        """A user holds a waiting FluxJob, or releases one."""
        if self.random.random() < 0.5:
            await self.rows.execute(
                "UPDATE fluxjobs SET state = 'Held', held_by = 'alice' WHERE uid IN"
                " (SELECT uid FROM fluxjobs WHERE state IN ('Pending', 'Reserved', 'Unsatisfiable')"
                "  ORDER BY uid LIMIT 1)"
            )
        else:
            await self.unhold()

    async def unhold(self) -> None:
        """Let go all that users held."""
        await self.rows.execute(
            "UPDATE fluxjobs SET state = 'Pending', held_by = NULL, is_examined = false"
            " WHERE state = 'Held' AND held_by = 'alice'"
        )

    async def crash(self, process: Callable[[], Awaitable[None]]) -> None:
        """Cancel a process wherever it is, and forget what it knew."""
        task = asyncio.ensure_future(process())
        await asyncio.wait([task], timeout=self.random.random() * 0.05)
        task.cancel()
        with suppress(asyncio.CancelledError, DatabaseUnavailable, LostLeadership):
            await task
        self.rows.matcher = None
        self.world.look()

    # --- the story ---------------------------------------------------------------------------

    async def step(self) -> None:
        """Something happens; whatever it was, the rows are sound."""
        world = self.world
        happens = self.random.choices(
            [
                "submit",
                "delete",
                "unsuspend",
                "scale",
                "lose_node",
                "change_node",
                "return_nodes",
                "foreigner",
                "hold",
                "pods",
                "look",
                "crash",
                "work",
            ],
            [12, 3, 2, 3, 2, 3, 3, 3, 3, 14, 12, 8, 32],
        )[0]
        self.log.append(happens)
        processes = [self.observe, self.match, self.effects]
        if happens == "hold":
            await self.hold()
        elif happens == "pods":
            world.run_pods()
            world.run_controllers()
        elif happens == "look":
            world.look(0.6)
        elif happens == "crash":
            await self.crash(self.random.choice(processes))
        elif happens == "work":
            world.look(0.8)
            for process in processes:
                if self.random.random() < 0.7:
                    await process()
            world.run_controllers()
        else:
            getattr(world, happens)()
        await self.check()

    async def check(self) -> None:
        """Rows are sound, and no node has more of our pods than it holds."""
        try:
            await self.rows.check()
            for name, cpu in NODES.items():
                assert self.world.used(name) <= cpu, f"{name} runs more than it holds"
        except AssertionError:
            print("story:", " ".join(self.log))
            raise

    async def heal(self) -> None:
        """No more faults: everything that can end, ends."""
        world = self.world
        world.foreign.clear()
        world.return_nodes()
        for job in world.jobs.values():
            job.is_author_suspended = False
            job.parallelism = max(1, job.parallelism)
        await self.unhold()
        for _ in range(ROUNDS_MAX):
            world.look()
            for process in (self.observe, self.match, self.effects):
                await process()
            world.run_controllers()
            world.run_pods(0.9)
            await self.check()
            states = await self.rows.states()
            there = {uid for uid, job in world.jobs.items() if not job.is_gone}
            # One that came and went between two looks has no row, and needs none.
            if there <= set(states) and await self.is_quiet(states):
                return
        left = await self.rows.fetch(
            "SELECT uid, state, reason, wanted, lacking FROM fluxjobs WHERE ended_at IS NULL"
        )
        raise AssertionError(f"not over: {left}; {' '.join(self.log)}")

    async def is_quiet(self, states: dict[str, str]) -> bool:
        """Whether all has ended that can, and nothing is held any more."""
        impossible = {u for u, s in states.items() if s == "Unsatisfiable"}
        for uid in impossible:
            asked = self.world.jobs[uid].asked
            assert asked.slots[0].needs[CPU] > 4 or asked.size > 1, f"{asked} fits"
        over = {u for u, s in states.items() if s in {"Completed", "Failed", "Cancelled"}}
        if over | impossible != set(states):
            return False
        assert await self.rows.value("SELECT count(*) FROM allocations WHERE is_live") == 0
        assert await self.rows.value("SELECT count(*) FROM node_usage WHERE free < capacity") == 0
        completed = {u for u, s in states.items() if s == "Completed"}
        assert completed == {u for u, j in self.world.jobs.items() if j.result and u in completed}
        return True


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
async def test_any_story_stays_sound_and_comes_to_its_end(database_url: str, seed: int) -> None:
    """Safety after every step; liveness once the faults stop."""
    async with Database(settings_for(database_url), role="test") as database:
        story = Story(Rows(database, settings=settings_for(database_url)), seed)
        await story.observe()
        for _ in range(STEPS):
            await story.step()
        await story.heal()
