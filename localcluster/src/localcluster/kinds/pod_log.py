"""What the containers of a simulated pod have written, given its present status. Pure.

``server.logs`` calls it. No program runs, so a container writes one line when it starts and one
when it ends. The annotation ``localcluster/logs`` has other lines, written at the start. Errors are
those of the API server (recording ``pod-log``) and of the kubelet (``validateContainerLogStatus``
of ``pkg/kubelet/kubelet_pods.go``), which the API server passes on as 400.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from localcluster.obj import Obj
from localcluster.types.refusals import (
    FORBIDDEN,
    FieldError,
    Raw,
    bad_request,
    invalid,
    wrong,
)

TEXT_ANNOTATION = "localcluster/logs"
_LISTS = ("initContainers", "containers", "ephemeralContainers")
_UNAVAILABLE = {
    "ErrImagePull": "image can't be pulled",
    "ImagePullBackOff": "trying and failing to pull image",
}


class Line(NamedTuple):
    """One line, and when it was written (RFC 3339, whole seconds)."""

    at: str
    text: str


@dataclass(frozen=True, slots=True)
class LogOptions:
    """``v1.PodLogOptions``. ``since`` is RFC 3339 in UTC, or "" for the beginning."""

    container: str = ""
    is_previous: bool = False
    has_timestamps: bool = False
    since: str = ""
    tail_lines: int | None = None
    limit_bytes: int | None = None


def check_options(name: str, given: Mapping[str, int], *, has_time: bool, has_stream: bool) -> None:
    """Refuse what ``ValidatePodLogOptions`` refuses. ``given`` are the numbers by name.

    Raises
    ------
    StatusError
        422, with each option that is wrong.
    """
    errors: list[FieldError] = []

    def at_least(option: str, least: int, words: str) -> None:
        if given.get(option, least) < least:
            errors.append(wrong(option, given[option], f"must be {words} 0"))

    at_least("tailLines", 0, "greater than or equal to")
    at_least("limitBytes", 1, "greater than")
    if has_time and "sinceSeconds" in given:
        why = "at most one of `sinceTime` or `sinceSeconds` may be specified"
        errors.append(FieldError(FORBIDDEN, "[]", Raw(""), why))
    else:
        at_least("sinceSeconds", 1, "greater than")
    if has_stream:
        errors.append(FieldError(FORBIDDEN, "stream", Raw(""), "may not be specified"))
    if errors:
        raise invalid("", "PodLogOptions", name, errors)


def container_of(pod: Obj, asked: str) -> str:
    """Return the container of the requested log. Raise 400 if that is unclear."""
    name = pod["metadata"]["name"]
    known = [one["name"] for key in _LISTS for one in pod["spec"].get(key) or ()]
    if not asked and len(known) == 1:
        return str(known[0])
    if not asked:
        choice = " ".join(known)
        raise bad_request(
            f"a container name must be specified for pod {name}, choose one of: [{choice}]"
        )
    if asked not in known:
        raise bad_request(f"container {asked} is not valid for pod {name}")
    return asked


@dataclass(frozen=True, slots=True)
class Written:
    """One run of a container: when it began, what it wrote so far, whether that is all."""

    began: str
    lines: tuple[Line, ...]
    is_over: bool


def written(pod: Obj, container: str, *, is_previous: bool = False, began: str = "") -> Written:
    """Return what a run wrote: the present run, the one before, or that with this ``began``.

    Raises
    ------
    StatusError
        400: it has not started, or there is no such run.
    """
    status = _status_of(pod, container)
    state, last = status.get("state") or {}, (status.get("lastState") or {}).get("terminated")
    run = state.get("running") or state.get("terminated")
    if is_previous or run is None or (began and run["startedAt"] != began):
        if last is None:
            raise bad_request(_why_none(pod, container, state, is_previous=is_previous))
        run = last
    return _as_written(pod, container, run)


def _status_of(pod: Obj, container: str) -> Obj:
    status = pod.get("status") or {}
    for key in _LISTS:
        for one in status.get(f"{key.removesuffix('s')}Statuses") or ():
            if one["name"] == container:
                found: Obj = one
                return found
    if status.get("phase") in ("Succeeded", "Failed"):
        name = pod["metadata"]["name"]
        raise bad_request(f'container "{container}" in pod "{name}" is not available')
    return {"state": {"waiting": {"reason": "ContainerCreating"}}}


def _why_none(pod: Obj, container: str, state: Obj, *, is_previous: bool) -> str:
    what = f'container "{container}" in pod "{pod["metadata"]["name"]}"'
    if is_previous:
        return f"previous terminated {what} not found"
    if waiting := state.get("waiting"):
        reason = str(waiting.get("reason", ""))
        return f"{what} is waiting to start: {_UNAVAILABLE.get(reason, reason)}"
    return f"{what} is waiting to start - no logs yet"


def _as_written(pod: Obj, container: str, run: Mapping[str, Any]) -> Written:
    began, ended = run["startedAt"], run.get("finishedAt")
    text = (pod["metadata"].get("annotations") or {}).get(TEXT_ANNOTATION)
    if text is not None:
        lines = [Line(began, line) for line in text.splitlines()]
    else:
        node = pod["spec"].get("nodeName", "")
        lines = [Line(began, f"simulated container {container} started on {node}")]
        if ended:
            code = run.get("exitCode", 0)
            lines.append(Line(ended, f"simulated container {container} exited with {code}"))
    return Written(began, tuple(lines), is_over=bool(ended))


def shown(lines: tuple[Line, ...], options: LogOptions, *, is_first: bool = True) -> list[str]:
    """Return the requested lines.

    With ``is_first``, ``tail_lines`` counts back from the last present line.
    """
    kept = [line for line in lines if line.at >= options.since]
    if is_first and options.tail_lines is not None:
        kept = kept[max(0, len(kept) - options.tail_lines) :]
    if options.has_timestamps:
        return [f"{line.at.removesuffix('Z')}.000000000Z {line.text}" for line in kept]
    return [line.text for line in kept]
