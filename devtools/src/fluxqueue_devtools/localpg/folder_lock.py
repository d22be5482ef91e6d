"""A folder that one process owns: its file ``lock`` is locked, and names the process.

``cli.stack`` takes it for the folder of ``fluxqueue up`` and ``fluxqueue demo``, and ``localpg``
for that of an embedded Postgres. Take it before any other file of the folder is touched.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import IO

from fluxqueue.errors import InvalidSettings


def lock_folder(folder: Path) -> IO[str]:
    """Lock ``folder`` for this process until the returned file is closed. Make it if necessary.

    Raises
    ------
    InvalidSettings
        Another process has it, or it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = (folder / "lock").open("a+")
    except OSError as error:
        raise InvalidSettings(
            f"cannot be written: {error}", where="data directory", value=str(folder)
        ) from error
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.seek(0)
        owner = file.read().strip() or "unknown"
        file.close()
        raise InvalidSettings(
            f"{str(folder)!r} is in use by process {owner}",
            where="data directory",
            value=str(folder),
            hint="stop that process, or choose another data directory",
        ) from error
    file.truncate(0)
    file.write(str(os.getpid()))
    file.flush()
    return file
