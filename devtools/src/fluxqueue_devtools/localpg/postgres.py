"""One embedded Postgres server: start, stop, restart, connection strings.

``fluxqueue up``, ``demo`` and the tests call it. It blocks, so async callers use
``asyncio.to_thread``. The server ends with this process, however that ends. Its data survive.
"""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self
from urllib.parse import quote

from fluxqueue.errors import DatabaseUnavailable, InvalidSettings
from fluxqueue_devtools.localpg.binaries import PostgresBinaries, find_binaries
from fluxqueue_devtools.localpg.datadir import DATABASE, SUPERUSER, DataDir
from fluxqueue_devtools.localpg.held_port import LOOPBACK, HeldPort
from fluxqueue_devtools.localpg.privileges import (
    clean_environment,
    hand_over,
    launch_command,
    run_mode,
)

HOST = LOOPBACK
_START_TIMEOUT_S = 180.0
_STOP_TIMEOUT_S = 60.0
_POLL_S = 0.01
_ATTEMPTS_MAX = 20
_RETRY_S = 0.25
_PASSING_TROUBLE = (
    "could not bind",  # another process listens on a preferred port
    "pre-existing shared memory block",  # children of a killed server are still ending
    'lock file "postmaster.pid" already exists',
)
_NOT_DURABLE = {"fsync": "off", "full_page_writes": "off"}
"""``synchronous_commit`` stays on.

With it off, kill -9 of the server loses committed rows.
"""
_OPTIONS = {
    "listen_addresses": HOST,
    "max_connections": "200",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "jit": "off",  # the wheel has none, so plans are the same everywhere
    "autovacuum_naptime": "10s",  # a queue table changes completely within minutes
}


class _Child:
    """The server process, started and reaped by a thread of its own.

    The parent-death signal fires when the *thread* that forked ends, not the process. A pool's
    thread may end early, so this thread lives exactly as long as the server.
    """

    def __init__(self, command: list[str], cwd: Path, log: IO[bytes]) -> None:
        self.has_ended = threading.Event()
        self._started = threading.Event()
        self._trouble: OSError | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._command, self._cwd, self._log = command, cwd, log
        threading.Thread(target=self._run, name="localpg", daemon=True).start()
        self._started.wait()
        if self._trouble is not None:
            raise self._trouble

    def _run(self) -> None:
        try:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                cwd=self._cwd,
                env=clean_environment(),
                # On Ctrl-C we decide the order: clients first, then the server.
                start_new_session=True,
            )
        except OSError as error:
            self._trouble = error
            return
        finally:
            self._started.set()
        self._process.wait()
        self.has_ended.set()

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def send(self, number: signal.Signals) -> None:
        if not self.has_ended.is_set():
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return  # it ended by itself a moment ago


