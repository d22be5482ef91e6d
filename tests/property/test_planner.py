"""The planner against a brute-force timeline: one list element per second."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fluxion.ledger.planner import MultiPlanner

HORIZON = 40
TOTALS = (8, 5)

spans = st.tuples(
    st.integers(0, HORIZON - 2),
    st.integers(1, 12),
    st.integers(0, 4),
    st.integers(0, 3),
)
steps = st.lists(st.one_of(spans, st.integers(0, 30)), max_size=30)


class Timeline:
    """The obvious planner."""

    def __init__(self) -> None:
        self.used = [[0] * (HORIZON * 2) for _ in TOTALS]

    def shift(self, start: int, end: int, counts: tuple[int, ...], sign: int) -> None:
        for column, count in zip(self.used, counts, strict=True):
            for second in range(start, end):
                column[second] += sign * count


@settings(max_examples=200, deadline=None)
@given(steps=steps, query=st.tuples(st.integers(0, HORIZON), st.integers(1, 15)))
def test_planner_is_a_timeline(steps: list[object], query: tuple[int, int]) -> None:
    """Use, least free, fitting and candidate times agree after any adds and removes."""
    planner, timeline = MultiPlanner((1, 4), TOTALS), Timeline()
    held: dict[int, tuple[int, int, tuple[int, int]]] = {}
    for job, step in enumerate(steps):
        if isinstance(step, tuple):
            start, length, first, second = step
            end, counts = start + length, (first, second)
            planner.add_span(job, start, end, counts)
            timeline.shift(start, end, counts, 1)
            held[job] = (start, end, counts)
        elif held and isinstance(step, int):
            gone = sorted(held)[step % len(held)]
            start, end, counts = held[gone]
            assert planner.remove_span(gone)
            timeline.shift(start, end, counts, -1)
            del held[gone]
    _compare(planner, timeline, held, *query)


def _compare(
    planner: MultiPlanner,
    timeline: Timeline,
    held: dict[int, tuple[int, int, tuple[int, int]]],
    at: int,
    length: int,
) -> None:
    needs = (3, 2)
    for index, total in enumerate(TOTALS):
        column = timeline.used[index]
        assert planner.used_at(at, index) == column[at]
        assert planner.free_during(at, at + length, index) == total - max(column[at : at + length])

    def fits(start: int) -> bool:
        return all(
            max(timeline.used[i][start : start + length]) + need <= TOTALS[i]
            for i, need in enumerate(needs)
        )

    assert planner.fits_during(at, at + length, needs) == fits(at)
    points = sorted({t for start, end, _ in held.values() for t in (start, end)})
    expected = [t for t in points if t >= at and fits(t)]
    assert list(planner.candidate_times(at, length, needs)) == expected


def test_an_empty_planner_keeps_nothing() -> None:
    """After the last span is removed no point is left behind."""
    planner = MultiPlanner((1,), (4,))
    planner.add_span(1, 0, 10, (2,))
    planner.add_span(2, 5, 10, (2,))
    assert planner.points == [0, 5, 10]
    assert planner.remove_span(1)
    assert planner.remove_span(2)
    assert (planner.points, planner.references, planner.used) == ([], [], [[]])
    assert not planner.remove_span(2)
