"""Jittered exponential back-off, shared by client, informers and leader election.

It only computes delays. The caller sleeps.
"""

from __future__ import annotations

import random


class Backoff:
    """Delays that double from ``base_s`` up to ``cap_s``, each spread over [50 %, 100 %].

    The spread keeps clients that lost the same server from returning in step.
    """

    __slots__ = ("_attempt", "_base_s", "_cap_s", "_uniform")

    def __init__(
        self, *, base_s: float, cap_s: float, random_source: random.Random | None = None
    ) -> None:
        self._base_s, self._cap_s = base_s, cap_s
        self._uniform = (random_source or random).random
        self._attempt = 0

    def next_delay_s(self, at_least_s: float | None = None) -> float:
        """Return the next delay in seconds, at least ``at_least_s`` (a Retry-After)."""
        full = min(self._cap_s, self._base_s * (1 << min(self._attempt, 30)))
        self._attempt += 1
        delay = full * (0.5 + self._uniform() / 2)
        return max(delay, at_least_s) if at_least_s is not None else delay

    def reset(self) -> None:
        """Start from the shortest delay again, after a success."""
        self._attempt = 0
