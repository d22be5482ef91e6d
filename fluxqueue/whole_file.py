"""A small file that its readers see whole or not at all.

Called wherever one process leaves a file for another: kubeconfigs, certificates, keys, tokens and
ports. Whoever waits for such a file reads it in the very moment it appears, and whoever wrote it
may be killed half way. Must not be used for what is long or appended to.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

PRIVATE = 0o600
PUBLIC = 0o644


def write_whole(path: Path, content: str | bytes, *, mode: int = PRIVATE) -> None:
    """Put ``content`` where ``path`` is; what stood there is replaced in one step.

    Parameters: ``content`` text (written as UTF-8) or bytes; ``mode`` the file's permissions.
    A symbolic link stays, what it leads to is replaced. Raises: ``OSError``; then whatever stood
    there is as it was.
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
