"""The key that worker and webhook share, in a file.

The worker proves with it where a pod goes, and the webhook checks that
(``workload.index_placement``). In a cluster, the chart makes it as a Secret. On one machine,
``fluxqueue up`` makes it with ``ensure_key``.
"""

from __future__ import annotations

import logging
import secrets
from pathlib import Path

from fluxqueue.errors import InvalidSettings
from fluxqueue.process.whole_file import write_whole

logger = logging.getLogger(__name__)

KEY_BYTES = 32
"""The least size of a key. A shorter one could be guessed."""


def ensure_key(path: Path) -> None:
    """Make the file with a new random key, unless it exists."""
    if not path.is_file():
        write_whole(path, secrets.token_hex(KEY_BYTES))


def read_key(path: Path | str, where: str) -> bytes:
    """Return the key in a file, or an empty one without a path or a file.

    Without a key, pods are ungated one by one, so a Secret that is missing stops nothing.

    Parameters
    ----------
    where : the setting that names the file, for messages.

    Raises
    ------
    InvalidSettings
        The file cannot be read, or its key is too short.
    """
    if not str(path):
        return b""
    try:
        key = Path(path).read_bytes().strip()
    except FileNotFoundError:
        logger.warning("no placement key", extra={"action": "start", "path": str(path)})
        return b""
    except OSError as error:
        raise InvalidSettings(f"cannot be read: {error}", where=where, value=str(path)) from error
    if len(key) < KEY_BYTES:
        raise InvalidSettings(
            f"{len(key)} bytes are too few for a key",
            where=where,
            value=str(path),
            hint=f"write {KEY_BYTES} random bytes or more into it: openssl rand -hex {KEY_BYTES}",
        )
    return key
