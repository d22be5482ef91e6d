"""Growing and shrinking a graph: attach a JGF subgraph, remove subtrees.

A changed graph is compiled again and the bookings are carried over, vertex by vertex. Single nodes
use the faster ``match.growth``. ``FluxionMatcher`` calls it. Nothing is changed until the new graph
has passed every check.
"""

from __future__ import annotations

from collections.abc import Iterable

from fluxion.formats.jgf import JgfDocument
from fluxion.ledger.booking import Booking
from fluxion.match.given import hold, hold_shares
from fluxion.model.builder import GraphBuilder, vertex_of
from fluxion.model.shapes import iterate_bits
from fluxion.model.store import ResourceGraph
from fluxqueue.errors import InvalidGraph


class GraphEdit:
    """A new graph made from an old one. ``new_number`` maps old vertices to new ones."""

    def __init__(self, graph: ResourceGraph, gone: frozenset[int] = frozenset()) -> None:
        self.old = graph
        self.builder = GraphBuilder()
        # Types keep their numbers, so requests and filters of the old graph stay valid.
        self.builder.graph.types = list(graph.types)
        self.builder.graph.type_number = dict(graph.type_number)
        self.index_of: dict[int, int] = {}
        for v in range(len(graph)):
            if v not in gone and graph.block_of[v] not in graph.gone:
                self.index_of[v] = self.builder.add(vertex_of(graph, v))
                above = graph.parent[v]
                if above >= 0:
                    self.builder.connect(self.index_of[above], self.index_of[v])
        self.new: ResourceGraph
        self.new_number: dict[int, int] = {}

    def attach(self, document: JgfDocument) -> None:
        """Add the vertices and edges of ``document`` that the graph does not have.

        Raises
        ------
        InvalidGraph
            An edge has no vertex at one end. What ``GraphBuilder.build`` refuses is raised later.
        """
        known: dict[str, int] = {}
        fresh: set[str] = set()
        for found in document.vertices:
            assert found.vertex.path is not None
            same = [
                v
                for v in self.old.find_path(found.vertex.path)
                if self.old.rank[v] == found.vertex.rank
            ]
            if same:
                known[found.outer_id] = self.index_of[same[0]]
            else:
                known[found.outer_id] = self.builder.add(found.vertex, f"node {found.outer_id}")
                fresh.add(found.outer_id)
        for source, target in document.edges:
            if source not in known or target not in known:
                raise InvalidGraph(
                    "edge to a node that is not in the document",
                    where="graph.edges",
                    value=f"{source} -> {target}",
                )
            if source in fresh or target in fresh:
                self.builder.connect(known[source], known[target], f"{source} -> {target}")

    def finish(self) -> None:
        """Compile the new graph. Raises ``InvalidGraph`` as ``GraphBuilder.build`` does."""
        self.new = self.builder.build()
        self.new.cluster = self.old.cluster
        # build() numbers in preorder, so map the builder's indexes to the new numbers.
        order = self.builder.final_order
        position = {index: v for v, index in enumerate(order)}
        self.new_number = {v: position[index] for v, index in self.index_of.items()}

    def carry(self, booking: Booking) -> Booking:
        """Return ``booking`` on the new graph, without vertices that were removed."""
        old, new = self.old, self.new
        held = [v for v, is_exclusive in booking.tops.items() if is_exclusive]
        for number, (booked, _) in booking.blocks.items():
            base = old.blocks[number].base
            held += [base + i for i in iterate_bits(booked)]
        carried = Booking(booking.job, booking.at, booking.until, booking.is_reservation)
        hold(new, carried, (self.new_number[v] for v in held if v in self.new_number))
        shares = {
            self.new_number[v]: units for v, units in booking.shares.items() if v in self.new_number
        }
        hold_shares(new, carried, shares)
        return carried


def subtrees(graph: ResourceGraph, roots: Iterable[int]) -> frozenset[int]:
    """Return all vertices at or below ``roots``."""
    found: set[int] = set()
    for v in roots:
        found.update(graph.subtree(v))
    return frozenset(found)
