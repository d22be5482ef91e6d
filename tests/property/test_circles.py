"""Circles of dependencies against trying every way there is."""

from __future__ import annotations

from itertools import pairwise, permutations

from hypothesis import given
from hypothesis import strategies as st

from fluxqueue.fluxjob.circles import shortest_circle, shortest_circles

NODES = "abcde"
EDGES = st.lists(st.tuples(st.sampled_from(NODES), st.sampled_from(NODES)), max_size=12)


def ways_back(start: str, edges: set[tuple[str, str]]) -> list[list[str]]:
    """All ways from ``start`` to itself that pass no point twice."""
    others = [node for node in NODES if node != start]
    tried = (
        [start, *between, start]
        for number in range(len(NODES))
        for between in permutations(others, number)
    )
    return [way for way in tried if all(step in edges for step in pairwise(way))]


@given(st.sampled_from(NODES), EDGES, st.randoms(use_true_random=False))
def test_a_shortest_circle(start: str, edges: list[tuple[str, str]], random: object) -> None:
    """None where there is none. Else one of the shortest, and always the same."""
    found = shortest_circle(start, edges)
    possible = ways_back(start, set(edges))
    if not possible:
        assert found == []
        return
    assert found in possible
    assert len(found) == min(map(len, possible))
    shuffled = list(edges)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert shortest_circle(start, shuffled) == found


def test_who_waits_for_itself() -> None:
    """The shortest circle there can be."""
    assert shortest_circle("a", [("a", "b"), ("a", "a")]) == ["a", "a"]


@given(st.sets(st.sampled_from(NODES)), EDGES)
def test_many_circles_at_once_are_those_of_each(
    starts: set[str], edges: list[tuple[str, str]]
) -> None:
    """One reading of the graph finds what a look from each start finds."""
    each = {start: shortest_circle(start, edges) for start in starts}
    assert shortest_circles(starts, edges) == {a: b for a, b in each.items() if b}
