"""Turns a checked tree into a function that evaluates it. Pure.

``typed`` of this package calls it. ``&&``, ``||``, ``exists`` and ``all`` absorb errors as the
language requires.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from localcluster.types.cel.checking import TYPE_NAMES
from localcluster.types.cel.functions import FUNCTIONS, METHODS, Overload, chosen
from localcluster.types.cel.kinds import Type
from localcluster.types.cel.operators import OPERATORS, has, select, select_optional
from localcluster.types.cel.syntax import Call, ListOf, Literal, Macro, MapOf, Name, Select, Tree
from localcluster.types.cel.values import CelError, boolean

Env = Mapping[str, Any]
Eval = Callable[[Env], Any]
Envs = list[dict[str, Any]]


def build(tree: Tree, known: frozenset[str]) -> Eval:
    """Return the function of a tree. ``known`` are the variables, which hide names of types."""
    match tree:
        case Literal(value=value):
            return lambda _env: value
        case Name(name=name):
            return _name(name, known)
        case Select():
            return _selection(tree, known)
        case Call():
            return _call(tree, known)
        case ListOf(items=items):
            made = [build(item, known) for item in items]
            return lambda env: [item(env) for item in made]
        case MapOf(entries=entries):
            pairs = [(build(k, known), build(v, known)) for k, v in entries]
            return lambda env: {k(env): v(env) for k, v in pairs}
        case Macro():
            return _macro(tree, known)


def _name(name: str, known: frozenset[str]) -> Eval:
    if name not in known and name in TYPE_NAMES:
        kind = Type("null" if name == "null_type" else name)
        return lambda _env: kind
    return lambda env: env[name]


def _selection(tree: Select, known: frozenset[str]) -> Eval:
    target, field = build(tree.target, known), tree.field
    if tree.is_test:
        return lambda env: has(target(env), field)
    if tree.is_optional:
        return lambda env: select_optional(target(env), field)
    return lambda env: select(target(env), field)


def _call(tree: Call, known: frozenset[str]) -> Eval:
    arguments = [build(argument, known) for argument in tree.arguments]
    match tree.function, arguments:
        case "_?_:_", [condition, first, second]:
            return lambda env: first(env) if boolean(condition(env)) else second(env)
        case "_&&_" | "_||_", [left, right]:
            return _absorbing(left, right, decisive=tree.function == "_||_")
    if tree.target is not None:
        return _function(METHODS[tree.function], [build(tree.target, known), *arguments])
    function = OPERATORS.get(tree.function)
    if function is None:
        return _function(FUNCTIONS[tree.function], arguments)
    if len(arguments) == 1:
        (only,) = arguments
        return lambda env: function(only(env))
    left, right = arguments
    return lambda env: function(left(env), right(env))


def _function(overloads: list[Overload], arguments: list[Eval]) -> Eval:
    run = chosen(overloads, len(arguments))
    return lambda env: run(*[argument(env) for argument in arguments])


def _absorbing(left: Eval, right: Eval, *, decisive: bool) -> Eval:
    """Evaluate ``||`` or ``&&``: a side that decides hides an error of the other side."""

    def evaluate(env: Env) -> bool:
        try:
            if boolean(left(env)) is decisive:
                return decisive
        except CelError:
            if boolean(right(env)) is decisive:
                return decisive
            raise
        return boolean(right(env))

    return evaluate


# -- macros --------------------------------------------------------------------------------------


def _macro(tree: Macro, known: frozenset[str]) -> Eval:
    target = build(tree.target, known)
    inner = known | {tree.name}
    body = build(tree.body, inner)
    condition = build(tree.condition, inner) if tree.condition is not None else None
    loop = _LOOPS[tree.macro]

    def evaluate(env: Env) -> Any:
        container = target(env)
        if not isinstance(container, dict | list):
            raise CelError("no such overload")
        envs = [{**env, tree.name: item} for item in container]
        if condition is not None:
            envs = [one for one in envs if boolean(condition(one))]
        return loop(body, envs, tree.name)

    return evaluate


def _filtered(body: Eval, envs: Envs, name: str) -> list[Any]:
    return [env[name] for env in envs if boolean(body(env))]


_LOOPS: dict[str, Callable[[Eval, Envs, str], Any]] = {
    "all": lambda body, envs, _name: _decided(body, envs, decisive=False),
    "exists": lambda body, envs, _name: _decided(body, envs, decisive=True),
    "exists_one": lambda body, envs, _name: [boolean(body(env)) for env in envs].count(True) == 1,
    "filter": _filtered,
    "map": lambda body, envs, _name: [body(env) for env in envs],
}


def _decided(body: Eval, envs: Envs, *, decisive: bool) -> bool:
    """Evaluate a chain of ``||`` (exists) or ``&&`` (all).

    An item that decides hides the errors of others.
    """
    failure: CelError | None = None
    for env in envs:
        try:
            if boolean(body(env)) is decisive:
                return decisive
        except CelError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return not decisive
