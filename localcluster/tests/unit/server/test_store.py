"""The store: versions, history, watches of one bucket, expiry."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from localcluster.kinds.registry import metadata_fields
from localcluster.server.selectors import FieldSelector, parse_fields, parse_labels
from localcluster.server.store import FIRST_VERSION, Event, StaleWrite, Store
from localcluster.server.watch import ObjectForm, Selection, Watcher

MAPS = ("", "configmaps")


def config_map(name: str, value: str = "1", **labels: str) -> dict[str, Any]:
    """A ConfigMap as the handlers hand it to the store."""
    meta: dict[str, Any] = {"name": name, "namespace": "ns"}
    if labels:
        meta["labels"] = labels
    return {"kind": "ConfigMap", "apiVersion": "v1", "metadata": meta, "data": {"v": value}}


def watcher(store: Store, labels: str = "", fields: str = "", namespace: str = "") -> Watcher:
    """A started watch of the config maps."""
    selection = Selection(
        namespace,
        parse_labels(labels),
        parse_fields(fields) if fields else FieldSelector(),
        metadata_fields,
    )
    made = Watcher(store.bucket(MAPS), selection, ObjectForm("v1", None))
    made.start()
    return made


def taken(watch: Watcher) -> list[tuple[str, str, str]]:
    """(type, name, resourceVersion) of all waiting lines."""
    events = [orjson.loads(line) for line in watch.take().splitlines()]
    return [
        (e["type"], e["object"]["metadata"]["name"], e["object"]["metadata"]["resourceVersion"])
        for e in events
    ]


def test_versions_rise_and_the_stored_object_is_a_new_one() -> None:
    """Each write gets a larger version. The caller's dict is not changed."""
    store = Store()
    given = config_map("a")
    first = store.create(MAPS, given)
    second = store.replace(MAPS, first, config_map("a", "2"))
    assert first.rv == FIRST_VERSION + 1
    assert second.rv > first.rv
    assert "resourceVersion" not in given["metadata"]
    assert first.obj["data"] == {"v": "1"}, "the old entry is immutable"
    assert orjson.loads(second.raw) == second.obj


def test_a_write_for_an_older_state_is_stale() -> None:
    """Optimistic concurrency: the second of two writers that read the same state loses."""
    store = Store()
    read = store.create(MAPS, config_map("a"))
    store.replace(MAPS, read, config_map("a", "2"))
    with pytest.raises(StaleWrite):
        store.replace(MAPS, read, config_map("a", "3"))
    with pytest.raises(StaleWrite):
        store.remove(MAPS, read)
    with pytest.raises(StaleWrite):
        store.create(MAPS, config_map("a"))


def test_deletion_has_a_version_of_its_own() -> None:
    """The DELETED event shows the last content under a new version."""
    store = Store()
    watch = watcher(store)
    entry = store.create(MAPS, config_map("a"))
    gone = store.remove(MAPS, entry)
    assert gone.rv > entry.rv
    assert taken(watch) == [("ADDED", "a", str(entry.rv)), ("DELETED", "a", str(gone.rv))]
    assert store.get(*MAPS, "ns", "a") is None


def test_leaving_a_selector_shows_the_previous_content_under_the_new_version() -> None:
    """An object that leaves is DELETED with what it was, one that enters is ADDED."""
    store = Store()
    watch = watcher(store, labels="q=in")
    entry = store.create(MAPS, config_map("a", q="in"))
    out = store.replace(MAPS, entry, config_map("a", "2", q="out"))
    back = store.replace(MAPS, out, config_map("a", "3", q="in"))
    lines = [orjson.loads(line) for line in watch.take().splitlines()]
    assert [line["type"] for line in lines] == ["ADDED", "DELETED", "ADDED"]
    left = lines[1]["object"]
    assert left["data"] == {"v": "1"}
    assert left["metadata"]["labels"] == {"q": "in"}
    assert left["metadata"]["resourceVersion"] == str(out.rv)
    assert lines[2]["object"]["metadata"]["resourceVersion"] == str(back.rv)


