"""The metrics' names are an interface: documentation, alerts and dashboard use those there are."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest

from fluxqueue.process import metrics
from fluxqueue_webhook.review_metrics import AdmissionMetrics

ROOT = Path(__file__).parents[2]
NAME = re.compile(r"\bfluxqueue_[a-z_]+\b")
SCRAPED = ("namespace", "service", "pod", "instance", "job")
"""Labels that Prometheus adds."""
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


def test_the_table_is_what_the_code_says() -> None:
    """`python docs/metrics_table.py` has been run. The words are the code's."""
    page = runpy.run_path(str(ROOT / "docs" / "metrics_table.py"))
    assert page["page_with"](page["table"]()) == page["PAGE"].read_text(encoding="utf-8")


def test_every_metric_is_described() -> None:
    """One that was made past the helpers would be missing from the table."""
    assert {_family(one.name) for one in metrics.DESCRIBED} == _ours()


def test_the_documentation_lists_exactly_the_metrics_there_are() -> None:
    lines = (ROOT / "docs" / "reference" / "metrics.md").read_text().splitlines()
    listed = {_family(NAME.findall(line)[0]) for line in lines if line.startswith("| `fluxqueue_")}
    assert listed == _ours() | _webhooks()


def test_the_dashboard_fits_the_schema_of_grafana() -> None:
    """Read into Grafana's own types and written again it is the same: no field is unknown to it."""
    from grafana_foundation_sdk.cog.encoder import JSONEncoder
    from grafana_foundation_sdk.models.dashboard import Dashboard

    given = json.loads((ROOT / "chart" / "files" / "dashboard.json").read_text(encoding="utf-8"))
    written = json.loads(JSONEncoder().encode(Dashboard.from_json(given)))
    assert _lost(given, written) == []


def _lost(given: object, written: object, where: str = "") -> list[str]:
    """Paths of what is not there, or otherwise, after it was read and written."""
    if isinstance(given, dict) and isinstance(written, dict):
        return [
            one
            for key, value in given.items()
            for one in _lost(value, written.get(key), f"{where}.{key}")
        ]
    if isinstance(given, list) and isinstance(written, list) and len(given) == len(written):
        pairs = enumerate(zip(given, written, strict=True))
        return [one for n, (a, b) in pairs for one in _lost(a, b, f"{where}[{n}]")]
    return [] if given == written else [f"{where}: {given!r} became {written!r}"]


@pytest.mark.parametrize("file", ["alerts.yaml", "dashboard.json"])
def test_the_chart_asks_for_metrics_that_exist(file: str) -> None:
    path = ROOT / "chart" / "files" / file
    asked = {_family(name) for name in NAME.findall(path.read_text())}
    assert asked, "nothing is asked for: the file has moved"
    assert not asked - _ours() - _webhooks()


@pytest.mark.parametrize("file", ["alerts.yaml", "dashboard.json"])
def test_the_chart_selects_by_labels_that_exist(file: str) -> None:
    """A selector by a label that no series has finds nothing, and an alert never fires."""
    page = runpy.run_path(str(ROOT / "docs" / "metrics_table.py"))
    described = [*metrics.DESCRIBED, *page["webhook_metrics"]()]
    labels = {_family(one.name): {*one.labels, *SCRAPED} for one in described}
    text = (ROOT / "chart" / "files" / file).read_text().replace('\\"', '"')
    selectors = re.findall(r"\b(fluxqueue_[a-z_]+)\{([^}]*)\}", text)
    assert selectors
    for name, matchers in selectors:
        used = set(re.findall(r"(\w+)(?:=~|!~|!=|=)", matchers))
        assert used <= labels[_family(name)], f"{name}{{{matchers}}}"


def test_leadership_is_shown_and_taken_back() -> None:
    metrics.lead("test", 7)
    text = metrics.render().decode()
    assert 'fluxqueue_is_leader{role="test"} 1.0' in text
    assert 'fluxqueue_leadership_term{role="test"} 7.0' in text
    metrics.stop_leading("test")
    assert 'fluxqueue_is_leader{role="test"} 0.0' in metrics.render().decode()


def test_no_label_names_a_user_or_a_workload() -> None:
    """Metrics are open to all that reach their port."""
    used = {
        label
        for collector in vars(metrics).values()
        for label in getattr(collector, "_labelnames", ())
    } | set(re.findall(r"(\w+)=\"", AdmissionMetrics().render()))
    assert {"queue", "state"} <= used
    assert not used & {"user", "namespace", "name", "uid", "workload", "job", "jobid", "pod"}
