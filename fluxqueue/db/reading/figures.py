"""Figures for people, read from the rows: FluxJobs as a table, nodes as bars, a run in numbers.

The demo calls it, and so does other code that shows the queue. Reads only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fluxqueue.db.database import Database
from fluxqueue.db.tables import SHOWN_STATE


@dataclass(frozen=True, slots=True)
class FluxJobLine:
    """One FluxJob as shown. ``nodes`` are those of its last allocation, times are in seconds.

    ``waited_s`` counts from submission to allocation (or its end, or now). ``ran_s`` counts from
    then to its end (or now). None before.
    """

    uid: str
    jobid: int
    name: str
    state: str
    reason: str
    size: int
    nodes: Sequence[str]
    waited_s: float
    ran_s: float | None


@dataclass(frozen=True, slots=True)
class NodeFigures:
    """One node's cpu, in millicores."""

    node: str
    capacity_m: int
    allocated_m: int
    foreign_m: int


@dataclass(frozen=True, slots=True)
class RunFigures:
    """What the rows say of all FluxJobs of one namespace; times in seconds.

    ``makespan_s``: first submission to last end, of those that ran. ``mean_wait_s``: submission to
    allocation. ``leaked_slots``: slots still counted although their FluxJob has ended.
    """

    states: Mapping[str, int]
    makespan_s: float
    mean_wait_s: float
    leaked_slots: int

    @property
    def jobs(self) -> int:
        """All FluxJobs."""
        return sum(self.states.values())


async def fluxjob_lines(database: Database, namespace: str) -> list[FluxJobLine]:
    """All FluxJobs of a namespace in order of submission."""
    async with database.begin() as tx:
        rows = await tx.fetch(
            f"""
            SELECT f.uid, f.jobid, f.workload_name AS name, {SHOWN_STATE} AS state, f.reason,
                   f.size,
                   coalesce(s.nodes, '[]'::jsonb) AS nodes,
                   extract(epoch FROM coalesce(f.allocated_at, f.ended_at, now())
                                      - f.submitted_at)::float8 AS waited_s,
                   extract(epoch FROM coalesce(f.ended_at, now())
                                      - f.allocated_at)::float8 AS ran_s
            FROM fluxjobs f LEFT JOIN LATERAL (
                SELECT jsonb_agg(DISTINCT s.node) AS nodes
                FROM allocation_slots s WHERE s.allocation_id = (
                    SELECT max(a.id) FROM allocations a WHERE a.uid = f.uid)) s ON true
            WHERE f.namespace = :namespace ORDER BY f.jobid
            """,  # noqa: S608 constants
            namespace=namespace,
        )
    return [FluxJobLine(**row) for row in rows]


async def node_lines(database: Database) -> list[NodeFigures]:
    """Cpu of every node, from the view ``node_usage``."""
    async with database.begin() as tx:
        rows = await tx.fetch(
            "SELECT node, capacity::bigint AS capacity_m, allocated::bigint AS allocated_m,"
            " least(foreign_used, 1::bigint << 62)::bigint AS foreign_m"
            " FROM node_usage WHERE resource = 'cpu' ORDER BY length(node), node"
        )
    return [NodeFigures(**row) for row in rows]


async def run_figures(database: Database, namespace: str) -> RunFigures:
    """The numbers at the end of a run."""
    async with database.begin() as tx:
        states = await tx.fetch(
            "SELECT state, count(*) AS count FROM fluxjobs WHERE namespace = :namespace"
            " GROUP BY state",
            namespace=namespace,
        )
        times = await tx.fetch_one(
            """
            SELECT coalesce(extract(epoch FROM max(ended_at) - min(submitted_at)), 0)::float8
                       AS makespan_s,
                   coalesce(extract(epoch FROM avg(allocated_at - submitted_at)), 0)::float8
                       AS mean_wait_s
            FROM fluxjobs WHERE namespace = :namespace AND allocated_at IS NOT NULL
            """,
            namespace=namespace,
        )
        leaked = await tx.fetch_one(
            """
            SELECT count(*) AS slots FROM allocation_slots s
            JOIN allocations a ON a.id = s.allocation_id JOIN fluxjobs f USING (uid)
            WHERE f.namespace = :namespace AND f.ended_at IS NOT NULL AND s.state <> 'returned'
            """,
            namespace=namespace,
        )
    assert times is not None, "an aggregate gives one row"
    assert leaked is not None, "an aggregate gives one row"
    return RunFigures(
        states={row["state"]: row["count"] for row in states},
        makespan_s=times["makespan_s"],
        mean_wait_s=times["mean_wait_s"],
        leaked_slots=leaked["slots"],
    )
