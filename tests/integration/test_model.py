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

from fluxqueue.clock import ManualClock
from fluxqueue.db.database import Database
from fluxqueue.db.store import reconciling
from fluxqueue.db.store.cluster_rows import save_foreign, save_nodes
from fluxqueue.db.store.desired_state import Released, finish, read_pending_releases
from fluxqueue.db.store.observations import save_workloads
from fluxqueue.db.store.pending_actions import sweep
from fluxqueue.db.task_queue import TaskName
from fluxqueue.errors import DatabaseUnavailable, LostLeadership
from fluxqueue.fluxjob.node import ForeignPod
from fluxqueue.fluxjob.request import CPU
from fluxqueue.jobspec.shape import slot_kinds
from tests.support import steering
from tests.support.postgres import PostgresServer
from tests.support.row_world import NODES, World
from tests.support.rows import Rows, amounts, rebuilt, settings_for
from tests.support.seen import queue, see_queues
from tests.support.sql import dicts

SEEDS = range(int(os.environ.get("FLUXQUEUE_MODEL_SEEDS", "3")))
if "FLUXQUEUE_MODEL_SEED" in os.environ:
    SEEDS = range(
        int(os.environ["FLUXQUEUE_MODEL_SEED"]), int(os.environ["FLUXQUEUE_MODEL_SEED"]) + 1
    )
TOLD_AGAIN = () if "FLUXQUEUE_MODEL_SEED" in os.environ else (39, 145)
"""Stories of preempted work which once had no end: a group's pod ended between two looks.
Dependencies were changed while their FluxJob ran, and it was requeued."""
STEPS = 60
VERBS = ("hold", "hold", "release", "release", "cancel", "requeue", "requeue", "priority", "move")
ROUNDS_MAX = 60


_BLOCKED_BUT_STARTED = """
SELECT f.uid, f.state, f.blocked_by FROM fluxjobs f
WHERE (f.blocked_by IS NOT NULL AND f.state = 'Reserved')
   OR (f.ended_at IS NULL AND (f.state = 'Held') <> (f.held_by IS NOT NULL))
"""


_HOMES = """
SELECT a.id, a.uid, s.number, s.node, s.completion_index AS index, s.state = 'held' AS is_held,
       coalesce((n.fact ->> 'up')::boolean AND (n.fact ->> 'schedulable')::boolean, false)
       AS is_sound
FROM allocation_slots s JOIN allocations a ON a.id = s.allocation_id
LEFT JOIN nodes n ON n.name = s.node
WHERE a.is_live AND s.completion_index IS NOT NULL
"""


