"""Named queues in rows: what administrators want, what runs in each, and what it shows.

The controller calls ``save_queues``, and the worker that holds the matcher's role the rest. The
cycle obeys the row. The FluxQueue object says what its administrator wants.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fluxqueue.db.database import Database, Transaction
from fluxqueue.db.queries import Q
from fluxqueue.db.reader import columns
from fluxqueue.db.store.cluster_rows import tell_matcher
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


async def save_queues(tx: Transaction, seen: Sequence[QueueSeen], gone: Iterable[str]) -> None:
    """Write queues as they are, delete those that are gone, and notify the matcher of changes.

    The queue ``default`` always stays. The controller makes its object again.
    """
    rows = [_to_row(one) for one in seen]
    changed = await tx.fetch(Q.save_queues, str, rows=rows)
    await tx.execute(Q.save_queue_faults, rows=rows)
    removed = await tx.fetch(
        Q.delete_queues, str, gone=[name for name in gone if name != DEFAULT_QUEUE]
    )
    await tell_matcher(tx, "queue", [*changed, *removed])


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
    return await tx.fetch(Q.queue_names, str)


async def read_rules(tx: Transaction, planned_s: int = PLANNED_S) -> dict[str, QueueRules]:
    """Read the rules of all queues. A spec that only another release can use counts as empty.

    ``planned_s`` is what the site plans for jobs without a duration (seconds).
    """
    found = {}
    for name, spec, namespaces in await tx.fetch(Q.queue_rules, columns):
        allowed = _namespaces(name, namespaces)
        rules = rules_or_none(name, spec, allowed, planned_s)
        found[name] = rules or QueueRules(name, namespaces=allowed, planned_s=planned_s)
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
    rows = await tx.fetch(Q.queue_use, columns, queues=sorted(queues))
    return {(queue, user): Amounts(*amounts) for queue, user, *amounts in rows}


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
    (last,) = await database.fetch(Q.last_line, int)
    return last


async def read_figures(database: Database, *, with_counts: bool = True) -> list[QueueFigures]:
    """Read each queue that has an object, and count its FluxJobs."""
    return await database.fetch(Q.queue_figures, QueueFigures, with_counts=with_counts)
