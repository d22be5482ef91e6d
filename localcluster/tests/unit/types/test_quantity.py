"""Quantities of any size are read: the largest as the real server takes them, none as a crash."""

from __future__ import annotations

import pytest

from localcluster.types.quantity import canonical

MOST = str(2**63 - 1)


@pytest.mark.parametrize(
    ("text", "spelling"),
    [
        ("9" * 400, MOST),
        ("-" + "9" * 40, f"-{MOST}"),
        ("12E", "12E"),
        ("1e-99999", "1e-9"),
        ("0e999999999999", "0"),
    ],
)
def test_extreme_quantities(text: str, spelling: str) -> None:
    assert canonical(text) == spelling


def test_an_exponent_of_any_length_is_read() -> None:
    assert canonical("1e" + "9" * 3000) == canonical("1e40")
