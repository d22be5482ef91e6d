"""The options of ``submit``, for the command line and for Python, applied to a request.

Pure but for the present time, which relative begin times need.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, TypedDict

from fluxqueue.client.batch.begin_time import begin_time
from fluxqueue.client.batch.directive_values import duration, pair
from fluxqueue.client.batch.job_manifest import local_time, with_name
from fluxqueue.client.batch.script_request import ScriptRequest
from fluxqueue.errors import InvalidInput
from fluxqueue.workload.quantity import parse_quantity


class JobOptions(TypedDict, total=False):
    """Options of a submission. All of them can be left out.

    image : Container image. Default: the variable FLUXQUEUE_IMAGE.
    name : Default: made from the command or the function, with a random end.
    nodes : Number of different nodes for the pods.
    tasks : Number of pods, which start together.
    array : Independent tasks of a command or script: "0-99", "1,3,7", "0-99%4" (4 at once).
    cpus, memory, gpus : Of each pod: 4, "500m", "4Gi", 1.
    time : Longest run: seconds, a timedelta, "90s", "2h30m".
    queue : Name of a queue. Default: ``default``.
    priority : Higher goes first.
    within : All pods within one node, rack, zone, ...
    depends_on : "afterok:a,b afterany:c".
    begin : Not before: a datetime, a timedelta from now, "+2h", "2030-01-31T08:00:00Z".
    env : Variables of the pods.
    hold : Hold it until it is released.
    exclusive : Whole nodes.
    requeue : Start again if a pod is lost with its node. Without it, the job fails.
    each_pod : Run a script in a pod for each of its tasks, not once.
    """

    image: str
    name: str
    nodes: int | str
    tasks: int
    array: str
    cpus: int | float | str
    memory: str
    gpus: int
    time: float | str | timedelta
    queue: str
    priority: int | str
    within: str
    depends_on: str
    begin: str | datetime | timedelta
    env: Mapping[str, str]
    hold: bool
    exclusive: bool
    requeue: bool
    each_pod: bool


KNOWN = frozenset(JobOptions.__annotations__)
SHAPE = ("nodes", "tasks", "array", "cpus", "memory", "gpus", "exclusive", "each_pod")
"""Options that change the shape of a request: ``read_command`` takes them."""


def shape_options(options: JobOptions) -> dict[str, Any]:
    """Return the options of the shape as ``read_command`` takes them."""
    found: dict[str, object] = {
        "nodes": str(options.get("nodes") or ""),
        "tasks": options.get("tasks") or 0,
        "array": options.get("array") or "",
        "cpus": str(options.get("cpus") or ""),
        "memory": options.get("memory") or "",
        "gpus": options.get("gpus") or 0,
        "exclusive": bool(options.get("exclusive")),
        "each_pod": bool(options.get("each_pod")),
    }
    return {key: value for key, value in found.items() if value}


def apply_options(request: ScriptRequest, options: JobOptions) -> ScriptRequest:
    """Return the request with the options that do not change its shape. They win over a script.

    Raises
    ------
    InvalidInput
        A value is not valid.
    """
    cpus, memory = str(options.get("cpus") or ""), options.get("memory") or ""
    for name, amount in (("--cpus", cpus), ("--memory", memory)):
        if amount:
            parse_quantity(amount, where=name)
    priority = options.get("priority")
    given: dict[str, object] = {
        "name": options.get("name"),
        "image": options.get("image"),
        "cpus": cpus,
        "memory": memory,
        "queue": options.get("queue"),
        "priority": "" if priority is None else str(priority),
        "within": options.get("within"),
        "depends_on": options.get("depends_on"),
        "begin": _begin(options.get("begin") or ""),
        "duration": _duration(options.get("time") or ""),
        "is_held": options.get("hold"),
        "restarts_on_loss": options.get("requeue"),
    }
    request = replace(request, **{key: one for key, one in given.items() if one})  # type: ignore[arg-type]
    if options.get("name"):
        request = with_name(request, request.name)
    pairs = [_variable(name, value) for name, value in (options.get("env") or {}).items()]
    return replace(request, environment=(*request.environment, *pairs))


def _variable(name: str, value: str) -> tuple[str, str]:
    found = pair(f"{name}={value}", "--env")
    if found[0] != name:
        raise InvalidInput("has a '='", where="--env", value=name, hint="give a name such as MODE")
    return found


def _duration(time: float | str | timedelta) -> str:
    if isinstance(time, timedelta):
        time = time.total_seconds()
    text = f"{math.ceil(time)}s" if isinstance(time, int | float) else time
    return duration(text, "time", "submit") if time else ""


def _begin(begin: str | datetime | timedelta) -> str:
    if isinstance(begin, timedelta):
        return f"+{math.ceil(begin.total_seconds())}s"
    if isinstance(begin, datetime):
        return (begin if begin.tzinfo else begin.astimezone()).isoformat(timespec="seconds")
    return begin_time(begin, local_time(), "--begin") if begin else ""
