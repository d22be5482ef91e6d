"""Admission of changes to FluxJobs: their user is written down, and cannot be forged."""

from __future__ import annotations

from typing import Any

from fluxqueue.workload.holding import AdmitSettings
from fluxqueue_webhook.admit import admit
from tests.support.workloads import admission_review, patched

OURS = "system:serviceaccount:queue:controller"
SPEC = {"workload": {"kind": "Job", "name": "a", "uid": "u"}, "size": 1}


def ask(
    old: dict[str, Any],
    new: dict[str, Any],
    *,
    user: str = "alice",
    manager: str = "kubectl",
    settings: AdmitSettings | None = None,
) -> tuple[bool, Any]:
    """Ask for a change. Whether it is allowed, and what it adds or why not."""
    kind = {"apiVersion": "jobs.converged-computing.org/v1alpha1", "kind": "FluxJob"}
    before, after = (
        {**kind, "metadata": {"name": "a-job"}, "spec": {**SPEC, **one}} for one in (old, new)
    )
    review = admission_review(after, operation="UPDATE")
    sent = {"userInfo": {"username": user}, "options": {"fieldManager": manager}}
    review["request"] |= {**sent, "oldObject": before}
    settings = settings or AdmitSettings(own_users=frozenset({OURS} if user != "anyone" else ()))
    response = admit(review, settings).review["response"]
    if not response["allowed"]:
        return False, response["status"]
    stored = patched(after, response)
    return True, stored["spec"].get("steeredBy") if "patch" in response else None


def test_who_changes_what_is_written_down() -> None:
    """Beside what others changed before. A name that the user writes is not taken."""
    by = {"queue": "bob"}
    forged = {"hold": True, "queue": "gold", "steeredBy": {"hold": "eve", "queue": "eve"}}
    allowed, said = ask({"queue": "gold", "steeredBy": by}, forged)
    assert allowed
    assert said == {"queue": "bob", "hold": "alice"}
    assert ask({}, {}) == (True, None)


def test_what_is_ours_is_refused_as_kubectl_shows_it() -> None:
    """Field and sentence stand where kubectl looks for them."""
    allowed, status = ask({}, {"size": 5})
    assert not allowed
    (cause,) = status["details"]["causes"]
    assert (status["code"], cause["field"]) == (422, "spec.size")
    assert status["details"]["kind"] == "FluxJob"
    assert "change only hold, priority" in cause["message"]


def test_a_cancellation_names_its_user_and_is_true_or_false() -> None:
    """As every other change. Anything but true and false is refused with the field."""
    allowed, said = ask({}, {"cancel": True})
    assert allowed
    assert said == {"cancel": "alice"}
    allowed, status = ask({}, {"cancel": "yes"})
    assert not allowed
    assert "spec.cancel" in status["message"]


def test_our_own_parts_write_all_of_it() -> None:
    """By their accounts. By their field manager only where they have none of their own."""
    assert ask({}, {"size": 5}, user=OURS) == (True, None)
    assert not ask({}, {"size": 5}, manager="fluxqueue")[0]
    assert ask({}, {"size": 5}, user="anyone", manager="fluxqueue") == (True, None)


def test_an_account_that_is_shared_is_told_by_its_field_manager() -> None:
    """And no other account may borrow the name: the user of a FluxJob is read back."""
    settings = AdmitSettings(own_users=frozenset({OURS}), shared_users=frozenset({"admin"}))
    forged = {"user": "alice"}
    for user, manager, is_allowed in (
        ("admin", "fluxqueue", True),
        ("admin", "kubectl", False),
        (OURS, "anything", True),
        ("mallory", "fluxqueue", False),
    ):
        assert ask({}, forged, user=user, manager=manager, settings=settings)[0] is is_allowed
