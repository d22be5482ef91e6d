"""FluxNodePools from the NodePools and NodeClaims of Karpenter (``karpenter.sh/v1``).

A NodePool is many shapes at once. The shapes are those of its NodeClaims, so a pool without nodes
gives no proposal. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
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

NODE_POOL, INSTANCE_TYPE = "karpenter.sh/nodepool", "node.kubernetes.io/instance-type"
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
    if (pool.get("spec") or {}).get("replicas") is not None:
        why = "its replicas are set, so it adds no nodes for pods"
        return [PoolProposal(object_name(name), source, None, (why,))]
    types: dict[str, list[Object]] = {}
    for claim in claims:
        is_going = claim["metadata"].get("deletionTimestamp")
        if not is_going and (claim.get("status") or {}).get("allocatable"):
            types.setdefault(_labels(claim).get(INSTANCE_TYPE, ""), []).append(claim)
    if not types:
        why = "without NodeClaims, the shape of its nodes is not known. Discover again later"
        return [PoolProposal(object_name(name), source, None, (why,))]
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
    left, notes = _left(claims, nodes)
    most, about_most = _most(spec.get("limits"), claims)
    takes, about_time = measured(_times(claims))
    notes += [about_most, about_time, "pricePerHour is not known to Karpenter's objects: set it"]
    taints = lasting_taints((template.get("spec") or {}).get("taints") or ())
    proposed: dict[str, Any] = {
        "node": {
            "labels": labels,
            "allocatable": shape_of(left),
            **({"taints": taints} if taints else {}),
        },
        "max": most,
        "provisioningTime": takes,
        **({"priority": int(spec["weight"])} if spec.get("weight") else {}),
        "provider": {"placeholder": {}},
    }
    own = object_name(name) if is_alone else object_name(name, instance_type)
    source = f"Karpenter NodePool {name}, instance type {instance_type or 'unknown'}"
    return PoolProposal(own, source, proposed, tuple(notes))


def _fixed_labels(template: Object) -> dict[str, str]:
    """Return the labels that every node of a NodePool has, from its template."""
    labels = dict((template.get("metadata") or {}).get("labels") or {})
    for one in (template.get("spec") or {}).get("requirements") or ():
        values = list(one.get("values") or ())
        if one.get("operator") == "In" and len(values) == 1:
            labels[str(one["key"])] = str(values[0])
    return {key: str(value) for key, value in labels.items()}


def _left(claims: Sequence[Object], nodes: Mapping[str, PresentNode]) -> tuple[Amounts, list[str]]:
    """Return what jobs may have of a new node, and a note on DaemonSets."""
    left = smallest(amounts_of(one["status"]["allocatable"]) for one in claims)
    present = [nodes[name] for one in claims if (name := one["status"].get("nodeName")) in nodes]
    known = [one.permanent for one in present if one.permanent is not None]
    if not known:
        return left, [
            "subtract from allocatable what DaemonSets take: no node of this shape was read"
        ]
    taken = {name: max(one.get(name, 0) for one in known) for name in left}
    rest = {name: max(0, amount - taken[name]) for name, amount in left.items()}
    return rest, ["allocatable is what DaemonSets leave"]


def _most(limits: object, claims: Sequence[Object]) -> tuple[int, str]:
    """Return how many nodes of this type the limits permit, and a note."""
    given = limits if isinstance(limits, Mapping) else {}
    capacity = smallest(
        amounts_of(one["status"].get("capacity") or one["status"]["allocatable"]) for one in claims
    )
    bounds = {
        name: amount // capacity[name]
        for name, amount in amounts_of(given, "limits").items()
        if name in capacity
    }
    nodes = str(given.get(NODES, ""))
    if nodes.isdecimal() and len(nodes) <= 18:
        bounds[NODES] = int(nodes)
    if not bounds:
        return bounded(
            len(claims)
        ), f"max is the {count(len(claims), 'node')} of now: no limit is set"
    least = min(bounds, key=lambda name: bounds[name])
    return bounded(bounds[least]), f"max is from limits.{least}, which all instance types share"


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
