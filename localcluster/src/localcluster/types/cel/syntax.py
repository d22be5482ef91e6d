"""The syntax of the Common Expression Language: parses a text into a tree.

``typed`` of this package calls it. Macros (``has``, ``exists``, ``all`` and others) are nodes of
their own. Positions are those of cel-go: the parenthesis of a call, the dot of a selection, the
operator of an operation. Unsigned numbers and messages are refused by name. Pure.

Source: the language's definition (github.com/google/cel-spec, doc/langdef.md).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any


class CelSyntaxError(ValueError):
    """The expression cannot be compiled. The text says where and why, as cel-go does."""


@dataclass(frozen=True, slots=True)
class Literal:
    """A number, a text, bytes, true, false or null."""

    at: int
    value: Any


@dataclass(frozen=True, slots=True)
class Name:
    """A variable."""

    at: int
    name: str


@dataclass(frozen=True, slots=True)
class Select:
    """A selection: ``target.field``, ``target.?field``, or (``is_test``) ``has(target.field)``."""

    at: int
    target: Tree
    field: str
    is_test: bool = False
    is_optional: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """A function, a method of its ``target``, or an operator by its name in cel-go (``_+_``)."""

    at: int
    function: str
    arguments: tuple[Tree, ...]
    target: Tree | None = None


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list ``[a, b]``."""

    at: int
    items: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class MapOf:
    """A map ``{a: b}``."""

    at: int
    entries: tuple[tuple[Tree, Tree], ...]


@dataclass(frozen=True, slots=True)
class Macro:
    """A macro such as ``target.exists(v, body)``. ``name`` is its variable.

    ``condition`` is the second of the three arguments of ``map(v, condition, body)``.
    """

    at: int
    macro: str
    target: Tree
    name: str
    body: Tree
    condition: Tree | None = None


Tree = Literal | Name | Select | Call | ListOf | MapOf | Macro

MACROS = {"all": (2,), "exists": (2,), "exists_one": (2,), "filter": (2,), "map": (2, 3)}
"""Macros with their allowed numbers of arguments. With another number they are methods."""
_TOKEN = re.compile(
    r"""(?:\s|//[^\n]*+)*+(?:
        (?P<number>0[xX][0-9a-fA-F]+[uU]?|\d+\.\d+(?:[eE][-+]?\d+)?|\d+[eE][-+]?\d+
            |\.\d+(?:[eE][-+]?\d+)?|\d+[uU]?)
      | (?P<string>[rRbB]{0,2}(?:\"{3}(?:[^\\]|\\.)*?\"{3}|'{3}(?:[^\\]|\\.)*?'{3}
            |"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'))
      | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<op>\|\||&&|==|!=|<=|>=|\[\?|[-+*/%<>!?:.,()\[\]{}])
    )""",
    re.VERBOSE | re.DOTALL,
)
_RAW = re.compile(r"[rR]")
_BYTES = re.compile(r"[bB]")
_TRAILING = re.compile(r"(?:\s|//[^\n]*)*\Z")
_ESCAPE = re.compile(
    r"\\(x[0-9a-fA-F]{2}|X[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-3][0-7]{2}|.)",
    re.DOTALL,
)
_ESCAPES = {
    "a": "\a",
    "b": "\b",
    "f": "\f",
    "n": "\n",
    "r": "\r",
    "t": "\t",
    "v": "\v",
    **{letter: letter for letter in "\\\"'`?"},
}
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 63) - 1
_CONSTANTS = {"true": True, "false": False, "null": None}
_RELATIONS = ("==", "!=", "<=", ">=", "<", ">")
RESERVED = frozenset(
    [
        "as",
        "break",
        "const",
        "continue",
        "else",
        "for",
        "function",
        "if",
        "import",
        "let",
        "loop",
        "package",
        "namespace",
        "return",
        "var",
        "void",
        "while",
    ]
)
_DEPTH_MAX = 200


def error_text(text: str, at: int, why: str) -> str:
    """Return an error as cel-go prints it: line and column, the line, and a mark below."""
    before = text[:at]
    line = before.count("\n")
    column = at - (before.rfind("\n") + 1)
    shown = text.split("\n")[line].replace("\t", " ")
    return f"ERROR: <input>:{line + 1}:{column + 1}: {why}\n | {shown}\n | {'.' * column}^"


def parse(text: str) -> Tree:
    """Return the tree of an expression. Raises CelSyntaxError."""
    return _Parser(text).parse()


