"""A replay beside its record: a table for the terminal, and JSON for the window. Pure.

``cli.time_machine`` prints the table. The process of ``view.replays`` answers with the JSON.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from fluxqueue.fluxjob.levels import Levels
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.graph.ledger.placement import PlacedSlot
from fluxqueue.simulation.recorded_day import RecordedDay
from fluxqueue.simulation.replay import ALL, Outcome, Replay, Waits
from fluxqueue.simulation.schedule_figures import clock

WORDS = {"cpu": "use of cores", "gpu": "use of GPUs"}


@dataclass(frozen=True, slots=True)
class LeftOut:
    """What of the record a replay cannot have.

    ``gone`` nodes had work and were deleted since. ``estimated`` jobs have no stored request.
    ``unknown`` jobs have not started and say no duration.
    """

    gone: int = 0
    estimated: int = 0
    unknown: int = 0

    @classmethod
    def of(cls, day: RecordedDay) -> LeftOut:
        """Count them."""
        known = {one.name for one in day.nodes}
        had_work = {slot.node for job in day.jobs for slot in job.places}
        return cls(
            gone=len(had_work - known),
            estimated=sum(job.is_estimated for job in day.jobs),
            unknown=sum(job.started_s is None and not job.request.duration_s for job in day.jobs),
        )

    def tell(self) -> list[str]:
        """Return a line for each."""
        told = []
        if self.gone:
            told.append(f"{self.gone} nodes had work and are gone: the replay has no such nodes")
        if self.estimated:
            told.append(f"{self.estimated} jobs have no stored request: their use stands in for it")
        if self.unknown:
            told.append(f"{self.unknown} jobs wait without a duration and are left out")
        return told


def render_table(day: RecordedDay, recorded: Outcome, outcomes: Sequence[Outcome]) -> str:
    """Return waits and use, as recorded and as replayed, with the differences."""
    lines = [f"{moment(day.since_s)} to {moment(day.until_s)}, {len(day.nodes)} nodes"]
    for one in outcomes:
        lines += ["", _head(one.name), *(_row(name, recorded, one) for name in recorded.waits)]
        for kind, was in recorded.utilisation.items():
            now = one.utilisation.get(kind, 0.0)
            change = f"{round((now - was) * 100, 1) + 0.0:+.1f}"  # no negative zero
            lines.append(
                f"{WORDS[kind]:<15}{'':>6}{was:>9.1%}{'':>9}{now:>10.1%}{'':>9}{change:>10}"
            )
        if one.unstarted:
            lines.append(f"{one.unstarted} jobs of the record cannot start in this replay")
    return "\n".join(lines)


def _head(name: str) -> str:
    return (
        f"{name}\n{'wait by size':<15}{'jobs':>6}{'recorded':>9}{'p95':>9}"
        f"{'replayed':>10}{'p95':>9}{'median':>10}{'p95':>9}"
    )


def _row(name: str, recorded: Outcome, one: Outcome) -> str:
    was, now = recorded.waits[name], one.waits.get(name, Waits.of(()))
    return (
        f"{name:<15}{was.jobs:>6}{clock(was.median_s):>9}{clock(was.p95_s):>9}"
        f"{clock(now.median_s):>10}{clock(now.p95_s):>9}"
        f"{_signed(now.median_s - was.median_s):>10}{_signed(now.p95_s - was.p95_s):>9}"
    )


def _signed(seconds: float) -> str:
    return ("-" if seconds < 0 else "+") + clock(abs(seconds))


def moment(epoch_s: int) -> str:
    """Return a time for people, in UTC."""
    return datetime.fromtimestamp(epoch_s, tz=UTC).strftime("%Y-%m-%d %H:%M UTC")


def to_json(
    day: RecordedDay, recorded: Outcome, one: Replay, levels: Levels, changes: str
) -> dict[str, Any]:
    """Return a comparison with the bars of both charts, as the window reads it.

    ``jobs`` are lists, because there are thousands: jobid, namespace, name, user, queue, the number
    of cores, submission, recorded start and end, recorded nodes, replayed start and end, replayed
    nodes. Times are epoch seconds, nodes are pairs of an index and millicores.
    """
    index = {node.name: place for place, node in enumerate(one.nodes)}
    return {
        "since": day.since_s,
        "until": day.until_s,
        "changes": changes,
        "recorded": _outcome(recorded),
        "replayed": _outcome(one.outcome),
        "notes": LeftOut.of(day).tell(),
        "levels": [level.name for level in levels],
        "nodes": [_node(node, levels) for node in one.nodes],
        "added": len(one.nodes) - len(day.nodes),
        "jobs": [
            [
                *(each.job.jobid, each.job.namespace, each.job.name),
                *(each.job.user, each.job.queue, each.job.submitted_s),
                *(each.job.started_s, each.job.ended_s, _places(each.job.places, index)),
                *(each.started_s, each.ended_s, _places(each.places, index)),
            ]
            for each in one.jobs
            if day.is_measured(each.job) or _overlaps(day, each.job.started_s, each.job.ended_s)
        ],
    }


def _overlaps(day: RecordedDay, started_s: int | None, ended_s: int | None) -> bool:
    return (
        started_s is not None and started_s < day.until_s and (ended_s or day.until_s) > day.since_s
    )


def _places(places: Sequence[PlacedSlot], index: Mapping[str, int]) -> list[list[int]]:
    sums: dict[int, int] = {}
    for slot in places:
        place = index.get(slot.node)
        if place is not None:
            sums[place] = sums.get(place, 0) + dict(slot.resources).get("cpu", 0)
    return [[place, amount] for place, amount in sums.items()]


def _outcome(one: Outcome) -> dict[str, Any]:
    return {
        "waits": {
            name: {"jobs": w.jobs, "mean": w.mean_s, "median": w.median_s, "p95": w.p95_s}
            for name, w in one.waits.items()
        },
        "utilisation": dict(one.utilisation),
        "unstarted": one.unstarted,
    }


def _node(node: NodeFact, levels: Levels) -> list[Any]:
    path = [level.place(node.labels) or "" for level in levels]
    return [node.name, path, node.capacity.get("cpu", 0)]


__all__ = ["ALL", "LeftOut", "moment", "render_table", "to_json"]
