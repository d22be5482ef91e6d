"""The table of kinds: what makes pods that one FluxJob stands for. Adding a kind is an entry here.

``Kind`` (``kind.py``) is the one interface: what is it, whose are its pods, what does it ask for,
how is it held, how is it released, how does it end. Each entry is a module of its own. Nobody else
compares kinds by name: the webhook, the controller and the check ask the entry; rows hold what
SQL must know of one as columns that the entry fills.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluxqueue.errors import InvalidInput
from fluxqueue.workload import labels
from fluxqueue.workload.kinds.bare_pod import BARE_POD
from fluxqueue.workload.kinds.batch_job import BATCH_JOB
from fluxqueue.workload.kinds.kind import Kind
from fluxqueue.workload.kinds.pod_group import POD_GROUP
from fluxqueue.workload.kinds.suspended_owner import SUSPENDED_OWNER
from fluxqueue.workload.references import Reference

__all__ = [
    "KINDS",
    "Kind",
    "find_kind",
    "kind_in_row",
    "kind_named",
    "kind_of",
    "kind_of_fluxjob",
    "workload_uid",
]

KINDS: tuple[Kind, ...] = (SUSPENDED_OWNER, POD_GROUP, BATCH_JOB, BARE_POD)
"""In the order in which they are asked whose a pod is; a bare Pod is what nobody else claims."""

_BY_NAME = {kind.name: kind for kind in KINDS}


def kind_named(name: str) -> Kind:
    """Give the entry of a kind as rows and FluxJobs name it.

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


def kind_in_row(name: str, reference: Reference | None) -> Kind:
    """Give the entry of a row: of its ``workload_kind``, unless its ``owner`` is what is suspended.

    Raises
    ------
    InvalidInput
        There is no such entry: the row is of a later version.
    """
    is_owner = reference is not None and bool(reference.suspend)
    return SUSPENDED_OWNER if is_owner else kind_named(name)


def kind_of_fluxjob(fluxjob: Mapping[str, Any]) -> Kind:
    """Give the entry of the workload that a FluxJob names: whatever is no other was suspended."""
    workload = fluxjob["spec"]["workload"]
    marks = (fluxjob.get("metadata") or {}).get("labels") or {}
    if marks.get(labels.WITHOUT_OBJECT) == "true":
        return POD_GROUP
    kind = _BY_NAME.get(workload["kind"], SUSPENDED_OWNER)
    is_its = kind.api_version == workload.get("apiVersion", kind.api_version)
    return kind if is_its else SUSPENDED_OWNER


def find_kind(group: str, name: str) -> Kind | None:
    """Give the entry of an API group and kind; None where it is not managed."""
    kind = _BY_NAME.get(name)
    is_its = kind is not None and kind.is_built_in and kind.has_object and kind.group == group
    return kind if is_its else None


def kind_of(workload: Mapping[str, Any]) -> Kind:
    """Give the entry of an object, also where a list left ``kind`` out.

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
    """UID of the workload that a pod belongs to: of whoever makes it, else its own."""
    # All but the bare Pod's; and a loop, for each event of each pod of the cluster passes here.
    for kind in KINDS[:-1]:
        uid = kind.claim(pod)
        if uid is not None:
            return uid
    return str(pod["metadata"]["uid"])
