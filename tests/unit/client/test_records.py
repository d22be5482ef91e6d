"""Answers as plain data: for notebooks, for pandas, and from people who write HTML into names."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from fluxqueue.client.explanation import changes_of, read_explanation
from fluxqueue.client.records import SHOWN_MAX, Records, job_record, queue_record
from fluxqueue.errors import ApiUnavailable, InvalidInput


def test_a_notebook_shows_a_table() -> None:
    """Escaped, with empty cells for None, and not more rows than can be read."""
    at = datetime(2030, 1, 1, tzinfo=UTC)
    rows = Records([{"name": "<script>", "at": at, "levels": {"rack": "r1"}, "why": None}])
    shown = rows._repr_html_()
    assert "<th>name</th>" in shown
    assert "&lt;script&gt;" in shown
    assert "<td>2030-01-01T00:00:00+00:00</td>" in shown
    assert "None" not in shown
    many = Records({"n": n} for n in range(SHOWN_MAX + 3))._repr_html_()
    assert many.count("<tr>") == SHOWN_MAX + 1
    assert "and 3 more" in many
    assert Records()._repr_html_().startswith("<table>")


def test_pandas_gets_flat_columns() -> None:
    pandas = pytest.importorskip("pandas")
    rows = Records([
        {"name": "a", "resources": {"cpu": {"free": 1}}},
        {"name": "b", "resources": {"cpu": {"free": 2}}},
    ])  # fmt: skip
    frame = rows.to_pandas()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["resources.cpu.free"]) == [1, 2]
    assert len(Records().to_pandas()) == 0


def test_without_pandas_the_way_out_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(InvalidInput, match=r"pandas: is not installed\. Fix: pip install pandas"):
        Records().to_pandas()


def test_records_of_jobs_and_queues_have_all_keys() -> None:
    """Also if the object has none of them, so that a table has no holes."""
    made: dict[str, Any] = {
        "metadata": {
            "namespace": "n", "name": "x-job", "creationTimestamp": "2030-01-01T00:00:00Z",
        },
        "spec": {"workload": {"name": "x", "kind": "Job"}},
    }  # fmt: skip
    record = job_record(made)
    assert (record["state"], record["submitted"]) == ("Pending", datetime(2030, 1, 1, tzinfo=UTC))
    assert (record["started"], record["jobid"]) == (None, None)
    assert queue_record({"metadata": {"name": "q"}})["pending"] == 0


def review(**status: Any) -> dict[str, Any]:
    """An answered review."""
    return {"status": {"answeredAt": "2030-01-01T00:00:00Z", **status}}


def test_an_answer_is_read_whole() -> None:
    """As a sentence, and as a table for notebooks."""
    found = read_explanation(review(
        verdict="Later", message="2 of 4 nodes are free", expectedStart="2030-01-01T01:00:00Z",
        certainty="Estimated", queue={"position": 3}, blockers=[{"name": "<b>", "jobid": 7}],
    ))  # fmt: skip
    assert found.expected_start == datetime(2030, 1, 1, 1, tzinfo=UTC)
    assert (found.verdict, found.position, found.blockers[0]["jobid"]) == ("Later", 3, 7)
    assert str(found) == "Later at 2030-01-01T01:00:00+00:00: 2 of 4 nodes are free"
    assert "&lt;b&gt;" in found._repr_html_()


def test_no_answer_is_an_error() -> None:
    """Of the question, or of the moment."""
    with pytest.raises(InvalidInput, match="no such queue"):
        read_explanation(review(reason="Invalid", message="no such queue"))
    with pytest.raises(ApiUnavailable, match="busy"):
        read_explanation(review(reason="Busy", message="busy"))


def test_changes_are_those_of_a_review() -> None:
    assert changes_of() == {}
    assert changes_of(size=4, time=timedelta(minutes=2), queue="q", within="") == {
        "size": 4, "durationSeconds": 120, "queue": "q", "within": ""
    }  # fmt: skip
    assert changes_of(time="0") == changes_of(time=0) == {"durationSeconds": 0}
    assert changes_of(time="2h", requests={"cpu": "4"}) == {
        "durationSeconds": 7200, "requests": {"cpu": "4"}
    }  # fmt: skip
