"""Count the nodes that meet each requirement of a request alone, and all together.

``explain.review`` calls it. It reads the matcher's table and changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from fluxqueue.explain.answer import Check, Counted, LevelAnswer, Units
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.request import PODS, describe_amount
from fluxqueue.graph.ledger.share_table import SHARES_TOTAL
from fluxqueue.graph.match.by_shares import ByShares
from fluxqueue.graph.match.shares.ask import Ask, Leaf, groups
from fluxqueue.graph.tell.words import contents, level_word
from fluxqueue.jobspec.change import demands, describe_demand
from fluxqueue.jobspec.demand import NodeDemand
from fluxqueue.jobspec.model import Jobspec

READY, TAINTS, CONSTRAINT, ZONES, WHOLE, SHARED, RESOURCE = (
    "Ready", "Taints", "Constraint", "NumaZones", "WholeNode", "SharedNode", "Resource",
)  # fmt: skip


def count_kinds(table: ByShares, request: Jobspec, now: int) -> tuple[Counted, ...]:
    """Count for each kind of slots of ``request``. ``now`` is in epoch seconds."""
    ask = table.ask(request)
    return tuple(_count(table, ask, times, leaf, now) for times, leaf in ask.leaves())


def count_levels(table: ByShares, request: Jobspec) -> tuple[LevelAnswer, ...]:
    """Count the places of each level that ``request`` names, the lowest level first."""
    ask = table.ask(request)
    found = []
    for group in groups(ask.parts):
        could, there = table.places_with(ask, group)
        can, _ = table.places_with(ask, group, now=True)
        words = contents(group.below)
        found.append(LevelAnswer(level_word(group.level), words, group.count, there, could, can))
    return tuple(found)


def _count(table: ByShares, ask: Ask, times: int, leaf: Leaf, now: int) -> Counted:
    return Counted(
        label=" and ".join(kind.label for kind in leaf.kinds),
        wanted=times * leaf.count,
        per_unit=leaf.per_unit,
        is_distinct=leaf.is_distinct,
        needs=dict(leaf.needs),
        checks=tuple(_checks(table, ask, leaf)),
        together=_together(table, ask, leaf, now),
    )


def _checks(table: ByShares, ask: Ask, leaf: Leaf) -> Iterator[Check]:
    ledger = table.ledger
    present, usable = ledger.masks.present(), ledger.masks.usable()
    there = int(present.sum())
    yield Check(READY, "ready and not cordoned", there, int(usable.sum()))
    yield from _demand_checks([fact for fact in ledger.masks.facts if fact is not None], leaf.where)
    if table.is_whole(leaf, ask):
        untouched = present & (ledger.now.free[:, 0] == SHARES_TOTAL)
        yield Check(WHOLE, "not in use", there, int(untouched.sum()))
    else:
        shared = present & (ledger.now.free[:, 0] > 0)
        yield Check(SHARED, "not held whole by others", there, int(shared.sum()))
    for name, need in leaf.needs:
        column = ledger.columns.get(name)
        text = describe_amount(name, need)
        if name == PODS:
            text = "one more pod fits" if need == 1 else f"{need} more pods fit"
        if need <= 0:
            continue
        if column is None:
            yield Check(RESOURCE, text, 0, 0)
            continue
        large = present & (ledger.capacity[:, column] >= need)
        free = present & (ledger.now.free[:, column] >= need)
        yield Check(RESOURCE, text, int(large.sum()), int(free.sum()))


def _demand_checks(facts: Sequence[NodeFact], where: NodeDemand) -> Iterator[Check]:
    """Yield the checks of taints and labels, which do not depend on what is free."""
    tolerating = NodeDemand(None, where.tolerations)
    passing = sum(tolerating.admits(fact) for fact in facts)
    yield Check(TAINTS, "taints tolerated", passing, passing)
    for demand in demands(where.constraint):
        passing = sum(demand.matches(fact.name, -1, fact.labels) for fact in facts)
        yield Check(CONSTRAINT, describe_demand(demand), passing, passing)
    if where.numa:
        passing = sum(where.fits_zones(fact) for fact in facts)
        yield Check(ZONES, "fits one NUMA zone", passing, passing)


def _together(table: ByShares, ask: Ask, leaf: Leaf, now: int) -> Units:
    masks, capacity = table.ledger.masks, table.ledger.capacity
    empty = table.fits(leaf, capacity, masks.present(), ask)
    free = table.fits(leaf, table.ledger.now.free, masks.usable(), ask)
    open_nodes, open_units = table.room_during(ask, leaf, now)

    def units(fits: np.ndarray) -> int:
        return int(np.minimum(fits, 1).sum() if leaf.is_distinct else fits.sum())

    return Units(
        nodes=int(np.count_nonzero(empty)),
        units=units(empty),
        free_nodes=int(np.count_nonzero(free)),
        free_units=units(free),
        open_nodes=open_nodes,
        open_units=open_nodes if leaf.is_distinct else open_units,
    )
