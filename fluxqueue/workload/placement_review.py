"""PlacementReviews: a request for a placement, read from the object's spec and checked.

The webhook calls it, refuses what cannot be read and records the requester (``spec.asker``). The
worker calls it and answers. The definition is ``chart/crds/placementreviews.yaml``. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fluxqueue.errors import InvalidInput, InvalidJobspec
from fluxqueue.fluxjob.levels import NODE_WORDS, Levels, find_level
from fluxqueue.jobspec import Jobspec
from fluxqueue.jobspec.change import with_amount, with_duration, with_size, without_top_level
from fluxqueue.jobspec.model import AMOUNT_MAX, NODE
from fluxqueue.jobspec.parse import parse_document
from fluxqueue.jobspec.shape import slot_kinds, within
from fluxqueue.workload.annotations import MAX_INT32, Wishes
from fluxqueue.workload.fingerprint import fingerprint
from fluxqueue.workload.json_patch import edited
from fluxqueue.workload.kinds.kind import WorkloadKind
from fluxqueue.workload.kinds.table import find_kind
from fluxqueue.workload.objects import Object
from fluxqueue.workload.own_jobspec import to_canonical
from fluxqueue.workload.pod_request import check_levels
from fluxqueue.workload.quantity import to_base_units
from fluxqueue.workload.site import Site

GROUP = "jobs.converged-computing.org"
KIND = "PlacementReview"
ASKER = "asker"

_FIELDS = ("fluxJob", "jobspec", "manifest", "changes", ASKER)
_CHANGES = ("size", "durationSeconds", "queue", "priority", "within", "requests")
_WAYS = "spec.fluxJob (a name), spec.manifest (a Job or Pod) or spec.jobspec"


@dataclass(frozen=True, slots=True)
class Asker:
    """The user that asks, as authenticated at admission, in terms of a SubjectAccessReview."""

    username: str = ""
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the form of ``spec.asker``."""
        found: dict[str, Any] = {"username": self.username}
        if self.uid:
            found["uid"] = self.uid
        if self.groups:
            found["groups"] = list(self.groups)
        if self.extra:
            found["extra"] = {key: list(values) for key, values in self.extra.items()}
        return found


def read_asker(found: Mapping[str, Any]) -> Asker:
    """Read a ``userInfo`` of an AdmissionReview, or ``spec.asker``."""
    return Asker(
        str(found.get("username") or ""),
        str(found.get("uid") or ""),
        tuple(map(str, found.get("groups") or ())),
        {str(k): tuple(map(str, v)) for k, v in (found.get("extra") or {}).items()},
    )


def with_asker(review: Object, user_info: Mapping[str, Any], levels: Levels) -> Object:
    """Return a new PlacementReview with the user that asks, whatever it says itself.

    The answer depends on what this user may read.

    Raises
    ------
    InvalidInput
        As ``read_review``.
    """
    read_review(review.get("spec") or {}, Site(levels=levels))
    return edited(review, {("spec", ASKER): read_asker(user_info).to_json()})


