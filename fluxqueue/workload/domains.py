"""Counts the values that a node label has on the nodes that pods may use.

``surroundings`` asks it for rules of topology keys. The controller keeps the answers until a node
changes. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from fluxqueue.fluxjob.levels import Levels, path_of
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.request import Toleration
from fluxqueue.jobspec.constraint import Constraint
from fluxqueue.workload.own_pods import Domains


@dataclass(frozen=True, slots=True)
class DomainQuery:
    """Which nodes count.

    ``key`` is the label. Nodes must have all of ``labels`` to be a domain. ``above`` are the levels
    above the one of the label. ``constraint`` and ``tolerations`` are those of the pods, or None if
    they do not matter.
    """

    key: str
    labels: tuple[str, ...]
    above: Levels = ()
    constraint: Constraint | None = None
    tolerations: tuple[Toleration, ...] | None = None


def count_domains(query: DomainQuery, nodes: Iterable[NodeFact]) -> Domains:
    """Return the values of a label on those of ``nodes`` that count."""
    found: set[str] = set()
    paths: dict[str, tuple[str | None, ...]] = {}
    is_everywhere = is_nested = True
    for node in nodes:
        if not _counts(query, node):
            continue
        if query.key not in node.labels:
            is_everywhere = False
            continue
        value, path = node.labels[query.key], path_of(query.above, node.labels)
        is_nested &= paths.setdefault(value, path) == path
        if all(label in node.labels for label in query.labels):
            found.add(value)
    return Domains(len(found), is_everywhere, is_nested)


def _counts(query: DomainQuery, node: NodeFact) -> bool:
    if query.constraint is not None and not query.constraint.matches(node.name, -1, node.labels):
        return False
    return query.tolerations is None or all(
        any(one.tolerates(taint) for one in query.tolerations)
        for taint in node.taints
        if taint.repels
    )
