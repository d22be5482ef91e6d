"""Times as texts: what Kubernetes writes, and what is written to it. Pure."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

LAST_S = int(datetime(9999, 12, 31, tzinfo=UTC).timestamp())
"""The last time that counts. Users write durations, and dates end soon after it in any zone."""


def at_utc(at_s: int) -> datetime:
    """Return the time of epoch seconds, or the last one that there is."""
    return datetime.fromtimestamp(min(at_s, LAST_S), tz=UTC)


def to_rfc3339(at_s: int) -> str:
    """Write epoch seconds as Kubernetes writes times: ``2026-01-02T03:04:05Z``."""
    return at_utc(at_s).strftime("%Y-%m-%dT%H:%M:%SZ")


def from_rfc3339(text: str) -> int:
    """Read a Kubernetes time as epoch seconds. Fractions are dropped."""
    return int(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp())


def epoch_s(text: Any) -> int | None:
    """Return the epoch second of a time in an object. None without one, or beyond year 9999."""
    try:
        return int(datetime.fromisoformat(text).timestamp()) if text else None
    except ValueError:
        return None
