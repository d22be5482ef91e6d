"""The ``fluxqueue/...`` labels and annotations that an author may set, read and checked.

Called by the webhook (which refuses what is wrong) and by ``workload.pod_request`` (which uses it).
Each key is a row of ``KEYS``. All errors name the field, the value and what is allowed.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.provision import Provision
from fluxqueue.fluxjob.request import MatchPolicy
from fluxqueue.workload import labels
from fluxqueue.workload.json_patch import at
from fluxqueue.workload.spans import read_span

if TYPE_CHECKING:
    from fluxqueue.workload.own_jobspec import OwnJobspec
    from fluxqueue.workload.starting import BeginTime, Dependency

MAX_INT32 = 2**31 - 1

_OURS = frozenset(
    {
        *(labels.AUTHOR_SUSPENDED, labels.SUSPENDED, labels.USER, labels.GROUP),
        *(labels.SLOTS, labels.JOBID, labels.NODES, labels.SUBMITTER),
        *(labels.PLACEMENT, labels.PLACED, labels.NATIVE_GROUP),
    }
)

SWEEP_PODS_MAX = 5_000
"""The largest parallelism of a sweep. Its pods exist while they wait."""
SWEEP_PODS_USUAL = 1_000
"""The parallelism that ``submit --array`` sets if the user sets none."""

_TOGETHER = "is about pods that start together, and the pods of this Job are independent"

HINTS_MAX = 5
"""Maximum number of unknown keys with a search for the nearest known key.

The search costs more than to read a value.
"""

_PLAIN_SECONDS = re.compile(r"[0-9]{1,10}")
_FLUX_DURATION = re.compile(r"([0-9]{1,10}(?:\.[0-9]{1,9})?)(ms|[smhd])")
_FLUX_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
_NO_LIMIT = frozenset({"inf", "infinity"})
_QUEUE_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_OBJECT_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?")
_LABEL_NAME = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_LABEL_KEY = re.compile(rf"(?:[a-z0-9](?:[-a-z0-9.]{{0,251}}[a-z0-9])?/)?{_LABEL_NAME}")


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the author of a workload asked for beside its pods' resources. None is *not set*.

    ``is_suspended_for_queue``: the author suspended it so that the queue resumes it, as with Kueue.
    Admission sets it. ``paths`` maps the key of each annotation to the path of its field.
    """

    duration_s: int | None = None
    priority: int | None = None
    priority_class: str | None = None
    is_exclusive: bool = False
    is_spread: bool = False
    within: str | None = None
    prefer_within: str | None = None
    has_whole_cores: bool = False
    match_policy: MatchPolicy | None = None
    queue: str | None = None
    jobspec: OwnJobspec | None = None
    depends_on: tuple[Dependency, ...] = ()
    begin: BeginTime | None = None
    is_held: bool = False
    restarts_on_loss: bool = False
    start_timeout_s: int | None = None
    is_sweep: bool = False
    waits_gated: bool | None = None
    is_suspended_for_queue: bool = False
    provision: Provision | None = None
    paths: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def is_timed_by_pod(self) -> bool:
        """Tell whether each pod has the duration. Of a gang all end together.

        The time of a Job counts while its pods are gated.
        """
        return self.is_sweep or bool(self.waits_gated)

    @property
    def has_shape(self) -> bool:
        """Tell whether they determine how slots are placed, so that two of them may conflict."""
        return self.is_spread or self.within is not None or self.jobspec is not None


Places = Iterable[tuple[str, Mapping[str, Any]]]
"""Metadata with their paths. The later one wins."""


def read_wishes(workload: Mapping[str, Any]) -> Wishes:
    """Read the wishes on a BatchJob or a Pod. A BatchJob's own win over its template's.

    Raises
    ------
    InvalidInput
        A key under ``fluxqueue/`` is unknown or in the wrong place, or a value is not allowed.
        ``where`` is the field's path.
    """
    template = (workload.get("spec") or {}).get("template") or {}
    inner, own = template.get("metadata") or {}, workload.get("metadata") or {}
    found: dict[str, tuple[str, str]] = {}
    for said in _said((("spec.template.metadata", inner), ("metadata", own))):
        if not said.is_known:
            raise said.error()
        found[said.key] = (said.where, said.value)
    values = {
        one.field: one.read(found[key][1], found[key][0])
        for key, one in KEYS.items()
        if one.field and key in found
    }
    wishes = Wishes(**values, paths={key: where for key, (where, _) in found.items()})
    _refuse_itself(wishes, workload, found)
    return wishes if wishes.jobspec is None else _fill_from(wishes, wishes.jobspec)


