"""Accessors for Kubernetes objects: owners, conditions, times, pod phases.

They are pure and shared by all controllers. They decide nothing.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from localcluster.obj import Obj

LEASE_NAMESPACE = "kube-node-lease"
"""The namespace in which kubelets renew their Leases."""

TERMINAL_PHASES = frozenset({"Succeeded", "Failed"})


def uid_of(obj: Obj) -> str:
    """Return ``metadata.uid``."""
    uid: str = obj["metadata"].get("uid", "")
    return uid


def key_of(obj: Obj) -> tuple[str, str]:
    """Return (namespace, name)."""
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def controller_of(obj: Obj) -> Obj | None:
    """Return the owner reference with ``controller: true``, or None."""
    for reference in obj["metadata"].get("ownerReferences") or ():
        if reference.get("controller"):
            found: Obj = reference
            return found
    return None


def owner_reference(owner: Obj, api_version: str, kind: str) -> Obj:
    """Return a controlling owner reference, as the built-in controllers write it."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": owner["metadata"]["name"],
        "uid": owner["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


def is_deleting(obj: Obj) -> bool:
    """Return whether the object has a deletionTimestamp."""
    return bool(obj["metadata"].get("deletionTimestamp"))


def phase_of(pod: Obj) -> str:
    """Return the pod phase, or Pending if it is not set."""
    phase: str = (pod.get("status") or {}).get("phase") or "Pending"
    return phase


def is_finished(pod: Obj) -> bool:
    """Return whether the phase is Succeeded or Failed."""
    return phase_of(pod) in TERMINAL_PHASES


def is_active(pod: Obj) -> bool:
    """Return whether the pod is neither finished nor being deleted."""
    return not is_deleting(pod) and not is_finished(pod)


def is_terminating(pod: Obj) -> bool:
    """Return whether the pod is being deleted and not finished yet."""
    return is_deleting(pod) and not is_finished(pod)


def condition_of(obj: Obj, kind: str) -> Obj | None:
    """Return the status condition of that type, or None."""
    for condition in (obj.get("status") or {}).get("conditions") or ():
        if condition.get("type") == kind:
            found: Obj = condition
            return found
    return None


def is_true(obj: Obj, kind: str) -> bool:
    """Return whether that condition has status True."""
    condition = condition_of(obj, kind)
    return condition is not None and condition.get("status") == "True"


def is_ready(pod: Obj) -> bool:
    """Return whether the Ready condition is True."""
    return is_true(pod, "Ready")


def node_name(pod: Obj) -> str:
    """Return ``spec.nodeName``, which is empty while the pod is unbound."""
    name: str = pod["spec"].get("nodeName") or ""
    return name


def read_time(text: str | None) -> datetime | None:
    """Parse a Time or MicroTime."""
    return datetime.fromisoformat(text) if text else None


def later(since: datetime, seconds: float) -> datetime:
    """Add seconds that an author may choose, within the years that a datetime can have."""
    try:
        return since + timedelta(seconds=seconds)
    except OverflowError:
        return datetime.max.replace(tzinfo=UTC) if seconds > 0 else datetime.min.replace(tzinfo=UTC)


def write_time(at: datetime) -> str:
    """Return a Time: whole seconds, UTC."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def write_micro_time(at: datetime) -> str:
    """Return a MicroTime: always six digits."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def now() -> datetime:
    """Return the present time in UTC. Controllers pass it to the pure functions."""
    return datetime.now(UTC)
