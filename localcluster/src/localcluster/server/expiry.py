"""Events are kept for an hour, as in the real server. Nothing else expires by itself.

``server`` runs it as a task of its own.
"""

from __future__ import annotations

import asyncio
import calendar
import time

from localcluster.server.machinery import Machinery
from localcluster.server.store import Entry

EVENT_TTL_S = 3600.0
LOOK_EVERY_S = 60.0

_EVENTS = ("", "events")


def written_s(entry: Entry) -> float:
    """Return when an event was last written, or else its creation time."""
    obj = entry.obj
    series = obj.get("series") or {}
    for text in (series.get("lastObservedTime"), obj.get("lastTimestamp"), obj.get("eventTime")):
        if text:
            return _seconds(text)
    return _seconds(obj["metadata"]["creationTimestamp"])


def _seconds(text: str) -> float:
    return float(calendar.timegm(time.strptime(text[:19], "%Y-%m-%dT%H:%M:%S")))


def expire_events(machinery: Machinery) -> int:
    """Remove events older than the limit, and return their number."""
    store, oldest_s = machinery.store, machinery.wall_s() - EVENT_TTL_S
    old = [e for e in store.bucket(_EVENTS).objects.values() if written_s(e) < oldest_s]
    for entry in old:
        store.remove(_EVENTS, entry)
    return len(old)


async def keep_expiring(machinery: Machinery) -> None:
    """Repeat the check until cancelled."""
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        expire_events(machinery)
