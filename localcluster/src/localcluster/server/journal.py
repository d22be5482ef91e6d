"""Keeps the objects of a store on disk: one SQLite file, written in batches.

``server`` opens it if a data directory is given. A batch is one transaction and holds everything up
to one resourceVersion. So a crash loses at most the last ``FLUSH_EVERY_S`` and never leaves half of
a change. Watch history is not kept: after a restart older watches get 410.

One process at a time has the file, and the next one waits for it. A server that received SIGTERM
still writes what is left, and would overwrite what its successor had read.

Versions that were given out but not yet written must not be given out again. So the stored counter
runs ahead of the real one. A clean stop writes the real one.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import sqlite3
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO

import orjson

from localcluster.errors import InvalidSettings
from localcluster.server.store import Event, StorageKey, Store

log = logging.getLogger(__name__)

FLUSH_EVERY_S = 0.05
VERSIONS_AHEAD = 100_000
OWNER_WAIT_S = 30.0
OWNER_POLL_S = 0.05

_SCHEMA = """
CREATE TABLE IF NOT EXISTS objects (
    grp TEXT NOT NULL, plural TEXT NOT NULL, key TEXT NOT NULL,
    rv INTEGER NOT NULL, raw BLOB NOT NULL, PRIMARY KEY (grp, plural, key)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS counter (id INTEGER PRIMARY KEY CHECK (id = 1), rv INTEGER NOT NULL);
"""
_PUT = "INSERT OR REPLACE INTO objects (grp, plural, key, rv, raw) VALUES (?, ?, ?, ?, ?)"
_DROP = "DELETE FROM objects WHERE grp = ? AND plural = ? AND key = ?"
_COUNT = "INSERT OR REPLACE INTO counter (id, rv) VALUES (1, ?)"

_Row = tuple[str, str, str, int, bytes]
_Key = tuple[str, str, str]


class Journal:
    """One SQLite file. Call ``load`` first, then ``start``. ``stop`` writes what is left.

    Raises ``InvalidSettings`` if another process does not release the file within ``OWNER_WAIT_S``.
    """

    def __init__(self, path: Path, store: Store) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._owned = _own(path.with_suffix(".lock"))
        self._store = store
        self._pending: dict[_Key, _Row | None] = {}
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="localcluster-journal")
        self._database = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = NORMAL")
        self._database.executescript(_SCHEMA)
        self._task: asyncio.Task[None] | None = None
        self._has_work = asyncio.Event()

    def load(self) -> int:
        """Fill the store from the file and return the number of objects."""
        count = 0
        rows = self._database.execute("SELECT grp, plural, raw, rv FROM objects")
        for group, plural, raw, rv in rows:
            self._store.load((group, plural), orjson.loads(raw), raw, rv)
            count += 1
        found = self._database.execute("SELECT rv FROM counter").fetchone()
        if found is not None:
            self._store.resume(int(found[0]))
        return count

    def start(self) -> None:
        """Follow the store from now on (needs a running event loop)."""
        self._store.subscribe(self._note)
        self._task = asyncio.get_running_loop().create_task(self._run(), name="journal")
        self._task.add_done_callback(_report)

    def _note(self, storage: StorageKey, event: Event) -> None:
        entry = event.entry
        key = (*storage, entry.key)
        # Only the last state of an object within a batch is written.
        self._pending[key] = None if event.type == "DELETED" else (*key, entry.rv, entry.raw)
        self._has_work.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._has_work.wait()
            await asyncio.sleep(FLUSH_EVERY_S)
            batch, rv = self._take(), self._store.rv + VERSIONS_AHEAD
            await loop.run_in_executor(self._thread, self._write, batch, rv)

    def _take(self) -> dict[_Key, _Row | None]:
        batch, self._pending = self._pending, {}
        self._has_work.clear()
        return batch

    def _write(self, batch: dict[_Key, _Row | None], rv: int) -> None:
        database = self._database
        database.execute("BEGIN IMMEDIATE")
        try:
            database.executemany(_PUT, [row for row in batch.values() if row is not None])
            database.executemany(_DROP, [key for key, row in batch.items() if row is None])
            database.execute(_COUNT, (rv,))
        except BaseException:
            database.execute("ROLLBACK")
            raise
        database.execute("COMMIT")

    async def stop(self) -> None:
        """Write what is left and the exact version, and close the file."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._thread, self._write, self._take(), self._store.rv)
        self._thread.shutdown()
        self._database.close()
        self._owned.close()


def _own(path: Path) -> IO[str]:
    """Return a lock on the file until it is closed.

    It may block, because there are no requests to serve before the start.
    """
    file = path.open("a+")
    deadline = time.monotonic() + OWNER_WAIT_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() < deadline:
                time.sleep(OWNER_POLL_S)
                continue
            file.close()
            raise InvalidSettings(
                f"{str(path.parent)!r} is in use by another embedded cluster",
                where="data directory",
                hint="stop that one, or choose another data directory",
            ) from error
        return file


def _report(task: asyncio.Task[None]) -> None:
    """Log the failure of a journal immediately, not only at the next start."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("the journal stopped: nothing is kept from now on", exc_info=error)
