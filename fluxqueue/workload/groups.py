"""Groups of pods: how authors spell them, and the mark in which admission writes down what it read.

A group is made by its pods: they name it and say how many they are. The pods of a set (Deployment,
ReplicaSet, StatefulSet) are one without saying so, where they ask to be queued: open, as it begins
with its first pod and grows and shrinks with the set. ``read_membership`` reads the
spellings of ours and of our predecessors, at admission; the mark (``labels.GROUP``) is what the
controller goes by, so that it need not know spellings, and nobody is a member without admission.
Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fluxqueue.errors import InvalidInput
from fluxqueue.workload import labels
from fluxqueue.workload.pods import controller_owner

SIZE_MAX = 100_000
_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,61}[a-z0-9])?")
_SIZE = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")
_UNSAID, _OPEN = "?", ""
_APPS, _TEMPLATE_HASH = "apps/v1", "pod-template-hash"
SETS = frozenset({"Deployment", "ReplicaSet", "StatefulSet"})


@dataclass(frozen=True, slots=True)
class Membership:
    """The group that a pod says it is of.

    ``minimum``: the group starts with so many, all or none; None where a PodGroup object says it.
    ``maximum``: it may grow to so many; None is without bound. ``of``: the kind of set that its
    pods are of, empty of a group that they name. ``where``: the path of its size, or
    of its name where no size stands there. ``is_former``: spelt as our predecessors did.
    """

    name: str
    minimum: int | None
    maximum: int | None
    where: str = field(default="", compare=False)
    is_former: bool = field(default=False, compare=False)
    of: str = ""

    @property
    def size(self) -> str:
        """As people write it: ``5``, ``3-5``, ``3 or more``."""
        if self.minimum is None:
            return "a size that its PodGroup says"
        if self.maximum is None:
            return f"{self.minimum} or more"
        is_fixed = self.minimum == self.maximum
        return str(self.minimum) if is_fixed else f"{self.minimum}-{self.maximum}"

    def mark(self) -> str:
        """What stands in the annotation that admission writes: ``NAME MINIMUM-MAXIMUM[ SET]``."""
        least = _UNSAID if self.minimum is None else self.minimum
        most = _OPEN if self.maximum is None else self.maximum
        return f"{self.name} {least}-{most}{f' {self.of}' if self.of else ''}"


def read_mark(obj: Mapping[str, Any]) -> Membership | None:
    """Read what admission wrote on a pod (or in a template); None where it is of no group."""
    text = ((obj.get("metadata") or {}).get("annotations") or {}).get(labels.GROUP)
    name, _, rest = str(text or "").partition(" ")
    size, _, of = rest.partition(" ")
    least, dash, most = size.partition("-")
    if of not in {"", *SETS}:
        return None
    if not dash or not _NAME.fullmatch(name) or not (least == _UNSAID or _is_number(least)):
        return None
    if most != _OPEN and not _is_number(most):
        return None
    return Membership(
        name=name,
        minimum=None if least == _UNSAID else int(least),
        maximum=None if most == _OPEN else int(most),
        of=of,
    )


def _is_number(text: str) -> bool:
    return bool(re.fullmatch(r"[0-9]{1,6}", text))


def read_membership(workload: Mapping[str, Any]) -> Membership | None:
    """Read of which group a workload's pods say they are; None where they say nothing, or are one.

    What stands on a workload itself wins over what stands in its pod template.

    Raises
    ------
    InvalidInput
        A name or a size cannot be read, or a size is missing; ``where`` is the field's path.
    """
    said = dict(_said(workload))
    found = _ours(said) or _former(said) or _of_object(said) or _of_set(workload)
    return None if found is None or found.maximum == 1 else found


def _said(workload: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Every key with its path and value; later ones win."""
    template = (workload.get("spec") or {}).get("template") or {}
    for path, meta in (
        ("spec.template.metadata", template.get("metadata") or {}),
        ("metadata", workload.get("metadata") or {}),
    ):
        for place in ("annotations", "labels"):
            for key, value in (meta.get(place) or {}).items():
                yield key, (f"{path}.{place}[{key}]", str(value))


def _ours(said: Mapping[str, tuple[str, str]]) -> Membership | None:
    if labels.POD_GROUP not in said:
        if labels.GROUP_SIZE in said:
            where, value = said[labels.GROUP_SIZE]
            hint = f"name the group: {labels.POD_GROUP}"
            raise InvalidInput("is the size of no group", where=where, value=value, hint=hint)
        return None
    name = _name(*said[labels.POD_GROUP])
    if labels.GROUP_SIZE in said:
        where, value = said[labels.GROUP_SIZE]
        return Membership(name, *_size(value, where), where)
    return Membership(name, None, None, said[labels.POD_GROUP][0])


def _former(said: Mapping[str, tuple[str, str]]) -> Membership | None:
    """Who named a group and no size was of a group of one, in those days."""
    for group, size in labels.FORMER_GROUPS:
        if group in said and size in said:
            where, value = said[size]
            return Membership(_name(*said[group]), *_size(value, where), where, is_former=True)
    return None


def _of_object(said: Mapping[str, tuple[str, str]]) -> Membership | None:
    for key in labels.POD_GROUP_OBJECTS:
        if key in said:
            where, value = said[key]
            # Fluence read its own size beside the name of coscheduling's.
            least = _size(said["fluence.group-size"][1], where)[0] if _has_size(said) else None
            return Membership(_name(where, value), least, None, where, is_former=True)
    return None


def _of_set(pod: Mapping[str, Any]) -> Membership | None:
    """The set that made a pod, if that asks to be queued: by label, or by a scheduler of before."""
    meta, spec = pod.get("metadata") or {}, pod.get("spec") or {}
    owner = controller_owner({"metadata": meta})
    if owner is None or owner["apiVersion"] != _APPS or owner["kind"] not in SETS:
        return None
    marks = meta.get("labels") or {}
    is_former = spec.get("schedulerName") in labels.FORMER_SCHEDULERS
    if marks.get(labels.MANAGED) != "true" and not is_former:
        return None
    kind, name, template = owner["kind"], owner["name"], marks.get(_TEMPLATE_HASH)
    if kind == "ReplicaSet" and template and name.endswith(f"-{template}"):
        # A Deployment has one for each of its templates; they are told by this label alone.
        kind, name = "Deployment", name.removesuffix(f"-{template}")
    return Membership(name, 1, None, of=kind) if _NAME.fullmatch(name) else None


def _has_size(said: Mapping[str, tuple[str, str]]) -> bool:
    return "fluence.group-size" in said


def _name(where: str, value: str) -> str:
    if _NAME.fullmatch(value):
        return value
    raise InvalidInput(
        f"{value!r} is no name of a group",
        where=where,
        value=value,
        hint="lower-case letters, digits, '-' and '.', at most 63 characters",
    )


def _size(text: str, where: str) -> tuple[int, int]:
    """Least and most."""
    found = _SIZE.fullmatch(text)
    if found:
        least, most = int(found[1]), int(found[2] or found[1])
        if 1 <= least <= most <= SIZE_MAX:
            return least, most
    raise InvalidInput(
        f"{text!r} is no size of a group",
        where=where,
        value=text,
        hint=f"a number of pods from 1 to {SIZE_MAX}, or least and most: 3-5",
    )


def read_users(pod: Mapping[str, Any]) -> frozenset[str]:
    """Users who may join the group of ``pod`` beside the one who made it."""
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    parts = str(annotations.get(labels.GROUP_USERS, "")).split(",")
    return frozenset(part.strip() for part in parts if part.strip())
