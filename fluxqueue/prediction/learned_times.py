"""What is known of run times at one moment: the histories of all classes, kept by one owner.

The matcher's worker fills it from the rows of ended runs, a simulation from virtual time. Plans are
remembered until a run of their owner ends. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from fluxqueue.prediction.durations import Durations
from fluxqueue.prediction.history import ClassHistory
from fluxqueue.prediction.predictor import ClassKey, Likeness, predict


@dataclass(slots=True)
class LearnedTimes:
    """Histories by class, and the plans that follow from them."""

    _histories: dict[ClassKey, ClassHistory] = field(default_factory=dict)
    _runs: dict[ClassKey, int] = field(default_factory=dict)
    _plans: defaultdict[ClassKey, dict[tuple[Likeness, int], Durations | None]] = field(
        default_factory=lambda: defaultdict(dict)
    )

    def learn(
        self, like: Likeness, seconds: float, *, is_cut: bool = False, has_failed: bool = False
    ) -> None:
        """Take a run that has ended into account. See ``ClassHistory.after``."""
        runs = self._runs.get(like.known_by, 0)
        for key in like.learned_by(runs):
            known = self._histories.get(key, ClassHistory())
            self._histories[key] = known.after(seconds, is_cut=is_cut, has_failed=has_failed)
        self._runs[like.known_by] = runs + 1
        if runs:
            self._plans.pop(like.known_by, None)
        else:
            self._plans.clear()  # the class of newcomers has changed

    def durations(self, like: Likeness, default_s: int) -> Durations | None:
        """Return the limit and the plan of a job, None if no run is like it.

        ``default_s`` is as for ``predict``.
        """
        plans = self._plans[like.known_by]
        key = (like, default_s)
        if key not in plans:
            is_known = any(one in self._histories for one in like.classes)
            plans[key] = predict(like, self._histories, default_s) if is_known else None
        return plans[key]
