"""What strategies ask of a store, where there is none: for unit tests of resources."""

from __future__ import annotations

from typing import Any


class EmptyReader:
    """A store without objects."""

    def get(self, group: str, plural: str, namespace: str, name: str) -> dict[str, Any] | None:
        """Nothing is there."""
        return None

    def list(self, group: str, plural: str, namespace: str = "") -> list[dict[str, Any]]:
        """Nothing is there."""
        return []
