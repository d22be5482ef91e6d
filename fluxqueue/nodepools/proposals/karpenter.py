"""FluxNodePools from the NodePools and NodeClaims of Karpenter (``karpenter.sh/v1``).

A NodePool is many shapes at once. The shapes are those of its NodeClaims, so a pool without nodes
gives no proposal. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from fluxqueue.nodepools.proposals.proposal import (
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
    placeholder_pool,
    smallest,
)

Object = Mapping[str, Any]

NODE_POOL, INSTANCE_TYPE = "karpenter.sh/nodepool", "node.kubernetes.io/instance-type"
KEY = "karpenter/"
"""The begin of the names of these sources."""
ABSENT: Mapping[str, Any] = {"node.taints": [], "priority": 0}
"""What the absence of these fields means."""
NODES = "nodes"
"""A key of ``spec.limits`` that bounds the number of nodes."""
LONGEST_S = 24 * 3600
"""A condition that changed later (seconds) says nothing of the time that the node took."""
CAME = ("Initialized", "Registered")
"""Conditions of a NodeClaim whose node has come, the best one first."""


def propose_karpenter(
    node_pools: Sequence[Object], node_claims: Sequence[Object], nodes: Sequence[PresentNode]
) -> list[PoolProposal]:
    """Return a proposal for each instance type that a NodePool has now.

    Parameters
    ----------
    node_pools, node_claims : All of them, as served.
    nodes : The nodes that exist.
    """
    found = []
    by_name = {one.name: one for one in nodes}
    for pool in sorted(node_pools, key=lambda one: str(one["metadata"]["name"])):
        if pool["metadata"].get("deletionTimestamp"):
            continue
        claims = [one for one in node_claims if _pool_of(one) == pool["metadata"]["name"]]
        found += _propose(pool, claims, by_name)
    return found


def _propose(
    pool: Object, claims: Sequence[Object], nodes: Mapping[str, PresentNode]
) -> list[PoolProposal]:
    name = str(pool["metadata"]["name"])
    source = f"Karpenter NodePool {name}"
    if not _adds_nodes(pool):
        why = "its replicas are set, so it adds no nodes for pods"
        return [PoolProposal(object_name(name), source, key_of(name), None, (why,))]
    types: dict[str, list[Object]] = {}
    for claim in claims:
        is_going = claim["metadata"].get("deletionTimestamp")
        if not is_going and (claim.get("status") or {}).get("allocatable"):
            types.setdefault(_labels(claim).get(INSTANCE_TYPE, ""), []).append(claim)
    if not types:
        why = "without NodeClaims, the shape of its nodes is not known. Discover again later"
        return [PoolProposal(object_name(name), source, key_of(name), None, (why,))]
    is_alone = len(types) == 1
    return [
        checked(_one_type(pool, kind, own, nodes, is_alone=is_alone))
        for kind, own in sorted(types.items())
    ]


def _one_type(
    pool: Object,
    instance_type: str,
    claims: Sequence[Object],
    nodes: Mapping[str, PresentNode],
    *,
    is_alone: bool,
) -> PoolProposal:
    name = str(pool["metadata"]["name"])
    spec = pool.get("spec") or {}
    template = spec.get("template") or {}
    pinned = {INSTANCE_TYPE: instance_type} if instance_type else {}
    labels = {NODE_POOL: name, **_fixed_labels(template), **pinned}
    left, notes, is_left_known = _left(claims, nodes)
    capacities = (one["status"].get("capacity") or one["status"]["allocatable"] for one in claims)
    most = limited(spec.get("limits"), smallest(map(amounts_of, capacities)))
    about_most = (
        f"max is the {count(len(claims), 'node')} of now: no limit is set"
        if most is None
        else f"max is from limits.{most[1]}, which all instance types share"
    )
    takes, about_time = measured(_times(claims))
    notes += [about_most, about_time, "pricePerHour is not known to Karpenter's objects: set it"]
    taints = lasting_taints((template.get("spec") or {}).get("taints") or ())
    limit = bounded(len(claims) if most is None else most[0])
    priority = int(spec["weight"]) if spec.get("weight") else None
    more = {"max": limit, "provisioningTime": takes, "priority": priority}
    proposed = placeholder_pool(labels, left, taints, more)
    own = object_name(name) if is_alone else object_name(name, instance_type)
    source = f"Karpenter NodePool {name}, instance type {instance_type or 'unknown'}"
    assumed = {"max"} if most is None else set()
    if not is_left_known:
        assumed.add("node.allocatable")
    key = key_of(name, instance_type)
    return PoolProposal(own, source, key, proposed, tuple(notes), frozenset(assumed), ABSENT)


def _adds_nodes(pool: Object) -> bool:
    """Return whether a NodePool adds nodes for pods."""
    return (pool.get("spec") or {}).get("replicas") is None


def key_of(node_pool: str, instance_type: str = "") -> str:
    """Return the name of a source: ``karpenter/gpu/p5.48xlarge``."""
    return f"{KEY}{node_pool}/{instance_type}"


def known_of_karpenter(
    key: str, node_pools: Sequence[Object], spec: Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Return what a NodePool says of a pool without nodes. None: it brings no such nodes.

    Parameters
    ----------
    key : the name of the source.
    node_pools : all of them, as served.
    spec : that of the FluxNodePool. The limits are divided by its shape.
    """
    name, _, instance_type = key.removeprefix(KEY).partition("/")
    pool = next((one for one in node_pools if one["metadata"]["name"] == name), None)
    if pool is None or pool["metadata"].get("deletionTimestamp") or not _adds_nodes(pool):
        return None
    of = pool.get("spec") or {}
    template = of.get("template") or {}
    if not _permits(template, instance_type):
        return None
    pinned = {INSTANCE_TYPE: instance_type} if instance_type else {}
    found: dict[str, Any] = {
        "node.labels": {NODE_POOL: name, **_fixed_labels(template), **pinned},
        "node.taints": lasting_taints((template.get("spec") or {}).get("taints") or ()),
        "priority": int(of.get("weight") or 0),
    }
    shape = amounts_of((spec.get("node") or {}).get("allocatable"))
    most = limited(of.get("limits"), shape)
    return found if most is None else {**found, "max": bounded(most[0])}


