"""The fewest that have to make way, and of these the youngest.

Called by the cycle (``preemption``) with a question that only the matcher can answer: whether a
request fits if these end. The search knows nothing of nodes. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from fluxqueue.graph.match.shares.relief import Relief

SHRINK_MAX = 100
"""Sets that are tried for one from which nobody can be left out."""

TRIES_MAX = 150
"""Sets that are tried after that for a smaller, or a younger one."""

STEPS_MAX = 20_000
"""Branches that are looked at meanwhile, most of which cannot be enough."""

EPSILON = 1e-9

Enough = Callable[[Sequence[int]], Sequence[int] | None]
"""If it is enough that those of these numbers end: which of them are needed then, with what is
chosen; those alone are enough. None if it is not. More are never less."""


def fewest(count: int, enough: Enough, reliefs: Sequence[Relief]) -> tuple[int, ...] | None:
    """The smallest set of the numbers below ``count`` that is enough; None where not even all are.

    Of several as small the one whose highest number is the lowest, then whose next is: with the
    youngest numbered first, nobody old ends where somebody younger would do.

    The smallest set is a search among ever more: bounded by ``TRIES_MAX`` and ``STEPS_MAX``. Beyond
    that the answer is one from which nobody can be left out; where ``SHRINK_MAX`` is not enough for
    that either, one of whom all are in the way.

    Parameters
    ----------
    reliefs : what is lacking, and what each adds to it at most.
    """
    if not count or any(one.lacking > sum(one.gains) + EPSILON for one in reliefs):
        return None
    if enough(range(count)) is None:
        return None
    return _Search(enough, reliefs, count).run()


@dataclass(slots=True)
class _Search:
    enough: Enough
    reliefs: Sequence[Relief]
    count: int
    tries: int = 0
    steps: int = 0
    _most: list[list[float]] = field(default_factory=list)
    """Of each leaf, the largest gain among the numbers below each."""

    def run(self) -> tuple[int, ...] | None:
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
        """Fewer than so many cannot be enough, whoever they are."""
        least = 1
        for one in self.reliefs:
            sums = accumulate(sorted(one.gains, reverse=True))
            sizes = (size for size, sum_ in enumerate(sums, 1) if sum_ + EPSILON >= one.lacking)
            least = max(least, next(sizes, self.count))
        return least

    def _without_superfluous(self, least: int) -> tuple[int, ...] | None:
        """One from which nobody can be left out: again and again the first that completes it (a
        binary search), of those before it as few as possible (Junker 2004, QuickXplain).
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
                return None  # more was less room after all
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
        """All sets of numbers ``below`` that may be enough, by their highest, then the next."""
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
