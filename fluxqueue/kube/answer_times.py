"""``AnswerTimes``: how busy an API server is, measured by how long its answers take.

``KubeClient`` records each answer. Code that can use fewer and larger batches reads the delay. This
module neither measures the time nor acts on it.

A distant server answers late even if it is idle. So the delay counts from its quickest answer, as
TCP Vegas detects a full queue (Brakmo and Peterson, 1995).
"""

from __future__ import annotations

LAST = 10
"""Answers in the moving mean: each new one weighs a tenth."""


class AnswerTimes:
    """Answer times of one API server since the client was created.

    ``delay_s`` is how much longer than its quickest answer it takes at present, in seconds. It is 0
    before the first answer.
    """

    def __init__(self) -> None:
        self._quickest_s = self._mean_s = 0.0
        self._is_known = False

    @property
    def delay_s(self) -> float:
        """The present delay in seconds. See the class."""
        return self._mean_s - self._quickest_s

    def note(self, took_s: float) -> None:
        """Record an answer that came ``took_s`` seconds after its request."""
        if not self._is_known:
            self._quickest_s = self._mean_s = took_s
            self._is_known = True
        self._quickest_s = min(self._quickest_s, took_s)
        self._mean_s += (took_s - self._mean_s) / LAST
