"""The ``fluxqueue/...`` labels and annotations that an author may set, read and checked.

Called by the webhook (which refuses what is wrong) and by ``workload.shape`` (which uses it). All
errors name the field, the value and what is allowed.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.provision import Provision
from fluxqueue.fluxjob.request import MatchPolicy
from fluxqueue.workload import labels
from fluxqueue.workload.json_patch import at
from fluxqueue.workload.own_jobspec import OwnJobspec, read_jobspec
from fluxqueue.workload.spans import read_span
from fluxqueue.workload.starting import (
    BeginTime,
    Dependency,
    parse_begin_time,
    parse_depends_on,
)

MAX_INT32 = 2**31 - 1

ANNOTATIONS = frozenset(
    {
        labels.DURATION,
        labels.PRIORITY,
        labels.PRIORITY_CLASS,
        labels.EXCLUSIVE,
        labels.SPREAD,
        labels.WITHIN,
        labels.PREFER_WITHIN,
        labels.CORES,
        labels.MATCH_POLICY,
        labels.JOBSPEC,
        labels.DEPENDS_ON,
        labels.BEGIN_TIME,
        labels.HOLD,
        labels.ON_NODE_LOSS,
        labels.GANG,
        labels.WAIT,
        labels.START_TIMEOUT,
        labels.PROVISION,
        labels.GROUP_USERS,
        labels.FOLLOWERS,
        labels.JOB_NAME,
        labels.ACCOUNT,
        labels.COMMENT,
    }
)
"""Keys that an author may set as an annotation. Those in ``_BOTH`` count in either place."""

LABELS = frozenset({labels.QUEUE, labels.MANAGED, labels.POD_GROUP, labels.GROUP_SIZE})
"""Keys that an author may set as a label."""

_OURS = frozenset(
    {
        *(labels.AUTHOR_SUSPENDED, labels.SUSPENDED, labels.USER, labels.GROUP),
        *(labels.SLOTS, labels.JOBID, labels.NODES, labels.SUBMITTER),
        *(labels.PLACEMENT, labels.PLACED),
    }
)
_BOTH = frozenset({labels.QUEUE, labels.POD_GROUP, labels.GROUP_SIZE})

HINTS_MAX = 5
"""Maximum number of unknown keys with a search for the nearest known key.

