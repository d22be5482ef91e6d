"""Everything that reads the queue's rows in operation, by what people call it.

For tests and benchmarks that say what each costs. The rows of ``populate`` are expected, those of
``tests.support.retained`` may be there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from fluxqueue.db import retention
from fluxqueue.db.database import Transaction
from fluxqueue.db.reading import accounting
from fluxqueue.db.reading.fluxjobs import living
from fluxqueue.db.reading.gauges import read_gauges
from fluxqueue.db.reading.snapshot import drift, read_rows
from fluxqueue.db.store.fair_shares import read_shares
from fluxqueue.db.store.known import read_known
from fluxqueue.db.store.outlook import read_promises, read_told
from fluxqueue.db.store.pending_actions import sweep
from fluxqueue.db.store.queues import read_figures
from fluxqueue.db.store.resync_rows import read_present, read_uids
from tests.support.pool_model import request
from tests.support.rows import Rows, cpu_node, pod, workload
from tests.support.steering import hold

DAY_S = 86_400
PAGE = 2

Reader = Callable[[Rows], Awaitable[object]]


def _in_transaction(read: Callable[[Transaction], Awaitable[object]]) -> Reader:
    async def run(rows: Rows) -> None:
        async with rows.database.begin() as tx:
            await read(tx)

    return run


async def _one_life(rows: Rows) -> None:
    """Submitted, allocated, released, run, ended, gone."""
    await rows.see(workload("new"))
    await rows.match()
    for phase, is_gated in (("Pending", True), ("Running", False), ("Succeeded", False)):
        await rows.see(
            workload("new", pods=(pod("p", phase, is_gated=is_gated, node="n0"),))
            if phase == "Running"
            else workload("new", pods=(pod("p", phase, is_gated=is_gated),))
        )
        await rows.reconcile("new")
    await rows.see(workload("new", wanted=0, result="Completed"))
    await rows.reconcile("new")
    await rows.see(workload("new", wanted=0, result="Completed"))


async def _resync(rows: Rows) -> None:
    async with rows.database.begin() as tx:
        uids = await read_uids(tx)
        for start in range(0, len(uids), PAGE):
            await read_present(tx, uids[start : start + PAGE])


READERS: dict[str, Reader] = {
    "the life of a FluxJob": _one_life,
    "a cycle": lambda rows: rows.match(),
    "the sweep": _in_transaction(sweep),
    "the gauges": lambda rows: read_gauges(rows.database),
    "drift": lambda rows: drift(rows.database),
    "check": lambda rows: read_rows(rows.database),
    "the queues' counts": lambda rows: read_figures(rows.database),
    "fair shares": _in_transaction(lambda tx: read_shares(tx, ["default"])),
    "a resync, page after page": _resync,
    "the observer's start": _in_transaction(read_known),
    "promises": _in_transaction(read_promises),
    "estimates": _in_transaction(read_told),
    "fluxqueue db list": lambda rows: living(rows.database),
    "a hold by hand": lambda rows: hold(rows.database, "default", ["waits-1"], "alice"),
    "fluxqueue db history of a name": lambda rows: accounting.history(
        rows.database, "team-7", "old-7"
    ),
    "fluxqueue db history of a number": lambda rows: accounting.history(
        rows.database, "team-7", "7"
    ),
    "fluxqueue db accounting of a name": lambda rows: accounting.runs(
        rows.database, "team-7", "old-7"
    ),
    "fluxqueue db accounting of a number": lambda rows: accounting.runs(
        rows.database, "team-7", "7"
    ),
    "retention, nothing is old": lambda rows: retention.delete_old_rows(
        rows.database, retention_s=30 * DAY_S
    ),
}


async def populate(rows: Rows) -> None:
    """A few FluxJobs that run, a few that wait, and fair share."""
    await rows.add_nodes(*(cpu_node(f"n{number}") for number in range(4)))
    await rows.see(*(workload(f"runs-{number}") for number in range(4)))
    await rows.see(*(workload(f"waits-{n}", request(cpu=4, slots=4)) for n in range(4)))
    await rows.match()
    await rows.execute(
        "INSERT INTO fair_shares (queue, user_name, used, factor, points, computed_at)"
        " VALUES ('default', 'user-1', 0, 1, 0, now())"
    )
