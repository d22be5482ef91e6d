"""Label and field selectors as the real server parses them, including error messages.

Grammar and messages follow ``k8s.io/apimachinery/pkg/labels`` (lexer and parser) and
``pkg/fields``. Reads, watches and deletecollection call it. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Labels = Mapping[str, str]

_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")
_DNS = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_VALUE = re.compile(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?")

_NAME_HELP = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    "validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
_VALUE_HELP = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',"
    "  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
_DNS_HELP = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    "for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')"
)


class SelectorError(ValueError):
    """The selector cannot be parsed. The text is the server's message."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """One term. ``op`` is in, notin, exists, !, gt, lt (``=`` is ``in`` with one value)."""

    key: str
    op: str
    values: frozenset[str]

    def matches(self, labels: Labels) -> bool:
        """Return whether the labels match (a missing key matches notin)."""
        value = labels.get(self.key)
        if self.op == "in":
            return value is not None and value in self.values
        if self.op == "notin":
            return value is None or value not in self.values
        if self.op == "exists":
            return value is not None
        if self.op == "!":
            return value is None
        return value is not None and _compares(value, next(iter(self.values)), self.op)


def _compares(value: str, bound: str, op: str) -> bool:
    try:
        left, right = int(value), int(bound)
    except ValueError:
        return False
    return left > right if op == "gt" else left < right


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """Requirements that must all hold. An empty selector matches everything."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Labels) -> bool:
        """Return whether the labels meet all requirements."""
        return all(r.matches(labels) for r in self.requirements)


_SPECIAL = {")", ",", "!", "(", "=", "==", "!=", ">", "<"}
_TOKEN = re.compile(r"\s*(==|!=|[=!<>(),]|[^\s=!<>(),]+)")


def _tokens(text: str) -> list[str]:
    found: list[str] = []
    position = 0
    while match := _TOKEN.match(text, position):
        found.append(match.group(1))
        position = match.end()
    return found


class _Parser:
    def __init__(self, text: str) -> None:
        self._words = _tokens(text)
        self._at = 0

    def _peek(self) -> str:
        return self._words[self._at] if self._at < len(self._words) else ""

    def _next(self) -> str:
        word = self._peek()
        self._at += 1
        return word

    @staticmethod
    def _is_identifier(word: str) -> bool:
        return bool(word) and word not in _SPECIAL

    def parse(self) -> tuple[Requirement, ...]:
        terms: list[Requirement] = []
        while True:
            word = self._peek()
            if word == "":
                return tuple(terms)
            if not (self._is_identifier(word) or word == "!"):
                raise SelectorError(f"found '{word}', expected: !, identifier, or 'end of string'")
            terms.append(self._requirement())
            word = self._next()
            if word == "":
                return tuple(terms)
            if word != ",":
                raise SelectorError(f"found '{word}', expected: ',' or 'end of string'")
            following = self._peek()
            if not (self._is_identifier(following) or following == "!"):
                raise SelectorError(f"found '{following}', expected: identifier after ','")

    def _requirement(self) -> Requirement:
        word = self._next()
        is_negated = word == "!"
        key = self._next() if is_negated else word
        if not self._is_identifier(key):
            raise SelectorError(f"unable to parse requirement: found '{key}', expected: identifier")
        _check_key(key)
        if is_negated:
            return Requirement(key, "!", frozenset())
        if self._peek() in ("", ","):
            return Requirement(key, "exists", frozenset())
        op = self._next()
        if op in ("in", "notin"):
            return Requirement(key, op, self._values(key))
        if op in ("=", "==", "!=", ">", "<"):
            return _single(key, op, self._exact())
        raise SelectorError(
            f"unable to parse requirement: found '{op}', expected: in, notin, =, ==, !=, gt, lt"
            if not self._is_identifier(op)
            else f"unable to parse requirement: found '{op}', expected: ',', ), or identifier"
        )

    def _exact(self) -> str:
        if self._peek() in ("", ","):
            return ""
        word = self._next()
        if not self._is_identifier(word):
            raise SelectorError(
                f"unable to parse requirement: found '{word}', expected: identifier"
            )
        return word

    def _values(self, key: str) -> frozenset[str]:
        word = self._next()
        if word != "(":
            raise SelectorError(f"unable to parse requirement: found '{word}' expected: '('")
        values: set[str] = set()
        expects_value = True
        while True:
            word = self._next()
            if self._is_identifier(word):
                _check_value(key, word, len(values))
                values.add(word)
                expects_value = False
            elif word in (",", ")"):
                if expects_value:
                    values.add("")
                if word == ")":
                    return frozenset(values)
                expects_value = True
                continue
            else:
                raise SelectorError(
                    f"unable to parse requirement: found '{word}', expected: ',' or ')'"
                )
            if self._peek() not in (",", ")"):
                raise SelectorError(
                    f"unable to parse requirement: found '{self._peek()}', expected: ',' or ')'"
                )


def _single(key: str, op: str, value: str) -> Requirement:
    if op in (">", "<"):
        if not re.fullmatch(r"[+-]?\d+", value):
            raise SelectorError(
                f'unable to parse requirement: values[0]: Invalid value: "{value}": '
                "for 'Gt', 'Lt' operators, the value must be an integer"
            )
        return Requirement(key, "gt" if op == ">" else "lt", frozenset({value}))
    _check_value(key, value, 0)
    return Requirement(key, "notin" if op == "!=" else "in", frozenset({value}))


def _key_problem(key: str) -> str:
    prefix, slash, name = key.partition("/")
    if not slash:
        prefix, name = "", key
    if "/" in name:
        return (
            "a valid label key " + _NAME_HELP + " with an optional DNS subdomain prefix and '/' "
            "(e.g. 'example.com/MyName')"
        )
    if slash and not prefix:
        return "prefix part must be non-empty"
    if slash and not _DNS.fullmatch(prefix):
        return "prefix part " + _DNS_HELP
    if not name:
        return "name part must be non-empty"
    if len(name) > 63:
        return "name part must be no more than 63 bytes"
    return "" if _NAME.fullmatch(name) else "name part " + _NAME_HELP


def _check_key(key: str) -> None:
    if problem := _key_problem(key):
        raise SelectorError(
            f'unable to parse requirement: <nil>: Invalid value: "{key}": {problem}'
        )


def _check_value(key: str, value: str, index: int) -> None:
    if len(value) > 63:
        problem = "must be no more than 63 bytes"
    elif _VALUE.fullmatch(value):
        return
    else:
        problem = _VALUE_HELP
    raise SelectorError(
        f'unable to parse requirement: values[{index}][{key}]: Invalid value: "{value}": {problem}'
    )


def parse_labels(text: str) -> LabelSelector:
    """Parse ``a=b,c in (d,e),!f``. Raises :class:`SelectorError`."""
    return LabelSelector(_Parser(text).parse())


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """Terms ``field = value`` and ``field != value``, which must all hold."""

    terms: tuple[tuple[str, str, bool], ...] = ()

    def matches(self, fields: Mapping[str, str]) -> bool:
        """Return whether the selectable fields meet all terms. Missing fields count as empty."""
        return all((fields.get(k, "") == v) is is_equal for k, v, is_equal in self.terms)

    def required(self, name: str) -> str | None:
        """Return the value that ``name`` must have, if a term says so."""
        return next((v for k, v, is_equal in self.terms if k == name and is_equal), None)


def _unescape(value: str, term: str) -> str:
    out: list[str] = []
    is_escaped = False
    for char in value:
        if is_escaped:
            if char not in "\\,=":
                raise SelectorError(f"invalid field selector: invalid escape sequence: \\{char}")
            out.append(char)
            is_escaped = False
        elif char == "\\":
            is_escaped = True
        elif char in ",=":
            raise SelectorError(f"invalid selector: '{term}'; can't understand '{term}'")
        else:
            out.append(char)
    if is_escaped:
        raise SelectorError("invalid field selector: invalid trailing escape")
    return "".join(out)


def _split_terms(text: str) -> list[str]:
    return [t for t in re.split(r"(?<!\\),", text) if t]


_FIELD_OP = re.compile(r"!=|==|=")


def parse_fields(text: str) -> FieldSelector:
    """Parse ``spec.nodeName=a,status.phase!=Failed``. Raises :class:`SelectorError`."""
    terms: list[tuple[str, str, bool]] = []
    for term in _split_terms(text):
        match = _FIELD_OP.search(term)
        if match is None:
            raise SelectorError(f"invalid selector: '{text}'; can't understand '{term}'")
        key, value = term[: match.start()], _unescape(term[match.end() :], term)
        terms.append((key, value, match.group() != "!="))
    return FieldSelector(tuple(terms))


def check_fields(selector: FieldSelector, known: Callable[[str], bool], text: str) -> None:
    """Refuse unknown fields. ``text`` is the message, with ``{}`` for the field."""
    for key, _value, _is_equal in selector.terms:
        if not known(key):
            raise SelectorError(text.format(key))
