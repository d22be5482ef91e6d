"""One choice from the table: which nodes hold a whole request during one window.

From the leaves upwards, count how many units every place holds (sums over segments of the
topology). From the top downwards, take the best places. In the lowest places the policy chooses
among nodes.

Requests with one kind of slots are answered exactly. With several kinds side by side, the first
kind is placed, then the next in what is left. A kind that does not fit then goes first in another
try (``match.orders``). The result is sound. It is complete for kinds that fit beside each other.

Places are taken the fullest first, or the emptiest first with ``spread``, and then by name. So what
is left stays in one piece. The matcher calls this. It changes no booking.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from fluxqueue.graph.arrays import Mask, Vector
from fluxqueue.graph.ledger.node_table import AllocationTable
from fluxqueue.graph.ledger.places import NOWHERE, Places
from fluxqueue.graph.ledger.share_table import SHARES_TOTAL
from fluxqueue.graph.ledger.shares import Patch, ShareLedger
from fluxqueue.graph.match.orders import place_all
from fluxqueue.graph.match.policy import Policy
from fluxqueue.graph.match.shares.ask import Group, Leaf, Part, at_least
from fluxqueue.graph.match.shares.filling import fill
from fluxqueue.graph.match.shares.offer import Offer, OfferView, PlaceScores

Chosen: TypeAlias = tuple[Leaf, Vector]
"""A leaf, and the row of each of its units."""


class Choice:
    """One choice. ``held`` are rows of exclusive places that are taken whole.

    Parameters
    ----------
    offers : returns the current offer for a leaf.
    patch : rows on which the free resources differ from the table.
    spend
        subtracts steps from the work of the question. It raises ``TooComplex`` when none is left.
    """

    def __init__(
        self,
        ledger: ShareLedger,
        table: AllocationTable,
        scores: PlaceScores,
        offers: Callable[[Leaf], Offer],
        policy: Policy,
        patch: Patch | None,
        spend: Callable[[int], None],
    ) -> None:
        self._spend = spend
        self.ledger, self.table, self.scores = ledger, table, scores
        self.policy, self.offers = policy, offers
        self.patch = patch
        self.held: set[int] = set()
        self._taken: dict[int, Vector] = {}
        self._distinct: set[int] = set()
        self._views: dict[Leaf, OfferView] = {}
        self._has_company = False

    def choose(self, parts: Sequence[Part]) -> list[Chosen] | None:
        """Return the rows of all units in slot order, or None if the request does not fit."""
        self._has_company = len(parts) > 1 or _has_siblings(parts)
        return self._fill(parts, None, None)

    def count_good(self, group: Group) -> tuple[int, int]:
        """Return how many places of the group's level hold what each must, and how many exist."""
        places = self._places(group)
        there = sum(path is not None for path in places.paths)
        return int(np.count_nonzero(self._good(group, places))), there

    # --- from the top down -----------------------------------------------------------------------

    def _fill(
        self, parts: Sequence[Part], places: Places | None, place: int | None
    ) -> list[Chosen] | None:
        if len(parts) == 1:
            return self._fill_part(parts[0], places, place)
        kept = self._keep()

        def place_one(part: Part) -> list[Chosen] | None:
            return self._fill_part(part, places, place)

        # First try with as many units as fit. One part may then leave too little for the next, so
        # try again with the minimum of each.
        for tried in dict.fromkeys((tuple(parts), tuple(map(at_least, parts)))):
            found = place_all(tried, place_one, lambda: self._restore(kept))
            if found is not None:
                return [one for chosen in found for one in chosen]
        return None

    def _fill_part(
        self, part: Part, places: Places | None, place: int | None
    ) -> list[Chosen] | None:
        if isinstance(part, Group):
            return self._fill_group(part, places, place)
        return self._fill_leaf(part, places, place)

    def _fill_leaf(
        self, leaf: Leaf, places: Places | None, place: int | None
    ) -> list[Chosen] | None:
        self._spend(40 + len(self.ledger.names) // 50)
        view = self._view(leaf)
        rows = None
        if places is None or place is None:
            room = view.nodes if leaf.is_distinct else view.total
        else:
            rows = places.members(place)
            units = view.fit[rows]
            room = int(np.count_nonzero(units) if leaf.is_distinct else units.sum())
        if room < leaf.count:
            return None
        count = leaf.count if leaf.up_to is None else leaf.up_to.largest_within(room)
        chosen = fill(view, count, self.policy, is_distinct=leaf.is_distinct, rows=rows)
        # Other parts of the request must see what this one takes. A lone part skips the cost.
        if self._has_company:
            self._note(leaf, chosen)
        if not view.is_moldable:
            return [(leaf, chosen)]
        chosen = np.array(sorted(chosen.tolist(), key=self.ledger.standing))
        counts = view.slots_on(chosen).tolist()
        return [(_with(leaf, n), chosen[i : i + 1]) for i, n in enumerate(counts)]

    def _fill_group(
        self, group: Group, above: Places | None, place: int | None
    ) -> list[Chosen] | None:
        places = self._places(group)
        # Each place is judged alone here, so filling may still fail.
        good = self._good(group, places)
        if above is not None and place is not None:
            good &= places.above(above) == place
        numbers = np.flatnonzero(good)
        if len(numbers) < group.count:
            return None
        up_to = group.up_to
        count = group.count if up_to is None else up_to.largest_within(len(numbers))
        chosen: list[list[Chosen]] = []
        kept = [self._keep()]
        for number in self._best_first(places, numbers, count):
            found = self._fill(group.below, places, number)
            if found is None:
                self._restore(kept[-1])
                continue
            if group.is_exclusive:
                self._add_held(places.members(number))
            chosen.append(found)
            kept.append(self._keep())
            if len(chosen) == count:
                break
        # Several kinds may each fit a place alone but not together, so fewer places may be left.
        if len(chosen) < count:
            count = 0 if up_to is None else up_to.largest_within(len(chosen))
            self._restore(kept[count])
        return [one for found in chosen[:count] for one in found] if count else None

    def _best_first(self, places: Places, numbers: Vector, count: int) -> list[int]:
        ranks = places.ranks()[numbers]
        if len(numbers) == count:
            return list(numbers[np.argsort(ranks)].tolist())
        # All places are needed, so their scores do not matter.
        scores = self.scores.of(places, numbers, self.patch)
        if self.policy.occupancy < 0:
            scores = -scores
        return list(numbers[np.lexsort((ranks, scores))].tolist())

    # --- from the leaves up ----------------------------------------------------------------------

    def _good(self, group: Group, places: Places) -> Mask:
        """Return the places that hold all that is below. Each kind of slots is judged alone."""
        good = np.ones(len(places), dtype=np.bool_)
        for part in group.below:
            self._spend(20 + len(self.ledger.names) // 100)
            if isinstance(part, Leaf):
                sums = self._view(part).sums(places, is_distinct=part.is_distinct)
                good &= sums >= part.count
            else:
                lower = self._places(part)
                above = lower.above(places)[self._good(part, lower)]
                found = np.bincount(above[above != NOWHERE], minlength=len(places))
                good &= found >= part.count
        if group.is_exclusive:
            good &= self._untouched(places)
        return good

    def _untouched(self, places: Places) -> Mask:
        """Return the places in which no node is used at all."""
        shares = self.table.free[:, 0]
        patch = self._patch()
        if patch is not None:
            shares = shares.copy()
            shares[patch.rows] = patch.free[:, 0]
        is_touched = self.ledger.masks.present() & (shares != SHARES_TOTAL)
        found: Mask = places.sums(is_touched.astype(np.int64)) == 0
        return found

    def _places(self, group: Group) -> Places:
        return self.ledger.topology.places(group.level, self.ledger.masks.facts)

    # --- several kinds side by side --------------------------------------------------------------

    def _view(self, leaf: Leaf) -> OfferView:
        view = self._views.get(leaf)
        if view is None:
            offer = self.offers(leaf)
            patch = self._patch(leaf) if self._taken or self.held else self.patch
            view = self._views[leaf] = OfferView(offer, patch)
        return view

    def _patch(self, leaf: Leaf | None = None) -> Patch | None:
        """Return the window's patch, with all that this choice has taken so far."""
        if not self._taken and not self.held:
            return self.patch
        self._spend(20 + len(self._taken) + len(self.held))
        rows = np.array(sorted(self._taken.keys() | self.held), dtype=np.int64)
        if self.patch is not None:
            rows = np.union1d(rows, self.patch.rows)
        free = self.table.free[rows]
        if self.patch is not None:
            free[np.searchsorted(rows, self.patch.rows)] = self.patch.free
        for index, row in enumerate(rows.tolist()):
            taken = self._taken.get(row)
            if taken is not None:
                free[index] -= taken
            # No second unit of distinct nodes may use a node that such a unit already has.
            if row in self.held or (
                leaf is not None and leaf.is_distinct and row in self._distinct
            ):
                free[index, 0] = 0
        return Patch(rows, free)

    def _note(self, leaf: Leaf, rows: Vector) -> None:
        """Record what was taken, so that later parts of this request cannot take it again."""
        view = self._view(leaf)
        self._spend(3 * len(rows))
        for row in rows.tolist():
            take = view.take_of(row)
            known = self._taken.get(row)
            self._taken[row] = take.copy() if known is None else known + take
        if leaf.is_distinct:
            self._distinct.update(rows.tolist())
        if leaf.is_whole:
            self.held.update(rows.tolist())
        self._views.clear()

    def _add_held(self, rows: Vector) -> None:
        self.held.update(rows.tolist())
        if self._has_company:
            self._views.clear()

    def _keep(self) -> tuple[dict[int, Vector], set[int], set[int]] | None:
        if not self._has_company:
            return None
        self._spend(1 + (len(self._taken) + len(self.held)) // 20)
        return dict(self._taken), set(self._distinct), set(self.held)

    def _restore(self, kept: tuple[dict[int, Vector], set[int], set[int]] | None) -> None:
        if kept is not None:
            taken, distinct, held = kept
            self._taken, self._distinct, self.held = dict(taken), set(distinct), set(held)
            self._views.clear()


def _with(leaf: Leaf, count: int) -> Leaf:
    """Return one node of ``leaf`` with ``count`` slots on it."""
    kinds = (replace(leaf.kinds[0], count=count, up_to=None),)
    return replace(leaf, count=1, kinds=kinds, up_to=None)


def _has_siblings(parts: Sequence[Part]) -> bool:
    return any(
        isinstance(part, Group) and (len(part.below) > 1 or _has_siblings(part.below))
        for part in parts
    )
