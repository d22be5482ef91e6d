"""Functions of texts: patterns and conversions. ``functions`` uses them. Pure."""

from __future__ import annotations

import re

from localcluster.types.cel.values import INT_MAX, INT_MIN, CelError, fitting

_NOT_IN_RE2 = re.compile(r"\(\?(?:[=!]|<[=!])|\\[1-9]")
_TRUE, _FALSE = ("1", "t", "T", "TRUE", "true", "True"), ("0", "f", "F", "FALSE", "false", "False")


def compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern of RE2. Raises CelError."""
    if _NOT_IN_RE2.search(pattern):
        raise CelError(f"error parsing regexp: invalid or unsupported Perl syntax: {pattern}")
    try:
        return re.compile(pattern)
    except re.error as error:
        raise CelError(f"error parsing regexp: {error}") from error


def matches(text: str, pattern: str) -> bool:
    """Return whether the pattern occurs in the text."""
    return compiled(pattern).search(text) is not None


def to_bool(text: str) -> bool:
    """Parse a bool as Go does."""
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    raise CelError("type conversion error from 'string' to 'bool'")


def to_int(value: str | float) -> int:
    """Convert to int. A double loses its fraction."""
    if isinstance(value, float) and not INT_MIN < value < INT_MAX:  # NaN too
        raise CelError("integer overflow")
    try:
        number: int = fitting(int(value))
    except ValueError as error:
        raise CelError("type conversion error from 'string' to 'int'") from error
    return number


def to_double(text: str) -> float:
    """Parse a number as Go does."""
    try:
        return float(text)
    except ValueError as error:
        raise CelError("type conversion error from 'string' to 'double'") from error


def to_text(value: bool | int | float) -> str:
    """Return a value as cel-go writes it: 1.0 is 1."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer() and abs(value) < 1e21:
        return str(int(value))
    return str(value)


def decoded(value: bytes) -> str:
    """Return bytes decoded as UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise CelError("invalid UTF-8 in bytes, cannot convert to string") from error
