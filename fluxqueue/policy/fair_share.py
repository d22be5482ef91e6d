"""Fair share: how far past use lowers a priority.

The worker calls it at an interval. It is pure: times are arguments. It is Slurm's classic
fair-share (slurm.schedmd.com/classic_fair_share.html) with two levels, queues and the users of a
queue:

    U   normalised use: decayed cpu-seconds as a part of all that was used
    S   normalised share: weight of the queue among the queues, each user of a queue alike
    UE  effective use: of a queue its U, of a user U + (UE of the queue - U) * (1 / users)
    F   = 2 ** (-UE / S), 1 without any use, 1/2 at exactly the share, towards 0 beyond

The points added to the priority are ``F`` times the queue's ``fairShare.weight``.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

from fluxqueue.policy.queue_rules import QueueRules

STEPS = 100
"""Points change in steps of a hundredth of the weight.

Otherwise the slow decay of use would rewrite every pending FluxJob at each interval.
"""


def decay(used: float, elapsed_s: float, half_life_s: float) -> float:
    """Return what ``used`` counts after ``elapsed_s`` seconds: half of it after each half-life."""
    return used * float(0.5 ** (max(0.0, elapsed_s) / half_life_s))


def decayed_use(
    cpus: float, begin_s: float, end_s: float, now_s: float, half_life_s: float
) -> float:
    """Return the cpu-seconds of ``cpus`` held over a time as they count at ``now_s``.

    The time is ``[begin_s, end_s]``. The result is the integral of ``cpus * 0.5 ** ((now - t) /
    half_life)``. So it is the same for any intervals over which it is summed up. Slurm decays
    stepwise, which approaches this with small steps.
    """
    end_s = min(end_s, now_s)
    if end_s <= begin_s:
        return 0.0
    scale = half_life_s / math.log(2)
    newer, older = now_s - end_s, now_s - begin_s
    return cpus * scale * float(0.5 ** (newer / half_life_s) - 0.5 ** (older / half_life_s))


def factors(
    used: Mapping[tuple[str, str], float],
    users: Iterable[tuple[str, str]],
    weights: Mapping[str, int],
) -> dict[tuple[str, str], float]:
    """Return ``F`` for each (queue, user).

    Parameters
    ----------
    used : decayed cpu-seconds by (queue, user).
    users : all with pending jobs or past use. Queues without a weight are left out.
    weights : weights of the queues that take part.
    """
    members: dict[str, set[str]] = defaultdict(set)
    for queue, user in (*used, *users):
        if queue in weights:
            members[queue].add(user)
    if not members:
        return {}
    everything = sum(amount for (queue, _), amount in used.items() if queue in weights)
    shares = sum(weights[queue] for queue in members)
    found: dict[tuple[str, str], float] = {}
    for queue, names in members.items():
        of_queue = _part(sum(used.get((queue, user), 0.0) for user in names), everything)
        each = 1 / len(names)
        share = weights[queue] / shares * each
        for user in names:
            own = _part(used.get((queue, user), 0.0), everything)
            effective = own + (of_queue - own) * each
            found[queue, user] = float(2.0 ** (-effective / share))
    return found


def _part(amount: float, whole: float) -> float:
    return amount / whole if whole > 0 else 0.0


def to_points(factor: float, rules: QueueRules) -> int:
    """Return the points that ``factor`` is worth in a queue, in steps. 0 if fair share is off."""
    if rules.fair_share is None:
        return 0
    return round(round(factor * STEPS) / STEPS * rules.fair_share.points)
