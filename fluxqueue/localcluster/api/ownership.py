"""Which manager owns which field (stub until apply is there)."""

from __future__ import annotations

from typing import Any

from fluxqueue.localcluster.api.store import Entry
from fluxqueue.localcluster.resources.registry import RequestContext, ResourceInfo

Obj = dict[str, Any]


def after_create(stored: Obj, ctx: RequestContext, info: ResourceInfo, managed: object) -> object:
    """What to keep beside a new object."""
    return managed


def after_change(
    entry: Entry,
    stored: Obj,
    ctx: RequestContext,
    info: ResourceInfo,
    subresource: str,
    *,
    is_apply: bool,
) -> object:
    """What to keep beside a changed object."""
    return None