def test_a_deletion_outside_the_selector_is_silent() -> None:
    """No event tells of changes or the deletion of an object that never matched."""
    store = Store()
    watch = watcher(store, fields="metadata.name=a")
    other = store.create(MAPS, config_map("b"))
    store.remove(MAPS, store.replace(MAPS, other, config_map("b", "2")))
    assert taken(watch) == []


def test_a_namespace_watch_sees_only_its_namespace() -> None:
    """The namespace is a filter of its own."""
    store = Store()
    watch = watcher(store, namespace="other")
    store.create(MAPS, config_map("a"))
    there = config_map("b")
    there["metadata"]["namespace"] = "other"
    store.create(MAPS, there)
    assert [name for _, name, _ in taken(watch)] == ["b"]


def test_history_rebuilds_an_earlier_state() -> None:
    """Exact lists: creations, changes and deletions after a version are undone."""
    store = Store()
    bucket = store.bucket(MAPS)
    a = store.create(MAPS, config_map("a"))
    b = store.create(MAPS, config_map("b"))
    then = store.rv
    store.replace(MAPS, a, config_map("a", "2"))
    store.remove(MAPS, b)
    store.create(MAPS, config_map("c"))
    state = bucket.at_version(then, "ns")
    assert [(e.name, e.obj["data"]["v"]) for e in state] == [("a", "1"), ("b", "1")]
    assert [e.name for e in bucket.at_version(store.rv, "")] == ["a", "c"]
    assert [e.type for e in bucket.since(then)] == ["MODIFIED", "DELETED", "ADDED"]


def test_history_is_bounded_and_says_from_where_it_is_complete() -> None:
    """Events that fall out of the history raise the floor, below which watches are expired."""
    store = Store(history_events=2)
    bucket = store.bucket(MAPS)
    first = store.create(MAPS, config_map("a"))
    assert bucket.floor < first.rv
    store.create(MAPS, config_map("b"))
    store.create(MAPS, config_map("c"))
    assert bucket.floor == first.rv
    store.compact()
    assert bucket.floor == store.rv
    assert list(bucket.since(store.rv)) == []


def test_a_young_bucket_has_no_history_before_itself() -> None:
    """Custom resources: a version from before the definition is expired."""
    store = Store()
    store.create(MAPS, config_map("a"))
    assert store.bucket(("example.com", "things"), is_young=True).floor == store.rv
    assert store.bucket(("", "pods")).floor == FIRST_VERSION


def test_a_slow_watch_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that does not read cannot fill the memory."""
    monkeypatch.setattr("localcluster.server.watch.QUEUE_LINES", 3)
    store = Store()
    watch = watcher(store)
    for index in range(5):
        store.create(MAPS, config_map(f"m{index}"))
    assert watch.is_cut
    assert len(watch.take().splitlines()) == 3


def test_watchers_share_the_bytes_of_a_line() -> None:
    """An object is serialised once per write, however many watch it."""
    store = Store()
    events: list[Event] = []
    store.subscribe(lambda _storage, event: events.append(event))
    watches = [watcher(store) for _ in range(3)]
    store.create(MAPS, config_map("a"))
    lines = [w._lines[0] for w in watches]
    assert lines[0] is lines[1] is lines[2]
    assert list(events[0].lines.values()) == [lines[0]]


def test_listeners_see_every_event_until_they_stop() -> None:
    """In-process readers (definitions, journal) get events synchronously."""
    store = Store()
    seen: list[str] = []
    stop = store.subscribe(lambda storage, event: seen.append(f"{storage[1]} {event.type}"))
    entry = store.create(MAPS, config_map("a"))
    stop()
    store.remove(MAPS, entry)
    assert seen == ["configmaps ADDED"]
