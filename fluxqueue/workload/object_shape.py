"""The types of all that admission reads from requests and objects, and their one check.

``fluxqueue_webhook.admit`` calls it before any other code reads an object. An API server checks
custom resources only after mutating admission, and any client can send anything to the port. Fields
that are not named here are not read. A null field counts as absent, as in Kubernetes. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.states import SHOWN
from fluxqueue.workload import labels
from fluxqueue.workload.json_patch import at
from fluxqueue.workload.object_paths import find, value_at
from fluxqueue.workload.objects import Object
from fluxqueue.workload.owner_kinds import OwnerKind

INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class One:
    """A single value: ``types`` in Python, ``name`` for users."""

    types: tuple[type, ...]
    name: str


@dataclass(frozen=True, slots=True)
class Of:
    """A list, or a map, with members that all have the shape ``each``."""

    kind: type
    each: Any


@dataclass(frozen=True, slots=True)
class Among:
    """A string that is one of ``texts``, or empty."""

    texts: frozenset[str]


TEXT = One((str,), "a string")
BOOL = One((bool,), "true or false")
WHOLE = One((int,), "a whole number")
QUANTITY = One((str, int, float), "a quantity")
MAP = One((dict,), "an object")
LIST = One((list,), "a list")
TEXTS, TEXT_MAP = Of(list, TEXT), Of(dict, TEXT)
Shape = Any
"""A ``One``, an ``Among``, an ``Of``, or a dict: the shapes of an object's fields."""

