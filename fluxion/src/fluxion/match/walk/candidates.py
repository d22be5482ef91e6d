"""Candidates of a walk: what could be taken as a whole, and how many slots it adds up to.

The traversal makes them, best first by the policy's score. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

Edge = tuple[int, bool]
"""A vertex that a candidate would take, and whether exclusively."""


Share = tuple[int, int]
"""A consumable pool, and the units taken of it."""


class WalkCandidate:
    """Something that can be taken as a whole: a vertex, or the vertices of one slot.

    A consumable pool counts what is left of it. ``shares`` is what a slot takes of pools.
    """

    __slots__ = ("count", "edges", "is_root", "score", "shares")

    def __init__(
        self,
        score: int,
        count: int,
        edges: tuple[Edge, ...],
        is_root: bool,
        shares: tuple[Share, ...] = (),
    ) -> None:
        self.score, self.count, self.edges, self.is_root = score, count, edges, is_root
        self.shares = shares


class Candidates:
    """Candidates of one type. The first ``chosen`` of them were taken for ``wanted`` units."""

    __slots__ = ("chosen", "members", "total", "wanted")

    def __init__(self) -> None:
        self.members: list[WalkCandidate] = []
        self.total = 0
        self.chosen = 0
        self.wanted = 0

    def add(self, candidate: WalkCandidate) -> None:
        self.members.append(candidate)
        self.total += candidate.count

    def choose(self, count: int, is_high: bool) -> None:
        """Take whole candidates, best first, until ``count`` units are covered."""
        self.members.sort(key=score_of, reverse=is_high)
        self.wanted = count
        taken = 0
        while count > 0:
            count -= self.members[taken].count
            taken += 1
        self.chosen = taken


def score_of(candidate: WalkCandidate) -> int:
    return candidate.score


def units_of(candidates: Sequence[WalkCandidate]) -> int:
    return sum(candidate.count for candidate in candidates)


Found = dict[int, Candidates]


class ShareTally:
    """How many slots' shares of one type were found so far (flux-sched, ``share_tally_t``)."""

    __slots__ = ("collected", "is_pool", "per_share", "shares", "total")

    def __init__(self, per_share: int, *, is_pool: bool = False) -> None:
        self.per_share = per_share
        self.is_pool = is_pool
        self.total = self.collected = self.shares = 0

    def add(self, count: int) -> None:
        self.collected += count
        if not self.per_share:
            return
        if self.is_pool:
            self.shares = self.collected // self.per_share
        elif self.collected >= self.per_share:
            # The excess of a share is not carried over, because slots take whole vertices.
            self.shares += 1
            self.collected = 0

    def satisfies(self, shares: int) -> bool:
        return not self.per_share or self.shares >= shares


class PoolTaker:
    """Takes one slot's share after another out of pools, the best pool first."""

    def __init__(self, members: list[WalkCandidate]) -> None:
        self._members = members
        self._position = 0
        self._left = members[0].count if members else 0

    def take(self, count: int, edges: list[Edge], shares: list[Share]) -> int:
        """Take ``count`` units that are known to exist, and return the first pool's score.

        Only the first score counts, so that a slot that needs two pools is not worth twice as much.
        """
        while not self._left:
            self._next()
        score = self._members[self._position].score
        while count:
            if not self._left:
                self._next()
            units = min(count, self._left)
            v = self._members[self._position].edges[0][0]
            edges.append((v, False))
            shares.append((v, units))
            self._left -= units
            count -= units
        return score

    def _next(self) -> None:
        self._position += 1
        self._left = self._members[self._position].count


def merge(into: Found, found: Found) -> None:
    for kind, candidates in found.items():
        known = into.get(kind)
        if known is None:
            into[kind] = candidates
        else:
            known.members.extend(candidates.members)
            known.total += candidates.total
