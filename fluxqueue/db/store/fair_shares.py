"""Past use by queue and user in rows, and the priorities that follow from it.

``worker.queue_keeping`` calls it at an interval, in one transaction under the matcher's term. It
counts what was held: the cpu of each slot from when it was given to when it was returned.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import orjson

from fluxqueue.db.database import Transaction

QueueUser = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Share:
    """The use of a user of a queue, decayed to the time of the row, and its points."""

    used: float
    factor: float
    points: int


@dataclass(frozen=True, slots=True)
class HeldCpu:
    """``cpus`` cores that one user of a queue held from ``begin_s`` to ``end_s`` (epoch)."""

    queue: str
    user: str
    cpus: float
    begin_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class SharesRead:
    """All that a recomputation needs, as of ``now_s`` by the database's clock.

    ``computed_s``: by queue, when its use was last summed up, absent if it never was.
    """

    now_s: float
    old: Mapping[QueueUser, Share]
    computed_s: Mapping[str, float]
    held: Sequence[HeldCpu]
    waiting: frozenset[QueueUser]


_HAVE_TURNS = (
    "state IN ('Gathering', 'Pending', 'Reserved', 'Held', 'Unsatisfiable')"
    " OR (lacking > 0 AND is_sweep)"
)
"""FluxJobs with a priority that counts: those that wait, and running sweeps that still grow."""


async def read_shares(tx: Transaction, queues: Collection[str]) -> SharesRead:
    """Read the last shares, what was held since in ``queues``, and the users that wait there."""
    rows = await tx.fetch(
        "SELECT queue, user_name, used, factor, points,"
        " extract(epoch FROM computed_at)::float8 AS at_s FROM fair_shares"
    )
    now = await tx.fetch_one("SELECT extract(epoch FROM now())::float8 AS now_s")
    assert now is not None, "a SELECT without FROM gives one row"
    computed: dict[str, float] = {}
    for row in rows:
        computed[row["queue"]] = max(row["at_s"], computed.get(row["queue"], 0.0))
    since = min((computed.get(queue, 0.0) for queue in queues), default=0.0)
    # A recent time needs another plan than one long ago (engine._PLANS_ONCE).
    await tx.execute("SET LOCAL plan_cache_mode = force_custom_plan")
    held = await tx.fetch(
        """
        SELECT f.queue, f.user_name AS "user",
               sum((s.resources ->> 'cpu')::numeric / 1000)::float8 AS cpus,
               extract(epoch FROM s.given_at)::float8 AS begin_s,
               extract(epoch FROM coalesce(s.returned_at, now()))::float8 AS end_s
        FROM allocation_slots s JOIN allocations a ON a.id = s.allocation_id
        JOIN fluxjobs f USING (uid)
        WHERE f.queue = ANY(CAST(:queues AS text[])) AND s.resources ? 'cpu'
          AND (s.state <> 'returned' OR s.returned_at > to_timestamp(:since))
        GROUP BY 1, 2, 4, 5
        """,
        queues=sorted(queues),
        since=since,
    )
    waiting = await tx.fetch(
        "SELECT DISTINCT queue, user_name FROM fluxjobs"  # noqa: S608 constants
        " WHERE queue = ANY(CAST(:queues AS text[]))"
        f" AND ({_HAVE_TURNS})",
        queues=sorted(queues),
    )
    return SharesRead(
        now_s=now["now_s"],
        old={
            (row["queue"], row["user_name"]): Share(row["used"], row["factor"], row["points"])
            for row in rows
        },
        computed_s=computed,
        held=[HeldCpu(**row) for row in held],
        waiting=frozenset((row["queue"], row["user_name"]) for row in waiting),
    )


async def store_shares(
    tx: Transaction, shares: Mapping[QueueUser, Share], changed: Collection[QueueUser]
) -> int:
    """Replace all shares, and recompute the priorities of waiting FluxJobs of users in ``changed``.

    Returns the number of FluxJobs with a changed priority. Others are not touched.
    """
    await tx.execute("DELETE FROM fair_shares")
    rows = [
        {"queue": queue, "user_name": user, "used": s.used, "factor": s.factor, "points": s.points}
        for (queue, user), s in shares.items()
    ]
    await tx.execute(
        """
        INSERT INTO fair_shares (queue, user_name, used, factor, points, computed_at)
        SELECT queue, user_name, used, factor, points, now()
        FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
            queue text, user_name text, used float8, factor float8, points int)
        """,
        rows=orjson.dumps(rows).decode(),
    )
    pairs = sorted(changed)
    if not pairs:
        return 0
    touched = await tx.execute(
        f"""
        UPDATE fluxjobs SET priority_parts = '{{}}' WHERE uid IN (
            SELECT uid FROM fluxjobs
            WHERE (queue, user_name) IN (SELECT * FROM unnest(
                CAST(:queues AS text[]), CAST(:users AS text[])))
              AND ({_HAVE_TURNS})
              AND priority_parts <>
                  fluxjob_priority_parts(queue, user_name, asked_priority, set_priority,
                                         is_priority_granted)
            ORDER BY uid FOR UPDATE)
        """,  # noqa: S608 constants
        queues=[queue for queue, _ in pairs],
        users=[user for _, user in pairs],
    )
    if touched:
        await tx.wake_matcher()
    return touched
