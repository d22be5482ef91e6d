"""Admission as a function: an AdmissionReview in, an AdmissionReview out.

Called by ``fluxqueue_webhook.server`` for each request. It has no state, no clock and no client. An
answer depends on the review and the settings alone, so dry runs and repetitions are harmless. The
answer for a pod with a placement also depends on the time, which is an argument.

It chooses the kind of review, and asks the rules of that kind (``REVIEWS``) one after the other.
The patch is the difference between the object and the object that the last rule wants.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import orjson

from fluxqueue.errors import InvalidInput
from fluxqueue.workload.aliases import NOTHING_SAID, Translated
from fluxqueue.workload.holding import DEFAULT_SETTINGS, AdmitSettings
from fluxqueue.workload.json_patch import diff
from fluxqueue.workload.kinds.admitted import JOB
from fluxqueue.workload.object_shape import FLUXJOB, PLACEMENT_REVIEW, check_objects
from fluxqueue.workload.submitter import STAMPED
from fluxqueue_webhook import (
    applied_jobs,
    changed_fluxjobs,
    new_workloads,
    placed_pods,
    placement_questions,
    pod_makers,
)
from fluxqueue_webhook.review_rules import (
    MAX_WARNING,
    Facts,
    Request,
    Rule,
    Verdict,
    label,
    malformed,
    read_request,
)

REVIEWS: Mapping[str, Sequence[Rule]] = {
    "a changed FluxJob": changed_fluxjobs.RULES,
    "a new PlacementReview": placement_questions.RULES,
    "a changed Job": applied_jobs.RULES,
    "an object that makes pods or Jobs": pod_makers.RULES,
    "a new Job or Pod": new_workloads.RULES,
    "a new pod with a placement": placed_pods.RULES,
}
"""All rules, by the kind of review."""


@dataclass(frozen=True, slots=True)
class AdmissionAnswer:
    """Hold the AdmissionReview to send back, and its verdict for logs and metrics.

    ``verdict`` is ``taken``, ``placed``, ``untouched`` or ``refused``. ``why`` is the reason.
    """

    review: dict[str, Any]
    verdict: str
    kind: str
    why: str = ""


def admit(
    review: Mapping[str, Any],
    settings: AdmitSettings = DEFAULT_SETTINGS,
    *,
    all_ask: bool = False,
) -> AdmissionAnswer:
    """Answer an AdmissionReview.

    ``all_ask``: the request comes from a namespace where pods that a controller makes are queued.

    Raises
    ------
    InvalidInput
        ``review`` is not an admission.k8s.io/v1 AdmissionReview with a request.
    """
    request = read_request(review, settings, all_ask=all_ask)
    try:
        # The types come first: the rules read fields of custom resources without checks.
        old = request.old or None
        check_objects(request.group_kind, request.entry, object=request.obj, oldObject=old)
        # Before all that reads labels and annotations: an alias may have an object ask.
        said = _translated(request)
        return _decide(_rules_of(request), Facts(said.obj, said), request)
    except InvalidInput as error:
        return _refuse(request, error)


def _rules_of(request: Request) -> Sequence[Rule]:
    if request.group_kind == FLUXJOB:
        return changed_fluxjobs.RULES
    if request.group_kind == PLACEMENT_REVIEW:
        return placement_questions.RULES
    if request.kind is JOB and request.is_edit:
        return applied_jobs.RULES
    # Before the workloads: pods and Jobs depend on what their owner was given here.
    makes_pods = request.entry is not None or request.group_kind in STAMPED
    return pod_makers.RULES if makes_pods and request.obj is not None else new_workloads.RULES


def _translated(request: Request) -> Translated:
    """Return the request's object with fluxqueue's keys beside the aliases."""
    obj = request.obj or {}
    # An object that was stored before, and was not queued then, is not queued by an edit.
    is_queued = request.is_edit and label(request.old) == "true"
    if request.is_kept_out or not (request.is_creation or is_queued):
        return replace(NOTHING_SAID, obj=obj)
    return request.settings.aliases.translate(obj, request.namespace)


def place(review: Mapping[str, Any], settings: AdmitSettings, *, now_s: float) -> AdmissionAnswer:
    """Answer for a new pod with a placement: release it to its node, or let it come gated.

    ``now_s``: epoch seconds.

    Raises
    ------
    InvalidInput
        ``review`` is not an admission.k8s.io/v1 AdmissionReview with a request.
    """
    request = read_request(review, settings, now_s=now_s)
    return _decide(placed_pods.RULES, Facts(request.obj or {}, NOTHING_SAID), request)


def leave_gated(review: Any, why: str) -> AdmissionAnswer:
    """Allow a pod with a placement as it is. The worker ungates it.

    Raises
    ------
    InvalidInput
        Not even the envelope of the request can be read.
    """
    request = read_request(review)
    return _answer(request, Verdict("untouched", why=why))


def refuse_unread(
    review: Any, why: str, way_out: str = "see docs/admin/security.md"
) -> AdmissionAnswer:
    """Refuse a request that could not be evaluated, and give the reason and the way out.

    Raises
    ------
    InvalidInput
        Not even the envelope of the request can be read.
    """
    return _refuse(read_request(review), malformed(why, "object", hint=way_out))


def _decide(rules: Sequence[Rule], facts: Facts, request: Request) -> AdmissionAnswer:
    for rule in rules:
        found = rule(facts, request)
        if isinstance(found, Verdict):
            return _answer(request, found)
        facts = found or facts
    raise AssertionError("the last rule of a review ends it")


def _answer(request: Request, verdict: Verdict) -> AdmissionAnswer:
    review = _respond(request, allowed=True)
    patch = [] if verdict.wanted is None else diff(request.obj, verdict.wanted)
    if patch:
        review["response"]["patchType"] = "JSONPatch"
        review["response"]["patch"] = base64.b64encode(orjson.dumps(patch)).decode()
    if verdict.warnings:
        texts = [f"fluxqueue: {text}"[:MAX_WARNING] for text in verdict.warnings]
        review["response"]["warnings"] = texts
    return AdmissionAnswer(review, verdict.name, request.group_kind[1], verdict.why)


def _refuse(request: Request, error: InvalidInput) -> AdmissionAnswer:
    group, kind = request.group_kind
    meta = (request.obj or {}).get("metadata")
    named = [meta.get(key) for key in ("name", "generateName")] if isinstance(meta, dict) else []
    name = request.name or next((one for one in named if isinstance(one, str)), "")
    review = _respond(request, allowed=False)
    message = error.message + (f". Fix: {error.hint}" if error.hint else "")
    cause = {"reason": "FieldValueInvalid", "field": error.where, "message": message}
    review["response"]["status"] = {
        "status": "Failure",
        "code": 422,
        "reason": "Invalid",
        "message": str(error),
        # kubectl builds its message from these: The Job "x" is invalid: field: message
        "details": {"group": group, "kind": kind, "name": name, "causes": [cause]},
    }
    return AdmissionAnswer(review, "refused", kind, str(error))


def _respond(request: Request, *, allowed: bool) -> dict[str, Any]:
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": request.uid, "allowed": allowed},
    }
