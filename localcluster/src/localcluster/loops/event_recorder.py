"""``EventRecorder``: events as the built-in controllers and the scheduler write them.

Recording never waits and never fails a controller. Events go through a bounded queue. If it
overflows, they are dropped and the log has their count. A repeated event increases its count in
place.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from typing import Any

from localcluster.client.calls import Client, PatchKind
from localcluster.client.resources import EVENTS
from localcluster.errors import ClientError
from localcluster.loops.objects import now, write_micro_time, write_time
from localcluster.obj import Obj

logger = logging.getLogger(__name__)

QUEUE_MAX = 20_000
REMEMBERED_MAX = 4096
WRITERS = 4

_Task = tuple[Obj, tuple[str, ...] | None]


def involved_object(obj: Obj) -> Obj:
    """Return the reference to ``obj`` that events have."""
    metadata = obj["metadata"]
    reference = {
        "kind": obj["kind"],
        "namespace": metadata.get("namespace"),
        "name": metadata["name"],
        "uid": metadata.get("uid"),
        "apiVersion": obj["apiVersion"],
        "resourceVersion": metadata.get("resourceVersion"),
    }
    return {key: value for key, value in reference.items() if value}


class EventRecorder:
    """Writes events for all controllers of the process."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._queue: asyncio.Queue[_Task] = asyncio.Queue(QUEUE_MAX)
        self._known: OrderedDict[tuple[str, ...], tuple[str, int]] = OrderedDict()
        self._tasks: list[asyncio.Task[None]] = []
        self._dropped = 0

    def start(self) -> None:
        """Start the writers."""
        self._tasks = [
            asyncio.create_task(self._write(), name=f"events {n}") for n in range(WRITERS)
        ]

    async def stop(self) -> None:
        """Stop. Events that are still queued are lost."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    def record(self, component: str, obj: Obj, kind: str, reason: str, message: str) -> None:
        """Record a core/v1 event with count and timestamps. ``kind`` is Normal or Warning."""
        at = write_time(now())
        involved = involved_object(obj)
        body = self._body(involved, kind, reason, message) | {
            "source": {"component": component},
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
            "reportingComponent": component,
        }
        same = (component, str(involved.get("uid")), involved["name"], kind, reason, message)
        self._put(body, same)

    def record_action(
        self, component: str, obj: Obj, kind: str, *, reason: str, message: str, action: str
    ) -> None:
        """Record an event in the scheduler's newer style: eventTime and action, no count."""
        body = self._body(involved_object(obj), kind, reason, message) | {
            "eventTime": write_micro_time(now()),
            "action": action,
            "reportingComponent": component,
            "reportingInstance": f"{component}-localcluster",
        }
        self._put(body, None)

    @staticmethod
    def _body(involved: Obj, kind: str, reason: str, message: str) -> Obj:
        namespace = involved.get("namespace") or "default"
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{involved['name']}.{time.time_ns():x}",
                "namespace": namespace,
            },
            "involvedObject": involved,
            "type": kind,
            "reason": reason,
            "message": message[:1024],
        }

    def _put(self, body: Obj, same: tuple[str, ...] | None) -> None:
        try:
            self._queue.put_nowait((body, same))
        except asyncio.QueueFull:
            self._dropped += 1
            if self._dropped % 1000 == 1:
                logger.warning("events dropped action=record count=%d", self._dropped)

    async def _write(self) -> None:
        while True:
            body, same = await self._queue.get()
            try:
                await self._write_one(body, same)
            except ClientError as error:
                # Expected while the namespace is being deleted. An event is never worth a retry.
                logger.debug("event not written action=record error=%s", error)

    async def _write_one(self, body: Obj, same: tuple[str, ...] | None) -> None:
        namespace: str = body["metadata"]["namespace"]
        known = self._known.get(same) if same is not None else None
        if known is None:
            name: str = body["metadata"]["name"]
            if same is not None:
                self._remember(same, name, 1)
            await self._client.create(EVENTS, namespace, body)
            return
        assert same is not None
        name, count = known
        self._remember(same, name, count + 1)
        change: dict[str, Any] = {"count": count + 1, "lastTimestamp": body["lastTimestamp"]}
        try:
            await self._client.patch(EVENTS, namespace, name, change, kind=PatchKind.MERGE)
        except ClientError:
            del self._known[same]  # It expired or was removed, so the next one starts a new count.
            raise

    def _remember(self, same: tuple[str, ...], name: str, count: int) -> None:
        self._known[same] = (name, count)
        self._known.move_to_end(same)
        if len(self._known) > REMEMBERED_MAX:
            self._known.popitem(last=False)
