"""Events go after an hour without a new occurrence. Nothing else does."""

from __future__ import annotations

from typing import Any

from localcluster.kinds.admission import Admission
from localcluster.kinds.builtin import build_registry
from localcluster.server.expiry import EVENT_TTL_S, expire_events
from localcluster.server.machinery import Machinery, format_time
from localcluster.server.store import Store

NOW_S = 1_767_225_600.0


def event(name: str, age_s: float, **more: Any) -> dict[str, Any]:
    """An event that was made ``age_s`` ago."""
    meta = {"name": name, "namespace": "n", "creationTimestamp": format_time(NOW_S - age_s)}
    return {"metadata": meta, **more}


def test_only_events_without_recent_occurrence_go() -> None:
    """A repeated event lives from its last occurrence on."""
    registry = build_registry()
    machinery = Machinery(Store(), registry, Admission(registry), wall_s=lambda: NOW_S)
    store = machinery.store
    store.create(("", "events"), event("new", 10))
    store.create(("", "events"), event("old", EVENT_TTL_S + 10))
    recent = format_time(NOW_S - 60)
    store.create(("", "events"), event("repeated", 2 * EVENT_TTL_S, lastTimestamp=recent))
    series = {"lastObservedTime": recent.replace("Z", ".000001Z")}
    store.create(("", "events"), event("series", 2 * EVENT_TTL_S, series=series))
    store.create(("", "configmaps"), event("map", 2 * EVENT_TTL_S))
    assert expire_events(machinery) == 1
    left = {o["metadata"]["name"] for o in store.list("", "events")}
    assert left == {"new", "repeated", "series"}
    assert len(store.list("", "configmaps")) == 1
