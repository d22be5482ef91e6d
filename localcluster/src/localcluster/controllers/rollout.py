"""How a Deployment moves from old ReplicaSets to the new one: sizes, status, conditions.

Pure.

It follows ``pkg/controller/deployment`` (rolling.go, recreate.go, sync.go, progress.go). Not
implemented is proportional scaling of several ReplicaSets when a Deployment is scaled during a
rollout.
"""

from __future__ import annotations

import math
from datetime import datetime

from localcluster.controllers.templates import safe_hash
from localcluster.loops.objects import is_deleting, later, owner_reference, read_time, write_time
from localcluster.obj import Obj

HASH_LABEL = "pod-template-hash"
REVISION = "deployment.kubernetes.io/revision"
DESIRED = "deployment.kubernetes.io/desired-replicas"
MAXIMUM = "deployment.kubernetes.io/max-replicas"


def resolve(value: int | str, total: int, *, up: bool) -> int:
    """Return an IntOrString as a number out of ``total``."""
    if isinstance(value, int):
        return value
    share = int(value.rstrip("%")) * total / 100
    return math.ceil(share) if up else math.floor(share)


def limits(deployment: Obj) -> tuple[int, int]:
    """Return (maxSurge, maxUnavailable) in pods. At least one of them is above 0."""
    spec = deployment["spec"]
    strategy = spec.get("strategy") or {}
    if strategy.get("type") == "Recreate":
        return 0, spec["replicas"]
    rolling = strategy.get("rollingUpdate") or {}
    surge = resolve(rolling.get("maxSurge", "25%"), spec["replicas"], up=True)
    unavailable = resolve(rolling.get("maxUnavailable", "25%"), spec["replicas"], up=False)
    return surge, (unavailable if surge or unavailable else 1)


def _plain_template(template: Obj) -> Obj:
    metadata = dict(template.get("metadata") or {})
    labels = {k: v for k, v in (metadata.get("labels") or {}).items() if k != HASH_LABEL}
    metadata.pop("creationTimestamp", None)
    return {**template, "metadata": {**metadata, "labels": labels}}


def new_replica_set(deployment: Obj, sets: list[Obj]) -> Obj | None:
    """Return the ReplicaSet with the Deployment's present template, the oldest of several."""
    wanted = _plain_template(deployment["spec"]["template"])
    matching = [rs for rs in sets if _plain_template(rs["spec"]["template"]) == wanted]
    return min(matching, key=lambda rs: rs["metadata"]["creationTimestamp"], default=None)


def revision_of(obj: Obj) -> int:
    """Return the revision annotation as a number."""
    text = (obj["metadata"].get("annotations") or {}).get(REVISION, "0")
    return int(text) if text.isdigit() else 0


def size_annotations(deployment: Obj) -> dict[str, str]:
    """Return the annotations of every active ReplicaSet about its Deployment."""
    replicas = deployment["spec"]["replicas"]
    return {DESIRED: str(replicas), MAXIMUM: str(replicas + limits(deployment)[0])}


def make_replica_set(deployment: Obj, replicas: int, revision: int) -> Obj:
    """Return the body of a new ReplicaSet."""
    spec = deployment["spec"]
    collisions = (deployment.get("status") or {}).get("collisionCount") or 0
    digest = safe_hash(_plain_template(spec["template"]), collisions)
    template = _plain_template(spec["template"])
    template["metadata"]["labels"] |= {HASH_LABEL: digest}
    selector = dict(spec["selector"])
    selector["matchLabels"] = (selector.get("matchLabels") or {}) | {HASH_LABEL: digest}
    metadata = deployment["metadata"]
    annotations = {
        key: value
        for key, value in (metadata.get("annotations") or {}).items()
        if key not in {"kubectl.kubernetes.io/last-applied-configuration", REVISION}
    }
    body: Obj = {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": f"{metadata['name']}-{digest}",
            "namespace": metadata["namespace"],
            "labels": template["metadata"]["labels"],
            "annotations": annotations | size_annotations(deployment) | {REVISION: str(revision)},
            "ownerReferences": [owner_reference(deployment, "apps/v1", "Deployment")],
        },
        "spec": {"replicas": replicas, "selector": selector, "template": template},
    }
    if spec.get("minReadySeconds"):
        body["spec"]["minReadySeconds"] = spec["minReadySeconds"]
    return body


