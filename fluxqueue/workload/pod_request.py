"""Convert a pod spec and the author's wishes to a jobspec: one slot per pod.

Called by ``workload.kinds``, which know how many pods there are. The annotations ``within``,
``spread``, ``exclusive``, ``cores`` and ``prefer-within`` are spellings of the jobspec's own words.
They apply to the plain request and to an author's own (docs/user/jobspec.md has the table).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.levels import NODE_WORDS, Levels, find_level
from fluxqueue.fluxjob.request import CPU, MatchPolicy, unit_of
from fluxqueue.jobspec import Count, Jobspec, Resource, Task
from fluxqueue.jobspec.constraint import all_of
from fluxqueue.jobspec.demand import NodeDemand
from fluxqueue.jobspec.model import LABEL, NODE, RFC14, SLOT, check_storable
from fluxqueue.workload import labels
from fluxqueue.workload.annotations import MAX_INT32, Wishes
from fluxqueue.workload.constraints import read_demand
from fluxqueue.workload.objects import Object
from fluxqueue.workload.pod_bounds import PodBounds, PodShare, Rule, bounds_of, share_out
from fluxqueue.workload.pod_resources import effective_request
from fluxqueue.workload.pods import grace_s
from fluxqueue.workload.site import Site

DEFAULT_PRIORITY = 0
SYSTEM_CLASS = "system-"
"""Prefix of the names of Kubernetes' own PriorityClasses."""
WORKLOAD_CLASS = "workload:"
"""Prefix of the names of WorkloadPriorityClasses among those of PriorityClasses."""
MILLICORES = 1000
_COMMAND = ("pod",)


def build_request(
    spec: Mapping[str, Any],
    wishes: Wishes,
    *,
    count: int,
    deadline_s: int | None,
    where: str,
    site: Site,
) -> Jobspec:
    """Describe ``count`` equal pods with ``spec``.

    ``deadline_s`` is the enforced deadline and wins over the wished duration, because it takes
    effect in any case. A deadline of 0 (which Kubernetes allows) counts as one second.

    Raises
    ------
    InvalidInput
        A value in ``spec`` cannot be read, or two wishes contradict each other. ``where`` of the
        error is the field's path.
    """
    bounds = bounds_of(spec) or PodBounds()
    needs = _needs(spec, bounds, where, site)
    pools = [_pool(name, amount) for name, amount in sorted(needs.items())]
    resources = _resources(wishes, pools, count, site.levels, bounds.rules)
    own = None if wishes.jobspec is None else wishes.jobspec.jobspec
    duration_s = _duration_s(wishes, deadline_s)
    demand = read_demand(spec, where=where)
    jobspec = Jobspec(
        version=RFC14,
        resources=resources,
        tasks=_tasks(resources),
        duration_s=float(duration_s or 0),
        grace_s=grace_s(spec),
        queue=wishes.queue or "",
        where=demand,
        match_policy=wishes.match_policy
        or (None if own is None else own.match_policy)
        or (MatchPolicy.SPREAD if bounds.is_scattered else None),
        is_node_exclusive=_must_take_nodes(resources, wishes),
        prefer_within=_level_name(wishes.prefer_within or "", site.levels),
    )
    return check_storable(jobspec if own is None else _narrowed(jobspec, own, site.levels))


_SHAPING = ("containers", "initContainers", "overhead", "nodeSelector", "affinity", "tolerations")
"""The fields of a pod that say which slots it needs."""


@dataclass(frozen=True, slots=True)
class ShapePart:
    """Equal pods among unequal ones: the label of their slots, their spec, how many."""

    label: str
    spec: Mapping[str, Any]
    count: int


