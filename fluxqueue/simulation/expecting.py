"""The starts that jobs of a simulation are shown when they come, and how true that was.

``Engine`` makes the forecasts, after the cycle in which a job comes and does not start. Forecast
and calibration are those of production. Only every nth job has one, as a forecast plans all jobs
ahead of it.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass, field

from fluxqueue.prediction.calibration import Calibration, ToldStart
from fluxqueue.scheduler.forecast import Outlook


@dataclass(slots=True)
class Expecting:
    """The expected starts of a simulation. ``every``: one of so many jobs that wait. 0: none."""

    every: int = 0
    _calibration: Calibration = field(default_factory=Calibration)
    _told: dict[str, ToldStart] = field(default_factory=dict)
    _came: list[str] = field(default_factory=list)
    _waited: int = 0

    def come(self, uid: str) -> None:
        """Note a job that has come at this instant."""
        if self.every:
            self._came.append(uid)

    def due(self, running: Container[str]) -> list[str]:
        """Return every nth of the jobs that have come and do not run."""
        found = []
        for uid in self._came:
            if uid not in running:
                self._waited += 1
                if self._waited % self.every == 0:
                    found.append(uid)
        self._came.clear()
        return found

    def tell(self, uid: str, outlook: Outlook | None, now: int) -> None:
        """Tell a job what a forecast says of its start."""
        told = None if outlook is None else outlook.calibrated(self._calibration, now).told
        if told is not None:
            self._told[uid] = told

    def start(self, uid: str, at: int, user: str) -> tuple[ToldStart, int] | None:
        """Learn from the true start of a job. Return it with what was shown, if anything."""
        told = self._told.pop(uid, None)
        if told is None:
            return None
        self._calibration.learn(told, at, user)
        return told, at
