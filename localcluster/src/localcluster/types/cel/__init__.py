"""The Common Expression Language, for rules of definitions, match conditions and policies.

An expression is parsed (``syntax``), its types are checked (``checking``, against what
``functions`` may be called with), and it becomes a function of its variables (``evaluating``). What
is not known here is refused when it is compiled, by name, and never guessed at: unsigned numbers,
messages, ``semver``, selectors of the authorizer. How much an expression may cost is not estimated.
int is 64 bits wide and does not mix with double, but is compared with it. Pure.

No library does this for us yet: README.md, "What it is made of", says what was tried.
"""

from __future__ import annotations

from localcluster.types.cel.checking import Checker, Variables
from localcluster.types.cel.evaluating import Env, Eval, build
from localcluster.types.cel.functions import FUNCTIONS
from localcluster.types.cel.kinds import Type
from localcluster.types.cel.syntax import CelSyntaxError, error_text, parse
from localcluster.types.cel.values import CelError

__all__ = ["CelError", "CelSyntaxError", "Env", "Eval", "Variables", "compile_expression", "typed"]


_QUALIFIED = frozenset(name for name in FUNCTIONS if "." in name)


def compile_expression(text: str, variables: Variables) -> Eval:
    """Compile; the result takes a mapping with all ``variables``, and raises CelError.

    Raises CelSyntaxError for what is malformed, unknown, not supported here, or of wrong types.
    """
    return typed(text, variables)[1]


def typed(text: str, variables: Variables) -> tuple[Type, Eval]:
    """The type of an expression and the compiled expression."""
    tree = parse(text, _QUALIFIED)
    checker = Checker(variables)
    found = checker.check(tree)
    if checker.findings:
        findings = sorted(checker.findings, key=lambda one: one[0])
        raise CelSyntaxError("\n".join(error_text(text, at, why) for at, why in findings))
    return found, build(tree, frozenset(variables))
