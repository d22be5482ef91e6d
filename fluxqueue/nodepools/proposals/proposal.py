"""One proposed FluxNodePool, and the shapes of nodes that proposals are made of.

The modules for Karpenter and cluster-autoscaler call it. What no object says becomes a
note, so the administrator knows what to fill in. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from math import ceil
from typing import Any

import yaml

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.request import CPU, MEMORY
from fluxqueue.nodepools.pool import LEARNED_SHARE, NAME_MAX, NODES_MAX, read_node_pool
from fluxqueue.workload.labels import DISCOVERED_FROM, DISCOVERED_SPEC
from fluxqueue.workload.quantity import to_base_units

API_VERSION, KIND = "jobs.converged-computing.org/v1alpha1", "FluxNodePool"
UNMEASURED = "5m"
"""The provisioning time where none was measured."""
MEASURED = frozenset({"provisioningTime"})
"""Fields that fluxqueue learns by itself once the pool exists."""
LEFT_OUT = ("attachable-volumes-", "hugepages-")
"""Resources of nodes that jobs do not ask for, by the beginning of their names."""
OF_NODES = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
"""Taints with these prefixes come and go with the condition of a node."""

Amounts = Mapping[str, int]
"""Amounts of resources in base units."""


@dataclass(frozen=True, slots=True)
class PoolProposal:
    """A FluxNodePool that could be applied.

    ``source`` says which object it comes from, and ``key`` is its name for machines. ``spec`` is
    None if too little is known. ``notes`` are what was assumed, and what the administrator has to
    fill in. ``assumed`` are fields that no object says, so they do not follow the source.
    ``absent`` are fields that it could say, and what their absence means. Fields are dotted paths.
    """

    name: str
    source: str
    key: str
    spec: Mapping[str, Any] | None
    notes: tuple[str, ...] = ()
    assumed: frozenset[str] = frozenset()
    absent: Mapping[str, Any] = field(default_factory=dict)

    @property
    def given(self) -> dict[str, Any]:
        """Return the fields that the source says, by dotted path."""
        assert self.spec is not None, "nothing is known"
        found = {**self.absent, **fields_of(self.spec)}
        return {path: value for path, value in found.items() if path not in self.assumed | MEASURED}

    def manifest(self) -> dict[str, Any]:
        """Return the object to apply. ``spec`` must not be None."""
        assert self.spec is not None, "there is nothing to apply"
        given = json.dumps(self.given, sort_keys=True)
        notes = {DISCOVERED_FROM: self.key, DISCOVERED_SPEC: given}
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": {"name": self.name, "annotations": notes},
            "spec": dict(self.spec),
        }


@dataclass(frozen=True, slots=True)
class PresentNode:
    """A node that exists: its labels, taints, and what pods may have of it.

    ``permanent`` is what its DaemonSets and static pods ask for, None if that is not known.
    """

    name: str
    labels: Mapping[str, str]
    taints: tuple[Mapping[str, str], ...]
    allocatable: Amounts
    permanent: Amounts | None = None

    @property
    def left(self) -> Amounts:
        """Return what jobs may have of the empty node."""
        taken = self.permanent or {}
        return {name: max(0, n - taken.get(name, 0)) for name, n in self.allocatable.items()}


def fields_of(spec: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a spec by dotted path: ``node.labels``, ``max``."""
    node = {f"node.{key}": value for key, value in (spec.get("node") or {}).items()}
    return {**node, **{key: value for key, value in spec.items() if key != "node"}}


def amounts_of(quantities: object, where: str = "allocatable") -> dict[str, int]:
    """Read quantities. What cannot be read, and what jobs never ask for, is left out."""
    found = {}
    for name, value in quantities.items() if isinstance(quantities, Mapping) else ():
        if str(name).startswith(LEFT_OUT):
            continue
        try:
            amount = to_base_units(str(name), value, where=where)
        except InvalidInput:
            continue
        if amount:
            found[str(name)] = amount
    return found


