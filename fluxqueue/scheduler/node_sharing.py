"""What sharing policies give now, which pods violate them, and which running work exceeds them.

The worker that matches counts it at intervals for the status of ResourceSharingPolicies. A changed
policy evicts nothing, so running work may hold more than its policy gives. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fluxqueue.fluxjob.request import Taint
from fluxqueue.graph.arrays import Matrix
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.policy.sharing.arithmetic import Amounts
from fluxqueue.policy.sharing.node_grants import NodeGrant, NodeSharing

SHOWN_MAX = 20
"""The most pods and nodes that a status lists. It counts all."""


@dataclass(frozen=True, slots=True)
class Violation:
    """An unmanaged pod (namespace/name) on a node that is not for it."""

    pod: str
    node: str


@dataclass(frozen=True, slots=True)
class Excess:
    """A node on which jobs hold more than the policy gives: of each such resource, both amounts.

    ``keys`` are the workload UIDs of the jobs, ``held`` and ``given`` are in base units.
    """

    node: str
    held: Mapping[str, int]
    given: Mapping[str, int]
    keys: tuple[str, ...]


@dataclass(slots=True)
class PolicyFigures:
    """What one policy gives: on how many nodes, and how much of each resource (base units)."""

    nodes: int = 0
    given: Amounts = field(default_factory=dict)
    violations: int = 0
    violating: list[Violation] = field(default_factory=list)
    exceeded: int = 0
    exceeding: list[Excess] = field(default_factory=list)
    fault: str | None = None


SharingFigures = Mapping[str, PolicyFigures]
"""Name of a policy -> its figures. A policy that counts for no node may be left out."""


TAINT = Taint("fluxqueue/dedicated", "", "NoSchedule")
"""Keeps pods away from dedicated nodes that do not tolerate it. Others must not set this key."""


@dataclass(frozen=True, slots=True)
class TaintChanges:
    """Nodes that get the taint of dedicated nodes, and nodes that lose it.

    ``policies`` want the taint on some of their nodes.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    policies: frozenset[str] = frozenset()


def taint_changes(sharing: NodeSharing, ledger: ShareLedger) -> TaintChanges:
    """Compare the taints of nodes with what policies want."""
    wanted = {node: one.policy for node, one in sharing.grants.items() if one.is_tainted}
    present = {
        fact.name
        for fact in ledger.masks.facts
        if fact is not None and any(taint.key == TAINT.key for taint in fact.taints)
    }
    return TaintChanges(
        tuple(sorted(wanted.keys() - present)),
        tuple(sorted(present - wanted.keys())),
        frozenset(wanted.values()),
    )


def count_sharing(sharing: NodeSharing, ledger: ShareLedger) -> SharingFigures:
    """Count what each policy gives on the nodes of ``ledger``."""
    found = {name: PolicyFigures(fault=why) for name, why in sharing.set_aside.items()}
    for (policy, node), error in sharing.failures.items():
        figures = found.setdefault(policy, PolicyFigures())
        figures.fault = figures.fault or f"it fails on node {node}: {error}"
    booked = ledger.booked if sharing.grants else None
    for node, grant in sharing.grants.items():
        figures = found.setdefault(grant.policy, PolicyFigures())
        figures.nodes += 1
        for name, amount in grant.now.items():
            figures.given[name] = figures.given.get(name, 0) + amount
        figures.violations += len(grant.violations)
        free = SHOWN_MAX - len(figures.violating)
        figures.violating += [Violation(pod, node) for pod in grant.violations[:free]]
        if booked is not None:
            _count_excess(figures, ledger, node, grant, booked)
    return found


def _count_excess(
    figures: PolicyFigures, ledger: ShareLedger, node: str, grant: NodeGrant, booked: Matrix
) -> None:
    row = ledger.rows.get(node)
    if row is None or not ledger.keys_on(row):
        return
    held = dict(_excess(ledger, row, grant, booked))
    if held:
        figures.exceeded += 1
        if len(figures.exceeding) < SHOWN_MAX:
            given = {name: grant.now[name] for name in held}
            keys = tuple(sorted(ledger.keys_on(row)))
            figures.exceeding.append(Excess(node, held, given, keys))


def _excess(
    ledger: ShareLedger, row: int, grant: NodeGrant, booked: Matrix
) -> Iterator[tuple[str, int]]:
    for name, given in grant.now.items():
        amount = int(booked[row, ledger.columns[name]])
        if amount > given:
            yield name, amount
