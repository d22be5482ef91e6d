"""The annotation ``fluxqueue/jobspec``: an author's own Flux resources section for a workload.

Called by ``workload.annotations`` (to read it) and ``workload.shape`` (to apply it). Pods remain
what they are, so the jobspec can ask for more room per pod and for a shape, not for another number
of pods. What of a jobspec means something for pods:

- ``[level ->] [node ->] slot -> core, memory, gpu, ...``: slots on ``node`` vertices. ``level`` (a
  zone, a rack, a node label) with count 1 keeps all slots below one vertex of it; one slot on each
  of several nodes spreads; an exclusive node is taken whole;
- ``slot -> node -> core, ...``: each slot has a whole node of its own, as slots are exclusive;
- ``attributes.system``: ``duration``, ``queue``, and a ``hostlist`` constraint.

Everything else is refused, never dropped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from fluxqueue.errors import InvalidJobspec
from fluxqueue.fluxjob.node import NAME_KEY
from fluxqueue.fluxjob.request import (
    CPU,
    MEMORY,
    NodeConstraint,
    NodeRequirement,
    Operator,
    ResourceRequest,
    SlotRequest,
)
from fluxqueue.jobspec import Jobspec, Resource, document, parse_document
from fluxqueue.workload import labels
from fluxqueue.workload.quantity import MAX_UNITS

_NODE, _CLUSTER, _CORE, _GPU = "node", "cluster", "core", "gpu"
_DEFAULT_GPU = "nvidia.com/gpu"
_MAX_BYTES = 64 * 1024
_UNITS = {
    "B": 1,
    **{f"{p}B": 1000 ** (i + 1) for i, p in enumerate("KMGT")},
    **{f"{p}iB": 1024 ** (i + 1) for i, p in enumerate("KMGT")},
    **{f"{p}i": 1024 ** (i + 1) for i, p in enumerate("KMGT")},
}
_SHAPES = "supported are [level ->] [node ->] slot -> [node ->] core, memory, gpu"


@dataclass(frozen=True, slots=True)
class OwnJobspec:
    """What was understood: ``slots`` in all, what each holds, and how they lie.

    ``per_slot`` maps resource names (``gpu`` is still nameless) to base units; ``hosts`` is None
    where any node will do; ``where`` is the annotation's path.
    """

    where: str
    slots: int
    per_slot: tuple[tuple[str, int], ...]
    is_exclusive: bool = False
    is_spread: bool = False
    within: str | None = None
    hosts: tuple[str, ...] | None = None
    duration_s: int | None = None
    queue: str | None = None


def read_jobspec(text: str, where: str) -> OwnJobspec:
    """Read the annotation's text: YAML or JSON, a whole jobspec or its resources alone.

    Raises
    ------
    InvalidJobspec
        It is no jobspec, or asks for something that pods cannot be given; ``where`` of the error
        is the annotation's path and the place within.
    """
    try:
        jobspec = parse_document(_complete(document.load(text, InvalidJobspec, _MAX_BYTES)))
        return _understand(jobspec, where)
    except InvalidJobspec as error:
        place = f"{where}.{error.where}" if error.where else where
        raise InvalidJobspec(
            error.message, where=place, value=error.value, hint=error.hint
        ) from error


def _complete(top: Any) -> Any:
    """Let an author leave out what only matters to Flux itself."""
    if isinstance(top, list):
        top = {"resources": top}
    if not isinstance(top, dict):
        return top
    return {"version": 1, "tasks": [], "attributes": {}, **top}


def apply_jobspec(request: ResourceRequest, own: OwnJobspec) -> ResourceRequest:
    """Let ``own`` widen what the pods of ``request`` get, and give it its shape.

    Each pod needs room for its own request as well, so the larger amount of the two counts.

    Raises
    ------
    InvalidJobspec
        The number of slots is not the number of pods that run at once.
    """
    if own.slots != request.size:
        raise InvalidJobspec(
            f"asks for {own.slots} slots and the workload runs {request.size} pods at once",
            where=own.where,
            value=own.slots,
            hint="one slot is one pod",
        )
    return replace(
        request,
        slots=tuple(_widen(slot, own) for slot in request.slots),
        is_exclusive=request.is_exclusive or own.is_exclusive,
        is_spread=request.is_spread or own.is_spread,
        within=request.within or own.within,
    )


def _widen(slot: SlotRequest, own: OwnJobspec) -> SlotRequest:
    needs = slot.needs
    for name, amount in own.per_slot:
        real = _gpu_name(needs) if name == _GPU else name
        needs[real] = max(needs.get(real, 0), amount)
    constraint = slot.constraint
    if own.hosts is not None:
        constraint = _only_on(constraint, own.hosts)
    return replace(slot, resources=tuple(sorted(needs.items())), constraint=constraint)


def _gpu_name(needs: Mapping[str, int]) -> str:
    """A gpu is the kind of gpu that the pod itself asks for."""
    own = [name for name in needs if name.endswith("/gpu")]
    return own[0] if len(own) == 1 else _DEFAULT_GPU


def _only_on(constraint: NodeConstraint, hosts: tuple[str, ...]) -> NodeConstraint:
    named = NodeRequirement(NAME_KEY, Operator.IN, hosts)
    terms = constraint.terms or ((),)
    return replace(constraint, terms=tuple((*term, named) for term in terms))


def _understand(jobspec: Jobspec, where: str) -> OwnJobspec:
    above, slot, place = _descend(jobspec.resources)
    slots, found = _read_above(above, _fixed(slot, place))
    inside, place = slot.with_, f"{place}.with"
    if len(inside) == 1 and inside[0].type == _NODE:
        if found:
            _refuse("has nodes both above and inside its slot", place)
        if _fixed(inside[0], f"{place}[0]") != 1:
            _refuse("a slot is a pod, and a pod runs on one node", f"{place}[0].count")
        inside, place = inside[0].with_, f"{place}[0].with"
        found = {"is_exclusive": True, "is_spread": True}
    hosts = None
    if jobspec.constraint is not None and jobspec.constraint.operator:
        if jobspec.constraint.operator != "hostlist":
            at = f"attributes.system.constraints.{jobspec.constraint.operator}"
            _refuse("is not supported", at, "use hostlist here, or node affinity in the pod")
        hosts = tuple(sorted(jobspec.constraint.hosts))
    return OwnJobspec(
        where=where,
        slots=slots,
        per_slot=_amounts(inside, place),
        within=next((r.type for r, _ in above if r.type not in {_NODE, _CLUSTER}), None)
        or found.pop("within", None),
        hosts=hosts,
        duration_s=math.ceil(jobspec.duration_s) or None,
        queue=jobspec.queue or None,
        **found,
    )


def _descend(
    resources: Sequence[Resource],
) -> tuple[list[tuple[Resource, str]], Resource, str]:
    """Walk down to the slot; every vertex on the way must be the only one of its level."""
    above: list[tuple[Resource, str]] = []
    place = "resources"
    while True:
        if len(resources) != 1:
            _refuse("must have one resource on the way to its slot", place, _SHAPES)
        here, at = resources[0], f"{place}[0]"
        if here.is_slot:
            return above, here, at
        above.append((here, at))
        resources, place = here.with_, f"{at}.with"


def _read_above(above: Sequence[tuple[Resource, str]], per_node: int) -> tuple[int, dict[str, Any]]:
    """Count the slots, and say what the node vertex above them means."""
    levels = [(r, at) for r, at in above if r.type not in {_NODE, _CLUSTER}]
    nodes = [(r, at) for r, at in above if r.type == _NODE]
    if len(levels) > 1 or len(nodes) > 1 or (nodes and above[-1] != nodes[0]):
        _refuse("has more levels than can be told apart", above[0][1], _SHAPES)
    for resource, at in above:
        if resource.type != _NODE and _fixed(resource, at) != 1:
            _refuse("must be 1: all slots lie below one vertex", f"{at}.count")
        if resource.type != _NODE and resource.is_exclusive:
            _refuse("only nodes can be taken whole", f"{at}.exclusive")
    if not nodes:
        return per_node, {}
    node, at = nodes[0]
    count = _fixed(node, at)
    found: dict[str, Any] = {"is_exclusive": bool(node.is_exclusive)}
    if per_node == 1:
        found["is_spread"] = count > 1
    elif count == 1 and not levels:
        found["within"] = labels.HOSTNAME
    else:
        _refuse("several slots on each of several nodes are not supported", at, _SHAPES)
    return count * per_node, found


def _amounts(resources: Sequence[Resource], place: str) -> tuple[tuple[str, int], ...]:
    total: dict[str, int] = {}
    for number, resource in enumerate(resources):
        at = f"{place}[{number}]"
        name, scale = _name_and_scale(resource, at)
        if resource.with_:
            _refuse("must have nothing inside", f"{at}.with", _SHAPES)
        amount = total.get(name, 0) + _fixed(resource, at) * scale
        total[name] = min(MAX_UNITS, amount)
    return tuple(sorted(total.items()))


def _name_and_scale(resource: Resource, at: str) -> tuple[str, int]:
    if resource.type == _CORE:
        return CPU, 1000
    if resource.type == MEMORY:
        if resource.unit not in _UNITS:
            known = ", ".join(_UNITS)
            _refuse(f"{resource.unit!r} is no unit", f"{at}.unit", f"must be one of {known}")
        return MEMORY, _UNITS[resource.unit]
    if resource.type != _GPU and "/" not in resource.type:
        _refuse(
            f"{resource.type!r} is not supported inside a slot",
            f"{at}.type",
            "core, memory, gpu, or an extended resource such as example.com/fpga",
        )
    return resource.type, 1


def _fixed(resource: Resource, at: str) -> int:
    if resource.count.minimum != resource.count.maximum:
        _refuse("must be one number: the number of pods is fixed", f"{at}.count")
    if resource.count.minimum < 1:
        _refuse("must be at least 1", f"{at}.count")
    return resource.count.minimum


def _refuse(message: str, where: str, hint: str = "") -> NoReturn:
    raise InvalidJobspec(message, where=where, hint=hint)
