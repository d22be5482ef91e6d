"""Each engine does its ordinary work in a queue: waits, ends, is cancelled, requeued, loses a node.

``make test-engines`` makes the environments and runs this. Without its environment, an engine is
skipped. The programs are those of users (``programs/common.py``).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.resources import FLUXJOBS, FLUXQUEUES, PODS
from tests.engines.catalogue import ENGINES, PROGRAMS, ROOT, Engine, is_chosen
from tests.engines.trainer import played_trainer
from tests.support.e2e.pages import in_namespace
from tests.support.e2e.replica_sets import until_held
from tests.support.e2e.space import Space
from tests.support.e2e.world import GATED_QUEUE, World, late_node
from tests.support.host_programs import host_programs
from tests.support.waiting import eventually

Obj = dict[str, Any]
Results = dict[str, dict[str, str]]

PATIENT_S = 240.0
"""Longest wait for a state. Some engines start three interpreters that import for ten seconds."""
IMPATIENT_S = 8.0
"""An engine that expects a pod at once has failed by then. Luigi waits for five seconds."""

pytestmark = [
    pytest.mark.long("an interpreter of each engine, and engines that look every few seconds"),
    pytest.mark.usefixtures("queue"),
]


def _param(engine: Engine) -> Any:
    why = f"{engine.environment} is not installed, or was not chosen: make test-engines"
    is_run = engine.python.exists() and is_chosen(engine)
    # Before any fixture: a world is not started for nothing.
    skip = pytest.mark.skipif(not is_run, reason=why)
    return pytest.param(engine, id=engine.name, marks=skip)


@pytest.fixture(params=map(_param, ENGINES))
def engine(request: pytest.FixtureRequest) -> Engine:
    """One engine."""
    found: Engine = request.param
    return found


@dataclass
class Program:
    """A program of an engine that runs."""

    process: asyncio.subprocess.Process
    said: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """What it has printed."""
        return "\n".join(self.said)

    async def follow(self) -> None:
        """Read what it prints."""
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.said.append(line.decode(errors="replace").rstrip())

    @property
    def is_running(self) -> bool:
        """Tell whether it runs."""
        return self.process.returncode is None


@dataclass(frozen=True)
class Desk:
    """Where a user works: a namespace, and the programs of one engine."""

    engine: Engine
    space: Space
    folder: Path

    def _environment(self, pool: str, seconds: str) -> dict[str, str]:
        kept = {key: os.environ[key] for key in ("PATH", "LANG") if key in os.environ}
        if self.engine.needs_client:
            kept["PYTHONPATH"] = str(ROOT)
        return kept | {
            "PATH": f"{self.engine.python.parent}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "KUBECONFIG": str(in_namespace(self.space, self.folder)),
            "ENGINE_NAMESPACE": self.space.name,
            "ENGINE_QUEUE": self.engine.queue,
            "ENGINE_POOL": pool,
            "ENGINE_VARIANT": self.engine.variant,
            "ENGINE_SECONDS": seconds,
            "ENGINE_STATE": str(self.folder / "state"),
            "NO_PROXY": "*",
        }

    @asynccontextmanager
    async def running(
        self, name: str, *, pool: str = "single", seconds: str = "1", action: str = "run"
    ) -> AsyncIterator[Program]:
        """Run the program. It is killed at the end, if it still runs."""
        environ = self._environment(pool, seconds)
        async with (
            self._operator(action, pool, seconds),
            self._process(action, name, environ) as program,
        ):
            yield program

    @asynccontextmanager
    async def _process(
        self, action: str, name: str, environ: dict[str, str]
    ) -> AsyncIterator[Program]:
        process = await asyncio.create_subprocess_exec(
            str(self.engine.python),
            str(PROGRAMS / self.engine.program),
            action,
            name,
            env=environ,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        program = Program(process)
        reader = asyncio.create_task(program.follow())
        try:
            async with self._pods(action, environ):
                yield program
        finally:
            if program.is_running:
                process.kill()
            await process.wait()
            await reader

    def _operator(self, action: str, pool: str, seconds: str) -> AbstractAsyncContextManager[None]:
        """The operator of the objects that the program submits, which is there before it."""
        if action == "run" and self.engine.creates == "TrainJob":
            return played_trainer(self.space, pool, seconds)
        return nullcontext()

    def _pods(self, action: str, environ: dict[str, str]) -> AbstractAsyncContextManager[None]:
        """What runs in the pods of the program that submits them."""
        if action == "run" and self.engine.runs_programs:
            return host_programs(self.space.client, self.space.name, environ)
        return nullcontext()

    async def start_queue(self, *, is_started: bool) -> None:
        """Start or stop the queue: a stopped one is full for all that comes."""
        patch = {"spec": {"started": is_started}}
        await self.space.client.patch(
            FLUXQUEUES, None, self.engine.queue, patch, kind=PatchKind.MERGE
        )

        async def is_told() -> bool:
            sql = "SELECT spec ->> 'started' AS said FROM fluxqueues WHERE name = :name"
            rows = await self.space.world.rows(sql, name=self.engine.queue)
            return [row["said"] for row in rows] == [str(is_started).lower()]

        await eventually(is_told, "the queue is started or stopped")

    async def until(self, state: str, program: Program | None = None) -> Obj:
        """Wait until its FluxJob is in a state."""

        async def look() -> Obj | None:
            assert program is None or not program.process.returncode, "the program has failed"
            found = (await self.space.client.list(FLUXJOBS, self.space.name)).items
            states = [one.get("status", {}).get("state") for one in found]
            return found[0] if states == [state] else None

        try:
            what = f"the work of {self.engine.name} is {state}"
            return await eventually(look, what, timeout_s=PATIENT_S) or {}
        except AssertionError as error:
            said = program.text if program is not None else ""
            raise AssertionError(f"{error}\n{said}") from error

    async def code(self, program: Program) -> int:
        """Wait for the end of the program, and return its exit code."""

        async def is_over() -> bool:
            return not program.is_running

        what = f"the program of {self.engine.name} ends: {program.text}"
        await eventually(is_over, what, timeout_s=PATIENT_S)
        return program.process.returncode or 0


@pytest_asyncio.fixture(loop_scope="session")
async def desk(engine: Engine, space: Space, tmp_path: Path) -> AsyncIterator[Desk]:
    """A user of one engine. Its queue is started at the end, because it may be that of others."""
    made = Desk(engine, space, tmp_path)
    yield made
    await made.start_queue(is_started=True)


async def test_it_waits_and_completes(desk: Desk, results: Results) -> None:
    """In a queue that starts nothing at first. An engine that cannot wait ends by itself."""
    engine, said = desk.engine, results[desk.engine.name]
    await desk.start_queue(is_started=False)
    async with desk.running("work") as program:
        await desk.until("Pending", program)
        await _let_pass(program, IMPATIENT_S)
        assert program.is_running is engine.can_wait, program.text
        said["waits"] = "yes" if engine.can_wait else "no"
        await desk.start_queue(is_started=True)
        if engine.can_wait:
            assert await desk.code(program) == 0, program.text
            assert engine.log in program.text or not engine.has_logs, program.text
    if not engine.can_wait:
        await desk.until("Completed")
        await _completes_without_a_wait(desk)
    said["completes"] = "yes"
    said["logs"] = "yes" if engine.has_logs else "–"


async def _completes_without_a_wait(desk: Desk) -> None:
    """It works where its pods start at once."""
    async with desk.running("again") as program:
        assert await desk.code(program) == 0, program.text
        if desk.engine.has_logs:
            assert desk.engine.log in program.text


async def _let_pass(program: Program, seconds: float) -> None:
    """Give an impatient program the time to fail."""
    try:
        await asyncio.wait_for(program.process.wait(), seconds)
    except TimeoutError:
        return


async def test_gates_do_not_help_an_engine_that_cannot_wait(desk: Desk) -> None:
    """It also fails if its pods exist and are not bound yet."""
    if desk.engine.can_wait:
        return
    gated = replace(desk, engine=replace(desk.engine, queue=GATED_QUEUE))
    await gated.start_queue(is_started=False)
    async with gated.running("work") as program:
        assert await gated.code(program) != 0, program.text
        assert "SchedulingGated" in program.text


async def test_its_work_is_cancelled(desk: Desk, results: Results) -> None:
    """While it waits, and nothing is left."""
    engine = desk.engine
    if not engine.has_cancel:
        results[engine.name]["is cancelled"] = "–"
        return
    await desk.start_queue(is_started=False)
    async with desk.running("work") as program:
        await desk.until("Pending", program)
        async with desk.running("work", action="cancel") as other:
            assert await desk.code(other) == 0, other.text

        if not engine.ends_on_cancel:
            await _let_pass(program, IMPATIENT_S)
            await _starts_all_the_same(desk)
            results[engine.name]["is cancelled"] = "no"
            return

        async def is_gone() -> bool:
            if engine.leaves_job:
                return not program.is_running
            return not (await desk.space.client.list(FLUXJOBS, desk.space.name)).items

        try:
            await eventually(is_gone, "its FluxJob is gone")
        except AssertionError as error:
            raise AssertionError(f"{error}\n{program.text}") from error
    if engine.leaves_job:
        await desk.until("Held")
    await desk.start_queue(is_started=True)
    await until_held(desk.space, 0)
    assert not (await desk.space.client.list(PODS, desk.space.name)).items
    results[engine.name]["is cancelled"] = "yes"


async def _starts_all_the_same(desk: Desk) -> None:
    """The engine has left its work in the queue, so the work takes a node in its turn."""
    await desk.start_queue(is_started=True)

    async def has_run() -> bool:
        found = (await desk.space.client.list(FLUXJOBS, desk.space.name)).items
        return any("startTime" in (one.get("status") or {}) for one in found)

    await eventually(has_run, "it has run", timeout_s=PATIENT_S)


async def test_its_work_is_requeued(desk: Desk, results: Results) -> None:
    """Its pods end and come again. The engine follows, or says that the work has failed."""
    engine = desk.engine
    if engine.creates == "Pod":
        results[engine.name]["is requeued"] = "–"
        return
    async with desk.running("work", seconds="4") as program:
        found = await desk.until("Running", program)
        patch = {"spec": {"requeue": "once"}}
        at = (FLUXJOBS, desk.space.name, found["metadata"]["name"])
        await desk.space.client.patch(*at, patch, kind=PatchKind.MERGE)
        code = await desk.code(program)
    assert (code == 0) is engine.survives_requeue, program.text
    results[engine.name]["is requeued"] = "yes" if code == 0 else "no"


async def test_its_work_loses_its_node(desk: Desk, late: World, results: Results) -> None:
    """Another pod is made, which runs on the next node."""
    engine = desk.engine
    if not engine.can_choose_nodes:
        results[engine.name]["loses its node"] = "–"
        return
    await late.late_nodes.add(late_node(1, engine.late_cpus))
    async with desk.running("work", pool="late", seconds="5") as program:
        await desk.until("Running", program)
        await late.late_nodes.fleet.remove("late-1")
        await late.late_nodes.add(late_node(2, engine.late_cpus))
        code = await desk.code(program)
    assert (code == 0) is engine.survives_loss, program.text
    results[engine.name]["loses its node"] = "yes" if code == 0 else "no"