def shape_of(amounts: Amounts) -> dict[str, str]:
    """Write amounts as quantities, never more than there is: ``15890m`` of cpu, ``60Gi``."""
    found = {}
    for name, amount in sorted(amounts.items()):
        if not amount:
            continue
        if name == CPU:
            found[name] = str(amount // 1000) if amount % 1000 == 0 else f"{amount}m"
        elif name == MEMORY or name.endswith("storage"):
            found[name] = f"{amount >> 20}Mi" if amount % (1 << 30) else f"{amount >> 30}Gi"
        else:
            found[name] = str(amount)
    return found


def placeholder_pool(
    labels: Mapping[str, str],
    left: Amounts,
    taints: Sequence[Mapping[str, str]],
    more: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the spec of a pool with placeholders. Fields of ``more`` that are None are left out.

    ``left`` is what jobs may have of a new node.
    """
    node = {"labels": labels, "allocatable": shape_of(left)}
    return {
        "node": {**node, "taints": taints} if taints else node,
        **{key: value for key, value in more.items() if value is not None},
        "provider": {"placeholder": {}},
    }


def smallest(shapes: Iterable[Amounts]) -> Amounts:
    """Return what every one of several nodes has at least."""
    each = list(shapes)
    names = set[str].intersection(*(set(one) for one in each)) if each else set()
    return {name: min(one[name] for one in each) for name in sorted(names)}


def lasting_taints(taints: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """Return the taints that new nodes have, without those of a condition."""
    found = []
    for one in taints:
        key, effect = str(one.get("key") or ""), str(one.get("effect") or "")
        if key and effect and not key.startswith(OF_NODES):
            value = {"value": str(one["value"])} if one.get("value") else {}
            found.append({"key": key, **value, "effect": effect})
    return sorted(found, key=lambda one: (one["key"], one["effect"]))


def measured(seconds: Sequence[float]) -> tuple[str, str]:
    """Return a provisioning time, and a note on where it comes from."""
    if not seconds:
        return (
            UNMEASURED,
            "provisioningTime was not measured. fluxqueue learns it from three nodes on",
        )
    ordered = sorted(seconds)
    taken = max(1, ceil(ordered[ceil(LEARNED_SHARE * len(ordered)) - 1]))
    return f"{taken}s", f"provisioningTime: measured on {count(len(ordered), 'node')}"


def count(number: int, what: str) -> str:
    """Return ``1 node`` or ``3 nodes``."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def bounded(number: int) -> int:
    """Return a number of nodes that a FluxNodePool may have."""
    return max(0, min(NODES_MAX, number))


def object_name(*parts: str) -> str:
    """Join parts to the name of a pool: ``gpu-p4d-24xlarge``. A long one ends in its hash."""
    joined = "-".join(part for part in parts if part).lower()
    name = re.sub(r"[^a-z0-9-]+", "-", joined).strip("-") or "pool"
    if len(name) <= NAME_MAX:
        return name
    return f"{name[: NAME_MAX - 7].rstrip('-')}-{sha256(joined.encode()).hexdigest()[:6]}"


def with_own_names(proposals: Iterable[PoolProposal]) -> list[PoolProposal]:
    """Return the proposals with a name of its own for each: a name that is taken gets a number."""
    found: dict[str, PoolProposal] = {}
    for one in proposals:
        name, number = one.name, 1
        while name in found:
            number += 1
            name = object_name(one.name, str(number))
        found[name] = replace(one, name=name)
    return list(found.values())


def checked(proposal: PoolProposal) -> PoolProposal:
    """Return a proposal whose spec is valid. One that is not keeps only its notes."""
    if proposal.spec is None:
        return proposal
    try:
        read_node_pool(proposal.name, proposal.spec)
    except InvalidInput as error:
        notes = (*proposal.notes, f"not proposed: {error}")
        return replace(proposal, spec=None, notes=notes)
    return proposal


def render(proposals: Sequence[PoolProposal], notes: Sequence[str] = ()) -> str:
    """Return all proposals as YAML to apply, with the notes as comments."""
    parts = ["".join(f"# {note}\n" for note in notes)] if notes else []
    for one in proposals:
        lines = [f"# From {one.source}.", *(f"# - {note}." for note in one.notes)]
        body = "" if one.spec is None else yaml.safe_dump(one.manifest(), sort_keys=False)
        parts.append("\n".join(lines) + f"\n{body}")
    return "---\n".join(parts)
