"""The annotation ``fluxqueue/jobspec``: an author's own Flux jobspec for a workload.

Called by ``workload.annotations`` (to read it) and ``workload.pod_request`` (to apply it). Pods
stay as they are. So the jobspec can ask for more resources per pod and for a shape, but not for
another number of pods. These parts of a jobspec apply to pods, in any order of depth:

- levels (``rack[2] -> node[4] -> slot[2]``), each with a count, any of them exclusive
- several kinds of slots side by side (a launcher and its workers). The slots in the order of the
  document are the pods in the order of their indexes
- in a slot ``core``, ``memory``, ``gpu``, Kubernetes resources by their names, in units, or
  ``exclusive``: all of it that the node has
- ``slot -> node -> core, ...``: each slot has a whole node of its own, as slots are exclusive
- ``attributes.system``: ``duration``, ``queue``, ``constraints`` (all but ``ranks``), and of
  ``fluxqueue`` the parts that the pod does not decide

Everything else is refused, never dropped. The result is canonical: base units, Kubernetes' names.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NoReturn

from fluxqueue.errors import InvalidJobspec, TooComplex
from fluxqueue.fluxjob.levels import Levels, find_level
from fluxqueue.fluxjob.request import CPU, EPHEMERAL_STORAGE, MEMORY, PODS, unit_of
from fluxqueue.jobspec import Constraint, Count, Jobspec, Resource, document
from fluxqueue.jobspec.extension import KEY
from fluxqueue.jobspec.model import NODE
from fluxqueue.jobspec.parse import parse_document
from fluxqueue.jobspec.shape import moldable_counts, of_size
from fluxqueue.workload.quantity import MAX_UNITS

_CLUSTER, _CORE, _GPU = "cluster", "core", "gpu"
_DEFAULT_GPU = "nvidia.com/gpu"
_MAX_BYTES = 64 * 1024
_KEPT, _KEPT_MAX_CHARS = 256, 16 * 1024
"""How many jobspecs are kept after they were read, and the longest text of these.

A workload is read several times: for its FluxJob, its row, its priority. A text of one hundred
kinds of slots takes 4 ms. All that the controller takes in at once fit."""
_BYTE_UNITS = {
    "B": 1,
    **{f"{p}B": 1000 ** (i + 1) for i, p in enumerate("KMGT")},
    **{f"{p}iB": 1024 ** (i + 1) for i, p in enumerate("KMGT")},
    **{f"{p}i": 1024 ** (i + 1) for i, p in enumerate("KMGT")},
}
_INSIDE = "core, memory, gpu, or a Kubernetes resource such as example.com/fpga"
_ABOVE = "a level of the cluster, node or slot"
_PINNED = frozenset({"socket", "numanode", "l3cache", "pu"})


@dataclass(frozen=True, slots=True)
class NamedLevel:
    """A vertex above the nodes: its type, its place in the document, its parent's type."""

    type: str
    where: str
    above: str = ""


@dataclass(frozen=True, slots=True)
class OwnJobspec:
    """A jobspec that was read.

    ``jobspec`` is canonical, except for two things. The pod determines the kind of its gpus, and
    levels keep the author's words. ``where`` is the annotation's path. ``levels`` are the named
    levels, in the order of the document.
    """

    where: str
    jobspec: Jobspec
    levels: tuple[NamedLevel, ...] = ()

    @property
    def duration_s(self) -> int | None:
        """Return whole seconds, or None if the jobspec has no duration."""
        return math.ceil(self.jobspec.duration_s) or None


def read_jobspec(text: str, where: str) -> OwnJobspec:
    """Read the annotation's text: YAML or JSON, a whole jobspec or its resources alone.

    Raises
    ------
    InvalidJobspec
        It is no jobspec, or asks for something that pods cannot be given. ``where`` of the error is
        the annotation's path and the place within.
    """
    return (_read_kept if len(text) <= _KEPT_MAX_CHARS else _read)(text, where)


def _read(text: str, where: str) -> OwnJobspec:
    try:
        jobspec = parse_document(_complete(document.load(text, InvalidJobspec, _MAX_BYTES)))
        _refuse_what_the_pod_says(jobspec)
        return OwnJobspec(
            where=where,
            jobspec=replace(jobspec, resources=_canonical(jobspec.resources, "resources")),
            levels=tuple(_levels(jobspec.resources, "resources")),
        )
    except InvalidJobspec as error:
        place = f"{where}.{error.where}" if error.where else where
        raise InvalidJobspec(
            error.message, where=place, value=error.value, hint=error.hint
        ) from error


_read_kept = lru_cache(maxsize=_KEPT)(_read)


def _complete(top: Any) -> Any:
    """Add the parts that only matter to Flux itself, and that an author may leave out."""
    if isinstance(top, list):
        top = {"resources": top}
    if not isinstance(top, dict):
        return top
    return {"version": 1, "tasks": [], "attributes": {}, **top}


