"""A queued Job and an apply of its manifest: it stays suspended, and the apply succeeds."""

from __future__ import annotations

import base64
import copy
from typing import Any

import orjson
import pytest

from fluxqueue.workload.holding import AdmitSettings
from fluxqueue_webhook.admit import admit
from tests.support.workloads import admission_review, batch_job, owner, patched

GATE = {"schedulingGates": [{"name": "fluxqueue"}]}
WAITS = {"fluxqueue/author-suspended": "false"}
HELD = {"fluxqueue/author-suspended": "true"}


def _update(old: dict[str, Any], *, suspend: bool = False, user: str = "gitops") -> dict[str, Any]:
    new = copy.deepcopy(old)
    new["spec"]["suspend"] = suspend
    review = admission_review(new, operation="UPDATE")
    review["request"] |= {"oldObject": old, "userInfo": {"username": user}}
    return review


def _queued(
    generation: int = 1, notes: dict[str, str] | None = None, **meta: Any
) -> dict[str, Any]:
    told = {"generation": generation, "annotations": notes or {}, **meta}
    return batch_job(meta=told, suspend=True, pod=GATE)


@pytest.mark.parametrize("job", [_queued(), _queued(4, WAITS)], ids=["first wait", "requeued"])
def test_it_stays_suspended(job: dict[str, Any]) -> None:
    """With a warning that says so."""
    response = admit(_update(job)).review["response"]
    assert response["allowed"] is True
    patch = orjson.loads(base64.b64decode(response["patch"]))
    assert patch == [{"op": "add", "path": "/spec/suspend", "value": True}]
    assert "waits in the queue" in response["warnings"][0]


@pytest.mark.parametrize(
    "review",
    [
        _update(_queued(notes=HELD)),
        _update(_queued(3)),
        _update(_queued(), suspend=True),
        _update(_queued(), user="controller"),
        _update(batch_job(meta={"generation": 1}, suspend=True)),
        _update(_queued(ownerReferences=[owner("JobSet")])),
    ],
    ids=["author's hold", "author's pause", "no change", "ours", "not gated", "an operator's"],
)
def test_others_may_resume(review: dict[str, Any]) -> None:
    settings = AdmitSettings(own_users=frozenset({"controller"}))
    response = admit(review, settings).review["response"]
    assert response["allowed"] is True
    assert "patch" not in response


def test_a_job_of_a_cron_job_stays_suspended() -> None:
    job = _queued(ownerReferences=[owner("CronJob")])
    assert "patch" in admit(_update(job)).review["response"]


HOSTNAME = "kubernetes.io/hostname"


@pytest.mark.parametrize(
    ("applied", "is_kept"),
    [
        ({"pool": "a"}, True),
        ({}, True),
        ({"pool": "b"}, False),
        ({"pool": "a", HOSTNAME: "n2"}, False),
        ({"pool": "a", HOSTNAME: "n1"}, False),
    ],
)
def test_a_released_job_keeps_its_node(applied: dict[str, str], is_kept: bool) -> None:
    """A server-side apply replaces the node selector. An edit of it is left to the API server."""
    selector = {"pool": "a", HOSTNAME: "n1"}
    numbered = {"labels": {"fluxqueue/jobid": "7"}}
    old = batch_job(template_meta=numbered, pod={"nodeSelector": selector})
    review = _update(old)
    review["request"]["object"]["spec"]["template"]["spec"]["nodeSelector"] = applied
    response = admit(review).review["response"]
    assert ("patch" in response) is is_kept
    if is_kept:
        stored = patched(review["request"]["object"], response)
        assert stored["spec"]["template"]["spec"]["nodeSelector"] == selector
