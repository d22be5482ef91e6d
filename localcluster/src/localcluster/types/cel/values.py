"""Values of expressions that JSON does not have, and how values are compared and ordered.

``operators``, ``functions`` and ``evaluating`` use it. An int is a Python int of 64 bits, never a
bool. An object is a dict, as a map is. Raises CelError, which absorbing operators may hide. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any

from localcluster.types.cel import rights
from localcluster.types.cel.kinds import Type, is_object

INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1


class CelError(ValueError):
    """Evaluation failed (missing key, wrong types)."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """The value of ``quantity("1Gi")``."""

    value: Decimal


@dataclass(frozen=True, slots=True)
class Optional:
    """``optional.of(x)`` with one item, or ``optional.none()`` with none."""

    item: tuple[Any, ...] = ()

    def value(self) -> Any:
        """Return the item. Raises CelError if there is none."""
        if not self.item:
            raise CelError("optional.none() dereference")
        return self.item[0]


_CLASSES: tuple[tuple[str, type], ...] = (
    ("bool", bool),
    ("int", int),
    ("double", float),
    ("string", str),
    ("bytes", bytes),
    ("list", list),
    ("map", dict),
    ("timestamp", datetime),
    ("duration", timedelta),
    ("type", Type),
    ("null", type(None)),
    ("kubernetes.Quantity", Quantity),
    ("optional_type", Optional),
    ("kubernetes.authorization.Authorizer", rights.Rights),
    ("kubernetes.authorization.PathCheck", rights.PathCheck),
    ("kubernetes.authorization.GroupCheck", rights.GroupCheck),
    ("kubernetes.authorization.ResourceCheck", rights.ResourceCheck),
    ("kubernetes.authorization.Decision", rights.Verdict),
)


def kind_name(value: Any) -> str:
    """Return the name of a value's type."""
    return next(name for name, classes in _CLASSES if isinstance(value, classes))


_BY_NAME = dict(_CLASSES)


def class_of(kind: Type) -> type:
    """Return the class of values that fit this type. Their items are not checked."""
    if kind.name == "dyn" or kind.name.startswith("<"):
        return object
    return _BY_NAME["map" if is_object(kind) else kind.name]


def is_of(value: Any, wanted: type) -> bool:
    """Return whether a value is of this class. A bool is not an int."""
    return isinstance(value, wanted) and not (wanted is int and isinstance(value, bool))


def boolean(value: Any) -> bool:
    """Return a bool, or raise CelError."""
    if isinstance(value, bool):
        return value
    raise CelError("no such overload")


def equal(left: Any, right: Any) -> bool:
    """Compare any two values as ``==`` does.

    int and double compare as numbers. A bool equals no number.
    """
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(equal(left[k], right[k]) for k in left)
    return bool(left == right)


_ORDERED = (str, bool, bytes, datetime, timedelta)


def check_order(left: Any, right: Any) -> None:
    """Raise CelError unless the two values can be ordered."""
    if any(isinstance(left, one) and isinstance(right, one) for one in _ORDERED):
        return
    number(left)
    number(right)


def number(value: Any) -> Any:
    """Return an int or a double, or raise CelError."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise CelError("no such overload")


def fitting(result: Any) -> Any:
    """Return a result of arithmetic. Raises CelError if an int needs more than 64 bits."""
    if isinstance(result, int) and not INT_MIN <= result <= INT_MAX:
        raise CelError("integer overflow")
    return result
