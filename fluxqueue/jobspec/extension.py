"""``attributes.system.fluxqueue``: what Kubernetes can express and RFC 14 cannot.

::

    fluxqueue:
      tolerations: [{key: gpu, operator: Exists, effect: NoSchedule}]   # as in a pod
      numa: [{cpu: 8000, memory: 17179869184}]     # each fits one NUMA zone (base units)
      match-policy: pack
      exclusive: true          # every node touched is taken whole
      prefer-within: rack      # below one rack if possible, else one level up, ...
      grace: 30                # seconds that its pods may take to end after the duration
      slots:                   # what the slots of a label need beyond that
        launcher: {constraints: {...}, tolerations: [...], numa: [...]}

``constraints`` of a slot are added to those of the jobspec. ``tolerations`` and ``numa`` of a slot
replace the jobspec's. The jobspec parser calls it. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NoReturn

from fluxqueue.errors import InvalidJobspec
from fluxqueue.fluxjob.request import MatchPolicy, Toleration
from fluxqueue.jobspec.bounds import Left
from fluxqueue.jobspec.constraint import Constraint, all_of
from fluxqueue.jobspec.demand import Bundle, NodeDemand
from fluxqueue.jobspec.written_constraint import parse_constraint

KEY = "fluxqueue"
_WHERE_KEYS = ("tolerations", "numa")
_KEYS = (*_WHERE_KEYS, "match-policy", "exclusive", "prefer-within", "grace", "slots")
_SLOT_KEYS = ("constraints", *_WHERE_KEYS)
_TOLERATION_KEYS = ("key", "operator", "value", "effect", "tolerationSeconds")
_EFFECTS = ("", "NoSchedule", "PreferNoSchedule", "NoExecute")
_AMOUNT_MAX = (1 << 63) - 1
_GRACE_MAX = (1 << 31) - 1


@dataclass(frozen=True, slots=True)
class Extension:
    """The section as data. See ``model.Jobspec`` for the fields."""

    where: NodeDemand
    slot_where: tuple[tuple[str, NodeDemand], ...] = ()
    match_policy: MatchPolicy | None = None
    is_node_exclusive: bool = False
    prefer_within: str = ""
    grace_s: int = 0


def parse_extension(value: Any, where: str, constraint: Constraint | None, left: Left) -> Extension:
    """Read the section. ``constraint`` is the jobspec's own.

    Raises
    ------
    InvalidJobspec
        With the place, the value and what is allowed.
    """
    ours = _mapping(value, where, _KEYS)
    common = _demand(ours, where, NodeDemand(constraint))
    slots = ours.get("slots", {})
    if not isinstance(slots, dict):
        _refuse("must be a mapping from slot labels", f"{where}.slots", slots)
    policy = ours.get("match-policy")
    if policy is not None and (not isinstance(policy, str) or policy not in set(MatchPolicy)):
        _refuse("is no match policy", f"{where}.match-policy", policy, ", ".join(MatchPolicy))
    exclusive = ours.get("exclusive", False)
    if not isinstance(exclusive, bool):
        _refuse("must be true or false", f"{where}.exclusive", exclusive)
    level = ours.get("prefer-within", "")
    if not isinstance(level, str):
        _refuse("must name a level", f"{where}.prefer-within", level)
    grace_s = ours.get("grace", 0)
    is_whole = isinstance(grace_s, int) and not isinstance(grace_s, bool)
    if not is_whole or not 0 <= grace_s <= _GRACE_MAX:
        hint = f"from 0 to {_GRACE_MAX}"
        _refuse("must be a whole number of seconds", f"{where}.grace", grace_s, hint)
    return Extension(
        where=common,
        slot_where=tuple(
            (str(label), _slot_demand(part, f"{where}.slots.{label}", common, left))
            for label, part in slots.items()
        ),
        match_policy=None if policy is None else MatchPolicy(policy),
        is_node_exclusive=exclusive,
        prefer_within=str(level),
        grace_s=grace_s,
    )


def _slot_demand(value: Any, where: str, common: NodeDemand, left: Left) -> NodeDemand:
    part = _mapping(value, where, _SLOT_KEYS)
    if "constraints" in part:
        own = parse_constraint(part["constraints"], f"{where}.constraints", left)
        both = [one for one in (common.constraint, own) if one is not None]
        common = replace(common, constraint=all_of(both))
    return _demand(part, where, common)


def _demand(part: dict[str, Any], where: str, base: NodeDemand) -> NodeDemand:
    if "tolerations" in part:
        found = _list(part["tolerations"], f"{where}.tolerations")
        base = replace(
            base,
            tolerations=tuple(
                _toleration(item, f"{where}.tolerations[{i}]") for i, item in enumerate(found)
            ),
        )
    if "numa" in part:
        bundles = _list(part["numa"], f"{where}.numa")
        base = replace(
            base, numa=tuple(_bundle(one, f"{where}.numa[{i}]") for i, one in enumerate(bundles))
        )
    return base


def _toleration(item: Any, where: str) -> Toleration:
    found = _mapping(item, where, _TOLERATION_KEYS)
    words = {key: found.get(key) or "" for key in ("key", "operator", "value", "effect")}
    for key, word in words.items():
        if not isinstance(word, str):
            _refuse("must be a string", f"{where}.{key}", word)
    operator = str(words["operator"] or "Equal")
    if operator not in ("Equal", "Exists", "Gt", "Lt"):
        _refuse("must be Equal, Exists, Gt or Lt", f"{where}.operator", operator)
    if words["effect"] not in _EFFECTS:
        _refuse("is no effect", f"{where}.effect", words["effect"], ", ".join(_EFFECTS[1:]))
    return Toleration(str(words["key"]), operator, str(words["value"]), str(words["effect"]))


def _bundle(value: Any, where: str) -> Bundle:
    if not isinstance(value, dict):
        _refuse("must be a mapping from resources to amounts", where, value)
    for name, amount in value.items():
        is_whole = isinstance(amount, int) and not isinstance(amount, bool)
        if not is_whole or not 0 <= amount <= _AMOUNT_MAX:
            _refuse("must be a whole number of base units", f"{where}.{name}", amount)
    return tuple(sorted((str(name), int(amount)) for name, amount in value.items()))


def _mapping(value: Any, where: str, known: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        _refuse("must be a mapping", where, value)
    for key in sorted(str(k) for k in value.keys() - set(known)):
        _refuse("unknown key", f"{where}.{key}", None, f"one of {', '.join(known)}")
    return value


def _list(value: Any, where: str) -> list[Any]:
    if not isinstance(value, list):
        _refuse("must be a list", where, value)
    return value


def _refuse(message: str, where: str, value: object, hint: str = "") -> NoReturn:
    raise InvalidJobspec(message, where=where, value=value, hint=hint)