class LocalPostgres:
    """An embedded Postgres on 127.0.0.1 and a unix socket, as a context manager or by hand.

    Threads may share it: one may kill or stop the server while another is starting it.

    Parameters
    ----------
    data_dir
        A folder of its own. It is created if missing, and reused with its data if present.
    port
        TCP port. 0 takes the one used last in this folder, or else any free port.
    durable
        False trades safety against power loss for speed (tests only).
    binaries
        Which Postgres to run. None searches for one (see ``find_binaries``).
    options
        Further server settings, ``name -> value``.
    environ
        Replaces ``os.environ`` in the search for binaries.
    """

    def __init__(
        self,
        data_dir: str | Path,
        *,
        port: int = 0,
        durable: bool = True,
        binaries: PostgresBinaries | None = None,
        options: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.data = DataDir(Path(data_dir))
        self._wanted_port, self._durable = port, durable
        self._binaries, self._environ = binaries, environ
        self._options = {**_OPTIONS, **({} if durable else _NOT_DURABLE), **(options or {})}
        self._port = self._served_port = 0
        self._held: HeldPort | None = None
        self._starting = threading.Lock()
        self._is_given_up = threading.Event()
        self._socket_dir: Path | None = None
        self._child: _Child | None = None
        self._folder_lock: IO[str] | None = None
        self._owner_pid = os.getpid()

    # -- start and stop ------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the server and return when it accepts connections. Do nothing if it runs.

        After a kill -9 this recovers the data and keeps port and socket.

        Raises
        ------
        InvalidSettings
            No binaries, folder in use, or wrong version.
        DatabaseUnavailable
            The server did not start. The message ends with its log.
        """
        with self._starting:
            if self.is_running:
                return self
            if self._folder_lock is None:
                self._folder_lock = self.data.lock()
            try:
                self._prepare()
                self._launch_until_ready()
            except BaseException:
                self._end_child(signal.SIGKILL)
                self._release_folder()
                raise
            atexit.register(self.stop)
        return self

    def stop(self) -> None:
        """Stop the server cleanly (clients are disconnected) and unlock the folder.

        A start that another thread has begun is aborted.
        """
        if os.getpid() != self._owner_pid:
            return  # The exit of a forked child must not stop its parent's server.
        # Set this before taking the lock: a start that holds the lock checks it and gives up.
        self._is_given_up.set()
        with self._starting:
            self._is_given_up.clear()
            atexit.unregister(self.stop)
            self._end_child(signal.SIGINT)
            if self._socket_dir is not None:  # A killed server's sockets may still be in it.
                shutil.rmtree(self._socket_dir, ignore_errors=True)
            if self._held is not None:
                self._held.release()
                self._held = None
            # Release last: from now on the next owner may use the sockets and the port.
            self._release_folder()

    def kill(self) -> None:
        """End the server as ``kill -9`` does, without any clean-up. ``start`` recovers.

        A start that another thread has begun fails with ``DatabaseUnavailable``.
        """
        self._end_child(signal.SIGKILL)

    @property
    def is_running(self) -> bool:
        """Return whether the server process is alive."""
        child = self._child
        return child is not None and not child.has_ended.is_set()

    @property
    def pid(self) -> int | None:
        """Return the process id of the server while it runs, else None."""
        child = self._child
        return None if child is None or child.has_ended.is_set() else child.pid

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the server has ended for any reason. Return False at the time-out."""
        child = self._child
        return child is None or child.has_ended.wait(timeout_s)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # -- connection ------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """Return the TCP port, known after the first start."""
        return self._port

    @property
    def socket_dir(self) -> Path:
        """Return the folder of the unix socket, known after the first start."""
        assert self._socket_dir is not None, "start() comes first"
        return self._socket_dir

    @property
    def binaries(self) -> PostgresBinaries:
        """Return the programs in use, known after the first start."""
        assert self._binaries is not None, "start() comes first"
        return self._binaries

    @property
    def url(self) -> str:
        """Return the connection string over TCP, including the password."""
        return self.url_of(DATABASE)

    def url_of(self, database: str) -> str:
        """Return the connection string over TCP for another database of this server."""
        return (
            f"postgresql://{SUPERUSER}:{self.data.password}@{HOST}:{self._port}/{quote(database)}"
        )

    @property
    def socket_url(self) -> str:
        """Return the connection string over the unix socket, which needs no password."""
        folder = quote(str(self.socket_dir), safe="")
        return f"postgresql://{SUPERUSER}@/{DATABASE}?host={folder}&port={self._port}"

    @property
    def psql_environ(self) -> dict[str, str]:
        """Return the environment in which psql opens our database without a password."""
        return {
            "PGHOST": str(self.socket_dir),
            "PGPORT": str(self._port),
            "PGUSER": SUPERUSER,
            "PGDATABASE": DATABASE,
        }

    # -- internals -------------------------------------------------------------------------------

    def _prepare(self) -> None:
        if self._binaries is None:
            self._binaries = find_binaries(self._environ, major=self.data.major)
        elif self.data.major not in (None, self._binaries.major):
            raise InvalidSettings(
                f"{str(self.data.root)!r} was made by Postgres {self.data.major}, "
                f"not {self._binaries.major}",
                where="data directory",
                value=str(self.data.root),
            )
        mode = run_mode()
        self.data.initialise(self._binaries, mode, durable=self._durable)
        hand_over(self.data.pgdata, mode)
        self._socket_dir = self.data.socket_dir(mode)
        self._wait_for_orphan()
        self.data.forget_stale_pid()

    def _wait_for_orphan(self) -> None:
        """Wait until a server with a parent that has just died finishes its shutdown."""
        deadline = time.monotonic() + _STOP_TIMEOUT_S
        while (pid := self.data.owner_pid()) is not None:
            if time.monotonic() > deadline:
                raise InvalidSettings(
                    f"{str(self.data.root)!r} is in use by the Postgres server {pid}",
                    where="data directory",
                    value=str(self.data.root),
                    hint=f"stop it with: kill -INT {pid}",
                )
            self._check_wanted()
            time.sleep(_POLL_S)

    def _check_wanted(self) -> None:
        if self._is_given_up.is_set():
            raise DatabaseUnavailable("the embedded Postgres was stopped while it started")

    def _launch_until_ready(self) -> None:
        is_taken = False
        for _ in range(_ATTEMPTS_MAX):
            self._port = self._choose_port(is_taken=is_taken)
            log_start, child = self._launch()
            if self._wait_until_ready(child):
                self.data.remember_port(self._port)
                self._served_port = self._port
                return
            words = self._log_since(log_start)
            is_taken = "could not bind" in words
            is_fixed_port = bool(self._wanted_port) and is_taken
            if is_fixed_port or not any(sign in words for sign in _PASSING_TROUBLE):
                break
            time.sleep(_RETRY_S)
        raise DatabaseUnavailable(
            f"the embedded Postgres ({self.binaries.folder}) did not start on port {self._port}; "
            f"its log {self.data.log_file} ends with:\n{words[-2000:]}"
        )

    def _choose_port(self, *, is_taken: bool) -> int:
        if self._wanted_port:
            return self._wanted_port
        if self._served_port:
            self._hold_port(self._served_port)
            # Clients know our URL by now, so another user of the port must release it.
            return self._served_port
        wishes = [] if is_taken else [self._port, self.data.last_port]
        return self._hold_port(*wishes)

    def _hold_port(self, *wishes: int) -> int:
        """Hold a port until ``stop``, even while no server listens on it."""
        if self._held is None or self._held.port not in wishes:
            if self._held is not None:
                self._held.release()
            self._held = HeldPort(*wishes)
        return self._held.port

    def _launch(self) -> tuple[int, _Child]:
        command = [self.binaries.postgres, "-D", str(self.data.pgdata)]
        command += ["-k", str(self.socket_dir), "-p", str(self._port)]
        for name, value in self._options.items():
            command += ["-c", f"{name}={value}"]
        self._check_wanted()
        with self.data.open_log() as log:
            start = log.tell()
            child = _Child(launch_command(run_mode(), command), self.data.root, log)
        self._child = child
        return start, child

    def _wait_until_ready(self, child: _Child) -> bool:
        """Wait until the server reports itself ready in its pid file, as pg_ctl does."""
        deadline = time.monotonic() + _START_TIMEOUT_S
        while time.monotonic() < deadline:
            noted = self.data.read_pid_file()
            if noted and noted.pid == child.pid and noted.is_ready:
                return True
            if child.has_ended.wait(_POLL_S):
                return False
            self._check_wanted()
        self._end_child(signal.SIGKILL)
        return False

    def _log_since(self, start: int) -> str:
        with self.data.log_file.open("rb") as file:
            file.seek(start)
            return file.read().decode(errors="replace").strip()

    def _end_child(self, number: signal.Signals) -> None:
        child = self._child
        if child is None:
            return
        for step in (number, signal.SIGQUIT, signal.SIGKILL):
            child.send(step)
            if child.has_ended.wait(_STOP_TIMEOUT_S):
                break

    def _release_folder(self) -> None:
        if self._folder_lock is not None:
            self._folder_lock.close()
            self._folder_lock = None