class Story:
    """One seed: the world, the rows, and the processes between them."""

    def __init__(self, rows: Rows, seed: int) -> None:
        self.rows, self.world = rows, World(seed)
        self.random = self.world.random
        self.log: list[str] = []
        self.homes: dict[tuple[int, int], int] = {}
        self.preempted: set[str] = set()

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
            await save_workloads(tx, some, gone)
            await save_nodes(tx, nodes, sorted(set(NODES) - set(world.nodes)))
            known = await dicts(tx, "SELECT pod_uid FROM foreign_usage")
            left = {row["pod_uid"] for row in known} - {pod.uid for pod in foreign}
            await save_foreign(tx, foreign, sorted(left))

    async def match(self) -> None:
        """The matcher runs until it has nothing more to decide."""
        await self.rows.match()
        assert self.rows.matcher is not None
        matcher = self.rows.matcher._matcher
        assert matcher is not None
        assert amounts(matcher.ledger) == amounts(await rebuilt(self.rows)), "the cache has drifted"
        asked = await self.rows.fetch("SELECT uid FROM fluxjobs WHERE vacate_by LIKE 'job %'")
        self.world.disturbed |= {row["uid"] for row in asked}
        self.preempted |= {row["uid"] for row in asked}

    async def effects(self) -> None:
        """The tasks: fetched, carried out, done. Each effect may happen twice."""
        await self.release(await self.due(TaskName.RELEASE))
        await self.settle(await self.due(TaskName.RECONCILE))
        await self.rows.execute(
            "UPDATE fluxjobs SET published = published || jsonb_build_object('version', version)"
            " WHERE status_due_at IS NOT NULL"
        )
        await self.rows.take_tasks(TaskName.RELEASE, TaskName.RECONCILE, TaskName.STATUS)
        async with self.rows.database.begin() as tx:
            await sweep(tx)

    async def due(self, task: TaskName) -> list[str]:
        """What the waiting tasks are for. They go on waiting until that is done."""
        return sorted(set(await self.rows.asked(task)))

    async def release(self, uids: list[str]) -> None:
        """The release effect, as the worker does it: the last word is the row's."""
        owed = await read_pending_releases(self.rows.database, uids)
        done = []
        for one in owed:
            made = self.world.make(one.wanted) if one.wanted is not None else None
            done.append(
                Released(
                    one,
                    is_made=made is not None,
                    generation=self.world.let_go_in(one.uid),
                    pinned_to=made.pinned_to if made else None,
                )
            )
        await finish(self.rows.database, done)

    async def settle(self, uids: list[str]) -> None:
        """The settle effect: what follows, then the pods, then what is known of them."""
        async with self.rows.database.begin() as tx:
            settled = await reconciling.reconcile(tx, uids)
        for ungate in settled.ungates:
            self.world.ungate(ungate)
        for one in settled.evictions:
            self.world.evict(one.workload_uid, [one.pod_uid])
        let_go = [one.pod_uid for one in settled.ungates]
        await reconciling.finish(self.rows.database, settled, let_go=let_go, failed=())

    async def steer(self) -> None:
        """An operator's command to a FluxJob, whatever state it is in. Often two at once."""
        names = [*self.world.jobs] or ["nobody"]
        for _ in range(self.random.choice((1, 1, 2))):
            verb, name = self.random.choice(VERBS), self.random.choice(names)
            await self.command(verb, name)

    async def command(self, verb: str, name: str) -> None:
        """One command, perhaps given twice. The second changes nothing."""
        rows, before = self.rows, await self.rows.states()
        values = (rows.database, "default", [name], "alice")
        repeat = self.random.choice((1, 2))
        for _ in range(repeat):
            if verb == "priority":
                await steering.steer(*values, priority=self.random.choice((None, -5, 9)))
            elif verb == "move":
                await steering.steer(*values, queue=self.random.choice(("default", "other")))
            else:
                self.world.disturbed |= {name} if verb == "requeue" else set()
                await getattr(steering, verb)(*values)
        after = await rows.states()
        moved = {uid for uid in before if before[uid] != after.get(uid)}
        assert moved <= {name}, f"{verb} {name} has moved {moved}"

    async def unhold(self) -> None:
        """Release all that users held."""
        held = await self.rows.fetch("SELECT uid FROM fluxjobs WHERE held_by = 'alice'")
        await steering.release(self.rows.database, "default", [row["uid"] for row in held], "alice")

    async def crash(self, process: Callable[[], Awaitable[None]]) -> None:
        """Cancel a process wherever it is, and forget what it knew."""
        task = asyncio.ensure_future(process())
        await asyncio.wait([task], timeout=self.random.random() * 0.05)
        task.cancel()
        with suppress(asyncio.CancelledError, DatabaseUnavailable, LostLeadership):
            await task
        self.rows.matcher = None
        await self.rows.take_senders_for_dead()
        self.world.look()

    async def preempt(self) -> None:
        """From now on the queue preempts others, with or without a notice."""
        more = self.random.choice(({}, {}, {"grace": "3s"}, {"minRuntime": "2s"}))
        spec = {"policy": "easy", "preemption": {"within": "lowerPriority", **more}}
        await see_queues(self.rows, queue("default", **spec))

    # --- the story ---------------------------------------------------------------------------

    async def step(self) -> None:
        """Something happens. Whatever it was, the rows are sound."""
        world = self.world
        assert isinstance(self.rows.clock, ManualClock)
        self.rows.clock.advance(self.random.choice((0, 0, 1)))
        happens = self.random.choices(
            [
                "submit",
                "gather",
                "drop",
                "delete",
                "unsuspend",
                "scale",
                "lose_node",
                "change_node",
                "return_nodes",
                "foreigner",
                "steer",
                "steer",
                "suspend",
                "edit",
                "pods",
                "look",
                "crash",
                "work",
            ],
            [9, 6, 2, 3, 2, 3, 2, 3, 3, 3, 4, 2, 2, 2, 14, 12, 8, 32],
        )[0]
        self.log.append(happens)
        processes = [self.observe, self.match, self.effects]
        if happens == "steer":
            await self.steer()
        elif happens == "pods":
            world.run_pods()
            world.run_controllers()
        elif happens == "look":
            world.look(0.6)
        elif happens == "crash":
            await self.crash(self.random.choice([*processes, self.steer]))
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
            assert await self.rows.fetch(_BLOCKED_BUT_STARTED) == []
            await self.check_homes()
            for name, cpu in NODES.items():
                assert self.world.used(name) <= cpu, f"{name} runs more than it holds"
        except AssertionError:
            print("story:", " ".join(self.log))
            raise

    async def check_homes(self) -> None:
        """An index has one slot of its allocation for good, unless its node was lost."""
        for row in await self.rows.fetch(_HOMES):
            key, job = (row["id"], row["index"]), self.world.jobs[row["uid"]]
            fact = self.world.nodes.get(row["node"])
            is_sound = row["is_sound"] and fact is not None and fact.is_up and fact.is_schedulable
            if job.uid in self.world.disturbed or row["index"] in job.ended or not is_sound:
                self.homes.pop(key, None)
            elif row["is_held"]:
                home = self.homes.setdefault(key, row["number"])
                assert home == row["number"], f"index {row['index']} of {row['uid']} has moved"

    async def heal(self) -> None:
        """No more faults: everything that can end, ends."""
        world = self.world
        world.foreign.clear()
        world.return_nodes()
        for job in world.jobs.values():
            job.depends_on, job.is_held = (), False
            if not job.parallelism and not job.is_group:
                world.disturbed.add(job.uid)
                job.parallelism = 1
            if not job.asked.size and dict(slot_kinds(job.asked)[0].needs)[CPU] > max(
                NODES.values()
            ):
                # Nothing is said against one of size 0. Grown, it fits nowhere and waits for ever.
                job.is_deleting = True
        await self.unhold()
        for _ in range(ROUNDS_MAX):
            assert isinstance(self.rows.clock, ManualClock)
            self.rows.clock.advance(1)
            world.resume_all()
            world.look()
            for process in (self.observe, self.match, self.effects):
                await process()
            await self.complete()
            world.run_controllers()
            world.run_pods(0.9)
            await self.check()
            states = await self.rows.states()
            there = {uid for uid, job in world.jobs.items() if not job.is_gone}
            # One that came and went between two looks has no row, and needs none.
            if there <= set(states) and await self.is_quiet(states):
                return
        left = await self.rows.fetch(
            "SELECT uid, state, reason, observed, lacking FROM fluxjobs WHERE ended_at IS NULL"
        )
        raise AssertionError(f"not over: {left}; {' '.join(self.log)}")

    async def complete(self) -> None:
        """Users read that their groups miss pods, and that nothing of them will run before."""
        told = await self.rows.fetch(
            "SELECT uid, (observed ->> 'missing')::int AS missing FROM fluxjobs"
            " WHERE state = 'Gathering'"
        )
        for row in told:
            self.world.send_again(row["uid"], row["missing"])

    async def is_quiet(self, states: dict[str, str]) -> bool:
        """Whether all has ended that can, and nothing is held any more."""
        impossible = {u for u, s in states.items() if s == "Unsatisfiable"}
        for uid in impossible:
            asked = self.world.jobs[uid].asked
            if self.world.jobs[uid].is_group:
                continue  # several kinds of slots. What cannot be, test_shapes has
            assert dict(slot_kinds(asked)[0].needs)[CPU] > 4 or asked.size > 1, f"{asked} fits"
        over = {u for u, s in states.items() if s in {"Completed", "Failed", "Cancelled"}}
        if over | impossible != set(states):
            return False
        assert await self.rows.value("SELECT count(*) FROM allocations WHERE is_live") == 0
        assert await self.rows.value("SELECT count(*) FROM node_usage WHERE free < capacity") == 0
        completed = {u for u, s in states.items() if s == "Completed"}
        assert completed == {u for u, j in self.world.jobs.items() if j.result and u in completed}
        gathering = await self.rows.fetch("SELECT uid FROM fluxjobs WHERE state = 'Gathering'")
        assert gathering == []
        assert await self.rows.fetch("SELECT victim, preemptor FROM preemptions") == []
        await self.check_books()
        return True

    async def check_books(self) -> None:
        """One row for each run: one final one of each FluxJob, and one for each requeue."""
        wrong = await self.rows.fetch(
            """
            SELECT f.uid, f.state, f.requeues, count(a.*) AS runs, max(a.run) AS last
            FROM fluxjobs f LEFT JOIN accounting a USING (uid) WHERE f.ended_at IS NOT NULL
            GROUP BY f.uid
            HAVING count(a.*) FILTER (WHERE a.result = f.state) <> 1 OR max(a.run) <> count(a.*)
                OR count(a.*) FILTER (WHERE a.result = 'Requeued') < f.requeues
            """
        )
        assert wrong == []
        lost = await self.rows.fetch(
            "SELECT id FROM allocations EXCEPT SELECT allocation_id FROM accounting"
        )
        assert lost == [], "an allocation that is in no book"


@pytest.mark.cases_long("the other cases are variations of the first")
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", SEEDS)
async def test_any_story_stays_sound_and_comes_to_its_end(database_url: str, seed: int) -> None:
    """Safety after every step. Liveness once the faults stop."""
    async with Database(settings_for(database_url), role="test") as database:
        story = Story(Rows(database, settings=settings_for(database_url)), seed)
        await story.observe()
        for _ in range(STEPS):
            await story.step()
        await story.heal()


@pytest.mark.long("the story without preemption is in `make test`")
@pytest.mark.timeout(300)
async def test_so_do_stories_of_work_that_makes_way(postgres: PostgresServer) -> None:
    """The same where lower work is preempted for higher, and somewhere it really did."""
    preempted: set[str] = set()
    for seed in (*SEEDS, *TOLD_AGAIN):
        url = postgres.wiped()
        async with Database(settings_for(url), role="test") as database:
            story = Story(Rows(database, settings=settings_for(url)), seed + 1000)
            await story.preempt()
            await story.observe()
            for _ in range(STEPS):
                await story.step()
            await story.heal()
            preempted |= story.preempted
    assert preempted, "nobody ever made way"
