"""The functions of expressions with their types, and the types of operators.

``checking`` reads which arguments are allowed, and ``evaluating`` calls the functions. A line is
``name: types taken -> type given``. The receiver of a method comes first. A and B stand for any
type. The functions of the language itself are here, with optional values, quantities and the
authorizer. Libraries of Kubernetes and cel-go beyond these are not. Pure.

Source: k8s.io/apiserver/pkg/cel/library, github.com/google/cel-go/common/stdlib.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from localcluster.types.cel import kinds, rights, texts, times
from localcluster.types.cel.kinds import Type, list_of, map_of, optional_of, parameter
from localcluster.types.cel.operators import OPERATORS
from localcluster.types.cel.values import (
    CelError,
    Optional,
    Quantity,
    class_of,
    is_of,
    kind_name,
)
from localcluster.types.quantity import QuantityError, value_of

Run = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Overload:
    """One way to call a function: types taken (of a method the receiver first), and type given."""

    takes: tuple[Type, ...]
    gives: Type
    run: Run | None


_WORDS = {
    "A": parameter("A"),
    "B": parameter("B"),
    "Quantity": kinds.QUANTITY,
    "Authorizer": kinds.AUTHORIZER,
    "PathCheck": kinds.PATH_CHECK,
    "GroupCheck": kinds.GROUP_CHECK,
    "ResourceCheck": kinds.RESOURCE_CHECK,
    "Decision": kinds.VERDICT,
    **{
        kind.name: kind
        for kind in (
            *(kinds.DYN, kinds.BOOL, kinds.INT, kinds.DOUBLE, kinds.STRING, kinds.BYTES),
            *(kinds.TIMESTAMP, kinds.DURATION, kinds.TYPE),
        )
    },
}
_PART = re.compile(r"\w+(?:\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))?")
_MAKERS: dict[str, Callable[..., Type]] = {"list": list_of, "map": map_of, "optional": optional_of}
Table = dict[str, list[Overload]]


def _types(text: str) -> tuple[Type, ...]:
    return tuple(map(_type, _PART.findall(text)))


def _type(text: str) -> Type:
    name, _, inner = text.partition("(")
    return _MAKERS[name](*_types(inner[:-1])) if inner else _WORDS[name]


def _table(lines: dict[str, Run | None]) -> Table:
    table: Table = {}
    for line, run in lines.items():
        name, _, kind = line.partition(": ")
        takes, _, gives = kind.rpartition("-> ")
        table.setdefault(name, []).append(Overload(_types(takes), _type(gives), run))
    return table


def chosen(overloads: list[Overload], count: int) -> Run:
    """Return a function that runs the overload for its values. There are ``count`` of them."""
    ways = [
        (tuple(map(class_of, one.takes)), one.run)
        for one in overloads
        if len(one.takes) == count and one.run is not None
    ]

    def run(*arguments: Any) -> Any:
        for classes, way in ways:
            if all(map(is_of, arguments, classes)):
                return way(*arguments)
        raise CelError("no such overload")

    return run


# -- quantities, optionals, types ------------------------------------------------------------------


def _quantity(text: str) -> Quantity:
    try:
        return Quantity(value_of(text))
    except QuantityError as error:
        raise CelError(str(error)) from error


def _is_quantity(text: str) -> bool:
    try:
        value_of(text)
    except QuantityError:
        return False
    return True


def _order(left: Quantity, right: Quantity) -> int:
    return (left.value > right.value) - (left.value < right.value)


def _or_value(optional: Optional, other: Any) -> Any:
    return optional.item[0] if optional.item else other


_OPERATOR_TYPES = {
    "_&&_": "bool, bool -> bool",
    "_||_": "bool, bool -> bool",
    "_?_:_": "bool, A, A -> A",
    "!_": "bool -> bool",
    "_==_": "A, A -> bool",
    "_!=_": "A, A -> bool",
    "-_": "int -> int; double -> double",
    **{
        f"_{operator}_": "; ".join(
            f"{left}, {right} -> bool"
            for left, right in (
                *(("int", "int"), ("int", "double"), ("double", "int"), ("double", "double")),
                *((kind, kind) for kind in ("bool", "string", "bytes", "timestamp", "duration")),
            )
        )
        for operator in ("<", "<=", ">", ">=")
    },
    "@in": "A, list(A) -> bool; A, map(A, B) -> bool",
    "_+_": (
        "int, int -> int; double, double -> double; string, string -> string; "
        "bytes, bytes -> bytes; list(A), list(A) -> list(A); timestamp, duration -> timestamp; "
        "duration, timestamp -> timestamp; duration, duration -> duration"
    ),
    "_-_": (
        "int, int -> int; double, double -> double; timestamp, timestamp -> duration; "
        "timestamp, duration -> timestamp; duration, duration -> duration"
    ),
    "_*_": "int, int -> int; double, double -> double",
    "_/_": "int, int -> int; double, double -> double",
    "_%_": "int, int -> int",
    "_[_]": (
        "list(A), int -> A; map(A, B), A -> B; optional(list(A)), int -> optional(A); "
        "optional(map(A, B)), A -> optional(B)"
    ),
    "_[?_]": (
        "list(A), int -> optional(A); map(A, B), A -> optional(B); "
        "optional(list(A)), int -> optional(A); optional(map(A, B)), A -> optional(B)"
    ),
}

FUNCTIONS: Table = _table(
    {
        f"{name}: {kind}": OPERATORS.get(name)
        for name, types in _OPERATOR_TYPES.items()
        for kind in types.split("; ")
    }
) | _table(
    {
        "size: string -> int": len,
        "size: bytes -> int": len,
        "size: list(A) -> int": len,
        "size: map(A, B) -> int": len,
        "type: A -> type": lambda value: Type(kind_name(value)),
        "dyn: A -> dyn": lambda value: value,
        "bool: bool -> bool": lambda value: value,
        "bool: string -> bool": texts.to_bool,
        "int: int -> int": lambda value: value,
        "int: double -> int": texts.to_int,
        "int: string -> int": texts.to_int,
        "int: timestamp -> int": times.seconds,
        "double: double -> double": lambda value: value,
        "double: int -> double": float,
        "double: string -> double": texts.to_double,
        "bytes: bytes -> bytes": lambda value: value,
        "bytes: string -> bytes": lambda text: text.encode(),
        "string: string -> string": lambda value: value,
        "string: bool -> string": texts.to_text,
        "string: int -> string": texts.to_text,
        "string: double -> string": texts.to_text,
        "string: bytes -> string": texts.decoded,
        "string: timestamp -> string": times.timestamp_text,
        "string: duration -> string": times.duration_text,
        "timestamp: timestamp -> timestamp": lambda value: value,
        "timestamp: string -> timestamp": times.timestamp,
        "timestamp: int -> timestamp": times.from_seconds,
        "duration: duration -> duration": lambda value: value,
        "duration: string -> duration": times.duration,
        "matches: string, string -> bool": texts.matches,
        "isQuantity: string -> bool": _is_quantity,
        "quantity: string -> Quantity": _quantity,
    }
)

METHODS: Table = _table(
    {
        "size: string -> int": len,
        "size: bytes -> int": len,
        "size: list(A) -> int": len,
        "size: map(A, B) -> int": len,
        "startsWith: string, string -> bool": str.startswith,
        "endsWith: string, string -> bool": str.endswith,
        "contains: string, string -> bool": lambda text, part: part in text,
        "matches: string, string -> bool": texts.matches,
        "compareTo: Quantity, Quantity -> int": _order,
        "isLessThan: Quantity, Quantity -> bool": lambda a, b: a.value < b.value,
        "isGreaterThan: Quantity, Quantity -> bool": lambda a, b: a.value > b.value,
        "path: Authorizer, string -> PathCheck": rights.path_check,
        "group: Authorizer, string -> GroupCheck": rights.group_check,
        "serviceAccount: Authorizer, string, string -> Authorizer": (
            lambda asked, namespace, name: asked.of_account(namespace, name)
        ),
        "resource: GroupCheck, string -> ResourceCheck": rights.GroupCheck.resource,
        "subresource: ResourceCheck, string -> ResourceCheck": rights.ResourceCheck.subresource,
        "namespace: ResourceCheck, string -> ResourceCheck": rights.ResourceCheck.namespace,
        "name: ResourceCheck, string -> ResourceCheck": rights.ResourceCheck.named,
        "check: ResourceCheck, string -> Decision": rights.ResourceCheck.check,
        "check: PathCheck, string -> Decision": rights.PathCheck.check,
        "allowed: Decision -> bool": lambda verdict: verdict.is_allowed,
        "reason: Decision -> string": lambda verdict: verdict.reason,
        "errored: Decision -> bool": lambda _verdict: False,
        "error: Decision -> string": lambda _verdict: "",
        "hasValue: optional(A) -> bool": lambda optional: bool(optional.item),
        "value: optional(A) -> A": Optional.value,
        "orValue: optional(A), A -> A": _or_value,
    }
)
