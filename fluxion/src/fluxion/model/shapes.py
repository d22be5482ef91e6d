"""Blocks (a node with all vertices below it), and the shapes that many blocks share.

The vertices of a block are numbered from its root. A set of them is the bits of one integer. Blocks
are part of ``ResourceGraph``. The ledger of vertices and the matcher read them. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

ShapeKey = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]


class BlockClass:
    """The shape of a block: everything about a node's subtree except names and the node's id.

    Many blocks share one shape. Vertices are numbered from the block's root, which is 0.
    ``type_mask[t]`` has the bits of all vertices of type ``t``. ``below(i)`` has the bits of the
    subtree of ``i``, including ``i``. ``inner`` are the vertices with children, without the root.
    ``lite_texts`` caches texts of masks for the R_lite writer.
    """

    __slots__ = (
        "_units",
        "children",
        "ends",
        "full",
        "has_equal_pools",
        "ids",
        "inner",
        "lite_texts",
        "number",
        "parents",
        "postorder",
        "sizes",
        "type_mask",
        "types",
    )

    def __init__(
        self, number: int, types: list[int], parents: list[int], ids: list[int], sizes: list[int]
    ) -> None:
        self.number, self.types, self.parents, self.ids = number, types, parents, ids
        self.sizes = sizes
        self.full = (1 << len(types)) - 1
        self.children: list[list[int]] = [[] for _ in types]
        self.type_mask: dict[int, int] = {}
        self.lite_texts: dict[int, str] = {}
        self._units: tuple[tuple[int, int], ...] | None = None
        for i in range(1, len(types)):
            self.children[parents[i]].append(i)
        column = np.asarray(types)
        for kind in set(types):
            bits = np.packbits(column == kind, bitorder="little").tobytes()
            self.type_mask[kind] = int.from_bytes(bits, "little")
        self.ends = list(range(1, len(types) + 1))
        for i in range(len(types) - 1, 0, -1):
            self.ends[parents[i]] = max(self.ends[parents[i]], self.ends[i])
        self.postorder = _postorder(self.children)
        self.inner = tuple(i for i, below in enumerate(self.children) if i and below)
        self.has_equal_pools = all(
            len(set(np.asarray(sizes)[column == kind].tolist())) == 1 for kind in set(types)
        )

    def key(self) -> ShapeKey:
        """Return a key that is equal for blocks of the same shape."""
        return tuple(self.types), tuple(self.parents), tuple(self.ids), tuple(self.sizes)

    def below(self, i: int) -> int:
        """Return the bits of the subtree of ``i``."""
        return ((1 << (self.ends[i] - i)) - 1) << i

    def units_below(self) -> tuple[tuple[int, int], ...]:
        """Return each type below the root that has units, with the number of units."""
        if self._units is None:
            mask = self.full & ~1
            found = ((kind, self.count(kind, mask)) for kind in self.type_mask)
            self._units = tuple((kind, total) for kind, total in found if total)
        return self._units

    def count(self, kind: int, mask: int) -> int:
        """Return the units of type ``kind`` among the vertices in ``mask``."""
        bits = mask & self.type_mask.get(kind, 0)
        if not bits:
            return 0
        if self.has_equal_pools:
            first = self.type_mask[kind]
            return bits.bit_count() * self.sizes[(first & -first).bit_length() - 1]
        return sum(self.sizes[i] for i in iterate_bits(bits))


def iterate_bits(mask: int) -> Iterator[int]:
    """Yield the positions of the set bits of ``mask``, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _postorder(children: list[list[int]]) -> list[int]:
    order: list[int] = []
    stack = [0]
    while stack:
        i = stack.pop()
        order.append(i)
        stack.extend(children[i])
    order.reverse()
    return order


@dataclass(slots=True)
class Block:
    """A node and all vertices below it: ``base`` to ``base + len(shape.types) - 1``."""

    base: int
    shape: BlockClass
