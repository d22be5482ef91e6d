"""What an object was when its deletion was requested: only that tells how its work ended.

A deletion kills the pods of a workload, and its controller then counts them as failed. The
informers of workloads call ``carry``. The kinds of workloads call ``as_of_deletion``. Pure.
"""

from __future__ import annotations

from fluxqueue.workload.objects import Object

AT_DELETION = "fluxqueueAtDeletion"
"""Field in the stored form of an object: its status in the write that requested its deletion."""

_FAILURES = frozenset({"Failed", "FailureTarget"})


def carry(old: Object, new: Object) -> Object:
    """Return the state ``new`` of a watched workload with what only ``old`` knows of its deletion.

    The first watched state with a deletion time has the status of the moment of the request.
    """
    if not new["metadata"].get("deletionTimestamp"):
        return new
    if AT_DELETION in old:
        return {**new, AT_DELETION: old[AT_DELETION]}
    # ``old`` may have been listed while it was being deleted already: then the moment was missed.
    is_first = not old["metadata"].get("deletionTimestamp")
    return {**new, AT_DELETION: new.get("status") or {}} if is_first else new


def with_deletion(workload: Object, asked_at: str) -> Object:
    """Return a workload of a namespace that is being deleted since ``asked_at``.

    The status of its own deletion may be that after its pods were killed.
    """
    meta = workload["metadata"]
    if str(meta.get("deletionTimestamp") or asked_at) < asked_at:
        return workload
    rest = {key: value for key, value in workload.items() if key != AT_DELETION}
    return {**rest, "metadata": {**meta, "deletionTimestamp": asked_at}}


def as_of_deletion(workload: Object) -> Object:
    """Return a workload that is being deleted with the status that it had when that was requested.

    If that moment was not watched, the times of its conditions decide. A failure within the second
    of the request is left out, as is the count of failed pods: the pods themselves tell.
    """
    asked_at = workload["metadata"].get("deletionTimestamp")
    if not asked_at:
        return workload
    if AT_DELETION in workload:
        return {**workload, "status": workload[AT_DELETION]}
    status = {key: told for key, told in (workload.get("status") or {}).items() if key != "failed"}
    conditions = status.get("conditions")
    if isinstance(conditions, list):
        status["conditions"] = [one for one in conditions if not _is_after(one, asked_at)]
    return {**workload, "status": status}


def _is_after(condition: Object, asked_at: str) -> bool:
    """Return whether a condition may follow from the deletion. Times are in whole seconds."""
    at = str(condition.get("lastTransitionTime") or "")
    return at > asked_at or (at == asked_at and condition.get("type") in _FAILURES)
