"""Turns: one key of each namespace in turn, oldest first, each key once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fluxqueue.clock import ManualClock
from fluxqueue.controller.observing.dirty_set import DirtyKind, DirtySet
from fluxqueue.fluxjob.turns import Turns


def test_a_flood_delays_its_own_namespace_only() -> None:
    """The one key of another namespace is in the next batch, whatever came before it."""
    turns: Turns[int] = Turns()
    for n in range(5_000):
        turns.put(f"flood-{n}", "noisy", n)
    turns.put("late", "quiet", 5_000)
    assert turns.take(4) == ["flood-0", "flood-1", "flood-2", "late"]
    assert len(turns) == 4_997
    assert "late" not in turns
    assert turns.take(2) == ["flood-3", "flood-4"]


def test_lanes_that_were_not_served_come_first() -> None:
    """With more namespaces than a batch has places, each has its turn before any has two."""
    turns: Turns[int] = Turns()
    for n in range(12):
        turns.put(f"key-{n}", f"space-{n % 6}", n)
    first, second = turns.take(4), turns.take(4)
    assert {key.split("-")[1] for key in first + second[:2]} == {"0", "1", "2", "3", "4", "5"}


def test_marks_of_workloads_take_turns() -> None:
    """Also where the namespace is known by the key alone."""
    dirty = DirtySet(ManualClock(), lambda key: key.split("/")[0])
    for n in range(300):
        dirty.mark(DirtyKind.WORKLOAD, f"noisy/{n}")
    dirty.mark(DirtyKind.WORKLOAD, "quiet/0")
    batch = dirty.take(10)
    assert batch[DirtyKind.WORKLOAD][-1] == "quiet/0"
    dirty.put_back(batch)
    assert "quiet/0" in dirty.take(10)[DirtyKind.WORKLOAD]


@given(
    st.lists(st.tuples(st.integers(0, 30), st.sampled_from("abc"), st.integers(0, 99))),
    st.integers(1, 7),
)
def test_every_key_is_taken_once_and_each_lane_in_order(
    puts: list[tuple[int, str, int]], limit: int
) -> None:
    """Whatever was put, and however large a batch is."""
    turns: Turns[tuple[int, int]] = Turns()
    first: dict[str, tuple[str, int]] = {}
    for number, lane, order in puts:
        key = f"key-{number}"
        first.setdefault(key, (lane, order))
        turns.put(key, lane, (order, number))
    taken: list[str] = []
    while len(turns):
        batch = turns.take(limit)
        assert 1 <= len(batch) <= limit
        taken += batch
    assert sorted(taken) == sorted(first)
    for one in "abc":
        orders = [first[key][1] for key in taken if first[key][0] == one]
        assert orders == sorted(orders)


def test_a_namespace_that_the_last_batch_did_not_have_is_a_newcomer() -> None:
    dirty = DirtySet(ManualClock(), lambda key: key.split("/")[0])
    for number in range(5):
        dirty.mark(DirtyKind.WORKLOAD, f"many/{number}")
    dirty.take(2)
    assert not dirty.has_newcomer()
    dirty.mark(DirtyKind.NODE, "n1")
    dirty.take(0)
    assert not dirty.has_newcomer(), "a batch without workloads does not count"
    dirty.mark(DirtyKind.WORKLOAD, "one/0")
    assert dirty.has_newcomer()
    dirty.take(2)
    assert not dirty.has_newcomer()
