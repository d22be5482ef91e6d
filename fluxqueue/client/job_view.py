"""``JobView``: what a watched job is now. The handles of both clients are such views.

Nothing here waits or makes a request.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Self, TypedDict, Unpack

from fluxqueue.client.fluxjob_lists import JobLine, read_line
from fluxqueue.client.follower import FollowedFluxJob
from fluxqueue.client.records import at, html_table, job_record
from fluxqueue.errors import WorkFailed
from fluxqueue.fluxjob.hostlist import expand
from fluxqueue.fluxjob.states import FINAL, FluxJobState
from fluxqueue.workload.objects import Object

GONE = "Gone"
"""The state of a job whose FluxJob no longer exists, if nothing tells how it ended."""


class JobNames(TypedDict):
    """Which workload a job is."""

    namespace: str
    kind: str
    name: str
    uid: str


class JobView:
    """One job. Its properties change while the client is open.

    ``name`` is that of the workload, and ``fluxjob`` that of the FluxJob.
    """

    def __init__(self, followed: FollowedFluxJob, **names: Unpack[JobNames]) -> None:
        self.namespace, self.kind = names["namespace"], names["kind"]
        self.name, self.uid = names["name"], names["uid"]
        self._followed = followed

    @property
    def fluxjob(self) -> str:
        """Name of its FluxJob."""
        return self._followed.name

    @property
    def state(self) -> str:
        """Pending, Reserved, Held, Running, Completed, ... (``FluxJobState``), or Gone."""
        line = self._line
        if self._followed.is_gone and (line is None or line.state not in FINAL):
            return GONE if self._followed.last_word is None else self._followed.last_word.state
        return line.state if line is not None else FluxJobState.PENDING.value

    @property
    def reason(self) -> str:
        """What it waits for, or why it ended."""
        if self._followed.last_word is not None:
            return self._followed.last_word.reason
        return self._line.reason if self._line is not None else ""

    @property
    def jobid(self) -> int | None:
        """Number of the job, None until the queue has taken it."""
        return self._line.jobid if self._line is not None else None

    @property
    def queue(self) -> str:
        """Name of its queue, empty until it is known."""
        return self._line.queue if self._line is not None else ""

    @property
    def position(self) -> int | None:
        """Its place in the queue while it waits. The next job has 1."""
        found = self._status.get("position")
        return int(found) if found is not None else None

    @property
    def expected_start(self) -> datetime | None:
        """The expected start while it waits, if it is known."""
        line = self._line
        return at(line.expected) if line is not None and line.started is None else None

    @property
    def expected_by(self) -> datetime | None:
        """When nine of ten such jobs have started. With a reservation, it is promised."""
        line = self._line
        return at(line.expected_by) if line is not None and line.started is None else None

    @property
    def started(self) -> datetime | None:
        """The start of its present run, or of its last one."""
        return at(self._line.started) if self._line is not None else None

    @property
    def ended(self) -> datetime | None:
        """When it ended and its last resources were returned."""
        return at(self._line.ended) if self._line is not None else None

    @property
    def nodes(self) -> list[str]:
        """Names of its nodes."""
        return expand(self._line.nodes) if self._line is not None and self._line.nodes else []

    def done(self) -> bool:
        """Return whether it has ended, in whatever way."""
        return self.state == GONE or self.state in FINAL

    def to_dict(self) -> dict[str, Any]:
        """Return what a line of ``fluxqueue jobs`` shows."""
        seen = self._followed.object
        if seen is None:
            return {"namespace": self.namespace, "name": self.name, "state": self.state}
        return job_record(seen) | {"state": self.state}

    def raise_for_state(self) -> Self:
        """Raise WorkFailed if it has failed, was cancelled or is gone. Return itself otherwise."""
        if self.done() and self.state != FluxJobState.COMPLETED.value:
            raise WorkFailed(self.name, self.state, self.reason)
        return self

    def __repr__(self) -> str:
        reason = f": {self.reason}" if self.reason else ""
        return f"<{type(self).__name__} {self.namespace}/{self.name} {self.state}{reason}>"

    def _repr_html_(self) -> str:
        """Return a table for notebooks. What the job does not have is left out."""
        start = self.started or self.expected_start
        shown = {
            "job": f"{self.name}{f' ({self.jobid})' if self.jobid is not None else ''}",
            "namespace": self.namespace,
            "queue": self.queue + (f", number {self.position}" if self.position else ""),
            "state": self.state,
            "reason": self.reason,
            "nodes": ", ".join(self.nodes),
            "started" if self.started else "expected start": start.isoformat() if start else "",
            "9 of 10 by": self.expected_by.isoformat() if self.expected_by else "",
            "ended": self.ended.isoformat() if self.ended else "",
        }
        return html_table(("", ""), [(key, value) for key, value in shown.items() if value])

    @property
    def _line(self) -> JobLine | None:
        seen = self._followed.object
        return read_line(seen) if seen is not None else None

    @property
    def _status(self) -> Object:
        return (self._followed.object or {}).get("status") or {}
