"""What a request that could run waits for: nodes that jobs use, or unusable nodes.

``scheduler.forecast`` calls it for FluxJobs near the head of a queue. The cycle calls it if no plan
is possible. Times in sentences are UTC and name what is stable (ends of running work), never "in
five minutes". A sentence that changes without news would be published again and again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fluxqueue.fluxjob.hostlist import compress
from fluxqueue.fluxjob.times import at_utc
from fluxqueue.graph.arrays import Mask, Matrix
from fluxqueue.graph.ledger.placement import FOREVER, Placement, PolicyOnNode
from fluxqueue.graph.ledger.places import NOWHERE
from fluxqueue.graph.match.by_shares import ByShares
from fluxqueue.graph.tell.room import permanent_use, rows_in_use
from fluxqueue.jobspec.model import Jobspec
from fluxqueue.prediction.durations import planned_end

NAMED_MAX = 3
"""Most jobs or namespaces named in one sentence."""

HOSTLIST_MAX = 60
"""Longest hostlist shown. A longer one becomes a number of nodes."""

DAY_S = 86_400


@dataclass(frozen=True, slots=True)
class Holder:
    """A live allocation in the way: its key, its planned end and its limit (epoch seconds).

    Only the limit is shown: the planned end may be a prediction from runs of another user.
    """

    key: str
    until: int
    limit: int = FOREVER


@dataclass(frozen=True, slots=True)
class InTheWay:
    """Nodes of a placement that are in use now, and their holders, the last to end first."""

    nodes: tuple[str, ...]
    holders: tuple[Holder, ...]


def in_the_way(table: ByShares, placement: Placement) -> InTheWay:
    """Return the running work that must end before ``placement`` can start."""
    rows = rows_in_use(table.ledger, placement)
    keys = {key for row in rows for key in table.ledger.keys_on(row)}
    holders = [
        Holder(key, live.until, live.limit)
        for key, live in ((key, table.ledger.live[key]) for key in keys)
        if planned_end(live.until, table.ledger.time, live.limit) <= placement.starts_at
    ]
    return InTheWay(
        tuple(table.ledger.names[row] for row in rows),
        tuple(sorted(holders, key=lambda one: (-one.until, one.key))),
    )


def describe_nodes(table: ByShares, nodes: Sequence[str], level: str | None) -> str:
    """Return nodes in words.

    If they had to be of one place, this is ``3 nodes of rack r2``. Otherwise it is their names, or
    their number if the names are too long.
    """
    distinct = sorted(set(nodes), key=lambda name: (len(name), name))
    count = "1 node" if len(distinct) == 1 else f"{len(distinct)} nodes"
    if level is not None:
        place = _place(table, distinct, level)
        if place is not None:
            return f"{count} of {level.rpartition('/')[2]} {place}"
    names = compress(distinct)
    return names if len(names) <= HOSTLIST_MAX else count


def _place(table: ByShares, nodes: Iterable[str], level: str) -> str | None:
    places = table.ledger.topology.places(level, table.ledger.masks.facts)
    found = {
        int(places.ids[table.ledger.rows[name]]) for name in nodes if name in table.ledger.rows
    }
    if len(found) != 1 or NOWHERE in found:
        return None
    path = places.paths[found.pop()]
    return None if path is None else path[-1]


def describe_holders(holders: Sequence[Holder], now: int, jobids: Mapping[str, int]) -> str:
    """Return holders in words: ``job 17 until 14:05 UTC, job 12 until 13:40 UTC and 2 more``."""
    return enumerate_some([f"{name_of(one.key, jobids)} {_until(one, now)}" for one in holders])


def enumerate_some(words: Sequence[str]) -> str:
    """Return the first few of ``words``, and how many more there are."""
    shown = ", ".join(words[:NAMED_MAX])
    more = len(words) - NAMED_MAX
    return f"{shown} and {more} more" if more > 0 else shown


def name_of(key: str, jobids: Mapping[str, int]) -> str:
    """Return a FluxJob's name for users."""
    return f"job {jobids[key]}" if key in jobids else "another job"


