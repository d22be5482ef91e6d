"""Values of expressions beyond JSON's, and how values are told apart, compared and ordered.

Called by ``operators``, ``functions`` and ``evaluating``. int is a Python int of 64 bits, never a
bool; an object is a dict, as a map is. Raises CelError, which absorbing operators may hide. Pure.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import SplitResult

from localcluster.types.cel import rights
from localcluster.types.cel.kinds import Type, is_object

Ip = ipaddress.IPv4Address | ipaddress.IPv6Address
Cidr = ipaddress.IPv4Interface | ipaddress.IPv6Interface
INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1


class CelError(ValueError):
    """Evaluation failed (missing key, wrong types)."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """``quantity("1Gi")``."""

    value: Decimal


@dataclass(frozen=True, slots=True)
class Optional:
    """``optional.of(x)`` as one item, ``optional.none()`` as none."""

    item: tuple[Any, ...] = ()

    def value(self) -> Any:
        """What is in it; an error where nothing is."""
        if not self.item:
            raise CelError("optional.none() dereference")
        return self.item[0]


@dataclass(frozen=True, slots=True)
class NamedFormat:
    """``format.dns1123Label()``: says what is wrong with a text."""

    name: str
    complain: Callable[[str], list[str]]


_CLASSES: tuple[tuple[str, type | tuple[type, ...]], ...] = (
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
    ("kubernetes.URL", SplitResult),
    ("kubernetes.CIDR", (ipaddress.IPv4Interface, ipaddress.IPv6Interface)),
    ("kubernetes.IP", (ipaddress.IPv4Address, ipaddress.IPv6Address)),
    ("kubernetes.NamedFormat", NamedFormat),
    ("kubernetes.authorization.Authorizer", rights.Rights),
    ("kubernetes.authorization.PathCheck", rights.PathCheck),
    ("kubernetes.authorization.GroupCheck", rights.GroupCheck),
    ("kubernetes.authorization.ResourceCheck", rights.ResourceCheck),
    ("kubernetes.authorization.Decision", rights.Verdict),
)


def kind_name(value: Any) -> str:
    """The name of a value's type."""
    return next(name for name, classes in _CLASSES if isinstance(value, classes))


_BY_NAME = dict(_CLASSES)


def classes_of(kind: Type) -> type | tuple[type, ...]:
    """The classes of values that may be taken for this type, their items not looked at."""
    if kind.name == "dyn" or kind.name.startswith("<"):
        return object
    return _BY_NAME["map" if is_object(kind) else kind.name]


def is_of(value: Any, classes: type | tuple[type, ...]) -> bool:
    """Whether a value is of these classes; a bool is no int."""
    return isinstance(value, classes) and not (classes is int and isinstance(value, bool))


def boolean(value: Any) -> bool:
    """A bool, or an error."""
    if isinstance(value, bool):
        return value
    raise CelError("no such overload")


def equal(left: Any, right: Any) -> bool:
    """``==`` of any two values: int and double compare as numbers, a bool equals no number."""
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(equal, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(equal(left[k], right[k]) for k in left)
    return bool(left == right)


_ORDERED = (str, bool, bytes, datetime, timedelta)


def check_order(left: Any, right: Any) -> None:
    """Two values of which one may come first, or an error."""
    if any(isinstance(left, one) and isinstance(right, one) for one in _ORDERED):
        return
    number(left)
    number(right)


def number(value: Any) -> Any:
    """An int or a double, or an error."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise CelError("no such overload")


def fitting(result: Any) -> Any:
    """A result of arithmetic; an int that needs more than 64 bits is an error."""
    if isinstance(result, int) and not INT_MIN <= result <= INT_MAX:
        raise CelError("integer overflow")
    return result