def apply_jobspec(
    own: OwnJobspec, pools: Sequence[Resource], count: int, levels: Levels
) -> tuple[Resource, ...]:
    """Return the tree of ``own`` for ``count`` pods that each ask for ``pools``.

    Each pod also needs capacity for its own request, so the larger amount of the two counts. Counts
    that are not fixed become the largest that give so many slots, from the top down.

    Raises
    ------
    InvalidJobspec
        The number of slots is not the number of pods that run at once.
    """
    try:
        fixed = of_size(own.jobspec, count)
    except TooComplex as error:
        raise TooComplex(error.message, where=own.where, hint=error.hint) from error
    if fixed is None:
        raise InvalidJobspec(
            f"asks for {_slots_of(own.jobspec)} slots and the workload runs {count} pods at once",
            where=own.where,
            value=own.jobspec.size,
            hint="one slot is one pod",
        )
    return tuple(_widen(resource, pools, levels) for resource in fixed.resources)


def _slots_of(jobspec: Jobspec) -> str:
    """Return the number of slots, or the minimum if the jobspec leaves it open."""
    return f"at least {jobspec.size}" if moldable_counts(jobspec) else str(jobspec.size)


def to_canonical(jobspec: Jobspec, levels: Levels) -> Jobspec:
    """Convert any jobspec that pods can be given to base units and Kubernetes' names.

    Raises
    ------
    InvalidJobspec
        It asks for something else. The error names the place.
    """
    found = _canonical(jobspec.resources, "resources")
    return replace(jobspec, resources=tuple(_widen(one, (), levels) for one in found))


def _widen(resource: Resource, pools: Sequence[Resource], levels: Levels) -> Resource:
    if not resource.is_slot:
        level = find_level(levels, resource.type)
        return replace(
            resource,
            type=resource.type if level is None else level.name,
            with_=tuple(_widen(child, pools, levels) for child in resource.with_),
        )
    found = {pool.type: pool for pool in pools}
    for asked in resource.with_:
        name = _gpu_name(found) if asked.type == _GPU else asked.type
        own = found.get(name)
        amount = max(asked.count.minimum, 0 if own is None else own.count.minimum)
        found[name] = replace(asked, type=name, count=Count(amount, amount))
    return replace(resource, with_=tuple(found[name] for name in sorted(found)))


def _gpu_name(names: Mapping[str, Resource]) -> str:
    """Return the kind of gpu that the pod itself asks for."""
    own = [name for name in names if name.endswith("/gpu")]
    return own[0] if len(own) == 1 else _DEFAULT_GPU


def _canonical(resources: Sequence[Resource], place: str) -> tuple[Resource, ...]:
    """Return levels, nodes and slots unchanged, without the cluster above them."""
    if not resources:
        _refuse("holds no slot", place, _ABOVE)
    found: list[Resource] = []
    for number, resource in enumerate(resources):
        at = f"{place}[{number}]"
        _check_count(resource, at)
        if resource.is_slot:
            found.append(_slot(resource, at))
        elif resource.type == _CLUSTER:
            if resource.count != Count(1, 1) or resource.is_exclusive:
                _refuse("there is one cluster, and it is shared", at)
            found += _canonical(resource.with_, f"{at}.with")
        else:
            _check_above(resource, at)
            below = _canonical(resource.with_, f"{at}.with")
            if resource.type == NODE:
                _check_below_node(resource, f"{at}.with")
            found.append(replace(resource, with_=below, unit="", id=""))
    return tuple(found)


def _check_above(resource: Resource, at: str) -> None:
    if resource.type in _PINNED:
        hint = "Kubernetes pins sockets and NUMA zones from within the node; ask for cores"
        _refuse(f"a {resource.type} cannot be given from outside", f"{at}.type", hint)
    if resource.type in {_CORE, _GPU, MEMORY, CPU, EPHEMERAL_STORAGE, PODS}:
        _refuse(f"{resource.type} must stand inside a slot", f"{at}.type", _ABOVE)


def _check_below_node(node: Resource, place: str) -> None:
    for level in _levels(node.with_, place):
        _refuse(f"{level.type!r} cannot stand below a node", level.where, _INSIDE)
    if _named(node.with_, NODE):
        _refuse("a node holds slots, and a slot is a pod on one node", place)


def _named(resources: Sequence[Resource], kind: str) -> bool:
    return any(one.type == kind or _named(one.with_, kind) for one in resources)


