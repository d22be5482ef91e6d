"""Notices: Events for a FluxJob's users, beside the reason of its state.

They are written in the transaction that decides or observes them. The next status update brings
them to the cluster (``worker.status``), and the audit trail keeps them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import orjson

from fluxqueue.db.database import Transaction

UNMANAGED_USE = "UnmanagedUse"
"""Of a workload with a pod that uses more of its node than a slot covers."""


@dataclass(frozen=True, slots=True)
class Notice:
    """A report on a FluxJob. ``event`` is one word, ``key`` is that of the news."""

    uid: str
    event: str
    message: str
    key: str
    is_warning: bool = False


_REMEMBER = """
WITH news AS (
    SELECT * FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
        uid text, event text, message text, key text, is_warning bool)
), noted AS (
    INSERT INTO history (uid, jobid, actor, event, detail)
    SELECT f.uid, f.jobid,
           coalesce(nullif(current_setting('fluxqueue.actor', true), ''), session_user),
           news.event, jsonb_build_object('message', news.message)
    FROM news JOIN fluxjobs f USING (uid)
)
UPDATE fluxjobs f SET version = version + 1, notices = f.notices || (
    SELECT jsonb_agg(to_jsonb(news) - 'uid') FROM news WHERE news.uid = f.uid)
WHERE f.uid IN (SELECT uid FROM news)
"""


async def leave_notices(tx: Transaction, notices: Sequence[Notice]) -> None:
    """Write them into the audit trail and the rows. The next status update emits the Events."""
    if notices:
        rows = [asdict(one) for one in notices]
        await tx.execute(_REMEMBER, rows=orjson.dumps(rows).decode())
