"""The small CEL evaluator: what it computes, and that it refuses what it does not know."""

from __future__ import annotations

from typing import Any

import pytest

from localcluster.types.cel import CelError, CelSyntaxError, compile_expression, kinds

VARIABLES = dict.fromkeys(("object", "oldObject", "request", "self", "oldSelf"), kinds.DYN)
DAEMON = {"metadata": {"ownerReferences": [{"kind": "DaemonSet"}]}}
MIRROR = {"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}}
PLAIN: dict[str, Any] = {"metadata": {"name": "a"}}
NO_DAEMON = (
    "!has(object.metadata.ownerReferences) || "
    '!object.metadata.ownerReferences.exists(o, o.kind == "DaemonSet")'
)
NO_MIRROR = (
    "!(has(object.metadata.annotations) && "
    '"kubernetes.io/config.mirror" in object.metadata.annotations)'
)


@pytest.mark.parametrize(
    ("text", "env", "value"),
    [
        ("!has(object.metadata.ownerReferences)", {"object": PLAIN}, True),
        ("!(has(object.metadata.ownerReferences))", {"object": DAEMON}, False),
        (NO_DAEMON, {"object": DAEMON}, False),
        (NO_DAEMON, {"object": PLAIN}, True),
        (NO_MIRROR, {"object": MIRROR}, False),
        (NO_MIRROR, {"object": PLAIN}, True),
        ('request.userInfo.username != "a"', {"request": {"userInfo": {"username": "b"}}}, True),
        ("self.size <= 1000 || self.priority > 5", {"self": {"size": 9000, "priority": 6}}, True),
        ("self == oldSelf", {"self": "a", "oldSelf": "b"}, False),
        ("1 + 2 * 3 == 7", {}, True),
        ("[1, 2].all(x, x > 0) && size('abc') == 3", {}, True),
        ("true ? 'a' : 'b'", {}, "a"),
        ("'name' in self", {"self": {"name": 1}}, True),
        ("self.matches('^[a-z]+$') && self.startsWith('a')", {"self": "abc"}, True),
    ],
)
def test_values(text: str, env: dict[str, Any], value: Any) -> None:
    """The expressions of our own configuration and of usual CRD rules."""
    assert compile_expression(text, VARIABLES)(env) == value


@pytest.mark.parametrize("text", ["object.x == 1 || true", "true || object.x == 1"])
def test_an_error_is_hidden_by_a_side_that_decides(text: str) -> None:
    """As the language defines || and &&."""
    assert compile_expression(text, VARIABLES)({"object": {}}) is True


def test_a_missing_key_is_an_error() -> None:
    """It is not false: the caller's failure policy decides."""
    with pytest.raises(CelError, match="no such key: metadata"):
        compile_expression("object.metadata.name == 'x'", VARIABLES)({"object": None})


@pytest.mark.parametrize(
    "text",
    [
        "object.nothing (",
        "unknown == 1",
        "object.(x)",
        "authorizer.group('x')",
        "object.name.format('x')",
        "duration('1s') == 1",
        "has(object)",
        "1 +",
        "a = b",
    ],
)
def test_what_is_not_supported_is_refused_when_compiled(text: str) -> None:
    """Never guessed at when it is evaluated."""
    with pytest.raises(CelSyntaxError):
        compile_expression(text, VARIABLES)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("[0, 1].exists(x, 1 / x == 1)", True),
        ("[1, 0].exists(x, 1 / x == 1)", True),
        ("[0, 2].all(x, 1 / x == 1)", False),
        ("[].all(x, 1 / x == 1)", True),
        ("[1, 2].exists_one(x, x == 1)", True),
        ("9223372036854775807 - 1", 9223372036854775806),
        ("-9223372036854775808", -(1 << 63)),
        ("9007199254740993 / 1", 9007199254740993),
        ("9007199254740993 % 10", 3),
        ("-7 / 2", -3),
        ("-7 % 2", -1),
        ("dyn(1) == 1.0 && 1 < 1.5", True),
        ("[dyn(true)] == [dyn(1)]", False),
        ("self == self", True),
        ("1.0 / 0.0 > 1e300", True),
        ("0x10 + 1", 17),
        ("'\\x41\\u00e9\\101\\n'", "A\u00e9A\n"),
        ("r'a\\d'", "a\\d"),
        ("size('h\u00e9llo')", 5),
        ("string(1.0) + string(2) + string(true)", "12true"),
        ("int('-5') + int(1.9)", -4),
        ("false < true", True),
    ],
)
def test_the_language_as_it_is_specified(text: str, value: Any) -> None:
    """Absorbed errors, 64 bits, whole numbers that are no doubles, escapes."""
    assert compile_expression(text, VARIABLES)({"self": {"a": [1, None]}}) == value


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("[0, 2].exists(x, 1 / x == 1)", "division by zero"),
        ("[0, 1].all(x, 1 / x == 1)", "division by zero"),
        ("[0, 1].exists_one(x, 1 / x == 1)", "division by zero"),
        ("9223372036854775807 + 1", "integer overflow"),
        ("-9223372036854775808 - 1", "integer overflow"),
        ("9223372036854775807 * 2", "integer overflow"),
        ("-(-9223372036854775808)", "integer overflow"),
        ("-9223372036854775808 / -1", "integer overflow"),
        ("dyn(1) + 1.0", "no such overload"),
        ("dyn(1.0) % dyn(1.0)", "no such overload"),
        ("1 % 0", "modulus by zero"),
        ("[1][dyn(true)]", "no such overload"),
        ("self[[1]]", "no such key"),
        ("int(1e300)", "integer overflow"),
        ("int('x')", "type conversion error"),
        ("'aa'.matches('(a)' + '\\\\1')", "error parsing regexp"),
        ("'a'.matches('(' + '')", "error parsing regexp"),
    ],
)
def test_errors_of_evaluation(text: str, why: str) -> None:
    """Each is a CelError, never an exception of Python's: the failure policy decides."""
    with pytest.raises(CelError, match=why):
        compile_expression(text, VARIABLES)({"self": {}})


@pytest.mark.parametrize("text", ["1u", "9223372036854775808", "'\\q'", "Thing{a: 1}"])
def test_literals_that_are_refused(text: str) -> None:
    """What cannot be honoured is not taken for something near it."""
    with pytest.raises(CelSyntaxError):
        compile_expression(text, VARIABLES)
