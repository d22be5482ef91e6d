"""Stored requests of this and earlier versions, read as jobspecs.

They are in rows and in ``FluxJob.spec.jobspec``. Rows of jobs that an older version queued may have
the former form: a mapping with ``slots`` (count, resources, selector, terms, tolerations). ``db``
and the command line call it. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluxqueue.errors import InvalidJobspec
from fluxqueue.fluxjob.levels import DEFAULT_LEVELS, NODE_WORDS, find_level
from fluxqueue.fluxjob.request import (
    MatchPolicy,
    NodeRequirement,
    Operator,
    Toleration,
    unit_of,
)
from fluxqueue.jobspec.constraint import MATCH_EXPRESSIONS, Constraint, all_of
from fluxqueue.jobspec.demand import NodeDemand
from fluxqueue.jobspec.model import NODE, RFC14, SLOT, Count, Jobspec, Resource
from fluxqueue.jobspec.parse import parse_document


def read_stored(data: Mapping[str, Any]) -> Jobspec:
    """Read a stored request that any version wrote.

    Raises
    ------
    InvalidJobspec
        It has neither form.
    """
    if "resources" in data:
        return parse_document(data, is_stored=True)
    try:
        return _read_former(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidJobspec(
            f"is neither a jobspec nor the form before: {error!r}", where="jobspec"
        ) from error


def _read_former(data: Mapping[str, Any]) -> Jobspec:
    slots = [slot for slot in data["slots"] if slot["count"]] or data["slots"][-1:]
    labels = ["task"] if len(slots) == 1 else [f"task{i}" for i in range(len(slots))]
    demands = [_demand(slot) for slot in slots]
    is_spread = bool(data.get("spread"))
    resources = tuple(
        _slots(label, slot, is_spread) for label, slot in zip(labels, slots, strict=True)
    )
    if slots and data.get("within"):
        resources = (Resource(_level(data["within"]), Count(1, 1), resources),)
    is_one = len(set(demands)) == 1
    return Jobspec(
        version=RFC14,
        resources=resources,
        duration_s=float(data.get("duration_s") or 0),
        where=demands[0] if is_one else NodeDemand(),
        slot_where=() if is_one else tuple(zip(labels, demands, strict=True)),
        match_policy=MatchPolicy(data["match_policy"]) if data.get("match_policy") else None,
        is_node_exclusive=bool(data.get("exclusive")),
    )


def _slots(label: str, slot: Mapping[str, Any], is_spread: bool) -> Resource:
    count = Count(int(slot["count"]), int(slot["count"]))
    needs = sorted((name, int(amount)) for name, amount in slot["resources"].items())
    pools = tuple(Resource(name, Count(n, n), unit=unit_of(name)) for name, n in needs)
    if is_spread:
        return Resource(NODE, count, (Resource(SLOT, Count(1, 1), pools, label=label),))
    return Resource(SLOT, count, pools, label=label)


def _level(word: str) -> str:
    """Return the level for a former word.

    Levels were named by short words and labels, because they could not be configured.
    """
    if word in NODE_WORDS:
        return NODE
    level = find_level(DEFAULT_LEVELS, word)
    return word if level is None else level.name


def _demand(slot: Mapping[str, Any]) -> NodeDemand:
    parts: list[Constraint] = []
    if selector := sorted(slot.get("selector", {}).items()):
        parts.append(_all(tuple(NodeRequirement(k, Operator.IN, (v,)) for k, v in selector)))
    if terms := slot.get("terms"):
        read = [
            _all(tuple(NodeRequirement(k, Operator(op), tuple(v)) for k, op, v in term))
            for term in terms
        ]
        parts.append(read[0] if len(read) == 1 else Constraint("or", operands=tuple(read)))
    return NodeDemand(all_of(parts), tuple(Toleration(*t) for t in slot.get("tolerations", ())))


def _all(requirements: tuple[NodeRequirement, ...]) -> Constraint:
    return Constraint(MATCH_EXPRESSIONS, requirements=requirements)
