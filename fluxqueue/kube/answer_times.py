"""``AnswerTimes``: how busy an API server is, told by how long its answers take.

``KubeClient`` notes each answer; whoever can do with fewer, larger batches asks. It neither takes
the time nor acts on it. A server that is far away answers late also when it has nothing to do, so
what counts is how much later than at its quickest (as TCP Vegas tells a full queue: Brakmo and
Peterson, 1995).
"""

from __future__ import annotations

LAST = 10
"""Answers in the mean: each weighs as much as a tenth of it."""


class AnswerTimes:
    """Of one API server, since the client was made.

    ``delay_s``: how much longer than at its quickest it takes to answer at present, in seconds; 0
    as long as it has answered nothing.
    """

    def __init__(self) -> None:
        self._quickest_s = self._mean_s = 0.0
        self._is_known = False

    @property
    def delay_s(self) -> float:
        """See the class."""
        return self._mean_s - self._quickest_s

    def note(self, took_s: float) -> None:
        """One more answer has come, that many seconds after it was asked for."""
        if not self._is_known:
            self._quickest_s = self._mean_s = took_s
            self._is_known = True
        self._quickest_s = min(self._quickest_s, took_s)
        self._mean_s += (took_s - self._mean_s) / LAST
