"""Rows of FluxJobs that ended and went long ago, many of them, made by the server itself.

For tests and benchmarks of what retained rows cost: each was one pod's Job that ran for a minute,
with its allocation, its slot, four lines of history and its run. Written beside the triggers, which
would take hours for millions.
"""

from __future__ import annotations

import psycopg
from psycopg import sql

TABLES = ("fluxjobs", "allocations", "allocation_slots", "history", "accounting")
"""Where retained rows stand."""

LINES = ("Pending", "Allocated", "Running", "Completed")
"""Lines of history of each."""

_SETTINGS = (
    "SET session_replication_role = replica",
    "SET synchronous_commit = off",
    "SET maintenance_work_mem = '512MB'",
    "SET work_mem = '256MB'",
)
_FLUXJOBS = """
INSERT INTO fluxjobs (uid, place, namespace, name, workload_kind, workload_name, flux_uid,
    user_name, state, request, size, result, is_gone, is_examined, accepted_by,
    submitted_at, allocated_at, started_at, ended_at, version)
SELECT gen_random_uuid(), n, 'team-' || n %% 20, 'old-' || n || '-job', 'Job', 'old-' || n,
    gen_random_uuid(), 'user-' || n %% 50, 'Completed',
    '{"slots": [{"count": 1, "resources": {"cpu": 1000, "memory": 1073741824}}]}', 1,
    'Completed', true, true, 'default',
    at.ended - interval '90 s', at.ended - interval '61 s', at.ended - interval '60 s', at.ended, 5
FROM generate_series(%(first)s::int, %(last)s::int) n,
    LATERAL (SELECT now() - %(age_s)s * interval '1 s'
        * (1 - n::float8 / %(number)s::float8) AS ended) at
"""
_ALLOCATIONS = """
INSERT INTO allocations (uid, term, starts_at, until, is_live, ended_at)
SELECT uid, 1, extract(epoch FROM allocated_at)::bigint, NULL, false, ended_at
FROM fluxjobs WHERE workload_name LIKE 'old-%%' ORDER BY jobid
"""
_SLOTS = """
INSERT INTO allocation_slots (allocation_id, number, node, resources, state, given_at, returned_at)
SELECT id, 0, 'node-' || id %% 1000, '{"cpu": 1000, "memory": 1073741824}', 'returned',
    to_timestamp(starts_at), ended_at FROM allocations WHERE NOT is_live
"""
_HISTORY = """
INSERT INTO history (at, uid, jobid, actor, event, detail)
SELECT f.ended_at - (4 - line.number) * interval '20 s', f.uid, f.jobid, 'worker', line.event,
    '{"from": "Pending", "reason": ""}'
FROM fluxjobs f, unnest(%(lines)s::text[]) WITH ORDINALITY AS line (event, number)
WHERE workload_name LIKE 'old-%%' ORDER BY f.jobid, line.number
"""
_ACCOUNTING = """
INSERT INTO accounting (uid, jobid, run, allocation_id, namespace, name, workload_kind, user_name,
    queue, size, queued_at, allocated_at, started_at, ended_at, nodes, slots, cpu_s, gpu_s, result)
SELECT f.uid, jobid, 1, a.id, namespace, workload_name, workload_kind, user_name, queue, size,
    submitted_at, allocated_at, started_at, f.ended_at, 1, 1, 60, 0, state
FROM fluxjobs f JOIN allocations a USING (uid) WHERE workload_name LIKE 'old-%%' ORDER BY jobid
"""
_CHUNK = 500_000


def fill(url: str, number: int, *, age_s: int = 20 * 86400) -> None:
    """Add ``number`` ended FluxJobs, the oldest ``age_s`` ago. Their statistics are made.

    Indexes that are not constraints are made anew at the end, as for a restored database.
    """
    with psycopg.connect(url, autocommit=True) as connection:
        for setting in _SETTINGS:
            connection.execute(setting.encode())
        indexes = _drop_indexes(connection)
        for first in range(1, number + 1, _CHUNK):
            last = min(number, first + _CHUNK - 1)
            values = {"first": first, "last": last, "number": number, "age_s": age_s}
            connection.execute(_FLUXJOBS.encode(), values)
        for statement in (_ALLOCATIONS, _SLOTS, _HISTORY, _ACCOUNTING):
            connection.execute(statement.encode(), {"lines": list(LINES)})
        for definition in indexes:
            connection.execute(definition.encode())
        for table in TABLES:
            connection.execute(sql.SQL("VACUUM ANALYZE {}").format(sql.Identifier(table)))


def _drop_indexes(connection: psycopg.Connection[tuple[str, str]]) -> list[str]:
    """Drop the plain indexes of the tables. Give the statements that make them again."""
    found = connection.execute(
        "SELECT i.indexrelid::regclass::text, pg_get_indexdef(i.indexrelid) FROM pg_index i"
        " WHERE i.indrelid = ANY(%s::regclass[]) AND NOT i.indisprimary"
        " AND NOT EXISTS (SELECT FROM pg_constraint c WHERE c.conindid = i.indexrelid)",
        (list(TABLES),),
    ).fetchall()
    for name, _ in found:
        connection.execute(f"DROP INDEX {name}".encode())
    return [definition for _, definition in found]
