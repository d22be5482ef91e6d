"""Server-side apply (not there yet)."""

from __future__ import annotations

from fluxqueue.localcluster.api.machinery import Machinery
from fluxqueue.localcluster.api.request import Answer, ApiRequest, Target
from fluxqueue.localcluster.resources.status import not_served


async def apply(machinery: Machinery, request: ApiRequest, target: Target) -> Answer:
    """PATCH with application/apply-patch+yaml."""
    raise not_served("server-side apply yet")
