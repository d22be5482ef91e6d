"""When a cycle looks past a crowd: as long as that finds others, and when a new user may come."""

from __future__ import annotations

from fluxqueue.jobspec import Jobspec
from fluxqueue.scheduler.pending_job import PendingJob
from fluxqueue.worker.full_queues import EVERY, FullQueues

DEPTHS = {"default": 5, "night": 5}
NOTHING = Jobspec(1, ())


def _jobs(user: str, number: int, queue: str = "default", first: int = 0) -> list[PendingJob]:
    return [
        PendingJob(f"{queue}-{user}-{n}", n, 0, NOTHING, queue, user)
        for n in range(first, first + number)
    ]


def test_a_queue_that_is_seen_to_its_end_hides_nobody() -> None:
    full = FullQueues(2)
    assert not full.note(_jobs("ada", 4), _jobs("ada", 1, first=3), DEPTHS)
    assert not full.to_look_past


def test_a_full_queue_is_looked_past_once() -> None:
    """One user alone costs no scan in each cycle."""
    full = FullQueues(2)
    assert full.note(_jobs("ada", 5), [], DEPTHS)
    assert full.to_look_past == {"default"}
    for _ in range(EVERY - 2):
        assert not full.note(_jobs("ada", 5), _jobs("ada", 1, first=9), DEPTHS)
        assert not full.to_look_past
    full.note(_jobs("ada", 5), [], DEPTHS)
    assert full.to_look_past == {"default"}, "now and then all the same"


def test_as_long_as_others_are_found_it_goes_on() -> None:
    full = FullQueues(2)
    full.note(_jobs("ada", 5), [], DEPTHS)
    for _ in range(3):
        assert not full.note([*_jobs("ada", 5), *_jobs("bob", 1)], [], DEPTHS)
        assert full.to_look_past == {"default"}
    full.note(_jobs("ada", 5), [], DEPTHS)
    assert not full.to_look_past


def test_a_newcomer_behind_a_known_crowd_is_looked_for_at_once() -> None:
    """Of its own queue, and only where the head does not hold enough of its user's."""
    full = FullQueues(2)
    full.note(_jobs("ada", 5), [], DEPTHS)
    full.note(_jobs("ada", 5), [], DEPTHS)
    assert full.note(_jobs("ada", 5), _jobs("bob", 1), DEPTHS)
    assert full.to_look_past == {"default"}
    full.note(_jobs("ada", 5), [], DEPTHS)
    assert not full.note(_jobs("ada", 5), _jobs("bob", 1, "night"), DEPTHS)
