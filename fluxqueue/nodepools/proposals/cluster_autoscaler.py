"""FluxNodePools from the status ConfigMap of cluster-autoscaler and the nodes that exist.

The status names node groups, with bounds and health. What their nodes are like is known from
present nodes alone: clouds label them with the name of their group. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from fluxqueue.nodepools.proposals.proposal import (
    PoolProposal,
    PresentNode,
    bounded,
    checked,
    count,
    lasting_taints,
    measured,
    object_name,
    placeholder_pool,
    smallest,
)

GROUP_LABELS = (
    "cloud.google.com/gke-nodepool",
    "eks.amazonaws.com/nodegroup",
    "alpha.eksctl.io/nodegroup-name",
    "kubernetes.azure.com/agentpool",
    "agentpool",
    "kops.k8s.io/instancegroup",
    "node.cluster.x-k8s.io/pool",
)
"""Labels with which clouds name the group of a node, the most specific ones first."""

KEY = "cluster-autoscaler/"
"""The begin of the names of these sources."""
ABSENT: Mapping[str, Any] = {"node.taints": [], "min": 0}
"""What the absence of these fields means."""

_WORDS = re.compile(r"[A-Za-z0-9]+")


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """A node group of cluster-autoscaler."""

    name: str
    least: int
    most: int
    is_healthy: bool = True


def read_node_groups(config_map: Mapping[str, Any]) -> list[NodeGroup]:
    """Return the node groups in the ConfigMap ``cluster-autoscaler-status``."""
    try:
        status = yaml.safe_load(str((config_map.get("data") or {}).get("status") or ""))
    except yaml.YAMLError:
        return []
    groups = status.get("nodeGroups") if isinstance(status, dict) else None
    found = []
    for one in groups if isinstance(groups, list) else ():
        health = one.get("health") or {} if isinstance(one, dict) else {}
        least, most = health.get("minSize", 0), health.get("maxSize")
        if isinstance(least, int) and isinstance(most, int) and one.get("name"):
            is_healthy = health.get("status", "Healthy") == "Healthy"
            found.append(NodeGroup(str(one["name"]), least, most, is_healthy))
    return found


def propose_cluster_autoscaler(
    groups: Sequence[NodeGroup], nodes: Sequence[PresentNode]
) -> list[PoolProposal]:
    """Return a proposal for each label of present nodes that names some of the node groups."""
    left = list(groups)
    found = []
    for label, value in _labelled(nodes):
        own = [one for one in left if _is_named(one.name, value)]
        if own:
            left = [one for one in left if one not in own]
            of = [node for node in nodes if node.labels.get(label) == value]
            found.append(checked(_propose(label, value, own, of)))
    why = "no present node has a label with its name, so the shape of its nodes is not known"
    for one in left:
        source = f"node group {one.name} of cluster-autoscaler"
        found.append(PoolProposal(object_name(one.name), source, f"{KEY}{one.name}", None, (why,)))
    return found


def known_of_cluster_autoscaler(key: str, groups: Sequence[NodeGroup]) -> Mapping[str, Any] | None:
    """Return the bounds of the node groups of a pool without nodes. None: they are gone."""
    value = key.removeprefix(KEY).partition("=")[2]
    own = [one for one in groups if _is_named(one.name, value)]
    return _bounds(own) if own else None


def _bounds(groups: Sequence[NodeGroup]) -> dict[str, int]:
    most = bounded(sum(one.most for one in groups))
    return {"min": min(bounded(sum(one.least for one in groups)), most), "max": most}


def _labelled(nodes: Sequence[PresentNode]) -> list[tuple[str, str]]:
    """Return the labels that name groups, each node counted once, the longest names first."""
    found = dict[tuple[str, str], None]()
    for node in nodes:
        label = next((one for one in GROUP_LABELS if node.labels.get(one)), None)
        if label is not None:
            found[label, node.labels[label]] = None
    return sorted(found, key=lambda one: (-len(one[1]), one))


def _is_named(group: str, value: str) -> bool:
    """Return whether the name of a group has ``value`` as whole words: ``gke-c1-gpu-1a2b-grp``."""
    words, wanted = _WORDS.findall(group), _WORDS.findall(value)
    starts = range(len(words) - len(wanted) + 1)
    return bool(wanted) and any(words[at : at + len(wanted)] == wanted for at in starts)


def _propose(
    label: str, value: str, groups: Sequence[NodeGroup], nodes: Sequence[PresentNode]
) -> PoolProposal:
    is_known = all(one.permanent is not None for one in nodes)
    takes, about_time = measured([])
    notes = [
        f"allocatable is that of {count(len(nodes), 'present node')}, less what DaemonSets take"
        if is_known
        else "subtract from allocatable what DaemonSets take",
        about_time,
        "pricePerHour is not known: set it",
    ]
    if len(groups) > 1:
        notes.append(
            f"max is the sum of {count(len(groups), 'node group')}, as of one in each zone"
        )
    notes += [f"node group {one.name} is not healthy now" for one in groups if not one.is_healthy]
    common = [one for one in nodes[0].taints if all(one in other.taints for other in nodes)]
    bounds = _bounds(groups)
    left = smallest(one.left for one in nodes)
    spec = placeholder_pool(
        *({label: value}, left, lasting_taints(common)),
        {"min": bounds["min"] or None, "max": bounds["max"], "provisioningTime": takes},
    )
    source = f"node group {', '.join(one.name for one in groups)} of cluster-autoscaler"
    key = f"{KEY}{label}={value}"
    return PoolProposal(object_name(value), source, key, spec, tuple(notes), absent=ABSENT)
