"""A small evaluator of the Common Expression Language, for matchConditions and CRD rules.

It knows literals, members, indexing, ``has``, ``in``, comparisons, arithmetic, ``&&``, ``||``,
``!``, ``?:``, the macros exists, all, exists_one, filter and map, and a few string methods.
Anything else is refused when the expression is compiled, naming it, never guessed at: unsigned
numbers, map literals, times.  Errors are absorbed by ``&&``, ``||``, exists and all as the language
wants; int is 64 bits wide and does not mix with double, but is compared with it.  Pure.

No library does this for us yet: README.md, "What it is made of", says what was tried.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

Env = Mapping[str, Any]
Eval = Callable[[Env], Any]


class CelSyntaxError(ValueError):
    """The expression cannot be compiled here; the text says where and why."""


class CelError(ValueError):
    """Evaluation failed (missing key, wrong types)."""


_TOKEN = re.compile(
    r"""\s*(?:
        (?P<number>0[xX][0-9a-fA-F]+u?|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?[uU]?)
      | (?P<string>[rR]?"(?:[^"\\]|\\.)*"|[rR]?'(?:[^'\\]|\\.)*')
      | (?P<name>[A-Za-z_][A-Za-z0-9_]*)
      | (?P<op>\|\||&&|==|!=|<=|>=|[-+*/%<>!?:.,()\[\]{}])
    )""",
    re.VERBOSE,
)
_INT_MIN, _INT_MAX = -(1 << 63), (1 << 63) - 1
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-3][0-7]{2}|.)")
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
_NOT_IN_RE2 = re.compile(r"\(\?(?:[=!]|<[=!])|\\[1-9]")
_COMPARISONS = ("==", "!=", "<=", ">=", "<", ">")
_CONSTANTS = {"true": True, "false": False, "null": None}
_MACROS = ("exists", "all", "exists_one", "filter", "map")


def compile_expression(text: str, variables: frozenset[str]) -> Eval:
    """Compile; the result takes a mapping with all ``variables``.

    Raises CelSyntaxError for what is malformed, unknown or not supported here.
    """
    return _Parser(text, variables).parse()


class _Parser:
    """Recursive descent over one expression, one method per level of precedence."""

    def __init__(self, text: str, variables: frozenset[str]) -> None:
        self._text = text
        self._known = set(variables)
        self._tokens = self._scan()
        self._at = 0

    def _scan(self) -> list[tuple[str, str, int]]:
        tokens: list[tuple[str, str, int]] = []
        position = 0
        end = len(self._text.rstrip())
        while position < end:
            match = _TOKEN.match(self._text, position)
            if match is None or match.lastgroup is None:
                raise self._error(position, f"unexpected {self._text[position:].strip()[:1]!r}")
            tokens.append((match.lastgroup, match[match.lastgroup], match.start(match.lastgroup)))
            position = match.end()
        tokens.append(("end", "", end))
        return tokens

    def _error(self, position: int, why: str) -> CelSyntaxError:
        return CelSyntaxError(f"ERROR: <input>:1:{position + 1}: {why}")

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
            _, text, position = self._peek()
            raise self._error(position, f"Syntax error: expected {wanted!r}, found {text!r}")

    def parse(self) -> Eval:
        """The whole expression."""
        result = self._ternary()
        kind, text, position = self._peek()
        if kind != "end":
            raise self._error(position, f"Syntax error: unexpected {text!r}")
        return result

    def _ternary(self) -> Eval:
        condition = self._or()
        if not self._take("?"):
            return condition
        first = self._or()
        self._expect(":")
        second = self._ternary()
        return lambda env: first(env) if _boolean(condition(env)) else second(env)

    def _or(self) -> Eval:
        left = self._and()
        while self._take("||"):
            left = _absorbing(left, self._and(), decisive=True)
        return left

    def _and(self) -> Eval:
        left = self._relation()
        while self._take("&&"):
            left = _absorbing(left, self._relation(), decisive=False)
        return left

    def _relation(self) -> Eval:
        left = self._sum()
        while operator := self._take(*_COMPARISONS, "in"):
            left = _binary(operator, left, self._sum())
        return left

    def _sum(self) -> Eval:
        left = self._product()
        while operator := self._take("+", "-"):
            left = _binary(operator, left, self._product())
        return left

    def _product(self) -> Eval:
        left = self._unary()
        while operator := self._take("*", "/", "%"):
            left = _binary(operator, left, self._unary())
        return left

    def _unary(self) -> Eval:
        if self._take("!"):
            inner = self._unary()
            return lambda env: not _boolean(inner(env))
        if self._take("-"):
            if self._peek()[0] == "number":
                number = self._literal_number("-")
                return self._members_of(lambda _env: number)
            inner = self._unary()
            return lambda env: _fitting(-_number(inner(env)))
        return self._member()

    def _literal_number(self, sign: str = "") -> int | float:
        _, text, position = self._peek()
        self._at += 1
        if text[-1] in "uU":
            raise self._error(position, "unsigned numbers are not supported here")
        is_hex = text[:2] in ("0x", "0X")
        if not is_hex and any(mark in text for mark in ".eE"):
            return float(sign + text)
        number = int(sign + text, 16 if is_hex else 10)
        if not _INT_MIN <= number <= _INT_MAX:
            raise self._error(position, f"Syntax error: invalid int literal {sign + text}")
        return number

    def _member(self) -> Eval:
        return self._members_of(self._primary())

    def _members_of(self, value: Eval) -> Eval:
        while True:
            if self._take("."):
                value = self._selection(value)
            elif self._take("["):
                value = _index(value, self._ternary())
                self._expect("]")
            else:
                return value

    def _selection(self, target: Eval) -> Eval:
        kind, name, position = self._peek()
        if kind != "name":
            raise self._error(position, f"Syntax error: no viable alternative at input '.{name}'")
        self._at += 1
        if not self._take("("):
            return _select(target, name)
        if name in _MACROS:
            return self._macro(target, name)
        arguments = self._arguments()
        method = _METHODS.get(name)
        if method is None or len(arguments) != method[0]:
            raise self._error(position, f"method {name!r} is not supported here")
        return lambda env: method[1](target(env), *(a(env) for a in arguments))

    def _macro(self, target: Eval, name: str) -> Eval:
        kind, variable, position = self._peek()
        if kind != "name":
            raise self._error(position, "Syntax error: expected a variable")
        self._at += 1
        self._expect(",")
        was_known = variable in self._known
        self._known.add(variable)
        body = self._ternary()
        if not was_known:
            self._known.discard(variable)
        self._expect(")")
        return _comprehension(name, target, variable, body)

    def _arguments(self) -> list[Eval]:
        arguments: list[Eval] = []
        if self._take(")"):
            return arguments
        arguments.append(self._ternary())
        while self._take(","):
            arguments.append(self._ternary())
        self._expect(")")
        return arguments

    def _primary(self) -> Eval:
        kind, text, position = self._peek()
        if kind == "number":
            number = self._literal_number()
            return lambda _env: number
        self._at += 1
        if kind == "string":
            try:
                literal = _unquote(text)
            except KeyError as error:
                raise self._error(position, f"Syntax error: unknown escape {error}") from error
            return lambda _env: literal
        if kind == "op" and text == "(":
            inner = self._ternary()
            self._expect(")")
            return inner
        if kind == "op" and text == "[":
            return self._list()
        if kind != "name":
            what = text or "the end"
            raise self._error(position, f"Syntax error: unexpected {what!r}")
        if text in _CONSTANTS:
            constant = _CONSTANTS[text]
            return lambda _env: constant
        if self._take("("):
            return self._call(text, position)
        if text not in self._known:
            raise self._error(position, f"undeclared reference to '{text}'")
        return lambda env: env[text]

    def _list(self) -> Eval:
        items: list[Eval] = []
        if not self._take("]"):
            items.append(self._ternary())
            while self._take(","):
                items.append(self._ternary())
            self._expect("]")
        return lambda env: [item(env) for item in items]

    def _call(self, name: str, position: int) -> Eval:
        if name == "has":
            return self._has(position)
        arguments = self._arguments()
        function = _FUNCTIONS.get(name)
        if function is None or len(arguments) != 1:
            raise self._error(position, f"function {name!r} is not supported here")
        return lambda env: function(arguments[0](env))

    def _has(self, position: int) -> Eval:
        start = self._at
        depth = 1
        while depth:
            kind, text, _ = self._peek()
            if kind == "end":
                raise self._error(position, "Syntax error: has() is not closed")
            depth += (text == "(") - (text == ")") if kind == "op" else 0
            self._at += 1
        last = self._tokens[self._at - 2]
        dot = self._tokens[self._at - 3]
        if last[0] != "name" or dot[1] != "." or self._at - start < 4:
            raise self._error(position, "invalid argument to has() macro")
        end = self._at
        self._tokens[end - 3] = ("end", "", dot[2])
        self._at = start
        target = self._member()
        if self._at != end - 3:
            raise self._error(position, "invalid argument to has() macro")
        self._at = end
        return lambda env: _has_key(target(env), last[1])


def _unquote(text: str) -> str:
    if text[0] in "rR":
        return text[2:-1]
    return _ESCAPE.sub(_unescape, text[1:-1])


def _unescape(match: re.Match[str]) -> str:
    code = match[1]
    if len(code) == 1:
        return _ESCAPES[code]
    return chr(int(code[1:], 16) if code[0] in "xuU" else int(code, 8))


def _boolean(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise CelError("no such overload")


def _number(value: Any) -> Any:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    raise CelError("no such overload")


def _fitting(number: Any) -> Any:
    """A result of arithmetic; an int that needs more than 64 bits is an error."""
    if isinstance(number, int) and not _INT_MIN <= number <= _INT_MAX:
        raise CelError("integer overflow")
    return number


def _pair(left: Any, right: Any) -> tuple[Any, Any]:
    """Two numbers of one type: int and double are not added."""
    if isinstance(_number(left), float) is not isinstance(_number(right), float):
        raise CelError("no such overload")
    return left, right


def _absorbing(left: Eval, right: Eval, *, decisive: bool) -> Eval:
    """``||`` and ``&&``: one side that decides hides an error of the other."""

    def evaluate(env: Env) -> bool:
        try:
            if _boolean(left(env)) is decisive:
                return decisive
        except CelError:
            if _boolean(right(env)) is decisive:
                return decisive
            raise
        return _boolean(right(env))

    return evaluate


def _equal(left: Any, right: Any) -> bool:
    if isinstance(left, bool) or isinstance(right, bool):
        return left is right
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_equal, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_equal(left[k], right[k]) for k in left)
    return bool(left == right)


def _binary(operator: str, left: Eval, right: Eval) -> Eval:
    function = _OPERATORS[operator]
    return lambda env: function(left(env), right(env))


def _ordered(compare: Callable[[Any, Any], bool]) -> Callable[[Any, Any], bool]:
    def evaluate(left: Any, right: Any) -> bool:
        for kind in (str, bool):
            if isinstance(left, kind) and isinstance(right, kind):
                return compare(left, right)
        return compare(_number(left), _number(right))

    return evaluate


def _add(left: Any, right: Any) -> Any:
    same = isinstance(left, str) and isinstance(right, str)
    if same or (isinstance(left, list) and isinstance(right, list)):
        return left + right
    return _arithmetic(lambda a, b: a + b)(left, right)


def _arithmetic(compute: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    return lambda left, right: _fitting(compute(*_pair(left, right)))


def _divide(left: Any, right: Any) -> Any:
    """Towards zero for int; a double divided by zero is infinite or no number."""
    _pair(left, right)
    if isinstance(left, int):
        if right == 0:
            raise CelError("division by zero")
        quotient = abs(left) // abs(right)
        return _fitting(quotient if (left < 0) is (right < 0) else -quotient)
    if right == 0:
        return (
            math.nan
            if left == 0 or math.isnan(left)
            else math.copysign(math.inf, math.copysign(1, left) * math.copysign(1, right))
        )
    return left / right


def _remainder(left: Any, right: Any) -> Any:
    """Of int alone, with the sign of the dividend."""
    _pair(left, right)
    if isinstance(left, float):
        raise CelError("no such overload")
    if right == 0:
        raise CelError("modulus by zero")
    return left - right * _divide(left, right) if right != -1 else 0


def _contained(item: Any, container: Any) -> bool:
    if isinstance(container, dict):
        return isinstance(item, str) and item in container
    if isinstance(container, list):
        return any(_equal(item, other) for other in container)
    raise CelError("no such overload")


_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "==": _equal,
    "!=": lambda a, b: not _equal(a, b),
    "<": _ordered(lambda a, b: a < b),
    "<=": _ordered(lambda a, b: a <= b),
    ">": _ordered(lambda a, b: a > b),
    ">=": _ordered(lambda a, b: a >= b),
    "in": _contained,
    "+": _add,
    "-": _arithmetic(lambda a, b: a - b),
    "*": _arithmetic(lambda a, b: a * b),
    "/": _divide,
    "%": _remainder,
}


def _select(target: Eval, name: str) -> Eval:
    def evaluate(env: Env) -> Any:
        value = target(env)
        if isinstance(value, dict):
            if name in value:
                return value[name]
            raise CelError(f"no such key: {name}")
        raise CelError(f"no such key: {name}" if value is None else "no such overload")

    return evaluate


def _has_key(value: Any, name: str) -> bool:
    if isinstance(value, dict):
        return name in value
    raise CelError(f"no such key: {name}" if value is None else "no such overload")


def _index(target: Eval, key: Eval) -> Eval:
    def evaluate(env: Env) -> Any:
        container, index = target(env), key(env)
        if isinstance(container, dict):
            if isinstance(index, str) and index in container:
                return container[index]
            raise CelError(f"no such key: {index}")
        if isinstance(container, list) and type(index) is int:
            if 0 <= index < len(container):
                return container[index]
            raise CelError(f"index out of bounds: {index}")
        raise CelError("no such overload")

    return evaluate


def _comprehension(name: str, target: Eval, variable: str, body: Eval) -> Eval:
    def evaluate(env: Env) -> Any:
        container = target(env)
        if not isinstance(container, list | dict):
            raise CelError("no such overload")
        values = (body({**env, variable: item}) for item in container)
        if name == "map":
            return list(values)
        if name == "filter":
            return [item for item, value in zip(container, values, strict=True) if _boolean(value)]
        if name == "exists_one":
            return [_boolean(value) for value in values].count(True) == 1
        is_exists = name == "exists"
        return _decided(body, [{**env, variable: item} for item in container], decisive=is_exists)

    return evaluate


def _decided(body: Eval, envs: list[Env], *, decisive: bool) -> bool:
    """A chain of ``||`` (exists) or ``&&`` (all): one that decides hides the errors of others."""
    failure: CelError | None = None
    for env in envs:
        try:
            if _boolean(body(env)) is decisive:
                return decisive
        except CelError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return not decisive


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    raise CelError("no such overload")


def _size(value: Any) -> int:
    if isinstance(value, str | list | dict):
        return len(value)
    raise CelError("no such overload")


def _matches(value: Any, pattern: Any) -> bool:
    try:
        if _NOT_IN_RE2.search(_text(pattern)):
            raise CelError(f"error parsing regexp: invalid or unsupported Perl syntax: {pattern}")
        return re.search(_text(pattern), _text(value)) is not None
    except re.error as error:
        raise CelError(f"error parsing regexp: {error}") from error


def _string(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e21:
        return str(int(value))
    return value if isinstance(value, str) else str(_number(value))


def _int(value: Any) -> int:
    if isinstance(value, float) and not _INT_MIN < value < _INT_MAX:  # NaN too
        raise CelError("integer overflow")
    try:
        number: int = _fitting(int(value if isinstance(value, str) else _number(value)))
    except ValueError as error:
        raise CelError(f"strconv.ParseInt: parsing {value!r}: invalid syntax") from error
    return number


_LOWER = {letter: letter + 32 for letter in range(ord("A"), ord("Z") + 1)}
_METHODS: dict[str, tuple[int, Callable[..., Any]]] = {
    "startsWith": (1, lambda v, p: _text(v).startswith(_text(p))),
    "endsWith": (1, lambda v, p: _text(v).endswith(_text(p))),
    "contains": (1, lambda v, p: _text(p) in _text(v)),
    "matches": (1, _matches),
    "lowerAscii": (0, lambda v: _text(v).translate(_LOWER)),
    "size": (0, _size),
}
_FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "size": _size,
    "string": _string,
    "int": _int,
}
