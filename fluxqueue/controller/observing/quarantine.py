"""Quarantine objects that cannot be read or written, and report them.

Part of ``observer``. Every reader and the writer report here. An unusable object delays no other.
An Event, a metric and the view ``quarantine`` report it, and a condition if it has a FluxJob. The
report is removed when the object can be used again. This module decides nothing, and nothing waits
for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from fluxqueue.clock import Clock
from fluxqueue.db.database import Transaction
from fluxqueue.db.store.observations import note_unread
from fluxqueue.db.store.quarantined import Quarantined, store_quarantined
from fluxqueue.errors import InvalidInput, LostLeadership
from fluxqueue.fluxjob.faults import UNREADABLE, Fault, as_text
from fluxqueue.fluxjob.turns import first_in_turn
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.events import Involved, build_event, tell_event
from fluxqueue.kube.resources import ApiResource
from fluxqueue.process import metrics

logger = logging.getLogger(__name__)

EVERY_S = 1.0
"""Least interval (seconds) between two writes."""
RETRY_S = 5.0

WORKLOAD = "workload"
"""Kind of a workload with a FluxJob. Its key is the UID."""

NODE, QUEUE, FOREIGN, PRIORITY_CLASS, OWNER, FLUXJOB = (
    "node",
    "queue",
    "foreign",
    "priority class",
    "owner",
    "fluxjob",
)
"""Other kinds. The key is the name, or the UID where names are reused.

Sharing policies and node pools have the kinds of ``DirtyKind``.
"""

SHOWN_MAX = 1000
"""Most objects in the table. Namespaces take turns, and the metric counts all."""

INSTEAD = "it is set aside as it was last seen, and all others go on"

Begin = Callable[[], AbstractAsyncContextManager[Transaction]]


class Quarantine:
    """All objects in quarantine now.

    Parameters
    ----------
    begin : begins a transaction under the controller's term.
    """

    def __init__(self, client: KubeClient, clock: Clock, begin: Begin) -> None:
        self._client, self._clock, self._begin = client, clock, begin
        self._found: dict[tuple[str, str], Quarantined] = {}
        self._untold: dict[tuple[str, str], Involved | None] = {}
        self._more = asyncio.Event()
        # The rows are from the previous term, so write once even without troubles.
        self._more.set()

    def __contains__(self, key: object) -> bool:
        return key in self._found

    def note(
        self,
        kind: str,
        key: str,
        error: Exception,
        obj: Mapping[str, Any] | None = None,
        *,
        type_of: tuple[str, str] | None = None,
    ) -> None:
        """Quarantine an object. The same trouble again changes nothing.

        Parameters
        ----------
        type_of : apiVersion and kind of ``obj``, for the Event on it.
        """
        meta = (obj or {}).get("metadata") or {}
        found = Quarantined(
            kind,
            key,
            str(meta.get("namespace") or ""),
            str(meta.get("name") or key)[:253],
            said(error),
        )
        if self._found.get((kind, key)) == found:
            return
        metrics.OBJECTS_SET_ASIDE.labels(kind).inc()
        is_known = isinstance(error, InvalidInput)
        logger.error(
            "set aside",
            extra={"action": "observe", "kind": kind, "key": key, "error": found.reason},
            exc_info=None if is_known else error,
        )
        self._found[kind, key] = found
        involved = None
        if type_of is not None and {"name", "uid"} <= meta.keys():
            involved = Involved.of(obj or {}, api_version=type_of[0], kind=type_of[1])
        self._untold[kind, key] = involved
        self._more.set()

    def tell_of(
        self, resource: ApiResource, obj: Mapping[str, Any], error: Exception | None
    ) -> None:
        """Report that a watched object cannot be read, or (without an error) can be read again."""
        meta = obj.get("metadata") or {}
        key = "/".join(one for one in (meta.get("namespace"), meta.get("name")) if one)
        if error is None:
            self.clear(resource.key, key)
        else:
            self.note(resource.key, key, error, obj, type_of=(resource.api_version, resource.kind))

    def clear(self, kind: str, key: str) -> None:
        """Remove an object from quarantine because it can be used, or is gone.

        It is cheap if nothing is in quarantine.
        """
        if self._found and self._found.pop((kind, key), None) is not None:
            self._untold.pop((kind, key), None)
            logger.info("can be used again", extra={"kind": kind, "key": key})
            self._more.set()

    async def run(self) -> None:
        """Write and report until cancelled.

        Raises
        ------
        LostLeadership
            Another controller has begun a term.
        """
        while True:
            await self._more.wait()
            # Cleared before the write: a trouble noted during it leads to another write.
            self._more.clear()
            try:
                await self._write()
            except LostLeadership:
                raise
            except Exception as error:  # noqa: BLE001  nothing waits for this
                extra = {"action": "set aside", "error": str(error)}
                logger.warning("not written; tried again", extra=extra)
                self._more.set()
                await self._clock.sleep(RETRY_S)
            await self._clock.sleep(EVERY_S)

    async def _write(self) -> None:
        # A copy: troubles may be noted or cleared while this awaits.
        untold = dict(self._untold)
        present = first_in_turn([*self._found.values()], lambda one: one.namespace, SHOWN_MAX)
        async with self._begin() as tx:
            await store_quarantined(tx, present)
        for (kind, key), involved in untold.items():
            found = self._found.get((kind, key))
            if found is None:
                continue
            if kind == WORKLOAD and await self._note_on_row(key, found.reason):
                involved = None  # the row leads to a condition and an Event
            if involved is not None:
                await self._tell(involved, found.reason)
            if self._untold.get((kind, key)) == involved or kind == WORKLOAD:
                self._untold.pop((kind, key), None)

    async def _note_on_row(self, uid: str, reason: str) -> bool:
        async with self._begin() as tx:
            return await note_unread(tx, uid, Fault(UNREADABLE, "", reason, INSTEAD))

    async def _tell(self, involved: Involved, reason: str) -> None:
        event = build_event(
            involved,
            key=f"set-aside/{reason}",
            reason="Quarantined",
            message=f"cannot be used, and all others go on: {reason}",
            at_s=self._clock.now_s(),
            is_warning=True,
        )
        await tell_event(self._client, event)


def said(error: Exception) -> str:
    """Return the message of an error. A defect is named by its type."""
    text = as_text(error)
    return text if isinstance(error, InvalidInput) else f"{type(error).__name__}: {text}"
