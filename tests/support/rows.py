"""Rows without a cluster: builders of observations, a matcher, and the invariants of the rows.

For tests on real Postgres that need no API server: what the controller would have seen is said by
hand, and what the worker would have asked of the API server is read from the rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, cast

from fluxqueue.clock import Clock, ManualClock
from fluxqueue.db import leadership
from fluxqueue.db.database import Database
from fluxqueue.db.queries import Q
from fluxqueue.db.store import desired_state
from fluxqueue.db.store.cluster_rows import save_nodes
from fluxqueue.db.store.matcher_rows import load_graph
from fluxqueue.db.store.observations import save_workloads
from fluxqueue.db.store.reconciling import Ungate, reconcile
from fluxqueue.db.task_queue import TaskName
from fluxqueue.fluxjob.facts import WorkloadFacts
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.observation import WorkloadSeen
from fluxqueue.fluxjob.pod_facts import PodFact
from fluxqueue.fluxjob.request import CPU
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.jobspec import Jobspec
from fluxqueue.jobspec.render import render
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.config import ClusterConfig
from fluxqueue.process.settings import Settings
from fluxqueue.worker.context import WorkerContext
from fluxqueue.worker.schedule import ROLE, CycleRunner
from tests.support.pool_model import request
from tests.support.sql import dicts

Row = dict[str, Any]

NOWHERE = ClusterConfig("http://127.0.0.1:9")
"""No API server answers there: for code that must not ask one."""


def settings_for(url: str, **more: Any) -> Settings:
    """Settings of a test's process."""
    return Settings(database_url=url, db_pool_timeout_s=30.0, matcher_lease_s=2.0, **more)


def workload(uid: str, asked: Jobspec | None = None, **more: Any) -> WorkloadSeen:
    """A BatchJob as the controller sees it. ``more`` overrides any field or fact."""
    asked = asked or request(cpu=1)
    facts = WorkloadFacts(
        is_suspendable=True,
        replaces_pods=True,
        is_priority_granted=True,
        is_limited=bool(asked.duration_s),
        wanted=asked.size,
        is_suspended=True,
    )
    seen = WorkloadSeen(
        uid=uid,
        namespace="default",
        name=f"{uid}-job",
        workload_kind="Job",
        workload_name=uid,
        flux_uid=f"flux-{uid}",
        user_name="",
        queue="default",
        held_by=None,
        request=render(asked),
        size=asked.size,
        duration_s=int(asked.duration_s) or None,
        begin_at_s=None,
        facts=facts,
    )
    return but(seen, **more)


def but(seen: WorkloadSeen, **more: Any) -> WorkloadSeen:
    """An observation with other fields and facts."""
    facts = {name: more.pop(name) for name in FACTS & more.keys()}
    return replace(seen, **{"facts": replace(seen.facts, **facts), **more})


FACTS = {one.name for one in fields(WorkloadFacts)}


def pod(
    uid: str,
    phase: str = "Pending",
    *,
    is_gated: bool = True,
    is_terminating: bool = False,
    index: int | None = None,
    node: str | None = None,
) -> PodFact:
    """A pod of a workload."""
    return PodFact(uid, uid, phase, is_gated, is_terminating, node, index)


def cpu_node(name: str, cpu: int = 4, **more: Any) -> NodeFact:
    """A node with a hostname label that is its name."""
    labels = {"kubernetes.io/hostname": name}
    return NodeFact(name, f"uid-{name}", {CPU: cpu}, labels, **more)


