"""Named queues in rows: what administrators want, what runs in each, and what it shows.

The controller calls ``save_queues``, and the worker that holds the matcher's role the rest. The
cycle obeys the row. The FluxQueue object says what its administrator wants.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from fluxqueue.db.database import Database, Transaction
from fluxqueue.db.store.observations import tell_matcher
from fluxqueue.db.tables import LIVING
from fluxqueue.policy.fair_share import to_points
from fluxqueue.policy.limits import Amounts
from fluxqueue.policy.queue_rules import DEFAULT_QUEUE, PLANNED_S, QueueRules, rules_or_none

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QueueSeen:
    """A FluxQueue as the controller sees it now.

    ``rules`` is None where the spec cannot be used, and ``fault`` says why. The row then keeps the
    spec it has. ``namespaces`` are those allowed with selectors resolved, None for all.
    """

    name: str
    uid: str
    generation: int
    spec: Mapping[str, Any]
    namespaces: Sequence[str] | None
    rules: QueueRules | None
    fault: str | None = None


_SAVE = """
INSERT INTO fluxqueues AS q (name, uid, generation, spec, namespaces, queue_depth, priority,
                             min_priority, max_priority, newcomer_points, fault)
SELECT name, uid, generation, spec, namespaces, queue_depth, coalesce(priority, 0), min_priority,
       max_priority, newcomer_points, fault
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
    name text, uid text, generation bigint, spec jsonb, namespaces jsonb, queue_depth int,
    priority int, min_priority int, max_priority int, newcomer_points int, fault text)
WHERE fault IS NULL
ON CONFLICT (name) DO UPDATE SET
    uid = excluded.uid, generation = excluded.generation, spec = excluded.spec,
    namespaces = excluded.namespaces, queue_depth = excluded.queue_depth,
    priority = excluded.priority, min_priority = excluded.min_priority,
    max_priority = excluded.max_priority, newcomer_points = excluded.newcomer_points,
    fault = excluded.fault
WHERE (q.uid, q.generation, q.spec, q.namespaces, q.fault)
    IS DISTINCT FROM (excluded.uid, excluded.generation, excluded.spec, excluded.namespaces, NULL)
