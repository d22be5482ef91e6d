"""What follows for workloads that were reconciled, written for all of them at once.

``reconciling`` calls it under the rows' locks. Each kind of change is one statement for all
workloads of a transaction. Nothing is written where nothing differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fluxqueue.db.database import Transaction
from fluxqueue.db.queries import Q
from fluxqueue.db.reader import columns
from fluxqueue.db.store.cluster_rows import tell_matcher
from fluxqueue.fluxjob.follow import FollowDecision
from fluxqueue.fluxjob.states import FluxJobState


@dataclass(slots=True)
class ReconciledRow:
    """The changes of a row. None leaves a column as it is.

    ``has_run``: it is known to have started. ``is_done``: it has no pending look any more, or the
    next one is due in ``look_in_s`` seconds. ``starting``: what keeps its pods from running, empty
    for nothing. ``is_started``: all of its pods have run. ``is_resized``: it holds other slots.
    ``must_release``: its PodGroup must be looked at.
    """

    uid: str
    state: FluxJobState | None = None
    reason: str | None = None
    lacking: int | None = None
    has_run: bool = False
    is_done: bool = False
    look_in_s: float | None = None
    starting: Mapping[str, Any] | None = None
    is_started: bool = False
    is_resized: bool = False
    must_release: bool = False


@dataclass(slots=True)
class SlotChanges:
    """The changes of one transaction, kind by kind."""

    rows: list[ReconciledRow] = field(default_factory=list)
    _left: dict[tuple[int, int], bool] = field(default_factory=dict)
    _given: list[tuple[int, int, str]] = field(default_factory=list)
    _indexed: list[tuple[int, int]] = field(default_factory=list)
    _ended: list[int] = field(default_factory=list)
    _told: list[int] = field(default_factory=list)

    def add(self, allocation_id: int, decision: FollowDecision, *, has_indexes: bool) -> None:
        """Add what follows for the slots of one allocation.

        ``has_indexes``: its pods have completion indexes, which their slots are to know.
        """
        self._left.update({(allocation_id, number): False for number in decision.free})
        self._left.update({(allocation_id, number): True for number in decision.give_back})
        self._given += [(allocation_id, number, pod) for number, pod in decision.assign]
        if has_indexes:
            self._indexed += [(allocation_id, number) for number, _ in decision.assign]
        if decision.is_ended or decision.is_requeued:
            self._ended.append(allocation_id)
        if decision.give_back or decision.is_ended:
            self._told.append(allocation_id)

    async def write_slots(self, tx: Transaction) -> None:
        """Write what becomes of slots and allocations, and notify the matcher."""
        # Release slots first: a pod's uid must be free again before it is written a second time.
        await self._let_go(tx)
        await self._give(tx)
        await self._index(tx)
        if self._ended:
            await tx.execute(Q.end_allocations, ids=self._ended)
        await tell_matcher(tx, "allocation", [str(one) for one in self._told])

    async def _let_go(self, tx: Transaction) -> None:
        if self._left:
            left = await tx.fetch(
                Q.release_slots,
                columns,
                ids=[one for one, _ in self._left],
                numbers=[number for _, number in self._left],
                back=list(self._left.values()),
            )
            self._tell_resized(left)

    def _tell_resized(self, changed: Sequence[tuple[int, bool]]) -> None:
        """Note resized slots for the matcher.

        The next pod of a slot is as large as the first one was, before it was resized.
        """
        self._told += [one for one, was_resized in changed if was_resized]

    async def _give(self, tx: Transaction) -> None:
        if self._given:
            given = await tx.fetch(
                Q.give_slots,
                columns,
                ids=[one for one, _, _ in self._given],
                numbers=[number for _, number, _ in self._given],
                pods=[pod for _, _, pod in self._given],
            )
            self._tell_resized(given)

    async def _index(self, tx: Transaction) -> None:
        """Write the completion indexes of slots that pods hold.

        An index has one slot, the last it was given.
        """
        if self._indexed:
            await tx.execute(
                Q.index_slots,
                ids=[one for one, _ in self._indexed],
                numbers=[number for _, number in self._indexed],
            )

    async def write_rows(self, tx: Transaction) -> None:
        """Write what becomes of the FluxJobs themselves."""
        if self.rows:
            await tx.execute(Q.write_reconciled, rows=self.rows)