def _levels(resources: Sequence[Resource], place: str, above: str = "") -> Iterator[NamedLevel]:
    """Yield the levels above nodes and slots."""
    for number, resource in enumerate(resources):
        if resource.is_slot:
            continue
        at = f"{place}[{number}]"
        is_level = resource.type not in {NODE, _CLUSTER}
        if is_level:
            yield NamedLevel(resource.type, f"{at}.type", above)
        yield from _levels(resource.with_, f"{at}.with", resource.type if is_level else above)


def _slot(slot: Resource, at: str) -> Resource:
    """Return the slot with its pools. A node of its own goes above it and is taken whole."""
    if slot.is_exclusive is False:
        _refuse("a slot is its pod's alone", f"{at}.exclusive")
    inside, place = slot.with_, f"{at}.with"
    plain = replace(slot, is_exclusive=None, unit="", id="")
    if len(inside) == 1 and inside[0].type == NODE:
        if _fixed(inside[0], f"{place}[0]") != 1:
            _refuse("a slot is a pod, and a pod runs on one node", f"{place}[0].count")
        pools = _pools(inside[0].with_, f"{place}[0].with")
        one = replace(plain, count=Count(1, 1), with_=pools)
        return Resource(NODE, slot.count, (one,), is_exclusive=True)
    return replace(plain, with_=_pools(inside, place))


def _pools(resources: Sequence[Resource], place: str) -> tuple[Resource, ...]:
    found: dict[str, Resource] = {}
    for number, resource in enumerate(resources):
        at = f"{place}[{number}]"
        pool = _pool(resource, at)
        if pool.type in found:
            _refuse(f"{pool.type!r} stands twice in one slot", f"{at}.type", "add them up")
        found[pool.type] = pool
    return tuple(found.values())


def _pool(resource: Resource, at: str) -> Resource:
    name, scale, unit = _name_and_scale(resource, at)
    if resource.with_:
        _refuse("must have nothing inside", f"{at}.with", "[level ->] [node ->] slot -> core, ...")
    if resource.is_exclusive is False:
        hint = "leave it out, or say true: all of it that the node has"
        _refuse("what is in a slot is its pod's alone", f"{at}.exclusive", hint)
    amount = min(MAX_UNITS, _fixed(resource, at) * scale)
    return Resource(name, Count(amount, amount), unit=unit, is_exclusive=resource.is_exclusive)


def _name_and_scale(resource: Resource, at: str) -> tuple[str, int, str]:
    """Return Kubernetes' name, base units in one, and the base unit."""
    kind = resource.type
    if kind == _CORE or (kind == CPU and not resource.unit):
        return CPU, 1000, "m"
    if kind == CPU:
        if resource.unit != "m":
            _refuse(f"{resource.unit!r} is no unit", f"{at}.unit", "m (millicores), or none")
        return CPU, 1, "m"
    if unit_of(kind) == "B":
        if resource.unit not in _BYTE_UNITS:
            known = ", ".join(_BYTE_UNITS)
            _refuse(f"{resource.unit!r} is no unit", f"{at}.unit", f"must be one of {known}")
        return kind, _BYTE_UNITS[resource.unit], "B"
    if kind not in {_GPU, PODS} and "/" not in kind:
        _refuse(f"{kind!r} is not supported inside a slot", f"{at}.type", _INSIDE)
    return kind, 1, ""


def _refuse_what_the_pod_says(jobspec: Jobspec) -> None:
    """Refuse what only the pod can widen: a jobspec can only narrow where its pods go."""
    if jobspec.constraint is not None:
        _refuse_ranks(jobspec.constraint, "attributes.system.constraints")
    ours = f"attributes.system.{KEY}"
    for demand, at in (
        (jobspec.where, ours),
        *((demand, f"{ours}.slots.{label}") for label, demand in jobspec.slot_where),
    ):
        if demand.tolerations:
            _refuse("are the pod's to say", f"{at}.tolerations", "spec.tolerations of the pod")
        if demand.numa:
            _refuse("comes from the pod's containers", f"{at}.numa", "leave it out")
        if demand.constraint is not None:
            _refuse_ranks(demand.constraint, f"{at}.constraints")


def _refuse_ranks(constraint: Constraint, at: str) -> None:
    if constraint.operator == "ranks":
        _refuse("nodes of a Kubernetes cluster have no ranks", f"{at}.ranks", "use hostlist")
    for number, part in enumerate(constraint.operands):
        _refuse_ranks(part, f"{at}.{constraint.operator}[{number}]")


def _fixed(resource: Resource, at: str) -> int:
    if not resource.count.is_fixed:
        _refuse("must be one number: pods ask for fixed amounts", f"{at}.count")
    _check_count(resource, at)
    return resource.count.minimum


def _check_count(resource: Resource, at: str) -> None:
    if resource.count.minimum < 1:
        _refuse("must be at least 1", f"{at}.count")


def _refuse(message: str, where: str, hint: str = "") -> NoReturn:
    raise InvalidJobspec(message, where=where, hint=hint)
