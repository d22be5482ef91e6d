"""YAML and JSON texts as plain Python data, with bounds against hostile documents.

The jobspec parser and the readers of ``graph`` call it. No tag ever makes a Python object. Depth,
size and the number of values are bounded *before* anything recursive runs, and aliases are refused.
So alias bombs and depth bombs cost nothing.
"""

from __future__ import annotations

import json
import re
from typing import Any

import orjson
import yaml

from fluxqueue.errors import InvalidInput

MAX_BYTES = 1 << 20
MAX_DEPTH = 100
MAX_VALUES = 200_000

_SHORTER = "leave parts out"

_INT = re.compile(r"[-+]?[0-9]{1,19}")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_SPECIAL = {".inf": float("inf"), "-.inf": float("-inf"), ".nan": float("nan")}
_PARSER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class PlainScalar(str):
    """A YAML string that was not quoted. Some Flux fields insist on quotes."""

    __slots__ = ()


def load(text: str | bytes, error: type[InvalidInput], max_bytes: int = MAX_BYTES) -> Any:
    """Read one YAML or JSON document.

    Raises
    ------
    InvalidInput
        As the subclass ``error``: too large, too deep, not UTF-8, not YAML, an alias, or a repeated
        key. ``where`` is the line.
    """
    if len(text) > max_bytes:
        raise error(f"is larger than {max_bytes} bytes", where="document", hint=_SHORTER)
    if isinstance(text, bytes):
        try:
            text = text.decode()
        except UnicodeDecodeError as failure:
            raise error(f"is not UTF-8: {failure.reason}", where="document") from failure
    if text.lstrip()[:1] in ("{", "["):
        found = _load_json(text)
        if found is not None:
            return found
    return _YamlReader(error).read(text)


def to_bytes(text: str | bytes, error: type[InvalidInput]) -> bytes:
    """Return ``text`` as UTF-8. Lone surrogates are refused as ``error``."""
    try:
        return text.encode() if isinstance(text, str) else text
    except UnicodeEncodeError as failure:
        raise error(f"is not UTF-8: {failure.reason}", where="document") from failure


def load_json(text: str | bytes, error: type[InvalidInput], max_bytes: int) -> Any:
    """Read one JSON document of at most ``max_bytes``.

    Raises
    ------
    InvalidInput
        As the subclass ``error``, with the line and column of the first mistake.
    """
    if len(text) > max_bytes:
        raise error(f"is larger than {max_bytes} bytes", where="document", hint=_SHORTER)
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError as failure:
        place = f"line {failure.lineno} column {failure.colno}"
        raise error(f"is not JSON: {failure.msg}", where=place) from failure


def _load_json(text: str) -> Any:
    """Return parsed JSON, or None if YAML must decide (errors, duplicate keys, depth)."""
    try:
        return json.loads(text, object_pairs_hook=_unique) if len(text) < 65536 else None
    except (ValueError, RecursionError):
        return None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("repeated key")
    return found


class _YamlReader:
    """Builds data from YAML events, so that nothing recursive sees an unbounded document."""

    def __init__(self, error: type[InvalidInput]) -> None:
        self.error = error
        self.stack: list[Any] = []
        self.keys: list[str | None] = []
        self.root: Any = None
        self.values = 0

    def read(self, text: str) -> Any:
        documents = 0
        try:
            for event in yaml.parse(text, Loader=_PARSER):
                if isinstance(event, yaml.DocumentStartEvent):
                    documents += 1
                    if documents > 1:
                        self._refuse("has more than one document", event)
                self._take(event)
        except (yaml.YAMLError, ValueError) as failure:
            mark = getattr(failure, "problem_mark", None)
            reason = getattr(failure, "problem", None) or getattr(failure, "reason", None)
            place = f"line {mark.line + 1}" if mark else "document"
            raise self.error(f"is not YAML: {reason or failure}", where=place) from failure
        return self.root

    def _take(self, event: Any) -> None:
        if isinstance(event, yaml.AliasEvent):
            self._refuse("YAML aliases are not accepted", event)
        elif isinstance(event, yaml.ScalarEvent):
            self._add(_scalar(event), event)
        elif isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
            if len(self.stack) >= MAX_DEPTH:
                self._refuse(f"is nested deeper than {MAX_DEPTH}", event)
            fresh: Any = {} if isinstance(event, yaml.MappingStartEvent) else []
            self._add(fresh, event)
            self.stack.append(fresh)
            self.keys.append(None)
        elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
            self.stack.pop()
            self.keys.pop()

    def _add(self, value: Any, event: Any) -> None:
        self.values += 1
        if self.values > MAX_VALUES:
            self._refuse(f"has more than {MAX_VALUES} values", event)
        if not self.stack:
            self.root = value
        elif isinstance(self.stack[-1], list):
            self.stack[-1].append(value)
        elif self.keys[-1] is None:
            if isinstance(value, (dict, list)):
                self._refuse("a key is a scalar", event)
            key = str(event.value)
            if key in self.stack[-1]:
                self._refuse(f"repeats the key {key!r}", event)
            self.keys[-1] = key
        else:
            self.stack[-1][self.keys[-1]] = value
            self.keys[-1] = None

    def _refuse(self, message: str, event: Any) -> None:
        raise self.error(message, where=f"line {event.start_mark.line + 1}")


def _scalar(event: Any) -> Any:
    text = str(event.value)
    if event.style:  # A plain scalar has None or "", depending on the parser.
        return text
    if text in ("", "~", "null"):
        return None
    if text in ("true", "false"):
        return text == "true"
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    return _SPECIAL.get(text.lower(), PlainScalar(text))
