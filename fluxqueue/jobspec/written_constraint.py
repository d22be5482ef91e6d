"""Constraints as a jobspec writes them, read and checked. Pure.

Called by the parser of jobspecs, and for the constraint in fluxqueue's own part of a jobspec.
"""

from __future__ import annotations

from typing import Any

from fluxqueue.errors import InvalidInput, InvalidJobspec
from fluxqueue.fluxjob import hostlist
from fluxqueue.fluxjob.request import NodeRequirement, Operator
from fluxqueue.jobspec import idset
from fluxqueue.jobspec.bounds import WRITTEN, Left
from fluxqueue.jobspec.constraint import MATCH_EXPRESSIONS, Constraint
from fluxqueue.jobspec.document import PlainScalar

_NOT_IN_PROPERTY = frozenset("!&'\"^`|()")


def parse_constraint(
    value: Any, where: str = "constraints", left: Left | None = None
) -> Constraint:
    """Build a constraint from parsed YAML or JSON.

    Raises
    ------
    InvalidJobspec
        Not a map of at most one known operator, operands that are not a list, or a property name
        that is unquoted or forbidden. Also a hostlist or idset that cannot be parsed, or more than
        is ``left``.
    """
    return _constraint(value, where, Left(WRITTEN) if left is None else left, 0)


def _constraint(value: Any, where: str, left: Left, depth: int) -> Constraint:
    left.check_depth(depth, where)
    left.take_parts(1, where)
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
            _constraint(part, f"{here}[{i}]", left, depth + 1) for i, part in enumerate(operands)
        )
        return Constraint(str(operator), operands=parts)
    left.take_parts(len(operands), here)
    if operator == "properties":
        names = tuple(_property(name, f"{here}[{i}]") for i, name in enumerate(operands))
        return Constraint("properties", names=names)
    if operator == "hostlist":
        return Constraint("hostlist", hosts=frozenset(_hosts(operands, here, left)))
    if operator == "ranks":
        return Constraint("ranks", ranks=frozenset(_ranks(operands, here, left)))
    if operator == MATCH_EXPRESSIONS:
        expressions = [_requirement(item, f"{here}[{i}]") for i, item in enumerate(operands)]
        left.take_parts(sum(len(one.values) for one in expressions), here)
        return Constraint(MATCH_EXPRESSIONS, requirements=tuple(expressions))
    raise InvalidJobspec(
        f"unknown operator {operator!r}",
        where=where,
        hint=f"properties, hostlist, ranks, and, or, not, {MATCH_EXPRESSIONS}",
    )


def _requirement(item: Any, where: str) -> NodeRequirement:
    if not isinstance(item, dict):
        raise InvalidJobspec("an expression is a mapping", where=where, value=item)
    for key in sorted(str(k) for k in item.keys() - {"key", "operator", "values"}):
        raise InvalidJobspec("unknown key", where=f"{where}.{key}", hint="key, operator, values")
    name, operator, values = item.get("key"), item.get("operator"), item.get("values", [])
    if not isinstance(name, str) or not name:
        raise InvalidJobspec("must name a node label", where=f"{where}.key", value=name)
    if not isinstance(operator, str) or operator not in set(Operator):
        raise InvalidJobspec(
            "is no operator", where=f"{where}.operator", value=operator, hint=", ".join(Operator)
        )
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise InvalidJobspec("must be a list of strings", where=f"{where}.values")
    return NodeRequirement(str(name), Operator(operator), tuple(map(str, values)))


def _property(name: Any, where: str) -> str:
    if not isinstance(name, str) or isinstance(name, PlainScalar):
        raise InvalidJobspec("a property is a quoted string", where=where, value=name)
    bare = name.removeprefix("^")
    if not bare or _NOT_IN_PROPERTY & set(bare):
        raise InvalidJobspec(f"{name!r} cannot be a property name", where=where, value=name)
    return name


def _hosts(operands: list[Any], where: str, left: Left) -> set[str]:
    hosts: set[str] = set()
    for i, text in enumerate(operands):
        at = f"{where}[{i}]"
        try:
            found = hostlist.expand(str(text), most=left.bounds.hosts)
            hostlist.check_names(found)
        except InvalidInput as refusal:
            raise InvalidJobspec(refusal.message, where=at, value=text) from refusal
        left.take_hosts(len(found), at)
        hosts.update(found)
    return hosts


def _ranks(operands: list[Any], where: str, left: Left) -> set[int]:
    ranks: set[int] = set()
    for i, text in enumerate(operands):
        at = f"{where}[{i}]"
        try:
            found = idset.decode(str(text), most=left.bounds.hosts)
        except InvalidInput as refusal:
            raise InvalidJobspec(refusal.message, where=at, value=text) from refusal
        left.take_hosts(len(found), at)
        ranks.update(found)
    return ranks
