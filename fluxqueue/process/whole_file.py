"""A small file that its readers see whole or not at all.

It is for files that one process leaves for another: kubeconfigs, certificates, keys, tokens and
ports. A process that waits for such a file reads it at the moment it appears. The process that
writes it may be killed half way.

Do not use it for files that are long or appended to.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

PRIVATE = 0o600
PUBLIC = 0o644


def write_whole(path: Path, content: str | bytes, *, mode: int = PRIVATE) -> None:
    """Write ``content`` to ``path``, and replace the old content in one step.

    Parameters
    ----------
    path : A symbolic link stays, and its target is replaced.
    content : Text (written as UTF-8) or bytes.
    mode : The permissions of the file.

    Raises
    ------
    OSError
        The old content is unchanged.
    """
    path = path.resolve()
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            Path(temporary).unlink()
        raise
