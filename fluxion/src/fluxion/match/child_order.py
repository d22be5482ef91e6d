"""The order in which the ``first`` policies visit children.

Fluxion keeps the children of a vertex by (weight, uniq_id), descending. A weight starts at the
largest number. It becomes "units free below it now" when a job is booked through the edge, and
stays when a job ends (flux-sched, dfu_impl_update.cpp, ``upd_by_outedges``). Recorded outputs
depend on that, so the matcher can do the same. Otherwise it sets new weights when something is
given back. The matcher calls it. Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from fluxion.model.store import ResourceGraph

UNTOUCHED = (1 << 64) - 1
FEW = 64
"""Up to this many children are sorted on use. More are kept sorted."""
Key = tuple[int, int, int]


class ChildOrder:
    """Children by weight. ``weights`` has the vertices with a known weight."""

    def __init__(self, graph: ResourceGraph) -> None:
        self.graph = graph
        self.weights: dict[int, int] = {}
        self._keys: dict[int, list[Key]] = {}
        self._children: dict[int, list[int]] = {}
        self._few: dict[int, dict[int, int]] = {}

    def of(self, v: int) -> list[int]:
        """Return the children of ``v``, untouched ones first, then by most free.

        The list belongs to the order: it changes with ``set_weight``, and the caller must not
        change it.
        """
        found = self._children.get(v)
        if found is not None:
            return found
        few = self._few.get(v)
        if few is not None:
            # Ties keep the order of the dictionary, even in a reversed sort.
            found = self._children[v] = sorted(few, key=few.__getitem__, reverse=True)
            return found
        uniq_id = self.graph.uniq_id
        weights = self.weights
        found = sorted(
            self.graph.children.get(v, ()),
            key=lambda c: (-weights.get(c, UNTOUCHED), -uniq_id[c], c),
        )
        if self.graph.block_of[v] < 0:
            self._children[v] = found
        return found

    def forget(self, above: int, gone: Iterable[int] = ()) -> None:
        """Drop what is cached of the children of ``above``, and the weights of removed vertices."""
        self._keys.pop(above, None)
        self._children.pop(above, None)
        self._few.pop(above, None)
        for v in gone:
            self.weights.pop(v, None)

    def set_weight(self, v: int, weight: int) -> None:
        """Set the number of units that are free below ``v`` now."""
        old_weight = self.weights.get(v, UNTOUCHED)
        if old_weight == weight:
            return
        self._place(v, old_weight, weight)
        self.weights[v] = weight

    def forget_weight(self, v: int) -> None:
        """Drop the weight of ``v``, at or below which nothing is booked any more."""
        old_weight = self.weights.pop(v, UNTOUCHED)
        if old_weight != UNTOUCHED:
            self._place(v, old_weight, UNTOUCHED)

    def _place(self, v: int, old_weight: int, weight: int) -> None:
        above = self.graph.parent[v]
        few = self._few.get(above)
        if few is None:
            count = len(self.graph.children[above])
            if count == 1:
                return
            if count <= FEW:
                few = self._few_children(above)
        if few is not None:
            few[v] = weight
            self._children.pop(above, None)
            return
        uniq_id = self.graph.uniq_id
        keys, children = self._ordered(above)
        position = bisect_left(keys, (-old_weight, -uniq_id[v], v))
        del keys[position], children[position]
        fresh = (-weight, -uniq_id[v], v)
        position = bisect_left(keys, fresh)
        keys.insert(position, fresh)
        children.insert(position, v)

    def _few_children(self, above: int) -> dict[int, int]:
        """Return the weights below ``above``, in the order of ties."""
        weights, uniq_id = self.weights, self.graph.uniq_id
        children = sorted(self.graph.children[above], key=lambda c: (-uniq_id[c], c))
        found = self._few[above] = {c: weights.get(c, UNTOUCHED) for c in children}
        return found

    def _ordered(self, above: int) -> tuple[list[Key], list[int]]:
        keys = self._keys.get(above)
        if keys is None:
            weights, uniq_id = self.weights, self.graph.uniq_id
            keys = sorted(
                (-weights.get(c, UNTOUCHED), -uniq_id[c], c) for c in self.graph.children[above]
            )
            self._keys[above] = keys
            self._children[above] = [key[2] for key in keys]
        return keys, self._children[above]
