"""Surroundings of pods that a test writes down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fluxqueue.objects import Object


@dataclass
class KnownSurroundings:
    """Implements ``workload.surroundings.Surroundings``: objects by namespace and name."""

    limits: Mapping[str, Sequence[Object]] = field(default_factory=dict)
    runtimes: Mapping[str, Object] = field(default_factory=dict)

    def limit_ranges(self, namespace: str) -> Sequence[Object]:
        """Return the LimitRanges of a namespace."""
        return self.limits.get(namespace, ())

    def runtime_class(self, name: str) -> Object | None:
        """Return a RuntimeClass."""
        return self.runtimes.get(name)