def _until(one: Holder, now: int) -> str:
    if one.limit == FOREVER:
        return "without a limit"
    return "past its end" if one.limit <= now else f"until {write_time(one.limit, now)}"


def write_time(at: int, now: int) -> str:
    """Return a time for people: ``14:05 UTC``. A day or more after ``now``, the date is shown."""
    form = "%H:%M UTC" if at - now < DAY_S else "%b %d %H:%M UTC"
    return at_utc(at).strftime(form)


def why_no_plan(table: ByShares, request: Jobspec, *, names_others: bool = True) -> str | None:
    """Return why no end of running work lets a request start that fits the empty cluster.

    None means that it would fit if none of our jobs ran.
    ``names_others``: name the namespaces of the unmanaged pods in the way.
    """
    if table.fits_empty(request, beside_others=table.ledger.foreign, on_all_nodes=False):
        return None
    if table.fits_empty(request, beside_others=None, on_all_nodes=False):
        return _others(table, request, names_others)
    unusable = _unusable(table, request)
    if not unusable:
        return "fits only nodes that cannot be used now"
    return f"fits only with nodes that are {unusable}"


def _others(table: ByShares, request: Jobspec, names_others: bool) -> str:
    """Return that unmanaged pods use the capacity. Their ends are not known."""
    usable = table.ledger.masks.usable()
    with_room = _units(table, request, table.ledger.capacity, usable)
    beside = _units(table, request, table.ledger.capacity - table.ledger.foreign, usable)
    rows = [int(row) for row in np.flatnonzero((with_room > beside).any(axis=0))]
    names = [table.ledger.names[row] for row in rows]
    namespaces = sorted({one for name in names for one in _namespaces_on(table, name)})
    whose = f"of {_namespaces(namespaces)}" if namespaces and names_others else "of others"
    where = describe_nodes(table, names, None) if names else "its nodes"
    policy = _policy_on(table, names)
    if policy is not None and not namespaces:
        return f"{policy.describe()} leaves too little room on {where} now"
    by_policy = "" if policy is None else f", beside {policy.describe()}"
    if not table.fits_empty(request, beside_others=permanent_use(table.ledger), on_all_nodes=True):
        what = f"DaemonSets and static pods {whose} leave too little room on {where} for good"
    else:
        what = f"pods {whose} leave too little room on {where} and have no known end"
    return what + by_policy


def _policy_on(table: ByShares, nodes: Iterable[str]) -> PolicyOnNode | None:
    """Return the sharing policy of the first of ``nodes`` that has one."""
    found = (table.ledger.others.get(node) for node in nodes)
    return next((one.policy for one in found if one is not None and one.policy is not None), None)


def _namespaces_on(table: ByShares, node: str) -> tuple[str, ...]:
    others = table.ledger.others.get(node)
    return others.namespaces if others is not None else ()


def _namespaces(names: Sequence[str]) -> str:
    return ("namespace " if len(names) == 1 else "namespaces ") + enumerate_some(names)


def _unusable(table: ByShares, request: Jobspec) -> str:
    """Return the nodes it could use if they were healthy: ``down: n1,n2; cordoned: n3``."""
    lists: dict[str, list[str]] = {"down": [], "cordoned": []}
    units = _units(table, request, table.ledger.capacity, table.ledger.masks.present())
    for row in np.flatnonzero(units.any(axis=0)).tolist():
        fact = table.ledger.masks.facts[row]
        if fact is not None and not fact.is_up:
            lists["down"].append(fact.name)
        elif fact is not None and not fact.is_schedulable:
            lists["cordoned"].append(fact.name)
    return "; ".join(
        f"{word}: {describe_nodes(table, names, None)}" for word, names in lists.items() if names
    )


def _units(table: ByShares, request: Jobspec, free: Matrix, usable: Mask) -> Matrix:
    """Return how many units of each leaf fit each node: leaves x rows."""
    ask = table.ask(request)
    return np.array([table.fits(leaf, free, usable, ask) for _, leaf in ask.leaves()])
