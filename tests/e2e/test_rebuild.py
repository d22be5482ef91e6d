"""The database is lost, or is older than the cluster: everything is put together again.

The rows are the decisions, the cluster is the truth about what runs. Pods go on as if nothing had
happened, and every Job ends exactly once.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fluxqueue.kube.resources import FLUXJOBS, JOBS, PODS
from fluxqueue.process.pacing import RUSH
from tests.support.e2e.database import dump, empty, everybody_killed, restore
from tests.support.e2e.health import assert_invariants
from tests.support.e2e.objects import FOR_EVER, bare_pod, job
from tests.support.e2e.recording import PodView, Recording
from tests.support.e2e.space import Space
from tests.support.waiting import eventually, until

pytestmark = pytest.mark.slow

LONG_S = 120.0
WAITING = {"wait-low": "-5", "wait-first": "-1", "wait-second": "-1", "wait-third": "-1"}


async def _rows(space: Space) -> dict[str, dict[str, Any]]:
    sql = (
        "SELECT workload_name, jobid, state, priority, queue, held_by, user_name FROM fluxjobs"
        " WHERE namespace = :space"
    )
    return {row["workload_name"]: row for row in await space.world.rows(sql, space=space.name)}


async def _holders(space: Space) -> set[tuple[str, int, str, str]]:
    sql = (
        "SELECT f.workload_name, s.number, s.node, s.pod_uid FROM allocation_slots s"
        " JOIN allocations a ON a.id = s.allocation_id JOIN fluxjobs f USING (uid)"
        " WHERE a.is_live AND s.pod_uid IS NOT NULL AND f.namespace = :space"
    )
    rows = await space.world.rows(sql, space=space.name)
    return {(r["workload_name"], r["number"], r["node"], r["pod_uid"]) for r in rows}


async def _until_rows(space: Space, expected: dict[str, str]) -> dict[str, dict[str, Any]]:
    """Wait for the states of the rows by name, and give the rows."""

    def are_there(found: dict[str, dict[str, Any]]) -> bool:
        return all(found.get(name, {}).get("state") == state for name, state in expected.items())

    return await until(lambda: _rows(space), are_there, f"rows {expected}", timeout_s=LONG_S)


async def _submit_everything(space: Space) -> None:
    """Work of every kind: running, waiting by priority and order, held, ended."""
    await space.create(
        job("runs", pods=4, cpu="3", pool="main", run=FOR_EVER, completionMode="Indexed")
    )
    await space.create(job("blocks", cpu="14", pool="single", run=FOR_EVER))
    await space.create(bare_pod("solo", cpu="2", run=FOR_EVER, nodeSelector={"pool": "main"}))
    await space.create(job("done"))
    await space.create(job("held", suspend=True))
    for name in ("runs", "blocks", "solo"):
        await space.until_state(name, "Running")
    for name, priority in WAITING.items():
        wishes = {"priority": priority, "duration": "1h"}
        await space.create(job(name, cpu="16", pool="single", wishes=wishes))
    await space.until_job("done")
    await space.until_state("done", "Completed")
    await space.until_state("held", "Held")
    for name in WAITING:
        await space.until_state(name, "Pending", "Reserved")


async def _until_run(space: Space, seen: Recording, count: int) -> set[PodView]:
    """The pods that run, once there are so many, and the rows know of each."""

    def running() -> set[PodView]:
        return {one for one in seen.present() if one.is_using}

    await seen.until(
        lambda _: [one.phase for one in running()] == ["Running"] * count, f"{count} pods run"
    )

    await until(
        lambda: _holders(space), lambda found: len(found) == count, f"{count} pods have slots"
    )
    await space.until_nothing_pending()
    return running()


def _running(seen: Recording) -> set[PodView]:
    return {one for one in seen.present() if one.is_using}


def _is_unmoved(seen: Recording, before: set[PodView]) -> None:
    """Pods that ran were never touched: the same pods, on the same nodes, all the time."""
    assert before <= _running(seen)
    alive = {one.uid: one.node for one in before}
    for uid, one in seen.events:
        if uid in alive:
            assert one is not None
            assert one.is_using
            assert one.node == alive[uid]


async def test_an_empty_database_is_filled_from_the_cluster(space: Space) -> None:
    """Numbers, places in the queue, slots and holds are as they were. No pod was touched."""
    world = space.world
    await _submit_everything(space)
    async with space.recording() as seen:
        before = await _until_run(space, seen, 6)
        rows, holders = await _rows(space), await _holders(space)
        async with everybody_killed(world.stack):
            low = {"priority": "-9"}
            await space.create(job("meanwhile", cpu="16", pool="single", wishes=low))
            await empty(world.stack)
        again = await _until_rows(
            space,
            {"runs": "Running", "blocks": "Running", "solo": "Running", "done": "Completed"}
            | {"held": "Held", "meanwhile": "Pending"},
        )
        for name in WAITING:
            await space.until_state(name, "Pending", "Reserved")
        same = ("jobid", "priority", "queue", "held_by", "user_name")
        for name, row in rows.items():
            assert {k: again[name][k] for k in same} == {k: row[k] for k in same}, name
        assert again["meanwhile"]["jobid"] > max(row["jobid"] for row in rows.values())
        assert await _holders(space) == holders
        _is_unmoved(seen, before)
        await assert_invariants(world)
        await space.delete("blocks")
        await space.until_all_complete([*WAITING, "meanwhile"], timeout_s=LONG_S)
        order = [name for name in seen.order() if name in {*WAITING, "meanwhile"}]
        assert order == ["wait-first", "wait-second", "wait-third", "wait-low", "meanwhile"]
    for name in ("runs", "held"):
        await space.delete(name)
    await space.delete("solo", PODS)


@pytest.mark.long("an empty database is filled in `make test`")
async def test_starts_that_nobody_was_told_of_yet(space: Space) -> None:
    """Many start at once, which their FluxJobs show a while later: all is lost before. They
    run on where they are, under their numbers."""
    names = [f"burst-{number}" for number in range(2 * RUSH)]
    for name in names:
        await space.create(job(name, cpu="1", pool="main", run=FOR_EVER))
    for name in names:
        await space.until_running(name, 1)
    async with space.recording() as seen:
        before = _running(seen)
        assert len(before) == len(names)
        async with everybody_killed(space.world.stack):
            rows = await _rows(space)
            await empty(space.world.stack)
        again = await _until_rows(space, dict.fromkeys(names, "Running"))
        assert {name: again[name]["jobid"] for name in names} == {
            name: rows[name]["jobid"] for name in names
        }
        _is_unmoved(seen, before)
        await assert_invariants(space.world)
    for name in names:
        await space.delete(name)


@pytest.mark.long("seconds of processor time for a crash that a cheaper test covers in parts")
@pytest.mark.parametrize(
    ("wishes", "nodes"), [({"match-policy": "pack"}, 1), ({"spread": "node"}, 3)]
)
async def test_a_workload_whose_fluxjob_and_row_are_both_lost(
    space: Space, wishes: dict[str, str], nodes: int
) -> None:
    """Where no record is left the pods tell: they are adopted where they are.

    Also those of a BatchJob that was released in its template, where no gate of ours is left.
    """
    world = space.world
    await space.create(job("runs", pods=3, cpu="3", run=FOR_EVER, wishes=wishes))
    await space.until_state("runs", "Running")
    async with space.recording() as seen:
        before = await _until_run(space, seen, 3)
        assert len({one.node for one in before}) == nodes
        holders = {(node, pod) for _, _, node, pod in await _holders(space)}
        async with everybody_killed(world.stack):
            await space.client.delete(FLUXJOBS, space.name, "runs-job")
            await empty(world.stack)
        await _until_rows(space, {"runs": "Running"})
        assert {(node, pod) for _, _, node, pod in await _holders(space)} == holders
        await space.until_state("runs", "Running")
        _is_unmoved(seen, before)
    await assert_invariants(world)
    await space.delete("runs")


@pytest.mark.long("an empty database is filled in `make test`")
async def test_a_fluxjob_that_was_deleted_while_nobody_watched_is_made_again(space: Space) -> None:
    """With its state, number and nodes: whether its workload had to be cancelled is not known."""
    world = space.world
    await space.create(job("runs", cpu="3", run=FOR_EVER))
    told = (await space.until_state("runs", "Running"))["status"]

    async def is_told_again() -> bool:
        status = (await space.fluxjob("runs") or {}).get("status") or {}
        keys = ("state", "jobid", "nodes", "R")
        return {k: status.get(k) for k in keys} == {k: told[k] for k in keys}

    async with everybody_killed(world.stack):
        await space.client.delete(FLUXJOBS, space.name, "runs-job")
    await eventually(is_told_again, "told again after its start")
    await assert_invariants(world)
    await space.delete("runs")


@pytest.mark.long("an empty database is filled in `make test`")
async def test_rows_that_somebody_deleted_are_made_again(space: Space) -> None:
    """A few rows are gone, the rest stands: numbers and slots as before, the next waits on."""
    world = space.world
    await space.create(
        job("runs", pods=2, cpu="7", pool="single", run=FOR_EVER, completionMode="Indexed")
    )
    await space.until_state("runs", "Running")
    await space.create(job("waits", cpu="7", pool="single"))
    await space.until_state("waits", "Pending", "Reserved")
    async with space.recording() as seen:
        await _until_run(space, seen, 2)
    rows, holders = await _rows(space), await _holders(space)
    async with world.database.begin() as tx:
        await tx.execute("DELETE FROM fluxjobs WHERE namespace = :space", space=space.name)
    async with everybody_killed(world.stack):
        pass
    again = await _until_rows(space, {"runs": "Running"})
    await space.until_state("waits", "Pending", "Reserved")
    assert {n: r["jobid"] for n, r in again.items()} == {n: r["jobid"] for n, r in rows.items()}
    assert await _holders(space) == holders
    await assert_invariants(world)
    await space.delete("runs")
    await space.until_job("waits")


@pytest.mark.long("saves and restores a whole database under a running cluster")
async def test_a_backup_that_is_older_than_the_cluster(space: Space, tmp_path: Path) -> None:
    """What ended, began, came and went since the backup: all of it is caught up with."""
    world = space.world
    if world.stack.postgres is None:
        pytest.skip("needs the embedded server's pg_dump")
    tmp_path.chmod(0o777)
    backup = tmp_path / "queue.dump"
    await space.create(job("blocks", cpu="14", pool="single", run=FOR_EVER))
    await space.create(job("ends", run=FOR_EVER))
    await space.create(job("held", cpu="1", suspend=True, run=FOR_EVER))
    await space.until_state("blocks", "Running")
    for name in ("next", "deleted", "last"):
        run = FOR_EVER if name == "next" else {}
        await space.create(job(name, cpu="16", pool="single", run=run))
    await space.until_state("ends", "Running")
    for name in ("next", "deleted", "last"):
        await space.until_state(name, "Pending", "Reserved")
    await dump(world.stack, backup)
    await space.finish("ends")
    await space.until_job("ends")
    await space.delete("deleted")
    await space.delete("blocks")
    await space.until_state("next", "Running")
    # Indexed, so that each pod has a slot of its own to come back to.
    await space.create(job("new", pods=2, cpu="2", run=FOR_EVER, completionMode="Indexed"))
    patch = {"spec": {"suspend": False}}
    await space.client.patch(JOBS, space.name, "held", patch)
    for name in ("new", "held"):
        await space.until_state(name, "Running")
    async with space.recording() as seen:
        before = await _until_run(space, seen, 4)
        rows, holders = await _rows(space), await _holders(space)
        async with everybody_killed(world.stack):
            await restore(world.stack, backup)
        running = dict.fromkeys(("next", "new", "held"), "Running")
        over = {"ends": "Completed", "blocks": "Cancelled", "deleted": "Cancelled"}
        again = await _until_rows(space, running | over)
        for name in rows:
            assert again[name]["jobid"] == rows[name]["jobid"], name
        assert await _holders(space) == holders
        await space.until_state("last", "Pending", "Reserved")
        _is_unmoved(seen, before)
        await assert_invariants(world)
        await space.delete("next")
        await space.until_job("last")
    for name in ("new", "held"):
        await space.delete(name)
    await _ended_once(space)


async def _ended_once(space: Space) -> None:
    """Whatever was lost in between, the rows tell one end of each."""
    sql = (
        "SELECT f.workload_name, count(*) AS ends FROM history h JOIN fluxjobs f USING (uid)"
        " WHERE h.event IN ('Completed', 'Failed', 'Cancelled') AND f.namespace = :space"
        " GROUP BY f.workload_name"
    )
    names = set(await _rows(space))

    async def all_ended() -> bool:
        rows = await space.world.rows(sql, space=space.name)
        return {row["workload_name"]: row["ends"] for row in rows} == dict.fromkeys(names, 1)

    await eventually(all_ended, "each has ended once")
