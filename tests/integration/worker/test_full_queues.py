"""Thousands of waiting FluxJobs of one user do not keep a worker from those of another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fluxqueue.db.store.queue_snapshot import QueueHead, Unreadable, lock_queue, unexamined
from fluxqueue.kube.client import KubeClient
from localcluster import LocalCluster
from tests.support.pool_model import request
from tests.support.rows import cpu_node, workload
from tests.support.waiting import eventually
from tests.support.workers import is_released, make_job, rows_of, worker

DEPTH = 6


@pytest.mark.cases_long("a variation")
@pytest.mark.parametrize("is_there_before", [False, True])
async def test_another_user_is_not_hidden(
    database_url: str, cluster: LocalCluster, admin: KubeClient, is_there_before: bool
) -> None:
    """Whether the other's Job comes to a worker that knows the crowd, or to a new one."""
    async with rows_of(database_url) as rows:
        # What the crowd waits for is promised to its first: the other's fits beside it.
        await rows.add_nodes(cpu_node("n0", cpu=4), cpu_node("n1", cpu=2))
        crowd = [workload(f"m{n}", request(cpu=4), user_name="mallory") for n in range(5 * DEPTH)]
        await rows.see(workload("large", request(cpu=4), user_name="mallory"))

        async def has_large() -> bool:
            return (await rows.states())["large"] == "Allocated"

        async def come() -> None:
            seen = replace(await make_job(admin, "probe"), user_name="vera")
            await rows.see(seen)

        async with worker(database_url, cluster, queue_depth=DEPTH):
            await eventually(has_large, "one of the crowd runs")
            await rows.see(*crowd)
            if not is_there_before:
                await come()
                await eventually(lambda: is_released(admin, "probe"), "the other's starts")
        if is_there_before:
            await come()
            async with worker(database_url, cluster, "w2", queue_depth=DEPTH):
                await eventually(lambda: is_released(admin, "probe"), "the other's starts")


async def test_new_jobs_of_one_user_hide_no_new_job_of_another(database_url: str) -> None:
    """However many came before it, and with as little as a cycle may look at."""
    async with rows_of(database_url) as rows:
        await rows.see(*(workload(f"m{n}", user_name="mallory") for n in range(5 * DEPTH)))
        await rows.see(workload("probe", user_name="vera"))
        view = QueueHead(depth=DEPTH, examined_max=DEPTH, have_nodes_changed=False)
        async with rows.database.begin() as tx:
            locked = await lock_queue(tx, view)
            found = await unexamined(tx, {}, Unreadable(), locked, limit=DEPTH)
        assert len(found) == DEPTH
        assert [one.job.uid for one in found if one.job.user == "vera"] == ["probe"]
