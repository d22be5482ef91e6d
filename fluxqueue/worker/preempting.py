"""Preemption around a cycle: its input before, and the actions on victims afterwards.

It belongs to ``schedule.CycleRunner``. If no queue uses preemption, it costs nothing. The decisions
are in the rows. This module only remembers whether there is anything to do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fluxqueue.db.database import Transaction
from fluxqueue.db.leadership import check_term
from fluxqueue.db.store import preemption
from fluxqueue.db.store.preemption import PLANNED, PREEMPTED, SPARED
from fluxqueue.graph.ledger.placement import Placement
from fluxqueue.policy.queue_rules import PreemptionRules, QueueRules
from fluxqueue.process import metrics
from fluxqueue.scheduler.cycle_decisions import Decisions
from fluxqueue.scheduler.pending_job import PendingJob
from fluxqueue.scheduler.preemption_plan import NO_PREEMPTIONS, MakingWay, Preemptions
from fluxqueue.worker.context import WorkerContext

_OUTCOMES = {PLANNED: "planned", PREEMPTED: "requeued", SPARED: "spared"}


@dataclass(slots=True)
class Preempting:
    """Track preemptors and their victims, for one holder of the matcher's role."""

    context: WorkerContext
    role: str
    term: int
    _under_way: Mapping[str, MakingWay] = field(default_factory=dict)
    _is_due: bool = True
    _next_at: int | None = None
    _is_known: bool = False

    def forget(self) -> None:
        """Forget what is known, because the matcher is read again, and this with it."""
        self._is_known, self._is_due = False, True

    def is_due(self, now: int) -> bool:
        """Return whether a victim must be notified or preempted, or is spared."""
        return self._is_due or (self._next_at is not None and self._next_at <= now)

    async def look(self, tx: Transaction, rules: Mapping[str, QueueRules]) -> None:
        """Read the preemptions under way. ``rules`` are those of the cycle before.

        Call this before the ledger takes the changes. A victim that ends in between then still
        counts as leaving. This is not an error: the ledger is asked what is free without it. In the
        other order it would have ended here and still occupy its nodes there. The claim on what it
        frees would then be given up as impossible.
        """
        if _asking(rules) or self._under_way or not self._is_known:
            self._under_way = await preemption.read_under_way(tx)
            self._is_known = True

    async def read(
        self,
        tx: Transaction,
        rules: Mapping[str, QueueRules],
        queue: Sequence[PendingJob],
        promised: Mapping[str, Placement],
    ) -> Preemptions:
        """Return the preemption input of a cycle over ``queue``.

        ``promised``: the reservations of the cycle before.
        """
        asking = _asking(rules)
        if not asking and not self._under_way:
            return NO_PREEMPTIONS
        uids = [job.uid for job in queue if job.queue in asking]
        standings = await preemption.read_standings(tx, uids) if uids else {}
        candidates = []
        if standings:
            candidates = await preemption.read_candidates(
                tx,
                frozenset().union(*(one.queues for one in asking.values())),
                max(standings.values()),
            )
        claims = {uid: promised[uid] for uid in self._under_way if uid in promised}
        return Preemptions(candidates, standings, self._under_way, claims)

    async def store(self, tx: Transaction, decisions: Decisions) -> None:
        """Store what a cycle decided."""
        if self._under_way or decisions.preempted:
            await preemption.store(tx, decisions, self._under_way)
            is_over = self._under_way.keys() - decisions.making_way.keys()
            self._is_due = self._is_due or bool(is_over or decisions.preempted)

    async def carry_out(self, now: int) -> None:
        """Carry out the pending actions. ``now`` is the time of the last cycle.

        Raises
        ------
        LostLeadership
            Another worker has taken the role over, and carries them out.
        """
        async with self.context.database.begin() as tx:
            await check_term(tx, self.role, self.term)
            carried = await preemption.carry_out(tx, now)
        self._is_due, self._next_at = False, carried.next_at
        for event, outcome in _OUTCOMES.items():
            metrics.PREEMPTIONS.labels(outcome).inc(carried.count(event))


def _asking(rules: Mapping[str, QueueRules]) -> dict[str, PreemptionRules]:
    """Return the rules of the queues that use preemption, by name."""
    return {name: one.preemption for name, one in rules.items() if one.preemption is not None}
