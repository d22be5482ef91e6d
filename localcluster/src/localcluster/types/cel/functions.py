"""The functions of expressions with their types, and the types of operators.

``checking`` reads which arguments are allowed, and ``evaluating`` calls the functions. A line is
``name: types taken -> type given``. The receiver of a method comes first. A and B stand for any
type. The standard library and Kubernetes' own functions are here, except unsigned numbers,
``semver`` and selectors of the authorizer. Pure.

Source: k8s.io/apiserver/pkg/cel/library, github.com/google/cel-go/ext.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from localcluster.types.cel import kinds, lists, networks, rights, texts, times
from localcluster.types.cel.kinds import Type, list_of, map_of, optional_of, parameter
from localcluster.types.cel.operators import OPERATORS
from localcluster.types.cel.values import (
    CelError,
    Optional,
    Quantity,
    classes_of,
    equal,
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
    "URL": kinds.URL,
    "IP": kinds.IP,
    "CIDR": kinds.CIDR,
    "NamedFormat": kinds.NAMED_FORMAT,
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
        (tuple(map(classes_of, one.takes)), one.run)
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


def _as_int(quantity: Quantity) -> int:
    if quantity.value != int(quantity.value) or not -(1 << 63) <= quantity.value < 1 << 63:
        raise CelError("cannot convert value to integer")
    return int(quantity.value)


def _order(left: Quantity, right: Quantity) -> int:
    return (left.value > right.value) - (left.value < right.value)


def _sum(left: Quantity, right: Quantity | int) -> Quantity:
    return Quantity(left.value + (right if isinstance(right, int) else right.value))


def _difference(left: Quantity, right: Quantity | int) -> Quantity:
    return Quantity(left.value - (right if isinstance(right, int) else right.value))


def _or_value(optional: Optional, other: Any) -> Any:
    return optional.item[0] if optional.item else other


def _of_nonzero(value: Any) -> Optional:
    is_zero = value is None or any(equal(value, zero) for zero in _NOTHING)
    return Optional() if is_zero else Optional((value,))


_NOTHING: tuple[Any, ...] = (False, 0, "", b"", [], {})


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
        "string: IP -> string": str,
        "string: CIDR -> string": str,
        "timestamp: timestamp -> timestamp": lambda value: value,
        "timestamp: string -> timestamp": times.timestamp,
        "timestamp: int -> timestamp": times.from_seconds,
        "duration: duration -> duration": lambda value: value,
        "duration: string -> duration": times.duration,
        "matches: string, string -> bool": texts.matches,
        "isURL: string -> bool": networks.is_url,
        "url: string -> URL": networks.url,
        "isIP: string -> bool": networks.is_ip,
        "ip: string -> IP": networks.ip,
        "ip.isCanonical: string -> bool": lambda text: str(networks.ip(text)) == text,
        "isCIDR: string -> bool": networks.is_cidr,
        "cidr: string -> CIDR": networks.cidr,
        "isQuantity: string -> bool": _is_quantity,
        "quantity: string -> Quantity": _quantity,
        "format.named: string -> optional(NamedFormat)": texts.named_format,
        **{
            f"format.{name}: -> NamedFormat": (lambda made=made: made)
            for name, made in texts.NAMED_FORMATS.items()
        },
        "sets.contains: list(A), list(A) -> bool": lists.has_all,
        "sets.equivalent: list(A), list(A) -> bool": (
            lambda a, b: lists.has_all(a, b) and lists.has_all(b, a)
        ),
        "sets.intersects: list(A), list(A) -> bool": lists.has_any,
        "lists.range: int -> list(int)": lambda count: list(range(count)),
        "strings.quote: string -> string": texts.quoted,
        "optional.of: A -> optional(A)": lambda value: Optional((value,)),
        "optional.none: -> optional(A)": Optional,
        "optional.ofNonZeroValue: A -> optional(A)": _of_nonzero,
    }
)

_ZEROS: tuple[tuple[str, Any], ...] = (("int", 0), ("double", 0.0), ("duration", times.NO_TIME))

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
        "find: string, string -> string": texts.find,
        "findAll: string, string -> list(string)": texts.find_all,
        "findAll: string, string, int -> list(string)": texts.find_all,
        "charAt: string, int -> string": texts.char_at,
        "indexOf: string, string -> int": lambda text, part: text.find(part),
        "indexOf: string, string, int -> int": texts.index_from,
        "lastIndexOf: string, string -> int": lambda text, part: text.rfind(part),
        "lastIndexOf: string, string, int -> int": texts.last_index_until,
        "lowerAscii: string -> string": texts.lower,
        "upperAscii: string -> string": texts.upper,
        "replace: string, string, string -> string": str.replace,
        "replace: string, string, string, int -> string": str.replace,
        "split: string, string -> list(string)": texts.split,
        "split: string, string, int -> list(string)": texts.split,
        "substring: string, int -> string": texts.substring,
        "substring: string, int, int -> string": texts.substring,
        "trim: string -> string": texts.trim,
        "format: string, list(dyn) -> string": texts.formatted,
        "join: list(string) -> string": "".join,
        "join: list(string), string -> string": lambda items, between: between.join(items),
        "indexOf: list(A), A -> int": lists.index_of,
        "lastIndexOf: list(A), A -> int": lists.last_index_of,
        **{
            f"{name}: list({kind}) -> {gives or kind}": run
            for kind in ("int", "double", "bool", "string", "bytes", "timestamp", "duration")
            for name, gives, run in (
                ("isSorted", "bool", lists.is_sorted),
                ("min", "", lists.smallest),
                ("max", "", lists.largest),
                ("sort", f"list({kind})", lists.in_order),
            )
        },
        **{f"sum: list({kind}) -> {kind}": lists.total(zero) for kind, zero in _ZEROS},
        "distinct: list(A) -> list(A)": lists.distinct,
        "reverse: list(A) -> list(A)": lambda items: items[::-1],
        "slice: list(A), int, int -> list(A)": lists.sliced,
        "flatten: list(list(A)) -> list(A)": lambda items: [one for many in items for one in many],
        "first: list(A) -> optional(A)": lambda items: Optional(tuple(items[:1])),
        "last: list(A) -> optional(A)": lambda items: Optional(tuple(items[-1:])),
        "getScheme: URL -> string": lambda url: url.scheme,
        "getHost: URL -> string": lambda url: url.netloc.rpartition("@")[2],
        "getHostname: URL -> string": networks.host_name,
        "getPort: URL -> string": lambda url: str(url.port or ""),
        "getEscapedPath: URL -> string": lambda url: url.path,
        "getQuery: URL -> map(string, list(string))": networks.query,
        "family: IP -> int": lambda ip: ip.version,
        "isUnspecified: IP -> bool": lambda ip: ip.is_unspecified,
        "isLoopback: IP -> bool": lambda ip: ip.is_loopback,
        "isLinkLocalMulticast: IP -> bool": networks.is_link_local_multicast,
        "isLinkLocalUnicast: IP -> bool": lambda ip: ip.is_link_local,
        "isGlobalUnicast: IP -> bool": networks.is_global_unicast,
        "containsIP: CIDR, string -> bool": lambda net, ip: networks.ip(ip) in net.network,
        "containsIP: CIDR, IP -> bool": lambda net, ip: ip in net.network,
        "containsCIDR: CIDR, string -> bool": (
            lambda net, other: networks.holds(net, networks.cidr(other))
        ),
        "containsCIDR: CIDR, CIDR -> bool": networks.holds,
        "ip: CIDR -> IP": lambda net: net.ip,
        "masked: CIDR -> CIDR": networks.masked,
        "prefixLength: CIDR -> int": lambda net: net.network.prefixlen,
        "isInteger: Quantity -> bool": lambda quantity: quantity.value == int(quantity.value),
        "asInteger: Quantity -> int": _as_int,
        "asApproximateFloat: Quantity -> double": lambda quantity: float(quantity.value),
        "compareTo: Quantity, Quantity -> int": _order,
        "isLessThan: Quantity, Quantity -> bool": lambda a, b: a.value < b.value,
        "isGreaterThan: Quantity, Quantity -> bool": lambda a, b: a.value > b.value,
        "add: Quantity, Quantity -> Quantity": _sum,
        "add: Quantity, int -> Quantity": _sum,
        "sub: Quantity, Quantity -> Quantity": _difference,
        "sub: Quantity, int -> Quantity": _difference,
        "validate: NamedFormat, string -> optional(list(string))": texts.complaints,
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
        "or: optional(A), optional(A) -> optional(A)": lambda a, b: a if a.item else b,
        **{
            f"{name}: timestamp{zone} -> int": run
            for name, run in times.PARTS.items()
            for zone in ("", ", string")
        },
        **{f"{name}: duration -> int": run for name, run in times.LENGTHS.items()},
    }
)
