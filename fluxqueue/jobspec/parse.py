"""The jobspec parser: canonical jobspec, version 1 to 9999 (RFC 14, RFC 25), YAML or JSON.

It reads what users write and what is stored. Every error is an ``InvalidJobspec`` that names the
place. It accepts and refuses what Fluxion does (flux-sched, resource/libjobspec), with these
differences:

- A slot must contain something.
- Sizes and nesting are bounded.
- A non-finite duration is refused.
- An amount (a count with a unit, or of a Kubernetes resource such as ``example.com/fpga``) may be
  as large as bytes are.

``attributes.system.fluxqueue`` is our own section (``jobspec.extension``). ``jobspec.render`` is
the inverse.
"""

from __future__ import annotations

import math
from typing import Any, NoReturn

from fluxqueue.errors import InvalidJobspec
from fluxqueue.jobspec import document
from fluxqueue.jobspec.bounds import STORED, WRITTEN, Left
from fluxqueue.jobspec.extension import KEY, Extension, parse_extension
from fluxqueue.jobspec.model import AMOUNT_MAX, SLOT, UNLIMITED, Count, Jobspec, Resource, Task
from fluxqueue.jobspec.written_constraint import parse_constraint

_TOP_KEYS = {"version", "resources", "tasks", "attributes"}
_RESOURCE_KEYS = {"type", "count", "unit", "exclusive", "with", "label", "id"}
_OWN_SYSTEM_KEYS = {"duration", "queue", "constraints", KEY}
_TASK_KEYS = {"command", "slot", "count", "distribution", "attributes"}
_MIN_OPERAND = {"+": 1, "*": 2, "^": 2}


def parse_jobspec(text: str | bytes) -> Jobspec:
    """Read a jobspec from its text.

    Raises
    ------
    InvalidJobspec
        With the place in the document, the value and the way out. The place is a line for text that
        is not YAML, else a path such as ``resources[0].with[1].count``.
    """
    return parse_document(document.load(text, InvalidJobspec))


def read_stored(top: Any) -> Jobspec:
    """Read a jobspec of a row or of ``FluxJob.spec.jobspec``. Raises as ``parse_jobspec``.

    fluxqueue built it and checked its bounds (``bounds.check_stored``). The bounds on what users
    write do not apply to it. It may ask for no resources at all: a workload of no pods.
    """
    return parse_document(top, is_stored=True)


def parse_document(top: Any, *, is_stored: bool = False) -> Jobspec:
    """Read a jobspec from parsed YAML or JSON. Raises ``InvalidJobspec`` as ``parse_jobspec``.

    ``is_stored``: as of ``read_stored``.
    """
    if top is None:
        _refuse("is empty", "jobspec", None, f"needs {', '.join(sorted(_TOP_KEYS))}")
    if not isinstance(top, dict):
        hint = f"write a mapping with {', '.join(sorted(_TOP_KEYS))}"
        _refuse("a jobspec is a mapping", "jobspec", top, hint)
    for key in sorted(_TOP_KEYS - top.keys()):
        _refuse(f"the key {key!r} is missing", "jobspec", None)
    for key in sorted(str(k) for k in top.keys() - _TOP_KEYS):
        _refuse("unknown key", key, None, f"one of {', '.join(sorted(_TOP_KEYS))}")
    version = _unsigned(top["version"], "version")
    if not 1 <= version <= 9999:
        _refuse("must be from 1 to 9999", "version", version)
    left = Left(STORED if is_stored else WRITTEN)
    resources = _resources(top["resources"], "resources", left, 0)
    if not resources and not is_stored:
        _refuse("asks for nothing", "resources", top["resources"])
    if not isinstance(top["tasks"], list):
        _refuse("must be a list", "tasks", top["tasks"])
    tasks = tuple(_task(task, f"tasks[{i}]") for i, task in enumerate(top["tasks"]))
    return _with_attributes(top["attributes"], version, resources, tasks, left)


def _with_attributes(
    attributes: Any,
    version: int,
    resources: tuple[Resource, ...],
    tasks: tuple[Task, ...],
    left: Left,
) -> Jobspec:
    attributes = {} if attributes is None else attributes
    if not isinstance(attributes, dict):
        _refuse("must be a mapping", "attributes", attributes)
    for key in sorted(str(k) for k in attributes.keys() - {"user", "system"}):
        _refuse("unknown key", f"attributes.{key}", None, "user or system")
    system = attributes.get("system")
    system = {} if system is None else system
    if not isinstance(system, dict):
        _refuse("must be a mapping", "attributes.system", system)
    where = "attributes.system"
    constraint = None
    if "constraints" in system:
        constraint = parse_constraint(system["constraints"], f"{where}.constraints", left)
    ours = parse_extension(system.get(KEY, {}), f"{where}.{KEY}", constraint, left)
    _refuse_unknown_slots(ours, resources, f"{where}.{KEY}.slots")
    return Jobspec(
        version=version,
        resources=resources,
        tasks=tasks,
        duration_s=_duration(system.get("duration", 0), f"{where}.duration"),
        queue=_text(system.get("queue", ""), f"{where}.queue"),
        where=ours.where,
        slot_where=ours.slot_where,
        match_policy=ours.match_policy,
        is_node_exclusive=ours.is_node_exclusive,
        prefer_within=ours.prefer_within,
        grace_s=ours.grace_s,
        system={key: value for key, value in system.items() if key not in _OWN_SYSTEM_KEYS},
        user=attributes.get("user"),
    )


def _refuse_unknown_slots(ours: Extension, resources: tuple[Resource, ...], where: str) -> None:
    known = set(_slot_labels(resources))
    for label, _ in ours.slot_where:
        if label not in known:
            _refuse("there is no slot of this label", f"{where}.{label}", None)