class _Parser:
    """Recursive descent over one expression, one method per level of precedence."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = self._scan()
        self._at = 0
        self._depth = 0

    def _scan(self) -> list[tuple[str, str, int]]:
        tokens: list[tuple[str, str, int]] = []
        position = 0
        while not _TRAILING.match(self._text, position):
            match = _TOKEN.match(self._text, position)
            if match is None or match.lastgroup is None:
                at = position + len(self._text[position:]) - len(self._text[position:].lstrip())
                raise self._not_a_token(at)
            tokens.append((match.lastgroup, match[match.lastgroup], match.start(match.lastgroup)))
            position = match.end()
        tokens.append(("end", "<EOF>", len(self._text)))
        return tokens

    def _not_a_token(self, at: int) -> CelSyntaxError:
        letter = self._text[at]
        if letter == "`":
            return self._error(at, "unsupported syntax: '`'")
        shown = self._text[at:].split("\n")[0] if letter in "\"'" else letter
        return self._error(at, f"Syntax error: token recognition error at: '{shown}'")

    def _error(self, at: int, why: str) -> CelSyntaxError:
        return CelSyntaxError(error_text(self._text, at, why))

    def _peek(self) -> tuple[str, str, int]:
        return self._tokens[self._at]

    def _take(self, *wanted: str) -> str:
        kind, text, _ = self._peek()
        if kind in ("op", "name") and text in wanted:
            self._at += 1
            return text
        return ""

    def _expect(self, wanted: str) -> None:
        if not self._take(wanted):
            _, text, at = self._peek()
            raise self._error(at, f"Syntax error: mismatched input '{text}' expecting '{wanted}'")

    def parse(self) -> Tree:
        """Parse the whole expression."""
        result = self._ternary()
        kind, text, at = self._peek()
        if kind != "end":
            raise self._error(at, f"Syntax error: mismatched input '{text}' expecting <EOF>")
        return result

    def _ternary(self) -> Tree:
        self._depth += 1
        if self._depth > _DEPTH_MAX:
            raise self._error(self._peek()[2], "expression recursion limit exceeded")
        condition = self._or()
        at = self._peek()[2]
        if self._take("?"):
            first = self._or()
            self._expect(":")
            condition = Call(at, "_?_:_", (condition, first, self._ternary()))
        self._depth -= 1
        return condition

    def _or(self) -> Tree:
        left = self._and()
        while True:
            at = self._peek()[2]
            if not self._take("||"):
                return left
            left = Call(at, "_||_", (left, self._and()))

    def _and(self) -> Tree:
        left = self._relation()
        while True:
            at = self._peek()[2]
            if not self._take("&&"):
                return left
            left = Call(at, "_&&_", (left, self._relation()))

    def _relation(self) -> Tree:
        left = self._sum()
        while True:
            at = self._peek()[2]
            operator = self._take(*_RELATIONS, "in")
            if not operator:
                return left
            function = "@in" if operator == "in" else f"_{operator}_"
            left = Call(at, function, (left, self._sum()))

    def _sum(self) -> Tree:
        left = self._product()
        while True:
            at = self._peek()[2]
            operator = self._take("+", "-")
            if not operator:
                return left
            left = Call(at, f"_{operator}_", (left, self._product()))

    def _product(self) -> Tree:
        left = self._unary()
        while True:
            at = self._peek()[2]
            operator = self._take("*", "/", "%")
            if not operator:
                return left
            left = Call(at, f"_{operator}_", (left, self._unary()))

    def _unary(self) -> Tree:
        at = self._peek()[2]
        if operator := self._take("!", "-"):
            if operator == "-" and self._peek()[0] == "number":
                return self._members_of(self._number("-", at))
            self._depth += 1
            if self._depth > _DEPTH_MAX:
                raise self._error(at, "expression recursion limit exceeded")
            inner = self._unary()
            self._depth -= 1
            return Call(at, f"{operator}_", (inner,))
        return self._members_of(self._primary())

    def _number(self, sign: str, at: int) -> Literal:
        text = self._tokens[self._at][1]
        self._at += 1
        is_hex = text[:2] in ("0x", "0X")
        if text[-1] in "uU":
            raise self._error(at, "unsigned numbers are not supported here")
        if not is_hex and any(mark in text for mark in ".eE"):
            return Literal(at, float(sign + text))
        number = int(sign + text, 16 if is_hex else 10)
        if not _INT_MIN <= number <= _INT_MAX:
            raise self._error(at, "invalid int literal")
        return Literal(at, number)

    def _members_of(self, value: Tree) -> Tree:
        while True:
            at = self._peek()[2]
            if self._take("."):
                value = self._member(value, at)
            elif operator := self._take("[", "[?"):
                index = self._ternary()
                self._expect("]")
                value = Call(at, "_[_]" if operator == "[" else "_[?_]", (value, index))
            elif self._take("{"):
                raise self._error(at, "messages are not supported here")
            else:
                return value

    def _member(self, target: Tree, dot: int) -> Tree:
        is_optional = bool(self._take("?"))
        kind, name, at = self._peek()
        if kind != "name" or name in _CONSTANTS or name == "in":
            raise self._error(at, f"Syntax error: no viable alternative at input '.{name}'")
        self._at += 1
        opened = self._peek()[2]
        if not is_optional and self._take("("):
            return self._method(target, name, opened)
        return Select(dot, target, name, is_optional=is_optional)

    def _method(self, target: Tree, name: str, opened: int) -> Tree:
        arguments = self._arguments()
        if len(arguments) in MACROS.get(name, ()):
            return self._macro(target, name, arguments, opened)
        return Call(opened, name, arguments, target)

    def _macro(self, target: Tree, name: str, arguments: tuple[Tree, ...], opened: int) -> Tree:
        named, *rest = arguments
        if not isinstance(named, Name):
            raise self._error(named.at, "argument must be a simple name")
        condition = rest[0] if len(rest) == 2 else None
        return Macro(opened, name, target, named.name, rest[-1], condition)

    def _arguments(self) -> tuple[Tree, ...]:
        arguments: list[Tree] = []
        if self._take(")"):
            return ()
        kind, text, at = self._peek()
        if kind == "end":
            raise self._error(
                at, f"Syntax error: mismatched input '{text}' expecting {_EXPECTED_ARGUMENT}"
            )
        arguments.append(self._ternary())
        while self._take(","):
            arguments.append(self._ternary())
        self._expect(")")
        return tuple(arguments)

    def _primary(self) -> Tree:
        kind, text, at = self._peek()
        if kind == "number":
            return self._number("", at)
        self._at += 1
        if kind == "string":
            return self._quoted(text, at)
        if kind == "op" and text == "." and self._peek()[0] == "name":
            return self._primary()  # A leading dot means the root. There are no containers here.
        if kind == "op" and text == "(":
            inner = self._ternary()
            self._expect(")")
            return inner
        if kind == "op" and text in ("[", "{"):
            return self._list(at) if text == "[" else self._map(at)
        if kind != "name" or text == "in":
            raise self._error(at, f"Syntax error: mismatched input '{text}' expecting {_EXPECTED}")
        if text in _CONSTANTS:
            return Literal(at, _CONSTANTS[text])
        opened = self._peek()[2]
        if self._take("("):
            arguments = self._arguments()
            return self._has(arguments, opened) if text == "has" else Call(opened, text, arguments)
        if text in RESERVED:
            raise self._error(at, f"reserved identifier: {text}")
        return Name(at, text)

    def _quoted(self, text: str, at: int) -> Literal:
        prefix = text[: len(text) - len(text.lstrip("rRbB"))]
        body = text[len(prefix) :]
        width = 3 if body[:3] in ('"""', "'''") and len(body) >= 6 else 1
        body = body[width:-width]
        if not _RAW.search(prefix):
            try:
                body = _ESCAPE.sub(_unescape, body)
            except KeyError as error:
                raise self._error(at, f"Syntax error: unknown escape {error}") from error
        return Literal(at, body.encode() if _BYTES.search(prefix) else body)

    def _list(self, at: int) -> Tree:
        items: list[Tree] = []
        while not self._take("]"):
            items.append(self._ternary())
            if not self._take(","):
                self._expect("]")
                break
        return ListOf(at, tuple(items))

    def _map(self, at: int) -> Tree:
        entries: list[tuple[Tree, Tree]] = []
        while not self._take("}"):
            key = self._ternary()
            self._expect(":")
            entries.append((key, self._ternary()))
            if not self._take(","):
                self._expect("}")
                break
        return MapOf(at, tuple(entries))

    def _has(self, arguments: tuple[Tree, ...], opened: int) -> Tree:
        if len(arguments) != 1:
            raise self._error(opened, "undeclared reference to 'has' (in container '')")
        chosen = arguments[0]
        if not isinstance(chosen, Select):
            raise self._error(chosen.at, "invalid argument to has() macro")
        return Select(opened, chosen.target, chosen.field, is_test=True)


_STARTS = (
    "'.', '-', '!', 'true', 'false', 'null', NUM_FLOAT, NUM_INT, NUM_UINT, STRING, BYTES, "
    "IDENTIFIER}"
)
_EXPECTED = f"{{'[', '{{', '(', {_STARTS}"
_EXPECTED_ARGUMENT = f"{{'[', '{{', '(', ')', {_STARTS}"


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    if len(code) == 1:
        return _ESCAPES[code]
    return chr(int(code[1:], 16) if code[0] in "xXuU" else int(code, 8))
