"""Which nodes a slot may go to, as boolean vectors kept in step with the nodes.

One mask per distinct constraint (selector, affinity terms, tolerations), computed once and then
corrected row by row as nodes change, so that matching 50,000 waiting FluxJobs evaluates labels
only for the handful of constraints they share. Used by ``pools.PoolSet`` only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

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


class NodeMasks:
    """Facts by row, and the vectors derived from them."""

    def __init__(self) -> None:
        self.facts: list[NodeFact | None] = []
        self._usable: Mask = np.zeros(0, dtype=np.bool_)
        self._present: Mask = np.zeros(0, dtype=np.bool_)
        self._matching: OrderedDict[NodeConstraint, Mask] = OrderedDict()
        self._groups: dict[str, list[Mask]] = {}

    def grow(self, size: int) -> None:
        """Make room for rows up to ``size``; new rows are absent until ``set``."""
        more = size - len(self.facts)
        self.facts += [None] * more
        self._usable = np.pad(self._usable, (0, more))
        self._present = np.pad(self._present, (0, more))
        for constraint, mask in self._matching.items():
            self._matching[constraint] = np.pad(mask, (0, more))
        self._groups.clear()

    def set(self, row: int, fact: NodeFact) -> None:
        """Take in the node of ``row`` as it is now."""
        old = self.facts[row]
        self.facts[row] = fact
        self._present[row] = True
        self._usable[row] = fact.is_up and fact.is_schedulable
        if old is None or (old.labels, old.taints) != (fact.labels, fact.taints):
            self._groups.clear()
            for constraint, mask in self._matching.items():
                mask[row] = admits(fact, constraint)

    def clear(self, row: int) -> None:
        """The node of ``row`` is gone."""
        self.facts[row] = None
        self._present[row] = self._usable[row] = False
        self._groups.clear()
        for mask in self._matching.values():
            mask[row] = False

    def label(self, row: int | None, key: str) -> str | None:
        """A label's value on the node of ``row``; None where there is no such node or label."""
        fact = None if row is None else self.facts[row]
        return None if fact is None else fact.labels.get(key)

    def usable(self) -> Mask:
        """Nodes that take pods now: present, ready, not cordoned."""
        return self._usable

    def present(self) -> Mask:
        """Nodes that exist, whatever their condition."""
        return self._present

    def matching(self, constraint: NodeConstraint) -> Mask:
        """Nodes that ``constraint`` admits."""
        mask = self._matching.get(constraint)
        if mask is None:
            mask = np.array(
                [fact is not None and admits(fact, constraint) for fact in self.facts],
                dtype=np.bool_,
            )
            self._matching[constraint] = mask
            if len(self._matching) > MASKS_MAX:
                self._matching.popitem(last=False)
        else:
            self._matching.move_to_end(constraint)
        return mask

    def groups(self, level: str) -> Iterator[Mask]:
        """One mask for each place of the topology level ``level``, in the order of their names."""
        if level not in self._groups:
            values = [fact.place_in(level) if fact else None for fact in self.facts]
            distinct = sorted({value for value in values if value is not None})
            self._groups[level] = [
                np.array([value == wanted for value in values], dtype=np.bool_)
                for wanted in distinct
            ]
        return iter(self._groups[level])
