"""Reviews of a new Job or Pod: it waits in the queue, or is left as it is.

``admit`` asks these rules.
"""

from __future__ import annotations

from dataclasses import replace

from fluxqueue.workload.gates import without_legacy_scheduler
from fluxqueue.workload.holding import asking_if_made, hold, why_untouched, with_wait
from fluxqueue.workload.kinds.admitted import JOB, POD
from fluxqueue_webhook.review_rules import Facts, Request, Rule, Verdict


def _untouched(request: Request, why: str) -> Verdict:
    """Leave the object as it came.

    A pod that names a predecessor's scheduler would never be placed.
    """
    if request.kind is not POD or request.obj is None:
        return Verdict("untouched", why=why)
    return Verdict("untouched", without_legacy_scheduler(request.obj), why)


def only_creation(_: Facts, request: Request) -> Verdict | None:
    """Later changes are left as they are."""
    return None if request.is_creation else _untouched(request, "only creation is looked at")


def known_kind(_: Facts, request: Request) -> Verdict | None:
    """Only Jobs, Pods and the kinds that make pods are managed."""
    is_known = request.kind is not None
    return None if is_known else _untouched(request, f"a {request.group_kind[1]} is not managed")


def ask_for_made(facts: Facts, request: Request) -> Facts | None:
    """Where sets are queued, a pod or Job that a controller made asks to be queued."""
    # Before the check for reasons: the label that is added here decides there.
    return replace(facts, wanted=asking_if_made(facts.wanted)) if request.all_ask else None


def excluded(facts: Facts, request: Request) -> Verdict | None:
    """An object that opts out, is bound, is deleted or belongs to another workload is left."""
    namespaces = request.settings.never_managed
    why = why_untouched(
        request.managed_kind, facts.wanted, namespace=request.namespace, never_managed=namespaces
    )
    return None if why is None else _untouched(request, why)


def wait_gated(facts: Facts, request: Request) -> Facts | None:
    """A Job waits with gated pods if its template, namespace or queue says so."""
    if request.kind is not JOB:
        return None
    return replace(facts, wanted=with_wait(facts.wanted, request.settings, request.namespace))


def hold_it(facts: Facts, request: Request) -> Verdict:
    """The workload is held for the queue, or refused if it could not be stored or decided."""
    held = hold(request.managed_kind, facts.wanted, facts.said, request.settings, request.user)
    return Verdict("taken", held.wanted, warnings=held.warnings)


RULES: tuple[Rule, ...] = (only_creation, known_kind, ask_for_made, excluded, wait_gated, hold_it)
