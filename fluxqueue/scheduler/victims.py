"""Search for the smallest set of victims, and for the youngest among equal sets.

The cycle calls it through ``preemption``. The caller passes the question that only the matcher can
answer: does a request fit if these jobs end? The search itself knows nothing of nodes. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from fluxqueue.graph.match.shares.relief import Relief

SHRINK_MAX = 100
"""Sets tried to reach a set without a superfluous member."""

TRIES_MAX = 150
"""Sets tried after that for a smaller or a younger one."""

STEPS_MAX = 20_000
"""Branches visited meanwhile. Most of them cannot be enough."""

EPSILON = 1e-9

Enough = Callable[[Sequence[int]], Sequence[int] | None]
"""Given the numbers of jobs that end: the numbers that are really needed, or None.

None means that the set is not enough. The returned numbers alone are enough. A larger set is never
worse than a smaller one.
"""


def fewest(count: int, enough: Enough, reliefs: Sequence[Relief]) -> tuple[int, ...] | None:
    """Return the smallest set of numbers below ``count`` that is enough, or None.

    None means that even all of them are not enough. Between sets of equal size, the one with the
    lowest highest number wins, then the lowest next one. The youngest job has number 0, so an old
    job ends only if no younger job would do.

    The search for the smallest set is bounded by ``TRIES_MAX`` and ``STEPS_MAX``. Beyond that the
    answer is a set without a superfluous member. If ``SHRINK_MAX`` stops that search too, it is a
    set in which every member is in the way.

    Parameters
    ----------
    reliefs : What is lacking, and how much each number adds at most.
    """
    if not count or any(one.lacking > sum(one.gains) + EPSILON for one in reliefs):
        return None
    if enough(range(count)) is None:
        return None
    return _VictimSearch(enough, reliefs, count).run()


@dataclass(slots=True)
class _VictimSearch:
    enough: Enough
    reliefs: Sequence[Relief]
    count: int
    tries: int = 0
    steps: int = 0
    _most: list[list[float]] = field(default_factory=list)
    """For each leaf, the largest gain among the numbers below each number."""

    def run(self) -> tuple[int, ...] | None:
        """Return the best set found within the bounds, or None."""
        least = self._least()
        known = self._without_superfluous(least)
        if known is None:
            return None
        self._most = [[0.0, *accumulate(one.gains, max)] for one in self.reliefs]
        lacking = tuple(one.lacking for one in self.reliefs)
        for size in range(least, len(known) + 1):
            for chosen in self._sets(size, self.count, lacking):
                if chosen == known or self.tries >= TRIES_MAX:
                    return known
                self.tries += 1
                if self.enough(chosen) is not None:
                    return chosen
            if self.steps >= STEPS_MAX:
                return known
        return known

    def _least(self) -> int:
        """Return a lower bound of the size: no smaller set can be enough."""
        least = 1
        for one in self.reliefs:
            sums = accumulate(sorted(one.gains, reverse=True))
            sizes = (size for size, sum_ in enumerate(sums, 1) if sum_ + EPSILON >= one.lacking)
            least = max(least, next(sizes, self.count))
        return least

    def _without_superfluous(self, least: int) -> tuple[int, ...] | None:
        """Return a set from which no member can be left out (Junker 2004, QuickXplain).

        Each round finds the first number that completes the set, by binary search. It then keeps
        that number and as few as possible of the numbers before it.
        """
        kept: list[int] = []
        open_: Sequence[int] = range(self.count)
        tries = 0
        while self.enough(kept) is None:
            low, high = 0, len(open_)
            needed: Sequence[int] = [*kept, *open_]
            while low < high:
                middle = (low + high) // 2
                tries += 1
                found = self.enough([*kept, *open_[:middle]])
                if found is None:
                    low = middle + 1
                else:
                    high, needed = middle, found
            if low == 0:
                return None  # a larger set freed less after all
            last = open_[low - 1]
            needed = sorted({*kept, *needed, last})
            if self.enough(needed) is None:
                return None
            if len(needed) <= least or tries >= SHRINK_MAX:
                return tuple(needed)
            kept.append(last)
            open_ = [number for number in needed if number < last and number not in kept]
        return tuple(sorted(kept))

    def _sets(self, size: int, below: int, lacking: tuple[float, ...]) -> Iterator[tuple[int, ...]]:
        """Yield all sets of numbers ``below`` that may be enough, by highest, then next number."""
        if size == 0:
            yield ()
            return
        for last in range(size - 1, below):
            if self.steps >= STEPS_MAX:
                return
            self.steps += 1
            left = tuple(
                lack - one.gains[last] for lack, one in zip(lacking, self.reliefs, strict=True)
            )
            if any(
                lack > (size - 1) * most[last] + EPSILON
                for lack, most in zip(left, self._most, strict=True)
            ):
                continue
            for rest in self._sets(size - 1, last, left):
                yield (*rest, last)
