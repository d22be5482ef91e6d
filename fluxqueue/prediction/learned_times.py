"""What is known of run times at one moment: the histories of all classes, kept by one owner.

The matcher's worker fills it from the rows of ended runs, a simulation from virtual time. Plans are
remembered until a run of their owner ends. Each owner has a bounded number of classes. Pure.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from fluxqueue.prediction.durations import Durations
from fluxqueue.prediction.history import ClassHistory
from fluxqueue.prediction.predictor import ClassKey, Likeness, predict

OF_OWNER_MAX = 1_000
"""Classes of one owner in one queue. The one without a run for longest goes first."""


@dataclass(slots=True)
class LearnedTimes:
    """Histories by class, and the plans that follow from them."""

    _histories: dict[ClassKey, ClassHistory] = field(default_factory=dict)
    _of_owner: defaultdict[ClassKey, dict[ClassKey, None]] = field(
        default_factory=lambda: defaultdict(dict)
    )
    """The classes of each owner that has run, those with the newest run last."""
    _plans: defaultdict[ClassKey, dict[tuple[Likeness, int], Durations | None]] = field(
        default_factory=lambda: defaultdict(dict)
    )

    def learn(
        self, like: Likeness, seconds: float, *, is_cut: bool = False, has_failed: bool = False
    ) -> None:
        """Take a run that has ended into account. See ``ClassHistory.after``."""
        is_newcomer = like.known_by not in self._histories
        for key in like.learned_by(is_newcomer=is_newcomer):
            known = self._histories.get(key, ClassHistory())
            self._histories[key] = known.after(seconds, is_cut=is_cut, has_failed=has_failed)
        own = self._of_owner[like.known_by]
        for key in like.own:
            own.pop(key, None)
            own[key] = None
        while len(own) > OF_OWNER_MAX:
            gone = next(iter(own))
            del own[gone], self._histories[gone]
        if is_newcomer:
            self._plans.clear()  # the class of newcomers has changed
        else:
            self._plans.pop(like.known_by, None)

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
