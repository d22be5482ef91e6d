"""R: the vertices of the graph that a job was given. The writers turn it into text.

The matcher makes one for each success, and so does ``find``. It refers to the graph, so write it
before the graph is edited. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from fluxion.ledger.booking import Booking
from fluxion.model.shapes import iterate_bits
from fluxion.model.store import ResourceGraph
from fluxqueue.graph.ledger.placement import PlacedSlot, Placement


@dataclass(slots=True)
class ResourceSet:
    """The vertices of one booking, and its time.

    ``labels`` are the jobspec's labels by type. ``extras`` are further metadata per vertex for JGF
    (the aggregate filters that ``find agfilter=true`` asks for).
    """

    graph: ResourceGraph
    booking: Booking
    queue: str = ""
    labels: Mapping[int, str] = field(default_factory=dict)
    extras: Mapping[int, Mapping[str, str]] = field(default_factory=dict)

    @property
    def at(self) -> int:
        return self.booking.at

    @property
    def end(self) -> int:
        return self.booking.until

    @property
    def is_reserved(self) -> bool:
        return self.booking.is_reservation

    def vertices(self) -> Iterator[tuple[int, bool]]:
        """Yield all vertices with their exclusivity, children before parents, in edge order."""
        graph, booking = self.graph, self.booking
        if not booking.tops:
            for number, (booked, touched) in booking.blocks.items():
                yield from self._block(number, booked, touched)
            return
        used = self._used_children()
        stack = [(0, iter(used.get(0, ())))]
        while stack:
            v, pending = stack[-1]
            child = next(pending, None)
            if child is None:
                stack.pop()
                if v in booking.tops:
                    yield v, booking.tops[v]
            elif graph.block_of[child] >= 0:
                number = graph.block_of[child]
                yield from self._block(number, *booking.blocks[number])
            else:
                stack.append((child, iter(used.get(child, ()))))

    def _used_children(self) -> dict[int, list[int]]:
        """Return the used blocks and vertices by the next used vertex above, in edge order.

        The root counts as used. ``find agfilter=true`` leaves out vertices without a filter, and
        shows those below them.
        """
        graph, booking = self.graph, self.booking
        used = [graph.blocks[number].base for number in booking.blocks]
        used += booking.tops
        # Preorder numbers of siblings ascend in edge order.
        used.sort()
        found: dict[int, list[int]] = {}
        for v in used:
            above = graph.parent[v]
            while above > 0 and above not in booking.tops:
                above = graph.parent[above]
            found.setdefault(above, []).append(v)
        return found

    def _block(self, number: int, booked: int, touched: int) -> Iterator[tuple[int, bool]]:
        block = self.graph.blocks[number]
        base = block.base
        for i in block.shape.postorder:
            if touched >> i & 1:
                yield base + i, bool(booked >> i & 1)

    def nodes(self) -> list[str]:
        """Return the names of the nodes in the set, in rank order."""
        graph = self.graph
        found = [graph.blocks[number].base for number in self.booking.blocks]
        return [graph.name(v) for v in sorted(found, key=lambda v: (graph.rank[v], v))]

    def placement(self) -> Placement:
        """Return the same by node: what is taken of each, as one slot, in units by type."""
        graph, booking = self.graph, self.booking
        slots: list[PlacedSlot] = []
        whole: list[str] = []
        for number, (booked, _) in booking.blocks.items():
            base = graph.blocks[number].base
            name = graph.name(base)
            units: dict[str, int] = {}
            for v in (base + i for i in iterate_bits(booked & ~1)):
                kind = graph.type_name(v)
                units[kind] = units.get(kind, 0) + graph.size[v]
            for v in range(base + 1, graph.end[base]) if booking.shares else ():
                if v in booking.shares:
                    kind = graph.type_name(v)
                    units[kind] = units.get(kind, 0) + booking.shares[v]
            if booked & 1:
                whole.append(name)
            slots.append(PlacedSlot(name, tuple(sorted(units.items()))))
        return Placement(
            tuple(slots), booking.at, booking.until, held=tuple(whole), vertices=booking
        )
