"""The small CEL evaluator: what it computes, and that it refuses what it does not know."""

from __future__ import annotations

from typing import Any

import pytest

from localcluster.types.cel import CelError, CelSyntaxError, compile_expression

VARIABLES = frozenset({"object", "oldObject", "request", "self", "oldSelf"})
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
