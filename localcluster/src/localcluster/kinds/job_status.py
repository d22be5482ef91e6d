"""Consistency rules of a Job's status (``ValidateJobStatus`` and its update rules).

The Job strategy calls them for writes to /status. Pure.
"""

from __future__ import annotations

from localcluster.kinds.podspec_rules import not_negative
from localcluster.obj import Obj
from localcluster.types.refusals import (
    OMIT,
    FieldError,
    duplicate,
    required,
    wrong,
)


def _is_true(status: Obj, kind: str) -> bool:
    return any(
        c.get("type") == kind and c.get("status") == "True" for c in status.get("conditions") or ()
    )


def validate_job_status(new: Obj, old: Obj) -> list[FieldError]:
    """Check counts, uncounted pods, and the order of terminal conditions."""
    status, before = new.get("status") or {}, old.get("status") or {}
    errors = _validate_counts(status)
    errors += _validate_uncounted(status.get("uncountedTerminatedPods") or {})
    if status.get("conditions") != before.get("conditions"):
        errors += _validate_conditions(status)
    return errors + _validate_finished(status, before)


def _validate_counts(status: Obj) -> list[FieldError]:
    errors: list[FieldError] = []
    for key in ("active", "succeeded", "failed", "ready", "terminating"):
        errors += not_negative(f"status.{key}", status.get(key))
    ready = status.get("ready")
    if ready is not None and ready > status.get("active", 0):
        text = "cannot set more ready pods than active"
        errors.append(wrong("status.ready", ready, text))
    return errors


def _validate_uncounted(uncounted: Obj) -> list[FieldError]:
    errors: list[FieldError] = []
    for key in ("succeeded", "failed"):
        seen: set[str] = set()
        for index, uid in enumerate(uncounted.get(key) or ()):
            if uid in seen:
                path = f"status.uncountedTerminatedPods.{key}[{index}]"
                errors.append(duplicate(path, uid))
            seen.add(uid)
    return errors


def _condition_error(text: str) -> FieldError:
    return wrong("status.conditions", OMIT, text)


def _validate_conditions(status: Obj) -> list[FieldError]:
    is_complete, is_failed = _is_true(status, "Complete"), _is_true(status, "Failed")
    errors: list[FieldError] = []
    if is_complete and is_failed:
        errors.append(_condition_error("cannot set Complete=True and Failed=true conditions"))
    if is_complete and not status.get("completionTime"):
        text = "completionTime is required for Complete jobs"
        errors.append(required("status.completionTime", text))
    if is_failed and not _is_true(status, "FailureTarget"):
        text = "cannot set Failed=True condition without the FailureTarget=true condition"
        errors.append(_condition_error(text))
    if is_complete and not _is_true(status, "SuccessCriteriaMet"):
        text = "cannot set Complete=True condition without the SuccessCriteriaMet=true condition"
        errors.append(_condition_error(text))
    return errors


def _validate_finished(status: Obj, before: Obj) -> list[FieldError]:
    errors: list[FieldError] = []
    if not (_is_true(status, "Complete") or _is_true(status, "Failed")):
        return errors
    if _is_true(before, "Complete") or _is_true(before, "Failed"):
        return errors
    if not status.get("startTime"):
        text = "startTime is required for finished job"
        errors.append(required("status.startTime", text))
    if status.get("active", 0) > 0:
        text = "active>0 is invalid for finished job"
        errors.append(wrong("status.active", status["active"], text))
    return errors
