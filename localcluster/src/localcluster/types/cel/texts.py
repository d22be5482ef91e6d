"""Functions of texts: parts, patterns, conversions, formats. ``functions`` uses them. Pure."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from datetime import date, datetime
from typing import Any
from urllib.parse import urlsplit

from localcluster.types import names
from localcluster.types.cel import times
from localcluster.types.cel.values import (
    INT_MAX,
    INT_MIN,
    CelError,
    NamedFormat,
    Optional,
    fitting,
    kind_name,
)

_NOT_IN_RE2 = re.compile(r"\(\?(?:[=!]|<[=!])|\\[1-9]")
_LOWER = {letter: letter + 32 for letter in range(ord("A"), ord("Z") + 1)}
_UPPER = {letter + 32: letter for letter in range(ord("A"), ord("Z") + 1)}
_BLANKS = "\t\n\v\f\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(
    map(chr, range(0x2000, 0x200B))
)
_TRUE, _FALSE = ("1", "t", "T", "TRUE", "true", "True"), ("0", "f", "F", "FALSE", "false", "False")
_CLAUSE = re.compile(r"%(?:%|(?:\.(\d+))?([sdfbxXo])|(.?))", re.DOTALL)


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


def find(text: str, pattern: str) -> str:
    """Return the first occurrence, or an empty text."""
    found = compiled(pattern).search(text)
    return found[0] if found else ""


def find_all(text: str, pattern: str, most: int = -1) -> list[str]:
    """Return the occurrences from left to right, at most ``most`` of them unless negative."""
    found = [match[0] for match in compiled(pattern).finditer(text)]
    return found if most < 0 else found[:most]


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


def char_at(text: str, at: int) -> str:
    """Return one character, or an empty text at the end."""
    if not 0 <= at <= len(text):
        raise CelError(f"index out of range: {at}")
    return text[at : at + 1]


def index_from(text: str, part: str, start: int) -> int:
    """Return the first index of ``part`` at or after ``start``, or -1."""
    if not 0 <= start <= len(text):
        raise CelError(f"index out of range: {start}")
    return text.find(part, start)


def last_index_until(text: str, part: str, last: int) -> int:
    """Return the last index of ``part`` at or before ``last``, or -1."""
    if not 0 <= last <= len(text):
        raise CelError(f"index out of range: {last}")
    return text.rfind(part, 0, last + len(part))


def lower(text: str) -> str:
    """Convert only A to Z to lower case."""
    return text.translate(_LOWER)


def upper(text: str) -> str:
    """Convert only a to z to upper case."""
    return text.translate(_UPPER)


def split(text: str, separator: str, most: int = -1) -> list[str]:
    """Split in at most ``most`` parts. An empty separator splits into characters."""
    if most == 0:
        return []
    if separator:
        return text.split(separator, most - 1 if most > 0 else -1)
    if most < 0 or most >= len(text):
        return list(text)
    return [*text[: most - 1], text[most - 1 :]]


def substring(text: str, start: int, end: int | None = None) -> str:
    """Return the characters from ``start`` to before ``end``."""
    end = len(text) if end is None else end
    if not 0 <= start <= len(text):
        raise CelError(f"index out of range: {start}")
    if not 0 <= end <= len(text):
        raise CelError(f"index out of range: {end}")
    if start > end:
        raise CelError(f"invalid substring range. start: {start}, end: {end}")
    return text[start:end]


def trim(text: str) -> str:
    """Remove whitespace at both ends, as Unicode defines it."""
    return text.strip(_BLANKS)


def quoted(text: str) -> str:
    """Return the text in quotes, with escapes."""
    escapes = {"\a": "\\a", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    escapes |= {"\v": "\\v", "\\": "\\\\", '"': '\\"'}
    return '"' + "".join(escapes.get(letter, letter) for letter in text) + '"'


# -- "%s".format([x]) ------------------------------------------------------------------------------


def formatted(text: str, values: list[Any]) -> str:
    """Format with the clauses %s %d %f %b %x %X %o.

    Raises CelError for a clause that is unknown or has no value.
    """
    given = iter(values)

    def put(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%"
        if match[2] is None:
            raise CelError(f'unrecognized formatting clause "{match[3]}"')
        try:
            value = next(given)
        except StopIteration:
            at = len(values)
            raise CelError(f"index {at} out of range") from None
        return _clause(match[2], match[1], value)

    return _CLAUSE.sub(put, text)


def _clause(letter: str, digits: str | None, value: Any) -> str:
    kind = kind_name(value)
    if letter == "s":
        return _shown(value)
    if letter == "f" and kind == "double":
        return f"{value:.{digits or 6}f}"
    if letter == "b" and kind == "bool":
        return str(int(value))
    if letter in "xX" and kind in ("string", "bytes"):
        data = (value.encode() if isinstance(value, str) else value).hex()
        return data.upper() if letter == "X" else data
    if letter in "dboxX" and kind == "int":
        return format(value, letter)
    words = {"d": "decimal", "f": "fixed-point", "b": "binary", "o": "octal"}
    word = words.get(letter, "hex")
    raise CelError(f"error during formatting: {word} clause cannot take {kind}")


def _within(value: Any) -> str:
    """Return an item of a list or a map as it is written in an expression."""
    shown = _shown(value)
    match kind_name(value):
        case "string":
            return f'"{shown}"'
        case "double":
            return f"{value:.6f}"
        case "bytes":
            return f'b"{shown}"'
        case "timestamp" | "duration" as name:
            return f'{name}("{shown}")'
    return shown


def _shown(value: Any) -> str:
    match kind_name(value):
        case "list":
            return "[" + ", ".join(map(_within, value)) + "]"
        case "map":
            inner = sorted((_within(k), _within(v)) for k, v in value.items())
            return "{" + ", ".join(f"{k}:{v}" for k, v in inner) + "}"
        case "type":
            return str(value)
        case "null":
            return "null"
        case "bytes":
            return decoded(value)
        case "timestamp":
            return times.timestamp_text(value)
        case "duration":
            return times.duration_text(value)
        case "bool" | "int" | "double":
            return to_text(value)
        case "string":
            return str(value)
        case other:
            raise CelError(f"error during formatting: string clause cannot take {other}")


# -- format.dns1123Label().validate(x) -------------------------------------------------------------


def _uuid(text: str) -> list[str]:
    fits = re.fullmatch(
        r"(?i)[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12}", text
    )
    return [] if fits else ["does not match the UUID format"]


def _date(text: str) -> list[str]:
    try:
        date.fromisoformat(text if len(text) == 10 else "")
    except ValueError:
        return ["invalid date"]
    return []


def _datetime(text: str) -> list[str]:
    try:
        datetime.fromisoformat(text if len(text) > 10 else "")
    except ValueError:
        return ["invalid datetime"]
    return []


def _byte(text: str) -> list[str]:
    try:
        base64.b64decode(text, validate=True)
    except ValueError:
        return ["invalid base64"]
    return []


def _uri(text: str) -> list[str]:
    try:
        parts = urlsplit(text)
    except ValueError as error:
        return [str(error)]
    return [] if parts.scheme or text.startswith("/") else ["invalid URI"]


def _prefixed(rule: Callable[[str], list[str]]) -> Callable[[str], list[str]]:
    """Return the rule of a name that may end in "-" because more follows (generateName)."""
    return lambda text: rule(text[:-1] + "a" if text.endswith("-") else text)


NAMED_FORMATS = {
    name: NamedFormat(name, rule)
    for name, rule in {
        "dns1123Label": names.dns_label,
        "dns1123Subdomain": names.dns_subdomain,
        "dns1035Label": names.dns_label_1035,
        "qualifiedName": names.qualified_name,
        "dns1123LabelPrefix": _prefixed(names.dns_label),
        "dns1123SubdomainPrefix": _prefixed(names.dns_subdomain),
        "dns1035LabelPrefix": _prefixed(names.dns_label_1035),
        "labelValue": names.label_value,
        "uri": _uri,
        "uuid": _uuid,
        "byte": _byte,
        "date": _date,
        "datetime": _datetime,
    }.items()
}


def named_format(name: str) -> Optional:
    """Return the format of that name, if it exists."""
    found = NAMED_FORMATS.get(name)
    return Optional((found,)) if found else Optional()


def complaints(form: NamedFormat, text: str) -> Optional:
    """Return what is wrong with a text, or an empty optional."""
    found = form.complain(text)
    return Optional((list(found),)) if found else Optional()
