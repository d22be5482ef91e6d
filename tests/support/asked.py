"""Requests for tests, in few words: slots, how they lie, and where they may go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fluxqueue.fluxjob.request import MatchPolicy, NodeRequirement, Operator, Toleration
from fluxqueue.jobspec import Constraint, Count, Jobspec, NodeDemand, Resource
from fluxqueue.jobspec.constraint import MATCH_EXPRESSIONS, all_of
from fluxqueue.jobspec.demand import ANYWHERE, Bundle


@dataclass(frozen=True)
class Slots:
    """``count`` equal slots, what each takes (base units), and where they may go."""

    count: int
    needs: Bundle
    where: NodeDemand = ANYWHERE


def demand(
    selector: Sequence[tuple[str, str]] = (),
    terms: Sequence[tuple[NodeRequirement, ...]] = (),
    tolerations: tuple[Toleration, ...] = (),
) -> NodeDemand:
    """What a node must be like: all of ``selector``, one of ``terms``, its taints tolerated."""
    pairs = tuple(NodeRequirement(key, Operator.IN, (value,)) for key, value in selector)
    parts = [Constraint(MATCH_EXPRESSIONS, requirements=pairs)] if pairs else []
    if terms:
        either = tuple(Constraint(MATCH_EXPRESSIONS, requirements=term) for term in terms)
        parts.append(Constraint("or", operands=either))
    return NodeDemand(all_of(parts), tolerations)


def asked(
    slots: Sequence[Slots],
    duration_s: int | None = None,
    is_exclusive: bool = False,
    is_spread: bool = False,
    within: str | None = None,
    match_policy: MatchPolicy | None = None,
) -> Jobspec:
    """A jobspec of ``slots``: side by side, on nodes of their own, below one vertex."""
    slots = [one for one in slots if one.count] or list(slots[-1:])
    labels = [f"s{number}" for number in range(len(slots))]
    resources = tuple(
        _resource(label, one, is_spread) for label, one in zip(labels, slots, strict=True)
    )
    if within is not None and slots:
        resources = (Resource(within, Count(1, 1), resources),)
    return Jobspec(
        9999,
        resources,
        duration_s=float(duration_s or 0),
        where=slots[0].where if len({one.where for one in slots}) == 1 else ANYWHERE,
        slot_where=tuple((label, one.where) for label, one in zip(labels, slots, strict=True))
        if len({one.where for one in slots}) > 1
        else (),
        match_policy=match_policy,
        is_node_exclusive=is_exclusive,
    )


def _resource(label: str, slots: Slots, is_spread: bool) -> Resource:
    pools = tuple(Resource(name, Count(n, n)) for name, n in slots.needs)
    if is_spread:
        one = Resource("slot", Count(1, 1), pools, label=label)
        return Resource("node", Count(slots.count, slots.count), (one,))
    return Resource("slot", Count(slots.count, slots.count), pools, label=label)
