"""What the throughput benchmark makes of its runs."""

from __future__ import annotations

import pytest

from benchmarks.throughput.load import Load
from benchmarks.throughput.meters import MeterReading
from benchmarks.throughput.report import BYSTANDER, MANAGED, PLAIN, Measured, Run, rates

LOAD, OTHER = Load("one", 100, 1), Load("ten", 10, 10)


def _run(mode: str, rate: float, load: Load = LOAD) -> Run:
    return Run(mode, load, load.all_pods / rate, MeterReading(1.0, {}, None))


def test_each_run_is_held_against_kubernetes_alone_just_before_and_after() -> None:
    """A machine that has become twice as slow changes no ratio."""
    measured = Measured(
        [
            _run(PLAIN, 60),
            _run(BYSTANDER, 55),
            _run(MANAGED, 25, OTHER),
            _run(MANAGED, 30),
            _run(PLAIN, 40),
            _run(MANAGED, 15),
            _run(PLAIN, 20),
        ]
    )
    assert measured.ratios(LOAD, BYSTANDER) == pytest.approx([1.1])
    assert measured.ratios(LOAD, MANAGED) == pytest.approx([0.6, 0.5])
    assert measured.ratio(LOAD, MANAGED) == pytest.approx(0.55)
    assert any("ratio 0.55  (0.60 0.50)" in line for line in rates(measured))


def test_an_interrupted_turn_is_held_against_what_came_before_it() -> None:
    measured = Measured([_run(PLAIN, 50), _run(MANAGED, 25)])
    assert measured.ratios(LOAD, MANAGED) == pytest.approx([0.5])
    assert measured.ratio(LOAD, BYSTANDER) is None
