"""The journal: what a second start finds."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from localcluster.errors import InvalidSettings
from localcluster.server.journal import OWNER_POLL_S, VERSIONS_AHEAD, Journal
from localcluster.server.store import Store

MAPS = ("", "configmaps")


def config_map(name: str, value: str = "1") -> dict[str, Any]:
    """A ConfigMap."""
    return {"metadata": {"name": name, "namespace": "ns"}, "data": {"v": value}}


async def opened(path: Path) -> tuple[Store, Journal]:
    """A store on a journal, as a server start makes them."""
    store = Store()
    journal = Journal(path / "objects.sqlite3", store)
    journal.load()
    journal.start()
    return store, journal


async def test_a_clean_stop_loses_nothing(tmp_path: Path) -> None:
    """Objects and their versions are the same after a restart. The counter goes on."""
    store, journal = await opened(tmp_path)
    a = store.create(MAPS, config_map("a"))
    store.replace(MAPS, a, config_map("a", "2"))
    store.remove(MAPS, store.create(MAPS, config_map("gone")))
    last = store.rv
    await journal.stop()

    again, second = await opened(tmp_path)
    kept = again.list(*MAPS)
    assert [(o["metadata"]["name"], o["data"]["v"]) for o in kept] == [("a", "2")]
    assert again.rv == last
    assert again.create(MAPS, config_map("b")).rv == last + 1
    await second.stop()


async def test_a_successor_waits_for_what_its_predecessor_still_writes(tmp_path: Path) -> None:
    """As when the first is still ending while the second starts on the same folder."""
    store, journal = await opened(tmp_path)
    again = Store()

    def open_second() -> Journal:
        second = Journal(tmp_path / "objects.sqlite3", again)
        second.load()
        return second

    opening = asyncio.create_task(asyncio.to_thread(open_second))
    done, _ = await asyncio.wait({opening}, timeout=4 * OWNER_POLL_S)
    assert not done, "it must not read before the first has written"
    store.create(MAPS, config_map("late"))
    await journal.stop()
    second = await opening
    assert [o["metadata"]["name"] for o in again.list(*MAPS)] == ["late"]
    second.start()
    await second.stop()


async def test_a_folder_that_stays_in_use_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two clusters on one folder would overwrite each other. The message names it."""
    _, journal = await opened(tmp_path)
    monkeypatch.setattr("localcluster.server.journal.OWNER_WAIT_S", 0.0)
    with pytest.raises(InvalidSettings, match="in use") as refused:
        Journal(tmp_path / "objects.sqlite3", Store())
    assert str(tmp_path) in str(refused.value)
    await journal.stop()


async def test_history_does_not_survive(tmp_path: Path) -> None:
    """A watch from before the restart is expired, so clients list again."""
    store, journal = await opened(tmp_path)
    before = store.create(MAPS, config_map("a")).rv
    store.create(MAPS, config_map("b"))
    await journal.stop()
    again, second = await opened(tmp_path)
    assert again.bucket(MAPS).floor > before
    assert again.bucket(("", "pods")).floor == again.rv, "buckets made later, too"
    await second.stop()


async def test_after_a_crash_no_version_is_given_out_twice(tmp_path: Path) -> None:
    """What was written before the crash is there. The counter jumps ahead."""
    store, journal = await opened(tmp_path)
    store.create(MAPS, config_map("a"))
    journal._write(journal._take(), store.rv + VERSIONS_AHEAD)  # one batch, as the task writes it
    lost = store.create(MAPS, config_map("lost"))
    assert journal._task is not None
    journal._task.cancel()
    journal._thread.shutdown()
    journal._database.close()  # no stop(): the process died
    journal._owned.close()

    again, second = await opened(tmp_path)
    assert [o["metadata"]["name"] for o in again.list(*MAPS)] == ["a"]
    assert again.rv > lost.rv
    await second.stop()