def _size(rs: Obj) -> int:
    size: int = rs["spec"].get("replicas", 1)
    return size


def _count(rs: Obj, name: str) -> int:
    count: int = (rs.get("status") or {}).get(name) or 0
    return count


def new_set_size(deployment: Obj, new: Obj | None, old: list[Obj]) -> int:
    """Return how large the new ReplicaSet should be now."""
    wanted: int = deployment["spec"]["replicas"]
    present = _size(new) if new is not None else 0
    if (deployment["spec"].get("strategy") or {}).get("type") == "Recreate":
        is_waiting = any(_size(rs) or _count(rs, "replicas") for rs in old)
        is_waiting = is_waiting or any(_count(rs, "terminatingReplicas") for rs in old)
        return 0 if is_waiting else wanted
    if present >= wanted:
        return wanted
    total = present + sum(_size(rs) for rs in old)
    room = wanted + limits(deployment)[0] - total
    return present + max(0, min(room, wanted - present))


def old_set_sizes(deployment: Obj, new: Obj, old: list[Obj]) -> dict[str, int]:
    """Return the new sizes, by name, of the old ReplicaSets that shrink now.

    Unhealthy pods are removed first.
    """
    active = [rs for rs in old if _size(rs) > 0]
    if (deployment["spec"].get("strategy") or {}).get("type") == "Recreate":
        return {rs["metadata"]["name"]: 0 for rs in active}
    floor = deployment["spec"]["replicas"] - limits(deployment)[1]
    total = _size(new) + sum(_size(rs) for rs in active)
    new_missing = _size(new) - _count(new, "availableReplicas")
    budget = total - floor - new_missing
    sizes = {rs["metadata"]["name"]: _size(rs) for rs in active}
    if budget <= 0:
        return {}
    ordered = sorted(active, key=lambda rs: rs["metadata"]["creationTimestamp"])
    for rs in ordered:  # removing unavailable pods loses nothing
        name = rs["metadata"]["name"]
        cut = min(budget, sizes[name] - min(sizes[name], _count(rs, "availableReplicas")))
        sizes[name] -= cut
        budget -= cut
    available = sum(_count(rs, "availableReplicas") for rs in [new, *active])
    spare = max(0, available - floor)
    for rs in ordered:
        name = rs["metadata"]["name"]
        cut = min(spare, sizes[name])
        sizes[name] -= cut
        spare -= cut
    return {
        rs["metadata"]["name"]: sizes[rs["metadata"]["name"]]
        for rs in active
        if sizes[rs["metadata"]["name"]] < _size(rs)
    }


def surplus_sets(deployment: Obj, old: list[Obj]) -> list[Obj]:
    """Return empty old ReplicaSets beyond revisionHistoryLimit, oldest revisions first."""
    limit = deployment["spec"].get("revisionHistoryLimit", 10)
    empty = [
        rs for rs in old if not _size(rs) and not _count(rs, "replicas") and not is_deleting(rs)
    ]
    return sorted(empty, key=revision_of)[: max(0, len(empty) - limit)]


# -- status ----------------------------------------------------------------------------------------


def _with_condition(
    conditions: list[Obj], kind: str, status: str, why: tuple[str, str], now: datetime
) -> list[Obj]:
    """Set one condition.

    With the same status and reason it keeps its place. Otherwise it becomes the last.
    """
    old = next((c for c in conditions if c["type"] == kind), None)
    if old is not None and (old["status"], old.get("reason")) == (status, why[0]):
        return conditions
    at = write_time(now)
    is_same_status = old is not None and old["status"] == status
    condition = {
        "type": kind,
        "status": status,
        "lastUpdateTime": at,
        "lastTransitionTime": old["lastTransitionTime"] if old and is_same_status else at,
        "reason": why[0],
        "message": why[1],
    }
    return [*(c for c in conditions if c["type"] != kind), condition]


def created_status(deployment: Obj, name: str, now: datetime) -> Obj:
    """Return the status directly after the new ReplicaSet was created."""
    status = dict(deployment.get("status") or {})
    why = ("NewReplicaSetCreated", f'Created new replica set "{name}"')
    before = status.get("conditions") or []
    return status | {"conditions": _with_condition(before, "Progressing", "True", why, now)}