def values_of(places: Places) -> dict[str, str]:
    """Return the raw values that an author set, by key. A value of another type is its text."""
    return {one.key: str(one.value) for one in _said(places) if one.is_known}


def faults_of(places: Places) -> dict[str, InvalidInput]:
    """Return each key under ``fluxqueue/`` that is invalid by itself, and why.

    Each key is read once, independent of the others, so the cost grows with the number of keys.
    """
    found: dict[str, _Said] = {}
    errors: dict[str, InvalidInput] = {}
    for said in _said(places):
        if said.is_known:
            found[said.key] = said
        else:
            errors[said.key] = said.error(has_hint=len(errors) < HINTS_MAX)
    for key, said in found.items():
        try:
            KEYS[key].read(said.value, said.where)
        except InvalidInput as error:
            errors[key] = error
        except Exception as error:  # noqa: BLE001  a defect of one parser is of one value
            errors[key] = InvalidInput(
                f"cannot be read ({error})", where=said.where, value=said.value
            )
    return errors


@dataclass(frozen=True, slots=True)
class _Said:
    """A key under ``fluxqueue/`` as an author wrote it. ``is_known``: it may stand there."""

    key: str
    where: str
    value: str
    is_known: bool

    def error(self, *, has_hint: bool = True) -> InvalidInput:
        """Return why it must not stand there."""
        known = KEYS.get(self.key)
        if known is not None:
            message = "stands in the wrong place"
            hint = f"{self.key} is read as {'a label' if known.is_label else 'an annotation'}"
        else:
            message, hint = "is not known", _nearest(self.key) if has_hint else ""
        return InvalidInput(message, where=self.where, value=self.value, hint=hint)


def _said(places: Places) -> Iterator[_Said]:
    """Yield the keys under ``fluxqueue/`` that fluxqueue itself does not write."""
    for path, meta in places:
        for name in ("labels", "annotations"):
            for key, value in (meta.get(name) or {}).items():
                if not key.startswith(labels.PREFIX) or key in _OURS:
                    continue
                known = KEYS.get(key)
                is_known = known is not None and (
                    known.is_label if name == "labels" else known.is_annotation
                )
                yield _Said(key, f"{path}.{name}[{key}]", value, is_known)


def _nearest(key: str) -> str:
    known = sorted(name.removeprefix(labels.PREFIX) for name in KEYS)
    close = difflib.get_close_matches(key.removeprefix(labels.PREFIX), known, n=1)
    question = f"did you mean {labels.PREFIX}{close[0]}? " if close else ""
    return f"{question}known are {', '.join(labels.PREFIX + name for name in known)}"


def said_on(job: Mapping[str, Any], key: str) -> str | None:
    """Return one annotation of a BatchJob without a check of all. Its own wins over its template's.

    For readers that ask often, of BatchJobs that admission has checked.
    """
    for place in ((), ("spec", "template")):
        said = at(job, (*place, "metadata", "annotations", key))
        if said is not None:
            return str(said)
    return None


def first_said(several: Iterable[Wishes]) -> Wishes:
    """Return the first value of each wish."""
    found = Wishes()
    for said in several:
        found = replace(
            found,
            **{
                one.name: getattr(said, one.name)
                for one in fields(Wishes)
                if getattr(found, one.name) == one.default
                or (one.name == "paths" and not found.paths)
            },
        )
    return found


def check_fits(wishes: Wishes, *, can_restart: bool = True, waits: str = "") -> None:
    """Refuse wishes that only a Job without a wider group can have.

    ``can_restart``: it can be suspended, so its released pods can be held again. ``waits``: the
    only way in which its kind waits, ``gated`` or ``suspended``. Empty: the author chooses.

    Raises
    ------
    InvalidInput
        There is such a wish. The error names its field.
    """
    way = labels.GATED if wishes.waits_gated else "suspended"
    for key, is_said, value, problem, hint in (
        (
            labels.ON_NODE_LOSS,
            wishes.restarts_on_loss and not can_restart,
            labels.REQUEUE,
            "cannot be: only what can be suspended goes back to the queue",
            "make it a Job, or leave it out: a pod that something makes is replaced",
        ),
        (
            labels.GANG,
            wishes.is_sweep,
            "false",
            "is for Jobs that start by themselves",
            "leave it out here, or submit the pods as one Job without a group",
        ),
        (
            labels.WAIT,
            wishes.waits_gated is not None and waits not in {"", way},
            way,
            f"is for Jobs: an object of this kind waits {waits}",
            "leave it out",
        ),
    ):
        if is_said:
            where = wishes.paths.get(key, key)
            raise InvalidInput(problem, where=where, value=value, hint=hint)


