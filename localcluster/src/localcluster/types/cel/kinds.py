"""The types of expressions, and which type fits which.

``checking``, ``functions`` and the modules that declare variables use them. Types are written as
cel-go prints them, such as ``list(int)`` and ``map(string, dyn)``. Objects are written by name.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Type:
    """A type. ``of`` are its parameters. ``fields`` are those of an object.

    Objects are equal if their names are equal.
    """

    name: str
    of: tuple[Type, ...] = ()
    fields: Mapping[str, Type] = field(default_factory=dict, compare=False, hash=False)

    def __str__(self) -> str:
        inner = ", ".join(map(str, self.of))
        return f"{self.name}({inner})" if inner else self.name


DYN, BOOL, INT, UINT, DOUBLE = map(Type, ("dyn", "bool", "int", "uint", "double"))
STRING, BYTES, NULL = map(Type, ("string", "bytes", "null"))
TIMESTAMP, DURATION, TYPE = map(Type, ("timestamp", "duration", "type"))
QUANTITY = Type("kubernetes.Quantity")
_RIGHTS = "kubernetes.authorization"
VERDICT, PATH_CHECK, GROUP_CHECK, RESOURCE_CHECK = (
    Type(f"{_RIGHTS}.{name}") for name in ("Decision", "PathCheck", "GroupCheck", "ResourceCheck")
)
AUTHORIZER = Type(f"{_RIGHTS}.Authorizer", fields={"requestResource": RESOURCE_CHECK})
OBJECT_MARK = "\0object"
_SIMPLE = frozenset({BOOL, INT, UINT, DOUBLE, STRING, BYTES})
Bound = dict[str, Type]


def list_of(item: Type) -> Type:
    """Return ``list(item)``."""
    return Type("list", (item,))


def map_of(key: Type, value: Type) -> Type:
    """Return ``map(key, value)``."""
    return Type("map", (key, value))


def optional_of(value: Type) -> Type:
    """Return ``optional_type(value)``."""
    return Type("optional_type", (value,))


def object_of(name: str, fields: Mapping[str, Type]) -> Type:
    """Return an object type with these fields and no others."""
    return Type(name, (Type(OBJECT_MARK),), fields)


def is_object(kind: Type) -> bool:
    """Return whether the type has named fields."""
    return kind.of == (Type(OBJECT_MARK),)


def shown(kind: Type) -> str:
    """Return the type as cel-go prints it."""
    return kind.name if is_object(kind) else str(kind)


def parameter(name: str) -> Type:
    """Return a type that the first argument determines (``A`` in ``list(A)``)."""
    return Type(f"<{name}>")


def _is_parameter(kind: Type) -> bool:
    return kind.name.startswith("<")


def is_assignable(wanted: Type, given: Type, bound: Bound) -> bool:
    """Return whether ``given`` may replace ``wanted``. Parameters are recorded in ``bound``."""
    if _is_parameter(wanted):
        known = bound.get(wanted.name)
        if known is None or (known == NULL and _may_be_null(given)):
            bound[wanted.name] = given
            return True
        if given == DYN:
            bound[wanted.name] = DYN
            return True
        return is_assignable(known, given, bound)
    if DYN in (wanted, given):
        return True
    if NULL in (wanted, given):
        return wanted == given or _may_be_null(wanted if given == NULL else given)
    return (
        wanted.name == given.name
        and len(wanted.of) == len(given.of)
        and all(is_assignable(w, g, bound) for w, g in zip(wanted.of, given.of, strict=True))
    )


def _may_be_null(kind: Type) -> bool:
    """Return whether the type may be null. Simple types, lists and maps are never null."""
    return kind not in _SIMPLE and kind.name not in ("list", "map")


def resolved(kind: Type, bound: Bound) -> Type:
    """Return a result type with its parameters filled in. An unknown parameter is dyn."""
    if _is_parameter(kind):
        return bound.get(kind.name, DYN)
    if not kind.of or is_object(kind):
        return kind
    return Type(kind.name, tuple(resolved(one, bound) for one in kind.of))
