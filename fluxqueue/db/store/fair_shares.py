"""Past use by queue and user in rows, and the priorities that follow from it.

``worker.queue_keeping`` calls it at an interval, in one transaction under the matcher's term. It
counts what was held: the cpu of each slot from when it was given to when it was returned.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fluxqueue.db.database import Transaction
from fluxqueue.db.queries import Q
from fluxqueue.db.reader import columns
from fluxqueue.db.store.moves import recompute_priorities

QueueUser = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Share:
    """The use of a user of a queue, decayed to the time of the row, and its points."""

    used: float
    factor: float
    points: int


class ShareRow(NamedTuple):
    """The share of a user of a queue, and when it was computed (epoch)."""

    queue: str
    user: str
    used: float
    factor: float
    points: int
    at_s: float


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


async def read_shares(tx: Transaction, queues: Collection[str]) -> SharesRead:
    """Read the last shares, what was held since in ``queues``, and the users that wait there."""
    rows = await tx.fetch(Q.shares, ShareRow)
    (now_s,) = await tx.fetch(Q.seconds_now, float)
    computed: dict[str, float] = {}
    for row in rows:
        computed[row.queue] = max(row.at_s, computed.get(row.queue, 0.0))
    since = min((computed.get(queue, 0.0) for queue in queues), default=0.0)
    await tx.execute(Q.plan_anew)
    return SharesRead(
        now_s=now_s,
        old={(row.queue, row.user): Share(row.used, row.factor, row.points) for row in rows},
        computed_s=computed,
        held=await tx.fetch(Q.held_cpu, HeldCpu, queues=sorted(queues), since=since),
        waiting=frozenset(await tx.fetch(Q.users_in_turn, columns, queues=sorted(queues))),
    )


async def store_shares(
    tx: Transaction, shares: Mapping[QueueUser, Share], changed: Collection[QueueUser]
) -> int:
    """Replace all shares, and recompute the priorities of waiting FluxJobs of users in ``changed``.

    Returns the number of FluxJobs with a changed priority. Others are not touched.
    """
    await tx.execute(Q.delete_shares)
    rows = [
        {"queue": queue, "user_name": user, "used": s.used, "factor": s.factor, "points": s.points}
        for (queue, user), s in shares.items()
    ]
    await tx.execute(Q.store_shares, rows=rows)
    pairs = sorted(changed)
    if not pairs:
        return 0
    touched = await recompute_priorities(
        tx, [queue for queue, _ in pairs], [user for _, user in pairs]
    )
    if touched:
        await tx.wake_matcher()
    return touched
