"""The pauses of loops, and the budget of a pod."""

from __future__ import annotations

from contextlib import suppress

import pytest

from fluxqueue.clock import ManualClock
from fluxqueue.process.pacing import (
    BATCH_MIN,
    NEWCOMER_S,
    BatchPacer,
    BatchSize,
    Lately,
    Rest,
    TimeShare,
)


@pytest.mark.parametrize(
    ("is_awaited", "size", "delay_s", "in_a_row", "rest"),
    [
        (True, 1, 0.001, 22, BatchPacer.AWAITED),
        (True, 100, 0.005, 22, BatchPacer.AWAITED),
        (True, 1, 0.02, 7, BatchPacer.AWAITED._replace(each_s=BatchPacer.AWAITED_DELAYS * 0.02)),
        (True, 100, 1.0, 5, BatchPacer.AWAITED._replace(each_s=BatchPacer.CALM.each_s)),
        (False, 1, 1.0, 5, BatchPacer.CALM),
        (False, 10, 1.0, 3, BatchPacer.CALM._replace(each_s=10 * BatchPacer.PIECE_S)),
        (False, 100, 1.0, 2, BatchPacer.CALM._replace(each_s=BatchPacer.CALM_MAX_S)),
        (False, 1, 0.005, 10, BatchPacer.CALM._replace(each_s=BatchPacer.DELAYS * 0.005)),
        (False, 100, 0.03, 3, BatchPacer.CALM._replace(each_s=BatchPacer.DELAYS * 0.03)),
    ],
)
async def test_after_much_work_there_is_rest_in_times_of_what_it_took(
    *, is_awaited: bool, size: int, delay_s: float, in_a_row: int, rest: Rest
) -> None:
    """Never longer than a bound, longer where no job waits, and longest where many come as well,
    but for as long only as the API server is slow to answer. A process with little to do waits for
    nothing."""
    clock = ManualClock()
    pace = BatchPacer(clock, lambda: delay_s)
    pace.is_awaited, pace.size = is_awaited, size

    async def turn(took_s: float) -> float:
        arrived_s = clock.monotonic_s()
        await pace.rest()
        waited_s = clock.monotonic_s() - arrived_s
        with pace.work():
            clock.advance(took_s)
        return round(waited_s, 3)

    assert [await turn(0.02) for _ in range(in_a_row)] == [0] * in_a_row, "a few in a row"
    await turn(0.02)
    each_s = round(rest.each_s + (rest.times - 1) * 0.02, 3)
    assert [await turn(0.02) for _ in range(3)] == [each_s] * 3, "so many times, itself included"
    await turn(3.0)
    assert await turn(0.02) == round(rest.each_s + rest.most_s, 3)
    clock.advance(2.5)
    assert await turn(0.02) == 0


@pytest.mark.parametrize("delay_s", [0.005, 0.02, 0.05, 1.0])
@pytest.mark.parametrize("size", [1, 10, 100])
async def test_who_waits_for_room_never_waits_longer_than_where_nobody_does(
    size: int, delay_s: float
) -> None:
    """However late the API server answers."""

    async def thousand(*, is_awaited: bool) -> float:
        clock = ManualClock()
        pace = BatchPacer(clock, lambda: delay_s)
        pace.is_awaited, pace.size = is_awaited, size
        for _ in range(1000):
            await pace.rest()
            with pace.work():
                clock.advance(0.02)
        return clock.monotonic_s() - ManualClock().monotonic_s()

    assert await thousand(is_awaited=True) < await thousand(is_awaited=False)


async def test_a_newcomer_does_not_wait_for_the_pause_of_others() -> None:
    """After the least pause, so that many namespaces do not end all pauses."""
    clock = ManualClock()
    pace = BatchPacer(clock, lambda: 1.0)
    pace.is_awaited, pace.size = False, 100
    for _ in range(5):
        await pace.rest()
        with pace.work():
            clock.advance(1.0)
    arrived_s = clock.monotonic_s()
    await pace.rest(lambda: clock.monotonic_s() - arrived_s > 0.3)
    assert clock.monotonic_s() - arrived_s == pytest.approx(2 * NEWCOMER_S)


@pytest.mark.parametrize(
    ("size", "took_s", "limit"),
    [(200, 0.1, 200), (200, 0.8, 100), (100, 0.8, 50), (40, 9.0, BATCH_MIN), (20, 0.04, 200)],
)
def test_a_batch_is_so_large_that_it_takes_little_time(
    size: int, took_s: float, limit: int
) -> None:
    batch = BatchSize()
    batch.note(size, took_s)
    assert batch.limit == limit
    batch.note(BATCH_MIN - 1, 10.0)
    assert batch.limit == limit, "a small batch says nothing of a large one"


def test_lately_counts_what_has_just_happened() -> None:
    clock = ManualClock()
    lately = Lately(clock, 2.0)
    assert [lately.count(3), lately.count(0), lately.count(1)] == [3, 3, 4]
    clock.advance(1.5)
    assert lately.count(1) == 5
    clock.advance(0.5)
    assert lately.count(0) == 1
    clock.advance(9.0)
    assert lately.count(0) == 0


def test_work_that_takes_a_share_of_the_time_rests_in_proportion() -> None:
    """An eleventh of the time: ten times as long of rest, from two to eight seconds."""
    clock = ManualClock()
    share = TimeShare(clock, 1 / 11, least_s=2, most_s=8)
    assert share.left_s == 0
    with share.work():
        clock.advance(0.5)
    assert share.left_s == pytest.approx(5)
    clock.advance(4)
    assert share.left_s == pytest.approx(1)
    clock.advance(3)
    assert share.left_s == 0
    with share.work():
        clock.advance(2)
    assert share.left_s == pytest.approx(8)
    share.forget()
    assert share.left_s == 0
    with share.work():
        pass
    assert share.left_s == pytest.approx(2)


def test_work_that_fails_rests_as_well() -> None:
    """A tenant could otherwise ask one question after the other that ends at its limit."""
    clock = ManualClock()
    share = TimeShare(clock, 0.2)
    with suppress(ZeroDivisionError), share.work():
        clock.advance(0.5)
        _ = 1 / 0
    assert share.left_s == pytest.approx(2)
