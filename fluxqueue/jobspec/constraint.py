"""Constraints on nodes (RFC 31 subset): properties, hostlist, ranks, and, or, not.

Called by the jobspec parser; evaluated by the matcher on vertices of type ``node``. Pure.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from fluxqueue.errors import InvalidInput, InvalidJobspec
from fluxqueue.fluxjob import hostlist
from fluxqueue.jobspec import idset
from fluxqueue.jobspec.document import PlainScalar

MAX_DEPTH = 32
_NOT_IN_PROPERTY = frozenset("!&'\"^`|()")


@dataclass(frozen=True, slots=True)
class Constraint:
    """One operator and its operands; ``matches`` is its meaning.

    ``operator`` is ``properties`` (names; ``^name`` is absent), ``hostlist``, ``ranks``, ``and``,
    ``or``, ``not`` (not all of them), or ``""`` which everything satisfies.
    """

    operator: str = ""
    names: tuple[str, ...] = ()
    ranks: frozenset[int] = frozenset()
    hosts: frozenset[str] = frozenset()
    operands: tuple[Constraint, ...] = ()

    def matches(self, name: str, rank: int, properties: Collection[str]) -> bool:
        """Whether a node called ``name``, of broker rank ``rank`` (-1: none), satisfies this."""
        match self.operator:
            case "properties":
                return all(
                    (n[1:] not in properties) if n.startswith("^") else (n in properties)
                    for n in self.names
                )
            case "hostlist":
                return name in self.hosts
            case "ranks":
                return rank in self.ranks
            case "and":
                return all(c.matches(name, rank, properties) for c in self.operands)
            case "or":
                return any(c.matches(name, rank, properties) for c in self.operands)
            case "not":
                return not all(c.matches(name, rank, properties) for c in self.operands)
        return True


def parse_constraint(value: Any, where: str = "constraints", depth: int = 0) -> Constraint:
    """Build a constraint from parsed YAML or JSON.

    Raises
    ------
    InvalidJobspec
        Not a map of at most one known operator, operands that are no list, an unquoted or
        forbidden property name, a hostlist or idset that cannot be read, nesting over 32.
    """
    if depth > MAX_DEPTH:
        raise InvalidJobspec(f"nested deeper than {MAX_DEPTH}", where=where)
    if not isinstance(value, dict):
        raise InvalidJobspec("a constraint is a mapping", where=where, value=value)
    if len(value) > 1:
        raise InvalidJobspec(
            "a constraint has one operator", where=where, hint="join several with and/or"
        )
    if not value:
        return Constraint()
    operator, operands = next(iter(value.items()))
    here = f"{where}.{operator}"
    if not isinstance(operands, list):
        raise InvalidJobspec("an operator takes a list", where=here, value=operands)
    if operator in ("and", "or", "not"):
        parts = tuple(
            parse_constraint(part, f"{here}[{i}]", depth + 1) for i, part in enumerate(operands)
        )
        return Constraint(str(operator), operands=parts)
    if operator == "properties":
        names = tuple(_property(name, f"{here}[{i}]") for i, name in enumerate(operands))
        return Constraint("properties", names=names)
    if operator == "hostlist":
        return Constraint("hostlist", hosts=frozenset(_hosts(operands, here)))
    if operator == "ranks":
        return Constraint("ranks", ranks=frozenset(_ranks(operands, here)))
    raise InvalidJobspec(
        f"unknown operator {operator!r}",
        where=where,
        hint="properties, hostlist, ranks, and, or, not",
    )


def _property(name: Any, where: str) -> str:
    if not isinstance(name, str) or isinstance(name, PlainScalar):
        raise InvalidJobspec("a property is a quoted string", where=where, value=name)
    bare = name.removeprefix("^")
    if not bare or _NOT_IN_PROPERTY & set(bare):
        raise InvalidJobspec(f"{name!r} cannot be a property name", where=where, value=name)
    return name


def _hosts(operands: list[Any], where: str) -> list[str]:
    hosts: list[str] = []
    for i, text in enumerate(operands):
        try:
            hosts += hostlist.expand(str(text))
        except InvalidInput as refusal:
            raise InvalidJobspec(refusal.message, where=f"{where}[{i}]", value=text) from refusal
    return hosts


def _ranks(operands: list[Any], where: str) -> list[int]:
    ranks: list[int] = []
    for i, text in enumerate(operands):
        try:
            ranks += idset.decode(str(text))
        except InvalidInput as refusal:
            raise InvalidJobspec(refusal.message, where=f"{where}[{i}]", value=text) from refusal
    return ranks
