"""The answer of the queue to ``explain``: when a job starts, and what is in the way.

Pure. It reads the status of a PlacementReview.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from fluxqueue.client.records import Records, at, html_table
from fluxqueue.errors import ApiUnavailable, InvalidInput
from fluxqueue.fluxjob.times import from_rfc3339
from fluxqueue.workload.annotations import parse_duration
from fluxqueue.workload.objects import Object

NEVER = "Never"
"""The verdict of a request that cannot start without a change."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """When a job starts.

    ``verdict`` is Now, Later or Never. Half of such requests start by ``expected_start``, and nine
    of ten by ``expected_by``. ``certainty`` is Promised, Estimated or AtBest, or empty.
    ``blockers`` are the jobs in the way, ``variants`` changes that would start it earlier.
    ``status`` is the whole answer.
    """

    verdict: str
    message: str
    expected_start: datetime | None
    expected_by: datetime | None
    certainty: str
    nodes: str
    position: int | None
    blockers: Records
    variants: Records
    status: Object = field(repr=False)

    def __str__(self) -> str:
        when = f" at {self.expected_start.isoformat()}" if self.expected_start else ""
        return f"{self.verdict}{when}: {self.message}"

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        rows = [("verdict", self.verdict), ("message", self.message), ("nodes", self.nodes)]
        if self.expected_start:
            rows.insert(1, ("expected start", self.expected_start.isoformat()))
        if self.expected_by:
            rows.insert(2, ("9 of 10 by", self.expected_by.isoformat()))
        parts = [html_table(("", ""), rows)]
        parts += [one._repr_html_() for one in (self.blockers, self.variants) if one]
        return "".join(parts)


def read_explanation(review: Object) -> Explanation:
    """Return the answer of a review.

    Raises
    ------
    InvalidInput
        The question is not valid, or names no job.
    ApiUnavailable
        There is no answer at present.
    """
    status: dict[str, Any] = review["status"]
    if not status.get("verdict"):
        if status.get("reason") in {"Invalid", "NotFound"}:
            raise InvalidInput(str(status["message"]))
        raise ApiUnavailable(str(status["message"]))
    start, latest = status.get("expectedStart"), status.get("expectedBy")
    return Explanation(
        verdict=status["verdict"],
        message=status.get("message", ""),
        expected_start=at(from_rfc3339(start)) if start else None,
        expected_by=at(from_rfc3339(latest)) if latest else None,
        certainty=status.get("certainty", ""),
        nodes=status.get("nodes", ""),
        position=(status.get("queue") or {}).get("position"),
        blockers=Records(status.get("blockers") or ()),
        variants=Records(status.get("variants") or ()),
        status=status,
    )


def changes_of(
    *,
    size: int | None = None,
    time: float | str | timedelta | None = None,
    queue: str = "",
    priority: int | None = None,
    within: str | None = None,
    requests: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the changes of a request that a question supposes.

    Parameters
    ----------
    size : Number of pods.
    time : Longest run: seconds, a timedelta, "90s", "2h30m". 0 is no limit.
    within : A level that all pods share. Empty is anywhere.
    requests : Amounts per pod by resource.

    Raises
    ------
    InvalidInput
        The time is not valid.
    """
    found: dict[str, Any] = {
        "size": size,
        "priority": priority,
        "within": within,
        "queue": queue or None,
        "requests": dict(requests) if requests else None,
    }
    if isinstance(time, timedelta):
        time = time.total_seconds()
    if isinstance(time, int | float):
        found["durationSeconds"] = math.ceil(time)
    elif time:
        found["durationSeconds"] = 0 if time == "0" else parse_duration(time, "--time")
    return {key: value for key, value in found.items() if value is not None}