METADATA = {
    **dict.fromkeys(("name", "generateName", "namespace", "uid"), TEXT),
    **dict.fromkeys(("creationTimestamp", "deletionTimestamp", "resourceVersion"), TEXT),
    "labels": TEXT_MAP,
    "annotations": TEXT_MAP,
    "ownerReferences": Of(
        list,
        {**dict.fromkeys(("apiVersion", "kind", "name", "uid"), TEXT), "controller": BOOL},
    ),
}
METADATA_ONLY = {"apiVersion": TEXT, "kind": TEXT, "metadata": METADATA}
_RESOURCES = {"requests": Of(dict, QUANTITY), "limits": Of(dict, QUANTITY)}
_CONTAINERS = Of(
    list,
    {
        "name": TEXT,
        "restartPolicy": TEXT,
        "resources": _RESOURCES,
        "ports": Of(list, {"hostPort": WHOLE}),
    },
)
_EXPRESSIONS = Of(list, {"key": TEXT, "operator": TEXT, "values": TEXTS})
_TERMS = Of(list, {"matchExpressions": _EXPRESSIONS, "matchFields": _EXPRESSIONS})
_NODE_AFFINITY = {
    "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": _TERMS},
    "preferredDuringSchedulingIgnoredDuringExecution": LIST,
}
POD_SPEC = {
    "containers": _CONTAINERS,
    "initContainers": _CONTAINERS,
    "nodeSelector": TEXT_MAP,
    "affinity": {"nodeAffinity": _NODE_AFFINITY, "podAffinity": MAP, "podAntiAffinity": MAP},
    "tolerations": Of(list, dict.fromkeys(("key", "operator", "value", "effect"), TEXT)),
    "schedulingGates": Of(list, {"name": TEXT}),
    **dict.fromkeys(("schedulerName", "nodeName", "priorityClassName"), TEXT),
    **dict.fromkeys(("runtimeClassName", "restartPolicy"), TEXT),
    **dict.fromkeys(("priority", "activeDeadlineSeconds", "terminationGracePeriodSeconds"), WHOLE),
    "overhead": Of(dict, QUANTITY),
    "resources": _RESOURCES,
    "volumes": Of(list, MAP),
    "topologySpreadConstraints": LIST,
    "resourceClaims": LIST,
    "schedulingGroup": {"podGroupName": TEXT},
    "workloadRef": dict.fromkeys(("name", "podGroup", "podGroupReplicaKey"), TEXT),
}
TEMPLATE = {"metadata": METADATA, "spec": POD_SPEC}
POD = {**METADATA_ONLY, "spec": POD_SPEC, "status": MAP}
JOB = {
    **METADATA_ONLY,
    "spec": {
        **dict.fromkeys(("parallelism", "completions", "activeDeadlineSeconds"), WHOLE),
        **dict.fromkeys(("completionMode", "managedBy"), TEXT),
        "suspend": BOOL,
        "template": TEMPLATE,
        "scheduling": {
            "schedulingPolicy": {"basic": MAP, "gang": {"minCount": WHOLE}},
            "schedulingConstraints": {"topology": Of(list, {"key": TEXT})},
            "disruptionMode": {"single": MAP, "all": MAP},
            "resourceClaims": Of(list, MAP),
        },
    },
    "status": {
        "conditions": Of(list, {"type": TEXT, "status": TEXT}),
        **dict.fromkeys(("active", "succeeded", "terminating"), WHOLE),
        **dict.fromkeys(("completedIndexes", "failedIndexes"), TEXT),
        "uncountedTerminatedPods": {"succeeded": LIST},
    },
}
_FLUXJOB = {
    **METADATA_ONLY,
    "spec": {
        **dict.fromkeys(("queue", "requeue", "beginTime", "user"), TEXT),
        **dict.fromkeys(("hold", "cancel"), BOOL),
        "priority": WHOLE,
        "steeredBy": TEXT_MAP,
        "workload": dict.fromkeys(("apiVersion", "kind", "name", "uid"), TEXT),
    },
    "status": {"state": Among(frozenset(SHOWN))},
}
_ASKER = {"username": TEXT, "uid": TEXT, "groups": TEXTS, "extra": Of(dict, TEXTS)}
_REVIEW = {
    **METADATA_ONLY,
    "spec": {
        "fluxJob": TEXT,
        "jobspec": One((dict, list), "a jobspec"),
        "manifest": METADATA_ONLY,
        "changes": {
            **dict.fromkeys(("size", "durationSeconds", "priority"), WHOLE),
            **dict.fromkeys(("queue", "within"), TEXT),
            "requests": Of(dict, QUANTITY),
        },
        "asker": _ASKER,
    },
}
_OURS = "jobs.converged-computing.org"
FLUXJOB, PLACEMENT_REVIEW = (_OURS, "FluxJob"), (_OURS, "PlacementReview")
SHAPES: Mapping[tuple[str, str], Shape] = {
    ("batch", "Job"): JOB,
    ("", "Pod"): POD,
    ("batch", "CronJob"): METADATA_ONLY,
    ("", "ReplicationController"): METADATA_ONLY,
    FLUXJOB: _FLUXJOB,
    PLACEMENT_REVIEW: _REVIEW,
}
"""API group and kind -> the shape of its objects."""

REQUEST = {
    "uid": TEXT,
    "kind": dict.fromkeys(("group", "version", "kind"), TEXT),
    **dict.fromkeys(("operation", "namespace", "name", "subResource"), TEXT),
    "userInfo": _ASKER,
    "options": {"fieldManager": TEXT},
    "object": MAP,
    "oldObject": MAP,
}
"""The request of an AdmissionReview."""


VALUES_MAX = 100_000
"""Maximum number of values in one object: maps, lists, texts and numbers.

Admission reads each value a few times, which takes some microseconds in all. The largest realistic
objects have a tenth of this number.
"""


def check_objects(
    group_kind: tuple[str, str], entry: OwnerKind | None, **objects: Object | None
) -> None:
    """Check the types of all fields that admission reads of a request's ``object``, ``oldObject``.

    ``entry``: the kind that makes pods, if it is one.

    Raises
    ------
    InvalidInput
        A field has a value of another type. The error names the field, the value and what it must
        be.
    """
    shape = SHAPES.get(group_kind) or (METADATA_ONLY if entry is not None else None)
    for name, obj in objects.items():
        if shape is None or obj is None:
            continue
        where = "" if name == "object" else name
        # The size comes first: it bounds the cost of the checks after it.
        check_size(obj, where)
        check_shape(obj, shape, where)
        if obj.get("metadata") is None:
            place = f"{where}.metadata".strip(".")
            raise InvalidInput("must be an object", where=place, hint="name the object there")
        if entry is not None and at(obj, ("metadata", "labels", labels.MANAGED)) == "true":
            _check_owner(entry, obj, where)


