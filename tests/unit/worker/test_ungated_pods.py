"""Pods that are ungated one by one: which of them the Job controller has made."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.db.store.reconciling import Ungate
from fluxqueue.fluxjob.node import Destination
from fluxqueue.worker.reconcile_pods import _is_of_job
from fluxqueue.workload.references import Reference

SUSPENDED = Reference("example.org/v1", "Train", "tune", "u", "trains", "spec.suspend").to_json()
RUNS = Reference("example.org/v1", "Set", "web", "u", "sets").to_json()


@pytest.mark.parametrize(
    ("kind", "owner", "expected"),
    [
        ("Job", None, True),
        ("Job", RUNS, True),
        ("Job", SUSPENDED, False),
        ("Pod", None, False),
        ("PodGroup", RUNS, False),
        ("Train", SUSPENDED, False),
        ("OfALaterVersion", None, False),
    ],
)
def test_only_pods_of_jobs_lose_the_owners_of_their_fields(
    kind: str, owner: Any, expected: bool
) -> None:
    """A kind without an entry is no error: its pods are released all the same."""
    ungate = Ungate(
        "u", "p", "ns", "pod", Destination("n", "n"), 1, "n", workload_kind=kind, owner=owner
    )
    assert _is_of_job(ungate) is expected
