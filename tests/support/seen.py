"""Queues and workloads as the controller sees them, written to the rows."""

from __future__ import annotations

from typing import Any

from fluxqueue.db.store.queues import QueueSeen, save_queues
from fluxqueue.fluxjob.observation import WorkloadSeen
from fluxqueue.jobspec import Jobspec
from fluxqueue.policy.queue_rules import read_rules as rules_of
from tests.support.pool_model import request
from tests.support.rows import Rows, workload


def queue(name: str, *, namespaces: list[str] | None = None, **spec: Any) -> QueueSeen:
    """A FluxQueue as the controller sees it."""
    return QueueSeen(
        name=name,
        uid=f"uid-{name}",
        generation=hash(str(spec)) & 0xFFFF,
        spec=spec,
        namespaces=namespaces,
        rules=rules_of(name, spec),
    )


async def see_queues(rows: Rows, *seen: QueueSeen, gone: tuple[str, ...] = ()) -> None:
    """Write queues."""
    async with rows.database.begin() as tx:
        await save_queues(tx, seen, gone)


def job(uid: str, name: str, asked: Jobspec | None = None, **more: Any) -> WorkloadSeen:
    """A workload in a queue."""
    return workload(uid, asked or request(cpu=1, duration_s=60), queue=name, **more)


async def told(rows: Rows, uid: str) -> tuple[str, str]:
    """State and reason."""
    (row,) = await rows.fetch("SELECT state, reason FROM fluxjobs WHERE uid = :uid", uid=uid)
    return row["state"], row["reason"]
