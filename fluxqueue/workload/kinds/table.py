"""The table of kinds: what makes the pods of one FluxJob. To add a kind, add an entry here.

``WorkloadKind`` (``kind.py``) is the one interface. It covers detection, pod ownership, request,
hold, release and end. Each entry is a module of its own. No other module compares kinds by name.
The webhook, the controller and the check ask the entry. Rows hold what SQL must know about a kind
as columns that the entry fills.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluxqueue.errors import InvalidInput
from fluxqueue.workload import labels
from fluxqueue.workload.kinds.bare_pod import BARE_POD
from fluxqueue.workload.kinds.batch_job import BATCH_JOB
from fluxqueue.workload.kinds.kind import WorkloadKind
from fluxqueue.workload.kinds.pod_group import POD_GROUP
from fluxqueue.workload.kinds.suspended_owner import SUSPENDED_OWNER
from fluxqueue.workload.references import Reference

KINDS: tuple[WorkloadKind, ...] = (SUSPENDED_OWNER, POD_GROUP, BATCH_JOB, BARE_POD)
"""The order in which the kinds are asked about a pod.

A pod that no other kind claims is a bare Pod.
"""

_BY_NAME = {kind.name: kind for kind in KINDS}


def kind_named(name: str) -> WorkloadKind:
    """Return the entry of a kind by its name in rows and FluxJobs.

    Raises
    ------
    InvalidInput
        There is no such entry: the row is of a later version.
    """
    try:
        return _BY_NAME[name]
    except KeyError:
        known = ", ".join(sorted(_BY_NAME))
        raise InvalidInput(
            "is no kind of workload known here", where="kind", value=name, hint=f"known: {known}"
        ) from None


def kind_in_row(name: str, reference: Reference | None) -> WorkloadKind:
    """Return the entry of a row, from its ``workload_kind`` or from its ``owner``.

    The ``owner`` counts if it is the suspended object.

    Raises
    ------
    InvalidInput
        There is no such entry: the row is of a later version.
    """
    is_owner = reference is not None and bool(reference.suspend)
    return SUSPENDED_OWNER if is_owner else kind_named(name)


def kind_of_fluxjob(fluxjob: Mapping[str, Any]) -> WorkloadKind:
    """Return the entry of the workload that a FluxJob names. A kind without entry was suspended."""
    workload = fluxjob["spec"]["workload"]
    marks = (fluxjob.get("metadata") or {}).get("labels") or {}
    if marks.get(labels.WITHOUT_OBJECT) == "true":
        return POD_GROUP
    kind = _BY_NAME.get(workload["kind"], SUSPENDED_OWNER)
    is_its = kind.api_version == workload.get("apiVersion", kind.api_version)
    return kind if is_its else SUSPENDED_OWNER


def find_kind(group: str, name: str) -> WorkloadKind | None:
    """Return the entry of an API group and kind, or None if the kind is not managed."""
    kind = _BY_NAME.get(name)
    is_its = kind is not None and kind.is_built_in and kind.has_object and kind.group == group
    return kind if is_its else None


def kind_of(workload: Mapping[str, Any]) -> WorkloadKind:
    """Return the entry of an object, also if a list left ``kind`` out.

    Raises
    ------
    InvalidInput
        It names a kind that has no entry.
    """
    name = workload.get("kind")
    if name:
        return kind_named(name)
    return next(kind for kind in KINDS if kind.looks_like(workload))


def workload_uid(pod: Mapping[str, Any]) -> str:
    """Return the UID of the workload that a pod belongs to: its maker's, or its own."""
    # The bare Pod's entry is skipped: a loop runs this for each event of each pod of the cluster.
    for kind in KINDS[:-1]:
        uid = kind.claim(pod)
        if uid is not None:
            return uid
    return str(pod["metadata"]["uid"])
