"""Synthetic workloads from a seed, with the shape of logs of real machines.

Sizes are log-uniform with a preference for powers of two. Run times are log-uniform. Sources:
Downey, "A parallel workload model and its implications for processor allocation", HPDC 1997. For
powers of two: Lublin and Feitelson, JPDC 63, 2003. Users over-estimate: they ask for one of a few
round durations well above the real run time (Tsafrir, Etsion and Feitelson, "Modeling user runtime
estimates", JSSPP 2005). Arrivals are Poisson, with a daily cycle on request.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fluxqueue.errors import InvalidInput
from fluxqueue.simulation.simulated_jobs import NodeEvent, SimulatedJob, cores_request

DAY_S = 86_400
ROUND_DURATIONS_S = tuple(
    minutes * 60
    for minutes in (5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 240, 360, 480, 600, 720, 1080, 1440)
)
"""Durations that users commonly request."""

POWER_OF_TWO_SHARE = 0.75
EXACT_SHARE = 0.1
"""Share of jobs that run until the limit that they asked for."""

USERS = 12

URGENT = 10
"""Priority of urgent jobs."""


@dataclass(frozen=True, slots=True)
class WorkloadShape:
    """The shape of a synthetic workload.

    ``load`` is the work that arrives per unit of time, divided by what the machine can do (1 keeps
    it just busy). ``overrun_share`` is the share of jobs that run past their duration.
    ``longest_s`` and ``shortest_s`` limit the real run times. ``widest`` is the share of the
    machine that one job may take.
    """

    load: float = 1.1
    overrun_share: float = 0.0
    shortest_s: int = 60
    longest_s: int = 8 * 3600
    widest: float = 0.6
    is_diurnal: bool = False


def synthetic(
    seed: int,
    count: int,
    *,
    nodes: int,
    cores_per_node: int,
    shape: WorkloadShape | None = None,
) -> list[SimulatedJob]:
    """Draw ``count`` jobs for a machine of ``nodes`` x ``cores_per_node``.

    The same seed draws the same jobs.

    Raises
    ------
    InvalidInput
        There are no jobs or no nodes, or with this load no job would ever arrive.
    """
    shape = shape or WorkloadShape()
    for name, value in (("jobs", count), ("nodes", nodes), ("cores", cores_per_node)):
        if value < 1:
            raise InvalidInput(
                f"{value} {name} make no workload", where=name, value=value, hint="1 or more"
            )
    if not (0 < shape.load < math.inf):
        raise InvalidInput(
            "the load must be a number above 0",
            where="load",
            value=shape.load,
            hint="1.0 is work that arrives as fast as the cluster can do it",
        )
    draw = random.Random(seed)
    bodies = [_body(draw, nodes * cores_per_node, shape) for _ in range(count)]
    work = sum(cores * runs_s for cores, runs_s, _ in bodies)
    mean_gap_s = work / count / (nodes * cores_per_node) / shape.load
    arrivals = _arrivals(draw, mean_gap_s, is_diurnal=shape.is_diurnal)
    return [
        SimulatedJob(
            number=number,
            submit_s=at,
            request=cores_request(cores, asked_s, cores_per_node=cores_per_node),
            runs_s=runs_s,
            user=f"user{draw.randrange(USERS)}",
        )
        for number, (at, (cores, runs_s, asked_s)) in enumerate(
            zip(arrivals, bodies, strict=False), start=1
        )
    ]


def _body(draw: random.Random, cores: int, shape: WorkloadShape) -> tuple[int, int, int]:
    """Return size (cores), real run time and requested duration (seconds)."""
    widest = max(1, int(cores * shape.widest))
    exponent = draw.uniform(0, math.log2(widest))
    if draw.random() < POWER_OF_TWO_SHARE:
        exponent = math.floor(exponent + 0.5)
    size = min(widest, max(1, round(2**exponent)))
    low, high = math.log(shape.shortest_s), math.log(shape.longest_s)
    runs_s = max(1, round(math.exp(draw.uniform(low, high))))
    if draw.random() < shape.overrun_share:
        return size, runs_s, max(1, round(runs_s * draw.uniform(0.3, 0.95)))
    if draw.random() < EXACT_SHARE:
        asked_s = _round_up(runs_s)
        return size, asked_s, asked_s
    return size, runs_s, _round_up(round(runs_s / draw.uniform(0.1, 0.95)))


def _round_up(wanted_s: int) -> int:
    return next((one for one in ROUND_DURATIONS_S if one >= wanted_s), wanted_s)


def _arrivals(draw: random.Random, mean_gap_s: float, *, is_diurnal: bool) -> Iterator[int]:
    """Yield times of a Poisson process.

    With a daily cycle they are thinned, with a peak in the early afternoon.
    """
    at = 0.0
    while True:
        yield int(at)
        while True:
            at += draw.expovariate(1.0 / mean_gap_s) / (2 if is_diurnal else 1)
            hour = (at % DAY_S) / DAY_S
            rate = (1 + 0.9 * math.cos(2 * math.pi * (hour - 14 / 24))) / 2
            if not is_diurnal or draw.random() < rate:
                break


def with_urgent(seed: int, jobs: Sequence[SimulatedJob], share: float) -> list[SimulatedJob]:
    """Return ``jobs`` with a random ``share`` of them at a higher priority."""
    draw = random.Random(f"urgent-{seed}")
    return [replace(one, priority=URGENT) if draw.random() < share else one for one in jobs]


def node_faults(
    seed: int, names: Sequence[str], *, count: int, until_s: int, repair_s: int = 1800
) -> list[NodeEvent]:
    """Draw ``count`` losses of nodes, each repaired after about ``repair_s`` seconds.

    The losses are in ``[0, until_s)``. No node is lost while it is down.
    """
    draw = random.Random(f"faults-{seed}")
    events: list[NodeEvent] = []
    up_again = dict.fromkeys(names, 0)
    for at in sorted(draw.randrange(max(1, until_s)) for _ in range(count)):
        usable = [name for name in names if up_again[name] <= at]
        if not usable:
            continue
        name = draw.choice(usable)
        back = at + max(60, round(draw.expovariate(1 / repair_s)))
        up_again[name] = back + 1
        events += [NodeEvent(at, name, is_up=False), NodeEvent(back, name, is_up=True)]
    return events
