"""The shape of a jobspec: its slots in order, their needs, and the minimum it takes.

Queue limits, the scheduling cycle and the matcher call it. It reads no graph. Counts are the
minimum that is asked for. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from fluxqueue.errors import TooComplex
from fluxqueue.fluxjob.request import describe as describe_needs
from fluxqueue.fluxjob.request import unit_of
from fluxqueue.jobspec.bounds import OPEN_MAX, SLOTS_MAX
from fluxqueue.jobspec.constraint import Constraint
from fluxqueue.jobspec.demand import Bundle, NodeDemand
from fluxqueue.jobspec.model import LABEL, NODE, RFC14, SLOT, Count, Jobspec, Resource
from fluxqueue.jobspec.sizes import Sizes


@dataclass(frozen=True, slots=True)
class SlotKind:
    """All slots of one kind: ``count`` in all, what each needs, and on which nodes.

    ``needs`` maps resource names to base units. ``above`` are the vertices that hold the slots, top
    first, each with its number below the one before. ``node_count`` is the number of node vertices
    among them, 0 if none is named.
    """

    label: str
    count: int
    needs: Bundle
    where: NodeDemand
    above: tuple[tuple[str, int], ...] = ()
    node_count: int = 0


@lru_cache(maxsize=4096)
def slot_kinds(jobspec: Jobspec) -> tuple[SlotKind, ...]:
    """Return the kinds of slots in document order, which is the order of slot numbers."""
    return tuple(_kinds(jobspec, jobspec.resources, (), 1))


def _kinds(
    jobspec: Jobspec,
    resources: Sequence[Resource],
    above: tuple[tuple[str, int], ...],
    times: int,
) -> Iterator[SlotKind]:
    for resource in resources:
        count = resource.count.minimum
        if not resource.is_slot:
            here = (*above, (resource.type, count))
            yield from _kinds(jobspec, resource.with_, here, times * count)
            continue
        nodes = _product(above, up_to=NODE)
        yield SlotKind(
            label=resource.label,
            count=times * count,
            needs=tuple(sorted(_amounts(resource.with_).items())),
            where=jobspec.where_of(resource.label),
            above=above,
            node_count=nodes,
        )


def _product(above: Sequence[tuple[str, int]], *, up_to: str) -> int:
    total = 1
    for kind, count in above:
        total *= count
        if kind == up_to:
            return total
    return 0


def _amounts(resources: Sequence[Resource]) -> dict[str, int]:
    """Return the units by type in one slot, including those below other vertices."""
    found: dict[str, int] = {}
    for resource in resources:
        least = resource.count.minimum
        if not resource.with_:
            found[resource.type] = found.get(resource.type, 0) + least
        for name, amount in _amounts(resource.with_).items():
            found[name] = found.get(name, 0) + least * amount
    return found


def equal_slots(count: int, needs: Mapping[str, int], *, duration_s: int | None = None) -> Jobspec:
    """Return a jobspec of ``count`` equal slots anywhere. Without a duration it has no limit."""
    pools = tuple(
        Resource(name, Count(n, n), unit=unit_of(name)) for name, n in sorted(needs.items())
    )
    slot = Resource(SLOT, Count(count, count), pools, label=LABEL)
    return Jobspec(RFC14, (slot,), duration_s=float(duration_s or 0))


def slot_needs(jobspec: Jobspec) -> Iterator[Bundle]:
    """Yield what each slot needs, in the order of slot numbers."""
    for kind in slot_kinds(jobspec):
        for _ in range(kind.count):
            yield kind.needs


def total(jobspec: Jobspec, name: str) -> int:
    """Return the base units of one resource over all slots."""
    return sum(kind.count * dict(kind.needs).get(name, 0) for kind in slot_kinds(jobspec))


def fewest_nodes(jobspec: Jobspec) -> int:
    """Return the minimum number of nodes. Nodes that the request names are all different."""
    return max(min(1, jobspec.size), sum(map(_nodes, jobspec.resources)))


def _nodes(resource: Resource) -> int:
    if resource.is_slot:
        return 0
    return resource.count.minimum * (
        1 if resource.type == NODE else sum(map(_nodes, resource.with_))
    )


def takes_whole_nodes(jobspec: Jobspec) -> bool:
    """Return whether the nodes of its slots are not shared with other jobs."""
    return jobspec.is_node_exclusive or any(map(_is_whole, jobspec.resources))


def _is_whole(resource: Resource) -> bool:
    if resource.is_slot:
        return False
    return bool(resource.is_exclusive) or any(map(_is_whole, resource.with_))


def bounded(count: Count) -> Count:
    """Return the number of slots that take shares of pools, bounded by ``OPEN_MAX`` if variable."""
    if count.is_fixed or count.maximum <= OPEN_MAX:
        return count
    return replace(count, maximum=max(count.minimum, OPEN_MAX))


def moldable_counts(jobspec: Jobspec) -> tuple[Count, ...]:
    """Return the counts of levels, nodes and slots that are not fixed, from the top down."""
    return tuple(_moldable(jobspec.resources))


def _moldable(resources: Sequence[Resource]) -> Iterator[Count]:
    for resource in resources:
        if not resource.count.is_fixed:
            yield resource.count
        if not resource.is_slot:
            yield from _moldable(resource.with_)


def with_counts(jobspec: Jobspec, counts: Sequence[int]) -> Jobspec:
    """Return the jobspec with these numbers in place of ``moldable_counts``."""
    return replace(jobspec, resources=_with_counts(jobspec.resources, iter(counts)))


def _with_counts(resources: Sequence[Resource], counts: Iterator[int]) -> tuple[Resource, ...]:
    found = []
    for resource in resources:
        if not resource.count.is_fixed:
            number = next(counts)
            resource = replace(resource, count=Count(number, number))
        if not resource.is_slot:
            resource = replace(resource, with_=_with_counts(resource.with_, counts))
        found.append(resource)
    return tuple(found)


def of_size(jobspec: Jobspec, size: int) -> Jobspec | None:
    """Return the jobspec with exactly ``size`` slots, or None if no counts give that.

    From the top down, each count is the largest for which this is possible.

    Raises
    ------
    TooComplex
        Finding the counts takes more work than one request may cost.
    """
    if not moldable_counts(jobspec):
        return jobspec if jobspec.size == size else None
    if size < jobspec.size:
        return None
    if size > SLOTS_MAX:
        message = f"has counts that are not fixed, for more than {SLOTS_MAX:,} slots"
        raise TooComplex(message, where="resources", value=size, hint="fix the counts")
    counts = Sizes(size).counts_for(jobspec.resources)
    return None if counts is None else with_counts(jobspec, counts)


def levels_named(jobspec: Jobspec) -> tuple[str, ...]:
    """Return the types above the nodes that the request names, top first, each once."""
    found = (kind for one in slot_kinds(jobspec) for kind, _ in one.above if kind != NODE)
    return tuple(dict.fromkeys(found))


def relaxations(jobspec: Jobspec, levels: Sequence[str]) -> tuple[Jobspec, ...]:
    """Return what to try for ``prefer_within``, in order. The matcher takes the first that fits.

    The forms are the request below one vertex of the level that it names, below one of the next
    level up, and so on. The last is the request itself. ``levels`` are those of the graph, top
    first, with nodes below them. The demands of the request stay: within one zone, only levels
    below zones are tried. A level that the graph does not have is skipped. So is a level that
    cannot stand above what the request names.
    """
    if not jobspec.prefer_within:
        return (jobspec,)
    plain = replace(jobspec, prefer_within="")
    ladder = (*levels, NODE)
    if jobspec.prefer_within not in ladder:
        return (plain,)
    lowest = ladder.index(jobspec.prefer_within)
    depth, below = 0, jobspec.resources
    while len(below) == 1 and below[0].type in ladder and below[0].count.minimum == 1:
        depth, below = ladder.index(below[0].type) + 1, below[0].with_
    tried = (_below_one(jobspec.resources, ladder, i) for i in range(lowest, depth - 1, -1))
    return (*(replace(plain, resources=one) for one in tried if one), plain)


def _below_one(
    resources: tuple[Resource, ...], ladder: Sequence[str], index: int
) -> tuple[Resource, ...]:
    """Return ``resources`` with one vertex of a level above what is lower, or nothing."""
    first = resources[0] if len(resources) == 1 else None
    if first is not None and first.type in ladder[:index] and first.count.minimum == 1:
        inner = _below_one(first.with_, ladder, index)
        return (replace(first, with_=inner),) if inner else ()
    if any(_names(one, ladder[: index + 1]) for one in resources):
        return ()
    return (Resource(ladder[index], Count(1, 1), resources),)


def _names(resource: Resource, types: Sequence[str]) -> bool:
    return resource.type in types or any(_names(one, types) for one in resource.with_)


def within(jobspec: Jobspec, level: str) -> Jobspec:
    """Return the jobspec below one vertex of ``level``."""
    top = Resource(level, Count(1, 1), jobspec.resources)
    return replace(jobspec, resources=(top,))


def describe(jobspec: Jobspec) -> str:
    """Return the request in words.

    An example is ``16 slots of 8 cpu, 2 on each of 4 nodes in each of 2 racks``.
    """
    return " and ".join(_describe(kind) for kind in slot_kinds(jobspec)) or "nothing"


def _describe(kind: SlotKind) -> str:
    text = f"{_count(kind.count, 'slot')} of {describe_needs(dict(kind.needs))}"
    if not kind.above:
        return text
    inner = kind.count
    for _, count in kind.above:
        inner //= max(1, count)  # A Job scaled to nothing asks for slots on no nodes.
    parts = []
    for level, count in reversed(kind.above):
        word = "on" if level == NODE else "in"
        one = f"one {level}" if count == 1 else f"each of {_count(count, level)}"
        parts.append(f"{word} {one}")
    if all(count == 1 for _, count in kind.above):
        return f"{text}, {' '.join(parts)}"
    return f"{text}, {inner} {' '.join(parts)}"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


@lru_cache(maxsize=4096)
def without_nodes(jobspec: Jobspec, names: tuple[str, ...]) -> Jobspec:
    """Return the jobspec with all slots kept away from the nodes ``names``."""
    away = Constraint("not", operands=(Constraint("hostlist", hosts=frozenset(names)),))

    def kept_away(demand: NodeDemand) -> NodeDemand:
        here = demand.constraint
        both = away if here is None else Constraint("and", operands=(here, away))
        return replace(demand, constraint=both)

    slots = tuple((label, kept_away(demand)) for label, demand in jobspec.slot_where)
    return replace(jobspec, where=kept_away(jobspec.where), slot_where=slots)


@lru_cache(maxsize=4096)
def only(jobspec: Jobspec, label: str) -> Jobspec:
    """Return the jobspec with only the slots of one label and what stands above them."""
    return replace(jobspec, resources=_only(jobspec.resources, label))


def _only(resources: Sequence[Resource], label: str) -> tuple[Resource, ...]:
    found: list[Resource] = []
    for one in resources:
        if one.is_slot:
            found += [one] if one.label == label else []
        elif below := _only(one.with_, label):
            found.append(replace(one, with_=below))
    return tuple(found)
