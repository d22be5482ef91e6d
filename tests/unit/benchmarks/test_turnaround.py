"""What the turnaround benchmark makes of the lives of pods."""

from __future__ import annotations

import pytest

from benchmarks.throughput.turnaround import PodLife, Turnarounds, after_others, pod_by_pod


def _life(job: str, node: str, made: float, run: float, end: float, bound: float = 0) -> PodLife:
    at_s = {"pods made": made, "ungated": made, "bound": bound or run, "run": run, "end": end}
    return PodLife(job, node, at_s)


FIRST = [_life("a", "n1", 0, 1, 10), _life("a", "n2", 0, 1, 12)]


def test_a_gang_follows_the_last_pod_that_held_one_of_its_nodes() -> None:
    """Stages that were over before the room was free count nothing."""
    next_ones = [_life("b", "n1", 13, 15, 20), _life("b", "n2", 13, 14.5, 20, bound=14)]
    returns = {"n1": [10.5], "n2": [12.25, 40]}
    [turn] = after_others([*FIRST, *next_ones], {"a": 0, "b": 12.5}, {"a": 0, "b": 12.75}, returns)
    assert turn.total_s == 2.5
    assert turn.stages_s == {
        "observe": 0.25,
        "decide": 0.25,
        "release": 0.25,
        "pods made": 0.25,
        "ungated": 0,
        "bound": 1,
        "run": 0.5,
    }


def test_kubernetes_alone_is_measured_pod_by_pod() -> None:
    """Its gangs start in parts, so a gang has no room of its own."""
    waiting = [_life("b", "n1", 0, 10.5, 20, bound=10.25), _life("b", "n2", 0, 12.5, 20)]
    found = pod_by_pod([*FIRST, *waiting])
    assert [one.total_s for one in found] == [0.5, 0.5]
    assert found[0].stages_s == {"pods made": 0, "ungated": 0, "bound": 0.25, "run": 0.25}
    assert Turnarounds(found, [0.2]).stage_s("bound", 0.5) == pytest.approx(0.5)
