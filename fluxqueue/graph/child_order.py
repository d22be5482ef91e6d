"""The order in which the ``first`` policies look at children.

Fluxion keeps the children of a vertex by (weight, uniq_id), descending. A weight starts at the
largest number and becomes "units free below it now" when a job is booked through the edge; it is
not touched when a job ends (flux-sched, dfu_impl_update.cpp, ``upd_by_outedges``). Recorded
outputs depend on that, so it is kept. Called by the matcher; pure.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from fluxqueue.graph.store import ResourceGraph

UNTOUCHED = (1 << 64) - 1
Key = tuple[int, int, int]


class ChildOrder:
    """Children by weight. ``weights`` has the vertices whose weight was ever set."""

    def __init__(self, graph: ResourceGraph) -> None:
        self.graph = graph
        self.weights: dict[int, int] = {}
        self._keys: dict[int, list[Key]] = {}

    def of(self, v: int) -> list[int]:
        """The children of ``v``, the most free first, untouched ones before all."""
        keys = self._keys.get(v)
        if keys is not None:
            return [key[2] for key in keys]
        uniq_id = self.graph.uniq_id
        return sorted(self.graph.children.get(v, ()), key=lambda c: -uniq_id[c])

    def set_weight(self, v: int, weight: int) -> None:
        """``weight`` units are free below ``v`` now."""
        if self.weights.get(v) == weight:
            return
        above = self.graph.parent[v]
        uniq_id = self.graph.uniq_id
        keys = self._keys.get(above)
        if keys is None:
            weights = self.weights
            keys = sorted(
                (-weights.get(c, UNTOUCHED), -uniq_id[c], c) for c in self.graph.children[above]
            )
            self._keys[above] = keys
        old = (-self.weights.get(v, UNTOUCHED), -uniq_id[v], v)
        del keys[bisect_left(keys, old)]
        insort(keys, (-weight, -uniq_id[v], v))
        self.weights[v] = weight
