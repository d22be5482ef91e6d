"""Groups of pods: how authors spell them, and the mark in which admission records them.

The pods of a group define it: they name it and state its size. Pods that something else makes (a
Deployment, a StatefulSet, an operator) form a group of their owner if they ask to be queued. They
need not name it. Such a group starts with the pods that exist, and grows and shrinks with its
owner. At admission, ``read_membership`` reads the spellings of fluxqueue and of its predecessors.
The controller uses only the mark (``labels.GROUP``). So it need not know any spelling, and no pod
is a member without admission. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fluxqueue.errors import InvalidInput
from fluxqueue.workload import labels
from fluxqueue.workload.pods import controller_owner, gate_index, template_spec

POD = "Pod"
"""The kind of a driver, which makes the other pods of its group."""
SIZE_MAX = 100_000
_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,61}[a-z0-9])?")
_SIZE = re.compile(r"([0-9]{1,6})(?:-([0-9]{1,6}))?")
_UNSAID, _OPEN, _NATIVE = "?", "", "native"
_KIND = re.compile(r"[A-Z][A-Za-z0-9]{0,62}")
_OWNER = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?")
_NEVER = frozenset({"DaemonSet", "Node", "Job", "CronJob"})
"""Owners that form no group: one pod for each node, or a Job that is queued by itself."""
_SPARK_OPERATOR = "sparkoperator.k8s.io/"
_OF_A_POD = {"apiVersion": "v1", "kind": "Pod"}


@dataclass(frozen=True, slots=True)
class Membership:
    """The group that a pod names.

    ``minimum``: the group starts with this many pods, all or none. None if a PodGroup object or the
    owner defines it. ``maximum``: the group can grow to this size. None means no limit. ``of``: the
    kind of the object that makes its pods. ``name`` is then the name of that object. Empty if the
    pods name the group. ``where``: the path of its size, or of its name if that place has no size.
    ``is_former``: in the spelling of a predecessor. ``is_native``: in the spelling of Kubernetes,
    in the spec.
    """

    name: str
    minimum: int | None
    maximum: int | None
    where: str = field(default="", compare=False)
    is_former: bool = field(default=False, compare=False)
    of: str = ""
    is_native: bool = field(default=False, compare=False)

    @property
    def size(self) -> str:
        """Return the size for users: ``5``, ``3-5``, ``3 or more``."""
        if self.minimum is None:
            return "a size that its owner says" if self.of else "a size that its PodGroup says"
        if self.maximum is None:
            return f"{self.minimum} or more"
        is_fixed = self.minimum == self.maximum
        return str(self.minimum) if is_fixed else f"{self.minimum}-{self.maximum}"

    def mark(self) -> str:
        """Return the annotation that admission writes: ``NAME MINIMUM-MAXIMUM[ KIND]``.

        ``native`` replaces the kind if the group was read from the spec.
        """
        least = _UNSAID if self.minimum is None else self.minimum
        most = _OPEN if self.maximum is None else self.maximum
        of = _NATIVE if self.is_native else self.of
        return f"{self.name} {least}-{most}{f' {of}' if of else ''}"


def read_mark(obj: Mapping[str, Any]) -> Membership | None:
    """Read the mark that admission wrote on a pod or in a template. None if it is in no group.

    If its feature gate is off, an API server drops the group from the spec, but only after
    admission.
    """
    text = ((obj.get("metadata") or {}).get("annotations") or {}).get(labels.GROUP)
    if not text:
        return None
    name, _, rest = str(text).partition(" ")
    size, _, of = rest.partition(" ")
    least, dash, most = size.partition("-")
    is_native = of == _NATIVE
    of = "" if is_native else of
    if (of and not _KIND.fullmatch(of)) or (is_native and not _names_native(obj.get("spec") or {})):
        return None
    is_name = (_OWNER if of else _NAME).fullmatch(name)
    if not dash or not is_name or not (least == _UNSAID or _is_number(least)):
        return None
    if most != _OPEN and not _is_number(most):
        return None
    return Membership(
        name=name,
        minimum=None if least == _UNSAID else int(least),
        maximum=None if most == _OPEN else int(most),
        of=of,
        is_native=is_native,
    )


def _names_native(pod_spec: Mapping[str, Any]) -> bool:
    """Tell whether pods name a group with the fields of Kubernetes."""
    return bool(pod_spec.get("schedulingGroup") or pod_spec.get("workloadRef"))


def _is_number(text: str) -> bool:
    return bool(re.fullmatch(r"[0-9]{1,6}", text))


def read_membership(workload: Mapping[str, Any]) -> Membership | None:
    """Read the group that a workload's pods name. None if they name none, or it has one pod.

    The workload's own metadata wins over that of its pod template.

    Raises
    ------
    InvalidInput
        A name or a size cannot be read, or a size is missing. ``where`` is the field's path.
    """
    said = dict(_said(workload))
    found = (
        _of_driver(said, workload)
        or _ours(said, workload)
        or _former(said)
        or _of_object(said)
        or _native(workload)
        or _of_owner(workload)
    )
    is_alone = found is not None and found.maximum == 1 and not found.of
    return None if is_alone else found


def _said(workload: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield every key with its path and value. Later ones win."""
    template = (workload.get("spec") or {}).get("template") or {}
    for path, meta in (
        ("spec.template.metadata", template.get("metadata") or {}),
        ("metadata", workload.get("metadata") or {}),
    ):
        for place in ("annotations", "labels"):
            for key, value in (meta.get(place) or {}).items():
                yield key, (f"{path}.{place}[{key}]", str(value))


