"""Further nodes for pods with constraints that the matcher cannot judge. kube-scheduler chooses.

The worker calls it after the walk, for jobs that start in this cycle. A pod then names all of its
nodes, and its slot is booked on the first of them. Where it is bound elsewhere, its slot follows
(``db.store.choices``). Nothing is booked on the further nodes. They have room beside all that is
booked and reserved in this cycle. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from fluxqueue.fluxjob.turns import first_in_turn
from fluxqueue.graph.arrays import Mask, Vector
from fluxqueue.graph.ledger.placement import Placement
from fluxqueue.graph.ledger.places import NOWHERE
from fluxqueue.graph.match.by_shares import ByShares
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.graph.match.shares.ask import Ask, Leaf, Part
from fluxqueue.jobspec import Jobspec
from fluxqueue.scheduler.cycle_decisions import Decisions
from fluxqueue.scheduler.lack import Lack
from fluxqueue.scheduler.pending_job import PendingJob

NODES_MAX = 256
"""Most further nodes of one pod. Each is a name in the pod."""

JOBS_MAX = 50
"""Most jobs of one cycle that get further nodes. Users take turns, and pods of all other jobs name
one node each."""

Choices = dict[str, list[tuple[str, ...]]]
"""UID of a job -> further nodes of each of its slots, in slot order."""


def give_choices(matcher: Matcher, decisions: Decisions, now: int) -> Choices:
    """Return the further nodes of the slots that this cycle has given.

    Slots of jobs with a constraint that is not judged have a choice, and those of jobs with nodes
    that refused a pod before.
    """
    grown = decisions.grown.slots
    given_to: list[PendingJob | Lack] = [*(job for job, _ in decisions.allocated)]
    given_to += [lack for lack, _ in grown]
    asking = [one for one in given_to if one.is_unsure or one.refused]
    chosen = {one.uid for one in first_in_turn(asking, lambda one: one.user, JOBS_MAX)}
    found: Choices = {}
    for job, placement in decisions.allocated:
        if job.uid in chosen:
            found[job.uid] = _of_slots(matcher, job.request, placement, job.refused, now)
    for lack, placements in grown:
        if lack.uid in chosen:
            # Together: slots with nodes of their own divide the further nodes.
            slots = tuple(slot for one in placements for slot in one.slots)
            both = replace(placements[0], slots=slots)
            found[lack.uid] = _of_slots(matcher, lack.request, both, lack.refused, now, lack.nodes)
    return {uid: choices for uid, choices in found.items() if any(choices)}


def _of_slots(
    matcher: Matcher,
    request: Jobspec,
    placement: Placement,
    refused: Sequence[str],
    now: int,
    siblings: Sequence[str] = (),
) -> list[tuple[str, ...]]:
    """Return for each slot of a placement the other nodes with room for it.

    A slot in a level stays in its place, so what is asked of the level holds wherever its pod is
    bound. Slots with nodes of their own divide the others of their place: kube-scheduler knows no
    rule of ours that keeps their pods apart. ``siblings`` are the nodes of earlier slots of the
    same job.
    """
    table, ask = matcher.by_shares, matcher.ask(request)
    found: list[tuple[str, ...]] = [()] * len(placement.slots)
    for label, (level, leaf) in _free_kinds(table, ask).items():
        closed = {*refused, *((*siblings, *placement.nodes) if leaf.is_distinct else ())}
        room = table.room_for_one_more(ask, leaf, now, placement.until)
        places = table.places_of(level)
        nodes = _by_place(table, room, places, closed)
        numbers = [n for n, slot in enumerate(placement.slots) if slot.kind == label]
        for place, its in _numbers_by_place(table, placement, numbers, places).items():
            others = nodes.get(place, [])
            for at, number in enumerate(its):
                if leaf.is_distinct:
                    found[number] = tuple(others[at :: len(its)][:NODES_MAX])
                else:
                    own = placement.slots[number].node
                    some = [name for name in others[: NODES_MAX + 1] if name != own]
                    found[number] = tuple(some[:NODES_MAX])
    return found


_Kind: TypeAlias = tuple[str | None, Leaf]
"""The lowest level that binds the slots of a kind, and their leaf."""


def _free_kinds(table: ByShares, ask: Ask) -> dict[str, _Kind]:
    """Return the kinds of slots that may be on other nodes one by one, by label.

    A slot that takes its node whole is none of them. kube-scheduler knows no whole nodes, and would
    bind its pod to a node that another job has got a part of. Several slots that must be on one
    node are none either.
    """
    found: dict[str, _Kind] = {}
    unequal: set[str] = set()
    for level, leaf, is_held in _leaves(ask.grown, None, is_held=False):
        is_single = len(leaf.kinds) == 1 and leaf.per_unit == 1
        is_free = is_single and not (is_held or leaf.whole_pools or table.is_whole(leaf, ask))
        one: _Kind = level, replace(leaf, count=1, up_to=None)
        for kind in leaf.kinds:
            if not is_free or found.setdefault(kind.label, one) != one:
                unequal.add(kind.label)
    distinct = [label for label, (_, leaf) in found.items() if leaf.is_distinct]
    # Kinds that each need nodes of their own would be offered the same ones.
    unequal.update(distinct if len(distinct) > 1 else ())
    return {label: one for label, one in found.items() if label not in unequal}


def _leaves(
    parts: Sequence[Part], level: str | None, *, is_held: bool
) -> Iterator[tuple[str | None, Leaf, bool]]:
    """Yield each leaf after the lowest level above it, and whether a place is held whole for it."""
    for part in parts:
        if isinstance(part, Leaf):
            yield level, part, is_held
        else:
            yield from _leaves(part.below, part.level, is_held=is_held or part.is_exclusive)


def _by_place(
    table: ByShares, room: Mask, places: Vector, closed: Collection[str]
) -> dict[int, list[str]]:
    """Return the names of the nodes with room by place, without those that are ``closed``."""
    found: dict[int, list[str]] = {}
    for row in np.flatnonzero(room & (places != NOWHERE)).tolist():
        name = table.ledger.names[row]
        if name not in closed:
            found.setdefault(int(places[row]), []).append(name)
    return found


def _numbers_by_place(
    table: ByShares, placement: Placement, numbers: Iterable[int], places: Vector
) -> dict[int, list[int]]:
    """Return the numbers of slots by the place of their nodes. A node may be gone by now."""
    found: dict[int, list[int]] = {}
    for number in numbers:
        row = table.ledger.rows.get(placement.slots[number].node)
        if row is not None and places[row] != NOWHERE:
            found.setdefault(int(places[row]), []).append(number)
    return found