def check_sweep(job: Mapping[str, Any], wishes: Wishes) -> None:
    """Refuse what contradicts independent pods, and more pods than a sweep may have at once.

    ``job`` is a sweep: a BatchJob whose pods start one by one and not as a gang
    (``scheduler.sweeps``). Its ``parallelism`` says how many of them run at once.

    Raises
    ------
    InvalidInput
        The error names the field.
    """
    for key, is_said in (
        (labels.WITHIN, wishes.within is not None),
        (labels.PREFER_WITHIN, wishes.prefer_within is not None),
        (labels.SPREAD, wishes.is_spread),
        (labels.ON_NODE_LOSS, wishes.restarts_on_loss),
    ):
        if is_said:
            hint = f'remove it, or remove {labels.GANG}: "false"'
            raise InvalidInput(_TOGETHER, where=wishes.paths.get(key, key), hint=hint)
    parallelism = int(job["spec"].get("parallelism") or 1)
    if parallelism > SWEEP_PODS_MAX:
        raise InvalidInput(
            f"is more than a Job with independent pods may run at once, {SWEEP_PODS_MAX}",
            where="spec.parallelism",
            value=parallelism,
            hint=f"set it to {SWEEP_PODS_MAX} or less; spec.completions may be larger",
        )


def _refuse_itself(
    wishes: Wishes, workload: Mapping[str, Any], found: Mapping[str, tuple[str, str]]
) -> None:
    """Refuse at once a dependency on the workload itself. The queue detects longer circles."""
    name = (workload.get("metadata") or {}).get("name")
    if name and any(edge.job == name and edge.kind != "singleton" for edge in wishes.depends_on):
        where, value = found[labels.DEPENDS_ON]
        hint = "name the workload that must go before; a name stands for one of this namespace"
        raise InvalidInput(f"{name!r} waits for itself", where=where, value=value, hint=hint)


def _fill_from(wishes: Wishes, jobspec: OwnJobspec) -> Wishes:
    """Take duration and queue from the jobspec if no annotation sets them."""
    duration_s, queue = wishes.duration_s, wishes.queue
    if duration_s is None and jobspec.duration_s is not None:
        where = f"{jobspec.where}.attributes.system.duration"
        duration_s = parse_duration(str(jobspec.duration_s), where)
    if queue is None and jobspec.jobspec.queue:
        queue = parse_queue(jobspec.jobspec.queue, f"{jobspec.where}.attributes.system.queue")
    return replace(wishes, duration_s=duration_s, queue=queue)


def parse_duration(text: str, where: str) -> int:
    """Read a run time in seconds: ``90``, ``90s``, ``15m``, ``2h30m``, ``1d``.

    Durations of Flux (RFC 23) are read, too: ``1.5h``, ``500ms``. They are rounded up to seconds.

    Raises
    ------
    InvalidInput
        It is something else, zero, or more than Kubernetes allows for a deadline (2^31-1 s).
    """
    hint = "write seconds or a sum of days, hours, minutes, seconds: 90, 90s, 15m, 2h30m, 1d"
    is_plain = _PLAIN_SECONDS.fullmatch(text) is not None
    total_s = int(text) if is_plain else read_span(text, is_ordered=True)
    if total_s is None and (found := _FLUX_DURATION.fullmatch(text)):
        total_s = math.ceil(round(float(found[1]) * _FLUX_UNITS_S[found[2]], 3))
    if total_s is None:
        raise InvalidInput(f"{text!r} is no duration", where=where, value=text, hint=hint)
    if not 0 < total_s <= MAX_INT32:
        raise InvalidInput(
            f"{text!r} is {total_s} seconds",
            where=where,
            value=text,
            hint=f"must be from 1 to {MAX_INT32} seconds",
        )
    return total_s


def _read_limit(text: str, where: str) -> int | None:
    """Read a duration of a job. ``inf`` is none, as in Flux."""
    return None if text in _NO_LIMIT else parse_duration(text, where)


# Few workloads have one of these. Admission loads their readers for the first of them.


def _read_jobspec(text: str, where: str) -> OwnJobspec:
    from fluxqueue.workload.own_jobspec import read_jobspec

    return read_jobspec(text, where)


def _read_depends_on(text: str, where: str) -> tuple[Dependency, ...]:
    from fluxqueue.workload.starting import parse_depends_on

    return parse_depends_on(text, where)


def _read_begin(text: str, where: str) -> BeginTime:
    from fluxqueue.workload.starting import parse_begin_time

    return parse_begin_time(text, where)


def _parse_priority(text: str, where: str) -> int:
    if re.fullmatch(r"[+-]?[0-9]{1,10}", text) and abs(int(text)) <= MAX_INT32:
        return int(text)
    raise InvalidInput(
        f"{text!r} is no priority",
        where=where,
        value=text,
        hint=f"must be a whole number from -{MAX_INT32} to {MAX_INT32}",
    )


