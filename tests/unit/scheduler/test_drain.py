"""Expected starts behind the planned jobs of a deep queue."""

from __future__ import annotations

from dataclasses import replace

from fluxqueue.fluxjob.request import CPU
from fluxqueue.fluxjob.wait_reason import WaitReason
from fluxqueue.jobspec.shape import equal_slots
from fluxqueue.policy.queue_rules import QueueRules
from fluxqueue.scheduler.drain import Drain, outlook_behind, with_drain
from fluxqueue.scheduler.forecast import Outlook
from fluxqueue.scheduler.pending_job import PendingJob

NOW = 10_000
WAITS = "priority 0 behind 3 jobs"


def _job(number: int, queue: str = "q") -> PendingJob:
    request = equal_slots(2, {CPU: 1000}, duration_s=100)
    return PendingJob(f"u{number}", number, 0, request, queue, place=number)


def test_skipped_jobs_start_at_the_pace_of_the_planned_ones() -> None:
    """One job starts every 50 s, so the two behind them do as well. An unknown start stays so."""
    queue = [_job(number) for number in range(6)]
    found = {f"u{n}": Outlook(NOW + 50 * n, "") for n in range(3)}
    found["u3"] = Outlook(None, "fits only with nodes that are down")
    found |= {f"u{n}": Outlook(None, WAITS, is_skipped=True) for n in (4, 5)}
    outlooks, drains = with_drain(queue, found, NOW, {"q": 6})
    assert [outlooks[f"u{n}"].expected_start for n in range(6)] == [
        *(NOW + 50 * n for n in range(3)),
        None,
        NOW + 200,
        NOW + 250,
    ]
    assert outlooks["u4"].reason == WAITS
    assert (drains["q"].passed, drains["q"].last) == (6, (0, 5))


def test_the_drain_goes_on_behind_the_examined_jobs() -> None:
    """By the work that is passed: a job of twice the work takes twice the time."""
    rules = QueueRules("q")
    planned = {f"u{n}": Outlook(NOW + 50 * n, "") for n in range(5)}
    _, drains = with_drain([_job(n) for n in range(5)], planned, NOW, {"q": 4})
    drain = drains["q"]
    assert outlook_behind(7, drain, rules) == Outlook(
        NOW + 200, "priority 7 behind 4 jobs", position=5
    )
    drain.pass_by((-7, 9), 400)
    assert outlook_behind(7, drain, rules).expected_start == NOW + 300
    stopped = outlook_behind(7, drain, replace(rules, is_started=False))
    assert (stopped.expected_start, stopped.wait_reason) == (None, WaitReason.STOPPED)


def test_without_a_pace_no_start_is_known() -> None:
    """One planned start, or starts that come the earlier the more work is ahead, show none."""
    drain = Drain(NOW)
    drain.pass_by((0, 1), 100, NOW + 50)
    assert drain.start() is None
    drain.pass_by((0, 2), 100, NOW + 20)
    drain.pass_by((0, 3), 100)
    found = drain.start()
    assert found is not None
    assert NOW <= found <= NOW + 50, "never earlier and earlier"