@dataclass
class Rows:
    """One database and a matcher over it."""

    database: Database
    clock: Clock = field(default_factory=ManualClock)
    settings: Settings = field(default_factory=Settings)
    matcher: CycleRunner | None = None
    term: int = 0

    def context(self, identity: str = "test") -> WorkerContext:
        """A worker's context without a cluster: nothing here may call the API server."""
        return WorkerContext(
            self.database, KubeClient(NOWHERE), self.settings, self.clock, identity
        )

    async def fetch(self, sql: str, **values: Any) -> list[Row]:
        """Run one statement in a transaction of its own."""
        async with self.database.begin() as tx:
            return await dicts(tx, sql, **values)

    async def execute(self, sql: str, **values: Any) -> None:
        """Run one statement in a transaction of its own."""
        async with self.database.begin() as tx:
            await tx.execute(sql, **values)

    async def value(self, sql: str, **values: Any) -> Any:
        """The one value of the one row."""
        (row,) = await self.fetch(sql, **values)
        (value,) = row.values()
        return value

    async def wanted(self, uid: str) -> desired_state.DesiredState | None:
        """What the row wants of its object, whether a release is pending or not."""
        any_row, _, condition = Q.pending_releases.partition(" AND f.release_at IS NOT NULL")
        assert condition, "the statement no longer has its condition"
        async with self.database.begin() as tx:
            (row,) = await tx.fetch(any_row, desired_state.ReleaseRow, uids=[uid])
        return desired_state._desired(row)

    async def see(self, *seen: WorkloadSeen) -> None:
        """Write observations."""
        async with self.database.begin() as tx:
            await save_workloads(tx, seen)

    async def see_after(self, before: dict[str, WorkloadSeen], *seen: WorkloadSeen) -> None:
        """Write observations of a controller that has written ``before``, by UID."""
        async with self.database.begin() as tx:
            await save_workloads(tx, seen, before=before)

    async def add_nodes(self, *present: NodeFact, gone: tuple[str, ...] = ()) -> None:
        """Write nodes."""
        async with self.database.begin() as tx:
            await save_nodes(tx, present, gone)

    async def match(self) -> None:
        """Run the matcher until it has nothing more to decide."""
        if self.matcher is None:
            await self.begin_term()
        assert self.matcher is not None
        await self.matcher.run()

    async def begin_term(self) -> None:
        """A new matcher under a new term, with nothing in memory."""
        self.term = await leadership.seize(self.database, ROLE, f"matcher-{self.term}")
        self.matcher = CycleRunner(self.context(), self.term)

    async def reconcile(self, *uids: str) -> list[Ungate]:
        """Settle workloads. The pods that must be released."""
        async with self.database.begin() as tx:
            return (await reconcile(tx, uids)).ungates

    async def take_senders_for_dead(self) -> None:
        """Let the time pass in which pods are left to the worker that was about to release them."""
        await self.execute(
            "UPDATE pods SET sent_at = now() - interval '10 s'"
            " WHERE sent_at > now() - interval '10 s'"
        )

    async def states(self) -> dict[str, str]:
        """State by UID."""
        rows = await self.fetch("SELECT uid, state FROM fluxjobs ORDER BY jobid")
        return {row["uid"]: row["state"] for row in rows}

    async def asked(self, task: TaskName) -> list[str]:
        """UIDs that the waiting tasks of one name are for, those scheduled for later too."""
        rows = await self.fetch(
            "SELECT u.uid FROM procrastinate.procrastinate_jobs t,"
            " jsonb_array_elements_text(t.args -> 'uids') WITH ORDINALITY AS u (uid, n)"
            " WHERE t.task_name = :task AND t.status = 'todo' ORDER BY t.id, u.n",
            task=task.value,
        )
        return [row["uid"] for row in rows]

    async def take_tasks(self, *tasks: TaskName) -> list[str]:
        """Take what is due from the waiting tasks: the UIDs that they are for, each once."""
        rows = await self.fetch(
            "DELETE FROM procrastinate.procrastinate_jobs WHERE status = 'todo'"
            " AND coalesce(scheduled_at <= now(), true)"
            " AND task_name = ANY(CAST(:tasks AS text[])) RETURNING args",
            tasks=[task.value for task in tasks],
        )
        return sorted({uid for row in rows for uid in row["args"]["uids"]})

    async def is_cycle_asked(self) -> bool:
        """Whether a cycle is to come."""
        return bool(
            await self.value(
                "SELECT EXISTS (SELECT FROM procrastinate.procrastinate_jobs"
                " WHERE task_name = 'schedule' AND status = 'todo')"
            )
        )

    async def forget_tasks(self) -> None:
        """Lose all tasks, as no database should."""
        await self.execute("DELETE FROM procrastinate.procrastinate_jobs")

    async def slots(self, uid: str) -> list[tuple[int, str, str, str | None]]:
        """Slots of the live allocation: number, node, state, pod."""
        rows = await self.fetch(
            "SELECT number, node, s.state, pod_uid FROM allocation_slots s JOIN allocations a"
            " ON a.id = s.allocation_id WHERE a.uid = :uid AND a.is_live ORDER BY number",
            uid=uid,
        )
        return [(row["number"], row["node"], row["state"], row["pod_uid"]) for row in rows]

    async def drift(self) -> list[tuple[str, str]]:
        """Broken invariants, as SQL finds them."""
        rows = await self.fetch("SELECT invariant, subject FROM drift ORDER BY 1, 2")
        return [(row["invariant"], row["subject"]) for row in rows]

    async def check(self) -> None:
        """All invariants of the rows that hold after every transaction."""
        drift = await self.drift()
        assert drift == [], drift
        assert await self.fetch(_HIDDEN_DRIFT) == []


_HIDDEN_DRIFT = """
SELECT 'slots of a final FluxJob' AS what, f.uid FROM fluxjobs f
JOIN allocations a USING (uid) JOIN allocation_slots s ON s.allocation_id = a.id
WHERE f.state IN ('Completed', 'Failed', 'Cancelled') AND s.state <> 'returned'
UNION ALL
SELECT 'reservation of a FluxJob that is not Reserved', f.uid FROM reservations r
JOIN fluxjobs f USING (uid) WHERE f.state <> 'Reserved'
UNION ALL
SELECT 'Reserved without a reservation', f.uid FROM fluxjobs f
WHERE f.state = 'Reserved' AND NOT EXISTS (SELECT FROM reservations r WHERE r.uid = f.uid)
UNION ALL
SELECT 'two holders of one pod', min(s.pod_uid) FROM allocation_slots s
WHERE s.pod_uid IS NOT NULL GROUP BY s.pod_uid HAVING count(*) > 1
UNION ALL
SELECT 'two slots of one index', a.uid FROM allocations a
JOIN allocation_slots s ON s.allocation_id = a.id
WHERE a.is_live AND s.completion_index IS NOT NULL
GROUP BY a.uid, s.completion_index HAVING count(*) > 1
UNION ALL
SELECT 'free is not capacity minus allocated minus foreign', node FROM node_usage
WHERE free <> capacity - allocated - foreign_used
"""


def amounts(pools: ShareLedger) -> dict[tuple[str, str], tuple[int, int, int]]:
    """Capacity, foreign and booked by node and resource, zeros left out: equal pools are equal."""
    found = {}
    for name, row in pools.rows.items():
        for resource, column in pools.columns.items():
            one = tuple(
                int(array[row, column]) for array in (pools.capacity, pools.foreign, pools.booked)
            )
            if any(one):
                found[name, resource] = cast("tuple[int, int, int]", one)
    return found


async def rebuilt(rows: Rows) -> ShareLedger:
    """A ledger read anew, leaving the recorded changes for the matcher."""
    pools = ShareLedger()
    async with rows.database.begin() as tx:
        await tx.execute("SAVEPOINT before")
        await load_graph(tx, pools)
        await tx.execute("ROLLBACK TO SAVEPOINT before")
    return pools
