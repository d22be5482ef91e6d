"""How long a job is planned to run, from ended runs of the most similar jobs.

The classes of a job, most alike first: its template (same user or owner), its user and queue with
the same limit, its user and queue, and the first runs of newcomers in its queue. A class with few
runs is blended with the next wider one. Behind all of them stands the declared duration, or the
queue's ``defaultDuration``.

A new name does not help a user: newcomers share one class in each queue. It learns from their first
runs, so long jobs under new names make the plans of newcomers long. Pure.

Source: Tsafrir, Etsion and Feitelson, "Backfilling using system-generated predictions rather than
user runtime estimates", IEEE TPDS 18(6), 2007. Quantiles of recent runs stand in for their mean of
two, and the long one for the end of running jobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fluxqueue.prediction.durations import Durations
from fluxqueue.prediction.history import FADING, ClassHistory

WIDER = 1 / 3
"""The next wider class weighs as much as this many runs."""

TYPICAL, LONG = 0.5, 0.9

ClassKey = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Likeness:
    """What makes jobs alike. ``template`` is the fingerprint, ``owner`` a user or a controller."""

    template: str
    owner: str
    queue: str
    limit_s: int | None = None

    @property
    def classes(self) -> tuple[ClassKey, ...]:
        """Return the keys of its classes, most alike first. The last one is that of newcomers."""
        return (*self.own, self.known_by, self.newcomers)

    @property
    def own(self) -> tuple[ClassKey, ...]:
        """Return the classes within that of its owner, of which one owner may make many."""
        return (
            ("template", self.queue, self.owner, self.template),
            ("limit", self.queue, self.owner, str(self.limit_s or 0)),
        )

    @property
    def known_by(self) -> ClassKey:
        """Return the class of its owner. Without a run in it, the owner is a newcomer."""
        return ("owner", self.queue, self.owner)

    @property
    def newcomers(self) -> ClassKey:
        """Return the class of the first runs of all owners in the queue."""
        return ("newcomers", self.queue)

    def learned_by(self, *, is_newcomer: bool) -> tuple[ClassKey, ...]:
        """Return the classes that an ended run belongs to.

        ``is_newcomer``: its owner had no run in this queue before.
        """
        return self.classes if is_newcomer else self.classes[:-1]


def predict(
    likeness: Likeness, histories: Mapping[ClassKey, ClassHistory], default_s: int
) -> Durations:
    """Return the limit and the plan of a job.

    Parameters
    ----------
    histories : What is known of its classes. A class may be absent.
    default_s : What a job without a limit is planned for if nothing is known.
    """
    fallback = default_s if likeness.limit_s is None else likeness.limit_s
    samples: list[tuple[float, float]] = []
    left, least = 1.0, 0
    for key in likeness.classes:
        history = histories.get(key)
        if history is not None and history.runs:
            found, mass, cut_s = _weigh(history, left)
            samples += [(max(seconds, least), weight) for seconds, weight in found]
            left, least = left - mass, max(least, cut_s)
    samples.append((max(fallback, least), left))
    samples.sort()
    return Durations.planned(
        likeness.limit_s, _quantile(samples, TYPICAL), _quantile(samples, LONG)
    )


def _weigh(history: ClassHistory, left: float) -> tuple[list[tuple[float, float]], float, int]:
    """Return the run times of a class with their weights, the sum of these, and a least time.

    A cut run gives its weight to the longer runs of its class. Without any, it gives the weight to
    the wider classes, and their runs count as at least as long.
    """
    weights = [FADING**place for place in range(len(history.runs))]
    scale = left * len(weights) / (len(weights) + WIDER) / sum(weights)
    whole: list[tuple[float, float]] = []
    mass, least = 0.0, 0
    pairs = sorted(zip(history.runs, weights, strict=True), key=lambda one: one[0].seconds)
    carried = 0.0
    remaining = sum(weight for run, weight in pairs if not run.is_cut)
    for run, weight in pairs:
        if run.is_cut:
            carried, least = carried + weight, run.seconds
            continue
        # Each longer run takes its share of what shorter, cut runs left (Kaplan and Meier, 1958).
        given = carried * weight / remaining
        carried -= given
        remaining -= weight
        whole.append((run.seconds, (weight + given) * scale))
        mass, least = mass + (weight + given) * scale, 0
    return whole, mass, least


def _quantile(samples: Sequence[tuple[float, float]], share: float) -> float:
    """Return the smallest value that ``share`` of the sorted, weighted samples do not exceed."""
    below = 0.0
    for value, weight in samples:
        below += weight
        if below >= share - 1e-9:
            return value
    return samples[-1][0]