def _slot_labels(resources: tuple[Resource, ...]) -> list[str]:
    found: list[str] = []
    for resource in resources:
        if resource.is_slot:
            found.append(resource.label)
        found += _slot_labels(resource.with_)
    return found


def _resources(value: Any, where: str, left: Left, depth: int) -> tuple[Resource, ...]:
    if not isinstance(value, list):
        _refuse("must be a list", where, value)
    left.check_depth(depth, where)
    return tuple(_resource(item, f"{where}[{i}]", left, depth) for i, item in enumerate(value))


def _resource(value: Any, where: str, left: Left, depth: int) -> Resource:
    if not isinstance(value, dict):
        _refuse("a resource is a mapping", where, value)
    left.take_resource(where)
    for key in ("type", "count"):
        if key not in value:
            _refuse(f"the key {key!r} is missing", where, None)
    for key in sorted(str(k) for k in value.keys() - _RESOURCE_KEYS):
        _refuse("unknown key", f"{where}.{key}", None, ", ".join(sorted(_RESOURCE_KEYS)))
    kind = _text(value["type"], f"{where}.type")
    children = _resources(value.get("with", []), f"{where}.with", left, depth + 1)
    if kind == SLOT and "label" not in value:
        _refuse("a slot needs a label", where, None, "label: default")
    if kind == SLOT and not children:
        _refuse("a slot must contain resources", where, None, "with: [{type: core, count: 1}]")
    exclusive = value.get("exclusive")
    if "exclusive" in value and not isinstance(exclusive, bool):
        exclusive = {"true": True, "false": False}.get(str(exclusive))
        if exclusive is None:
            _refuse("must be true or false", f"{where}.exclusive", value["exclusive"])
    return Resource(
        type=kind,
        count=_count(value["count"], f"{where}.count", is_amount="unit" in value or "/" in kind),
        with_=children,
        is_exclusive=exclusive,
        label=_text(value.get("label", ""), f"{where}.label"),
        unit=_text(value.get("unit", ""), f"{where}.unit"),
        id=_text(value.get("id", ""), f"{where}.id"),
    )


def _count(value: Any, where: str, *, is_amount: bool = False) -> Count:
    if not isinstance(value, dict):
        number = _unsigned(value, where, AMOUNT_MAX if is_amount else UNLIMITED)
        return Count(number, number)
    if "min" not in value:
        _refuse("the key 'min' is missing", where, None)
    minimum = _unsigned(value["min"], f"{where}.min")
    if minimum < 1:
        _refuse("must be greater than zero", f"{where}.min", minimum)
    given = value.keys() & {"max", "operator", "operand"}
    if not given:
        return Count(minimum, UNLIMITED)
    if len(given) < 3:
        _refuse("all or none of max, operator and operand are needed", where, None)
    maximum = _unsigned(value["max"], f"{where}.max")
    operand = _unsigned(value["operand"], f"{where}.operand")
    operator = value["operator"]
    if not isinstance(operator, str) or operator not in _MIN_OPERAND:
        _refuse("must be one of + * ^", f"{where}.operator", operator)
    if maximum < minimum:
        _refuse("must be at least min", f"{where}.max", maximum)
    if operand < _MIN_OPERAND[operator]:
        least = _MIN_OPERAND[operator]
        _refuse(f"must be at least {least} for {operator}", f"{where}.operand", operand)
    if operator == "^" and minimum < 2:
        _refuse("must be at least 2 for ^", f"{where}.min", minimum)
    return Count(minimum, maximum, operator, operand)


def _task(value: Any, where: str) -> Task:
    if not isinstance(value, dict):
        _refuse("a task is a mapping", where, value)
    for key in ("command", "slot"):
        if key not in value:
            _refuse(f"the key {key!r} is missing", where, None)
    for key in sorted(str(k) for k in value.keys() - _TASK_KEYS):
        _refuse("unknown key", f"{where}.{key}", None, ", ".join(sorted(_TASK_KEYS)))
    command = value["command"]
    if not isinstance(command, list):
        _refuse("must be a list", f"{where}.command", command)
    count = value.get("count", {})
    if "count" in value and (not isinstance(count, dict) or len(count) != 1):
        _refuse("must be a mapping with one entry", f"{where}.count", count, "per_slot: 1")
    return Task(
        command=tuple(_text(word, f"{where}.command[{i}]") for i, word in enumerate(command)),
        slot=_text(value["slot"], f"{where}.slot"),
        count={str(k): _text(v, f"{where}.count.{k}") for k, v in count.items()},
        distribution=_text(value.get("distribution", ""), f"{where}.distribution"),
    )


def _unsigned(value: Any, where: str, most: int = UNLIMITED) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit():
        # Longer ones are out of range in any case, and int() of them may be slow.
        value = int(value[:20])
    if isinstance(value, bool) or not isinstance(value, int):
        _refuse("must be a whole number", where, value)
    if not 0 <= value <= most:
        _refuse(f"must be from 0 to {most}", where, value)
    return int(value)


def _duration(value: Any, where: str) -> float:
    if isinstance(value, bool):
        _refuse("must be a number of seconds", where, value)
    try:
        seconds = float(value)
    except (TypeError, ValueError, OverflowError):
        _refuse("must be a number of seconds", where, value)
    if not math.isfinite(seconds) or seconds < 0:
        _refuse("must be a finite number of seconds, at least 0", where, value)
    return seconds


def _text(value: Any, where: str) -> str:
    if isinstance(value, (dict, list)):
        _refuse("must be a scalar", where, value)
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _refuse(message: str, where: str, value: object, hint: str = "") -> NoReturn:
    raise InvalidJobspec(message, where=where, value=value, hint=hint)
