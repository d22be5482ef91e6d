"""Learned sizes in rows, so that another controller knows them.

The controller's ``flusher`` writes them in the transaction of the observation that taught them, and
``observations.read_known`` reads them when a controller starts.
"""

from __future__ import annotations

from collections.abc import Sequence

from fluxqueue.db.database import Transaction
from fluxqueue.db.queries import Q
from fluxqueue.db.reader import columns
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
    await tx.execute(Q.save_learned, rows=rows)


async def read_learned(tx: Transaction) -> list[LearnedSize]:
    """Return what was learned last, the oldest first."""
    rows = await tx.fetch(Q.read_learned, columns, of_each=OF_NAMESPACE_MAX, most=TEMPLATES_MAX)
    return [
        LearnedSize(
            namespace,
            template,
            tuple(sorted((name, int(amount)) for name, amount in extra.items())),
            learned_at,
        )
        for namespace, template, extra, learned_at in rows
    ]
