"""An object of a kind that is no entry: how rows, Events and patches reach it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Reference:
    """What makes pods. ``resource``: its plural; ``suspend``: path of the field that keeps it from
    having any, empty where it is not held by that.
    """

    api_version: str
    kind: str
    name: str
    uid: str
    resource: str = ""
    suspend: str = ""

    def to_json(self) -> dict[str, str]:
        """As rows have it."""
        return asdict(self)


def read_reference(stored: Mapping[str, Any] | None) -> Reference | None:
    """What ``Reference.to_json`` wrote; None where nothing was."""
    return None if stored is None else Reference(**stored)
