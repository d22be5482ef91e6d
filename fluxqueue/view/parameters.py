"""Parameters of requests: what each may be, for the parser and the OpenAPI document. Pure.

An unknown parameter or an invalid value is refused. The error gives the name, the value and what is
allowed.
"""

from __future__ import annotations

import base64
import binascii
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import orjson

from fluxqueue.errors import InvalidInput
from fluxqueue.workload.annotations import parse_duration

LIMIT, LIMIT_MAX = 100, 500
"""The default and the maximum number of items of a page."""
TEXT_MAX = 253
NAMES_MAX = 50
TOKEN_MAX = 1024


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter.

    ``read`` converts its text, given the text, the name and the present time.
    """

    name: str
    text: str
    schema: Mapping[str, Any]
    read: Callable[[str, str, datetime], Any]
    is_required: bool = False
    default: Any = None


def word(name: str, text: str, *, is_required: bool = False) -> Parameter:
    """Return a parameter for a name or another short text."""
    schema = {"type": "string", "minLength": 1, "maxLength": TEXT_MAX}
    return Parameter(name, text, schema, _read_word, is_required)


def words(
    name: str, text: str, choices: Iterable[str] = (), default: Sequence[str] | None = None
) -> Parameter:
    """Return a parameter for a comma-separated list, of ``choices`` if there are any."""
    known = list(choices)
    item: dict[str, Any] = {"type": "string", **({"enum": known} if known else {})}
    schema: dict[str, Any] = {"type": "array", "items": item, "maxItems": NAMES_MAX}
    if default is not None:
        schema["default"] = list(default)

    def read(value: str, where: str, now: datetime) -> tuple[str, ...]:
        found = tuple(dict.fromkeys(_read_word(one, where, now) for one in value.split(",")))
        if len(found) > NAMES_MAX:
            raise InvalidInput(f"more than {NAMES_MAX}", where=where, hint="ask several times")
        if known and (unknown := [one for one in found if one not in known]):
            raise InvalidInput(
                "is not known", where=where, value=unknown[0], hint=f"one of {', '.join(known)}"
            )
        return found

    return Parameter(name, text, schema, read, default=default)


def moment(name: str, text: str) -> Parameter:
    """Return a parameter for a time or an age."""
    schema = {"type": "string", "maxLength": 40, "examples": ["2030-01-31T08:00:00Z", "7d"]}
    return Parameter(name, text, schema, read_moment)


def number(name: str, text: str, *, least: int, most: int, default: int) -> Parameter:
    """Return a parameter for a whole number."""
    schema = {"type": "integer", "minimum": least, "maximum": most, "default": default}

    def read(value: str, where: str, _: datetime) -> int:
        is_number = value.isascii() and value.isdigit() and len(value) < 10
        if not is_number or not least <= int(value) <= most:
            raise InvalidInput(
                "is not allowed", where=where, value=value, hint=f"give {least} to {most}"
            )
        return int(value)

    return Parameter(name, text, schema, read, default=default)


LIMITED = number(
    "limit", "Maximum number of items per page", least=1, most=LIMIT_MAX, default=LIMIT
)
CONTINUED = Parameter(
    "continue",
    "The `continue` of the last page: this page begins after it",
    {"type": "string", "maxLength": TOKEN_MAX},
    lambda value, where, _: read_token(value, where),
)


def read_moment(value: str, where: str, now: datetime) -> datetime:
    """Read a time with its zone (UTC without one), or an age such as ``7d``.

    Raises
    ------
    InvalidInput
        It is neither.
    """
    with suppress(ValueError):
        found = datetime.fromisoformat(value)
        return found if found.tzinfo else found.replace(tzinfo=now.tzinfo)
    with suppress(InvalidInput, OverflowError):
        return now - timedelta(seconds=parse_duration(value, where))
    raise InvalidInput(
        "is not a time", where=where, value=value, hint="write 2030-01-31T08:00:00Z, or an age: 12h"
    )


def _read_word(value: str, where: str, _: datetime) -> str:
    if not value or len(value) > TEXT_MAX or not value.isprintable():
        raise InvalidInput(
            "is not allowed", where=where, value=value, hint=f"1 to {TEXT_MAX} printable characters"
        )
    return value


@dataclass(frozen=True, slots=True)
class ViewQuery:
    """What a request asks for. The page begins behind the key ``after``."""

    values: Mapping[str, Any]
    limit: int = LIMIT
    after: Sequence[Any] | None = None
    namespaces: Sequence[str] | None = field(default=None)

    @property
    def sees_any(self) -> bool:
        """Whether the caller may see at least one namespace."""
        return self.namespaces is None or bool(self.namespaces)

    def get(self, name: str) -> Any:
        """Return the value of a parameter, or its default."""
        return self.values.get(name)


def parse(query: Mapping[str, str], known: Sequence[Parameter], now: datetime) -> ViewQuery:
    """Read the parameters of a request.

    Raises
    ------
    InvalidInput
        A parameter is unknown, missing, given twice, or has an invalid value.
    """
    by_name = {one.name: one for one in known}
    for name, value in query.items():
        if name not in by_name:
            raise InvalidInput(
                "no such parameter",
                where=name[:TEXT_MAX],
                value=value,
                hint=f"known are {', '.join(by_name)}",
            )
    counts = Counter(name for name, _ in query.items())  # its keys() has each name once
    if twice := [name for name, count in counts.items() if count > 1]:
        raise InvalidInput("is given twice", where=twice[0], hint="give it once")
    values: dict[str, Any] = {}
    for one in known:
        if one.name in query:
            values[one.name] = one.read(query[one.name], one.name, now)
        elif one.is_required:
            raise InvalidInput("is missing", where=one.name, hint=one.text)
        else:
            values[one.name] = one.default
    return ViewQuery(values, values.get("limit") or LIMIT, values.get("continue"))


# --- where a page begins -------------------------------------------------------------------------


def write_token(key: Sequence[Any]) -> str:
    """Write the key of the last item of a page. Times keep their microseconds."""
    text = orjson.dumps(list(key), default=str)
    return base64.urlsafe_b64encode(text).decode().rstrip("=")


def read_token(value: str, where: str) -> list[Any]:
    """Read what ``write_token`` wrote.

    Raises
    ------
    InvalidInput
        The text is not such a token.
    """
    try:
        padded = value + "=" * (-len(value) % 4)
        found = orjson.loads(base64.b64decode(padded, altchars=b"-_", validate=True))
    except (ValueError, binascii.Error, orjson.JSONDecodeError):
        found = None
    is_key = isinstance(found, list) and all(map(_can_be_asked_for, found))
    if not is_key or len(value) > TOKEN_MAX:
        raise InvalidInput(
            "was not given by this server", where=where, hint="begin again without `continue`"
        )
    assert isinstance(found, list), "as was just seen"
    return found


def _can_be_asked_for(part: Any) -> bool:
    """Return whether a statement accepts it: text without NUL, or a number of 64 bits."""
    if isinstance(part, str):
        return "\0" not in part
    return part is None or (isinstance(part, int) and abs(part) < 2**63)


def key_of(asked: ViewQuery, *kinds: type) -> tuple[Any, ...] | None:
    """Return the parts of a page key as ``kinds`` (int, str, datetime), None on the first page.

    Raises
    ------
    InvalidInput
        It is the key of another list.
    """
    if asked.after is None:
        return None
    with suppress(ValueError, TypeError, OverflowError):
        parts = [_as(kind, one) for kind, one in zip(kinds, asked.after, strict=True)]
        return tuple(parts)
    raise InvalidInput("belongs to another list", where="continue", hint="begin again without it")


def _as(kind: type, value: Any) -> Any:
    if kind is datetime:
        return datetime.fromisoformat(value)
    if type(value) is not kind or (isinstance(value, int) and abs(value) >= 2**63):
        raise ValueError(value)
    return value