def has_group(template: Mapping[str, Any]) -> bool:
    """Tell whether a pod template, or an object's metadata, names a group or states its size."""
    meta, spec = template.get("metadata") or {}, template.get("spec") or {}
    said = {*(meta.get("labels") or {}), *(meta.get("annotations") or {})}
    return _names_native(spec) or bool(said & {*labels.group_keys(), labels.GROUP_SIZE})


def _of_driver(
    said: Mapping[str, tuple[str, str]], workload: Mapping[str, Any]
) -> Membership | None:
    """Return the group that a driver without a controller forms with the pods that it makes."""
    meta, spec = workload.get("metadata") or {}, workload.get("spec") or {}
    is_made = controller_owner({"metadata": meta}) is not None
    if "template" in spec:
        if labels.FOLLOWERS in said:
            where, value = said[labels.FOLLOWERS]
            hint = "set it on a pod without a template, such as a driver in cluster mode"
            raise InvalidInput("is for pods only", where=where, value=value, hint=hint)
        return None
    named = next((key for key in labels.group_keys() if key in said), None)
    if labels.FOLLOWERS in said and named is not None:
        where, value = said[named]
        hint = f"remove this name or {labels.FOLLOWERS}"
        raise InvalidInput(
            "is a group, and a driver is one by itself", where=where, value=value, hint=hint
        )
    if is_made or named is not None or not is_driver(workload):
        return None
    # Admission does not know a generated name. The controller uses that of the stored pod.
    name = str(meta.get("name") or meta.get("generateName") or "").rstrip("-.")
    return Membership(name, 1, None, of=POD) if _OWNER.fullmatch(name) else None


def is_driver(obj: Mapping[str, Any]) -> bool:
    """Tell whether a pod makes further pods that belong to its group."""
    meta = obj.get("metadata") or {}
    is_spark = (meta.get("labels") or {}).get(labels.SPARK_ROLE) == "driver"
    return is_spark or labels.FOLLOWERS in (meta.get("annotations") or {})


def is_follower(meta: Mapping[str, Any]) -> bool:
    """Tell whether a pod is an executor that a driver has made, and is queued with it.

    An executor of the Spark operator is queued if its SparkApplication asks for it.
    """
    said, owner = meta.get("labels") or {}, controller_owner({"metadata": meta})
    is_of_operator = any(key.startswith(_SPARK_OPERATOR) for key in said)
    is_made = owner is not None and _OF_A_POD.items() <= owner.items()
    return is_made and said.get(labels.SPARK_ROLE) == "executor" and not is_of_operator


def _ours(said: Mapping[str, tuple[str, str]], workload: Mapping[str, Any]) -> Membership | None:
    if labels.POD_GROUP not in said:
        if labels.GROUP_SIZE in said:
            where, value = said[labels.GROUP_SIZE]
            owners = _of_owner(workload)
            if owners is not None:
                least, most = _size(value, where)
                # A set may be scaled beyond the size that it starts with.
                most_ = None if least == most else most
                return replace(owners, minimum=least, maximum=most_, where=where)
            hint = f"name the group: {labels.POD_GROUP}"
            raise InvalidInput("is the size of no group", where=where, value=value, hint=hint)
        return None
    name = _name(*said[labels.POD_GROUP])
    if labels.GROUP_SIZE in said:
        where, value = said[labels.GROUP_SIZE]
        return Membership(name, *_size(value, where), where)
    return Membership(name, None, None, said[labels.POD_GROUP][0])


