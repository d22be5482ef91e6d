"""What ``check`` and the demo read of the database, on a real Postgres.

Rows are written by the statements that the controller and the worker use where that is possible,
and broken by hand where health would not allow it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from fluxqueue.db.database import Database, Transaction
from fluxqueue.db.reading.figures import fluxjob_lines, node_lines, run_figures
from fluxqueue.db.reading.snapshot import DriftRow, UsageRow, read_rows
from fluxqueue.db.store.cluster_rows import save_foreign, save_nodes
from fluxqueue.fluxjob.node import ForeignPod, NodeFact
from fluxqueue.process.settings import Settings

NODE = NodeFact("node-1", "uid-node-1", {"cpu": 16000, "pods": 110})


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """A database with one node of 16 cores, on which an unmanaged agent uses one."""
    async with Database(Settings(database_url=database_url), role="test") as opened:
        async with opened.begin() as tx:
            await save_nodes(tx, [NODE], [])
            agent = ForeignPod("uid-agent", "kube-system", "agent", "node-1", {"cpu": 1000})
            await save_foreign(tx, [agent], [])
        yield opened


async def add_fluxjob(
    tx: Transaction, name: str, *, state: str = "Pending", is_gone: bool = False
) -> None:
    """A FluxJob submitted 60 s ago. Started 50 s ago if it was, ended 20 s ago if it has."""
    has_ended = state in {"Completed", "Failed", "Cancelled"}
    was_allocated = has_ended or state in {"Allocated", "Running"}
    await tx.execute(
        """
        INSERT INTO fluxjobs (uid, namespace, name, workload_kind, workload_name, flux_uid, state,
                              request, size, is_gone, submitted_at, allocated_at, ended_at)
        VALUES (:uid, 'default', :name || '-job', 'Job', :name, 'f-' || :name, :state, '{}', 1,
                :is_gone, now() - interval '60 s',
                CASE WHEN :was_allocated THEN now() - interval '50 s' END,
                CASE WHEN :has_ended THEN now() - interval '20 s' END)
        """,
        uid=f"uid-{name}",
        name=name,
        state=state,
        is_gone=is_gone,
        was_allocated=was_allocated,
        has_ended=has_ended,
    )


async def add_allocation(
    tx: Transaction, name: str, *, cores: int = 8, is_live: bool = True, state: str = "free"
) -> None:
    """An allocation with one slot on node-1."""
    await tx.execute(
        """
        WITH a AS (
            INSERT INTO allocations (uid, term, starts_at, is_live, ended_at)
            VALUES (:uid, 1, 0, :is_live, CASE WHEN NOT :is_live THEN now() END) RETURNING id)
        INSERT INTO allocation_slots (allocation_id, number, node, resources, state)
        SELECT id, 0, 'node-1', jsonb_build_object('cpu', CAST(:cpu_m AS int), 'pods', 1), :state
        FROM a
        """,
        uid=f"uid-{name}",
        is_live=is_live,
        cpu_m=1000 * cores,
        state=state,
    )


async def test_an_empty_queue_has_its_nodes_and_nothing_else(database: Database) -> None:
    """All tables are read at one instant. Empty ones are empty, not null."""
    rows = await read_rows(database)
    assert tuple(rows.usage) == (
        UsageRow("node-1", "cpu", 16000, 0, 1000, 15000),
        UsageRow("node-1", "pods", 110, 0, 0, 110),
    )
    others = (rows.fluxjobs, rows.allocations, rows.slots, rows.reservations, rows.late, rows.drift)
    assert not any(others)


async def test_a_running_fluxjob_is_read_with_its_slots(database: Database) -> None:
    """States, times in epoch seconds, and the node's account."""
    async with database.begin() as tx:
        await add_fluxjob(tx, "pi", state="Running")
        await add_allocation(tx, "pi")
    rows = await read_rows(database)
    (fluxjob,), (allocation,), (slot,) = rows.fluxjobs, rows.allocations, rows.slots
    assert (fluxjob.subject, fluxjob.state, fluxjob.has_reservation) == (
        "Job default/pi",
        "Running",
        False,
    )
    assert fluxjob.allocated_at_s is not None
    assert 49 <= rows.now_s - fluxjob.allocated_at_s < 110
    assert (allocation.uid, allocation.until_s) == ("uid-pi", None)
    assert (slot.uid, slot.node, dict(slot.resources)) == (
        "uid-pi",
        "node-1",
        {"cpu": 8000, "pods": 1},
    )
    assert rows.usage[0] == UsageRow("node-1", "cpu", 16000, 8000, 1000, 7000)


async def test_what_is_over_and_gone_is_read_only_on_request(database: Database) -> None:
    """History does not make the check slower, unless an object of it is still in the cluster."""
    async with database.begin() as tx:
        await add_fluxjob(tx, "kept", state="Completed")
        await add_fluxjob(tx, "gone", state="Completed", is_gone=True)
        await add_fluxjob(tx, "ending", state="Running", is_gone=True)
        await add_allocation(tx, "ending")
    names = {row.workload_name for row in (await read_rows(database)).fluxjobs}
    assert names == {"kept", "ending"}
    names = {row.workload_name for row in (await read_rows(database, also=["uid-gone"])).fluxjobs}
    assert names == {"kept", "ending", "gone"}


