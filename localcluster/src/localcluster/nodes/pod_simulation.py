"""How a simulated pod runs: its annotations, its next step, its status. Pure.

A pod does no work and only takes time. Its command says how long, if it is ``sleep``. These
annotations control it:

- ``localcluster/duration`` (wins over ``sleep``. Default 1s, no end with restartPolicy Always)
- ``localcluster/exit-code``
- ``localcluster/fail-times`` (the first n runs of its Job or completion index fail)
- ``localcluster/message`` (its termination message)
- ``localcluster/never-ends``
- ``localcluster/termination`` (how long it takes to stop)

A change while the pod runs takes effect from then on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from math import inf
from typing import Any

from localcluster.loops.objects import (
    controller_of,
    is_deleting,
    is_finished,
    phase_of,
    read_time,
    uid_of,
    write_time,
)
from localcluster.nodes.pod_command import command_duration_s
from localcluster.obj import Obj

PREFIX = "localcluster/"
DEFAULT_DURATION_S = 1.0
RESTART_BASE_S = 0.2
RESTART_CAP_S = 5.0
KILLED_EXIT_CODE = 143
MESSAGE_MAX = 4096
"""Bytes of a termination message that a kubelet keeps."""

_DURATION = re.compile(r"^(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?$")
_MILLISECONDS = re.compile(r"^(\d+(?:\.\d+)?)ms$")


def parse_duration_s(text: str) -> float | None:
    """Parse ``1.5s``, ``200ms``, ``2m``, ``1h30m`` or plain seconds. None if it is invalid."""
    text = text.strip()
    found = _MILLISECONDS.match(text)
    if found:
        return float(found[1]) / 1000
    found = _DURATION.match(text)
    if not text or found is None:
        return None
    hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return hours * 3600 + minutes * 60 + seconds


@dataclass(frozen=True, slots=True)
class Script:
    """The annotations of a pod. Times are in seconds, None for without end."""

    duration_s: float | None = DEFAULT_DURATION_S
    exit_code: int = 0
    fail_times: int = 0
    termination_s: float = 0.0


def script_of(pod: Obj) -> Script:
    """Read the annotations. Values that cannot be parsed count as missing."""
    notes: dict[str, str] = pod["metadata"].get("annotations") or {}
    given = parse_duration_s(notes.get(f"{PREFIX}duration", ""))
    duration_s = given if given is not None else _unannotated_s(pod)
    if notes.get(f"{PREFIX}never-ends") == "true":
        duration_s = None
    return Script(
        duration_s,
        _integer(notes.get(f"{PREFIX}exit-code", "")),
        _integer(notes.get(f"{PREFIX}fail-times", "")),
        parse_duration_s(notes.get(f"{PREFIX}termination", "")) or 0.0,
    )


def _unannotated_s(pod: Obj) -> float | None:
    """Return the run time of a pod without an annotation. None means without end."""
    asleep_s = command_duration_s(pod)
    if asleep_s is not None:
        return None if asleep_s == inf else asleep_s
    return None if pod["spec"].get("restartPolicy", "Always") == "Always" else DEFAULT_DURATION_S


def _integer(text: str) -> int:
    return int(text) if text.isdigit() else 0


def failure_key(pod: Obj) -> tuple[str, str]:
    """Return the key under which failures are counted: the Job, and the completion index."""
    owner = controller_of(pod)
    labels = pod["metadata"].get("labels") or {}
    index = labels.get("batch.kubernetes.io/job-completion-index", "")
    return (owner["uid"] if owner else uid_of(pod), index)


@dataclass(slots=True)
class Run:
    """A pod on its node. ``attempt`` counts the runs of its ``failure_key`` before this one."""

    script: Script
    started: datetime
    attempt: int = 0
    restarts: int = 0
    is_waiting: bool = False
    """Between two runs in place."""
    since: datetime | None = None
    """Start of the present run or pause."""

    def exit_code(self) -> int:
        """Return the exit code of the present run."""
        if self.attempt < self.script.fail_times:
            return self.script.exit_code or 1
        return 0 if self.script.fail_times else self.script.exit_code


class Step(StrEnum):
    """What a node does next with a pod."""

    NOTHING = "nothing"
    START = "start"
    FINISH = "finish"
    RESTART = "restart"
    PAUSE = "pause"
    KILL = "kill"
    REMOVE = "remove"


def next_step(pod: Obj, run: Run | None, now: datetime) -> tuple[Step, float]:
    """Return the step, and in how many seconds it is due (0: now, NOTHING: never)."""
    if is_deleting(pod):
        return _ending_step(pod, run, now)
    if is_finished(pod):
        return Step.NOTHING, 0.0
    if run is None:
        return Step.START, 0.0
    since = run.since or run.started
    if run.is_waiting:
        pause_s = min(RESTART_CAP_S, RESTART_BASE_S * (1 << min(run.restarts, 10)))
        return Step.RESTART, _left_s(since, pause_s, now)
    if run.script.duration_s is None:
        return Step.NOTHING, 0.0
    left_s = _left_s(since, run.script.duration_s, now)
    policy = pod["spec"].get("restartPolicy", "Always")
    restarts = policy == "Always" or (policy == "OnFailure" and run.exit_code() != 0)
    return (Step.PAUSE if restarts else Step.FINISH), left_s


def _ending_step(pod: Obj, run: Run | None, now: datetime) -> tuple[Step, float]:
    if is_finished(pod):
        # With grace 0 the API server waits for finalizers, not for the node.
        is_ours = bool(pod["metadata"].get("deletionGracePeriodSeconds"))
        return (Step.REMOVE if is_ours else Step.NOTHING), 0.0
    grace_s = float(pod["metadata"].get("deletionGracePeriodSeconds") or 0)
    deleted = read_time(pod["metadata"]["deletionTimestamp"])
    asked_s = run.script.termination_s if run is not None else 0.0
    if deleted is None or asked_s <= 0:
        return Step.KILL, 0.0
    # deletionTimestamp is in the future by the grace period.
    elapsed_s = grace_s - (deleted - now).total_seconds()
    return Step.KILL, max(0.0, min(asked_s, grace_s) - elapsed_s)


def _left_s(since: datetime, length_s: float, now: datetime) -> float:
    return max(0.0, length_s - (now - since).total_seconds())


# -- status ----------------------------------------------------------------------------------------


def _conditions(pod: Obj, *, is_ready: bool, now: datetime) -> list[Obj]:
    """Return the kubelet's conditions, followed by those of others (PodScheduled ...)."""
    wanted = {"Initialized": "True", "Ready": str(is_ready), "ContainersReady": str(is_ready)}
    present = {c["type"]: c for c in (pod.get("status") or {}).get("conditions") or ()}
    conditions: list[Obj] = []
    for kind, status in wanted.items():
        old = present.pop(kind, None)
        is_same = old is not None and old.get("status") == status
        at = old["lastTransitionTime"] if old is not None and is_same else write_time(now)
        conditions.append(
            {"type": kind, "status": status, "lastProbeTime": None, "lastTransitionTime": at}
        )
    return [*conditions, *present.values()]


