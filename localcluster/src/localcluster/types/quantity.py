"""Resource quantities: parsing, comparing, and the canonical text of each value.

It follows ``k8s.io/apimachinery/pkg/api/resource``: ``1024Mi`` is ``1Gi``, ``0.5`` is ``500m``.
"""

from __future__ import annotations

import re
from decimal import ROUND_CEILING, Context, Decimal
from functools import lru_cache

_PATTERN = re.compile(
    r"^([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))"
    r"(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E|[eE][+-]?[0-9]+)?$"
)
_BINARY = {"Ki": 1, "Mi": 2, "Gi": 3, "Ti": 4, "Pi": 5, "Ei": 6}
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_DECIMAL_OF = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_BINARY_OF = {power: suffix for suffix, power in _BINARY.items()} | {0: ""}

_CONTEXT = Context(prec=80, rounding=ROUND_CEILING)
_NANO = Decimal("1e-9")
_MOST = Decimal(2**63 - 1)
"""What a number of more than 18 digits is taken for at most, as ParseQuantity has it."""
_DIGITS, _EXPONENT = 18, 40
"""Digits of a number that is never cut, and the largest power of ten that is kept apart."""

FORMAT_MESSAGE = (
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'"
)


class QuantityError(ValueError):
    """A text that is not a quantity."""


@lru_cache(maxsize=4096)
def _parse(text: str) -> tuple[Decimal, str]:
    """Return value and format ("si", "binary", "exponent")."""
    match = _PATTERN.match(text)
    if match is None:
        raise QuantityError(FORMAT_MESSAGE)
    number, suffix = Decimal(match[1]), match[2] or ""
    if len(number.as_tuple().digits) > _DIGITS:
        number = max(-_MOST, min(_MOST, number))
    if suffix in _BINARY:
        return number * (1024 ** _BINARY[suffix]), "binary"
    if suffix in _DECIMAL:
        return number.scaleb(_DECIMAL[suffix]), "si"
    sign, digits = ("-" if suffix[1] == "-" else ""), suffix[1:].lstrip("+-").lstrip("0")
    exponent = int(digits or "0") if len(digits) < 4 else _EXPONENT
    return number.scaleb(int(f"{sign}{min(_EXPONENT, exponent)}")), "exponent"


def value_of(text: str | int | float) -> Decimal:
    """Return the exact value. Raises QuantityError."""
    return _parse(str(text))[0]


@lru_cache(maxsize=4096)
def canonical(text: str) -> str:
    """Return the canonical text of the same value. Raises QuantityError."""
    value, style = _parse(text)
    value = _CONTEXT.quantize(value, _NANO)
    if value == 0:
        return "0"
    if style == "binary" and abs(value) >= 1024:
        number = int(value.to_integral_value(rounding=ROUND_CEILING))
        power = 0
        while power < 6 and number % 1024 == 0:
            number //= 1024
            power += 1
        return f"{number}{_BINARY_OF[power]}"
    nanos = int(value.scaleb(9))
    exponent = -9
    while exponent < 18 and nanos % 1000 == 0:
        nanos //= 1000
        exponent += 3
    if style == "exponent":
        return f"{nanos}e{exponent}" if exponent else str(nanos)
    return f"{nanos}{_DECIMAL_OF[exponent]}"