def _former(said: Mapping[str, tuple[str, str]]) -> Membership | None:
    """Read a predecessor's spelling. A group without size was a group of one pod there."""
    for group, size in labels.FORMER_GROUPS:
        if group in said and size in said:
            where, value = said[size]
            return Membership(_name(*said[group]), *_size(value, where), where, is_former=True)
    return None


def _of_object(said: Mapping[str, tuple[str, str]]) -> Membership | None:
    for key in labels.POD_GROUP_OBJECTS:
        if key in said:
            where, value = said[key]
            # Fluence read its own size beside coscheduling's group name.
            least = _size(said["fluence.group-size"][1], where)[0] if _has_size(said) else None
            return Membership(_name(where, value), least, None, where, is_former=True)
    return None


def _native(workload: Mapping[str, Any]) -> Membership | None:
    """Read the fields of Kubernetes: a PodGroup (1.36), or before that a Workload's (1.35).

    Pods that something else makes must ask to be queued, as for any group.
    """
    meta, spec = workload.get("metadata") or {}, workload.get("spec") or {}
    path, pod_spec = (
        ("spec.template.spec", template_spec(spec))
        if "template" in spec
        else (
            "spec",
            spec,
        )
    )
    if controller_owner({"metadata": meta}) is not None and not asks(meta, spec):
        return None
    if name := (pod_spec.get("schedulingGroup") or {}).get("podGroupName"):
        where = f"{path}.schedulingGroup.podGroupName"
        return _native_group(where, str(name))
    ref = pod_spec.get("workloadRef") or {}
    if ref.get("name") and ref.get("podGroup"):
        parts = [ref["name"], ref["podGroup"], ref.get("podGroupReplicaKey")]
        where, name = f"{path}.workloadRef", ".".join(str(one) for one in parts if one)
        return _native_group(where, name)
    return None


def _native_group(where: str, name: str) -> Membership:
    return Membership(_name(where, name), None, None, where, is_former=True, is_native=True)


def _of_owner(workload: Mapping[str, Any]) -> Membership | None:
    """Return the group of the object that makes a Pod or BatchJob, if that asks to be queued."""
    meta, spec = workload.get("metadata") or {}, workload.get("spec") or {}
    owner = controller_owner({"metadata": meta})
    is_asking = asks(meta, spec) or is_follower(meta)
    if owner is None or not is_asking or not is_possible_owner(owner):
        return None
    return Membership(owner["name"], None, None, of=owner["kind"])


def is_possible_owner(owner: Mapping[str, Any]) -> bool:
    """Tell whether the pods of a controller with this reference may be queued as one group."""
    is_name = _OWNER.fullmatch(owner["name"]) and _KIND.fullmatch(owner["kind"])
    return bool(is_name) and owner["kind"] not in _NEVER


def asks(meta: Mapping[str, Any], spec: Mapping[str, Any]) -> bool:
    """Tell whether pods that something else makes ask to be queued.

    They ask by label, or with the name of a former scheduler. For a BatchJob its template counts.
    If the BatchJob itself is held, then the label comes from fluxqueue and does not count.
    """
    template = spec.get("template")
    if template is not None:
        meta, spec = template.get("metadata") or {}, template.get("spec") or {}
        if gate_index(spec) is not None and labels.GROUP not in (meta.get("annotations") or {}):
            return False
    is_former = spec.get("schedulerName") in labels.FORMER_SCHEDULERS
    return is_former or (meta.get("labels") or {}).get(labels.MANAGED) == "true"


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
    """Return minimum and maximum."""
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
    """Return the users that may join the group of ``pod`` in addition to its submitter.

    The service account of a driver makes its followers.
    """
    meta = pod.get("metadata") or {}
    parts = str((meta.get("annotations") or {}).get(labels.GROUP_USERS, "")).split(",")
    if is_driver(pod):
        account = (pod.get("spec") or {}).get("serviceAccountName") or "default"
        parts.append(f"system:serviceaccount:{meta.get('namespace')}:{account}")
    return frozenset(part.strip() for part in parts if part.strip())
