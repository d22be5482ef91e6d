"""Steered by hand and by annotation: dependencies, begin times, holds, requeues, cancellations."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fluxqueue.errors import ApiError, NotFound
from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.resources import JOBS
from tests.support.e2e.health import assert_invariants
from tests.support.e2e.objects import FOR_EVER, bare_pod, job
from tests.support.e2e.space import WAITING, Space
from tests.support.waiting import eventually


async def command(space: Space, *arguments: str) -> tuple[int, str]:
    """The command line in the test's namespace, with a kubeconfig, and a database for `db`."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fluxqueue", *arguments, "-n", space.name,
        env={
            **os.environ,
            "DATABASE_URL": space.world.stack.database_url,
            "KUBECONFIG": str(space.world.kubeconfig),
        },
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
    )  # fmt: skip
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def done(space: Space, *arguments: str) -> str:
    """A command that succeeds."""
    code, output = await command(space, *arguments)
    assert code == 0, output
    return output


async def annotate(space: Space, name: str, key: str, value: str | None) -> None:
    """As kubectl annotate does it."""
    body = {"metadata": {"annotations": {f"fluxqueue/{key}": value}}}
    await space.client.patch(JOBS, space.name, name, body, kind=PatchKind.MERGE)


async def until_reason(space: Space, name: str, part: str) -> None:
    """Wait until the FluxJob's reason contains ``part``."""

    async def look() -> bool:
        found = await space.fluxjob(name)
        return part in ((found or {}).get("status") or {}).get("reason", "")

    await eventually(look, f"{name}: {part}")


async def test_a_chain_of_afterok_runs_in_its_order(space: Space) -> None:
    """Submitted the wrong way round: each waits for the one it names, known yet or not."""
    async with space.recording() as seen:
        await space.create(job("third", wishes={"depends-on": "afterok:second"}))
        await until_reason(space, "third", "depends on second, which does not exist yet")
        await space.create(job("second", wishes={"depends-on": "afterok:first"}))
        await until_reason(space, "third", "depends on second (job")
        await space.create(job("first"))
        await space.until_all_complete(["first", "second", "third"])
        assert seen.order() == ["first", "second", "third"]
    fluxjob = await space.fluxjob("third")
    assert fluxjob is not None
    assert fluxjob["spec"]["dependsOn"] == [{"type": "afterok", "job": "second"}]


@pytest.mark.long("seconds on a whole cluster. The usual case of its module stays")
async def test_what_depends_on_a_failure_is_held_until_it_is_put_right(space: Space) -> None:
    """The reason names it. Submitted again under its name, it starts the dependent."""
    fails = job("build", run={"duration": "100ms", "exit-code": "1"}, backoffLimit=0)
    await space.create(fails)
    await space.create_all(
        [
            job("test", wishes={"depends-on": "afterok:build"}),
            job("mourn", wishes={"depends-on": "afternotok:build"}),
        ]
    )
    await space.until_job("build", "Failed")
    await space.until_state("test", "Held")
    await until_reason(space, "test", "can never run: afterok:build (job")
    code, output = await command(space, "release", "test")
    assert code == 1
    assert "is not held by hand: can never run: afterok:build" in output
    await space.until_job("mourn")
    await space.delete("build")
    await space.until_gone(JOBS, "build")
    await space.create(job("build"))
    await space.until_all_complete(["build", "test"])


async def test_singletons_run_one_after_the_other(space: Space) -> None:
    """Those of a user that share a name, in their order."""
    names = ["one", "two", "three"]
    for name in names:
        await space.create(job(name, wishes={"depends-on": "singleton:nightly"}))
    await until_reason(space, "three", "depends on nightly (job")
    await space.until_all_complete(names)
    ended = [await space.fluxjob(name) for name in names]
    for before, after in itertools.pairwise(one["status"] for one in ended if one):
        assert before["endTime"] <= after["startTime"]


async def test_wrong_dependencies_are_refused_at_admission(space: Space) -> None:
    """With the field and the way out. Nothing is stored."""
    with pytest.raises(ApiError, match=r"fluxqueue/depends-on\].*'aftercorr' is no type"):
        await space.create(job("x", wishes={"depends-on": "aftercorr:a"}))
    with pytest.raises(ApiError, match="'x' waits for itself"):
        await space.create(job("x", wishes={"depends-on": "afterok:x"}))
    with pytest.raises(ApiError, match=r"fluxqueue/begin-time\]"):
        await space.create(job("x", wishes={"begin-time": "tomorrow"}))


async def test_a_begin_time_is_kept(space: Space) -> None:
    """It starts soon after, not before. One in the past is no wait."""
    begin = datetime.now(tz=UTC) + timedelta(seconds=4)
    text = begin.isoformat(timespec="seconds")
    await space.create(job("later", wishes={"begin-time": text}))
    await space.create(job("past", wishes={"begin-time": "2020-01-01T00:00:00Z"}))
    usual = _waited(await space.until_job("past"))
    found = await space.until_job("later")
    started = datetime.fromisoformat(found["status"]["startTime"])
    assert started >= datetime.fromisoformat(text)
    assert started < begin + timedelta(seconds=20) + 2 * usual


