"""The nodes that a slot may use, as boolean vectors that follow changes of the nodes.

There is one mask per distinct constraint (selector, affinity terms, tolerations). It is computed
once and then corrected row by row as nodes change. So matching 50,000 pending FluxJobs evaluates
labels only for the few constraints that they share. The ledger of shares uses it.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import numpy.typing as npt

from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.graph.arrays import Vector
from fluxqueue.jobspec.demand import NodeDemand

Mask = npt.NDArray[np.bool_]

MASKS_MAX = 1024
"""Number of distinct constraints to remember. The least recently used is forgotten first."""


class NodeMasks:
    """Facts by row, and the vectors derived from them."""

    def __init__(self) -> None:
        self.facts: list[NodeFact | None] = []
        self._usable: Mask = np.zeros(0, dtype=np.bool_)
        self._present: Mask = np.zeros(0, dtype=np.bool_)
        self._matching: OrderedDict[NodeDemand, Mask] = OrderedDict()
        self._zoned: set[int] = set()

    def grow(self, size: int) -> None:
        """Make space for rows up to ``size``. New rows are absent until ``set``."""
        more = size - len(self.facts)
        self.facts += [None] * more
        self._usable = np.pad(self._usable, (0, more))
        self._present = np.pad(self._present, (0, more))
        for demand, mask in self._matching.items():
            self._matching[demand] = np.pad(mask, (0, more))

    def set(self, row: int, fact: NodeFact) -> None:
        """Set the node of ``row`` as it is now."""
        old = self.facts[row]
        self.facts[row] = fact
        (self._zoned.add if fact.numa_zones else self._zoned.discard)(row)
        self._present[row] = True
        self._usable[row] = fact.is_up and fact.is_schedulable
        # Labels are evaluated again only if something that demands read has changed.
        if old is None or _what_is_asked(old) != _what_is_asked(fact):
            for demand, mask in self._matching.items():
                mask[row] = demand.admits(fact)

    def of(self, rows: Vector) -> NodeMasks:
        """Return the masks of the nodes of ``rows`` alone, in their order."""
        found = NodeMasks()
        found.facts = [self.facts[row] for row in rows.tolist()]
        found._usable, found._present = self._usable[rows], self._present[rows]
        if self._zoned:
            found._zoned = {at for at, row in enumerate(rows.tolist()) if row in self._zoned}
        return found

    def clear(self, row: int) -> None:
        """Remove the node of ``row``."""
        self.facts[row] = None
        self._zoned.discard(row)
        self._present[row] = self._usable[row] = False
        for mask in self._matching.values():
            mask[row] = False

    def usable(self) -> Mask:
        """Return the nodes that take pods now: present, ready, not cordoned."""
        return self._usable

    def present(self) -> Mask:
        """Return the nodes that exist, in any condition."""
        return self._present

    def knows(self, demand: NodeDemand) -> bool:
        """Return whether ``matching`` has the answer already and needs to evaluate no node."""
        return demand in self._matching

    def matching(self, demand: NodeDemand) -> Mask:
        """Return the nodes that ``demand`` admits."""
        if demand.numa and not self._zoned:
            # Without zones, all demands that differ only in their NUMA wishes have the same answer.
            demand = demand.anywhere_in_nodes()
        mask = self._matching.get(demand)
        if mask is None:
            mask = self._evaluate(demand)
            self._matching[demand] = mask
            if len(self._matching) > MASKS_MAX:
                self._matching.popitem(last=False)
        else:
            self._matching.move_to_end(demand)
        return mask

    def _evaluate(self, demand: NodeDemand) -> Mask:
        if not demand.numa:
            admitted = [fact is not None and demand.admits(fact) for fact in self.facts]
            return np.array(admitted, dtype=np.bool_)
        # Each shape of pod has its own bundles, so only nodes with zones are evaluated for them.
        mask = self.matching(demand.anywhere_in_nodes()).copy()
        for row in self._zoned:
            fact = self.facts[row]
            mask[row] = mask[row] and fact is not None and demand.fits_zones(fact)
        return mask


def _what_is_asked(fact: NodeFact) -> tuple[object, ...]:
    """Return the properties of a node that demands read."""
    return fact.name, fact.labels, fact.taints, fact.numa_zones, fact.is_numa_for_pods
