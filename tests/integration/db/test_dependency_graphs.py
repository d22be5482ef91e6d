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
    is_satisfied: bool = False


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

    def ahead_of(self, uid: str, job: str) -> str | None:
        """The one that a singleton waits for: the newest before it, else one that runs."""
        number, found = self.things[uid].jobid, []
        for other, thing in self.things.items():
            shares = any((w.kind, w.job) == (DependencyKind.SINGLETON, job) for w in thing.waits)
            is_ahead = thing.jobid < number or thing.state is S.RUNNING
            if (shares or thing.name == job) and is_ahead and not thing.state.is_final:
                found.append((thing.jobid < number, thing.jobid, other))
        return max((one for one in found if one[2] != uid), default=(0, 0, None))[2]

    def edge(self, uid: str, wait: Wait) -> Edge:
        """As the rule sees it."""
        target = wait.target
        if wait.kind is DependencyKind.SINGLETON:
            target = self.ahead_of(uid, wait.job)
        if target is None:
            return Edge(wait.kind, wait.job, is_satisfied=wait.is_satisfied)
        thing = self.things[target]
        found = Target(thing.jobid, thing.state, thing.has_started)
        return Edge(wait.kind, wait.job, found, wait.is_satisfied)

    def targets(self, uid: str) -> list[tuple[Wait, Edge, str | None]]:
        """Each of its edges, and what it waits for."""
        return [
            (w, self.edge(uid, w), self.ahead_of(uid, w.job) if w.kind == "singleton" else w.target)
            for w in self.things[uid].waits
        ]

    def remember(self) -> None:
        """A singleton whose turn has come keeps it."""
        for uid, thing in self.things.items():
            for wait, edge, _ in self.targets(uid) if thing.state is S.PENDING else ():
                if wait.kind is DependencyKind.SINGLETON:
                    wait.is_satisfied = outcome(edge) is DependencyOutcome.SATISFIED

    def submit(self, uid: str, thing: Thing) -> None:
        """Open edges follow the name."""
        self.things[uid] = thing
        for wait in thing.waits:
            wait.target = self.stands_for(wait.job)
        for one, other in self.things.items():
            for wait in other.waits:
                is_open = outcome(self.edge(one, wait)) is not DependencyOutcome.SATISFIED
                if is_open and wait.job in {thing.name, str(thing.jobid)}:
                    wait.target = uid

    def waits_for(self, uid: str) -> set[str]:
        """Those that it waits for now."""
        return {
            target
            for _, edge, target in self.targets(uid)
            if target and outcome(edge) is DependencyOutcome.WAITING
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
        edges = [edge for _, edge, _ in self.targets(uid)]
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

    def draw_waits(self, kinds: list[DependencyKind]) -> list[Wait]:
        """Names there are, names there are not yet, numbers."""
        jobs = [*NAMES, *(str(n) for n in range(1, 16))]
        count = self.random.choice((0, 1, 1, 2))
        return [Wait(self.random.choice(kinds), self.random.choice(jobs)) for _ in range(count)]

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
        uid, waits = (
            f"{self.random.randrange(1000):03}-{number}",
            self.draw_waits([*DependencyKind]),
        )
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
        # One that becomes a singleton later goes before those whose turn has come.
        waits = self.draw_waits([one for one in DependencyKind if one != "singleton"])
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
        self.model.remember()

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
