"""A request with one thing changed: fewer slots, less time, less of a resource or demand.

It answers "what if" (``explain.variants``) and reads the questions of users
(``workload.placement_review``). Each function returns another jobspec. It returns None if the part
to change does not exist or is ambiguous. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import prod

from fluxqueue.fluxjob.hostlist import compress
from fluxqueue.jobspec.constraint import MATCH_EXPRESSIONS, Constraint, all_of
from fluxqueue.jobspec.demand import NodeDemand
from fluxqueue.jobspec.model import NODE, Count, Jobspec, Resource
from fluxqueue.jobspec.shape import moldable_counts, of_size


def with_size(jobspec: Jobspec, size: int) -> Jobspec | None:
    """Return the jobspec with ``size`` slots, or None if it is unclear which count changes.

    In a chain of levels, nodes and slots the highest count above 1 is changed. So the request for
    each node or each rack stays the same.
    """
    if size < 1:
        return None
    if size == jobspec.size:
        return jobspec
    if moldable_counts(jobspec):
        return of_size(jobspec, size)
    at, step = _step(jobspec)
    if not step or size % step:
        return None
    return replace(jobspec, resources=_with_count(jobspec.resources, at, size // step))


def smaller_sizes(jobspec: Jobspec) -> range:
    """Return the sizes below its own that ``with_size`` can give it."""
    if moldable_counts(jobspec):
        return range(0)  # Its own size is the minimum already.
    _, step = _step(jobspec)
    return range(step, jobspec.size, step) if step else range(0)


def _step(jobspec: Jobspec) -> tuple[int, int]:
    """Return which count of the chain changes, and by how many slots. 0 means none can change."""
    counts = _chain(jobspec.resources)
    if counts is None:
        return 0, 0
    at = next((i for i, count in enumerate(counts) if count > 1), len(counts) - 1)
    if at == len(counts) - 1 and len(counts) > 1 and jobspec.size == 1 and _is_spread(jobspec):
        return 0, 0  # One pod on one node: more pods could share that node or have a node each.
    return at, prod(counts[at + 1 :])


def _chain(resources: Sequence[Resource]) -> list[int] | None:
    """Return the counts from the top to the slots, or None if a level has several entries."""
    counts: list[int] = []
    while True:
        if len(resources) != 1:
            return None
        counts.append(resources[0].count.minimum)
        if resources[0].is_slot:
            return counts
        resources = resources[0].with_


def _is_spread(jobspec: Jobspec) -> bool:
    (one,) = jobspec.resources
    while not one.is_slot:
        if one.type == NODE:
            return True
        (one,) = one.with_
    return False


def _with_count(resources: Sequence[Resource], at: int, count: int) -> tuple[Resource, ...]:
    (one,) = resources
    if not at:
        return (replace(one, count=Count(count, count)),)
    return (replace(one, with_=_with_count(one.with_, at - 1, count)),)


def with_duration(jobspec: Jobspec, seconds: int | None) -> Jobspec:
    """Return the jobspec for this many seconds. None means no limit."""
    return replace(jobspec, duration_s=float(seconds or 0))


def with_amount(jobspec: Jobspec, name: str, amount: int) -> Jobspec:
    """Return the jobspec with ``amount`` base units of a resource in each slot that wants some."""

    def change(resource: Resource) -> Resource:
        if resource.type == name and not resource.with_ and resource.is_exclusive is not True:
            return replace(resource, count=Count(amount, amount))
        return replace(resource, with_=tuple(map(change, resource.with_)))

    return replace(jobspec, resources=tuple(map(change, jobspec.resources)))


def without_top_level(jobspec: Jobspec) -> Jobspec | None:
    """Return the jobspec without its top level, or None if there is none to leave out.

    The top level must be one vertex below which all of the request had to be.
    """
    if len(jobspec.resources) != 1:
        return None
    (top,) = jobspec.resources
    if top.is_slot or top.count != Count(1, 1) or top.is_exclusive is True:
        return None
    return replace(jobspec, resources=top.with_)


def sharing_nodes(jobspec: Jobspec) -> Jobspec | None:
    """Return the jobspec on nodes that may be shared, or None if it asked for no whole node."""
    found = replace(
        jobspec,
        is_node_exclusive=False,
        resources=tuple(_shared(one) for one in jobspec.resources),
    )
    return None if found == jobspec else found


def _shared(resource: Resource) -> Resource:
    if resource.is_slot:
        return resource
    below = tuple(map(_shared, resource.with_))
    is_exclusive = None if resource.type == NODE else resource.is_exclusive
    return replace(resource, with_=below, is_exclusive=is_exclusive)


def demands(constraint: Constraint | None) -> tuple[Constraint, ...]:
    """Return the parts of a constraint that must all hold, each by itself."""
    return tuple(_demands(constraint)) if constraint is not None else ()


def _demands(constraint: Constraint) -> Iterator[Constraint]:
    if constraint.operator == "and":
        for operand in constraint.operands:
            yield from _demands(operand)
    elif constraint.operator == MATCH_EXPRESSIONS:
        for one in constraint.requirements:
            yield Constraint(MATCH_EXPRESSIONS, requirements=(one,))
    elif constraint.operator:
        yield constraint


def without_demand(jobspec: Jobspec, demand: Constraint) -> Jobspec:
    """Return the jobspec without one of the ``demands`` on its nodes."""

    def relaxed(where: NodeDemand) -> NodeDemand:
        kept = [one for one in demands(where.constraint) if one != demand]
        return replace(where, constraint=all_of(kept))

    slot_where = tuple((label, relaxed(where)) for label, where in jobspec.slot_where)
    return replace(jobspec, where=relaxed(jobspec.where), slot_where=slot_where)


def describe_demand(demand: Constraint) -> str:
    """Return a demand as people write it.

    Examples are ``pool=main``, ``zone in (a, b)`` and ``hostlist n[1-3]``.
    """
    if demand.operator == MATCH_EXPRESSIONS:
        return ", ".join(
            f"{one.key}={one.values[0]}"
            if one.operator == "In" and len(one.values) == 1
            else " ".join(filter(None, (one.key, str(one.operator), ",".join(one.values))))
            for one in demand.requirements
        )
    words: dict[str, Callable[[], str]] = {
        "properties": lambda: "properties " + ",".join(demand.names),
        "hostlist": lambda: f"hostlist {compress(sorted(demand.hosts))}",
        "ranks": lambda: "ranks " + ",".join(map(str, sorted(demand.ranks))),
    }
    if demand.operator in words:
        return words[demand.operator]()
    joined = f" {demand.operator} ".join(f"({describe_demand(one)})" for one in demand.operands)
    return f"not {joined}" if demand.operator == "not" else joined
