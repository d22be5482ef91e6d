"""Names of FluxJobs, made from those of their workloads.

Called by the code that makes FluxJobs, and by the commands of users, which accept either name.
"""

from __future__ import annotations

import hashlib

_MAX_NAME = 253


def name_for(name: str, suffix: str) -> str:
    """Return ``<name>-<suffix>``. A name that is too long is cut and gets a hash of all of it."""
    suffix = f"-{suffix}"
    if len(name) + len(suffix) <= _MAX_NAME:
        return f"{name}{suffix}"
    digest = hashlib.sha256(name.encode()).hexdigest()[:10]
    kept = name[: _MAX_NAME - len(suffix) - len(digest) - 1].rstrip("-.")
    return f"{kept}-{digest}{suffix}"
