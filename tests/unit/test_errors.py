"""What a refusal says: the field, the value, the reason and the way out."""

from __future__ import annotations

import pytest

from fluxqueue.errors import InvalidInput, InvalidJobspec, InvalidSettings


@pytest.mark.parametrize(
    ("refusal", "text"),
    [
        (InvalidJobspec("must be 1 or more", where="count", value=-2),
         "count = -2: must be 1 or more"),
        (InvalidInput("is no day", where="begin", value="soon", hint="2030-01-31"),
         "begin = 'soon': is no day. Fix: 2030-01-31"),
        (InvalidInput("'soon' is no day", where="begin", value="soon"), "begin: 'soon' is no day"),
        (InvalidInput("is empty", where="/tmp/x", value="/tmp/x"), "/tmp/x: is empty"),
        (InvalidInput("has no 0", where="with[0].count", value=0), "with[0].count: has no 0"),
        (InvalidInput("is too small", where="with[0].count", value=0),
         "with[0].count = 0: is too small"),
        (InvalidInput("must be a list", where="tasks", value={"a": 1}), "tasks: must be a list"),
        (InvalidInput("must be short", where="name", value="x" * 500),
         f"name = '{'x' * 59}...: must be short"),
        (InvalidInput("is missing", where="tasks"), "tasks: is missing"),
        (InvalidInput("is wrong", value=5), "is wrong"),
    ],
)  # fmt: skip
def test_text_of_a_refusal(refusal: InvalidInput, text: str) -> None:
    """The value stands once: beside the field, or where the sentence has it."""
    assert str(refusal) == text


def test_values_of_settings_are_not_shown() -> None:
    """They may be secrets, as a database URL is."""
    url = "postgresql://me:secret@db/x"
    assert "secret" not in str(InvalidSettings("cannot be used", where="DATABASE_URL", value=url))
