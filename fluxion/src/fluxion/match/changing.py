"""Changes of a graph of vertices: nodes join, leave, go up and down, and change their pools.

Bookings, the order of children, the tables and the weights are updated too. A change of one node is
an update. Larger changes compile the graph again. Base of ``ByVertices``. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from fluxion.formats.jgf import JgfDocument
from fluxion.ledger.vertices import VertexLedger
from fluxion.match.child_order import ChildOrder
from fluxion.match.edit import GraphEdit, subtrees
from fluxion.match.given import without
from fluxion.match.growth import Joining, can_leave, find_joining, resized, take_in
from fluxion.match.vertices.vertex_tables import FastSelector
from fluxion.match.weights import Weights
from fluxion.model.builder import MAX_SIZE
from fluxion.model.pruning import PruningFilters
from fluxion.model.shapes import iterate_bits
from fluxion.model.store import ResourceGraph
from fluxqueue.errors import InvalidInput

MAX_GONE = 64
"""Number of nodes that may leave before the graph is compiled again. More in a large graph."""


class ChangingGraph:
    """A graph and all data that depends on it. Parameters as in ``ByVertices``."""

    def __init__(
        self,
        graph: ResourceGraph,
        prune_filters: str,
        *,
        use_reference: bool,
        answers_as_fluxion: bool,
    ) -> None:
        self.prune_filters = prune_filters
        self.use_reference = use_reference
        self.answers_as_fluxion = answers_as_fluxion
        self._unweighed: set[int] = set()
        self._load(graph)

    def _load(self, graph: ResourceGraph) -> None:
        self.graph = graph
        self.state = VertexLedger(graph, PruningFilters(graph, self.prune_filters))
        self.order = ChildOrder(graph)
        self.fast = FastSelector(self.state, self.order)
        self.nodes_up = self._nodes_up_below(0)
        self.weights = Weights(
            self.state, self.order, self._unweighed, answers_as_fluxion=self.answers_as_fluxion
        )

    def set_status(self, v: int, *, is_up: bool) -> None:
        """Mark one vertex up or down. A vertex that is down hides all vertices below it.

        Jobs stay.
        """
        graph = self.graph
        before = self._nodes_up_below(v)
        if is_up:
            graph.down.discard(v)
        else:
            graph.down.add(v)
        self.nodes_up += self._nodes_up_below(v) - before
        self.state.note_status(v, is_up=is_up)

    def set_property(self, v: int, key: str, value: str) -> None:
        """Give a vertex a property. Constraints see the key, R shows key and value."""
        self.graph.properties.setdefault(v, {})[key] = value
        self.fast.forget_constraints()

    def attach(self, document: JgfDocument) -> None:
        """Add a JGF subgraph to the graph. Raises ``InvalidGraph`` and then changes nothing."""
        if not self.use_reference:
            joining = find_joining(self.graph, document, self.state.filters.tracked)
            if joining is not None:
                for one in joining:
                    self._join(one)
                return
        edit = GraphEdit(self.graph)
        edit.attach(document)
        self._adopt(edit)

    def remove_subtree(self, v: int) -> None:
        """Remove ``v`` and all vertices below it. Jobs lose what they held there.

        Raises
        ------
        InvalidInput
            ``v`` is the root.
        """
        if v == 0:
            raise InvalidInput("the root cannot be removed", where="path", value="/")
        self._remove([v])

    def remove_ranks(self, ranks: Iterable[int]) -> None:
        """Remove all vertices of these broker ranks. Raises ``InvalidInput`` if one has none."""
        roots: list[int] = []
        for rank in ranks:
            vertices = self.graph.by_rank(rank)
            if not vertices or 0 in vertices:
                raise InvalidInput("the graph has no such rank", where="rank", value=rank)
            roots.append(min(vertices, key=self.graph.depth))
        self._remove(roots)

    def resize(self, v: int, size: int) -> None:
        """Change the size of a consumable pool, as when a node's allocatable changes.

        Jobs keep their shares. What is left may be negative until they end.

        Raises
        ------
        InvalidInput
            ``v`` is not a consumable pool of a node, or ``size`` is out of range.
        """
        self._check_pool(v, size)
        graph = self.graph
        shape = resized(graph, v, size)
        graph.size[v] = size
        self.state.reshape_block(graph.block_of[v], shape)
        graph.version += 1
        self.weights.follow_block(graph.block_of[v], 1)

    def set_foreign(self, v: int, units: int) -> None:
        """Set the ``units`` of a consumable pool that unmanaged pods use. Raises as ``resize``."""
        self._check_pool(v, units)
        if units:
            self.graph.foreign[v] = units
        else:
            self.graph.foreign.pop(v, None)
        number = self.graph.block_of[v]
        self.state.log.append(number)
        self.weights.follow_block(number, 1)

    def _check_pool(self, v: int, units: int) -> None:
        graph = self.graph
        if graph.type_of[v] not in graph.consumable or graph.block_of[v] < 0:
            raise InvalidInput("is no consumable pool of a node", where=graph.path(v), value=v)
        if not 0 <= units <= MAX_SIZE:
            raise InvalidInput("is out of range", where="size", value=units)

    def _remove(self, roots: list[int]) -> None:
        left: list[int] = []
        for v in roots:
            if not self.use_reference and can_leave(self.graph, v):
                self._leave(v)
            else:
                left.append(v)
        graph = self.graph
        # Unreachable numbers cost memory, and every pass over all blocks visits them.
        if left or len(graph.gone) > max(MAX_GONE, len(graph.blocks) // 2):
            self._adopt(GraphEdit(graph, subtrees(graph, left)))

    def _join(self, one: Joining) -> None:
        number = take_in(self.graph, one)
        self.state.add_block(number)
        self.order.forget(one.anchor)
        self.nodes_up += self._nodes_up_below(self.graph.blocks[number].base)

    def _leave(self, v: int) -> None:
        graph, state = self.graph, self.state
        number = graph.block_of[v]
        inside = range(v, graph.end[v])
        for job in list(state.block_spans[number]):
            booking = state.bookings[job]
            booked = booking.blocks[number][0]
            lost = [v + i for i in iterate_bits(booked)]
            lost += [u for u in booking.shares if u in inside]
            remaining = without(graph, booking, lost)
            state.cancel(job)
            state.book(remaining)
        self.nodes_up -= self._nodes_up_below(v)
        state.remove_block(number)
        self.order.forget(graph.parent[v], inside)
        graph.drop(number)

    def _adopt(self, edit: GraphEdit) -> None:
        edit.finish()
        bookings = [edit.carry(booking) for booking in self.state.bookings.values()]
        weights, time = self.order.weights, self.state.time
        self._load(edit.new)
        self.state.time = time
        for booking in bookings:
            self.state.book(booking)
        for v, weight in weights.items():
            if v in edit.new_number:
                self.order.set_weight(edit.new_number[v], weight)

    def _nodes_up_below(self, v: int) -> int:
        graph = self.graph
        node = graph.type_number["node"]
        return sum(graph.type_of[u] == node and graph.is_up(u) for u in graph.subtree(v))
