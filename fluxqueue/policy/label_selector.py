"""Kubernetes' label selectors, as policies and queues have them in their specs.

The controller resolves the namespaces of queues with them. Sharing policies choose nodes with them.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.request import NodeRequirement, Operator

_OPERATORS = (Operator.IN, Operator.NOT_IN, Operator.EXISTS, Operator.DOES_NOT_EXIST)


@dataclass(frozen=True, slots=True)
class LabelSelection:
    """A ``metav1.LabelSelector``: all requirements must hold. Without any, it matches all."""

    requirements: tuple[NodeRequirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether ``labels`` meet all requirements."""
        return all(one.is_met_by(labels) for one in self.requirements)


def is_selected(selector: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    """Return whether a ``metav1.LabelSelector`` matches. An empty one matches everything."""
    return read_selector(selector, "selector").matches(labels)


def read_selector(selector: object, where: str) -> LabelSelection:
    """Read a ``metav1.LabelSelector``.

    Raises
    ------
    InvalidInput
        It is no selector. ``where`` is the path of the part that is wrong.
    """
    if selector is None:
        return LabelSelection()
    if not isinstance(selector, Mapping):
        raise InvalidInput(f"{selector!r} is no mapping", where=where, value=selector)
    wanted = selector.get("matchLabels") or {}
    expressions = selector.get("matchExpressions") or ()
    if not isinstance(wanted, Mapping) or not all(isinstance(v, str) for v in wanted.values()):
        at = f"{where}.matchLabels"
        raise InvalidInput(f"{wanted!r} is no mapping of labels", where=at, value=wanted)
    if not isinstance(expressions, list | tuple):
        at = f"{where}.matchExpressions"
        raise InvalidInput(f"{expressions!r} is no list", where=at, value=expressions)
    labels = [NodeRequirement(key, Operator.IN, (value,)) for key, value in wanted.items()]
    others = [
        _expression(one, f"{where}.matchExpressions[{number}]")
        for number, one in enumerate(expressions)
    ]
    return LabelSelection((*labels, *others))


def _expression(one: object, where: str) -> NodeRequirement:
    found = one if isinstance(one, Mapping) else {}
    key, operator, values = found.get("key"), found.get("operator"), found.get("values") or ()
    is_usable = isinstance(key, str) and operator in _OPERATORS and isinstance(values, list | tuple)
    if not is_usable or not all(isinstance(value, str) for value in values):
        hint = f"key, operator ({', '.join(_OPERATORS)}) and values"
        raise InvalidInput(f"{one!r} is no expression", where=where, value=one, hint=hint)
    return NodeRequirement(str(key), Operator(str(operator)), tuple(values))
