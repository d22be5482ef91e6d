"""Dependencies of waiting FluxJobs: judged under locks, and released when all are satisfied.

``reconciling`` calls it. Triggers (``sql/31_dependencies.sql``) keep the edges. They defer a look
at a dependent whenever something that it waits for has changed. The present rows decide here, so
looking twice or late changes nothing. The caller has locked the dependents and their targets.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fluxqueue.db.database import Transaction
from fluxqueue.db.queries import Q
from fluxqueue.db.reader import columns
from fluxqueue.db.store.workload_rows import WorkloadRow
from fluxqueue.db.task_queue import TaskName
from fluxqueue.fluxjob.circles import shortest_circles
from fluxqueue.fluxjob.dependency import (
    DependencyKind,
    DependencyOutcome,
    DependencyVerdict,
    Edge,
    Target,
    judge,
    outcome,
)
from fluxqueue.fluxjob.holders import BY_DEPENDENCY
from fluxqueue.fluxjob.lifecycle import on_judged
from fluxqueue.fluxjob.states import FluxJobState

WALKED_MAX = 300
"""The most dependencies that are followed for circles, beside those of the jobs themselves.

A circle behind more of them is not found. Its jobs wait, as they do in any case.
"""


class EdgeRow(NamedTuple):
    """A dependency, and the present state of its target."""

    uid: str
    number: int
    kind: str
    job: str
    is_satisfied: bool
    jobid: int | None
    state: str | None
    has_started: bool


async def look_at(tx: Transaction, rows: Sequence[WorkloadRow]) -> None:
    """Bring waiting FluxJobs up to what their edges and begin times say now."""
    if not rows:
        return
    uids = [row.uid for row in rows]
    found = await tx.fetch(Q.edges_of, EdgeRow, uids=uids)
    turns = {one.uid for one in found if one.kind == "singleton" and not one.is_satisfied}
    if turns and (moved := await tx.fetch(Q.follow_singletons, str, uids=sorted(turns))):
        # The new target is not locked, and may end at this moment: look again.
        await tx.defer(TaskName.RECONCILE, set(moved))
        found = await tx.fetch(Q.edges_of, EdgeRow, uids=uids)
    edges: dict[str, list[tuple[int, Edge]]] = defaultdict(list)
    for one in found:
        edges[one.uid].append((one.number, _edge(one)))
    await _remember_satisfied(tx, edges)
    circles = await _circles(tx, edges)
    for row in rows:
        mine = [edge for _, edge in edges[row.uid]]
        circle = circles.get(row.uid, [])
        verdict = judge(mine, [name for _, name in circle])
        if await _store(tx, row, verdict) and verdict.is_never:
            # The others of the circle are held too, each when it is looked at: they are not locked
            # here.
            await tx.defer(TaskName.RECONCILE, {uid for uid, _ in circle} - {row.uid})


def _edge(row: EdgeRow) -> Edge:
    target = None
    if row.state is not None and row.jobid is not None:
        target = Target(row.jobid, FluxJobState(row.state), row.has_started)
    return Edge(DependencyKind(row.kind), row.job, target, row.is_satisfied)


async def _remember_satisfied(
    tx: Transaction, edges: Mapping[str, Sequence[tuple[int, Edge]]]
) -> None:
    """Store satisfied edges. They stay satisfied, even if what had started is requeued later."""
    new = [
        (uid, number)
        for uid, mine in sorted(edges.items())
        for number, edge in mine
        if not edge.is_satisfied and outcome(edge) is DependencyOutcome.SATISFIED
    ]
    if new:
        await tx.execute(
            Q.remember_satisfied,
            uids=[uid for uid, _ in new],
            numbers=[number for _, number in new],
        )


async def _circles(
    tx: Transaction, edges: Mapping[str, Sequence[tuple[int, Edge]]]
) -> dict[str, list[tuple[str, str]]]:
    """Return the shortest circle of each FluxJob that is in one: UIDs and names."""
    waiting = {
        uid: mine
        for uid, mine in edges.items()
        if any(outcome(edge) is DependencyOutcome.WAITING for _, edge in mine)
    }
    # Only a job that another one waits for can be in a circle.
    uids = sorted(await tx.fetch(Q.waited_for, str, uids=sorted(waiting)))
    if not uids:
        return {}
    circles = shortest_circles(uids, await _walk(tx, uids, sum(len(waiting[uid]) for uid in uids)))
    members = sorted({uid for circle in circles.values() for uid in circle})
    if not members:
        return {}
    named = await tx.fetch(Q.names_of, columns, uids=members)
    names = {uid: name for uid, _, _, name in named}
    return {uid: [(one, names[one]) for one in circle] for uid, circle in circles.items()}


async def _walk(tx: Transaction, uids: Sequence[str], own: int) -> list[tuple[str, str]]:
    """Return dependencies that contain the circles of some jobs: (waiting job, its target).

    ``own``: how many dependencies the jobs have themselves.
    """
    limit = WALKED_MAX + own
    # A circle is whole on both sides of a job. In a chain that grows, few jobs wait for a new one
    # while thousands are ahead of it.
    edges = await tx.fetch(Q.dependencies_behind, columns, uids=uids, limit=limit)
    if len(edges) == limit:
        edges = await tx.fetch(Q.dependencies_ahead, columns, uids=uids, limit=limit)
    return edges


async def _store(tx: Transaction, row: WorkloadRow, verdict: DependencyVerdict) -> bool:
    """Write what follows for one FluxJob, and return whether anything has changed.

    If no dependency is left, the row's trigger (``fluxjob_with_block``) fills in the begin time. It
    also fills in the reason of a blocked FluxJob.
    """
    judged = on_judged(
        FluxJobState(row.state),
        row.held_by,
        is_blocked=bool(verdict.reason),
        is_never=verdict.is_never,
        is_early=row.is_early,
        is_retry=row.is_retry,
    )
    before = (row.state, row.held_by, row.blocked_by)
    is_same_reason = judged.blocked_by != BY_DEPENDENCY or row.blocked_reason == verdict.reason
    if before == (str(judged.state), judged.held_by, judged.blocked_by) and is_same_reason:
        return False
    await tx.execute(
        Q.store_verdict,
        uid=row.uid,
        state=str(judged.state),
        held_by=judged.held_by,
        blocked_by=judged.blocked_by,
        reason=verdict.reason,
    )
    return True
