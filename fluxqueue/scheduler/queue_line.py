"""One queue during a walk. ``walk`` makes one for each queue and keeps it up to date. Pure."""

from __future__ import annotations

from collections import Counter

from fluxqueue.policy.queue_policy import QueuePolicy
from fluxqueue.policy.queue_rules import SHORTEST, QueueRules
from fluxqueue.scheduler.lack import Lack
from fluxqueue.scheduler.pending_job import PendingJob


class QueueLine:
    """One queue during a walk: its rules, its blocked head, the number of promises given.

    ``has_pulled``: no further job behind the reservations gets its nodes kept.
    """

    __slots__ = (
        "blocker",
        "depth",
        "growth_planned",
        "has_limits",
        "has_pulled",
        "is_backfilling",
        "promised",
        "rules",
    )

    def __init__(self, rules: QueueRules, policy: QueuePolicy, *, has_company: bool) -> None:
        self.rules = rules
        self.blocker: PendingJob | Lack | None = None
        self.promised = 0
        self.growth_planned: Counter[str] = Counter()
        self.is_backfilling = policy.is_backfilling
        self.has_pulled = rules.jumpers != SHORTEST or not policy.is_backfilling
        self.depth = policy.reservation_depth
        # A queue without backfill reserves nothing for its head. Jobs of other queues could then
        # overtake that head forever, so it gets one reservation.
        # Preemption needs one too: ``_preempt`` is reached through ``_reserve`` only.
        if (has_company or rules.preemption is not None) and not policy.is_backfilling:
            self.depth = max(1, self.depth)
        self.has_limits = rules.has_use_limits or rules.per_job.nodes is not None
