"""A sharing policy in a package of its own: jobs may have nodes at night only (UTC).

``spec.parameters`` has ``from`` and ``to``, hours from 0 to 23. By day jobs get nothing new. Jobs
that run when the night ends go on, because no policy evicts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fluxqueue.errors import InvalidInput
from fluxqueue.policy.sharing import ForeignPod, Grant, NodeFact, SharingPolicy

HOUR_S, DAY_S = 3600, 86_400


@dataclass(frozen=True)
class Nights:
    """The hours of the night: from ``begin``, up to ``end``."""

    begin: int
    end: int

    def grant(
        self, node: NodeFact, capacity: Mapping[str, int], pods: Sequence[ForeignPod], now: int
    ) -> Grant:
        """Return what unmanaged pods leave at night, and nothing by day."""
        del node, pods
        hour = now % DAY_S // HOUR_S
        is_night = (hour - self.begin) % 24 < (self.end - self.begin) % 24
        change = self.end if is_night else self.begin
        again_at = now - now % HOUR_S + (change - hour) % 24 * HOUR_S
        return Grant(
            now={} if is_night else dict.fromkeys(capacity, 0),
            why=f"gives nodes to jobs from {self.begin}:00 to {self.end}:00 UTC",
            again_at=again_at,
        )


def nights(parameters: Mapping[str, Any]) -> SharingPolicy:
    """Make the policy of ``spec.parameters``. fluxqueue calls it by the entry point."""
    hours = {name: parameters.get(name) for name in ("from", "to")}
    for name, hour in hours.items():
        if not isinstance(hour, int) or not 0 <= hour <= 23:
            raise InvalidInput(
                f"{hour!r} is no hour", where=f"spec.parameters.{name}", value=hour, hint="0 to 23"
            )
    if hours["from"] == hours["to"]:
        raise InvalidInput("the night has no hour", where="spec.parameters.to", value=hours["to"])
    return Nights(begin=hours["from"], end=hours["to"])