RETURNING name
"""

_SAVE_FAULTS = """
UPDATE fluxqueues q SET fault = r.fault, generation = r.generation
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (name text, generation bigint, fault text)
WHERE q.name = r.name AND r.fault IS NOT NULL AND q.fault IS DISTINCT FROM r.fault
"""


async def save_queues(tx: Transaction, seen: Sequence[QueueSeen], gone: Iterable[str]) -> None:
    """Write queues as they are, delete those that are gone, and notify the matcher of changes.

    The queue ``default`` always stays. The controller makes its object again.
    """
    rows = [_to_row(one) for one in seen]
    changed = await tx.fetch(_SAVE, rows=orjson.dumps(rows).decode())
    await tx.execute(_SAVE_FAULTS, rows=orjson.dumps(rows).decode())
    removed = await tx.fetch(
        "DELETE FROM fluxqueues WHERE name = ANY(CAST(:gone AS text[])) RETURNING name",
        gone=[name for name in gone if name != DEFAULT_QUEUE],
    )
    await tell_matcher(tx, "queue", [row["name"] for row in (*changed, *removed)])


def _to_row(one: QueueSeen) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": one.name,
        "uid": one.uid,
        "generation": one.generation,
        "spec": dict(one.spec),
        "namespaces": None if one.namespaces is None else list(one.namespaces),
        "fault": one.fault,
    }
    if one.rules is not None:
        row |= {
            "queue_depth": one.rules.queue_depth,
            "priority": one.rules.priority,
            "min_priority": one.rules.min_priority,
            "max_priority": one.rules.max_priority,
            "newcomer_points": to_points(1.0, one.rules),
        }
    return row


async def queue_names(tx: Transaction) -> list[str]:
    """Return the names of all queues that have a row, for a controller that starts."""
    return [row["name"] for row in await tx.fetch("SELECT name FROM fluxqueues")]


async def read_rules(tx: Transaction, planned_s: int = PLANNED_S) -> dict[str, QueueRules]:
    """Read the rules of all queues. A spec that only another release can use counts as empty.

    ``planned_s`` is what the site plans for jobs without a duration (seconds).
    """
    rows = await tx.fetch("SELECT name, spec, namespaces FROM fluxqueues")
    found = {}
    for row in rows:
        allowed = _namespaces(row["name"], row["namespaces"])
        rules = rules_or_none(row["name"], row["spec"], allowed, planned_s)
        found[row["name"]] = rules or QueueRules(
            row["name"], namespaces=allowed, planned_s=planned_s
        )
    return found


def _namespaces(queue: str, stored: Any) -> frozenset[str] | None:
    """Return the allowed namespaces. A damaged value allows none: others must not use the queue."""
    if stored is None:
        return None
    if isinstance(stored, list) and all(isinstance(one, str) for one in stored):
        return frozenset(stored)
    extra = {"action": "cycle", "step": "queue", "key": queue}
    logger.error("namespaces of a queue cannot be read", extra=extra)
    return frozenset()


async def read_use(tx: Transaction, queues: Collection[str]) -> dict[tuple[str, str], Amounts]:
    """Read what holds resources, by queue and user, only of ``queues``, because it is counted.

    A node that two FluxJobs share counts for each of them. Each pod of a sweep counts as a job.
    """
    if not queues:
        return {}
    rows = await tx.fetch(
        """
        SELECT f.queue, f.user_name,
               sum(CASE WHEN f.is_sweep THEN s.number ELSE 1 END)::bigint AS jobs,
               sum(s.nodes)::bigint AS nodes,
               least(sum(s.cpu_m), 1::bigint << 62)::bigint AS cpu_m
        FROM allocations a JOIN fluxjobs f USING (uid) CROSS JOIN LATERAL (
            SELECT count(DISTINCT s.node) AS nodes, count(*) AS number,
                   coalesce(sum(CASE WHEN jsonb_typeof(s.resources -> 'cpu') = 'number'
                                     THEN (s.resources ->> 'cpu')::numeric END), 0) AS cpu_m
            FROM allocation_slots s WHERE s.allocation_id = a.id AND s.state <> 'returned') s
        WHERE a.is_live AND f.queue = ANY(CAST(:queues AS text[]))
        GROUP BY 1, 2
        """,
        queues=sorted(queues),
    )
    return {
        (row["queue"], row["user_name"]): Amounts(row["jobs"], row["nodes"], row["cpu_m"])
        for row in rows
    }


@dataclass(frozen=True, slots=True)
class QueueFigures:
    """What a FluxQueue shows of itself."""

    name: str
    uid: str | None
    generation: int
    fault: str | None
    spec: Mapping[str, Any]
    pending: int
    running: int
    held: int
    unsatisfiable: int

    def counted_as(self, other: QueueFigures) -> QueueFigures:
        """Return the same with the counts of ``other``."""
        return replace(
            self,
            pending=other.pending,
            running=other.running,
            held=other.held,
            unsatisfiable=other.unsatisfiable,
        )


async def last_transition(database: Database) -> int:
    """Return a number that grows with every transition of any FluxJob.

    While it is unchanged, nothing needs counting anew.
    """
    async with database.begin() as tx:
        row = await tx.fetch_one("SELECT coalesce(max(id), 0) AS last FROM history")
    return 0 if row is None else int(row["last"])


async def read_figures(database: Database, *, with_counts: bool = True) -> list[QueueFigures]:
    """Read each queue that has an object, and count its FluxJobs."""
    async with database.begin() as tx:
        rows = await tx.fetch(
            f"""
            SELECT q.name, q.uid, q.generation, q.fault, q.spec,
                   coalesce(c.pending, 0) AS pending, coalesce(c.running, 0) AS running,
                   coalesce(c.held, 0) AS held, coalesce(c.unsatisfiable, 0) AS unsatisfiable
            FROM fluxqueues q LEFT JOIN (
                SELECT queue,
                       count(*) FILTER (WHERE state IN ('Gathering', 'Pending', 'Reserved'))
                           AS pending,
                       count(*) FILTER (WHERE state IN ('Allocated', 'Running')) AS running,
                       count(*) FILTER (WHERE state = 'Held') AS held,
                       count(*) FILTER (WHERE state = 'Unsatisfiable') AS unsatisfiable
                FROM fluxjobs WHERE {LIVING}
                  AND CAST(:with_counts AS bool)
                GROUP BY queue) c ON c.queue = q.name
            WHERE q.uid IS NOT NULL ORDER BY q.name
            """,  # noqa: S608 constants
            with_counts=with_counts,
        )
    return [QueueFigures(**row) for row in rows]
