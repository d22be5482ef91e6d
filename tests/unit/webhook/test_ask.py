"""Admission of PlacementReviews: the user is written down, and what cannot be read is refused."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue_webhook.admit import AdmissionAnswer, admit
from tests.support.e2e.objects import job
from tests.support.workloads import admission_review, patched


def ask(
    spec: dict[str, Any], *, operation: str = "CREATE", user: dict[str, Any] | None = None
) -> AdmissionAnswer:
    """As the API server does."""
    group = "jobs.converged-computing.org"
    question = {"apiVersion": f"{group}/v1alpha1", "kind": "PlacementReview", "spec": spec}
    review = admission_review({**question, "metadata": {"name": "ask"}}, operation=operation)
    review["request"]["userInfo"] = user or {"username": "ada", "groups": ["lab"]}
    return admit(review)


@pytest.mark.parametrize("forged", [{}, {"asker": {"username": "root"}}])
def test_who_asks_is_written_over_whatever_stands_there(forged: dict[str, Any]) -> None:
    answer = ask({"manifest": job("x"), **forged})
    assert answer.verdict == "taken"
    stored = patched({"spec": forged}, answer.review["response"])
    assert stored["spec"]["asker"] == {"username": "ada", "groups": ["lab"]}


def test_looked_at_twice_it_is_written_once() -> None:
    spec = {"fluxJob": "a-job", "asker": {"username": "ada", "groups": ["lab"]}}
    assert "patch" not in ask(spec).review["response"]


def test_what_cannot_be_asked_is_refused_with_its_field() -> None:
    answer = ask({"fluxJob": "a", "changes": {"size": 0}})
    response = answer.review["response"]
    assert (answer.verdict, response["allowed"]) == ("refused", False)
    (cause,) = response["status"]["details"]["causes"]
    assert cause["field"] == "spec.changes.size"


def test_only_creation_counts() -> None:
    assert ask({}, operation="UPDATE").verdict == "untouched"
