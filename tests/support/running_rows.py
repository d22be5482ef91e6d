"""Rows of jobs that run with all their pods."""

from __future__ import annotations

from fluxqueue.db.store.desired_state import Released, finish, read_pending_releases
from tests.support.pool_model import request
from tests.support.rows import Rows, cpu_node, pod, workload


async def run(rows: Rows, uid: str = "a", pods: int = 1, **more: object) -> None:
    """A FluxJob that runs with all its pods."""
    await rows.add_nodes(cpu_node("n0"))
    count = request(pods, cpu=1)
    gated = tuple(pod(f"{uid}-{n}") for n in range(pods))
    await rows.see(workload(uid, count, pods=gated, is_suspended=False, generation=2, **more))
    await rows.match()
    await rows.reconcile(uid)
    await let_go(rows, uid)
    await see_running(rows, uid, pods, **more)


async def let_go(rows: Rows, uid: str) -> None:
    """What the release writes down: the generation that it made."""
    (pending,) = await read_pending_releases(rows.database, [uid])
    await finish(rows.database, [Released(pending, is_made=True, generation=2)])


async def see_running(rows: Rows, uid: str = "a", pods: int = 1, **more: object) -> None:
    """All its pods are seen running."""
    running = tuple(pod(f"{uid}-{n}", "Running", is_gated=False, node="n0") for n in range(pods))
    seen = {"is_suspended": False, "generation": 2} | more
    await rows.see(workload(uid, request(pods, cpu=1), pods=running, **seen))
    await rows.reconcile(uid)


async def end_run(
    rows: Rows, uid: str, held_s: int, result: str = "Completed", **more: object
) -> None:
    """A FluxJob that ends after it held its slots so long."""
    sql = "UPDATE fluxjobs SET allocated_at = now() - make_interval(secs => :s) WHERE uid = :uid"
    await rows.execute(sql, s=held_s, uid=uid)
    await rows.see(
        workload(uid, request(1, cpu=1), is_suspended=False, generation=2, result=result, **more)
    )
    await rows.reconcile(uid)
