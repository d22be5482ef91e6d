"""The turns of running workloads that need more slots, in the walk of a cycle. Pure."""

from __future__ import annotations

from contextlib import suppress

from fluxqueue.errors import InsufficientResources, TooComplex
from fluxqueue.graph.ledger.placement import Placement
from fluxqueue.graph.match.by_shares import why_busy
from fluxqueue.policy.limits import Amounts, why_too_large
from fluxqueue.scheduler.allowances import Allowances, NotThisTime
from fluxqueue.scheduler.lack import Lack
from fluxqueue.scheduler.latest_start import StartSlack, latest_start
from fluxqueue.scheduler.pending_job import PendingJob
from fluxqueue.scheduler.queue_line import QueueLine
from fluxqueue.scheduler.sweeps import (
    GROWTH_MAX,
    PLANNED_EACH,
    PLANNED_MAX,
    grow,
    is_plain,
    next_slot,
)
from fluxqueue.scheduler.top_up import top_up
from fluxqueue.scheduler.walk import DEFERRED, QueueWalk


class GrowingWalk(QueueWalk):
    """A walk in which running workloads take their turns, too."""

    def grow_in_turn(self, lack: Lack, allowances: Allowances) -> None:
        """Give a running job the further slots that fit at its place in the queue.

        What does not fit waits as a job does. Without backfill it blocks its queue. The next slot
        is planned, so that jobs behind it cannot take its nodes for ever.
        """
        line, given = self._line(lack.queue), self.decisions.grown
        # A claim in use blocks no other job: it becomes free with the end of a pod. The kinds of
        # pods of other jobs differ in their claims (``top_up``).
        reason = self._why_not_growing(line, lack)
        reason = reason or (self._why_claimed(lack) if lack.is_independent else None)
        if reason is not None:
            given.barred[lack.uid] = reason
            return
        # The request of a sweep is that of one pod. Others name all their slots.
        ask = self.matcher.ask(lack.request)
        failed = self._failed.known(ask) if lack.is_independent else None
        if failed is not None:
            given.barred[lack.uid] = failed
            line.blocker = line.blocker or lack
            return
        try:
            with allowances.deciding(self.matcher, lack.user, lack.request):
                placed, over = self._grow(line, lack)
                if len(placed) >= lack.count or over:
                    return
                in_use = self._why_claimed(lack) if lack.is_independent else None
                if in_use is not None:
                    given.barred[lack.uid] = in_use
                    return
                if len(placed) >= GROWTH_MAX:
                    given.is_more = True
                    return
                if lack.is_independent:  # the reason of others names the pods and what was lost
                    given.barred[lack.uid] = why_busy(lack.request)
                self._note_hopeless(lack)
                if self._plan_growth(line, lack) or lack.is_independent:
                    line.blocker = line.blocker or lack
        except NotThisTime:
            given.barred[lack.uid] = DEFERRED
        except Exception as error:
            if self.matcher.work is not None and self.matcher.work.left < 0:
                raise
            given.barred[lack.uid] = str(error)  # a failure here must not stop others

    def _why_not_growing(self, line: QueueLine, lack: Lack) -> str | None:
        # In a stopped queue what runs goes on. Each pod of a sweep is a start.
        if lack.is_independent and not line.rules.is_started:
            return f"queue {lack.queue} is stopped"
        head = line.blocker
        if head is None or line.is_backfilling or self._is_waited_for(lack, head):
            return None
        return f"waits behind job {head.jobid} (fcfs)"

    def _is_waited_for(self, lack: Lack, head: PendingJob | Lack) -> bool:
        """Return whether a job that lost slots must end before the head of its queue can start.

        If it waited behind that head, too, neither would go on before its limit ends the job.
        """
        if lack.is_independent:
            return False
        plans = (*self.decisions.reserved, *self.decisions.unpromised)
        starts_at = next((where.starts_at for job, where in plans if job is head), None)
        if starts_at is None:
            request = next_slot(head) if isinstance(head, Lack) else head.by_plan
            if request is None:
                return False
            try:
                starts_at = self.matcher.match_later(request, self.now).starts_at
            except (InsufficientResources, TooComplex):
                return True
        return starts_at >= lack.planned_end(self.now)

    def _grow(self, line: QueueLine, lack: Lack) -> tuple[list[Placement], str]:
        def why_over(more: Amounts) -> str | None:
            return self._use.why_over(line.rules, lack.user, more) if line.has_limits else None

        def why_over_with(has: Amounts, more: Amounts) -> str | None:
            return why_too_large(line.rules, has, more) or why_over(more)

        def count(more: Amounts) -> None:
            if line.has_limits:
                self._use.add(lack.queue, lack.user, more)

        if lack.is_independent:
            placed, over = grow(self.matcher, lack, self.now, why_over, count)
        else:
            placed, over = top_up(self.matcher, lack, self.now, why_over_with, count)
        if placed:
            self.decisions.grown.slots.append((lack, placed))
        if over:
            self.decisions.grown.barred[lack.uid] = over
        return placed, over

    def _note_hopeless(self, lack: Lack) -> None:
        """Remember a plain request that does not fit: others like it need no search."""
        # Where its siblings stand counts for all other requests.
        if lack.is_independent and is_plain(lack.request):
            self._failed.add(self.matcher.ask(lack.request), why_busy(lack.request))

    def _plan_growth(self, line: QueueLine, lack: Lack) -> bool:
        """Keep the next slot of a growing job free, and return whether that is done.

        This is no promise, and is not counted as one.
        """
        planned = line.growth_planned
        if not line.depth or planned.total() >= PLANNED_MAX or planned[lack.user] >= PLANNED_EACH:
            return False
        planned[lack.user] += 1
        with suppress(InsufficientResources, TooComplex):
            request = next_slot(lack)
            if request is None:
                return False
            placement = self.matcher.match_later(request, self.now)
            # A slot that only comes when the job ends is of no use to it.
            is_of_use = lack.is_independent or placement.starts_at < lack.planned_end(self.now)
            if placement.starts_at > self.now and is_of_use:
                booked = latest_start(
                    *(self.matcher.ledger, placement, self.now),
                    slack=StartSlack(line.rules.slack_s()),
                    ahead=self._unfirm.values(),
                )
                self.matcher.reserve(booked, self.now)
                self._note_unfirm(lack.uid, booked, has_limit=lack.has_limit)
                return True
        return False