def check_size(obj: Any, where: str) -> None:
    """Check that an object does not have too many values for one admission.

    Raises
    ------
    InvalidInput
        It has more than ``VALUES_MAX``. The error names the field with most of them.
    """
    if _count(obj) <= VALUES_MAX:
        return
    # Descend to the list, or to the map of many members, that is too large by itself.
    while isinstance(obj, dict):
        name, inner = max(obj.items(), key=lambda member: _count(member[1]))
        if _count(inner) <= VALUES_MAX:
            break
        where, obj = f"{where}.{name}" if where else str(name), inner
    raise InvalidInput(
        f"has more than {VALUES_MAX} values, which is more than one admission looks at",
        where=where,
        hint="leave some out, or keep them in a ConfigMap or in a file",
    )


def _count(value: Any) -> int:
    """Count the values in ``value``, up to ``VALUES_MAX``."""
    number, waiting = 1, [value]
    while waiting and number <= VALUES_MAX:
        here = waiting.pop()
        if isinstance(here, dict):
            here = here.values()
        elif not isinstance(here, list):
            continue
        number += len(here)
        if number <= VALUES_MAX:
            waiting.extend(here)
    return number


def check_shape(value: Any, shape: Shape, where: str) -> None:
    """Check ``value`` and all below it.

    Raises
    ------
    InvalidInput
        A value is of another type, a number larger than an int64, or a text with a NUL.
    """
    if value is None:
        return
    if isinstance(shape, One):
        _check_one(value, shape, where)
    elif isinstance(shape, Among):
        _check_one(value, TEXT, where)
        if value and value not in shape.texts:
            raise _wrong(value, f"one of {', '.join(sorted(shape.texts))}", where)
    elif isinstance(shape, Of):
        if not isinstance(value, shape.kind):
            raise _wrong(value, "a list" if shape.kind is list else "an object", where)
        members: Any = value
        pairs = members.items() if isinstance(value, dict) else enumerate(members)
        for key, member in pairs:
            place = f"{where}[{key}]"
            if member is None:
                raise _wrong(member, "no null", place)
            if isinstance(key, str) and "\0" in key:
                raise _wrong(key, "a name without NUL", where)
            check_shape(member, shape.each, place)
    elif not isinstance(value, dict):
        raise _wrong(value, "an object", where)
    else:
        for name, inner in shape.items():
            check_shape(value.get(name), inner, f"{where}.{name}" if where else name)


def _check_one(value: Any, shape: One, where: str) -> None:
    is_bool = isinstance(value, bool) and bool not in shape.types
    if is_bool or not isinstance(value, shape.types):
        raise _wrong(value, shape.name, where)
    if isinstance(value, int) and abs(value) > INT64_MAX:
        raise _wrong(str(value), "a number of 64 bits", where)
    if isinstance(value, str) and "\0" in value:
        raise _wrong(value, "a text without NUL, which no row can hold", where)


def _wrong(value: Any, must_be: str, where: str) -> InvalidInput:
    shown = "null" if value is None else value
    return InvalidInput(f"must be {must_be}", where=where, value=shown, hint="correct its value")


def _check_owner(entry: OwnerKind, owner: Object, where: str) -> None:
    """Check the fields that are read of an owner that asks to be queued: its templates.

    Raises
    ------
    InvalidInput
        As ``check_shape``.
    """
    check_shape(owner.get("spec"), MAP, f"{where}.spec" if where else "spec")
    for part in entry.pods:
        for place, one in find(owner, part.each):
            path = ".".join(map(str, place))
            check_shape(one, MAP, path)
            if part.template is None:
                continue
            inner = value_at(one, part.template) if part.template else one
            check_shape(inner, TEMPLATE, f"{path}.{part.template}".strip("."))
