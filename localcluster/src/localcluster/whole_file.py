"""Files that another process reads: whole or not at all (kubeconfig, certificates, token)."""

from __future__ import annotations

import os
from pathlib import Path

PRIVATE = 0o600
PUBLIC = 0o644


def write_whole(path: Path, content: str | bytes, *, mode: int = PRIVATE) -> None:
    """Replace what stands at ``path`` in one step; on ``OSError`` it is as it was."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with open(beside, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(content.encode() if isinstance(content, str) else content)
    beside.replace(path)
