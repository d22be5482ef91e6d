"""FluxNodePools from MachineDeployments, MachineSets and MachinePools of Cluster API.

The annotations are those with which cluster-autoscaler scales them from zero. An object that
cluster-autoscaler manages gets placeholders. All others are scaled by fluxqueue itself. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fluxqueue.policy.pool_proposals.proposal import (
    Amounts,
    PoolProposal,
    PresentNode,
    amounts_of,
    bounded,
    checked,
    count,
    lasting_taints,
    measured,
    object_name,
    shape_of,
    smallest,
)

Object = Mapping[str, Any]

GROUP = "cluster.x-k8s.io"
KEY = "cluster-api/"
"""The begin of the names of these sources."""
ABSENT: Mapping[str, Any] = {"node.taints": [], "min": 0}
"""What the absence of these fields means."""
RESOURCES = {
    "MachineDeployment": "machinedeployments",
    "MachineSet": "machinesets",
    "MachinePool": "machinepools",
}
"""The kinds with a scale subresource, and their names in URLs."""
MIN_SIZE = f"{GROUP}/cluster-api-autoscaler-node-group-min-size"
MAX_SIZE = f"{GROUP}/cluster-api-autoscaler-node-group-max-size"
CAPACITY = "capacity.cluster-autoscaler.kubernetes.io/"
OWNER_KIND, OWNER_NAME = f"{GROUP}/owner-kind", f"{GROUP}/owner-name"
"""Annotations of a node: what its Machine belongs to."""
CONTROL_PLANE = f"{GROUP}/control-plane"
PROPAGATED = ("node-role.kubernetes.io", "node-restriction.kubernetes.io", "node.cluster.x-k8s.io")
"""Domains of the labels in a template that Cluster API gives to the nodes."""
PODS_DEFAULT = "110"
"""What cluster-autoscaler assumes without the annotation ``maxPods``."""


def propose_cluster_api(
    scalable: Sequence[Object], nodes: Sequence[PresentNode]
) -> list[PoolProposal]:
    """Return a proposal for each object that can be scaled, without those that others own.

    Parameters
    ----------
    scalable : All MachineDeployments, MachineSets and MachinePools, with their kinds.
    nodes : The nodes that exist.
    """
    sets = {
        (one["metadata"].get("namespace"), one["metadata"]["name"]): owner
        for one in scalable
        if one.get("kind") == "MachineSet" and (owner := _owner(one))
    }
    free = [one for one in scalable if _is_free(one)]
    names = [one["metadata"]["name"] for one in free]
    found = []
    for one in sorted(free, key=lambda each: (each["metadata"]["name"], str(each["kind"]))):
        own = [node for node in nodes if _has(one, node, sets)]
        is_unique = names.count(one["metadata"]["name"]) == 1
        found.append(checked(_propose(one, own, is_unique=is_unique)))
    return found


def _is_free(one: Object) -> bool:
    """Return whether an object could be scaled by itself."""
    return (
        one.get("kind") in RESOURCES
        and not _owner(one)
        and not one["metadata"].get("deletionTimestamp")
        and CONTROL_PLANE not in (one["metadata"].get("labels") or {})
    )


def key_of(one: Object) -> str:
    """Return the name of a source: ``cluster-api/MachineDeployment/infra/gpu``."""
    meta = one["metadata"]
    return f"{KEY}{one['kind']}/{meta.get('namespace') or ''}/{meta['name']}"


def known_of_cluster_api(key: str, scalable: Sequence[Object]) -> Mapping[str, Any] | None:
    """Return what the annotations say of an object of unknown shape. None: it is gone."""
    one = next((one for one in scalable if _is_free(one) and key_of(one) == key), None)
    if one is None:
        return None
    said = {str(k): str(v) for k, v in (one["metadata"].get("annotations") or {}).items()}
    least, most = _number(said.get(MIN_SIZE)), _number(said.get(MAX_SIZE))
    if most is None:
        return {}
    return {"min": min(least or 0, bounded(most)), "max": bounded(most)}


def _owner(one: Object) -> tuple[str, str] | None:
    """Return kind and name of the controller of an object."""
    for owner in one["metadata"].get("ownerReferences") or ():
        if owner.get("controller") and owner.get("kind") in RESOURCES:
            return str(owner["kind"]), str(owner["name"])
    return None


def _has(
    one: Object, node: PresentNode, sets: Mapping[tuple[object, str], tuple[str, str]]
) -> bool:
    """Return whether a node comes from an object, directly or through its MachineSet."""
    kind, name = node.annotations.get(OWNER_KIND), node.annotations.get(OWNER_NAME, "")
    wanted = str(one["kind"]), str(one["metadata"]["name"])
    return (kind, name) == wanted or (
        kind == "MachineSet" and sets.get((one["metadata"].get("namespace"), name)) == wanted
    )


def _propose(one: Object, nodes: Sequence[PresentNode], *, is_unique: bool) -> PoolProposal:
    meta, kind = one["metadata"], str(one["kind"])
    namespace = str(meta.get("namespace") or "")
    said = {str(key): str(value) for key, value in (meta.get("annotations") or {}).items()}
    name = object_name(meta["name"]) if is_unique else object_name(namespace, meta["name"])
    source = f"{kind} {namespace}/{meta['name']} of Cluster API"
    left, notes = _left(said, nodes)
    labels = _labels(one, said, nodes)
    if not left:
        wanted = f"{CAPACITY}cpu and memory"
        notes = [f"set the annotations {wanted}: the shape of its nodes is not known"]
    if not labels:
        notes.append(
            f"give its nodes a label by spec.template.metadata.labels, such as {PROPAGATED[2]}/pool"
        )
    if not left or not labels:
        return PoolProposal(name, source, key_of(one), None, tuple(notes))
    most, more = _bounds(one, said)
    takes, about_time = measured([])
    is_managed = MAX_SIZE in said
    if not is_managed:
        notes.append(
            "nothing else may scale the object. The worker needs nodePools.scale of the chart"
        )
    place = {"namespace": namespace, "name": str(meta["name"])}
    scale = {"apiVersion": str(one["apiVersion"]), "resource": RESOURCES[kind], **place}
    taints, devices = _taints(said, nodes), _devices(said)
    spec: dict[str, Any] = {
        "node": {
            "labels": labels,
            "allocatable": shape_of(left),
            **({"devices": devices} if devices else {}),
            **({"taints": taints} if taints else {}),
        },
        **({"min": _number(said.get(MIN_SIZE))} if _number(said.get(MIN_SIZE)) else {}),
        "max": most,
        "provisioningTime": takes,
        "provider": {"placeholder": {}} if is_managed else {"scale": scale},
    }
    notes += [more, about_time, "pricePerHour is not known: set it"]
    assumed = frozenset[str]() if is_managed else frozenset({"max"})
    return PoolProposal(name, source, key_of(one), spec, tuple(notes), assumed, ABSENT)


def _left(said: Mapping[str, str], nodes: Sequence[PresentNode]) -> tuple[Amounts, list[str]]:
    """Return what jobs may have of a new node: as present ones have, or as annotations say."""
    if nodes:
        is_known = all(one.permanent is not None for one in nodes)
        about = "allocatable is what DaemonSets leave" if is_known else (
            "subtract from allocatable what DaemonSets take"
        )  # fmt: skip
        return smallest(one.left for one in nodes), [about]
    capacity = {
        "cpu": said.get(f"{CAPACITY}cpu"),
        "memory": said.get(f"{CAPACITY}memory"),
        "ephemeral-storage": said.get(f"{CAPACITY}ephemeral-disk"),
    }
    if capacity["cpu"] is None or capacity["memory"] is None:
        return {}, []
    capacity["pods"] = said.get(f"{CAPACITY}maxPods", PODS_DEFAULT)
    notes = ["subtract from allocatable what the system and DaemonSets take: these are capacities"]
    number = said.get(f"{CAPACITY}gpu-count")
    if number and f"{CAPACITY}gpu-type" in said:
        capacity[said[f"{CAPACITY}gpu-type"]] = number
    elif number:
        notes.append("devices: the class of its GPUs is assumed to have the name of their driver")
    return amounts_of({key: one for key, one in capacity.items() if one is not None}), notes


def _devices(said: Mapping[str, str]) -> dict[str, int]:
    """Return the GPUs that come by DRA."""
    driver, number = said.get(f"{CAPACITY}dra-driver"), _number(said.get(f"{CAPACITY}gpu-count"))
    return {driver: number} if driver and number and f"{CAPACITY}gpu-type" not in said else {}


def _labels(one: Object, said: Mapping[str, str], nodes: Sequence[PresentNode]) -> dict[str, str]:
    """Return labels of each node: those that the annotations and the template name."""
    found = _pairs(said.get(f"{CAPACITY}labels", ""))
    template = ((one.get("spec") or {}).get("template") or {}).get("metadata") or {}
    for key, value in (template.get("labels") or {}).items():
        domain = str(key).partition("/")[0]
        if "/" in str(key) and any(domain == d or domain.endswith(f".{d}") for d in PROPAGATED):
            found[str(key)] = str(value)
    # A label that a present node lacks would keep it out of the pool.
    return {k: v for k, v in found.items() if all(node.labels.get(k) == v for node in nodes)}


def _taints(said: Mapping[str, str], nodes: Sequence[PresentNode]) -> list[dict[str, str]]:
    if nodes:
        common = [one for one in nodes[0].taints if all(one in other.taints for other in nodes)]
        return lasting_taints(common)
    found = []
    for text in filter(None, said.get(f"{CAPACITY}taints", "").split(",")):
        pair, _, effect = text.strip().rpartition(":")
        key, _, value = pair.partition("=")
        found.append({"key": key, "value": value, "effect": effect})
    return lasting_taints(found)


def _pairs(text: str) -> dict[str, str]:
    """Read ``key1=value1,key2=value2``."""
    pairs = (one.strip().partition("=") for one in text.split(","))
    return {key: value for key, equals, value in pairs if key and equals}


def _bounds(one: Object, said: Mapping[str, str]) -> tuple[int, str]:
    most = _number(said.get(MAX_SIZE))
    if most is not None:
        return bounded(most), "max is from the annotation of the autoscaler"
    replicas = _number((one.get("spec") or {}).get("replicas")) or 0
    return bounded(max(1, replicas)), f"max is the {count(max(1, replicas), 'node')} of now: set it"


def _number(value: object) -> int | None:
    text = str(value)
    return int(text) if text.isdecimal() and len(text) <= 18 else None


def scalable_kinds() -> Iterable[tuple[str, str]]:
    """Return group and kind of all that can be scaled."""
    return [(GROUP, kind) for kind in RESOURCES]
