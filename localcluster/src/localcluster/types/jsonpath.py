"""The part of kubectl's JSONPath that printer columns and selectable fields use.

Examples are ``.a.b``, ``['a.b']``, ``.list[0]``, ``[*]`` and ``.list[?(@.type=="Ready")].status``.
Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

Step = Callable[[Any], list[Any]]

_PART = re.compile(
    r"""\.(?P<name>(?:[^\s.,*@\[\]{}\\]|\\.)+)
      | \[\s*(?P<index>-?\d+)\s*\]
      | \[\s*(?P<quoted>'[^']*'|"[^"]*")\s*\]
      | (?P<all>\[\*\]|\.\*)
      | \[\?\(\s*@\.(?P<key>[\w./-]+)\s*(?P<op>==|!=)\s*(?P<value>'[^']*'|"[^"]*"|[\w.-]+)\s*\)\]
    """,
    re.VERBOSE,
)


class JsonPathError(ValueError):
    """The path is not supported."""


def compile_path(text: str) -> Callable[[Any], list[Any]]:
    """Return a function that returns all values at the path. Raises JsonPathError."""
    text = text.strip()
    if text.startswith("{") and text.endswith("}"):
        text = text[1:-1]
    if not text.startswith((".", "[")):
        raise JsonPathError("must be a simple json path starting with .")
    steps: list[Step] = []
    position = 0
    while position < len(text):
        match = _PART.match(text, position)
        if match is None:
            raise JsonPathError(f"cannot read {text[position:]!r}")
        steps.append(_step(match))
        position = match.end()

    def find(value: Any) -> list[Any]:
        found = [value]
        for step in steps:
            found = [result for item in found for result in step(item)]
        return found

    return find


def _step(match: re.Match[str]) -> Step:
    if match["all"]:
        return lambda v: list(v.values()) if isinstance(v, dict) else list(v or ())
    if match["index"] is not None:
        index = int(match["index"])
        return lambda v: [v[index]] if isinstance(v, list) and -len(v) <= index < len(v) else []
    if match["key"]:
        return _filter(match["key"], match["op"] == "==", _literal(match["value"]))
    name = match["quoted"][1:-1] if match["quoted"] else re.sub(r"\\(.)", r"\1", match["name"])
    return lambda v: [v[name]] if isinstance(v, dict) and name in v else []


def _literal(text: str) -> Any:
    if text[0] in "'\"":
        return text[1:-1]
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.lstrip("-").isdigit() else text


def _filter(key: str, is_equal: bool, wanted: Any) -> Step:
    names = key.split(".")

    def evaluate(value: Any) -> list[Any]:
        kept: list[Any] = []
        for item in value if isinstance(value, list) else ():
            found = item
            for name in names:
                found = found.get(name) if isinstance(found, dict) else None
            if found is not None and (found == wanted) is is_equal:
                kept.append(item)
        return kept

    return evaluate
