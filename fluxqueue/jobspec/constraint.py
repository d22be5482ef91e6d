"""Constraints on nodes: the operators of RFC 31 and one of our own.

Those of RFC 31 are properties, hostlist, ranks, and, or, not. ``fluxqueue/matchExpressions`` takes
Kubernetes' node selector requirements (key, operator, values), which must all hold. It expresses
node selectors and node affinity, with the meaning of the six operators. The jobspec parser builds
constraints. The matcher evaluates them on vertices of type ``node``. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fluxqueue.errors import InvalidInput, InvalidJobspec
from fluxqueue.fluxjob import hostlist
from fluxqueue.fluxjob.node import NAME_KEY
from fluxqueue.fluxjob.request import NodeRequirement, Operator
from fluxqueue.jobspec import idset
from fluxqueue.jobspec.bounds import WRITTEN, Left
from fluxqueue.jobspec.document import PlainScalar

MATCH_EXPRESSIONS = "fluxqueue/matchExpressions"
"""Our operator: requirements on node labels (``metadata.name`` is the node's name)."""

_NOT_IN_PROPERTY = frozenset("!&'\"^`|()")


@dataclass(frozen=True, slots=True)
class Constraint:
    """One operator and its operands. ``matches`` defines its meaning.

    ``operator`` is ``properties`` (names, ``^name`` means absent), ``hostlist``, ``ranks``,
    ``and``, ``or``, ``not`` (not all of them) or ``fluxqueue/matchExpressions`` (all of
    ``requirements``). Every node satisfies the operator ``""``.
    """

    operator: str = ""
    names: tuple[str, ...] = ()
    ranks: frozenset[int] = frozenset()
    hosts: frozenset[str] = frozenset()
    operands: tuple[Constraint, ...] = ()
    requirements: tuple[NodeRequirement, ...] = ()
    parts: int = field(default=0, init=False, repr=False, compare=False)
    """The number of parts evaluated per node: operators, names and values, with all operands."""
    depth: int = field(default=0, init=False, repr=False, compare=False)
    """The depth of constraints below this one."""
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        own = len(self.names) + sum(1 + len(one.values) for one in self.requirements)
        parts = 1 + own + sum(one.parts for one in self.operands)
        depth = 1 + max((one.depth for one in self.operands), default=-1)
        of = self.operator, self.names, self.ranks, self.hosts, self.operands, self.requirements
        for name, value in (("parts", parts), ("depth", depth), ("_hash", hash(of))):
            object.__setattr__(self, name, value)

    def __hash__(self) -> int:
        """Return the hash computed once: masks of nodes are cached by it, and it may be large."""
        return self._hash

    def matches(self, name: str, rank: int, properties: Mapping[str, str]) -> bool:
        """Return whether a node with this name and broker rank (-1: none) satisfies the constraint.

        ``properties`` are those of a Flux vertex, or the labels of a Kubernetes node.
        """
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
            case "fluxqueue/matchExpressions":
                labels = {**properties, NAME_KEY: name}
                return all(one.is_met_by(labels) for one in self.requirements)
        return True


def all_of(parts: Sequence[Constraint]) -> Constraint | None:
    """Return all of ``parts`` together, or None if there are none."""
    if len(parts) < 2:
        return parts[0] if parts else None
    return Constraint("and", operands=tuple(parts))


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
