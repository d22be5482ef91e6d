"""How wrong expected starts were lately, and what the next ones become by that.

A plan says when a job starts if nothing comes between. How much later, or earlier, jobs did start
than planned says what half of them, and nine of ten, can expect. So a bad forecast widens by
itself. The matcher's worker keeps one calibration, a simulation another. Pure.

The error of a start is (true wait + a minute) / (planned wait + a minute). Long waits are wrong in
other ways than short ones, so waits of about the same length are compared.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil, log2

BASE_S = 60
"""Added to each wait, so that the error of a wait of no time is bounded."""

ERRORS_MAX = 100
"""Newest errors that count, of waits of about the same length. A quarter may be of one user."""

ERRORS_MIN = 20
"""Fewer say nothing yet."""

HALF, MOST = 0.5, 0.925
"""Shares of the errors that are planned for. ``MOST`` leaves 0.9 a margin, as errors change."""

UNPROVEN = 3
"""While nothing is known, nine of ten waits are expected to be at most so many times as long."""


@dataclass(frozen=True, slots=True)
class ToldStart:
    """The start that a job was shown, in epoch seconds.

    ``planned`` is the start by plan. Half of such jobs have started by ``expected``, and nine of
    ten by ``expected_by``.
    """

    told_at: int
    planned: int
    expected: int
    expected_by: int

    def outcome(self, started_at: int) -> str:
        """Return when a job has started: *by expected*, *by latest* or *later* than told."""
        if started_at <= self.expected:
            return "by expected"
        return "by latest" if started_at <= self.expected_by else "later"

    def within(self, promised: int) -> ToldStart:
        """Return the same for a job with a promise, which starts no later than that."""
        bounds = min(self.expected, promised), min(self.expected_by, promised)
        return ToldStart(self.told_at, self.planned, *bounds)


@dataclass(slots=True)
class Calibration:
    """The newest errors of expected starts, by the length of the wait."""

    _errors: defaultdict[int, deque[tuple[str, float]]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=ERRORS_MAX))
    )
    """User and error, the newest last."""

    def expect(self, now: int, planned: int) -> ToldStart:
        """Return the start to show for a job with the start ``planned`` by plan."""
        wait_s = max(0, planned - now) + BASE_S
        errors = sorted(error for _, error in self._errors[_length(wait_s)])
        half, most = 1.0, float(UNPROVEN)
        if len(errors) >= ERRORS_MIN:
            half, most = _share(errors, HALF), _share(errors, MOST)
        expected, by = (now + max(0, round(wait_s * one) - BASE_S) for one in (half, most))
        return ToldStart(now, planned, expected, by)

    def learn(self, told: ToldStart, started_at: int, user: str = "") -> None:
        """Take into account the true start of a job of ``user`` that was shown ``told`` first."""
        wait_s = max(0, told.planned - told.told_at) + BASE_S
        true_s = max(0, started_at - told.told_at) + BASE_S
        errors = self._errors[_length(wait_s)]
        own = [one for one in errors if one[0] == user]
        if len(errors) == ERRORS_MAX and len(own) >= ERRORS_MAX // 4:
            errors.remove(own[0])  # a user with many jobs does not displace the errors of others
        errors.append((user, true_s / wait_s))


def _length(wait_s: int) -> int:
    """Return a number for waits of about the same length: 1 to 4 minutes, 4 to 16, and so on."""
    return int(log2(wait_s / BASE_S) / 2)


def _share(errors: list[float], share: float) -> float:
    return errors[min(len(errors), ceil(share * (len(errors) + 1))) - 1]


@dataclass(frozen=True, slots=True)
class StartFigures:
    """How many jobs with a shown start have started, and how many of them by then."""

    started: int
    by_expected: int
    by_latest: int

    @classmethod
    def of(cls, starts: Iterable[tuple[ToldStart, int]]) -> StartFigures:
        """Count true starts."""
        found = list(starts)
        return cls(
            len(found),
            sum(at <= told.expected for told, at in found),
            sum(at <= told.expected_by for told, at in found),
        )