def _waited(done: dict[str, Any]) -> timedelta:
    """How long a Job waited for its start."""
    created = datetime.fromisoformat(done["metadata"]["creationTimestamp"])
    return datetime.fromisoformat(done["status"]["startTime"]) - created


async def test_hold_by_annotation_and_by_hand(space: Space) -> None:
    """Each holds by itself. The removal of the last starts it."""
    await space.create(job("kept", wishes={"hold": "true"}))
    await space.until_state("kept", "Held")
    await until_reason(space, "kept", "held by its annotation fluxqueue/hold")
    await done(space, "hold", "kept")
    spec = ((await space.fluxjob("kept")) or {})["spec"]
    await until_reason(space, "kept", f"held by {spec['steeredBy']['hold']}")
    await annotate(space, "kept", "hold", None)
    await done(space, "release", "kept")
    await space.until_job("kept")
    told = await done(space, "db", "history", "kept")
    assert "release" in told


async def test_a_running_job_is_requeued_and_runs_again(space: Space) -> None:
    """Its pods end, its resources go to others, its number and its FluxJob stay."""
    async with space.recording() as seen:
        low = {"priority": "-10"}
        await space.create(job("long", pods=2, cpu="8", pool="single", run=FOR_EVER, wishes=low))
        before = await space.until_state("long", "Running")
        high = job("high", cpu="16", pool="single")
        await space.create(high)
        await space.until_state("high", *WAITING)
        await done(space, "requeue", "long")
        await space.until_job("high")
        await seen.until(lambda r: len(r.seen("long")) > 2, "it runs again")
        after = await space.until_state("long", "Running")
        assert after["status"]["jobid"] == before["status"]["jobid"]
        assert after["metadata"]["uid"] == before["metadata"]["uid"]
        await space.until_running("long", 2)
        assert len(seen.seen("long")) == 4
        assert seen.peak_cpu_m()["single"] <= 16_000
    runs = await done(space, "db", "accounting", "long")
    assert "Requeued" in runs
    await assert_invariants(space.world)


async def test_an_author_who_suspends_a_running_job_frees_its_nodes(space: Space) -> None:
    """It is held by its author. Resumed, it waits for its turn and runs."""
    await space.create(job("mine", cpu="16", pool="single", run=FOR_EVER))
    await space.until_state("mine", "Running")
    stop, go = ({"spec": {"suspend": is_stopped}} for is_stopped in (True, False))
    await space.client.patch(JOBS, space.name, "mine", stop, kind=PatchKind.MERGE)
    await space.until_state("mine", "Held")
    await until_reason(space, "mine", "suspended by its author")
    await space.create(job("other", cpu="16", pool="single"))
    await space.until_job("other")
    await space.client.patch(JOBS, space.name, "mine", go, kind=PatchKind.MERGE)
    await space.until_state("mine", "Running")
    await assert_invariants(space.world)


@pytest.mark.long("seconds on a whole cluster. The usual case of its module stays")
async def test_what_waits_and_what_runs_is_cancelled(space: Space) -> None:
    """The Job is deleted, its pods too, and the resources are free for the next."""
    await space.create(job("runs", cpu="16", pool="single", run=FOR_EVER))
    await space.until_state("runs", "Running")
    await space.create_all([job("waits", cpu="16", pool="single"), bare_pod("alone", cpu="99")])
    await space.until_state("waits", *WAITING)
    await space.until_state("alone", "Unsatisfiable")
    await done(space, "cancel", "waits", "alone", "runs")
    for name in ("runs", "waits"):
        await space.until_gone(JOBS, name)
    code, output = await command(space, "cancel", "nobody")
    assert code == 1
    assert "no such workload" in output
    with pytest.raises(NotFound):
        await space.client.get(JOBS, space.name, "waits")
    await space.create(job("next", cpu="16", pool="single"))
    await space.until_job("next")


@pytest.mark.long("seconds on a whole cluster. The usual case of its module stays")
async def test_priority_by_hand_changes_the_order(space: Space) -> None:
    """Among those that wait. The list shows it."""
    await space.create(job("blocker", cpu="16", pool="single", run=FOR_EVER))
    await space.until_state("blocker", "Running")
    async with space.recording() as seen:
        for name in ("one", "two"):
            await space.create(job(name, cpu="16", pool="single"))
            await space.until_state(name, *WAITING)
        await done(space, "priority", "two", "50")
        listed = (await done(space, "db", "list")).splitlines()
        assert [line.split()[2] for line in listed[1:]] == ["blocker", "two", "one"]
        await done(space, "cancel", "blocker")
        await space.until_all_complete(["one", "two"])
        assert seen.order() == ["blocker", "two", "one"]
