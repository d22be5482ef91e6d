"""Label and field selectors: what they match and how they are refused."""

from __future__ import annotations

import pytest

from localcluster.server.selectors import (
    SelectorError,
    parse_fields,
    parse_labels,
)

LABELS = {"env": "prod", "tier": "2", "app.kubernetes.io/name": "x"}


@pytest.mark.parametrize(
    ("text", "is_matched"),
    [
        ("", True),
        ("env=prod", True),
        ("env==prod", True),
        ("env!=prod", False),
        ("nope!=prod", True),
        ("env", True),
        ("!env", False),
        ("! nope", True),
        ("env in (prod, dev)", True),
        ("env notin (prod)", False),
        ("nope notin (prod)", True),
        ("nope in (prod)", False),
        ("env in ()", False),
        ("env=", False),
        ("tier>1", True),
        ("tier<2", False),
        ("env>1", False),
        ("app.kubernetes.io/name=x,env", True),
        ("env=prod,tier=3", False),
    ],
)
def test_label_selectors(text: str, is_matched: bool) -> None:
    """Each operator, also on absent labels."""
    assert parse_labels(text).matches(LABELS) is is_matched


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a in (b", "unable to parse requirement: found '', expected: ',' or ')'"),
        ("env=a b", "found 'b', expected: ',' or 'end of string'"),
        ("=x", "found '=', expected: !, identifier, or 'end of string'"),
        ("a=b=c", "found '=', expected: ',' or 'end of string'"),
        ("env=prod,", "found '', expected: identifier after ','"),
        (
            "tier>abc",
            (
                "unable to parse requirement: values[0]: Invalid value: \"abc\": for 'Gt', 'Lt' "
                "operators, the value must be an integer"
            ),
        ),
    ],
)
def test_label_selector_refusals_in_the_words_of_the_server(text: str, message: str) -> None:
    """Messages as recorded from a real API server."""
    with pytest.raises(SelectorError) as caught:
        parse_labels(text)
    assert str(caught.value) == message


@pytest.mark.parametrize("text", ["-bad=x", "x/y/z=1", "a=" + "v" * 64, "/name=1"])
def test_bad_keys_and_values_are_refused(text: str) -> None:
    """Keys and values follow the rules for labels."""
    with pytest.raises(SelectorError, match="unable to parse requirement"):
        parse_labels(text)


@pytest.mark.parametrize(
    ("text", "is_matched"),
    [
        ("spec.nodeName=a", True),
        ("spec.nodeName==a", True),
        ("spec.nodeName!=a", False),
        ("spec.nodeName!=", True),
        ("status.phase=", True),
        ("spec.nodeName=a,status.phase!=Failed", True),
        (r"metadata.name=x\,y\=z", True),
    ],
)
def test_field_selectors(text: str, is_matched: bool) -> None:
    """Absent fields count as empty. Commas and equal signs can be escaped."""
    fields = {"spec.nodeName": "a", "metadata.name": "x,y=z"}
    assert parse_fields(text).matches(fields) is is_matched


def test_field_selector_that_is_none() -> None:
    """A term without an operator is refused with both its texts."""
    with pytest.raises(SelectorError) as caught:
        parse_fields("metadata.name")
    assert (
        str(caught.value) == "invalid selector: 'metadata.name'; can't understand 'metadata.name'"
    )