@dataclass(frozen=True, slots=True)
class ReviewChanges:
    """The requested changes. None means unchanged.

    ``within`` is a level's name, or empty: anywhere. ``requests`` are base units of each pod.
    ``duration_s`` 0 is without limit.
    """

    size: int | None = None
    duration_s: int | None = None
    queue: str | None = None
    priority: int | None = None
    within: str | None = None
    requests: Mapping[str, int] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Tell whether there are no changes."""
        return self == ReviewChanges()

    def apply(self, jobspec: Jobspec) -> Jobspec:
        """Return the request with these changes.

        Raises
        ------
        InvalidInput
            The request has nothing that could be changed like this.
        """
        for name, amount in self.requests.items():
            jobspec = _with_amount(jobspec, name, amount)
        if self.within is not None:
            jobspec = _within(jobspec, self.within)
        if self.size is not None:
            jobspec = _with_size(jobspec, self.size)
        if self.duration_s is not None:
            jobspec = with_duration(jobspec, self.duration_s)
        return jobspec


@dataclass(frozen=True, slots=True)
class ReviewRequest:
    """A review as requested.

    ``request`` is that of a manifest or a jobspec, with the changes applied. None if only a FluxJob
    is named. ``wishes`` and ``template``, its fingerprint, are a manifest's. ``priority`` is the
    requested one, or the one of ``priority_class`` if that alone decides. ``is_priority_granted``:
    that class gives it.
    """

    fluxjob: str | None
    request: Jobspec | None
    changes: ReviewChanges
    asker: Asker
    queue: str | None = None
    priority: int = 0
    is_priority_granted: bool = False
    priority_class: str | None = None
    wishes: Wishes = field(default_factory=Wishes)
    template: str = ""


def read_review(
    spec: Mapping[str, Any],
    site: Site,
    complete: Callable[[Object], Object] = lambda one: one,
) -> ReviewRequest:
    """Read a review's spec.

    ``complete`` returns the workload of a manifest with its pods as admission completes them.

    Raises
    ------
    InvalidInput
        It cannot be used. ``where`` is the field's path.
    """
    for name in sorted(spec.keys() - set(_FIELDS)):
        raise InvalidInput(
            "unknown field", where=f"spec.{name}", hint=f"known are {', '.join(_FIELDS[:-1])}"
        )
    changes = _read_changes(spec.get("changes") or {}, site.levels)
    fluxjob, manifest, jobspec = spec.get("fluxJob"), spec.get("manifest"), spec.get("jobspec")
    if not fluxjob and manifest is None and jobspec is None:
        raise InvalidInput("says nothing to be asked about", where="spec", hint=f"give {_WAYS}")
    if manifest is not None and jobspec is not None:
        hint = "take one of the two away"
        raise InvalidInput("stands beside spec.manifest", where="spec.jobspec", hint=hint)
    asked = ReviewRequest(fluxjob, None, changes, read_asker(spec.get(ASKER) or {}))
    if manifest is not None:
        asked = _read_manifest(asked, manifest, site, complete)
    if jobspec is not None:
        asked = replace(asked, request=_read_jobspec(jobspec, site.levels))
    if asked.request is not None:
        asked = replace(
            asked,
            request=changes.apply(asked.request),
            queue=changes.queue or asked.queue or asked.request.queue or None,
            priority=asked.priority if changes.priority is None else changes.priority,
            priority_class=asked.priority_class if changes.priority is None else None,
        )
    return asked


def _read_jobspec(document: Any, levels: Levels) -> Jobspec:
    if isinstance(document, list):
        document = {"resources": document}
    if isinstance(document, dict):
        document = {"version": 1, "tasks": [], "attributes": {}, **document}
    try:
        jobspec = parse_document(document)
        return to_canonical(jobspec, levels)
    except InvalidJobspec as error:
        place = f"spec.jobspec.{error.where}" if error.where else "spec.jobspec"
        raise InvalidInput(
            error.message, where=place, value=error.value, hint=error.hint
        ) from error


def _read_manifest(
    asked: ReviewRequest, manifest: Any, site: Site, complete: Callable[[Object], Object]
) -> ReviewRequest:
    where = "spec.manifest"
    if not isinstance(manifest, dict):
        raise InvalidInput("is no object", where=where, hint="a Job or a Pod, as it is applied")
    version, name = str(manifest.get("apiVersion") or ""), str(manifest.get("kind") or "")
    kind = find_kind(version.partition("/")[0] if "/" in version else "", name)
    if kind is None:
        raise InvalidInput(
            "is not queued by itself",
            where=f"{where}.kind",
            value=f"{version} {name}".strip(),
            hint="give a Job (batch/v1) or a Pod (v1)",
        )
    workload: Object = {**manifest, "kind": kind.name, "metadata": manifest.get("metadata") or {}}
    try:
        namespace = str(workload["metadata"].get("namespace") or "")
        workload = dict(site.aliases.translate(workload, namespace).obj)
        workload = complete(workload)
        wishes = kind.wishes(workload)
        check_levels(wishes, site.levels)
        request = kind.to_request(workload, site=site)
        template = fingerprint(kind.pod_specs(workload), request.size)
        priority = kind.priority(workload).value
        priority_class = _deciding_class(kind, workload, wishes)
        if kind.is_suspended(workload):
            wishes = replace(wishes, is_held=True)
    except InvalidInput as error:
        place = f"{where}.{error.where}" if error.where else where
        raise InvalidInput(
            error.message, where=place, value=error.value, hint=error.hint
        ) from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        # No API server has checked it yet: any field may have any type.
        raise InvalidInput(
            f"is no {kind.name} that an API server would take ({error!r})",
            where=where,
            hint=f"kubectl create --dry-run=server -f says what is wrong with a {kind.name}",
        ) from error
    return replace(
        asked,
        request=request,
        queue=wishes.queue,
        priority=priority,
        priority_class=priority_class,
        wishes=wishes,
        template=template,
    )


def _deciding_class(kind: WorkloadKind, workload: Mapping[str, Any], wishes: Wishes) -> str | None:
    """Return the PriorityClass of its pods, unless another setting takes precedence."""
    spec = kind.pod_spec(workload)
    if wishes.priority is not None:
        return None
    if wishes.priority_class is not None:
        return wishes.priority_class
    if spec.get("priority"):
        return None
    return spec.get("priorityClassName") or None


# --- changes -------------------------------------------------------------------------------------


def _read_changes(found: Mapping[str, Any], levels: Levels) -> ReviewChanges:
    for name in sorted(found.keys() - set(_CHANGES)):
        raise InvalidInput(
            "cannot be changed here",
            where=f"spec.changes.{name}",
            hint=f"known are {', '.join(_CHANGES)}",
        )
    requests = found.get("requests") or {}
    if not isinstance(requests, Mapping):
        raise InvalidInput("must map resources to amounts", where="spec.changes.requests")
    queue = found.get("queue")
    return ReviewChanges(
        size=_whole(found, "size", 1),
        duration_s=_whole(found, "durationSeconds", 0),
        queue=None if queue is None else str(queue),
        priority=_whole(found, "priority", -MAX_INT32),
        within=_read_level(found.get("within"), levels),
        requests={
            str(name): _amount(str(name), value, f"spec.changes.requests.{name}")
            for name, value in requests.items()
        },
    )


def _whole(found: Mapping[str, Any], name: str, low: int) -> int | None:
    value = found.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= MAX_INT32:
        raise InvalidInput(
            "is not usable",
            where=f"spec.changes.{name}",
            value=value,
            hint=f"a whole number from {low} to {MAX_INT32}",
        )
    return value


def _amount(name: str, value: Any, where: str) -> int:
    amount = to_base_units(name, value, where=where)
    if not 0 < amount <= AMOUNT_MAX:
        raise InvalidInput("is not usable", where=where, value=value, hint="more than 0")
    return amount


def _read_level(word: Any, levels: Levels) -> str | None:
    if word is None:
        return None
    if word == "":
        return ""
    if word in NODE_WORDS:
        return NODE
    level = find_level(levels, str(word))
    if level is None:
        known = ", ".join([*(one.name for one in levels), NODE])
        raise InvalidInput(
            "is no level of this cluster",
            where="spec.changes.within",
            value=word,
            hint=f'one of {known}, or "": anywhere',
        )
    return level.name


def _with_amount(jobspec: Jobspec, name: str, amount: int) -> Jobspec:
    known = sorted({one for kind in slot_kinds(jobspec) for one, _ in kind.needs})
    if name not in known:
        raise InvalidInput(
            "is not asked for",
            where=f"spec.changes.requests.{name}",
            hint=f"its pods ask for {', '.join(known)}",
        )
    return with_amount(jobspec, name, amount)


def _within(jobspec: Jobspec, level: str) -> Jobspec:
    wider = without_top_level(jobspec)
    if not level:
        if wider is None:
            raise InvalidInput(
                "it does not ask to be within one place", where="spec.changes.within", value=level
            )
        return wider
    return within(jobspec if wider is None else wider, level)


def _with_size(jobspec: Jobspec, size: int) -> Jobspec:
    found = with_size(jobspec, size)
    if found is None:
        raise InvalidInput(
            "does not say how its pods would lie then",
            where="spec.changes.size",
            value=size,
            hint="a multiple of the pods on each node or in each place; or change the manifest",
        )
    return found


def begin_at_s(wishes: Wishes, now: int) -> int | None:
    """Return the earliest start of a manifest that is submitted ``now``, or None."""
    if wishes.begin is None:
        return None
    return math.ceil(wishes.begin.resolve(now))
