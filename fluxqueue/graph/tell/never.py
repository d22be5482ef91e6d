"""Why a request can never fit this cluster, in words that a user can act on.

The cycle calls it only for requests that ``is_satisfiable`` refused. It checks one cause after
another, the narrowest first, and names the largest amount that exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from fluxqueue.fluxjob.exclusive_use import describe_exclusive
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.request import describe, describe_amount
from fluxqueue.graph.arrays import Mask
from fluxqueue.graph.match.by_shares import ByShares, describe_ask
from fluxqueue.graph.match.shares.ask import Ask, Group, Leaf, groups
from fluxqueue.graph.tell.blockers import enumerate_some
from fluxqueue.graph.tell.words import contents, only_level, too_few_places
from fluxqueue.jobspec.change import demands, describe_demand
from fluxqueue.jobspec.demand import NodeDemand
from fluxqueue.jobspec.model import Count, Jobspec


def why_never(table: ByShares, request: Jobspec) -> str:
    """Return why ``request`` is unsatisfiable on the nodes as they are.

    If nodes are added to the cluster by a program, the reason says that more may come.
    """
    ask = table.ask(request)
    if ask.problem:
        return f"asks for {ask.problem}, which cannot be placed"
    if ask.contested:
        return _contested(ask.contested)
    by = table.ledger.autoscaler
    more = f"; {by} adds nodes to this cluster, so more may come" if by else ""
    return _why(table, ask) + _as_sweep(table, request) + more


def _contested(claim: str) -> str:
    """Say that several pods would need a claim for one pod at once. More nodes do not help."""
    return (
        f"needs {describe_exclusive(claim)} in several pods at once, and its accessModes:"
        " ReadWriteOncePod permits one. Fix: give each pod a claim of its own (an ephemeral volume"
        ' with a volumeClaimTemplate), or set fluxqueue/gang: "false" on a Job, which then runs'
        " its pods one at a time"
    )


def _as_sweep(table: ByShares, request: Jobspec) -> str:
    """Say that the pods of a plain gang fit one by one, if they do."""
    slot = request.resources[0] if len(request.resources) == 1 else None
    if slot is None or not slot.is_slot or slot.count.minimum < 2:
        return ""
    one = replace(request, resources=(replace(slot, count=Count(1, 1)),))
    if not table.is_satisfiable(one):
        return ""
    return '; one pod alone fits, and fluxqueue/gang: "false" starts the pods of a Job one by one'


def _why(table: ByShares, ask: Ask) -> str:
    present = table.ledger.masks.present()
    if not present.any():
        return "the cluster has no nodes"
    for _, leaf in ask.leaves():
        reason = _one_unit(table, leaf)
        if reason is not None:
            return reason
    return _all_units(table, ask)


def _one_unit(table: ByShares, leaf: Leaf) -> str | None:
    """Return the first resource that no admissible node has enough of, or the constraint."""
    allowed = table.ledger.masks.matching(leaf.where) & table.ledger.masks.present()
    if not allowed.any():
        return _no_zone(table, leaf) or f"no node is allowed by {_constraint(leaf.where)}"
    for name, need in leaf.needs:
        column = table.ledger.columns.get(name)
        largest = int(table.ledger.capacity[allowed, column].max()) if column is not None else 0
        if need > largest:
            wanted = describe_amount(name, need)
            counted = _counted(int(allowed.sum()), int(table.ledger.masks.present().sum()))
            policy = _keeping(table, allowed, {name: need})
            if policy is not None:
                given = describe_amount(name, largest)
                return f"needs {wanted} on one node; {counted} may give jobs {given}{policy}"
            if largest == 0:
                return f"needs {wanted} on one node; none of {counted} has any"
            return (
                f"needs {wanted} on one node; the largest of {counted} has {_bare(name, largest)}"
            )
    has_all = np.ones(len(table.ledger.names), dtype=np.bool_)
    for name, need in leaf.needs:
        if need > 0:
            has_all &= table.ledger.capacity[:, table.ledger.columns[name]] >= need
    if not has_all[allowed].any():
        policy = _keeping(table, allowed, dict(leaf.needs)) or ""
        return f"no single node has {describe(dict(leaf.needs))} together{policy}"
    return None


def _keeping(table: ByShares, allowed: Mask, needs: Mapping[str, int]) -> str | None:
    """Return, for the end of a sentence, which policy keeps ``needs`` from jobs, or None.

    An allowed node has them, and would be large enough without the policy.
    """
    for row in np.flatnonzero(allowed).tolist():
        others = table.ledger.others.get(table.ledger.names[row])
        policy = None if others is None else others.policy
        if policy is None:
            continue
        if all(policy.capacity.get(name, 0) >= need for name, need in needs.items()):
            return f", by {policy.describe()}"
    return None


def _policies(table: ByShares) -> str:
    """Return which sharing policies give less than all of a node, for a sentence on sums."""
    names = set[str]()
    for row in np.flatnonzero(table.ledger.masks.present()).tolist():
        others = table.ledger.others.get(table.ledger.names[row])
        policy = None if others is None else others.policy
        if policy is not None and policy.name not in names:
            given, columns = table.ledger.capacity[row], table.ledger.columns
            if any(given[columns[one]] < amount for one, amount in policy.capacity.items()):
                names.add(policy.name)
    if not names:
        return ""
    listed = enumerate_some(sorted(names))
    if len(names) == 1:
        return f", because sharing policy {listed} gives jobs less than all"
    return f", because sharing policies {listed} give jobs less than all"


def _counted(allowed: int, present: int) -> str:
    """Return how many nodes were counted, of those that a constraint or a taint leaves."""
    nodes = "1 node" if allowed == 1 else f"{allowed} nodes"
    return nodes if allowed == present else f"the {nodes} (of {present}) that it may use"


def _no_zone(table: ByShares, leaf: Leaf) -> str | None:
    """Return why no NUMA zone is large enough for a request, or None if zones are not the cause.

    Nodes would be allowed, but their kubelets would refuse the pod.
    """
    masks = table.ledger.masks
    elsewhere = masks.matching(leaf.where.anywhere_in_nodes()) & masks.present()
    facts = [masks.facts[row] for row in np.flatnonzero(elsewhere)]
    if not leaf.where.numa or not facts:
        return None
    for name in sorted({name for bundle in leaf.where.numa for name, _ in bundle}):
        rooms = [_zone_room(leaf.where, fact, name) for fact in facts if fact is not None]
        need, largest = min(rooms, key=lambda room: room[0] - room[1])
        if need > largest:
            return (
                f"needs {describe_amount(name, need)} in one NUMA zone, as every node that may be"
                f" used insists; the largest zone has {_bare(name, largest)}"
            )
    return "fits no single NUMA zone of a node, as every node that may be used insists"


def _zone_room(where: NodeDemand, fact: NodeFact, name: str) -> tuple[int, int]:
    """Return the most of a resource that must fit one zone of a node, and the most in a zone."""
    need = max(dict(bundle).get(name, 0) for bundle in where.bundles_for(fact))
    # A resource that is not divided by zones is not asked of them.
    return need, max(zone.get(name, need) for zone in fact.numa_zones)


def _all_units(table: ByShares, ask: Ask) -> str:
    for times, leaf in ask.leaves():
        counts = table.fits(leaf, table.ledger.capacity, table.ledger.masks.present(), ask)
        room = int(np.count_nonzero(counts) if leaf.is_distinct else counts.sum())
        if room < times * leaf.count:
            return _too_few(leaf, times * leaf.count, room) + _policies(table)
    for group in groups(ask.parts):
        reason = _level(table, ask, group)
        if reason is not None:
            return reason + _policies(table)
    level = only_level(ask)
    if level is not None:
        parts = " and ".join(contents([part]) for part in _inside(ask))
        return f"needs {parts} within one {level}; none is so large{_policies(table)}"
    return (
        f"needs {describe_ask(ask)}; each alone fits the empty cluster, but not all together"
        f"{_policies(table)}"
    )


def _level(table: ByShares, ask: Ask, group: Group) -> str | None:
    """Return that too few places of one level hold what each must, or None."""
    if group.count == 1 and only_level(ask) == group.level:
        return None
    good, there = table.places_with(ask, group)
    if good >= group.count:
        return None
    return too_few_places(group, good, there)


def _inside(ask: Ask) -> tuple[Leaf | Group, ...]:
    parts = ask.parts
    while len(parts) == 1 and isinstance(parts[0], Group) and parts[0].count == 1:
        parts = parts[0].below
    return parts


def _too_few(leaf: Leaf, wanted: int, room: int) -> str:
    each = describe(dict(leaf.needs))
    if leaf.is_distinct:
        return f"needs {wanted} nodes with {each}; the cluster has {room}"
    return f"needs {wanted} slots of {each}; the empty cluster holds {room}"


def _bare(name: str, amount: int) -> str:
    """Return an amount without the resource's name, which the sentence already contains."""
    return describe_amount(name, amount).removesuffix(f" {name}")


def _constraint(where: NodeDemand) -> str:
    parts = [describe_demand(one) for one in demands(where.constraint)]
    if not parts:
        return "the taints"
    return f"the node selector or affinity ({'; '.join(parts)}) and the taints"
