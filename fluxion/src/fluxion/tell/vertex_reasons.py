"""Why a request does not fit a graph of vertices: which type, which level, how many.

``resource-query`` and other users of a graph of vertices call it. Nodes have ``never``, ``busy``
and ``waiting``. It counts vertices and units, one cause after another, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fluxion.match.by_vertices import ByVertices
from fluxion.match.compiled_request import Need, WalkRequest
from fluxion.model.shapes import iterate_bits
from fluxqueue.graph.ledger.placement import FOREVER
from fluxqueue.jobspec.model import Jobspec


def why_not(vertices: ByVertices, jobspec: Jobspec, now: int | None) -> str:
    """Return what ``jobspec`` lacks at ``now``.

    None for ``now`` means the empty graph, including all that is down.
    """
    request = vertices.compile(jobspec)
    room = _Room(vertices, request, now)
    free = "" if now is None else "free "
    if not room.blocks and room.is_constrained:
        return "no node is allowed by its constraint"
    for kind, total in request.totals.items():
        have = room.units_of(kind)
        if kind in room.counted and total > have:
            name = room.name(kind)
            if not have:
                return f"needs {total} {name}; there is no {free}{name}"
            return f"needs {total} {name}; there {_are(have)} {have}{' free' if free else ''}"
    for times, need in _levels(request.needs, 1):
        good, there = room.with_all(need)
        wanted = times * need.count.minimum
        if good < wanted:
            what = ", ".join(
                f"{n} {free}{room.name(kind)}" for kind, n in room.counted_of(need).items()
            )
            have_word = "has" if good == 1 else "have"
            are = f"{good} of {there} {room.name(need.kind)} vertices {have_word} {what}"
            return f"{are}; {wanted} {_are(wanted)} needed"
    return f"each part of it {'fits' if now is None else 'is free'}, but not all together"


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _levels(needs: tuple[Need, ...], times: int) -> Iterator[tuple[int, Need]]:
    """Yield the vertices that must hold something, the lowest first, with the times of each.

    If a slot stands between, its parts are counted.
    """
    for need in needs:
        yield from _levels(need.children, times * need.count.minimum)
        if need.children and not need.is_slot:
            yield times, need


@dataclass(slots=True)
class _Block:
    """A block with the vertices that may be used, and the units of each type among them."""

    base: int
    mask: int
    units: dict[int, int]


class _Room:
    """What exists, or is free, in every block and below every vertex above the blocks."""

    def __init__(self, vertices: ByVertices, request: WalkRequest, now: int | None) -> None:
        self.graph, self.state = vertices.graph, vertices.state
        self.now = now
        self.end = FOREVER if now is None else now + (request.duration_s or vertices.end)
        allowed = vertices.constraint_for(request.jobspec, request.slot_labels)
        self.is_constrained = allowed is not None
        slot = self.graph.type_number["slot"]
        self.counted = set(request.totals) - {slot}
        node = self.graph.type_number["node"]
        self.blocks: dict[int, _Block] = {}
        self._units: dict[tuple[int, int], dict[int, int]] = {}
        for number, block in enumerate(self.graph.blocks):
            is_node = self.graph.type_of[block.base] == node
            if number in self.graph.gone or (allowed and is_node and not allowed(block.base)):
                continue
            mask = self._mask(number)
            if mask & 1:
                self.blocks[number] = _Block(block.base, mask, self._units_in(number, mask))
        self.below = self._sum_up()

    def name(self, kind: int) -> str:
        """Return a type as the jobspec names it."""
        return next(name for name, number in self.graph.type_number.items() if number == kind)

    def units_of(self, kind: int) -> int:
        """Return the units of a type in the graph, the root itself included."""
        graph = self.graph
        own = graph.size[0] if kind == graph.type_of[0] and self._is_usable(0) else 0
        return own + self.below[0].get(kind, 0)

    def _is_usable(self, v: int) -> bool:
        """Tell whether a vertex above the nodes, and all above it, may be used."""
        if self.now is None:
            return True
        while v >= 0:
            if v in self.graph.down or self.state.top_is_held(v, self.now, self.end):
                return False
            v = self.graph.parent[v]
        return True

    def counted_of(self, need: Need) -> dict[int, int]:
        """Return what one vertex must hold. Slots are not vertices."""
        return {kind: units for kind, units in need.below.items() if kind in self.counted}

    def with_all(self, need: Need) -> tuple[int, int]:
        """Return how many vertices of the type hold what one must hold, and how many exist."""
        graph = self.graph
        good = there = 0
        needs = self.counted_of(need)
        for v in graph.tops:
            if graph.type_of[v] == need.kind:
                there += 1
                good += all(self.below[v].get(kind, 0) >= n for kind, n in needs.items())
        for number, block in enumerate(graph.blocks):
            there += (block.shape.type_mask.get(need.kind, 0)).bit_count() * (
                number not in graph.gone
            )
            known = self.blocks.get(number)
            for i in (
                iterate_bits(known.mask & block.shape.type_mask.get(need.kind, 0)) if known else ()
            ):
                inside = self._units_in(number, known.mask & block.shape.below(i)) if known else {}
                good += all(inside.get(kind, 0) >= n for kind, n in needs.items())
        return good, there

    def _mask(self, number: int) -> int:
        """Return the vertices of a block that may be used."""
        state, shape = self.state, self.graph.blocks[number].shape
        if self.now is None:
            return shape.full
        if not self._is_usable(self.graph.parent[self.graph.blocks[number].base]):
            return 0
        booked, _, allocated = state.block_masks(number, self.now, self.end)
        return shape.full & ~booked & ~allocated & ~state.down_masks.get(number, 0)

    def _units_in(self, number: int, mask: int) -> dict[int, int]:
        graph, block = self.graph, self.graph.blocks[number]
        key = block.shape.number, mask
        found = self._units.get(key)
        if found is None:
            found = {kind: block.shape.count(kind, mask) for kind in self.counted}
            self._units[key] = found
        pools = self.counted & graph.consumable
        if self.now is None or not pools:
            return found
        found = dict(found)
        for kind in pools:
            for v in (
                block.base + i for i in iterate_bits(mask & block.shape.type_mask.get(kind, 0))
            ):
                used = self.state.units_used(v, self.now, self.end, is_now=True)
                found[kind] -= used + graph.foreign.get(v, 0)
        return found

    def _sum_up(self) -> dict[int, dict[int, int]]:
        graph = self.graph
        found: dict[int, dict[int, int]] = {v: {} for v in (0, *graph.tops)}
        for block in self.blocks.values():
            self._add(found, block.base, block.units)
        for v in sorted((v for v in graph.tops if v), reverse=True):
            own = {graph.type_of[v]: graph.size[v]} if graph.type_of[v] in self.counted else {}
            self._add(found, v, own)
            self._add(found, v, found[v])
        return found

    def _add(self, found: dict[int, dict[int, int]], v: int, units: dict[int, int]) -> None:
        above = self.graph.parent[v]
        if above >= 0:
            into = found[above]
            for kind, amount in units.items():
                into[kind] = into.get(kind, 0) + amount
