"""Reference to an object of a kind without entry, for rows, Events and patches. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Reference:
    """The object that makes pods.

    ``resource``: its plural. ``suspend``: path of the field that prevents pods, empty if that field
    does not hold it.
    """

    api_version: str
    kind: str
    name: str
    uid: str
    resource: str = ""
    suspend: str = ""

    def to_json(self) -> dict[str, str]:
        """Return the form for rows."""
        return asdict(self)


def read_reference(stored: Mapping[str, Any] | None) -> Reference | None:
    """Read what ``Reference.to_json`` wrote, or return None if nothing was written."""
    return None if stored is None else Reference(**stored)
