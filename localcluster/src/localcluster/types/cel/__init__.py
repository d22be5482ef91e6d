"""The Common Expression Language, for rules of definitions, match conditions and policies.

``syntax`` parses an expression. ``checking`` checks its types against the signatures in
``functions``. ``evaluating`` makes it a function of its variables. What is not supported is refused
by name at compilation, and never guessed: unsigned numbers, messages, macros of two variables, and
the libraries beyond the language itself. The cost of an expression is not estimated. An int has 64
bits. It does not mix with double, but can be compared with it. Pure.

No library does this yet: README.md, "What it is made of", says what was tried.
"""

from __future__ import annotations

from localcluster.types.cel.checking import Checker, Variables
from localcluster.types.cel.evaluating import Env, Eval, build
from localcluster.types.cel.kinds import Type
from localcluster.types.cel.syntax import CelSyntaxError, error_text, parse
from localcluster.types.cel.values import CelError

__all__ = ["CelError", "CelSyntaxError", "Env", "Eval", "Variables", "compile_expression", "typed"]


def compile_expression(text: str, variables: Variables) -> Eval:
    """Compile an expression to a function of a mapping with all ``variables``.

    The function raises CelError. Compiling raises CelSyntaxError for an expression that is
    malformed, unknown, not supported here, or of wrong types.
    """
    return typed(text, variables)[1]


def typed(text: str, variables: Variables) -> tuple[Type, Eval]:
    """Return the type of an expression, and the compiled expression."""
    tree = parse(text)
    checker = Checker(variables)
    found = checker.check(tree)
    if checker.findings:
        findings = sorted(checker.findings, key=lambda one: one[0])
        raise CelSyntaxError("\n".join(error_text(text, at, why) for at, why in findings))
    return found, build(tree, frozenset(variables))
