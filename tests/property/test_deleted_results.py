"""A workload that is deleted while it runs is cancelled, in whatever order the cluster tells of it.

Two watches tell of the Job and of its pods. Each keeps its order, and neither waits for the other.
All times are in one second unless a case says otherwise: that is the hardest case.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fluxqueue.controller.observing.read_workload import (
    UNREAD,
    last_result,
    see_progress,
    trim_job,
    trim_pod,
)
from fluxqueue.controller.observing.workloads import Workloads
from fluxqueue.workload.deletion import carry
from fluxqueue.workload.observed_pod import carry_kill
from tests.support.workloads import batch_job, owner

NOW, LATER = "2026-01-01T00:00:10Z", "2026-01-01T00:00:12Z"
Event = tuple[str, dict[str, Any] | None]


def _condition(kind: str, at: str) -> dict[str, str]:
    return {"type": kind, "status": "True", "lastTransitionTime": at}


def _pod(
    number: int,
    phase: str,
    *,
    asked: str | None = None,
    grace_s: int = 0,
    ended: str | None = None,
) -> dict[str, Any]:
    meta: dict[str, Any] = {
        "uid": f"pod-{number}",
        "name": f"pod-{number}",
        "namespace": "default",
        "ownerReferences": [owner("Job")],
    }
    if asked is not None:
        seconds = int(asked[-3:-1]) + grace_s
        meta["deletionTimestamp"] = f"{asked[:-3]}{seconds:02d}Z"
        meta["deletionGracePeriodSeconds"] = grace_s
    status: dict[str, Any] = {"phase": phase}
    if ended is not None:
        status["containerStatuses"] = [{"state": {"terminated": {"finishedAt": ended}}}]
    return {"metadata": meta, "spec": {"nodeName": "n1"}, "status": status}


def _killed(number: int, phase: str, at: str, again: str, *, was_pending: bool) -> list[Event]:
    """What the watch of pods tells of a pod that a deletion ends."""
    key, first = f"pod-{number}", "Pending" if was_pending else "Running"
    ended = None if was_pending else at
    asked = _pod(number, first, asked=NOW, grace_s=0 if was_pending else 30)
    return [
        (key, _pod(number, first)),
        (key, asked),
        (key, _pod(number, phase, asked=NOW, grace_s=0 if was_pending else 30, ended=ended)),
        # Its kubelet deletes it, which may set a new time. A finalizer may keep it a little longer.
        (key, _pod(number, phase, asked=again, ended=ended)),
        (key, None),
    ]


def _job(limit: int, *, count: int, asked: bool = False, **status: Any) -> dict[str, Any]:
    meta = {"deletionTimestamp": NOW} if asked else {}
    job = batch_job(meta=meta, parallelism=count, completions=count, backoffLimit=limit)
    return {**job, "status": status}


class _Sight:
    """The memory of the controller, and the row that follows from it."""

    def __init__(self) -> None:
        self.workloads = Workloads()
        self.results: list[str] = []
        self._stored: dict[str, Any] = {}
        self._row: str | None = None

    def tell(self, key: str, raw: dict[str, Any] | None) -> None:
        is_job = key == "job"
        uid = batch_job()["metadata"]["uid"]
        if raw is not None:
            new = trim_job(raw) if is_job else trim_pod(raw)
            old = self._stored.get(key)
            if old is not None:
                new = carry(old, new) if is_job else carry_kill(old, new)
            self._stored[key] = new
            if is_job:
                self.workloads.keep(uid, new)
            else:
                self.workloads.keep_pod(key, uid, new)
        elif is_job:
            self.workloads.keep(uid, None)
        else:
            self.workloads.forget_pod(key, uid)
        self._observe(uid)

    def _observe(self, uid: str) -> None:
        """Do as ``flusher`` and ``lifecycle.on_seen`` do."""
        pods = list(self.workloads.pods_of.get(uid, {}).values())
        found = self.workloads.objects.get(uid)
        last = found or self.workloads.last(uid)
        if last is None:
            return
        result = see_progress(UNREAD, found, pods).result if found is not None else None
        if result is None and (found is None or found["metadata"].get("deletionTimestamp")):
            result = last_result(last, pods, self.workloads.left(uid))
        self._row = result or self._row
        if self._row is not None:
            self.results.append(self._row)


def _interleaved(draw: st.DrawFn, streams: Sequence[list[Event]]) -> list[Event]:
    left = [list(one) for one in streams]
    told: list[Event] = []
    while any(left):
        number = draw(st.sampled_from([n for n, one in enumerate(left) if one]))
        told.append(left[number].pop(0))
    return told


def _play(events: Sequence[Event]) -> list[str]:
    sight = _Sight()
    sight.workloads.know({batch_job()["metadata"]["uid"]: "flux"})
    for key, raw in events:
        sight.tell(key, raw)
    return sight.results


@st.composite
def _deletions(draw: st.DrawFn) -> list[Event]:
    """A Job that is deleted while its pods run, and what follows."""
    count = draw(st.integers(1, 10))
    limit = draw(st.integers(0, 2))
    phase = draw(st.sampled_from(["Failed", "Succeeded"]))
    was_pending = draw(st.booleans())
    at = draw(st.sampled_from([NOW, LATER]))
    again = draw(st.sampled_from([NOW, LATER]))
    pods = [_killed(number, phase, at, again, was_pending=was_pending) for number in range(count)]
    job: list[Event] = [("job", _job(limit, count=count, active=count))]
    if draw(st.booleans()):  # in the foreground: the Job controller goes on to count
        told: dict[str, Any] = {"active": count}
        job.append(("job", _job(limit, count=count, asked=True, **told)))
        counted = {"failed" if phase == "Failed" else "succeeded": count}
        job.append(("job", _job(limit, count=count, asked=True, **counted)))
        kinds = ["FailureTarget", "Failed"] if phase == "Failed" else ["Complete"]
        for number in range(len(kinds)):
            said = [_condition(kind, at) for kind in kinds[: number + 1]]
            job.append(("job", _job(limit, count=count, asked=True, conditions=said, **counted)))
    job.append(("job", None))
    first = [job.pop(0)]
    return first + _interleaved(draw, [job, *pods])


@given(_deletions())
def test_what_a_deletion_kills_is_no_result(events: list[Event]) -> None:
    assert _play(events) == []


@st.composite
def _ends(draw: st.DrawFn) -> tuple[str, list[Event]]:
    """A Job that ends, and is deleted in the same second."""
    count = draw(st.integers(1, 4))
    has_failed = draw(st.booleans())
    phase, kind = ("Failed", "Failed") if has_failed else ("Succeeded", "Complete")
    pods: list[list[Event]] = []
    for number in range(count):
        key = f"pod-{number}"
        # The deletion of a pod that has ended takes effect at once.
        gone = _pod(number, phase, asked=NOW, ended=NOW)
        ended = _pod(number, phase, ended=NOW)
        pods.append([(key, _pod(number, "Running")), (key, ended), (key, gone), (key, None)])
    counted = {phase.lower(): count}
    job: list[Event] = [("job", _job(0, count=count, active=count))]
    is_counted = draw(st.booleans())
    said = {"conditions": [_condition(kind, NOW)], **counted} if is_counted else {"active": count}
    if is_counted:
        job.append(("job", _job(0, count=count, **said)))
    if draw(st.booleans()):
        job.append(("job", _job(0, count=count, asked=True, **said)))
    job.append(("job", None))
    first = [job.pop(0)]
    return ("Failed" if has_failed else "Completed"), first + _interleaved(draw, [job, *pods])


@given(_ends())
def test_what_had_ended_before_its_deletion_keeps_its_result(case: tuple[str, list[Event]]) -> None:
    expected, events = case
    assert set(_play(events)) == {expected}
