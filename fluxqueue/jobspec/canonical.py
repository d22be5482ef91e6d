"""Between a ``ResourceRequest`` and the canonical jobspec, until the whole cycle speaks the latter.

A slot is the place of one pod; pools carry Kubernetes' resource names and integer base units.
Pure.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from itertools import product

from fluxqueue.errors import InvalidJobspec
from fluxqueue.fluxjob.node import NAME_KEY
from fluxqueue.fluxjob.request import (
    NodeConstraint,
    NodeRequirement,
    Operator,
    ResourceRequest,
    SlotRequest,
)
from fluxqueue.jobspec.constraint import MATCH_EXPRESSIONS, Constraint, all_of
from fluxqueue.jobspec.demand import NodeDemand
from fluxqueue.jobspec.model import NODE, RFC14, SLOT, Count, Jobspec, Resource
from fluxqueue.jobspec.shape import slot_kinds

HOSTNAME = "kubernetes.io/hostname"

Term = tuple[NodeRequirement, ...]


@lru_cache(maxsize=4096)
def jobspec_of(request: ResourceRequest) -> Jobspec:
    """Say what ``request`` asks for as a jobspec."""
    slots = [slot for slot in request.slots if slot.count]
    labels = ["task"] if len(slots) == 1 else [f"task{i}" for i in range(len(slots))]
    resources = tuple(
        _slots(label, slot, request) for label, slot in zip(labels, slots, strict=True)
    )
    if request.within == HOSTNAME:
        resources = (Resource(NODE, Count(1, 1), resources),)
    elif request.within is not None:
        resources = (Resource(request.within, Count(1, 1), resources),)
    demands = [_demand(slot.constraint) for slot in slots]
    return Jobspec(
        version=RFC14,
        resources=resources if slots else (),
        duration_s=float(request.duration_s or 0),
        where=demands[0] if len(set(demands)) == 1 else NodeDemand(),
        slot_where=tuple(zip(labels, demands, strict=True)) if len(set(demands)) > 1 else (),
        match_policy=request.match_policy,
        is_node_exclusive=request.is_exclusive,
    )


def _slots(label: str, slot: SlotRequest, request: ResourceRequest) -> Resource:
    pools = tuple(Resource(name, Count(n, n)) for name, n in slot.resources)
    if request.is_spread:
        inner = Resource(SLOT, Count(1, 1), pools, label=label)
        return Resource(NODE, Count(slot.count, slot.count), (inner,))
    return Resource(SLOT, Count(slot.count, slot.count), pools, label=label)


def _demand(where: NodeConstraint) -> NodeDemand:
    parts = []
    if where.selector:
        pairs = (NodeRequirement(key, Operator.IN, (value,)) for key, value in where.selector)
        parts.append(Constraint(MATCH_EXPRESSIONS, requirements=tuple(pairs)))
    if where.terms:
        terms = [Constraint(MATCH_EXPRESSIONS, requirements=term) for term in where.terms]
        parts.append(terms[0] if len(terms) == 1 else Constraint("or", operands=tuple(terms)))
    return NodeDemand(all_of(parts), where.tolerations)


@lru_cache(maxsize=4096)
def request_of(jobspec: Jobspec) -> ResourceRequest:
    """The same as a ``ResourceRequest``; one that never fits for a shape that it cannot say."""
    try:
        return _request_of(jobspec)
    except InvalidJobspec as refusal:
        never = ((f"a matcher for {refusal.message}", 1),)
        return ResourceRequest((SlotRequest(max(1, jobspec.size), never),))


def _request_of(jobspec: Jobspec) -> ResourceRequest:
    kinds = slot_kinds(jobspec)
    if not kinds:
        return ResourceRequest(slots=(), duration_s=_duration(jobspec))
    above = {kind.above for kind in kinds}
    if len(above) > 1:
        raise _refused("several kinds of slots below different vertices")
    (vertices,) = above
    levels = [(kind, count) for kind, count in vertices if kind != NODE]
    nodes = [count for kind, count in vertices if kind == NODE]
    per_node = kinds[0].count // (kinds[0].node_count or 1)
    if len(levels) > 1 or any(count > 1 for _, count in levels):
        raise _refused("several levels, or several vertices of one")
    if nodes and nodes[0] > 1 and (per_node > 1 or len(kinds) > 1):
        raise _refused("several slots on each of several nodes")
    if any(one.is_exclusive and one.type != NODE for one in _all(jobspec.resources)):
        raise _refused("exclusive levels or pools")
    within = levels[0][0] if levels else None
    is_packed = nodes == [1] and per_node > 1
    if is_packed and within:
        raise _refused("one node below a level")
    return ResourceRequest(
        slots=tuple(
            SlotRequest(kind.count, kind.needs, _node_constraint(kind.where)) for kind in kinds
        ),
        duration_s=_duration(jobspec),
        is_exclusive=jobspec.is_node_exclusive
        or any(one.is_exclusive or False for one in _all(jobspec.resources)),
        is_spread=bool(nodes) and nodes[0] > 1,
        within=HOSTNAME if is_packed else within,
        match_policy=jobspec.match_policy,
    )


def _all(resources: tuple[Resource, ...]) -> list[Resource]:
    return [one for top in resources for one in (top, *_all(top.with_))]


def _duration(jobspec: Jobspec) -> int | None:
    return int(jobspec.duration_s) or None


def _node_constraint(demand: NodeDemand) -> NodeConstraint:
    terms = () if demand.constraint is None else tuple(_terms(demand.constraint))
    if demand.constraint is not None and not terms:
        terms = ((NodeRequirement(NAME_KEY, Operator.IN, ()),),)
    # A term without expressions meets every node; Kubernetes' own meets none.
    terms = () if () in terms else terms
    return NodeConstraint(terms=terms, tolerations=demand.tolerations)


def _terms(constraint: Constraint) -> list[Term]:
    match constraint.operator:
        case "":
            return [()]
        case "fluxqueue/matchExpressions":
            return [constraint.requirements]
        case "hostlist":
            hosts = tuple(sorted(constraint.hosts))
            return [(NodeRequirement(NAME_KEY, Operator.IN, hosts),)]
        case "properties":
            return [tuple(map(_property, constraint.names))]
        case "or":
            return [term for part in constraint.operands for term in _terms(part)]
        case "and":
            parts = product(*map(_terms, constraint.operands))
            return [tuple(one for term in terms for one in term) for terms in parts]
    raise _refused(f"the constraint {constraint.operator!r}")


def _property(name: str) -> NodeRequirement:
    if name.startswith("^"):
        return NodeRequirement(name[1:], Operator.DOES_NOT_EXIST)
    return NodeRequirement(name, Operator.EXISTS)


def _refused(what: str) -> InvalidJobspec:
    return InvalidJobspec(what, where="jobspec")


def without_queue(jobspec: Jobspec, default_duration_s: int | None) -> Jobspec:
    """As it is matched: equal requests of two queues are one, with the queue's duration."""
    duration_s = jobspec.duration_s or float(default_duration_s or 0)
    return replace(jobspec, queue="", duration_s=duration_s)