def build_parts(
    parts: Sequence[ShapePart], wishes: Wishes, *, deadline_s: int | None, site: Site
) -> Jobspec:
    """Describe unequal pods that start together: one kind of slots for each part.

    Raises
    ------
    InvalidInput
        As ``build_request``. An own jobspec, or ``spread`` of several parts, is refused.
    """
    if wishes.jobspec is not None:
        hint = "the pods themselves say what each of them needs"
        raise InvalidInput("is not for groups of pods", where=wishes.jobspec.where, hint=hint)
    if wishes.is_spread and len(parts) > 1:
        raise _contradiction(
            wishes, labels.SPREAD, "one pod on each node, and the pods are unequal"
        )
    slots: list[Resource] = []
    demands: list[NodeDemand] = []
    is_scattered = False
    for part in parts:
        bounds = bounds_of(part.spec) or PodBounds()
        is_scattered |= bounds.is_scattered
        needs = _needs(part.spec, bounds, "spec", site)
        pools = tuple(_pool(name, amount) for name, amount in sorted(needs.items()))
        slot = Resource(SLOT, Count(part.count, part.count), pools, label=part.label)
        shares = share_out(part.count, bounds.rules) if len(parts) == 1 else ()
        slots += _divided(slot, shares)
        demands.append(read_demand(part.spec, where="spec"))
    resources = _shaped(tuple(slots), wishes, site.levels)
    is_one = len(set(demands)) == 1
    labelled = zip((part.label for part in parts), demands, strict=True)
    duration_s = _duration_s(wishes, deadline_s)
    found = Jobspec(
        version=RFC14,
        resources=resources,
        tasks=_tasks(resources),
        duration_s=float(duration_s or 0),
        grace_s=max((grace_s(part.spec) for part in parts), default=0),
        queue=wishes.queue or "",
        where=demands[0] if is_one else NodeDemand(),
        slot_where=() if is_one else tuple(labelled),
        match_policy=wishes.match_policy or (MatchPolicy.SPREAD if is_scattered else None),
        is_node_exclusive=_must_take_nodes(resources, wishes),
        prefer_within=_level_name(wishes.prefer_within or "", site.levels),
    )
    return check_storable(found)


def _duration_s(wishes: Wishes, deadline_s: int | None) -> int | None:
    """Return the maximum run time in seconds.

    Kubernetes accepts deadlines beyond an int32, but rows do not. Such a deadline, 68 years, counts
    as the longest one.
    """
    return wishes.duration_s if deadline_s is None else min(MAX_INT32, max(1, deadline_s))


def _pool(name: str, amount: int) -> Resource:
    return Resource(name, Count(amount, amount), unit=unit_of(name))


def _needs(spec: Mapping[str, Any], bounds: PodBounds, where: str, site: Site) -> Mapping[str, int]:
    """Return what one pod needs: what its spec names, and what its claims and volumes add."""
    more = dict(bounds.pools)
    default_cpu_m = 0 if CPU in more else site.default_cpu_m
    needs = effective_request(spec, where=where, default_cpu_m=default_cpu_m)
    return {name: needs.get(name, 0) + more.get(name, 0) for name in {**needs, **more}}


def _resources(
    wishes: Wishes,
    pools: Sequence[Resource],
    count: int,
    levels: Levels,
    rules: Sequence[Rule] = (),
) -> tuple[Resource, ...]:
    """Return the author's own tree or one kind of slots, after the annotations are applied."""
    if wishes.jobspec is not None:
        # Loaded with the jobspec itself (``annotations``).
        from fluxqueue.workload.own_jobspec import apply_jobspec

        found = apply_jobspec(wishes.jobspec, pools, count, levels)
    else:
        # The slot of a workload without pods stays, with a count of 0: it may be scaled up.
        slot = Resource(SLOT, Count(count, count), tuple(pools), label=LABEL)
        found = _divided(slot, share_out(count, rules))
    return _shaped(found, wishes, levels)


def _divided(slot: Resource, shares: Sequence[PodShare]) -> tuple[Resource, ...]:
    """Return slots as their pods bind each other. Without ``shares`` they may be anyhow."""
    if not shares:
        return (slot,)
    return tuple(
        Resource(
            share.level,
            Count(share.count, share.count),
            _divided(replace(slot, count=Count(share.each, share.each)), share.below),
        )
        for share in shares
    )


def _shaped(found: tuple[Resource, ...], wishes: Wishes, levels: Levels) -> tuple[Resource, ...]:
    """Return the tree after the annotations are applied."""
    if wishes.has_whole_cores:
        found = tuple(map(_with_whole_cores, found))
    if wishes.is_spread:
        found = tuple(_spread(one, has_node=False, wishes=wishes) for one in found)
    if wishes.is_exclusive:
        found = tuple(map(_with_whole_nodes, found))
    if wishes.within is None:
        return found
    return _within(found, _level_name(wishes.within, levels), wishes)


