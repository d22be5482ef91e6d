"""Forecasts to be read one by one, and what counts as news."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fluxqueue.fluxjob.wait_reason import WaitReason
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.policy.queue_policy import POLICIES
from fluxqueue.policy.queue_rules import Limits, QueueRules
from fluxqueue.scheduler.cycle import run_cycle
from fluxqueue.scheduler.cycle_decisions import Queues
from fluxqueue.scheduler.forecast import Effort, Outlook, forecast
from fluxqueue.scheduler.pending_job import PendingJob
from tests.support.pool_model import RACK, node, placement, request

NOON = 1_700_049_600
RUNNING = {"r": 17}


def pools(count: int = 2, *, is_firm: bool = True) -> Matcher:
    """Nodes of 4 cores in one rack, all held by job 17."""
    found = Matcher(ShareLedger(), "lonode")
    for number in range(count):
        found.set_node(node(f"n{number}", rack="r2"), {})
    nodes = [(f"n{number}", {"cpu": 4}) for number in range(count)]
    held = replace(placement(*nodes, until=NOON + 3600), is_firm=is_firm)
    found.allocate("r", held)
    return found


def job(number: int, size: int = 1, *, hours: int | None = 1, **more: object) -> PendingJob:
    """Whole nodes for some hours."""
    asked = request(size, cpu=4, duration_s=None if hours is None else 3600 * hours, **more)  # type: ignore[arg-type]
    return PendingJob(f"u{number}", number, 10, asked)


def outlook(
    found: Matcher, queue: list[PendingJob], policy: str, **more: object
) -> dict[int, tuple[float | None, str]]:
    """Hours until the expected start, and the reason, by jobid."""
    decisions = run_cycle(found, queue, POLICIES[policy], NOON, more.get("queues"))  # type: ignore[arg-type]
    told = forecast(found, queue, decisions, POLICIES[policy], NOON, jobids=RUNNING, **more)  # type: ignore[arg-type]
    by_uid = {one.uid: one.jobid for one in queue}
    return {
        by_uid[uid]: (
            None if o.expected_start is None else (o.expected_start - NOON) / 3600,
            o.reason,
        )
        for uid, o in told.items()
    }


def test_easy_estimates_behind_the_reservation() -> None:
    """One is promised. The others follow where there is room."""
    queue = [job(1, 2, hours=2), job(2), job(3), job(4, 2)]
    assert outlook(pools(), queue, "easy") == {
        1: (1, "has a reservation; waits for n[0-1] held by job 17 until 13:00 UTC"),
        2: (3, "priority 10 behind 1 job; waits for n0 behind job 1"),
        3: (3, "priority 10 behind 2 jobs; waits for n1 behind job 1"),
        4: (4, "priority 10 behind 3 jobs; waits for n[0-1] behind job 2, job 3, job 1"),
    }


def test_fcfs_estimates_in_order() -> None:
    """No job is expected before those before it, though there would be room."""
    queue = [job(1), job(2, 2), job(3)]
    assert outlook(pools(), queue, "fcfs") == {
        1: (1, "waits for n0 held by job 17 until 13:00 UTC"),
        2: (2, "waits behind job 1 (fcfs)"),
        3: (3, "waits behind job 1 (fcfs)"),
    }


def test_a_place_is_named_where_all_must_be_in_one() -> None:
    """The sentence of the specification."""
    found = outlook(pools(3), [job(1, 3, within=RACK)], "conservative")
    assert found[1][1] == (
        "has a reservation; waits for 3 nodes of rack r2 held by job 17 until 13:00 UTC"
    )


def test_an_expected_start_is_no_promise() -> None:
    """The head waits for a job without a limit: by plan at 13:00, at the latest an hour later."""
    found = outlook(pools(is_firm=False), [job(1), job(2)], "easy")
    assert found[1] == (
        1,
        (
            "expected to start by 14:00 UTC, not promised; waits for n0 held by job 17 without a"
            " limit"
        ),
    )


def test_stopped_queues_are_not_estimated_and_hold_nobody_up() -> None:
    """No plan over durations knows when the queue starts again."""
    queues = Queues({"default": QueueRules("default"), "off": QueueRules("off", is_started=False)})
    stopped = PendingJob("u1", 1, 10, request(2, cpu=4, duration_s=60), queue="off")
    assert list(outlook(pools(), [stopped, job(2)], "easy", queues=queues)) == [2]


def test_a_head_that_keeps_its_nodes_free_of_other_queues_is_planned_once() -> None:
    """Under fcfs beside another queue it has nodes in the plan, and is promised nothing."""
    queues = Queues({"default": QueueRules("default"), "other": QueueRules("other")})
    queue = [job(1, 2), job(2), PendingJob("u3", 3, 10, job(3).request, queue="other")]
    assert outlook(pools(), queue, "fcfs", queues=queues) == {
        1: (1, "waits for n[0-1] held by job 17 until 13:00 UTC"),
        2: (2, "waits behind job 1 (fcfs)"),
        3: (2, "waits for n0 behind job 1"),
    }


def test_depth_counts_each_queue_by_itself() -> None:
    """Two of each."""
    queue = [
        PendingJob(f"u{n}", n, 0, request(cpu=4, duration_s=60), queue=f"q{n % 2}")
        for n in range(1, 9)
    ]
    assert sorted(outlook(pools(), queue, "easy", effort=Effort(2))) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("told", "new", "is_same"),
    [
        (Outlook(NOON + 600, "a"), Outlook(NOON + 600, "a"), True),
        (Outlook(NOON + 600, "a"), Outlook(NOON + 625, "a"), True),
        (Outlook(NOON + 600, "a"), Outlook(NOON + 700, "a"), False),
        (Outlook(NOON + 36_000, "a"), Outlook(NOON + 38_000, "a"), True),
        (Outlook(NOON + 600, "a"), Outlook(NOON + 600, "b"), False),
        (Outlook(NOON - 5, "a"), Outlook(NOON + 10, "a"), False),
        (Outlook(None, "a"), Outlook(NOON + 10, "a"), False),
        (Outlook(None, "a"), Outlook(None, "a"), True),
        (Outlook(None, "a", WaitReason.UNUSABLE), Outlook(None, "a"), False),
        (Outlook(None, "a", position=2), Outlook(None, "a", position=3), False),
    ],
)
def test_what_counts_as_news(told: Outlook, new: Outlook, is_same: bool) -> None:
    """Half a minute or a tenth of the wait is none. An estimate in the past is wrong."""
    assert new.is_as_good_as(told, NOON) is is_same


def test_places_are_told_to_all_and_starts_as_long_as_there_is_time() -> None:
    """A thousand wait. Planning is over after the third. Jobs behind it get their place."""
    found, queue = pools(), [job(number) for number in range(1000)]
    decisions = run_cycle(found, queue, POLICIES["easy"], NOON)
    asked = iter(range(10_000))
    effort = Effort(may_go_on=lambda: next(asked) < 2)
    told = forecast(found, queue, decisions, POLICIES["easy"], NOON, effort=effort)
    ones = [told[one.uid] for one in queue]
    assert [one.expected_start is not None for one in ones] == [True] * 3 + [False] * 997
    assert [ones[n].position for n in (0, 1, 20, 26, 999)] == [1, 2, 21, 31, 1001]


def test_nodes_that_cannot_be_used_have_a_word() -> None:
    """Of the cycle and of the forecast alike."""
    found = pools()
    found.set_node(replace(node("n0", rack="r2"), is_schedulable=False), {})
    queue = [job(1, 2), job(2, 2)]
    decisions = run_cycle(found, queue, POLICIES["easy"], NOON)
    told = forecast(found, queue, decisions, POLICIES["easy"], NOON)
    assert decisions.wait_reason["u1"] == told["u1"].wait_reason == WaitReason.UNUSABLE
    assert told["u2"].wait_reason is WaitReason.UNUSABLE


def test_what_bars_has_a_word() -> None:
    """A stopped queue, a limit. Not those that wait for room."""
    rules = {
        "stopped": QueueRules("stopped", is_started=False),
        "small": QueueRules("small", total=Limits(jobs=0)),
    }
    queue = [
        replace(job(1), queue="stopped"),
        replace(job(2), queue="small"),
        job(3),
    ]
    decisions = run_cycle(pools(), queue, POLICIES["easy"], NOON, Queues(rules))
    assert decisions.wait_reason == {"u1": WaitReason.STOPPED, "u2": WaitReason.OVER_LIMIT}
