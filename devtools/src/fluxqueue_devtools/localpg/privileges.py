"""Starts Postgres from any user, although it refuses to run as root.

``datadir.py`` and ``postgres.py`` call it. An ordinary user needs nothing. For root, a user
namespace is best: no user is created, no file changes its owner, and folders closed to others stay
usable. If a container forbids namespaces, the server runs as ``nobody`` and gets its files chowned.
"""

from __future__ import annotations

import functools
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path

from fluxqueue.errors import InvalidSettings

_BECOME = Path(__file__).with_name("become.py")
_PROBE_TIMEOUT_S = 60


class RunMode(StrEnum):
    """The modes of ``become.py``."""

    PLAIN = "plain"
    USERNS = "userns"
    NOBODY = "nobody"


def launch_command(mode: RunMode, command: Sequence[str]) -> list[str]:
    """Wrap ``command`` (its first item an absolute path) for ``subprocess``."""
    interpreter = [sys.executable, "-I", "-S", str(_BECOME)]
    return [*interpreter, mode.value, str(os.getpid()), *command]


def clean_environment() -> dict[str, str]:
    """Return our environment without variables of Postgres or libpq (``PGDATA``, ...)."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PG")}
    return {**kept, "LC_ALL": "C", "TZ": "UTC"}


@functools.cache
def run_mode() -> RunMode:
    """Find out, once, which mode works here.

    Raises
    ------
    InvalidSettings
        We are root, namespaces are forbidden, and there is no user ``nobody``.
    """
    if os.geteuid() != 0:
        return RunMode.PLAIN
    true = shutil.which("true", path="/bin:/usr/bin") or "/bin/true"
    if _has_name_for_overflow_uid() and _works(launch_command(RunMode.USERNS, [true])):
        return RunMode.USERNS
    if _works(launch_command(RunMode.NOBODY, [true])):
        return RunMode.NOBODY
    raise InvalidSettings(
        "Postgres does not run as root, and here neither a user namespace nor the user `nobody` "
        "can be used",
        where="embedded Postgres",
        hint="start fluxqueue as an ordinary user, or set DATABASE_URL to a running server",
    )


def _has_name_for_overflow_uid() -> bool:
    """Return whether initdb will find a name for uid 65534, our uid inside the namespace."""
    overflow = Path("/proc/sys/kernel/overflowuid")
    try:
        pwd.getpwuid(int(overflow.read_text()))
    except (OSError, ValueError, KeyError):
        return False
    return True


def _works(command: list[str]) -> bool:
    answer = subprocess.run(command, capture_output=True, check=False, timeout=_PROBE_TIMEOUT_S)
    return answer.returncode == 0


def hand_over(folder: Path, mode: RunMode) -> None:
    """Give ``folder`` and all in it to the server's user (``nobody`` mode only).

    Raises
    ------
    InvalidSettings
        That user cannot reach the folder.
    """
    if mode is not RunMode.NOBODY:
        return
    nobody = pwd.getpwnam("nobody")
    for path in (folder, *folder.rglob("*")):
        os.chown(path, nobody.pw_uid, nobody.pw_gid, follow_symlinks=False)
    for parent in folder.resolve().parents:
        if not parent.stat().st_mode & 0o001:
            raise InvalidSettings(
                f"the server runs as the user `nobody` here, which cannot pass {str(parent)!r}",
                where="data directory",
                value=str(folder),
                hint="choose a data directory whose parents are open to others, such as /var/tmp",
            )
