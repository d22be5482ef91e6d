"""Documents that are not objects: health, version, discovery, OpenAPI.

Health is answered here. Providers (``discovery``, ``openapi``) answer the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from localcluster.server.request import Answer

_HEALTH = ("/healthz", "/readyz", "/livez")


class Provider(Protocol):
    """A provider of documents by path."""

    def find(self, path: str, accept: str) -> Answer | None:
        """Return the document, or None."""


class DocumentChain:
    """Health first, then each provider in turn."""

    def __init__(self, providers: Sequence[Provider]) -> None:
        self._providers = providers

    def find(self, path: str, accept: str) -> Answer | None:
        """Return the first document that a provider has for the path."""
        if path.startswith(_HEALTH) and path.rstrip("/").split("/")[1] in (
            "healthz",
            "readyz",
            "livez",
        ):
            return Answer(200, b"ok", "text/plain; charset=utf-8")
        for provider in self._providers:
            if (answer := provider.find(path, accept)) is not None:
                return answer
        return None
