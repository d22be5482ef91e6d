"""Which level is short now: ``2 racks of 8 have 4 free nodes with 8 cpu; 3 are needed``.

The forecast calls it for FluxJobs near the head of a queue, and for what-if questions. It counts
what is free at this moment and ignores reservations of other jobs. It changes nothing.
"""

from __future__ import annotations

from fluxqueue.graph.match.by_shares import ByShares
from fluxqueue.graph.match.shares.ask import groups
from fluxqueue.graph.tell.words import too_few_places, units
from fluxqueue.jobspec.model import Jobspec


def why_not_now(table: ByShares, request: Jobspec) -> str | None:
    """Return which level lacks what, the lowest first.

    None means that each level has enough by itself, so reservations of other jobs are in the way.
    It is also returned for a request that names neither levels nor nodes.
    """
    ask = table.ask(request)
    for times, leaf in ask.leaves():
        room = table.room_now(ask, leaf)
        if leaf.is_distinct and room < times * leaf.count:
            have = "has" if room == 1 else "have"
            nodes = units(leaf, room, free=True).partition(" with ")
            return f"{nodes[0]} {have} {nodes[2]}; {times * leaf.count} are needed"
    for group in groups(ask.parts):
        good, there = table.places_with(ask, group, now=True)
        if good < group.count:
            return too_few_places(group, good, there, free=True)
    return None
