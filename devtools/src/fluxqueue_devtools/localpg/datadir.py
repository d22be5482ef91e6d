"""The folder of one embedded Postgres: creating it, and checking what it left.

``postgres.py`` calls it. Layout of the folder::

    pgdata/        Postgres' own data directory (appears whole, by a rename)
    password       of the superuser, mode 0600, for TCP connections
    port           the port used last, so that connection strings survive a restart
    lock           held (flock) while a LocalPostgres owns the folder
    postgres.log   what the server wrote

Sockets are elsewhere, in a short private folder, because their path may have only 107 bytes.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from fluxqueue.errors import InvalidSettings
from fluxqueue.process.whole_file import write_whole
from fluxqueue_devtools.localpg.binaries import PostgresBinaries
from fluxqueue_devtools.localpg.folder_lock import lock_folder
from fluxqueue_devtools.localpg.privileges import (
    RunMode,
    clean_environment,
    hand_over,
    launch_command,
)

SUPERUSER = "postgres"
DATABASE = "fluxqueue"
_SOCKET_PATH_MAX = 107
_SOCKET_NAME = ".s.PGSQL.65535.lock"
_LOG_SIZE_MAX_BYTES = 16 * 2**20
_INITDB_TIMEOUT_S = 300
_READY_LINE, _PID_LINE = 7, 0
"""Zero-based lines of postmaster.pid.

Source: src/include/utils/pidfile.h, unchanged since Postgres 10.
"""


@dataclass(frozen=True, slots=True)
class PidFile:
    """The content of ``postmaster.pid``."""

    pid: int
    is_ready: bool


class DataDir:
    """The folder described in the module's docstring. Its methods are idempotent."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()
        self.pgdata = self.root / "pgdata"
        self.log_file = self.root / "postgres.log"
        self._password_file = self.root / "password"
        self._port_file = self.root / "port"

    @property
    def major(self) -> int | None:
        """Return the Postgres version that made the data, or None before it is made."""
        version = self.pgdata / "PG_VERSION"
        return int(version.read_text().strip()) if version.exists() else None

    @property
    def password(self) -> str:
        """Return the superuser's password."""
        return self._password_file.read_text().strip()

    @property
    def last_port(self) -> int:
        """Return the port used last, or 0 if there is none."""
        try:
            return int(self._port_file.read_text())
        except (FileNotFoundError, ValueError):
            return 0

    def remember_port(self, port: int) -> None:
        """Store ``port`` for the next start."""
        write_whole(self._port_file, f"{port}\n")

    def lock(self) -> IO[str]:
        """Lock the folder for this process until the returned file is closed.

        Raises
        ------
        InvalidSettings
            Another process has it, or it cannot be written.
        """
        return lock_folder(self.root)

    def initialise(self, binaries: PostgresBinaries, mode: RunMode, *, durable: bool) -> None:
        """Make the data directory with our database in it, unless it exists.

        A crash during this leaves ``pgdata.new``, which the next call removes.

        Raises
        ------
        InvalidSettings
            initdb failed. The message has its own words.
        """
        if self.major is not None:
            return
        unfinished = self.root / "pgdata.new"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        self._write_password()
        hand_over(unfinished, mode)
        hand_over(self._password_file, mode)
        # Locale C gives the same sort order on every machine. The mode of their folder guards the
        # sockets. The password guards TCP on the loopback interface, which every local user can
        # reach.
        options = ["-U", SUPERUSER, "-E", "UTF8", "--locale=C", "--auth-local=trust"]
        options += ["--auth-host=scram-sha-256", f"--pwfile={self._password_file}"]
        options += [] if durable else ["--no-sync"]
        _run(mode, [binaries.initdb, "-D", str(unfinished), *options], self.root)
        single = [binaries.postgres, "--single", "-D", str(unfinished), "-c", "fsync=off"]
        single = single if not durable else single[:-2]
        _run(mode, [*single, "postgres"], self.root, given=f"CREATE DATABASE {DATABASE}\n")
        # Rename last: the data directory appears whole or not at all.
        unfinished.rename(self.pgdata)

    def _write_password(self) -> None:
        self._password_file.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        with os.fdopen(os.open(self._password_file, flags, 0o600), "w") as file:
            file.write(secrets.token_hex(16) + "\n")

    def read_pid_file(self) -> PidFile | None:
        """Return the content of ``postmaster.pid``, or None if it is missing or being written."""
        try:
            lines = (self.pgdata / "postmaster.pid").read_text().splitlines()
            ready = len(lines) > _READY_LINE and lines[_READY_LINE].strip() == "ready"
            return PidFile(abs(int(lines[_PID_LINE])), ready)
        except (FileNotFoundError, ValueError, IndexError):
            return None

    def owner_pid(self) -> int | None:
        """Return the process id of a server that runs on this data, whatever its parent."""
        noted = self.read_pid_file()
        return noted.pid if noted and _is_server_of(noted.pid, self.pgdata) else None

    def forget_stale_pid(self) -> None:
        """Remove a pid file with a process that is not a server of this data.

        Postgres does this by itself unless another process now has the number. After a reboot this
        is common.
        """
        if self.owner_pid() is None:
            (self.pgdata / "postmaster.pid").unlink(missing_ok=True)

    def open_log(self) -> IO[bytes]:
        """Open the server's log for appending. A log that is too large is started again."""
        if self.log_file.exists() and self.log_file.stat().st_size > _LOG_SIZE_MAX_BYTES:
            self.log_file.unlink()
        return self.log_file.open("ab")

    def socket_dir(self, mode: RunMode) -> Path:
        """Return a private folder with a short path, the same at every start.

        Raises
        ------
        InvalidSettings
            The folder belongs to another user, or is open to others.
        """
        digest = hashlib.sha256(os.fsencode(self.root.resolve())).hexdigest()[:10]
        name = f"fluxqueue-pg-{os.getuid()}-{digest}"
        base = Path(tempfile.gettempdir())
        if len(os.fsencode(base / name / _SOCKET_NAME)) > _SOCKET_PATH_MAX:
            base = Path("/tmp")  # noqa: S108  owner and mode are checked below
        folder = base / name
        folder.mkdir(mode=0o700, exist_ok=True)
        hand_over(folder, mode)
        found = folder.lstat()
        is_ours = mode is RunMode.NOBODY or found.st_uid == os.geteuid()
        if not stat.S_ISDIR(found.st_mode) or not is_ours or found.st_mode & 0o077:
            raise InvalidSettings(
                f"{str(folder)!r} exists and is not a private folder of ours",
                where="socket directory",
                value=str(folder),
                hint="remove it, or set TMPDIR to a private folder",
            )
        return folder


def _is_server_of(pid: int, pgdata: Path) -> bool:
    """Return whether process ``pid`` is a Postgres server started on ``pgdata``."""
    cmdline = Path(f"/proc/{pid}/cmdline")
    if Path("/proc/self/cmdline").exists():
        try:
            args = cmdline.read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            return False
        return os.fsencode(pgdata) in args
    try:  # There is no /proc (macOS). Postgres itself can judge no better.
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _run(mode: RunMode, command: list[str], folder: Path, given: str = "") -> None:
    answer = subprocess.run(
        launch_command(mode, command),
        input=given,
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=clean_environment(),
        timeout=_INITDB_TIMEOUT_S,
    )
    # In single-user mode the exit status does not show a failed statement.
    if answer.returncode != 0 or "ERROR:" in answer.stderr:
        words = (answer.stderr or answer.stdout).strip()
        raise InvalidSettings(
            f"{Path(command[0]).name} failed: {words}", where="data directory", value=str(folder)
        )
