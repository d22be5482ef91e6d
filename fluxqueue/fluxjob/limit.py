"""How long an allocated job holds its nodes: its limit as it is now, and what overrunning means.

``db/store/ends.py`` calls it to follow the end of an allocation, and to judge what runs on past its
limit. Pure: all times are arguments in epoch seconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

SLACK_S = 5
"""An end this much later than planned moves no plan, because a release takes a while."""


@dataclass(frozen=True, slots=True)
class Limit:
    """What limits a run: ``duration_s`` of work (None: nothing), then ``grace_s`` to end.

    ``is_limited``: Kubernetes ends its pods after ``duration_s``. Otherwise it is only a plan.
    """

    duration_s: int | None = None
    grace_s: int = 0
    is_limited: bool = False

    @property
    def held_s(self) -> int | None:
        """Return how long it holds its nodes, None if that is unknown."""
        return None if self.duration_s is None else self.duration_s + self.grace_s


def limit_now(stored: Limit, seen: Limit, elapsed_s: int) -> Limit:
    """Return the limit of an allocated job after its object was observed.

    An enforced limit counts as it is now. If it was lowered below ``elapsed_s``, the pods end from
    that time on. A limit that nothing enforces must not shorten a plan that others rely on. A limit
    that was enforced and is removed leaves none.

    Parameters
    ----------
    elapsed_s : seconds since its nodes were allocated.
    """
    if seen.is_limited and seen.duration_s is not None:
        # The stored one may be such a time already: it must not grow with each observation.
        passed_s = elapsed_s if stored.duration_s is None else min(stored.duration_s, elapsed_s)
        return replace(seen, duration_s=max(seen.duration_s, passed_s))
    is_open = stored.is_limited or stored.duration_s is None or seen.duration_s is None
    duration_s = None if is_open else max(stored.duration_s or 0, seen.duration_s or 0)
    return Limit(duration_s, seen.grace_s)


def is_beyond(limit: Limit, starts_at: int, ends_at: int | None) -> bool:
    """Return whether pods were observed to end later than the limit of their job says."""
    held_s = limit.held_s
    return held_s is not None and ends_at is not None and ends_at > starts_at + held_s + SLACK_S


class OverrunAction(StrEnum):
    """What follows if a job runs past its limit (``spec.overrun.action`` of its queue)."""

    REPORT = "report"
    REQUEUE = "requeue"
    CANCEL = "cancel"


@dataclass(frozen=True, slots=True)
class OverrunRules:
    """What follows, and how many seconds after limit and grace."""

    action: OverrunAction = OverrunAction.REPORT
    after_s: int = 60


def granted_end(limit: Limit, starts_at: int, most_s: int | None) -> int | None:
    """Return until when a job was accepted: its limit, at most that of its queue, and its grace."""
    known = [one for one in (limit.duration_s, most_s) if one is not None]
    return starts_at + min(known) + limit.grace_s if known else None


def judge_overrun(
    rules: OverrunRules, ends_at: int, now: int, *, can_requeue: bool, can_cancel: bool
) -> OverrunAction | None:
    """Return what follows now for a job that was accepted until ``ends_at``, None if nothing.

    What cannot be suspended cannot be requeued, so it is cancelled. What others would make again
    cannot be cancelled, so it is reported.
    """
    if now <= ends_at + rules.after_s:
        return None
    action = rules.action
    if action is OverrunAction.REQUEUE and not can_requeue:
        action = OverrunAction.CANCEL
    return OverrunAction.REPORT if action is OverrunAction.CANCEL and not can_cancel else action
