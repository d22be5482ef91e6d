"""Fields of the specs of our own kinds: a mapping, a whole number, a list of texts.

Readers of FluxQueues, ResourceSharingPolicies and FluxNodePools call it. The API server checks most
fields by their definitions, but a row may hold anything. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluxqueue.errors import InvalidInput
from fluxqueue.workload.annotations import MAX_INT32


def as_mapping(value: object, where: str) -> Mapping[str, Any]:
    """Return a part of a spec, empty if it is left out.

    Raises
    ------
    InvalidInput
        It is no mapping. ``where`` is its path.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidInput(f"{value!r} is no mapping", where=where, value=value)
    return value


def as_whole(value: object, where: str, low: int, high: int = MAX_INT32) -> int:
    """Return a whole number from ``low`` to ``high``.

    Raises
    ------
    InvalidInput
        It is no such number. ``where`` is its path.
    """
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        hint = f"a whole number from {low} to {high}"
        raise InvalidInput(f"{value!r} is not usable", where=where, value=value, hint=hint)
    return value


def as_texts(value: object, where: str) -> tuple[str, ...]:
    """Return a list of names, empty if it is left out.

    Raises
    ------
    InvalidInput
        It is no list of texts. ``where`` is its path.
    """
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        hint = "write a list, such as [one, two]"
        raise InvalidInput(f"{value!r} is no list of names", where=where, value=value, hint=hint)
    return tuple(value)
