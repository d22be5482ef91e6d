"""Which nodes a slot may go to, as boolean vectors kept in step with the nodes.

One mask per distinct constraint (selector, affinity terms, tolerations), computed once and then
corrected row by row as nodes change, so that matching 50,000 waiting FluxJobs evaluates labels
only for the handful of constraints they share. Used by the ledger of shares.
"""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
import numpy.typing as npt

from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.jobspec.demand import NodeDemand

Mask = npt.NDArray[np.bool_]

MASKS_MAX = 1024
"""Distinct constraints remembered; the least recently used is forgotten first."""


class NodeMasks:
    """Facts by row, and the vectors derived from them."""

    def __init__(self) -> None:
        self.facts: list[NodeFact | None] = []
        self._usable: Mask = np.zeros(0, dtype=np.bool_)
        self._present: Mask = np.zeros(0, dtype=np.bool_)
        self._matching: OrderedDict[NodeDemand, Mask] = OrderedDict()
        self._zoned: set[int] = set()

    def grow(self, size: int) -> None:
        """Make room for rows up to ``size``; new rows are absent until ``set``."""
        more = size - len(self.facts)
        self.facts += [None] * more
        self._usable = np.pad(self._usable, (0, more))
        self._present = np.pad(self._present, (0, more))
        for demand, mask in self._matching.items():
            self._matching[demand] = np.pad(mask, (0, more))

    def set(self, row: int, fact: NodeFact) -> None:
        """Take in the node of ``row`` as it is now."""
        old = self.facts[row]
        self.facts[row] = fact
        (self._zoned.add if fact.numa_zones else self._zoned.discard)(row)
        self._present[row] = True
        self._usable[row] = fact.is_up and fact.is_schedulable
        if old is None or _what_is_asked(old) != _what_is_asked(fact):
            for demand, mask in self._matching.items():
                mask[row] = demand.admits(fact)

    def clear(self, row: int) -> None:
        """The node of ``row`` is gone."""
        self.facts[row] = None
        self._zoned.discard(row)
        self._present[row] = self._usable[row] = False
        for mask in self._matching.values():
            mask[row] = False

    def usable(self) -> Mask:
        """Nodes that take pods now: present, ready, not cordoned."""
        return self._usable

    def present(self) -> Mask:
        """Nodes that exist, whatever their condition."""
        return self._present

    def knows(self, demand: NodeDemand) -> bool:
        """Whether no node has to be looked at for ``matching``."""
        return demand in self._matching

    def matching(self, demand: NodeDemand) -> Mask:
        """Nodes that ``demand`` admits."""
        if demand.numa and not self._zoned:
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
        # Each shape of pod has its own bundles: only nodes that have zones are asked about them.
        mask = self.matching(demand.anywhere_in_nodes()).copy()
        for row in self._zoned:
            fact = self.facts[row]
            mask[row] = mask[row] and fact is not None and demand.fits_zones(fact)
        return mask


def _what_is_asked(fact: NodeFact) -> tuple[object, ...]:
    """What demands look at."""
    return fact.name, fact.labels, fact.taints, fact.numa_zones, fact.is_numa_for_pods
