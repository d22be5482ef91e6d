"""Random dependency graphs on real rows against a model that looks at everything each time."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field

import pytest

from fluxqueue.db.task_queue import TaskName
from fluxqueue.fluxjob.dependency import (
    DependencyKind,
    DependencyOutcome,
    Edge,
    Target,
    judge,
    outcome,
)
from fluxqueue.fluxjob.states import FluxJobState
from tests.support.rows import Rows, workload

SEEDS = range(int(os.environ.get("FLUXQUEUE_GRAPH_SEEDS", "4")))
EVENTS = 45
NAMES = "abcdefg"
S = FluxJobState


@dataclass
class Wait:
    """One edge of the model, and the workload that it means."""

    kind: DependencyKind
    job: str
    target: str | None = None


@dataclass
class Thing:
    """One workload of the model."""

    name: str
    jobid: int
    waits: list[Wait]
    state: FluxJobState = S.PENDING
    has_started: bool = False
    is_gone: bool = False


@dataclass
class Model:
    """All of them. Every question is answered by looking at everything."""

    things: dict[str, Thing] = field(default_factory=dict)

    def stands_for(self, job: str) -> str | None:
        """The newest that exists of this name, or the one of this number."""
        for uid, thing in reversed(self.things.items()):
            if job == str(thing.jobid) or (job == thing.name and not thing.is_gone):
                return uid
        return None

    def edge(self, wait: Wait) -> Edge:
        """As the rule sees it."""
        if wait.target is None:
            return Edge(wait.kind, wait.job)
        thing = self.things[wait.target]
        return Edge(wait.kind, wait.job, Target(thing.jobid, thing.state, thing.has_started))

    def submit(self, uid: str, thing: Thing) -> None:
        """Open edges follow the name."""
        self.things[uid] = thing
        for wait in thing.waits:
            wait.target = self.stands_for(wait.job)
        for other in self.things.values():
            for wait in other.waits:
                is_open = outcome(self.edge(wait)) is not DependencyOutcome.SATISFIED
                if is_open and wait.job in {thing.name, str(thing.jobid)}:
                    wait.target = uid

    def waits_for(self, uid: str) -> set[str]:
        """Those that it waits for now."""
        waits = self.things[uid].waits
        return {
            w.target
            for w in waits
            if w.target and outcome(self.edge(w)) is DependencyOutcome.WAITING
        }

    def is_in_circle(self, uid: str) -> bool:
        """Whether it is reached from itself."""
        reached, frontier = set[str](), self.waits_for(uid)
        while frontier:
            reached |= frontier
            frontier = {t for one in frontier for t in self.waits_for(one)} - reached
        return uid in reached

    def expected(self, uid: str) -> tuple[str, str | None, str | None]:
        """State, held_by and blocked_by of one that waits."""
        edges = [self.edge(wait) for wait in self.things[uid].waits]
        verdict = judge(edges, ["circle"] if self.is_in_circle(uid) else [])
        if verdict.is_never:
            return "Held", "dependency", "dependency"
        return "Pending", None, "dependency" if verdict.reason else None


class Story:
    """One seed: events on the rows and in the model."""

    def __init__(self, rows: Rows, seed: int) -> None:
        self.rows, self.random, self.model = rows, random.Random(seed), Model()
        self.edges: dict[str, tuple[dict[str, str], ...]] = {}

    def seen(self, uid: str, **more: object) -> object:
        """What the controller writes of it."""
        name = self.model.things[uid].name if uid in self.model.things else more.pop("name")
        return workload(
            uid, workload_name=name, name=f"{name}-job", depends_on=self.edges[uid], **more
        )

    def draw_waits(self) -> list[Wait]:
        """Names there are, names there are not yet, numbers."""
        jobs = [*NAMES, *(str(n) for n in range(1, 16))]
        count = self.random.choice((0, 1, 1, 2))
        return [
            Wait(self.random.choice(list(DependencyKind)), self.random.choice(jobs))
            for _ in range(count)
        ]

    def pick(self, *states: FluxJobState) -> str | None:
        """One that is in one of the states and still there."""
        found = [u for u, t in self.model.things.items() if t.state in states and not t.is_gone]
        return self.random.choice(found) if found else None

    async def submit(self) -> None:
        """A workload under a name that is free."""
        taken = {thing.name for thing in self.model.things.values() if not thing.is_gone}
        free = [name for name in NAMES if name not in taken]
        if not free:
            return
        name, number = self.random.choice(free), len(self.model.things) + 1
        uid, waits = f"{self.random.randrange(1000):03}-{number}", self.draw_waits()
        self.remember(uid, waits)
        await self.rows.see(self.seen(uid, name=name))  # type: ignore[arg-type]
        # A place that is drawn again leaves a gap in the numbers.
        jobid = await self.rows.value("SELECT jobid FROM fluxjobs WHERE uid = :uid", uid=uid)
        self.model.submit(uid, Thing(name, jobid, waits))

    def remember(self, uid: str, waits: list[Wait]) -> None:
        """As the annotation says it."""
        self.edges[uid] = tuple({"type": str(w.kind), "job": w.job} for w in waits)

    async def edit(self) -> None:
        """Its author changes what a waiting one waits for."""
        uid = self.pick(S.PENDING)
        if uid is None:
            return
        waits = self.draw_waits()
        before = self.edges[uid]
        self.remember(uid, waits)
        await self.rows.see(self.seen(uid))  # type: ignore[arg-type]
        if self.edges[uid] == before:
            return
        self.model.things[uid].waits = waits
        for wait in waits:
            wait.target = self.model.stands_for(wait.job)

    async def start(self) -> None:
        """One that waits runs, whatever it waited for: the rule only looks at states."""
        uid = self.pick(S.PENDING)
        if uid is None or self.model.expected(uid) != ("Pending", None, None):
            return
        await self.look()
        for state in ("Allocated", "Running"):
            await self.rows.execute(
                "UPDATE fluxjobs SET state = :s, started_at = CASE WHEN :s = 'Running' THEN now()"
                " END WHERE uid = :uid", s=state, uid=uid,
            )  # fmt: skip
        self.model.things[uid].state = S.RUNNING
        self.model.things[uid].has_started = True

    async def end(self) -> None:
        """One ends, running or waiting."""
        uid = self.pick(S.PENDING, S.RUNNING)
        if uid is None:
            return
        state = self.random.choice((S.COMPLETED, S.FAILED, S.CANCELLED))
        await self.rows.execute(
            "UPDATE fluxjobs SET state = :s, ended_at = now() WHERE uid = :uid",
            s=str(state),
            uid=uid,
        )
        self.model.things[uid].state = state

    async def forget(self) -> None:
        """One that has ended is deleted."""
        uid = self.pick(S.COMPLETED, S.FAILED, S.CANCELLED)
        if uid is not None:
            await self.rows.execute("UPDATE fluxjobs SET is_gone = true WHERE uid = :u", u=uid)
            self.model.things[uid].is_gone = True

    async def look(self) -> None:
        """Drain what is due in any order, until nothing is."""
        while uids := await self.rows.take_tasks(TaskName.RECONCILE):
            self.random.shuffle(uids)
            for uid in uids:
                await self.rows.reconcile(uid)

    async def compare(self) -> None:
        """Every waiting row is what the model says."""
        rows = await self.rows.fetch("SELECT uid, state, held_by, blocked_by FROM fluxjobs")
        for row in rows:
            if self.model.things[row["uid"]].state is S.PENDING:
                found = (row["state"], row["held_by"], row["blocked_by"])
                assert found == self.model.expected(row["uid"]), (row, self.model)


@pytest.mark.cases_long("other stories")
@pytest.mark.timeout(120)
@pytest.mark.parametrize("seed", SEEDS)
async def test_any_graph_is_judged_as_the_model_judges_it(rows: Rows, seed: int) -> None:
    """Whatever is submitted, edited, started, ended and deleted, and whenever it is looked at."""
    story = Story(rows, seed)
    for _ in range(EVENTS):
        happens = [story.submit, story.edit, story.start, story.end, story.forget, story.look]
        await story.random.choices(happens, [9, 3, 4, 4, 4, 4])[0]()
        if story.random.random() < 0.5:
            await story.look()
            await story.compare()
    await story.look()
    await story.compare()
