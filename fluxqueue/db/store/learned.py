"""Learned sizes in rows, so that another controller knows them.

The controller's ``flusher`` writes them in the transaction of the observation that taught them, and
``observations.read_known`` reads them when a controller starts.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from fluxqueue.db.database import Transaction
from fluxqueue.workload.learned_sizes import OF_NAMESPACE_MAX, TEMPLATES_MAX, LearnedSize


async def save_learned(tx: Transaction, news: Sequence[LearnedSize]) -> None:
    """Write what was learned. The last writer is right."""
    if not news:
        return
    rows = [
        {
            "namespace": one.namespace,
            "template": one.key,
            "extra": dict(one.extra),
            "learned_at": one.learned_at,
        }
        for one in sorted(news, key=lambda one: (one.namespace, one.key))
    ]
    await tx.execute(
        """
        INSERT INTO learned_sizes (namespace, template, extra, learned_at)
        SELECT namespace, template, extra, learned_at
        FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
            namespace text, template text, extra jsonb, learned_at text)
        ON CONFLICT (namespace, template) DO UPDATE SET
            extra = excluded.extra, learned_at = excluded.learned_at, written_at = now()
        """,
        rows=orjson.dumps(rows).decode(),
    )


async def read_learned(tx: Transaction) -> list[LearnedSize]:
    """Return what was learned last, the oldest first."""
    rows = await tx.fetch(
        "SELECT * FROM (SELECT * FROM (SELECT namespace, template, extra, learned_at, written_at,"
        " row_number() OVER (PARTITION BY namespace ORDER BY written_at DESC) AS place"
        " FROM learned_sizes) placed WHERE place <= :of_each"
        " ORDER BY written_at DESC LIMIT :most) newest ORDER BY written_at",
        of_each=OF_NAMESPACE_MAX,
        most=TEMPLATES_MAX,
    )
    return [
        LearnedSize(
            row["namespace"],
            row["template"],
            tuple(sorted((name, int(amount)) for name, amount in row["extra"].items())),
            row["learned_at"],
        )
        for row in rows
    ]
