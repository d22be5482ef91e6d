"""The chart: blocks where the schedule has them, and files that are pictures."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

from fluxqueue.errors import InvalidSettings
from fluxqueue.policy.queue_policy import POLICIES
from fluxqueue.simulation.arrivals import node_faults, synthetic
from fluxqueue.simulation.gantt import Panel, blocks, draw
from fluxqueue.simulation.schedule_figures import figures
from fluxqueue.simulation.simulated_jobs import uniform_cluster
from fluxqueue.simulation.simulator import SimulatedSite, simulate


def panel(count: int = 60, faults: int = 2) -> Panel:
    """A simulated schedule."""
    nodes = uniform_cluster(6, 8)
    jobs = synthetic(1, count, nodes=6, cores_per_node=8)
    lost = node_faults(1, [n.name for n in nodes], count=faults, until_s=jobs[-1].submit_s)
    records = simulate(nodes, jobs, POLICIES["easy"], site=SimulatedSite(faults=lost))
    return Panel(figures("easy", records, nodes), records, nodes, lost)


def test_blocks_show_all_work_and_never_overlap() -> None:
    """The area of a job's blocks is its cores over its time. No two blocks share a lane."""
    one = panel()
    drawn = list(blocks(one))
    for record in one.records:
        area = sum(b.height * (b.until - b.since) for b in drawn if b.record.job == record.job)
        used = sum(
            (until - since) * sum(dict(s.resources)["cpu"] for s in placement.slots)
            for since, until, placement in record.spans
        )
        assert area == pytest.approx(used / 8000)
    for a, b in combinations(drawn, 2):
        is_beside = a.until <= b.since or b.until <= a.since
        is_above = a.top + a.height <= b.top + 1e-9 or b.top + b.height <= a.top + 1e-9
        assert is_beside or is_above


@pytest.mark.cases_long("the other format")
@pytest.mark.parametrize(("suffix", "head"), [(".svg", b"<?xml"), (".png", b"\x89PNG")])
def test_pictures(tmp_path: Path, suffix: str, head: bytes) -> None:
    """Both formats, two panels, and the same bytes for the same schedule."""
    pytest.importorskip("matplotlib")
    outputs = [tmp_path / f"{name}{suffix}" for name in ("a", "b")]
    for output in outputs:
        draw([panel(20), panel(20)], output)
    first, second = (output.read_bytes() for output in outputs)
    assert first.startswith(head)
    assert first == second


def test_an_unknown_format_is_refused_before_anything_is_drawn(tmp_path: Path) -> None:
    """With the formats that there are."""
    with pytest.raises(InvalidSettings, match=r"\.svg, \.png"):
        draw([], tmp_path / "chart.jpeg")