def _container_statuses(pod: Obj, state: Obj, last: Obj, *, ready: bool, restarts: int) -> Any:
    return [
        {
            "name": container["name"],
            "state": state,
            "lastState": last,
            "ready": ready,
            "restartCount": restarts,
            "image": container.get("image", ""),
            "imageID": "",
            "started": ready,
        }
        for container in pod["spec"]["containers"]
    ]


def _terminated(pod: Obj, run: Run, code: int, now: datetime) -> Obj:
    reason = "Completed" if code == 0 else "Error"
    ended = {
        "exitCode": code,
        "reason": reason,
        "startedAt": write_time(run.since or run.started),
        "finishedAt": write_time(now),
    }
    message = (pod["metadata"].get("annotations") or {}).get(f"{PREFIX}message")
    if message:
        ended["message"] = message.encode()[:MESSAGE_MAX].decode("utf-8", "ignore")
    return {"terminated": ended}


def running_status(pod: Obj, run: Run, now: datetime, *, host_ip: str, pod_ip: str) -> Obj:
    """Return the status of a pod with running containers."""
    last = _terminated(pod, run, run.exit_code(), now) if run.restarts else {}
    state = {"running": {"startedAt": write_time(run.since or run.started)}}
    return {
        "phase": "Running",
        "conditions": _conditions(pod, is_ready=True, now=now),
        "startTime": write_time(run.started),
        "hostIP": host_ip,
        "hostIPs": [{"ip": host_ip}],
        "podIP": pod_ip,
        "podIPs": [{"ip": pod_ip}],
        "containerStatuses": _container_statuses(
            pod, state, last, ready=True, restarts=run.restarts
        ),
    }


def paused_status(pod: Obj, run: Run, now: datetime) -> Obj:
    """Return the status between two runs in place."""
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off restarting"}}
    last = _terminated(pod, run, run.exit_code(), now)
    return {
        "phase": "Running",
        "conditions": _conditions(pod, is_ready=False, now=now),
        "containerStatuses": _container_statuses(
            pod, waiting, last, ready=False, restarts=run.restarts
        ),
    }


def finished_status(pod: Obj, run: Run | None, code: int, now: datetime) -> Obj:
    """Return the status of a pod that ended with ``code``."""
    status: Obj = {
        "phase": "Succeeded" if code == 0 else "Failed",
        "conditions": _conditions(pod, is_ready=False, now=now),
    }
    if run is not None:
        status["containerStatuses"] = _container_statuses(
            pod, _terminated(pod, run, code, now), {}, ready=False, restarts=run.restarts
        )
    return status


def recovered_run(pod: Obj) -> Run | None:
    """Return the run of a pod that was running before this process started."""
    status = pod.get("status") or {}
    started = read_time(status.get("startTime"))
    if phase_of(pod) != "Running" or started is None:
        return None
    containers = status.get("containerStatuses") or [{}]
    restarts = containers[0].get("restartCount") or 0
    state = containers[0].get("state") or {}
    since = read_time((state.get("running") or {}).get("startedAt"))
    return Run(script_of(pod), started, restarts=restarts, since=since)