def _as_it_is(text: str, where: str) -> str:
    if not isinstance(text, str):
        raise InvalidInput("is no text", where=where, value=text, hint="write it in quotes")
    return text


Read = Callable[[str, str], Any]
"""Makes a value from its text and the path of its field. Raises ``InvalidInput``."""


def _one_of(values: Mapping[str, Any], hint: str = "", problem: str = "is not allowed") -> Read:
    """Return a reader of one of some words."""
    allowed = hint or f"allowed are {', '.join(values)}"

    def read(text: str, where: str) -> Any:
        if text in values:
            return values[text]
        raise InvalidInput(f"{text!r} {problem}", where=where, value=text, hint=allowed)

    return read


def _matching(form: re.Pattern[str], problem: str, hint: str) -> Callable[[str, str], str]:
    """Return a reader of a text of one form."""

    def read(text: str, where: str) -> str:
        if form.fullmatch(text):
            return text
        raise InvalidInput(f"{text!r} {problem}", where=where, value=text, hint=hint)

    return read


parse_queue = _matching(
    _QUEUE_NAME, "is no queue name", "lower-case letters, digits and '-', at most 63 characters"
)
"""Read a name that a FluxQueue can have. Raises ``InvalidInput``."""

_CLASS = _matching(
    _OBJECT_NAME, "is no name of a class", "name a WorkloadPriorityClass or a PriorityClass"
)
_LEVEL = _matching(
    _LABEL_KEY,
    "is no level",
    "the name of a level, such as zone or rack, its node label, or node",
)
_YES_OR_NO = 'allowed are "true" and "false"'
_BOOL = _one_of({"true": True, "false": False}, _YES_OR_NO)
_SPREAD = _one_of({"node": True}, 'allowed is "node": at most one pod on each node')
_CORES = _one_of(
    {"whole": True}, 'allowed is "whole": each pod\'s cpu is rounded up to whole cores'
)
_ON_LOSS = _one_of(
    {labels.REQUEUE: True, "replace": False},
    '"requeue": all of its pods start anew; "replace": the one that is lost does',
)
_WAIT = _one_of(
    {labels.GATED: True, "suspended": False},
    '"gated": its pods exist while it waits; "suspended": they do not, the default',
)
_PROVISION = _one_of(
    {str(one): one for one in Provision}, problem="does not say when nodes are asked for"
)
_MATCH_POLICY = _one_of({str(one): one for one in MatchPolicy}, problem="is no match policy")


@dataclass(frozen=True, slots=True)
class Key:
    """A key that an author may set.

    ``field``: of ``Wishes``. Empty if another module reads it (``groups``, ``followers``).
    """

    field: str = ""
    read: Read = _as_it_is
    is_label: bool = False
    is_annotation: bool = True


KEYS: Mapping[str, Key] = {
    labels.JOBSPEC: Key("jobspec", _read_jobspec),
    labels.DURATION: Key("duration_s", _read_limit),
    labels.PRIORITY: Key("priority", _parse_priority),
    labels.PRIORITY_CLASS: Key("priority_class", _CLASS),
    labels.EXCLUSIVE: Key("is_exclusive", _BOOL),
    labels.SPREAD: Key("is_spread", _SPREAD),
    labels.WITHIN: Key("within", _LEVEL),
    labels.PREFER_WITHIN: Key("prefer_within", _LEVEL),
    labels.CORES: Key("has_whole_cores", _CORES),
    labels.MATCH_POLICY: Key("match_policy", _MATCH_POLICY),
    labels.QUEUE: Key("queue", parse_queue, is_label=True),
    labels.DEPENDS_ON: Key("depends_on", _read_depends_on),
    labels.BEGIN_TIME: Key("begin", _read_begin),
    labels.HOLD: Key("is_held", _BOOL),
    labels.ON_NODE_LOSS: Key("restarts_on_loss", _ON_LOSS),
    labels.START_TIMEOUT: Key("start_timeout_s", parse_duration),
    labels.GANG: Key("is_sweep", _one_of({"true": False, "false": True}, _YES_OR_NO)),
    labels.WAIT: Key("waits_gated", _WAIT),
    labels.PROVISION: Key("provision", _PROVISION),
    labels.MANAGED: Key(is_label=True, is_annotation=False),
    labels.POD_GROUP: Key(is_label=True),
    labels.GROUP_SIZE: Key(is_label=True),
    labels.GROUP_USERS: Key(),
    labels.FOLLOWERS: Key(),
    labels.JOB_NAME: Key(),
    labels.ACCOUNT: Key(),
    labels.COMMENT: Key(),
}
"""How each key is read. The order is that of the errors."""
