"""Reading Kubernetes objects: owners, conditions, times, pod phases.

Pure accessors shared by all controllers; nothing here decides anything.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from localcluster.obj import Obj

LEASE_NAMESPACE = "kube-node-lease"
"""Where kubelets renew their Leases."""

TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})


def uid_of(obj: Obj) -> str:
    """``metadata.uid``."""
    uid: str = obj["metadata"].get("uid", "")
    return uid


def key_of(obj: Obj) -> tuple[str, str]:
    """(namespace, name)."""
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def controller_of(obj: Obj) -> Obj | None:
    """The owner reference with ``controller: true``."""
    for reference in obj["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            found: Obj = reference
            return found
    return None


def owner_reference(owner: Obj, api_version: str, kind: str) -> Obj:
    """A controlling owner reference, as the built-in controllers write it."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def is_deleting(obj: Obj) -> bool:
    """Has a deletionTimestamp."""
    return bool(obj["metadata"].get("deletionTimestamp"))


def phase_of(pod: Obj) -> str:
    """Pod phase; Pending if unset."""
    phase: str = (pod.get("status") or {}).get("phase") or "Pending"
    return phase


def is_finished(pod: Obj) -> bool:
    """Phase Succeeded or Failed."""
    return phase_of(pod) in TERMINAL_PHASES


def is_active(pod: Obj) -> bool:
    """Neither finished nor being deleted."""
    return not is_deleting(pod) and not is_finished(pod)


def is_terminating(pod: Obj) -> bool:
    """Being deleted and not finished yet."""
    return is_deleting(pod) and not is_finished(pod)


def condition_of(obj: Obj, kind: str) -> Obj | None:
    """The status condition of that type."""
    for condition in (obj.get("status") or {}).get("conditions") or ():
        if condition.get("type") == kind:
            found: Obj = condition
            return found
    return None


def is_true(obj: Obj, kind: str) -> bool:
    """That condition has status True."""
    condition = condition_of(obj, kind)
    return condition is not None and condition.get("status") == "True"


def is_ready(pod: Obj) -> bool:
    """Ready condition is True."""
    return is_true(pod, "Ready")


def node_name(pod: Obj) -> str:
    """``spec.nodeName``; empty while unbound."""
    name: str = pod["spec"].get("nodeName") or ""
    return name


def read_time(text: str | None) -> datetime | None:
    """A Time or MicroTime."""
    return datetime.fromisoformat(text) if text else None


def later(since: datetime, seconds: float) -> datetime:
    """Add seconds that an author may choose, within the years that a datetime can have."""
    try:
        return since + timedelta(seconds=seconds)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC) if seconds > 0 else datetime.min.replace(tzinfo=UTC)


def write_time(at: datetime) -> str:
    """A Time: whole seconds, UTC."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def write_micro_time(at: datetime) -> str:
    """A MicroTime: always six digits."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def now() -> datetime:
    """The present, in UTC; controllers pass it into the pure functions."""
    return datetime.now(UTC)
