"""The metrics' names are an interface: documentation, alerts and dashboard use those there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fluxqueue import metrics
from webhook.metrics import AdmissionMetrics

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"\bfluxqueue_[a-z_]+\b")
SUFFIXES = ("_total", "_bucket", "_sum", "_count", "_created")


def _ours() -> set[str]:
    return {
        family.name for family in metrics.REGISTRY.collect() if family.name.startswith("fluxqueue_")
    }


def _webhooks() -> set[str]:
    return {_family(name) for name in NAME.findall(AdmissionMetrics().render())}


def _family(name: str) -> str:
    for suffix in SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def test_the_documentation_lists_exactly_the_metrics_there_are() -> None:
    lines = (ROOT / "docs" / "metrics.md").read_text().splitlines()
    listed = {_family(NAME.findall(line)[0]) for line in lines if line.startswith("| `fluxqueue_")}
    assert listed == _ours() | _webhooks()


@pytest.mark.parametrize("file", ["alerts.yaml", "dashboard.json"])
def test_the_chart_asks_for_metrics_that_exist(file: str) -> None:
    path = ROOT / "chart" / "files" / file
    asked = {_family(name) for name in NAME.findall(path.read_text())}
    assert asked, "nothing is asked for: the file has moved"
    assert not asked - _ours() - _webhooks()


def test_leadership_is_shown_and_taken_back() -> None:
    metrics.lead("test", 7)
    text = metrics.render().decode()
    assert 'fluxqueue_is_leader{role="test"} 1.0' in text
    assert 'fluxqueue_leadership_term{role="test"} 7.0' in text
    metrics.stop_leading("test")
    assert 'fluxqueue_is_leader{role="test"} 0.0' in metrics.render().decode()
