"""Booking a given R, and giving a part of one back.

``update`` books what a document says a job holds, to restore the state after a restart. Partial
cancel frees the vertices (JGF) or the ranks (rv1exec) that a document lists. Both check everything
before they change anything. ``FluxionMatcher`` calls them. In flux-sched they are ``update_vtx``,
``cancel_vtx`` and ``unpack_rank``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fluxion.formats.jgf import JgfDocument, JgfVertex
from fluxion.formats.rv1 import RankEntry, Rv1
from fluxion.ledger.booking import Booking
from fluxion.ledger.vertices import VertexLedger
from fluxion.match.collect import Collector
from fluxion.model.store import ResourceGraph
from fluxqueue.errors import InvalidGraph, InvalidInput


def find_vertex(graph: ResourceGraph, found: JgfVertex) -> int:
    """Return the vertex of ``graph`` that a JGF vertex describes.

    Raises
    ------
    InvalidGraph
        No vertex has its path and rank, or its type, size, id or name differ.
    """
    given = found.vertex
    assert given.path is not None
    where = f"node {found.outer_id}"
    for v in graph.find_path(given.path):
        if graph.rank[v] != given.rank:
            continue
        name = given.name if given.name is not None else f"{given.basename}{given.id}"
        differences = [
            f"{key} is {have!r} in the graph, not {want!r}"
            for key, have, want in (
                ("type", graph.type_name(v), given.type),
                ("basename", graph.basename(v), given.basename),
                ("size", graph.size[v], given.size),
                ("id", graph.id[v], given.id),
                ("name", graph.name(v), name),
            )
            if have != want
        ]
        if differences:
            raise InvalidGraph("; ".join(differences), where=where, value=given.path)
        return v
    raise InvalidGraph(
        f"the graph has no vertex at {given.path} with rank {given.rank}",
        where=where,
        value=given.path,
    )


class GivenJgf:
    """A JGF document mapped to the graph: the booking it describes, and what to show of it."""

    def __init__(
        self, graph: ResourceGraph, document: JgfDocument, exclusive_kinds: set[int]
    ) -> None:
        self.graph = graph
        self.exclusive: set[int] = set()
        self.shared: set[int] = set()
        self.shares: dict[int, int] = {}
        vertex_of: dict[str, int] = {}
        for found in document.vertices:
            v = find_vertex(graph, found)
            if document.free_ranks and found.vertex.rank in document.free_ranks:
                continue
            vertex_of[found.outer_id] = v
            if found.share and graph.type_of[v] in graph.consumable:
                self.shares[v] = found.share
                continue
            (self.exclusive if found.is_exclusive else self.shared).add(v)
            if found.is_exclusive and document.is_shorthand:
                self.exclusive.update(graph.subtree(v))
        marks: dict[int, bool] = {}
        for source, target in document.edges:
            if source not in vertex_of or target not in vertex_of:
                if document.free_ranks is not None:
                    continue
                raise InvalidGraph(
                    "edge to a node that is not in the document",
                    where="graph.edges",
                    value=f"{source} -> {target}",
                )
            v = vertex_of[target]
            if graph.parent[v] != vertex_of[source]:
                raise InvalidGraph(
                    "the graph has no such edge", where="graph.edges", value=f"{source} -> {target}"
                )
            marks[v] = v in self.exclusive
        if document.is_shorthand:
            marks |= {v: True for v in self.exclusive if v}
        self.shown = Booking(0, 0, 0)
        collector = Collector(graph, marks, exclusive_kinds, self.shares)
        collector.fill(self.shown, 0 in self.exclusive)

    def booking(self) -> Booking:
        """Return what to book: all that is exclusive, and all vertices above it."""
        booking = Booking(0, 0, 0, False, dict(self.shown.blocks), dict(self.shown.tops))
        hold(self.graph, booking, self.exclusive)
        hold_shares(self.graph, booking, self.shares)
        return booking


class GivenRv1:
    """An R mapped to the graph. Its nodes are shown as exclusive, but held only if whole."""

    def __init__(self, graph: ResourceGraph, document: Rv1) -> None:
        self.graph = graph
        self.exclusive: set[int] = set()
        self.shared: set[int] = {0}
        self.shares: dict[int, int] = {}
        nodes: set[int] = set()
        root = graph.path(0)
        for entry in document.entries:
            node = self._find(f"{root}/{entry.host}", "node", entry.rank)
            nodes.add(node)
            below: set[int] = set()
            for kind, ids in entry.children:
                for number in ids:
                    below.add(self._find(f"{graph.path(node)}/{kind}{number}", kind, entry.rank))
            self.exclusive |= below
            self._take_shares(entry, node)
            if len(below) == len(graph.by_rank(entry.rank)) - 1:
                self.exclusive.add(node)
        self.shared |= nodes
        self.shown = Booking(0, 0, 0)
        hold(graph, self.shown, self.exclusive | nodes)
        hold_shares(graph, self.shown, self.shares)

    def _take_shares(self, entry: RankEntry, node: int) -> None:
        graph = self.graph
        for kind, units_of in entry.shares:
            for number, units in units_of.items():
                v = self._find(f"{graph.path(node)}/{kind}{number}", kind, entry.rank)
                if graph.type_of[v] not in graph.consumable or units > graph.size[v]:
                    raise InvalidGraph(
                        f"{units} units cannot be taken of it",
                        where=f"R_lite.shares.{kind}",
                        value=graph.path(v),
                    )
                self.shares[v] = units

    def _find(self, path: str, kind: str, rank: int) -> int:
        graph = self.graph
        for v in graph.find_path(path):
            if graph.rank[v] == rank and graph.type_name(v) == kind:
                return v
        raise InvalidGraph(
            f"the graph has no {kind} at {path} with rank {rank}", where="R_lite", value=path
        )

    def booking(self) -> Booking:
        booking = Booking(0, 0, 0)
        hold(self.graph, booking, self.exclusive)
        hold_shares(self.graph, booking, self.shares)
        return booking


def hold(graph: ResourceGraph, booking: Booking, vertices: Iterable[int]) -> None:
    """Add ``vertices`` exclusively to ``booking``, and all vertices above them as shared."""
    for v in vertices:
        number = graph.block_of[v]
        if number >= 0:
            block = graph.blocks[number]
            booked, touched = booking.blocks.get(number, (0, 0))
            touched |= mask_upwards(graph, number, v)
            booking.blocks[number] = (booked | 1 << (v - block.base), touched)
            above = graph.parent[block.base]
        else:
            booking.tops[v] = True
            above = graph.parent[v]
        while above >= 0 and above not in booking.tops:
            booking.tops[above] = False
            above = graph.parent[above]


def hold_shares(graph: ResourceGraph, booking: Booking, shares: Mapping[int, int]) -> None:
    """Add units of consumable pools to ``booking``, and all vertices above them as shared."""
    for v, units in shares.items():
        number = graph.block_of[v]
        if number >= 0:
            block = graph.blocks[number]
            booked, touched = booking.blocks.get(number, (0, 0))
            if booked >> (v - block.base) & 1:
                continue
            booking.blocks[number] = (booked, touched | mask_upwards(graph, number, v))
            above = graph.parent[block.base]
        else:
            if booking.tops.get(v):
                continue
            booking.tops[v] = False
            above = graph.parent[v]
        booking.shares[v] = units
        while above >= 0 and above not in booking.tops:
            booking.tops[above] = False
            above = graph.parent[above]


def mask_upwards(graph: ResourceGraph, number: int, v: int) -> int:
    """Return the bits of ``v`` and of all vertices above it within its block."""
    block = graph.blocks[number]
    i = v - block.base
    mask = 1 << i
    while i:
        i = block.shape.parents[i]
        mask |= 1 << i
    return mask


def check_free(state: VertexLedger, given: GivenJgf | GivenRv1, start: int, end: int) -> None:
    """Raise if a given R needs something that is held already.

    Raises
    ------
    InvalidInput
        Names the first vertex that another job holds during the window.
    """
    graph = state.graph
    masks: dict[int, int] = {}
    kinds, consumable = graph.type_of, graph.consumable
    for v in sorted(given.exclusive | given.shared | given.shares.keys()):
        left = graph.size[v] - state.units_used(v, start, end) if kinds[v] in consumable else 0
        if given.shares.get(v, 0) > left or (
            v in given.exclusive and kinds[v] in consumable and left < graph.size[v]
        ):
            raise InvalidInput(
                f"has only {left} units left in that time", where=graph.path(v), value=v
            )
        number = graph.block_of[v]
        if number < 0:
            is_held = state.top_is_held(v, start, end)
        else:
            if number not in masks:
                masks[number] = state.block_masks(number, start, end)[0]
            is_held = bool(masks[number] >> (v - graph.blocks[number].base) & 1)
        if is_held:
            raise InvalidInput("is held by another job in that time", where=graph.path(v), value=v)


def without(
    graph: ResourceGraph,
    booking: Booking,
    vertices: Iterable[int],
    units_of: Mapping[int, int] | None = None,
) -> Booking:
    """Return ``booking`` without ``vertices``, and without what is above only those.

    ``units_of`` says how much of a pool's share is given back, if it is not all.

    Raises
    ------
    InvalidInput
        The booking does not hold one of the vertices.
    """
    gone: dict[int, int] = {}
    tops = {v for v, is_exclusive in booking.tops.items() if is_exclusive}
    shares = dict(booking.shares)
    for v in vertices:
        if v in shares:
            shares[v] -= (units_of or {}).get(v) or shares[v]
            if shares[v] < 0:
                raise InvalidInput("is more than the job holds", where=graph.path(v))
            continue
        number = graph.block_of[v]
        if number < 0:
            if v not in tops:
                raise InvalidInput("is not held by the job", where=graph.path(v))
            tops.discard(v)
            continue
        bit = 1 << (v - graph.blocks[number].base)
        if not booking.blocks.get(number, (0, 0))[0] & bit:
            raise InvalidInput("is not held by the job", where=graph.path(v))
        gone[number] = gone.get(number, 0) | bit
    left = Booking(booking.job, booking.at, booking.until, booking.is_reservation)
    hold(graph, left, tops)
    for number, (booked, touched) in booking.blocks.items():
        if number not in gone and not booking.shares:
            left.blocks[number] = (booked, touched)
            _touch_above(graph, left, number)
            continue
        kept = booked & ~gone.get(number, 0)
        base = graph.blocks[number].base
        hold(graph, left, (base + i for i in range(kept.bit_length()) if kept >> i & 1))
    hold_shares(graph, left, {v: units for v, units in shares.items() if units})
    return left


def _touch_above(graph: ResourceGraph, booking: Booking, number: int) -> None:
    above = graph.parent[graph.blocks[number].base]
    while above >= 0 and above not in booking.tops:
        booking.tops[above] = False
        above = graph.parent[above]
