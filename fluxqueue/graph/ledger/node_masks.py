"""Which nodes a slot may go to, as boolean vectors kept in step with the nodes.

One mask per distinct constraint (selector, affinity terms, tolerations), computed once and then
corrected row by row as nodes change, so that matching 50,000 waiting FluxJobs evaluates labels
only for the handful of constraints they share. Used by the ledger of shares.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

import numpy as np
import numpy.typing as npt

from fluxqueue.fluxjob.node import NAME_KEY, NodeFact
from fluxqueue.fluxjob.request import NodeConstraint

Mask = npt.NDArray[np.bool_]

MASKS_MAX = 1024
"""Distinct constraints remembered; the least recently used is forgotten first."""


def admits(fact: NodeFact, constraint: NodeConstraint) -> bool:
    """Tell whether ``constraint`` lets a slot go to this node (readiness apart)."""
    labels = {**fact.labels, NAME_KEY: fact.name}
    if any(labels.get(key) != value for key, value in constraint.selector):
        return False
    if constraint.terms and not any(
        term and all(requirement.is_met_by(labels) for requirement in term)
        for term in constraint.terms
    ):
        return False
    return all(
        any(toleration.tolerates(taint) for toleration in constraint.tolerations)
        for taint in fact.taints
        if taint.repels
    )


class Rule(Protocol):
    """A constraint on nodes, hashable: what masks are remembered by."""

    def __hash__(self) -> int: ...

    def admits(self, fact: NodeFact) -> bool:
        """Tell whether a slot may go to this node (readiness apart)."""
        ...


class NodeMasks:
    """Facts by row, and the vectors derived from them."""

    def __init__(self) -> None:
        self.facts: list[NodeFact | None] = []
        self._usable: Mask = np.zeros(0, dtype=np.bool_)
        self._present: Mask = np.zeros(0, dtype=np.bool_)
        self._matching: OrderedDict[Rule, Mask] = OrderedDict()

    def grow(self, size: int) -> None:
        """Make room for rows up to ``size``; new rows are absent until ``set``."""
        more = size - len(self.facts)
        self.facts += [None] * more
        self._usable = np.pad(self._usable, (0, more))
        self._present = np.pad(self._present, (0, more))
        for rule, mask in self._matching.items():
            self._matching[rule] = np.pad(mask, (0, more))

    def set(self, row: int, fact: NodeFact) -> None:
        """Take in the node of ``row`` as it is now."""
        old = self.facts[row]
        self.facts[row] = fact
        self._present[row] = True
        self._usable[row] = fact.is_up and fact.is_schedulable
        if old is None or (old.name, old.labels, old.taints) != (
            fact.name,
            fact.labels,
            fact.taints,
        ):
            for rule, mask in self._matching.items():
                mask[row] = rule.admits(fact)

    def clear(self, row: int) -> None:
        """The node of ``row`` is gone."""
        self.facts[row] = None
        self._present[row] = self._usable[row] = False
        for mask in self._matching.values():
            mask[row] = False

    def usable(self) -> Mask:
        """Nodes that take pods now: present, ready, not cordoned."""
        return self._usable

    def present(self) -> Mask:
        """Nodes that exist, whatever their condition."""
        return self._present

    def matching(self, rule: Rule) -> Mask:
        """Nodes that ``rule`` admits."""
        mask = self._matching.get(rule)
        if mask is None:
            mask = np.array(
                [fact is not None and rule.admits(fact) for fact in self.facts], dtype=np.bool_
            )
            self._matching[rule] = mask
            if len(self._matching) > MASKS_MAX:
                self._matching.popitem(last=False)
        else:
            self._matching.move_to_end(rule)
        return mask