async def test_drift_tells_of_each_invariant_that_rows_alone_can_break(database: Database) -> None:
    """Every branch of the view ``drift`` finds its own case."""
    async with database.begin() as tx:
        await add_fluxjob(tx, "ended", state="Completed")
        await add_allocation(tx, "ended", cores=10)
        await add_fluxjob(tx, "lost", state="Running")
        await add_fluxjob(tx, "kept", state="Completed")
        await add_allocation(tx, "kept", cores=10, is_live=False)
        await tx.execute(
            "INSERT INTO pods (uid, workload_uid, namespace, name, phase, is_gated, is_terminating)"
            " VALUES ('uid-p', 'uid-lost', 'default', 'loose', 'Running', false, false)"
        )
    drift = {(row.invariant, row.subject) for row in (await read_rows(database)).drift}
    assert drift == {
        ("node over capacity", "node-1"),
        ("ended workload holds an allocation", "default/ended"),
        ("running workload without an allocation", "default/lost"),
        ("slot of an ended allocation not returned", "node-1"),
        ("ungated pod without a slot", "default/loose"),
    }


async def test_late_effects_are_those_overdue_or_tried_often(database: Database) -> None:
    """An effect that is due in the future, or was put there just now, is in order."""
    async with database.begin() as tx:
        await tx.execute(
            """
            INSERT INTO fluxjobs (uid, namespace, name, workload_kind, workload_name, request, size,
                                  release_at, troubles)
            SELECT uid, 'default', uid || '-job', 'Job', uid, '{}', 1, at,
                   jsonb_strip_nulls(jsonb_build_object('last_error', error))
            FROM (VALUES ('fresh', now(), NULL),
                         ('overdue', now() - interval '90 s', NULL),
                         ('failing', now(), '409 Conflict')) AS r (uid, at, error)
            """
        )
        await tx.execute(
            "UPDATE procrastinate.procrastinate_jobs SET attempts = 7"
            " WHERE args -> 'uids' ? 'failing' AND task_name = 'release'"
        )
        # Its batch has failed as a whole: only what it was for, and is not done, stands there.
        await tx.execute("UPDATE fluxjobs SET release_at = NULL WHERE uid = 'fresh'")
    late = {effect.uid: effect for effect in (await read_rows(database)).late}
    assert set(late) == {"overdue", "failing"}
    assert 90 <= late["overdue"].overdue_s < 150
    assert (late["failing"].overdue_s, late["failing"].attempts) == (0, 7)
    assert late["failing"].last_error == "409 Conflict"


async def test_drift_rows_carry_their_detail(database: Database) -> None:
    """The detail is a sentence with the amounts."""
    async with database.begin() as tx:
        await add_fluxjob(tx, "wide", state="Running")
        await add_allocation(tx, "wide", cores=17)
    assert tuple((await read_rows(database)).drift) == (
        DriftRow("node over capacity", "node-1", "cpu: allocated 17000 of 16000"),
    )


async def test_figures_of_a_run(database: Database) -> None:
    """Makespan from first submission to last end. Waits of those that were allocated. leaks."""
    async with database.begin() as tx:
        await add_fluxjob(tx, "done", state="Completed")
        await add_allocation(tx, "done", is_live=False, state="returned")
        await add_fluxjob(tx, "leaky", state="Failed")
        await add_allocation(tx, "leaky", is_live=False)
        await add_fluxjob(tx, "never", state="Unsatisfiable")
    figures = await run_figures(database, "default")
    assert figures.states == {"Completed": 1, "Failed": 1, "Unsatisfiable": 1}
    assert (figures.jobs, figures.leaked_slots) == (3, 1)
    assert figures.makespan_s == pytest.approx(40, abs=0.5)
    assert figures.mean_wait_s == pytest.approx(10, abs=0.1)
    assert (await run_figures(database, "elsewhere")).jobs == 0


async def test_lines_of_fluxjobs_and_nodes(database: Database) -> None:
    """What the table and the bars show."""
    async with database.begin() as tx:
        await add_fluxjob(tx, "done", state="Completed")
        await add_allocation(tx, "done", is_live=False, state="returned")
        await add_fluxjob(tx, "next")
    done, waiting = await fluxjob_lines(database, "default")
    assert (done.name, list(done.nodes), waiting.name, list(waiting.nodes)) == (
        "done",
        ["node-1"],
        "next",
        [],
    )
    assert done.waited_s == pytest.approx(10, abs=0.1)
    assert done.ran_s == pytest.approx(30, abs=0.1)
    assert 59 <= waiting.waited_s < 120
    assert waiting.ran_s is None
    (node,) = await node_lines(database)
    assert (node.capacity_m, node.allocated_m, node.foreign_m) == (16000, 0, 1000)