def _with_whole_cores(resource: Resource) -> Resource:
    if resource.type == CPU:
        cores = -(-resource.count.minimum // MILLICORES) * MILLICORES
        return replace(resource, count=Count(cores, cores))
    return replace(resource, with_=tuple(map(_with_whole_cores, resource.with_)))


def _spread(resource: Resource, *, has_node: bool, wishes: Wishes) -> Resource:
    """Put one slot on each node: the slots of the author's nodes must be single already."""
    if not resource.is_slot:
        is_below = has_node or resource.type == NODE
        below = (_spread(one, has_node=is_below, wishes=wishes) for one in resource.with_)
        return replace(resource, with_=tuple(below))
    if not has_node:
        return Resource(NODE, resource.count, (replace(resource, count=Count(1, 1)),))
    if resource.count.minimum > 1:
        raise _contradiction(
            wishes,
            labels.SPREAD,
            f"one pod on each node, and {labels.JOBSPEC} asks for "
            f"{resource.count.minimum} slots on one",
        )
    return resource


def _with_whole_nodes(resource: Resource) -> Resource:
    if resource.type == NODE:
        return replace(resource, is_exclusive=True)
    return replace(resource, with_=tuple(map(_with_whole_nodes, resource.with_)))


def _within(resources: tuple[Resource, ...], level: str, wishes: Wishes) -> tuple[Resource, ...]:
    """Put all resources below one vertex of ``level``."""
    if level != NODE:
        return (Resource(level, Count(1, 1), resources),)
    nodes = sum(map(_count_nodes, resources))
    if not nodes:
        return (Resource(NODE, Count(1, 1), resources, is_exclusive=wishes.is_exclusive or None),)
    if nodes > 1 or len(resources) > 1 or resources[0].type != NODE:
        raise _contradiction(
            wishes, labels.WITHIN, f"all on one node, and {nodes} nodes or more are asked for"
        )
    return resources


def _count_nodes(resource: Resource) -> int:
    below = 1 if resource.type == NODE else sum(map(_count_nodes, resource.with_))
    return below * (1 if resource.is_slot else resource.count.minimum)


def _contradiction(wishes: Wishes, key: str, message: str) -> InvalidInput:
    return InvalidInput(
        f"contradicts: {message}", where=wishes.paths.get(key, key), hint="take one of the two away"
    )


def _must_take_nodes(resources: Sequence[Resource], wishes: Wishes) -> bool:
    """Tell whether slots are on nodes that the tree does not name and must take whole."""
    own = wishes.jobspec is not None and wishes.jobspec.jobspec.is_node_exclusive
    return own or (wishes.is_exclusive and not all(map(_names_nodes, resources)))


def _names_nodes(resource: Resource) -> bool:
    if resource.is_slot or resource.type == NODE:
        return resource.type == NODE
    return all(map(_names_nodes, resource.with_))


def _tasks(resources: Sequence[Resource]) -> tuple[Task, ...]:
    """Return one task per slot: the pod."""
    found: dict[str, None] = {}
    stack = list(reversed(resources))
    while stack:
        one = stack.pop()
        if one.is_slot:
            found[one.label] = None
        stack.extend(reversed(one.with_))
    return tuple(Task(_COMMAND, label, {"per_slot": "1"}) for label in found)


def check_levels(wishes: Wishes, levels: Levels) -> None:
    """Refuse levels that this cluster does not have, or that cannot be below each other.

    Only admission calls this. An admitted request stays valid when the levels change.

    Raises
    ------
    InvalidInput
        The error names the annotation, or the place in the jobspec, and the existing levels.
    """
    names = [level.name for level in levels]
    own = () if wishes.jobspec is None else wishes.jobspec.levels
    where = "" if wishes.jobspec is None else f"{wishes.jobspec.where}."
    for one in own:
        _check_level(one.type, f"{where}{one.where}", levels)
        if one.above:
            _check_below(one.type, one.above, f"{where}{one.where}", levels)
    for key, word in ((labels.WITHIN, wishes.within), (labels.PREFER_WITHIN, wishes.prefer_within)):
        if word is not None and word not in NODE_WORDS:
            _check_level(word, wishes.paths.get(key, key), levels)
    if wishes.within is not None and own and _level_name(wishes.within, levels) in names:
        highest = min(
            (one for one in own if not one.above), key=lambda one: _index(one.type, levels)
        )
        _check_below(
            highest.type, wishes.within, wishes.paths.get(labels.WITHIN, labels.WITHIN), levels
        )


def _check_level(word: str, where: str, levels: Levels) -> None:
    if find_level(levels, word) is None:
        known = ", ".join([*(level.name for level in levels), NODE])
        raise InvalidInput(
            f"{word!r} is no level of this cluster",
            where=where,
            value=word,
            hint=f"its levels are {known} (fluxqueue graph --levels shows them); "
            "an administrator names them in FLUXQUEUE_LEVELS",
        )


def _check_below(word: str, above: str, where: str, levels: Levels) -> None:
    if _index(word, levels) <= _index(above, levels):
        order = " > ".join([*(level.name for level in levels), NODE])
        raise InvalidInput(
            f"{word!r} does not stand below {above!r}", where=where, hint=f"the order is {order}"
        )


def _index(word: str, levels: Levels) -> int:
    level = find_level(levels, word)
    return len(levels) if level is None else levels.index(level)


def _level_name(word: str, levels: Levels) -> str:
    """Return the level's name for an author's word. An unknown word is left for the matcher."""
    if word in NODE_WORDS:
        return NODE
    level = find_level(levels, word)
    return word if level is None else level.name


def _narrowed(jobspec: Jobspec, own: Jobspec, levels: Levels) -> Jobspec:
    """Add the constraints of the author's jobspec to those of the pod."""
    where = _and(jobspec.where, own)
    return replace(
        jobspec,
        where=where,
        slot_where=tuple((label, _and(where, own, demand)) for label, demand in own.slot_where),
        prefer_within=jobspec.prefer_within or _level_name(own.prefer_within, levels),
    )


def _and(where: NodeDemand, own: Jobspec, slot: NodeDemand | None = None) -> NodeDemand:
    more = own.constraint if slot is None else slot.constraint
    parts = [one for one in (where.constraint, more) if one is not None]
    return replace(where, constraint=all_of(parts))


class AskedPriority(NamedTuple):
    """A requested priority. ``is_granted``: an administrator's class gives it.

    Otherwise the author wrote it, and only the queue can allow more than 0. A PriorityClass counts
    as granted if the pods use it, because a ResourceQuota can restrict that. The classes of
    Kubernetes itself are open to all users.
    """

    value: int
    is_granted: bool = False


def choose_priority(
    spec: Mapping[str, Any], wishes: Wishes, class_values: Mapping[str, int], default: int
) -> AskedPriority:
    """Choose a priority: the annotations, else the pod's own, else its class's, else ``default``.

    ``class_values`` maps names of PriorityClasses to their values, and the empty name to that of
    the global default. Names of WorkloadPriorityClasses have the prefix ``WORKLOAD_CLASS``. A class
    that is not (yet) among them counts as absent.
    """
    if wishes.priority is not None:
        return AskedPriority(wishes.priority)
    if (name := wishes.priority_class) is not None:
        for known in (f"{WORKLOAD_CLASS}{name}", name):
            if known in class_values:
                return AskedPriority(class_values[known], is_granted=known != name)
    name = spec.get("priorityClassName") or ""
    of_class = class_values.get(name, default)
    # Admission writes 0 on every pod without a class, so 0 does not count as a choice.
    value = int(spec.get("priority") or of_class)
    # The template of a Job may say any number.
    is_granted = name in class_values and value == of_class
    return AskedPriority(value, is_granted and not name.startswith(SYSTEM_CLASS))


def slot_kind(pod: Object) -> str:
    """Return the label of the slots that such a pod needs. Equal needs give equal labels."""
    spec = pod["spec"]
    asked = {key: spec[key] for key in _SHAPING if spec.get(key)}
    for key in ("containers", "initContainers"):
        if key in asked:
            asked[key] = [
                {part: one[part] for part in ("resources", "restartPolicy") if one.get(part)}
                for one in asked[key]
            ]
    return f"pod-{hashlib.sha256(_canonical(asked)).hexdigest()[:8]}"


def _canonical(value: Any) -> bytes:
    return repr(_sorted(value)).encode()


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return sorted((key, _sorted(inner)) for key, inner in value.items())
    return [_sorted(one) for one in value] if isinstance(value, list) else value
