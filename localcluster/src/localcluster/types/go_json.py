"""Errors of JSON in the words of Go's decoder, which clients of a real API server see."""

from __future__ import annotations

import json


def go_json_error(raw: bytes) -> str:
    """Return what Go's decoder says about a broken document (the common cases)."""
    text = raw.decode("utf-8", "replace")
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        position = error.pos
        while position < len(text) and text[position] in " \t\r\n":
            position += 1
        if position >= len(text):
            return "unexpected end of JSON input"
        looking = "looking for beginning of value"
        if "property name" in error.msg:
            looking = "looking for beginning of object key string"
        elif "delimiter" in error.msg:
            looking = "after object key" if ":" in error.msg else "after object key:value pair"
        elif error.msg == "Extra data":
            looking = "after top-level value"
        return f"invalid character '{text[position]}' {looking}"
    return "invalid JSON"
