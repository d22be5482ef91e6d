"""What goes wrong, and when: a list of faults drawn from a seed alone.

The same seed and duration give the same list on every machine. What the faults meet depends on how
fast the machine is.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

from tests.support.api_proxy import REQUEST_FAULTS, WATCH_FAULTS

PARTS = ("controller-0", "controller-1", "worker-0", "worker-1", "webhook")
NODES = ("late-1", "late-2")
KINDS = {
    "kill": 6,
    "freeze": 5,
    "kill-database": 2,
    "freeze-database": 1,
    "cut": 3,
    "api": 6,
    "watch": 4,
    "lose-node": 2,
    "silence-node": 2,
}
"""How often each kind is drawn, relative to the others."""


@dataclass(frozen=True, slots=True)
class Step:
    """One fault: ``at_s`` after the start, and what its kind needs."""

    at_s: float
    kind: str
    target: str = ""
    lasts_s: float = 0.0
    share: float = 0.0

    def __str__(self) -> str:
        words = [f"{self.at_s:6.2f} s", self.kind, self.target]
        words += [f"for {self.lasts_s:.1f} s"] if self.lasts_s else []
        words += [f"share {self.share:.2f}"] if self.share else []
        return " ".join(word for word in words if word)


def make_plan(
    seed: int, duration_s: float, *, loses_database: bool = False, restarts_cluster: bool = False
) -> list[Step]:
    """Draw the faults of one run. The last tenth of the time is left quiet.

    ``loses_database``: half way through the database is dropped, and an empty one put in its place.
    ``restarts_cluster``: in the second quarter the API server ends with all connections and starts
    again, without the history of its watches.
    """
    die = random.Random(seed)
    steps, at_s = [], die.uniform(0.5, 1.5)
    while at_s < 0.9 * duration_s:
        steps.append(Step(round(at_s, 2), **_draw(die)))
        at_s += die.uniform(0.3, 2.0)
    if loses_database:
        steps.append(Step(round(duration_s / 2, 2), "lose-database"))
    if restarts_cluster:
        steps.append(Step(round(duration_s * die.uniform(0.25, 0.45), 2), "restart-cluster"))
    return sorted(steps, key=lambda step: step.at_s)


def _draw(die: random.Random) -> dict[str, Any]:
    kind = die.choices(list(KINDS), weights=list(KINDS.values()))[0]
    lasts_s = round(die.uniform(0.3, 4.0), 2)
    match kind:
        case "kill":
            return {"kind": kind, "target": die.choice(PARTS)}
        case "freeze":
            # Now and then longer than the matcher's role and the controller's Lease last.
            lasts_s = round(die.choice((lasts_s, lasts_s, die.uniform(6, 18))), 2)
            return {"kind": kind, "target": die.choice((*PARTS, "cluster")), "lasts_s": lasts_s}
        case "freeze-database":
            return {"kind": kind, "lasts_s": lasts_s}
        case "api":
            share = round(die.uniform(0.1, 0.6), 2)
            fault = die.choice(REQUEST_FAULTS)
            return {"kind": kind, "target": fault, "lasts_s": lasts_s, "share": share}
        case "watch":
            share = round(die.uniform(0.05, 0.4), 2)
            fault = die.choice(WATCH_FAULTS)
            return {"kind": kind, "target": fault, "lasts_s": lasts_s, "share": share}
        case "lose-node":
            return {"kind": kind, "target": die.choice(NODES), "lasts_s": lasts_s}
        case "silence-node":
            # Longer than the time after which the cluster counts it as lost (12 s).
            return {"kind": kind, "target": die.choice(NODES), "lasts_s": 10 + lasts_s * 2}
    return {"kind": kind}