def _permits(template: Object, instance_type: str) -> bool:
    """Return whether the requirements of a NodePool permit an instance type."""
    for one in (template.get("spec") or {}).get("requirements") or ():
        if one.get("key") != INSTANCE_TYPE or not instance_type:
            continue
        is_named = instance_type in (one.get("values") or ())
        if one.get("operator") in ("In", "NotIn") and is_named != (one["operator"] == "In"):
            return False
    return True


def _fixed_labels(template: Object) -> dict[str, str]:
    """Return the labels that every node of a NodePool has, from its template."""
    labels = dict((template.get("metadata") or {}).get("labels") or {})
    for one in (template.get("spec") or {}).get("requirements") or ():
        values = list(one.get("values") or ())
        if one.get("operator") == "In" and len(values) == 1:
            labels[str(one["key"])] = str(values[0])
    return {key: str(value) for key, value in labels.items()}


def _left(
    claims: Sequence[Object], nodes: Mapping[str, PresentNode]
) -> tuple[Amounts, list[str], bool]:
    """Return what jobs may have of a new node, a note on DaemonSets, and whether they are known."""
    left = smallest(amounts_of(one["status"]["allocatable"]) for one in claims)
    present = [nodes[name] for one in claims if (name := one["status"].get("nodeName")) in nodes]
    known = [one.permanent for one in present if one.permanent is not None]
    if not known:
        note = "subtract from allocatable what DaemonSets take: no node of this shape was read"
        return left, [note], False
    taken = {name: max(one.get(name, 0) for one in known) for name in left}
    rest = {name: max(0, amount - taken[name]) for name, amount in left.items()}
    return rest, ["allocatable is what DaemonSets leave"], True


def limited(limits: object, capacity: Amounts) -> tuple[int, str] | None:
    """Return how many nodes of a size the limits permit, and which limit says so."""
    given = limits if isinstance(limits, Mapping) else {}
    bounds = {
        name: amount // capacity[name]
        for name, amount in amounts_of(given, "limits").items()
        if capacity.get(name)
    }
    nodes = str(given.get(NODES, ""))
    if nodes.isdecimal() and len(nodes) <= 18:
        bounds[NODES] = int(nodes)
    least = min(bounds, key=lambda name: bounds[name], default=None)
    return None if least is None else (bounds[least], least)


def _times(claims: Sequence[Object]) -> list[float]:
    """Return how long nodes took, in seconds."""
    found = []
    for claim in claims:
        made = _time(claim["metadata"].get("creationTimestamp"))
        conditions = {one.get("type"): one for one in claim["status"].get("conditions") or ()}
        came = next(
            (
                conditions[name]
                for name in CAME
                if name in conditions and conditions[name].get("status") == "True"
            ),
            None,
        )
        at = None if came is None else _time(came.get("lastTransitionTime"))
        if made is not None and at is not None and made < at <= made + LONGEST_S:
            found.append(at - made)
    return found


def _time(text: object) -> float | None:
    try:
        return datetime.fromisoformat(str(text)).timestamp()
    except ValueError:
        return None


def _labels(claim: Object) -> Mapping[str, str]:
    return claim["metadata"].get("labels") or {}


def _pool_of(claim: Object) -> str | None:
    return _labels(claim).get(NODE_POOL)
