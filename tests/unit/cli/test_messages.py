"""Messages break between words on a terminal, and nowhere else."""

from __future__ import annotations

import pytest

from fluxqueue.cli.messages import wrapped


@pytest.mark.parametrize(
    ("message", "width", "lines"),
    [
        ("a b c", 0, ["a b c"]),
        ("x" * 90, 80, ["x" * 90]),
        ("see https://example.org/a-b-c now", 24, ["see", "  https://example.org/a-b-c", "  now"]),
        ("first line\nsecond line of this", 20, ["first line", "second line of this"]),
        ("one two three four five", 20, ["one two three four", "  five"]),
    ],
)  # fmt: skip
def test_words_stay_whole(message: str, width: int, lines: list[str]) -> None:
    assert wrapped(message, width).splitlines() == lines