The search costs more than to read a value.
"""

_PLAIN_SECONDS = re.compile(r"[0-9]{1,10}")
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
    def has_shape(self) -> bool:
        """Tell whether they determine how slots are placed, so that two of them may conflict."""
        return self.is_spread or self.within is not None or self.jobspec is not None


def read_wishes(workload: Mapping[str, Any]) -> Wishes:
    """Read the wishes on a BatchJob or a Pod. A BatchJob's own win over its template's.

    Raises
    ------
    InvalidInput
        A key under ``fluxqueue/`` is unknown or in the wrong place, or a value is not allowed.
        ``where`` is the field's path.
    """
    found: dict[str, tuple[str, str]] = {}
    template = (workload.get("spec") or {}).get("template") or {}
    for path, meta in (
        ("spec.template.metadata", template.get("metadata") or {}),
        ("metadata", workload.get("metadata") or {}),
    ):
        _collect(found, meta.get("labels") or {}, f"{path}.labels", LABELS, "annotation")
        _collect(found, meta.get("annotations") or {}, f"{path}.annotations", ANNOTATIONS, "label")
    said = {key: _read(found, key, parse) for key, parse in _PARSERS.items()}
    jobspec: OwnJobspec | None = said[labels.JOBSPEC]
    wishes = Wishes(
        duration_s=said[labels.DURATION],
        priority=said[labels.PRIORITY],
        priority_class=said[labels.PRIORITY_CLASS],
        is_exclusive=bool(said[labels.EXCLUSIVE]),
        is_spread=bool(said[labels.SPREAD]),
        within=said[labels.WITHIN],
        prefer_within=said[labels.PREFER_WITHIN],
        has_whole_cores=bool(said[labels.CORES]),
        match_policy=said[labels.MATCH_POLICY],
        queue=said[labels.QUEUE],
        jobspec=jobspec,
        depends_on=said[labels.DEPENDS_ON] or (),
        begin=said[labels.BEGIN_TIME],
        is_held=bool(said[labels.HOLD]),
        restarts_on_loss=bool(said[labels.ON_NODE_LOSS]),
        start_timeout_s=said[labels.START_TIMEOUT],
        is_sweep=said[labels.GANG] is False,
        waits_gated=said[labels.WAIT],
        provision=said[labels.PROVISION],
        paths={key: where for key, (where, _) in found.items()},
    )
    _refuse_itself(wishes, workload, found)
    return wishes if jobspec is None else _fill_from(wishes, jobspec)


def values_of(places: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, str]:
    """Return the raw values that an author set, by key. The later of ``places`` wins.

    ``places`` are metadata with their paths. A value of another type counts as its text.
    """
    found: dict[str, str] = {}
    for _, meta in places:
        for name, known in (("labels", LABELS), ("annotations", ANNOTATIONS)):
            for key, value in (meta.get(name) or {}).items():
                if key in known or key in _BOTH:
                    found[key] = str(value)
    return found


def faults_of(places: Iterable[tuple[str, Mapping[str, Any]]]) -> dict[str, InvalidInput]:
    """Return each key under ``fluxqueue/`` that is invalid by itself, and why.

    Each key is read once, independent of the others, so the cost grows with the number of keys.
    ``places`` are as of ``values_of``.
    """
    found: dict[str, tuple[str, str]] = {}
    errors: dict[str, InvalidInput] = {}
    for path, meta in places:
        for name, known, other in (
            ("labels", LABELS, "annotation"),
            ("annotations", ANNOTATIONS, "label"),
        ):
            for key, value in (meta.get(name) or {}).items():
                if not key.startswith(labels.PREFIX):
                    continue
                where = f"{path}.{name}[{key}]"
                if key in known or key in _BOTH:
                    found[key] = (where, value)
                    continue
                error = _misplaced(key, where, value, other, has_hint=len(errors) < HINTS_MAX)
                if error is not None:
                    errors[key] = error
    for key, (where, value) in found.items():
        try:
            _read(found, key, _PARSERS.get(key, _as_it_is))
        except InvalidInput as error:
            errors[key] = error
        except Exception as error:  # noqa: BLE001  a defect of one parser is of one value
            errors[key] = InvalidInput(f"cannot be read ({error})", where=where, value=value)
    return errors


def _as_it_is(text: str, where: str) -> str:
    if not isinstance(text, str):
        raise InvalidInput("is no text", where=where, value=text, hint="write it in quotes")
    return text


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


def refuse_restart(wishes: Wishes) -> None:
    """Refuse to restart what cannot be suspended: released pods are not held again.

    Raises
    ------
    InvalidInput
        The wishes ask for a restart.
    """
    if wishes.restarts_on_loss:
        raise InvalidInput(
            "cannot be: only what can be suspended goes back to the queue",
            where=wishes.paths.get(labels.ON_NODE_LOSS, labels.ON_NODE_LOSS),
            value=labels.REQUEUE,
            hint="make it a Job, or leave it out: a pod that something makes is replaced",
        )


def refuse_wait(wishes: Wishes, how: str) -> None:
    """Refuse a way to wait that the kind does not have. ``how`` names its only way.

    Raises
    ------
    InvalidInput
        The wishes ask for the other way.
    """
    if wishes.waits_gated is not None and wishes.waits_gated != (how == labels.GATED):
        raise InvalidInput(
            f"is for Jobs: an object of this kind waits {how}",
            where=wishes.paths.get(labels.WAIT, labels.WAIT),
            value=labels.GATED if wishes.waits_gated else "suspended",
            hint="leave it out",
        )


def refuse_sweep(wishes: Wishes) -> None:
    """Refuse independent pods where other pods belong to the workload.

    Raises
    ------
    InvalidInput
        The wishes say that the pods are independent.
    """
    if wishes.is_sweep:
        raise InvalidInput(
            "is for Jobs that start by themselves",
            where=wishes.paths.get(labels.GANG, labels.GANG),
            value="false",
            hint="leave it out here, or submit the pods as one Job without a group",
        )


def _refuse_itself(
    wishes: Wishes, workload: Mapping[str, Any], found: Mapping[str, tuple[str, str]]
) -> None:
    """Refuse at once a dependency on the workload itself. The queue detects longer circles."""
    name = (workload.get("metadata") or {}).get("name")
    if name and any(edge.job == name for edge in wishes.depends_on):
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


def _collect(
    found: dict[str, tuple[str, str]],
    pairs: Mapping[str, str],
    path: str,
    known: frozenset[str],
    other_place: str,
) -> None:
    for key, value in pairs.items():
        if not key.startswith(labels.PREFIX):
            continue
        where = f"{path}[{key}]"
        if key in known or key in _BOTH:
            found[key] = (where, value)
        elif (error := _misplaced(key, where, value, other_place)) is not None:
            raise error


def _misplaced(
    key: str, where: str, value: str, other_place: str, *, has_hint: bool = True
) -> InvalidInput | None:
    """Return why a key is wrong here, or None if fluxqueue itself writes it."""
    if key in ANNOTATIONS | LABELS:
        hint = f"{key} is read as {'an' if other_place == 'annotation' else 'a'} {other_place}"
        return InvalidInput("stands in the wrong place", where=where, value=value, hint=hint)
    if key in _OURS:
        return None
    hint = _nearest(key) if has_hint else ""
    return InvalidInput("is not known", where=where, value=value, hint=hint)


def _nearest(key: str) -> str:
    known = sorted(name.removeprefix(labels.PREFIX) for name in ANNOTATIONS | LABELS)
    close = difflib.get_close_matches(key.removeprefix(labels.PREFIX), known, n=1)
    question = f"did you mean {labels.PREFIX}{close[0]}? " if close else ""
    return f"{question}known are {', '.join(labels.PREFIX + name for name in known)}"


def _read(found: Mapping[str, tuple[str, str]], key: str, parse: Any) -> Any:
    if key not in found:
        return None
    where, value = found[key]
    return parse(value, where)


def parse_duration(text: str, where: str) -> int:
    """Read a run time in seconds: ``90``, ``90s``, ``15m``, ``2h30m``, ``1d``.

    Raises
    ------
    InvalidInput
        It is something else, zero, or more than Kubernetes allows for a deadline (2^31-1 s).
    """
    hint = "write seconds or a sum of days, hours, minutes, seconds: 90, 90s, 15m, 2h30m, 1d"
    is_plain = _PLAIN_SECONDS.fullmatch(text) is not None
    total_s = int(text) if is_plain else read_span(text, is_ordered=True)
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


def _parse_priority(text: str, where: str) -> int:
    if re.fullmatch(r"[+-]?[0-9]{1,10}", text) and abs(int(text)) <= MAX_INT32:
        return int(text)
    raise InvalidInput(
        f"{text!r} is no priority",
        where=where,
        value=text,
        hint=f"must be a whole number from -{MAX_INT32} to {MAX_INT32}",
    )


def _parse_class(text: str, where: str) -> str:
    if _OBJECT_NAME.fullmatch(text):
        return text
    raise InvalidInput(
        f"{text!r} is no name of a class",
        where=where,
        value=text,
        hint="name a WorkloadPriorityClass or a PriorityClass",
    )


def _parse_bool(text: str, where: str) -> bool:
    if text in {"true", "false"}:
        return text == "true"
    raise InvalidInput(
        f"{text!r} is not allowed", where=where, value=text, hint='allowed are "true" and "false"'
    )


def _parse_provision(text: str, where: str) -> Provision:
    if text in set(Provision):
        return Provision(text)
    raise InvalidInput(
        f"{text!r} does not say when nodes are asked for",
        where=where,
        value=text,
        hint=f"allowed are {', '.join(Provision)}",
    )


def _parse_match_policy(text: str, where: str) -> MatchPolicy:
    if text in set(MatchPolicy):
        return MatchPolicy(text)
    raise InvalidInput(
        f"{text!r} is no match policy",
        where=where,
        value=text,
        hint=f"allowed are {', '.join(MatchPolicy)}",
    )


def _parse_spread(text: str, where: str) -> bool:
    if text == "node":
        return True
    raise InvalidInput(
        f"{text!r} is not allowed",
        where=where,
        value=text,
        hint='allowed is "node": at most one pod on each node',
    )


def _parse_on_loss(text: str, where: str) -> bool:
    if text in {labels.REQUEUE, "replace"}:
        return text == labels.REQUEUE
    raise InvalidInput(
        f"{text!r} is not allowed",
        where=where,
        value=text,
        hint='"requeue": all of its pods start anew; "replace": the one that is lost does',
    )


def _parse_wait(text: str, where: str) -> bool:
    if text in {labels.GATED, "suspended"}:
        return text == labels.GATED
    raise InvalidInput(
        f"{text!r} is not allowed",
        where=where,
        value=text,
        hint='"gated": its pods exist while it waits; "suspended": they do not, the default',
    )


def _parse_cores(text: str, where: str) -> bool:
    if text == "whole":
        return True
    raise InvalidInput(
        f"{text!r} is not allowed",
        where=where,
        value=text,
        hint='allowed is "whole": each pod\'s cpu is rounded up to whole cores',
    )


def _parse_level(text: str, where: str) -> str:
    if _LABEL_KEY.fullmatch(text):
        return text
    raise InvalidInput(
        f"{text!r} is no level",
        where=where,
        value=text,
        hint="the name of a level, such as zone or rack, its node label, or node",
    )


def parse_queue(text: str, where: str) -> str:
    """Read a name that a FluxQueue can have.

    Raises
    ------
    InvalidInput
        No FluxQueue can have it.
    """
    if _QUEUE_NAME.fullmatch(text):
        return text
    raise InvalidInput(
        f"{text!r} is no queue name",
        where=where,
        value=text,
        hint="lower-case letters, digits and '-', at most 63 characters",
    )


_PARSERS: Mapping[str, Callable[[str, str], Any]] = {
    labels.JOBSPEC: read_jobspec,
    labels.DURATION: parse_duration,
    labels.PRIORITY: _parse_priority,
    labels.PRIORITY_CLASS: _parse_class,
    labels.EXCLUSIVE: _parse_bool,
    labels.SPREAD: _parse_spread,
    labels.WITHIN: _parse_level,
    labels.PREFER_WITHIN: _parse_level,
    labels.CORES: _parse_cores,
    labels.MATCH_POLICY: _parse_match_policy,
    labels.QUEUE: parse_queue,
    labels.DEPENDS_ON: parse_depends_on,
    labels.BEGIN_TIME: parse_begin_time,
    labels.HOLD: _parse_bool,
    labels.ON_NODE_LOSS: _parse_on_loss,
    labels.START_TIMEOUT: parse_duration,
    labels.GANG: _parse_bool,
    labels.WAIT: _parse_wait,
    labels.PROVISION: _parse_provision,
}
"""How each key is read. The order is that of the errors."""
