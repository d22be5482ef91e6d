"""What two runs of the same work have in common: the fingerprint of the pods of a workload.

``controller.observing.read_workload`` makes it a fact. Run times are learned from ended runs with
the same fingerprint first (``prediction``). Image, commands, arguments and requests count, and how
many slots there are. What a tool writes anew for each run does not: identifiers, digests, dates.

It says nothing about who may read what. Two users with the same fingerprint are two classes. Pure.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from fluxqueue.workload.objects import Object

LENGTH = 16
"""Characters of a fingerprint."""

TEXT_MAX = 4_096
"""Characters of a command that count. A script in an argument can be a megabyte long."""

_UUID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", re.IGNORECASE)
_DATE = re.compile(r"\b\d{4}-\d\d-\d\d(?:[T_ ]\d\d[:-]?\d\d(?:[:-]?\d\d)?(?:\.\d+)?Z?)?")
# A word of hexadecimal digits counts as a digest if it has both letters and digits.
_DIGEST = re.compile(
    r"(?<![0-9a-z])(?=[a-f]*[0-9])(?=[0-9]*[a-f])[0-9a-f]{7,}(?![0-9a-z])", re.IGNORECASE
)
_NUMBER = re.compile(r"\d{6,}")
_GENERATED = (_UUID, _DATE, _DIGEST, _NUMBER)
"""Epoch seconds, identifiers of runs and dates without dashes have six digits or more. Shorter
numbers are parameters, such as ``--epochs=300``."""


def fingerprint(specs: Iterable[Object], size: int) -> str:
    """Return the fingerprint of pods with these specs, one for each kind, in ``size`` slots."""
    said = {"pods": [_pod(spec) for spec in specs], "size": size}
    written = orjson.dumps(said, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(written).hexdigest()[:LENGTH]


def _pod(spec: Object) -> list[Mapping[str, Any]]:
    return [
        {
            "image": without_generated(str(one.get("image", ""))),
            "command": _words(one.get("command")),
            "args": _words(one.get("args")),
            "requests": _quantities(one),
        }
        for one in spec.get("containers") or ()
    ]


def _words(written: Any) -> Sequence[str]:
    return [without_generated(str(one)) for one in written or ()]


def _quantities(container: Object) -> Mapping[str, str]:
    resources = container.get("resources") or {}
    found = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: str(amount) for name, amount in found.items()}


def without_generated(text: str) -> str:
    """Return ``text`` with ``#`` for each part that a tool makes anew for each run."""
    text = text[:TEXT_MAX]
    for pattern in _GENERATED:
        text = pattern.sub("#", text)
    return text
