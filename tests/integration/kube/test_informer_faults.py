"""Informer: a store that stays true through cuts, 410, relists and name reuse."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from fluxqueue.kube.client import KubeClient, WatchEvent
from fluxqueue.kube.informer import UNSEEN, Informer, key_of
from fluxqueue.kube.resources import PODS
from fluxqueue.workload.objects import Object
from tests.support.waiting import WAIT_S

from .conftest import FaultyApi, json_answer, status, stream


def _pod(name: str, version: int, uid: str = "") -> dict[str, Any]:
    return {
        "metadata": {
            "namespace": "n",
            "name": name,
            "uid": uid or f"uid-{name}",
            "resourceVersion": str(version),
            "managedFields": [],
        }
    }


def _listed(version: int, *pods: dict[str, Any]) -> dict[str, Any]:
    return {"metadata": {"resourceVersion": str(version)}, "items": list(pods)}


def _event(kind: str, pod: dict[str, Any]) -> dict[str, Any]:
    return {"type": kind, "object": pod}


async def _until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not condition():
            await asyncio.sleep(0.01)


class _Log:
    """Changes in order, as short words."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def __call__(self, old: Object | None, new: Object | None) -> None:
        def short(obj: Object | None) -> str:
            return f"{obj['metadata']['name']}@{obj['metadata']['resourceVersion']}" if obj else "-"

        self.lines.append(f"{short(old)} {short(new)}")


async def test_follows_and_resumes_after_a_cut(client: KubeClient, faulty: FaultyApi) -> None:
    """A cut connection is resumed at the last version, bookmarks included. No second list."""
    log = _Log()
    faulty.then(
        json_answer(_listed(5, _pod("a", 3))),
        stream(
            _event("ADDED", _pod("b", 6)),
            _event("BOOKMARK", {"metadata": {"resourceVersion": "8"}}),
            is_cut=True,
        ),
        stream(_event("MODIFIED", _pod("a", 9)), _event("DELETED", _pod("b", 10)), stays_open=True),
    )
    informer = Informer(client, PODS, on_change=log)
    informer.start()
    await _until(lambda: len(log.lines) == 4)
    await informer.stop()
    assert log.lines == ["- a@3", "- b@6", "a@3 a@9", "b@6 -"], (
        "its removal has a version of its own"
    )
    assert [seen.query.get("resourceVersion") for seen in faulty.seen] == [None, "5", "8"]
    assert (informer.relists, len(informer), informer.resource_version) == (1, 1, "10")


async def test_relist_replaces(client: KubeClient, faulty: FaultyApi) -> None:
    """After a 410: vanished objects are removals, unchanged ones are silent."""
    log = _Log()
    gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410}}
    faulty.then(
        json_answer(_listed(5, _pod("gone", 1), _pod("same", 2), _pod("changed", 3))),
        stream(gone),
        json_answer(_listed(20, _pod("same", 2), _pod("changed", 15), _pod("new", 16))),
        stream(stays_open=True),
    )
    informer = Informer(client, PODS, on_change=log)
    informer.start()
    await _until(lambda: len(faulty.seen) == 4)
    await informer.stop()
    assert log.lines[3:] == ["gone@1 -", "changed@3 changed@15", "- new@16"]
    assert faulty.seen[3].query["resourceVersion"] == "20"


async def test_reused_name_is_removal_and_addition(client: KubeClient, faulty: FaultyApi) -> None:
    """Same name, other uid: never a mere change, neither in a watch nor after a relist."""
    log = _Log()
    faulty.then(
        json_answer(_listed(5, _pod("a", 1, "u1"))),
        stream(_event("MODIFIED", _pod("a", 6, "u2")), {"type": "ERROR", "object": {"code": 410}}),
        json_answer(_listed(9, _pod("a", 8, "u3"))),
        stream(stays_open=True),
    )
    informer = Informer(client, PODS, on_change=log)
    informer.start()
    await _until(lambda: len(faulty.seen) == 4)
    await informer.stop()
    assert log.lines == ["- a@1", "a@1 -", "- a@6", "a@6 -", "- a@8"]


async def test_failures_before_the_first_list(client: KubeClient, faulty: FaultyApi) -> None:
    """500, 403 and a missing definition are waited out. Synced only tells of a real list."""
    faulty.then(status(500), status(403), status(404))
    informer = Informer(client, PODS, retry_cap_s=0.02)
    informer.start()
    await _until(lambda: len(faulty.seen) == 4)
    assert not informer.synced.is_set()
    faulty.then(json_answer(_listed(1)), stream(stays_open=True))
    await asyncio.wait_for(informer.synced.wait(), WAIT_S)
    await informer.stop()


