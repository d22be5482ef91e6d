"""FluxJobs as users read them: one line each, filters, orders, and lookup by name.

Pure except for ``find``, which asks the API server for the FluxJob of a name. The commands about
jobs call it. Nothing here prints.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from sys import intern
from typing import Any

from fluxqueue.errors import ApiError, InvalidInput, NotFound
from fluxqueue.fluxjob.states import FINAL, PROVISIONING, SHOWN, WAITING, FluxJobState
from fluxqueue.fluxjob.times import from_rfc3339
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import FLUXJOBS, NAMESPACES
from fluxqueue.workload.fluxjob_name import name_for

SUFFIXES = ("job", "pod", "group", "deployment", "statefulset", "replicaset")
"""Suffixes of FluxJob names by the kind of workload (docs/user/groups.md)."""

HOLDING = frozenset({FluxJobState.ALLOCATED, FluxJobState.RUNNING})
GROUPS: Mapping[str, frozenset[str]] = {
    "live": WAITING | HOLDING | {PROVISIONING},
    "waiting": WAITING | {PROVISIONING},
    "started": HOLDING,
    "ended": FINAL,
    "all": frozenset(SHOWN),
}
"""Words that stand for several states."""

_RANK = {
    FluxJobState.RUNNING: 0,
    FluxJobState.ALLOCATED: 0,
    FluxJobState.RESERVED: 1,
    FluxJobState.PENDING: 1,
    FluxJobState.GATHERING: 2,
    FluxJobState.HELD: 3,
    FluxJobState.UNSATISFIABLE: 4,
}
_LAST = 9
_FAR = 2**60


@dataclass(frozen=True, slots=True)
class JobLine:
    """What one line shows of a FluxJob.

    Times are epoch seconds. ``expected`` is the expected start while it waits, and nine of ten such
    jobs start by ``expected_by``.
    """

    namespace: str
    fluxjob: str
    name: str
    kind: str
    state: str
    reason: str
    jobid: int | None
    place: int | None
    user: str
    queue: str
    size: int
    nodes: str
    priority: int
    submitted: int
    started: int | None
    expected: int | None
    ended: int | None
    expected_by: int | None = None


def read_line(fluxjob: Mapping[str, Any]) -> JobLine:
    """Read a FluxJob from the API server. One without a status is Pending.

    Equal texts are interned, so they exist once however many lines are kept.
    """
    meta, spec = fluxjob["metadata"], fluxjob["spec"]
    status = fluxjob.get("status") or {}
    return JobLine(
        namespace=intern(meta["namespace"]),
        fluxjob=meta["name"],
        name=spec["workload"]["name"],
        kind=intern(spec["workload"]["kind"]),
        state=intern(status.get("state", FluxJobState.PENDING.value)),
        reason=intern(status.get("reason", "")),
        jobid=status.get("jobid"),
        place=status.get("place", status.get("jobid")),
        user=intern(spec.get("user", "")),
        queue=intern(status.get("queue") or spec.get("queue", "")),
        size=spec.get("size", 0),
        nodes=status.get("nodes", ""),
        priority=status.get("priority", spec.get("priority", 0)),
        submitted=from_rfc3339(meta["creationTimestamp"]),
        started=_time(status.get("startTime")),
        expected=_time(status.get("expectedStart")),
        ended=_time(status.get("endTime")),
        expected_by=_time(status.get("expectedBy")),
    )


def _time(text: str | None) -> int | None:
    return from_rfc3339(text) if text else None


def parse_states(words: str, where: str = "--state") -> frozenset[str]:
    """Read ``pending,running``, or words for several states (``waiting``), in any case.

    Raises
    ------
    InvalidInput
        A word is not a state.
    """
    known = {state.lower(): frozenset({state}) for state in SHOWN} | dict(GROUPS)
    found: set[str] = set()
    for word in words.split(","):
        states = known.get(word.strip().lower())
        if states is None:
            raise InvalidInput(
                f"{word!r} is not a state",
                where=where,
                value=word,
                hint=f"one of {', '.join(known)}",
            )
        found |= {str(state) for state in states}
    return frozenset(found)


def turn(line: JobLine) -> tuple[int, ...]:
    """Return the sort key: running jobs, oldest first, then waiting jobs by turn, then others."""
    state = FluxJobState(line.state) if line.state in set(FluxJobState) else FluxJobState.PENDING
    rank = _RANK.get(state, _LAST)
    if rank == 0:
        return (rank, line.started or 0, line.jobid or _FAR)
    if rank == _LAST:
        return (rank, -(line.ended or 0), line.jobid or _FAR)
    return (rank, -line.priority, line.place or _FAR)


STAGES: tuple[frozenset[str], ...] = (
    HOLDING,
    frozenset({FluxJobState.RESERVED}),
    frozenset({FluxJobState.PENDING, PROVISIONING}),
    frozenset({FluxJobState.GATHERING}),
    frozenset({FluxJobState.HELD}),
    frozenset({FluxJobState.UNSATISFIABLE}),
    FINAL,
)
"""The states in the order of ``turn``, for reading them one after the other."""


def state_selector(states: frozenset[str], user: str = "") -> str:
    """Return the field selector of FluxJobs in one of ``states`` (of ``user``, if not empty).

    A selector knows only *and*. So for several states it names the states to leave out.
    """
    others = sorted(state for state in SHOWN if state not in states)
    named = sorted(states)
    found = (
        [f"status.state={named[0]}"]
        if len(named) == 1
        else [f"status.state!={state}" for state in others]
    )
    return ",".join([*found, *([f"spec.user={user}"] if user else [])])


ORDERS: dict[str, Callable[[JobLine], Any]] = {
    "turn": turn,
    "name": lambda line: (line.namespace, line.fluxjob),
    "age": lambda line: line.submitted,
    "jobid": lambda line: line.jobid or _FAR,
    "priority": lambda line: line.priority,
    "queue": lambda line: (line.queue, turn(line)),
    "size": lambda line: line.size,
    "start": lambda line: line.started or line.expected or _FAR,
    "state": lambda line: (turn(line)[0], line.state, line.jobid or _FAR),
    "user": lambda line: (line.user, turn(line)),
}


def parse_order(word: str) -> tuple[Callable[[JobLine], Any], bool]:
    """Return a sort key, and whether the order is reversed (``-age``).

    Raises
    ------
    InvalidInput
        There is no such order.
    """
    name = word.removeprefix("-")
    if name not in ORDERS:
        known = ", ".join(ORDERS)
        raise InvalidInput(
            f"{word!r} is not an order", where="--sort", value=word, hint=f"{known}, -NAME descends"
        )
    return ORDERS[name], word.startswith("-")


async def find(client: KubeClient, namespace: str, reference: str) -> dict[str, Any]:
    """Return the FluxJob for the name of a workload, of a FluxJob, or a jobid.

    If several match, it is the newest that has not ended, as in the database's commands. A number
    is always a jobid. Names are requested one by one. No selector knows jobids, so a jobid is
    searched page by page.

    Raises
    ------
    InvalidInput
        There is none, or no such namespace.
    """
    if not reference:
        raise InvalidInput("the name is empty", where="NAME", hint="fluxqueue jobs")
    is_number = reference.isascii() and reference.isdigit()
    found = [] if is_number else await _by_names(client, namespace, reference)
    if not found:
        found = await _by_reading(client, namespace, reference, is_number)
    if not found:
        await check_namespace(client, namespace)
        raise InvalidInput(
            f"namespace {namespace} has no such workload in the queue",
            where=reference,
            hint=f"fluxqueue jobs -n {namespace} --state all",
        )
    return max(found, key=_newest_living)


async def check_namespace(client: KubeClient, name: str) -> None:
    """Raise an error if a namespace does not exist, for commands that found nothing.

    Users that may not read the namespace get no error.

    Raises
    ------
    InvalidInput
        There is no such namespace.
    """
    with suppress(ApiError):
        try:
            await client.get(NAMESPACES, None, name)
        except NotFound:
            raise InvalidInput(
                f"the cluster has no namespace {name!r}",
                where="--namespace",
                hint="kubectl get namespaces, or -A for all",
            ) from None


def _newest_living(fluxjob: Mapping[str, Any]) -> tuple[bool, int]:
    line = read_line(fluxjob)
    return line.state not in FINAL, line.jobid or line.submitted


async def _by_names(client: KubeClient, namespace: str, reference: str) -> list[dict[str, Any]]:
    names = [reference, *(name_for(reference, suffix) for suffix in SUFFIXES)]

    async def get(name: str) -> dict[str, Any] | None:
        try:
            return await client.get(FLUXJOBS, namespace, name)
        except NotFound:
            return None

    found = filter(None, await asyncio.gather(*map(get, names)))
    return [one for one in found if _is_meant(one, reference)]


def _is_meant(fluxjob: Mapping[str, Any], reference: str) -> bool:
    return reference in (fluxjob["metadata"]["name"], fluxjob["spec"]["workload"]["name"])


async def _by_reading(
    client: KubeClient, namespace: str, reference: str, is_number: bool
) -> list[dict[str, Any]]:
    def keep(one: dict[str, Any]) -> dict[str, Any] | None:
        if is_number:
            jobid = (one.get("status") or {}).get("jobid")
            return one if jobid is not None and str(jobid) == reference.lstrip("0") else None
        return one if _is_meant(one, reference) else None

    kept, _ = await client.collect(FLUXJOBS, namespace, keep=keep)
    return [one for one in kept if one is not None]
