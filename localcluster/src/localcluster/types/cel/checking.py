"""Checks the types of an expression before it is evaluated, as the API server does.

``typed`` of this package calls it. It reports all findings in text order, with the words of cel-go.
Values of type dyn pass and are checked at evaluation. Pure.

Source: github.com/google/cel-go/checker. The checks of literals are from cel/validator.go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from localcluster.types.cel import texts, times
from localcluster.types.cel.functions import FUNCTIONS, METHODS, Overload
from localcluster.types.cel.kinds import (
    BOOL,
    DYN,
    INT,
    TYPE,
    Bound,
    Type,
    is_assignable,
    is_object,
    list_of,
    map_of,
    optional_of,
    resolved,
    shown,
)
from localcluster.types.cel.syntax import Call, ListOf, Literal, Macro, MapOf, Name, Select, Tree
from localcluster.types.cel.values import CelError, kind_name

Variables = Mapping[str, Type]
TYPE_NAMES = frozenset(
    ("bool", "int", "uint", "double", "string", "bytes", "list", "map", "type", "null_type")
)
_LOGICAL = ("_&&_", "_||_")
_LITERALS: dict[str, Callable[[str], object]] = {
    "matches": texts.compiled,
    "duration": times.duration,
    "timestamp": times.timestamp,
}


class Checker:
    """The checker of one tree. ``findings`` are positions and texts of errors."""

    def __init__(self, variables: Variables) -> None:
        self._known = dict(variables)
        self.findings: list[tuple[int, str]] = []

    def _find(self, at: int, text: str) -> Type:
        self.findings.append((at, text))
        return DYN

    def check(self, tree: Tree) -> Type:
        """Return the type, or dyn if there is an error."""
        match tree:
            case Literal():
                return Type(kind_name(tree.value))
            case Name():
                return self._name(tree)
            case Select():
                return self._select(tree)
            case Call():
                return self._call(tree)
            case ListOf():
                return list_of(self._same([(item, item.at) for item in tree.items]))
            case MapOf():
                return self._map(tree)
            case Macro():
                return self._macro(tree)

    def _name(self, tree: Name) -> Type:
        if tree.name in self._known:
            return self._known[tree.name]
        if tree.name in TYPE_NAMES:
            return TYPE
        return self._undeclared(tree.at, tree.name)

    def _undeclared(self, at: int, name: str) -> Type:
        return self._find(at, f"undeclared reference to '{name}' (in container '')")

    def _select(self, tree: Select) -> Type:
        target = self.check(tree.target)
        is_optional = target.name == "optional_type"
        field = self._field(tree, target.of[0] if is_optional else target)
        if tree.is_test:
            return BOOL
        if (is_optional or tree.is_optional) and field.name != "optional_type":
            return optional_of(field)
        return field

    def _field(self, tree: Select, target: Type) -> Type:
        if target == DYN:
            return DYN
        if target.name == "map":
            return target.of[1]
        if not (is_object(target) or target.fields):
            text = f"type '{shown(target)}' does not support field selection"
            return self._find(tree.at, text)
        if tree.field not in target.fields:
            return self._find(tree.at, f"undefined field '{tree.field}'")
        return target.fields[tree.field]

    def _same(self, trees: list[tuple[Tree, int]]) -> Type:
        """Return the common type of all items of a literal."""
        types = [self.check(tree) for tree, _ in trees]
        if not types:
            return DYN
        for (_, at), other in zip(trees[1:], types[1:], strict=True):
            is_free = "dyn" in f"{types[0]}{other}" and types[0].name == other.name
            if other != types[0] and not is_free:
                text = f"expected type '{shown(types[0])}' but found '{shown(other)}'"
                self._find(at, text)
        return types[0]

    def _map(self, tree: MapOf) -> Type:
        key = self._same([(key, key.at) for key, _ in tree.entries])
        value = self._same([(value, value.at) for _, value in tree.entries])
        return map_of(key, value)

    # -- calls ---------------------------------------------------------------------------------

    def _call(self, tree: Call) -> Type:
        if tree.function in _LOGICAL:
            for side in tree.arguments:
                self._wants_bool(side)
            return BOOL
        targets = [] if tree.target is None else [self.check(tree.target)]
        table = FUNCTIONS if tree.target is None else METHODS
        if tree.function not in FUNCTIONS and tree.function not in METHODS:
            self._undeclared(tree.at, tree.function)
            for argument in tree.arguments:
                self.check(argument)
            return DYN
        given = [*targets, *map(self.check, tree.arguments)]
        self._check_literal(tree)
        return self._overload(tree, table.get(tree.function, []), given, is_method=bool(targets))

    def _wants_bool(self, tree: Tree) -> None:
        found = self.check(tree)
        if found not in (BOOL, DYN):
            self._find(tree.at, f"expected type 'bool' but found '{shown(found)}'")

    def _overload(
        self, tree: Call, overloads: list[Overload], given: list[Type], *, is_method: bool
    ) -> Type:
        fitting = [made for one in overloads if (made := _given_by(one, given)) is not None]
        if fitting:
            return fitting[0] if all(one == fitting[0] for one in fitting) else DYN
        words = [shown(kind) for kind in given]
        applied = f"{words[0]}.({', '.join(words[1:])})" if is_method else f"({', '.join(words)})"
        name = tree.function
        return self._find(
            tree.at, f"found no matching overload for '{name}' applied to '{applied}'"
        )

    def _check_literal(self, tree: Call) -> None:
        """Check patterns, timestamps and durations that are written as literals."""
        read = _LITERALS.get(tree.function)
        last = tree.arguments[-1] if tree.arguments else None
        if read is None or not isinstance(last, Literal) or not isinstance(last.value, str):
            return
        try:
            read(last.value)
        except CelError:
            self._find(last.at, f"invalid {tree.function} argument")

    # -- macros ----------------------------------------------------------------------------------

    def _macro(self, tree: Macro) -> Type:
        target = self.check(tree.target)
        if target != DYN and target.name not in ("list", "map"):
            text = "cannot be range of a comprehension (must be list, map, or dynamic)"
            self._find(tree.target.at, f"expression of type '{shown(target)}' {text}")
            target = DYN
        return self._loop(tree, target)

    def _loop(self, tree: Macro, target: Type) -> Type:
        body, is_condition_bool = self._body(tree, {tree.name: _item(target)})
        if tree.macro in ("all", "exists"):
            if body not in (BOOL, DYN):
                self._find(tree.body.at, f"expected type 'bool' but found '{shown(body)}'")
            return BOOL
        made = {"map": list_of(body), "filter": list_of(_item(target))}.get(tree.macro)
        if tree.macro != "map" and body not in (BOOL, DYN):
            self._not_chosen(tree, body, made or INT)
        if made is not None and not is_condition_bool:
            self._not_chosen(tree, self._last_condition, made)
        return made or BOOL

    def _not_chosen(self, tree: Macro, condition: Type, made: Type) -> None:
        words = ", ".join((shown(condition), shown(made), shown(made)))
        self._find(tree.at, f"found no matching overload for '_?_:_' applied to '({words})'")

    _last_condition = DYN

    def _body(self, tree: Macro, bound: Mapping[str, Type]) -> tuple[Type, bool]:
        """Return the types of condition and body while the macro's variables are known."""
        before = self._known
        self._known = {**before, **bound}
        is_bool = True
        if tree.condition is not None:
            self._last_condition = self.check(tree.condition)
            is_bool = self._last_condition in (BOOL, DYN)
        made = self.check(tree.body)
        self._known = before
        return made, is_bool


def _item(target: Type) -> Type:
    """Return the type of a macro's variable: an item of a list, or a key of a map."""
    return DYN if target == DYN else target.of[0]


def _given_by(overload: Overload, given: list[Type]) -> Type | None:
    """Return the result type of an overload, or None if it does not take these arguments."""
    if len(overload.takes) != len(given):
        return None
    bound: Bound = {}
    for wanted, one in zip(overload.takes, given, strict=True):
        if not is_assignable(wanted, one, bound):
            return None
    return resolved(overload.gives, bound)
