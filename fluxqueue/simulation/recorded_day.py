"""A recorded time of a cluster: its nodes, queues and jobs, as the time machine replays them.

``db.reading.recorded_days`` reads it from the rows as JSON, and so does a file that
``fluxqueue sim --save-history`` wrote. Both come in here. Pure. The module never reads a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.request import CPU
from fluxqueue.graph.ledger.placement import FOREVER, PlacedSlot, Placement
from fluxqueue.jobspec import Jobspec
from fluxqueue.jobspec.parse import read_stored
from fluxqueue.jobspec.shape import equal_slots, total
from fluxqueue.policy.queue_rules import DEFAULT_QUEUE, QueueRules, read_rules
from fluxqueue.simulation.period import JOBS_MAX, check_period

FORM = "fluxqueue-history/1"
"""The form of the file. Another release may write another one."""

EPOCH_MAX_S = 1 << 40
AMOUNT_MAX = 1 << 52
GPU = "gpu"
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedJob:
    """One run of a job. Times are epoch seconds, None if it did not happen yet.

    ``submitted_s`` is the time from which it could start: after holds, dependencies and its begin
    time. ``places`` is what it got on each node. ``is_estimated``: its request was deleted, and
    its use stands in for it.
    """

    jobid: int
    name: str
    namespace: str
    user: str
    queue: str
    priority: int
    submitted_s: int
    started_s: int | None
    ended_s: int | None
    until_s: int | None
    request: Jobspec
    places: tuple[PlacedSlot, ...]
    node_count: int
    is_exclusive: bool = False
    held: tuple[str, ...] = ()
    is_estimated: bool = False

    @property
    def cpu_m(self) -> int:
        """Return its millicores: what it got, or what it asks for."""
        got = sum(dict(slot.resources).get(CPU, 0) for slot in self.places)
        return got or total(self.request, CPU)

    def amount(self, resource: str) -> int:
        """Return what it got of a resource, in base units. ``gpu`` stands for all GPUs."""
        if resource == CPU:
            return self.cpu_m
        slots = (dict(slot.resources) for slot in self.places)
        return sum(n for one in slots for name, n in one.items() if is_gpu(name))

    def placement(self) -> Placement:
        """Return what it held, from its start until its planned end."""
        assert self.started_s is not None
        until = FOREVER if self.until_s is None else self.until_s
        return Placement(self.places, self.started_s, until, self.is_exclusive, self.held)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedDay:
    """A time ``[since_s, until_s)`` of a cluster, in epoch seconds.

    ``jobs`` also holds the jobs that waited or ran at its begin, and those that came after its end
    and before the last of its jobs had started. ``unmanaged`` is what permanent pods use, by node.
    ``used`` are core-seconds before the begin, by queue and user, as fair share counts them.
    """

    since_s: int
    until_s: int
    read_s: int
    nodes: tuple[NodeFact, ...]
    unmanaged: Mapping[str, Mapping[str, int]]
    queues: Mapping[str, QueueRules]
    used: Mapping[tuple[str, str], float]
    jobs: tuple[RecordedJob, ...]

    @property
    def span_s(self) -> int:
        """Return its length in seconds."""
        return self.until_s - self.since_s

    def is_measured(self, job: RecordedJob) -> bool:
        """Return whether the job came within the time, and has started."""
        return job.started_s is not None and self.since_s <= job.submitted_s < self.until_s


def is_gpu(resource: str) -> bool:
    """Return whether a resource is a GPU, as accounting tells by default."""
    return "/" in resource and GPU in resource


def parse_day(data: Any, source: str) -> RecordedDay:
    """Read a recorded time from JSON.

    Raises
    ------
    InvalidInput
        It is no such JSON. ``where`` names ``source`` and the field.
    """
    top = _Fields(data, source)
    if top.text("form") != FORM:
        raise InvalidInput(
            f"is not {FORM}",
            where=f"{source}, form",
            value=top.text("form"),
            hint="write the file with `fluxqueue sim --from-history --save-history FILE`",
        )
    since_s, until_s, read_s = (top.whole(key) for key in ("since", "until", "read"))
    check_period(since_s, until_s, max(read_s, since_s + 1))
    jobs = top.entries("jobs")
    if len(jobs) > JOBS_MAX:
        raise InvalidInput(
            f"has more than {JOBS_MAX} jobs", where=f"{source}, jobs", hint="take a shorter time"
        )
    queues = {one.text("name"): _rules(one) for one in top.entries("queues")}
    queues.setdefault(DEFAULT_QUEUE, QueueRules(DEFAULT_QUEUE))
    return RecordedDay(
        since_s=since_s,
        until_s=until_s,
        read_s=read_s,
        nodes=tuple(_node(one) for one in top.entries("nodes")),
        unmanaged={name: _amounts(one) for name, one in top.mappings("unmanaged")},
        queues=queues,
        used=_used(top.entries("used"), queues, since_s),
        jobs=tuple(_job(one) for one in jobs),
    )


def _rules(one: _Fields) -> QueueRules:
    """Return the rules of a queue. It is open: it was, or its jobs would not be there."""
    try:
        found = read_rules(one.text("name"), one.data.get("spec") or {})
    except InvalidInput as error:
        raise InvalidInput(
            error.message, where=f"{one.where}: {error.where}", hint=error.hint or "mend the spec"
        ) from None
    return replace(found, is_enabled=True, is_started=True, namespaces=None)


def _used(
    entries: Iterable[_Fields], queues: Mapping[str, QueueRules], at_s: int
) -> dict[tuple[str, str], float]:
    """Return core-seconds by queue and user, decayed to the begin."""
    from fluxqueue.policy.fair_share import decay

    found: dict[tuple[str, str], float] = {}
    for one in entries:
        pair = one.text("queue"), one.text("user")
        rules = queues.get(pair[0])
        if rules is None or rules.fair_share is None:
            continue
        cpu_s = min(one.number("cpuSeconds"), float(AMOUNT_MAX))
        more = decay(cpu_s, at_s - one.whole("at"), rules.fair_share.half_life_s)
        found[pair] = found.get(pair, 0.0) + more
    return found


def _node(one: _Fields) -> NodeFact:
    return one.read(NodeFact.from_json, "is no node")


def _job(one: _Fields) -> RecordedJob:
    places = tuple(
        PlacedSlot(name, tuple(sorted(_amounts(amounts).items())))
        for name, amounts in one.mappings("nodes")
    )
    started_s, ended_s = one.whole_or_none("started"), one.whole_or_none("ended")
    submitted_s = one.whole("submitted")
    if ended_s is not None and (started_s is None or ended_s < started_s):
        raise InvalidInput(
            "is before its start", where=f"{one.where}, ended", value=ended_s, hint="mend the file"
        )
    if started_s is not None and started_s < submitted_s:
        submitted_s = started_s
    request = _request(one, started_s, ended_s)
    return RecordedJob(
        jobid=one.whole("jobid"),
        name=one.text("name"),
        namespace=one.text("namespace"),
        user=one.text("user"),
        queue=one.text("queue"),
        priority=one.whole("priority", signed=True),
        submitted_s=submitted_s,
        started_s=started_s,
        ended_s=ended_s,
        until_s=one.whole_or_none("until"),
        request=request,
        places=places,
        node_count=max(1, len(places) or one.whole("nodeCount")),
        is_exclusive=one.data.get("exclusive") is True,
        held=one.names("held"),
        is_estimated=one.data.get("request") is None,
    )


def _request(one: _Fields, started_s: int | None, ended_s: int | None) -> Jobspec:
    """Return what the job asked for. If that was deleted, its use in equal parts stands in."""
    if one.data.get("request") is not None:
        found = one.read(lambda data: read_stored(data["request"]), "has no usable request")
        return replace(found, queue="")
    ran_s = max(1, (ended_s or 0) - (started_s or 0))
    slots = max(1, min(one.whole("slots"), 100_000))
    cpu_m = round(min(one.number("cpuSeconds"), float(AMOUNT_MAX)) / ran_s / slots * 1000)
    return equal_slots(slots, {CPU: max(1, cpu_m)}, duration_s=ran_s)


def _amounts(one: _Fields) -> dict[str, int]:
    return {name: one.whole(name) for name in one.data}


class _Fields:
    """A JSON object that is not checked yet. Errors name its place."""

    def __init__(self, data: Any, where: str) -> None:
        if not isinstance(data, dict):
            raise InvalidInput("is no JSON object", where=where, hint="mend the file")
        self.data: dict[str, Any] = data
        self.where = where

    def _refused(self, key: str, message: str) -> InvalidInput:
        value = self.data.get(key)
        shown = value if isinstance(value, (str, int, float)) else None
        return InvalidInput(
            message, where=f"{self.where}, {key}", value=shown, hint="mend the file"
        )

    def text(self, key: str) -> str:
        value = self.data.get(key, "")
        if not isinstance(value, str):
            raise self._refused(key, "is no text")
        return value

    def whole(self, key: str, *, signed: bool = False) -> int:
        value = self.data.get(key, 0)
        is_whole = type(value) is int and abs(value) <= AMOUNT_MAX and (signed or value >= 0)
        if not is_whole:
            raise self._refused(key, "is no whole number from 0")
        return int(value)

    def whole_or_none(self, key: str) -> int | None:
        return None if self.data.get(key) is None else self.whole(key)

    def number(self, key: str) -> float:
        value = self.data.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
            raise self._refused(key, "is no number from 0")
        return float(value)

    def names(self, key: str) -> tuple[str, ...]:
        value = self.data.get(key) or []
        if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
            raise self._refused(key, "is no list of names")
        return tuple(value)

    def entries(self, key: str) -> list[_Fields]:
        value = self.data.get(key) or []
        if not isinstance(value, list):
            raise self._refused(key, "is no list")
        return [_Fields(one, f"{self.where}, {key}[{i}]") for i, one in enumerate(value)]

    def mappings(self, key: str) -> list[tuple[str, _Fields]]:
        found = _Fields(self.data.get(key) or {}, f"{self.where}, {key}")
        return [(name, _Fields(one, f"{found.where}.{name}")) for name, one in found.data.items()]

    def read(self, make: Callable[[dict[str, Any]], T], message: str) -> T:
        """Return what ``make`` makes of the object."""
        try:
            return make(self.data)
        except InvalidInput as error:
            raise InvalidInput(
                f"{message}: {error}", where=self.where, hint="mend the file"
            ) from None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidInput(
                f"{message}: {error!r}", where=self.where, hint="mend the file"
            ) from None
