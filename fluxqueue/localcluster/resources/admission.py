"""Admission: NamespaceLifecycle, priority, node taint, mutating webhooks.

``api`` calls :meth:`Admission.admit` between decoding and ``prepare_create``/``prepare_update``.
"""

from __future__ import annotations

from typing import Any

from fluxqueue.localcluster.resources.registry import Registry, RequestContext, ResourceInfo

Obj = dict[str, Any]


class Admission:
    """The chain of admission plugins of one API server."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def admit(
        self,
        info: ResourceInfo,
        operation: str,
        obj: Obj | None,
        old: Obj | None,
        ctx: RequestContext,
    ) -> Obj | None:
        """Return the object to go on with (the same or a changed one); raises StatusError.

        ``operation`` is CREATE, UPDATE, DELETE or CONNECT; ``obj`` is None on DELETE.
        """
        return obj