async def test_transform_and_late_handlers(client: KubeClient, faulty: FaultyApi) -> None:
    """The store holds reduced objects. A handler added later sees what is there."""

    def slim(obj: Object) -> Object:
        obj["metadata"].pop("managedFields")
        return obj

    faulty.then(json_answer(_listed(5, _pod("a", 1))), stream(stays_open=True))
    informer = Informer(client, PODS, transform=slim)
    informer.start()
    await asyncio.wait_for(informer.synced.wait(), WAIT_S)
    late = _Log()
    informer.add_handler(late)
    await informer.stop()
    assert late.lines == ["- a@1"]
    stored = informer.get("n", "a")
    assert stored is not None
    assert "managedFields" not in stored["metadata"]


async def test_a_failing_handler_does_not_stop_others(
    client: KubeClient, faulty: FaultyApi
) -> None:
    """One observer's exception is logged. The store and the next observer go on."""

    def broken(old: Object | None, new: Object | None) -> None:
        raise RuntimeError("mine")

    log = _Log()
    informer = Informer(client, PODS, on_change=broken)
    informer.add_handler(log)
    faulty.then(json_answer(_listed(5, _pod("a", 1), _pod("b", 2))), stream(stays_open=True))
    informer.start()
    await asyncio.wait_for(informer.synced.wait(), WAIT_S)
    await informer.stop()
    assert log.lines == ["- a@1", "- b@2"]


async def test_own_writes_are_seen_at_once(client: KubeClient, faulty: FaultyApi) -> None:
    """An observed answer is stored before its event comes, and its event is then no change."""
    log = _Log()
    faulty.then(json_answer(_listed(5, _pod("a", 3))), stream(stays_open=True))
    informer = Informer(client, PODS, on_change=log)
    informer.start()
    await asyncio.wait_for(informer.synced.wait(), WAIT_S)
    informer.observe(_pod("b", 7))
    informer.observe(_pod("a", 8))
    informer.observe(_pod("a", 6))
    assert log.lines == ["- a@3", "- b@7", "a@3 a@8"]
    await informer.stop()


async def test_late_answers_do_not_raise_the_dead(client: KubeClient, faulty: FaultyApi) -> None:
    """An answer older than what the watch has delivered is ignored: its object may be gone."""
    log = _Log()
    faulty.then(
        json_answer(_listed(5)),
        stream(_event("ADDED", _pod("a", 6)), _event("DELETED", _pod("a", 7)), stays_open=True),
    )
    informer = Informer(client, PODS, on_change=log)
    informer.start()
    await _until(lambda: len(log.lines) == 2)
    informer.observe(_pod("a", 6))
    assert (len(informer), len(log.lines)) == (0, 2)
    await informer.stop()


async def test_deletion_of_a_predecessor_spares_its_successor(
    client: KubeClient, faulty: FaultyApi
) -> None:
    """A DELETED event names a uid. The observed new object of the same name stays."""
    faulty.then(json_answer(_listed(5, _pod("a", 3, "u1"))))
    informer = Informer(client, PODS)
    informer.start()
    await asyncio.wait_for(informer.synced.wait(), WAIT_S)
    informer.observe(_pod("a", 8, "u2"))
    faulty.then(
        stream(
            _event("DELETED", _pod("a", 7, "u1")),
            _event("ADDED", _pod("a", 8, "u2")),
            _event("ADDED", _pod("b", 9)),
            stays_open=True,
        )
    )
    await _until(lambda: informer.get("n", "b") is not None)
    stored = informer.get("n", "a")
    assert stored is not None
    assert stored["metadata"]["uid"] == "u2"
    await informer.stop()


async def test_events_told_twice_and_out_of_order(client: KubeClient, faulty: FaultyApi) -> None:
    """What is overtaken is not believed: no older state, and no object after its end."""
    log = _Log()
    faulty.then(
        json_answer(_listed(5, _pod("a", 3))),
        stream(
            _event("MODIFIED", _pod("a", 7)),
            _event("MODIFIED", _pod("a", 6)),
            _event("MODIFIED", _pod("a", 7)),
            _event("ADDED", _pod("b", 8)),
            _event("DELETED", _pod("b", 10)),
            _event("MODIFIED", _pod("b", 9)),
            _event("ADDED", _pod("c", 12, "new")),
            _event("DELETED", _pod("c", 11, "old")),
            _event("ADDED", _pod("d", 13)),
            stays_open=True,
        ),
    )
    informer = Informer(client, PODS, on_change=log)
    informer.start()
    await _until(lambda: bool(log.lines) and log.lines[-1] == "- d@13")
    await informer.stop()
    assert log.lines == ["- a@3", "a@3 a@7", "- b@8", "b@8 -", "- c@12", "- d@13"]
    assert {name for _, name in (item_key(one) for one in informer.items())} == {"a", "c", "d"}


