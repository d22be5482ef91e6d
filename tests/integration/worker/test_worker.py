"""A running worker: effects reach the API server whatever fails, and nothing waits for luck."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from functools import partial

import pytest
import pytest_asyncio

from fluxqueue.db import retention
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import JOBS, PODS
from fluxqueue.process import metrics
from fluxqueue_devtools.localpg import LocalPostgres
from localcluster import LocalCluster
from tests.support.rows import Rows, cpu_node, workload
from tests.support.waiting import eventually
from tests.support.workers import is_released, rows_of, submit, ungated_to, worker


@pytest.mark.timeout(400)
async def test_effects_arrive_whatever_the_api_server_does(
    database_url: str, cluster: LocalCluster, admin: KubeClient
) -> None:
    """A third of all calls fail, some after they acted: every Job and pod is released."""
    async with rows_of(database_url) as rows:
        await rows.add_nodes(*(cpu_node(f"n{n}", cpu=8) for n in range(4)))
        uids = {name: await submit(rows, admin, name, pods=2) for name in ("a", "b", "c", "d", "e")}
        async with worker(database_url, cluster, faults=0.33) as transport:
            # These pods never run, so a later look at their start is planned again and again. All
            # else must come to an end, and no look may be due.
            pending = (
                "SELECT count(*) FROM pending_actions WHERE task <> 'reconcile' OR since <= now()"
            )

            async def all_done() -> bool:
                is_done = await rows.value(pending) == 0
                for name in uids:
                    is_done = is_done and await is_released(admin, name)
                    for number in range(2):
                        is_done = (
                            is_done and await ungated_to(admin, f"{name}-{number}") is not None
                        )
                return is_done

            await eventually(all_done, "it is done")
            assert len(transport.told) >= 3, "the die was not rolled"
        slots = {uid: {s[3]: s[1] for s in await rows.slots(uid)} for uid in uids.values()}
        for name, uid in uids.items():
            for number in range(2):
                made = await admin.get(PODS, "default", f"{name}-{number}")
                expected = slots[uid][made["metadata"]["uid"]]
                assert await ungated_to(admin, f"{name}-{number}") == expected
        await rows.check()


async def test_a_lost_wake_up_costs_a_second_not_a_job(
    database_url: str, cluster: LocalCluster, admin: KubeClient
) -> None:
    """Killed between commit and wake: rows are there, tasks are not. The sweep finds them."""
    async with rows_of(database_url) as rows, worker(database_url, cluster):
        await rows.add_nodes(cpu_node("n0"))
        await eventually(lambda: nothing_waits(rows), "it is done")
        await submit(rows, admin, "a")
        await rows.execute("DELETE FROM procrastinate.procrastinate_jobs WHERE status = 'todo'")
        await eventually(lambda: is_released(admin, "a"), "it is done")


async def test_who_has_resumed_meanwhile_is_not_suspended_unseen(
    database_url: str, cluster: LocalCluster, admin: KubeClient
) -> None:
    """A Job that its author suspended is put back as it was, unless it was resumed by then.

    Suspended again before the controller had seen that, it would look as if it never was.
    """
    async with rows_of(database_url) as rows:
        uid = await submit(rows, admin, "a")
        await admin.patch(JOBS, "default", "a", {"spec": {"suspend": False}})
        await rows.execute(
            "UPDATE fluxjobs SET state = 'Held', held_by = 'author', author_hold = 'suspended',"
            " pinned_to = 'n0', release_at = now()"
        )

        async def is_done() -> bool:
            return bool(await rows.value("SELECT release_at IS NULL FROM fluxjobs"))

        async with worker(database_url, cluster):
            await eventually(is_done, "the release that was pending_actions")
        assert await is_released(admin, "a")
        assert await rows.states() == {uid: "Held"}, "until the controller sees it"


async def test_a_worker_is_told_of_what_is_new(
    database_url: str, cluster: LocalCluster, admin: KubeClient
) -> None:
    """From the rows to the API server without a look: the cycle, and the release that follows."""
    async with rows_of(database_url) as rows:
        await rows.add_nodes(cpu_node("n0", cpu=8))
        async with worker(database_url, cluster, worker_polling_s=60):
            for name in ("first", "second", "third"):
                await submit(rows, admin, name)
                await eventually(partial(is_released, admin, name), "it is let go", timeout_s=30)


async def nothing_waits(rows: Rows) -> bool:
    """Whether all that was due is done."""
    return bool(await rows.value("SELECT NOT EXISTS (SELECT FROM graph_changes)"))


@pytest.mark.long("starts processes of its own, for seconds of processor time")
@pytest.mark.timeout(600)
async def test_postgres_killed_and_restarted_under_a_worker(
    own_postgres: LocalPostgres, cluster: LocalCluster, admin: KubeClient
) -> None:
    """kill -9 of the database, three times: the worker goes on within seconds of its return."""
    async with worker(own_postgres.url, cluster):
        for number in range(3):
            async with rows_of(own_postgres.url) as rows:
                await rows.add_nodes(cpu_node("n0", cpu=8))
                began = time.monotonic()
                await submit(rows, admin, f"before-{number}")
                await eventually(lambda n=number: is_released(admin, f"before-{n}"), "it is done")
                usual = time.monotonic() - began
            await asyncio.to_thread(own_postgres.kill)
            await asyncio.sleep(0.5 * number)
            await asyncio.to_thread(own_postgres.start)
            async with rows_of(own_postgres.url) as rows:
                await submit(rows, admin, f"after-{number}")
                back = time.monotonic()
                await eventually(lambda n=number: is_released(admin, f"after-{n}"), "it is done")
                took = time.monotonic() - back
                assert took < 10 + usual, f"resumed after {took:.1f} s, usual are {usual:.1f} s"
                await rows.check()


async def test_connections_cut_one_by_one(
    database_url: str, cluster: LocalCluster, admin: KubeClient
) -> None:
    """Every connection of the worker is terminated while Jobs come in: none is lost or doubled."""
    cut = (
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name LIKE 'fluxqueue-worker/%' AND datname = current_database()"
        " ORDER BY random() LIMIT 2"
    )
    names = [f"j{n}" for n in range(12)]
    async with rows_of(database_url) as rows, worker(database_url, cluster):
        await rows.add_nodes(cpu_node("n0", cpu=20))
        for name in names:
            await submit(rows, admin, name)
            await rows.fetch(cut)

        async def all_released() -> bool:
            return all([await is_released(admin, name) for name in names])

        await eventually(all_released, "it is done")
        assert await rows.value("SELECT count(*) FROM allocations") == len(names)
        await rows.check()


async def test_the_matcher_role_moves_when_its_holder_stops(
    database_url: str, cluster: LocalCluster, admin: KubeClient
) -> None:
    """Two workers: the one that matches ends, the other matches on, under a higher term."""
    async with rows_of(database_url) as rows:
        await rows.add_nodes(cpu_node("n0", cpu=8))
        async with worker(database_url, cluster, "w1"):
            await submit(rows, admin, "a")
            await eventually(lambda: is_released(admin, "a"), "it is done")
            first = await rows.value("SELECT term FROM leadership WHERE role = 'matcher'")
            stopping = worker(database_url, cluster, "w2")
            await stopping.__aenter__()
        try:
            await submit(rows, admin, "b")
            await eventually(lambda: is_released(admin, "b"), "it is done")
        finally:
            await stopping.__aexit__(None, None, None)
        assert await rows.value("SELECT term FROM leadership WHERE role = 'matcher'") > first


async def test_retention_forgets_only_what_is_over_and_gone(rows_url: Rows) -> None:
    """Old and gone goes. Old but with its object, or still running, stays."""
    rows = rows_url
    await rows.add_nodes(cpu_node("n0"))
    await rows.see(workload("gone"), workload("kept"), workload("runs"))
    await rows.match()
    for uid in ("gone", "kept"):
        await rows.see(workload(uid, wanted=0, result="Completed"))
        await rows.reconcile(uid)
    await rows.execute("UPDATE fluxjobs SET is_gone = true WHERE uid = 'gone'")
    await rows.execute(
        "UPDATE fluxjobs SET ended_at = ended_at - interval '2 days' WHERE ended_at IS NOT NULL"
    )
    await retention.delete_old_rows(rows.database, retention_s=86400)
    assert set(await rows.states()) == {"kept", "runs"}
    await rows.check()


@pytest_asyncio.fixture
async def rows_url(database_url: str) -> AsyncIterator[Rows]:
    """Rows without a cluster."""
    async with rows_of(database_url) as rows:
        yield rows


async def test_failed_starts_are_counted_by_their_reason(
    database_url: str, cluster: LocalCluster, admin: KubeClient
) -> None:
    """``fluxqueue_start_failures_total``, once for each try."""
    before = metrics.START_FAILURES.labels("Unschedulable")._value.get()
    async with rows_of(database_url) as rows, worker(database_url, cluster):
        await rows.add_nodes(cpu_node("n0"))
        uid = await submit(rows, admin, "a", pods=1)

        async def is_let_in() -> bool:
            return await is_released(admin, "a") and await ungated_to(admin, "a-0") == "n0"

        await eventually(is_let_in, "its pod is ungated")
        await rows.execute(
            "UPDATE pods SET is_gated = false, unschedulable = '0/1 nodes are available',"
            " unschedulable_at = now() - interval '1 minute' WHERE workload_uid = :uid",
            uid=uid,
        )
        await rows.execute("UPDATE fluxjobs SET reconcile_at = now() WHERE uid = :uid", uid=uid)

        async def is_counted() -> bool:
            counted = metrics.START_FAILURES.labels("Unschedulable")._value.get()
            return bool(counted == before + 1)

        await eventually(is_counted, "the start has failed once")
