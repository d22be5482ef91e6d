"""A jobspec as the document that ``parse`` reads: plain data for JSON and YAML.

``workload`` (for the FluxJob's ``spec.jobspec``) and all code that stores a request call it.
Defaults are left out, so that equal jobspecs give equal documents. Pure.
"""

from __future__ import annotations

from typing import Any

import orjson

from fluxqueue.errors import InvalidJobspec
from fluxqueue.fluxjob import hostlist
from fluxqueue.fluxjob.request import Toleration
from fluxqueue.jobspec import idset
from fluxqueue.jobspec.constraint import Constraint, all_of
from fluxqueue.jobspec.demand import ANYWHERE, NodeDemand
from fluxqueue.jobspec.extension import KEY
from fluxqueue.jobspec.model import UNLIMITED, Count, Jobspec, Resource, Task


def render(jobspec: Jobspec) -> dict[str, Any]:
    """Return ``jobspec`` as plain data. ``parse_document`` is the inverse.

    Raises
    ------
    InvalidJobspec
        A text contains a NUL character, which no row can hold (JSON and annotations can).
    """
    system: dict[str, Any] = {}
    if jobspec.duration_s:
        whole = int(jobspec.duration_s)
        system["duration"] = whole if whole == jobspec.duration_s else jobspec.duration_s
    if jobspec.queue:
        system["queue"] = jobspec.queue
    if jobspec.constraint is not None:
        system["constraints"] = render_constraint(jobspec.constraint)
    if ours := _extension(jobspec):
        system[KEY] = ours
    attributes: dict[str, Any] = {"system": {**jobspec.system, **system}}
    if jobspec.user is not None:
        attributes["user"] = jobspec.user
    document = {
        "version": jobspec.version,
        "resources": [_resource(one) for one in jobspec.resources],
        "tasks": [_task(one) for one in jobspec.tasks],
        "attributes": attributes,
    }
    # Search the text: this is cheaper than a walk, and it covers every field.
    if b"\\u0000" in orjson.dumps(document, default=str):
        raise InvalidJobspec(
            "a text has a NUL character in it", where="jobspec", hint="leave it out"
        )
    return document


def render_constraint(constraint: Constraint) -> dict[str, Any]:
    """Return one constraint as RFC 31 writes it."""
    match constraint.operator:
        case "":
            return {}
        case "properties":
            operands: list[Any] = list(constraint.names)
        case "hostlist":
            operands = [hostlist.compress(sorted(constraint.hosts))] if constraint.hosts else []
        case "ranks":
            operands = [idset.encode(constraint.ranks)] if constraint.ranks else []
        case "fluxqueue/matchExpressions":
            operands = [
                {"key": r.key, "operator": str(r.operator)}
                | ({"values": list(r.values)} if r.values else {})
                for r in constraint.requirements
            ]
        case _:
            operands = [render_constraint(one) for one in constraint.operands]
    return {constraint.operator: operands}


def _extension(jobspec: Jobspec) -> dict[str, Any]:
    found = _demand(jobspec.where, ANYWHERE)
    if jobspec.match_policy is not None:
        found["match-policy"] = str(jobspec.match_policy)
    if jobspec.is_node_exclusive:
        found["exclusive"] = True
    if jobspec.prefer_within:
        found["prefer-within"] = jobspec.prefer_within
    if jobspec.grace_s:
        found["grace"] = jobspec.grace_s
    if jobspec.slot_where:
        found["slots"] = {
            label: _slot_demand(demand, jobspec.where) for label, demand in jobspec.slot_where
        }
    return found


def _slot_demand(demand: NodeDemand, common: NodeDemand) -> dict[str, Any]:
    found = _demand(demand, common)
    own = _beyond(demand.constraint, common.constraint)
    if own is not None:
        found["constraints"] = render_constraint(own)
    return found


def _beyond(constraint: Constraint | None, common: Constraint | None) -> Constraint | None:
    """Return what a slot's constraint adds to the jobspec's, which parsing puts before it."""
    if common is None:
        return constraint
    if constraint is None or constraint == common:
        return None
    assert constraint.operator == "and"
    assert constraint.operands[0] == common
    return all_of(constraint.operands[1:])


def _demand(demand: NodeDemand, common: NodeDemand) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if demand.tolerations != common.tolerations:
        found["tolerations"] = [_toleration(one) for one in demand.tolerations]
    if demand.numa != common.numa:
        found["numa"] = [dict(bundle) for bundle in demand.numa]
    return found


def _toleration(toleration: Toleration) -> dict[str, str]:
    words = {
        "key": toleration.key,
        "operator": toleration.operator,
        "value": toleration.value,
        "effect": toleration.effect,
    }
    return {key: word for key, word in words.items() if word}


def _resource(resource: Resource) -> dict[str, Any]:
    found: dict[str, Any] = {"type": resource.type, "count": _count(resource.count)}
    for key in ("unit", "label", "id"):
        if word := getattr(resource, key):
            found[key] = word
    if resource.is_slot:
        found["label"] = resource.label
    if resource.is_exclusive is not None:
        found["exclusive"] = resource.is_exclusive
    if resource.with_:
        found["with"] = [_resource(child) for child in resource.with_]
    return found


def _count(count: Count) -> int | dict[str, Any]:
    if count.is_fixed:
        return count.minimum
    if (count.maximum, count.operator, count.operand) == (UNLIMITED, "+", 1):
        return {"min": count.minimum}
    return {
        "min": count.minimum,
        "max": count.maximum,
        "operator": count.operator,
        "operand": count.operand,
    }


def _task(task: Task) -> dict[str, Any]:
    found: dict[str, Any] = {"command": list(task.command), "slot": task.slot}
    if task.count:
        found["count"] = dict(task.count)
    if task.distribution:
        found["distribution"] = task.distribution
    return found
