"""Admission of PlacementReviews: who asks is written down, and what cannot be read is refused."""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pytest

from fluxqueue_webhook.admit import AdmissionAnswer, admit
from tests.e2e.objects import job


def ask(
    spec: dict[str, Any], *, operation: str = "CREATE", user: dict[str, Any] | None = None
) -> AdmissionAnswer:
    """As the API server does."""
    return admit(
        {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "request": {
                "uid": "u1",
                "kind": {"group": "jobs.converged-computing.org", "kind": "PlacementReview"},
                "operation": operation,
                "namespace": "a",
                "userInfo": user or {"username": "ada", "groups": ["lab"]},
                "object": {"metadata": {"generateName": "ask-"}, "spec": spec},
            },
        }
    )


def patch_of(answer: AdmissionAnswer) -> list[dict[str, Any]]:
    text = answer.review["response"].get("patch", "")
    found: list[dict[str, Any]] = orjson.loads(base64.b64decode(text)) if text else []
    return found


@pytest.mark.parametrize("forged", [{}, {"asker": {"username": "root"}}])
def test_who_asks_is_written_over_whatever_stands_there(forged: dict[str, Any]) -> None:
    answer = ask({"manifest": job("x"), **forged})
    assert answer.verdict == "taken"
    (step,) = patch_of(answer)
    expected = {"username": "ada", "groups": ["lab"]}
    assert (step["op"], step["path"], step["value"]) == ("add", "/spec/asker", expected)


def test_looked_at_twice_it_is_written_once() -> None:
    spec = {"fluxJob": "a-job", "asker": {"username": "ada", "groups": ["lab"]}}
    assert patch_of(ask(spec)) == []


def test_what_cannot_be_asked_is_refused_with_its_field() -> None:
    answer = ask({"fluxJob": "a", "changes": {"size": 0}})
    response = answer.review["response"]
    assert (answer.verdict, response["allowed"]) == ("refused", False)
    (cause,) = response["status"]["details"]["causes"]
    assert cause["field"] == "spec.changes.size"


def test_only_creation_counts() -> None:
    assert ask({}, operation="UPDATE").verdict == "untouched"
