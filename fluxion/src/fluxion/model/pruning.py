"""Pruning filters: which resource types are summed up at which vertices.

Called when a graph is loaded or changed. The rules are Fluxion's (flux-sched,
resource/policies/base/matcher.cpp). ``ALL:core`` sums up cores at every vertex with children,
``rack:gpu`` sums up gpus at racks. Leaf types that the specification does not name are summed up at
vertices of type ``cluster``.
"""

from __future__ import annotations

from fluxion.model.store import ResourceGraph
from fluxqueue.errors import InvalidSettings

DEFAULT = "ALL:core,ALL:node"
ANY = "ALL"


class PruningFilters:
    """A specification parsed for one graph. ``types_at`` answers for a vertex type."""

    def __init__(self, graph: ResourceGraph, specification: str = DEFAULT) -> None:
        self.everywhere: set[int] = set()
        self.anchored: dict[int, set[int]] = {}
        self._number = graph.type_number
        if specification:
            for pair in specification.split(","):
                self._add_pair(pair, graph)
        self._add_leaf_types(graph)
        self._cache: dict[int, tuple[int, ...]] = {}
        self.tracked = self.everywhere.union(*self.anchored.values())

    def types_at(self, kind: int) -> tuple[int, ...]:
        """Return the types summed up below a vertex of type ``kind``, in Fluxion's order."""
        found = self._cache.get(kind)
        if found is None:
            own = sorted(self.anchored.get(kind, ()))
            found = (*own, *sorted(self.everywhere - {kind}))
            self._cache[kind] = found
        return found

    def _add_pair(self, pair: str, graph: ResourceGraph) -> None:
        high, colon, low = ("".join(part.split()) for part in pair.partition(":"))
        if not colon or not high or not low:
            raise InvalidSettings(
                f"{pair!r} is no pruning filter", where="prune-filters", hint="such as ALL:core"
            )
        kind = self._intern(low, graph)
        if high == ANY:
            for kinds in self.anchored.values():
                kinds.discard(kind)
            self.everywhere.add(kind)
        elif kind not in self.everywhere:
            self.anchored.setdefault(self._intern(high, graph), set()).add(kind)

    def _add_leaf_types(self, graph: ResourceGraph) -> None:
        tracked = self.everywhere.union(*self.anchored.values())
        leaves = {
            kind
            for shape in graph.shapes
            for kind, below in zip(shape.types, shape.children, strict=True)
            if not below
        }
        leaves |= {graph.type_of[v] for v in graph.tops if v not in graph.children}
        cluster = graph.type_number["cluster"]
        for kind in leaves - tracked:
            self.anchored.setdefault(cluster, set()).add(kind)

    def _intern(self, name: str, graph: ResourceGraph) -> int:
        number = graph.type_number.get(name)
        if number is None:
            number = graph.type_number[name] = len(graph.types)
            graph.types.append(name)
        return number
