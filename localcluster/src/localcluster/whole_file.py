"""Files that another process reads (kubeconfig, certificates, token), replaced as a whole."""

from __future__ import annotations

import os
from pathlib import Path

PRIVATE = 0o600
PUBLIC = 0o644


def write_whole(path: Path, content: str | bytes, *, mode: int = PRIVATE) -> None:
    """Replace the file at ``path`` in one step. After an ``OSError`` it is unchanged."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    with open(beside, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        file.write(content.encode() if isinstance(content, str) else content)
    beside.replace(path)
