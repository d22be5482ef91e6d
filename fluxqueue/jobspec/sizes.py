"""The sizes that a moldable jobspec can have, and the counts that give a size.

``jobspec.shape`` calls it. Nothing is enumerated. The sizes below a vertex are one set of numbers,
and sets are added and multiplied as wholes. The counts are then read from the top down. A set is an
``int`` with one byte for each number up to the wanted size: byte ``k`` is 1 if ``k`` is in the set.
So a shift moves a set, and a slice thins it. Every operation costs ``Work``. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from math import isqrt

from fluxqueue.jobspec.bounds import SIZE_STEPS, Work
from fluxqueue.jobspec.model import Count, Resource

_CELLS_PER_STEP = 4096
"""Number of bytes that are combined in about a microsecond."""


class Sizes:
    """Sets of sizes up to ``most``, of one jobspec."""

    def __init__(self, most: int, work: Work | None = None) -> None:
        self.most = most
        self._work = work or Work(SIZE_STEPS, f"finding counts that give {most} slots")
        self._all = self._filled(0, most, 1)
        self._known: dict[int, tuple[Resource, int]] = {}

    def counts_for(self, resources: Sequence[Resource]) -> list[int] | None:
        """Return the variable counts in document order that give ``most`` slots, or None.

        Each count is the largest that is possible, given those before it.

        Raises
        ------
        TooComplex
            Finding them takes more work than there is.
        """
        target = 1 << 8 * self.most
        if not self._of_all(resources) & target:
            return None
        return self._read_off(resources, target)[0]

    # --- from the leaves up: which sizes exist ---------------------------------------------------

    def _of_all(self, resources: Sequence[Resource]) -> int:
        found = 1
        for resource in resources:
            found = self._add(found, self._of(resource))
        return found

    def _of(self, resource: Resource) -> int:
        known = self._known.get(id(resource))
        if known is None:
            below = self._below(resource)
            known = resource, self._multiply(self._members(resource.count), below)
            self._known[id(resource)] = known
        return known[1]

    def _below(self, resource: Resource) -> int:
        return 1 << 8 if resource.is_slot else self._of_all(resource.with_)

    def _members(self, count: Count) -> int:
        if count.is_fixed:
            return 1 << 8 * count.minimum if count.minimum <= self.most else 0
        if count.operator == "+":
            return self._filled(count.minimum, min(count.maximum, self.most), count.operand)
        return sum(1 << 8 * number for number in members(count, self.most))

    # --- from the top down: which counts give a size ---------------------------------------------

    def _read_off(self, resources: Sequence[Resource], targets: int) -> tuple[list[int], int]:
        """Return the counts, and the size that they give, which is one of ``targets``."""
        behind = [1]
        for resource in reversed(resources):
            behind.append(self._add(behind[-1], self._of(resource)))
        found: list[int] = []
        total = 0
        for resource, rest in zip(resources, reversed(behind[:-1]), strict=True):
            counts, size = self._read_one(resource, self._subtract(targets, rest))
            found += counts
            total += size
            targets >>= 8 * size
        return found, total

    def _read_one(self, resource: Resource, targets: int) -> tuple[list[int], int]:
        below = self._below(resource)
        for count in self._tried(resource, targets, below):
            sizes = self._divide(targets, count) & below
            if sizes:
                own = [] if resource.count.is_fixed else [count]
                if resource.is_slot:
                    return own, count
                counts, size = self._read_off(resource.with_, sizes)
                return own + counts, count * size
        raise AssertionError("a size was found that no counts give")

    def _tried(self, resource: Resource, targets: int, below: int) -> Sequence[int]:
        """Return the values that the count may have, the largest first."""
        count = resource.count
        if resource.is_slot:
            fitting = self._members(count) & targets
            return [(fitting.bit_length() - 1) // 8]
        if count.is_fixed:
            return [count.minimum]
        most = self.most
        if not targets & below & 1:
            smallest = _lowest(below & ~1)
            most = ((targets.bit_length() - 1) // 8) // smallest
        return members(count, most)[::-1]

    # --- sets ------------------------------------------------------------------------------------

    def _filled(self, low: int, high: int, step: int) -> int:
        if high < low:
            return 0
        self._pay(high)
        cells = bytearray(high + 1)
        cells[low::step] = b"\1" * ((high - low) // step + 1)
        return int.from_bytes(cells, "little")

    def _add(self, one: int, other: int) -> int:
        """Return all sums of a member of each, up to ``most``."""
        if one == 1 or other == 1:
            return other if one == 1 else one
        if not one or not other:
            return 0
        terms, others = self._elements(one), self._elements(other)
        moved = other
        # Loop over the evenly spaced side, or else over the smaller one: that takes fewer shifts.
        if _is_even(others) or (len(others) < len(terms) and not _is_even(terms)):
            moved, terms = one, others
        if _is_even(terms):
            return self._spread(moved << 8 * terms[0], _step(terms), len(terms), is_up=True)
        found = 0
        for term in terms:
            self._pay(self.most)
            found |= moved << 8 * term
        return found & self._all

    def _subtract(self, targets: int, rest: int) -> int:
        """Return the numbers that give one of ``targets`` together with one of ``rest``."""
        if rest == 1:
            return targets
        wanted, terms = self._elements(targets), self._elements(rest)
        found = 0
        if len(wanted) <= len(terms) and not (len(wanted) > 1 and _is_even(terms)):
            cells = self._cells(rest)
            for total in wanted:
                self._pay(total)
                found |= int.from_bytes(cells[total::-1], "little")
            return found
        if _is_even(terms):
            return self._spread(targets >> 8 * terms[0], _step(terms), len(terms), is_up=False)
        for term in terms:
            self._pay(self.most)
            found |= targets >> 8 * term
        return found

    def _spread(self, numbers: int, step: int, times: int, *, is_up: bool) -> int:
        """Return ``numbers`` moved by 0, 1, ..., ``times`` - 1 steps, all together."""
        # Double the moves that are done in each round.
        done = 1
        while done < times:
            more = min(done, times - done)
            self._pay(self.most)
            moved = 8 * step * more
            numbers |= (numbers << moved) & self._all if is_up else numbers >> moved
            done += more
        return numbers & self._all

    def _multiply(self, one: int, other: int) -> int:
        """Return all products of a member of each, up to ``most``.

        One factor of each product is at most the root of ``most``, so only small factors are tried.
        """
        if one == 1 << 8 or other == 1 << 8:
            return other if one == 1 << 8 else one
        root, cells = isqrt(self.most), bytearray(self.most + 1)
        for factors, numbers in ((one, other), (other, one)):
            small = factors & ((1 << 8 * (root + 1)) - 1)
            for factor in self._elements(small):
                if not factor:
                    cells[0] |= bool(numbers)
                    continue
                length = self.most // factor + 1
                self._pay(length)
                known = int.from_bytes(cells[::factor], "little")
                known |= numbers & ((1 << 8 * length) - 1)
                cells[::factor] = known.to_bytes(length, "little")
        return int.from_bytes(cells, "little")

    def _divide(self, numbers: int, count: int) -> int:
        """Return the numbers that give one of ``numbers`` when taken ``count`` times."""
        if count == 1:
            return numbers
        if not count:
            return self._all if numbers & 1 else 0
        self._pay(self.most)
        return int.from_bytes(self._cells(numbers)[::count], "little")

    def _cells(self, numbers: int) -> bytes:
        return numbers.to_bytes(self.most + 1, "little")

    def _elements(self, numbers: int) -> list[int]:
        self._pay(64 * self.most)
        return list(compress(range(self.most + 1), self._cells(numbers & self._all)))

    def _pay(self, cells: int) -> None:
        self._work.spend(1 + cells // _CELLS_PER_STEP)


def members(count: Count, most: int) -> Sequence[int]:
    """Return the values of a count up to ``most``, the largest last."""
    if count.operator == "+" and not count.is_fixed:
        return range(count.minimum, min(count.maximum, most) + 1, count.operand)
    found: list[int] = []
    number = count.largest_within(most)
    while number:
        found.append(number)
        number = count.largest_within(number - 1)
    return found[::-1]


def _lowest(numbers: int) -> int:
    return ((numbers & -numbers).bit_length() - 1) // 8


def _step(terms: Sequence[int]) -> int:
    return terms[1] - terms[0] if len(terms) > 1 else 1


def _is_even(terms: Sequence[int]) -> bool:
    """Return whether the terms are evenly spaced."""
    return terms == list(range(terms[0], terms[-1] + 1, _step(terms)))
