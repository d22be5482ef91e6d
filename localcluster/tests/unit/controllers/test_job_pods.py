"""Names, indexes and order of a Job's pods."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localcluster.controllers.job_backoff import (
    BackoffRecord,
    delay_s,
    remaining_s,
    with_finished_pods,
)
from localcluster.controllers.job_pods import (
    TRACKING_FINALIZER,
    finished_at,
    format_indexes,
    new_pod,
    parse_indexes,
    removal_rank,
)
from tests.support.builders import NOW, at, job, pod


@pytest.mark.parametrize(
    ("indexes", "text"),
    [(set(), ""), ({0}, "0"), ({0, 1}, "0,1"), ({0, 1, 2}, "0-2"), ({0, 2, 3, 4, 9}, "0,2-4,9")],
)
def test_compressed_indexes(indexes: set[int], text: str) -> None:
    """The server's form: two neighbours stay apart, three become a range."""
    assert format_indexes(indexes) == text


@given(st.sets(st.integers(0, 60)), st.integers(1, 61))
def test_indexes_survive_a_round_trip(indexes: set[int], completions: int) -> None:
    """Reading back gives the same set, cut at completions."""
    kept = {index for index in indexes if index < completions}
    assert parse_indexes(format_indexes(indexes), completions) == kept


def test_new_pod() -> None:
    """Generated name, tracking finalizer beside the template's own, controlling owner."""
    template = {
        "metadata": {"labels": {"a": "b"}, "finalizers": ["x/y"]},
        "spec": {"containers": [{"name": "m"}]},
    }
    made = new_pod(job(template=template))
    assert made["metadata"]["generateName"] == "j-"
    assert made["metadata"]["finalizers"] == ["x/y", TRACKING_FINALIZER]
    assert made["metadata"]["labels"] == {"a": "b"}
    assert made["metadata"]["ownerReferences"] == [
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": "j",
            "uid": "job-uid",
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    assert "annotations" not in made["metadata"]
    made["spec"]["containers"].append({})
    assert len(template["spec"]["containers"]) == 1


def test_long_names_keep_their_index() -> None:
    """The base is cut, never the index."""
    made = new_pod(job(metadata={"name": "x" * 63}), 12345)
    assert made["metadata"]["generateName"].endswith("-12345-")
    assert len(made["metadata"]["generateName"]) <= 58


def test_order_of_removal() -> None:
    """Unbound, pending, running unready, then ready. Among equals the newest."""
    unbound = pod("unbound", "Pending")
    unbound["spec"]["nodeName"] = ""
    old, new = pod("old"), pod("new")
    new["metadata"]["creationTimestamp"] = at(-10)
    pods = [old, new, pod("unready", ready=False), pod("pending", "Pending"), unbound]
    names = [p["metadata"]["name"] for p in sorted(pods, key=removal_rank)]
    assert names == ["unbound", "pending", "unready", "new", "old"]


def test_finish_time_of_a_pod_that_never_ended() -> None:
    """Without terminated containers: when it stopped being ready, else its deletion."""
    lost = pod("lost", "Running", ready=False)
    assert finished_at(lost).isoformat() == "2026-01-01T11:58:30+00:00"
    deleted = pod("deleted", "Running", deleted=True)
    assert (NOW - finished_at(deleted)).total_seconds() == 10


def test_backoff_record() -> None:
    """Failures since the last success. A success starts again."""
    record = with_finished_pods(BackoffRecord(), [], [pod("a", "Failed", ended_s=-30)])
    record = with_finished_pods(record, [], [pod("b", "Failed", ended_s=-20)])
    assert (record.failures, remaining_s(record, NOW, 10, 600)) == (2, 0)
    mixed = with_finished_pods(
        record,
        [pod("c", "Succeeded", ended_s=-5)],
        [pod("d", "Failed", ended_s=-9), pod("e", "Failed", ended_s=-2)],
    )
    assert mixed.failures == 1
    assert remaining_s(mixed, NOW, 10, 600) == 8


def test_backoff_delays() -> None:
    """10, 20, 40 ... up to ten minutes."""
    assert [delay_s(n, 10, 600) for n in (0, 1, 2, 3, 7, 40)] == [0, 10, 20, 40, 600, 600]