def deployment_status(deployment: Obj, new: Obj | None, sets: list[Obj], now: datetime) -> Obj:
    """Return the status with counts and conditions."""
    replicas = sum(_count(rs, "replicas") for rs in sets)
    available = sum(_count(rs, "availableReplicas") for rs in sets)
    wanted = max(deployment["spec"]["replicas"], sum(_size(rs) for rs in sets))
    counts = {
        "observedGeneration": deployment["metadata"]["generation"],
        "replicas": replicas,
        "updatedReplicas": _count(new, "replicas") if new is not None else 0,
        "readyReplicas": sum(_count(rs, "readyReplicas") for rs in sets),
        "availableReplicas": available,
        "unavailableReplicas": max(0, wanted - available),
    }
    status: Obj = {name: count for name, count in counts.items() if count}
    status["terminatingReplicas"] = sum(_count(rs, "terminatingReplicas") for rs in sets)
    before = deployment.get("status") or {}
    if before.get("collisionCount"):
        status["collisionCount"] = before["collisionCount"]
    status["conditions"] = _conditions(deployment, new, status, now)
    return status


def _conditions(deployment: Obj, new: Obj | None, status: Obj, now: datetime) -> list[Obj]:
    conditions: list[Obj] = (deployment.get("status") or {}).get("conditions") or []
    floor = deployment["spec"]["replicas"] - limits(deployment)[1]
    if status.get("availableReplicas", 0) >= floor:
        why = ("MinimumReplicasAvailable", "Deployment has minimum availability.")
        conditions = _with_condition(conditions, "Available", "True", why, now)
    else:
        why = ("MinimumReplicasUnavailable", "Deployment does not have minimum availability.")
        conditions = _with_condition(conditions, "Available", "False", why, now)
    return _progressed(deployment, new, status, conditions, now=now)


def is_complete(deployment: Obj, status: Obj) -> bool:
    """Return whether all pods are new and available."""
    wanted = deployment["spec"]["replicas"]
    return bool(
        status.get("updatedReplicas", 0) == wanted
        and status.get("replicas", 0) == wanted
        and status.get("availableReplicas", 0) == wanted
    )


def deadline_left_s(deployment: Obj, now: datetime) -> float | None:
    """Return the seconds until progressDeadlineSeconds, or None if no rollout runs."""
    limit = deployment["spec"].get("progressDeadlineSeconds")
    conditions = (deployment.get("status") or {}).get("conditions") or ()
    old = next((c for c in conditions if c["type"] == "Progressing"), None)
    if limit is None or old is None or old.get("reason") == "NewReplicaSetAvailable":
        return None
    since = read_time(old.get("lastUpdateTime"))
    if since is None or old["status"] == "False":
        return None
    return (later(since, limit) - now).total_seconds()


def _progressed(
    deployment: Obj, new: Obj | None, status: Obj, conditions: list[Obj], *, now: datetime
) -> list[Obj]:
    """Return the conditions with an updated Progressing."""
    if new is None:
        return conditions
    name = new["metadata"]["name"]
    if is_complete(deployment, status):
        why = ("NewReplicaSetAvailable", f'ReplicaSet "{name}" has successfully progressed.')
        return _with_condition(conditions, "Progressing", "True", why, now)
    if not _has_same_counts(deployment, status):
        why = ("ReplicaSetUpdated", f'ReplicaSet "{name}" is progressing.')
        others = [c for c in conditions if c["type"] != "Progressing"]
        old = [c for c in conditions if c["type"] == "Progressing"]
        made = _with_condition(old, "Progressing", "True", why, now)
        # Each step forward restarts the deadline, even under the same reason.
        return [*others, {**made[0], "lastUpdateTime": write_time(now)}]
    left_s = deadline_left_s(deployment, now)
    if left_s is not None and left_s <= 0:
        why = ("ProgressDeadlineExceeded", f'ReplicaSet "{name}" has timed out progressing.')
        return _with_condition(conditions, "Progressing", "False", why, now)
    return conditions


def _has_same_counts(deployment: Obj, status: Obj) -> bool:
    before = deployment.get("status") or {}
    names = ("replicas", "updatedReplicas", "readyReplicas", "availableReplicas")
    return all(before.get(name) == status.get(name) for name in names)