def item_key(obj: Object) -> tuple[str, str]:
    """Namespace and name."""
    return obj["metadata"]["namespace"], obj["metadata"]["name"]


async def test_a_relist_goes_on_beside_the_watch(
    client: KubeClient, faulty: FaultyApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the watch has lost is found. What it tells while the list is on its way is newer."""
    log = _Log()
    faulty.then(
        json_answer(_listed(5, _pod("ends", 3), _pod("lost", 4))),
        stream(_event("ADDED", _pod("b", 12)), stays_open=True),
        json_answer(_listed(20, _pod("ends", 3), _pod("missed", 7), _pod("b", 12))),
    )
    informer = Informer(client, PODS, on_change=log)
    informer.start()
    await _until(lambda: len(log.lines) == 3)
    collect = informer._collect

    async def slowly() -> Any:
        listed = await collect()
        informer._apply(WatchEvent("DELETED", _pod("ends", 25)))
        informer._apply(WatchEvent("ADDED", _pod("late", 26)))
        return listed

    monkeypatch.setattr(informer, "_collect", slowly)
    await informer.relist()
    # The watch was behind the list, and tells now what is long over.
    informer._apply(WatchEvent("MODIFIED", _pod("lost", 15)))
    await informer.stop()
    assert log.lines[3:] == ["ends@3 -", "- late@26", "lost@4 -", "- missed@7"]
    assert sorted(name for _, name in map(key_of, informer.items())) == ["b", "late", "missed"]
    assert len(faulty.seen) == 3, "one watch, which went on"


async def test_a_relist_finds_a_server_that_was_restored(
    client: KubeClient, faulty: FaultyApi
) -> None:
    """It counts from lower versions again: the watch, which is past them, would tell of nothing."""
    log = _Log()
    restored = json_answer(_listed(30, _pod("a", 20)))
    faulty.then(
        json_answer(_listed(50, _pod("a", 20), _pod("b", 45))),
        stream(stays_open=True),
        restored,
        restored,
        stream(_event("ADDED", _pod("c", 31)), stays_open=True),
    )
    informer = Informer(client, PODS, on_change=log)
    informer.start()
    await _until(lambda: len(faulty.seen) == 2)
    await informer.relist()
    await _until(lambda: len(log.lines) == 4)
    await informer.stop()
    assert log.lines == ["- a@20", "- b@45", "b@45 -", "- c@31"]
    assert [seen.query.get("resourceVersion") for seen in faulty.seen] == [
        None,
        "50",
        None,
        None,
        "30",
    ]


async def test_the_last_state_of_a_deleted_object_is_told(
    client: KubeClient, faulty: FaultyApi
) -> None:
    """It may change and go in one moment: only the news of its end then tells how it ended."""
    changes: list[tuple[Any, Any]] = []

    def note(old: Object | None, new: Object | None) -> None:
        changes.append(((old or {}).get("status"), (new or {}).get("status")))

    faulty.then(
        json_answer(_listed(5, {**_pod("a", 3), "status": {"phase": "Running"}})),
        stream(
            _event("DELETED", {**_pod("a", 9), "status": {"phase": "Succeeded"}}), stays_open=True
        ),
    )
    informer = Informer(client, PODS, on_change=note)
    informer.start()
    await _until(lambda: len(changes) == 3)
    await informer.stop()
    running, succeeded = {"phase": "Running"}, {"phase": "Succeeded"}
    assert changes == [(None, running), (running, succeeded), (succeeded, None)]


async def test_what_went_in_a_gap_is_marked_as_unseen(
    client: KubeClient, faulty: FaultyApi
) -> None:
    """A relist shows that it is gone and not how it was at its end."""
    removed: list[Object] = []

    def note(old: Object | None, new: Object | None) -> None:
        if new is None and old is not None:
            removed.append(old)

    faulty.then(
        json_answer(_listed(5, _pod("a", 3), _pod("b", 4), _pod("c", 4))),
        stream(
            _event("DELETED", _pod("b", 6)),
            {"type": "ERROR", "object": {"kind": "Status", "code": 410}},
        ),
        json_answer(_listed(9, _pod("c", 9, uid="another"))),
        stream(stays_open=True),
    )
    informer = Informer(client, PODS, on_change=note)
    informer.start()
    await _until(lambda: len(removed) == 3)
    await informer.stop()
    told = {one["metadata"]["name"]: UNSEEN in one for one in removed}
    assert told == {"a": True, "b": False, "c": True}
