"""The kinds of workloads as admission sees them: what they ask for, and how they are held. Pure.

The webhook calls these entries (``workload.holding``) and loads no more of a kind. The entries of
the table (``workload.kinds.table``) inherit from them, and add how a workload is observed, released
and ended.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fluxqueue.errors import InvalidInput
from fluxqueue.jobspec import Jobspec
from fluxqueue.workload import labels
from fluxqueue.workload.annotations import (
    Wishes,
    check_fits,
    check_sweep,
    first_said,
    read_wishes,
    said_on,
)
from fluxqueue.workload.gates import gated_members, gated_pod, suspended_job
from fluxqueue.workload.groups import Membership, has_group, is_driver, read_mark, read_membership
from fluxqueue.workload.job_scheduling import asks_for_group, check_scheduling, with_scheduling
from fluxqueue.workload.object_paths import Path, value_at
from fluxqueue.workload.objects import Object
from fluxqueue.workload.owner_kinds import (
    OwnerKind,
    PartOf,
    can_be_suspended,
    is_suspended,
    parts_of,
)
from fluxqueue.workload.pod_request import ShapePart, build_parts, build_request, slot_kind
from fluxqueue.workload.pods import controller_owner, gate_index, longest_deadline, template_spec
from fluxqueue.workload.references import Reference
from fluxqueue.workload.site import DEFAULT_SITE, Site
from fluxqueue.workload.suspension import marked_templates, suspended_owner

OWN_JOB_CONTROLLER = "kubernetes.io/job-controller"
_NEVER = frozenset({"DaemonSet", "Node", "Job"})
"""Owners that form no group: one pod for each node, or a Job with a marked template."""


class AdmittedKind(ABC):
    """A sort of workload, before its release."""

    name: ClassVar[str]
    """The kind's name in objects, rows and FluxJobs."""
    group: ClassVar[str]
    version: ClassVar[str]
    plural: ClassVar[str]
    pod_spec_path: ClassVar[str]
    """Path of the spec of its pods, for error messages."""

    @property
    def api_version(self) -> str:
        """Return ``v1`` or ``batch/v1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @abstractmethod
    def pod_spec(self, workload: Object) -> Object:
        """Return the spec of its pods, empty if it has none."""

    def pod_specs(self, workload: Object) -> Sequence[Object]:
        """Return the specs of its pods, one for each kind of pods."""
        return (self.pod_spec(workload),)

    def wishes(self, workload: Object) -> Wishes:
        """Return what its author asked for in addition to its pods' resources.

        Raises
        ------
        InvalidInput
            An annotation cannot be read.
        """
        return read_wishes(workload)

    @abstractmethod
    def size(self, workload: Object) -> int:
        """Return how many pods it runs at once."""

    def is_sweep(self, workload: Object) -> bool:
        """Tell whether its pods are independent, so that each starts in its own turn."""
        return False

    def deadline_s(self, workload: Object) -> int | None:
        """Return the enforced longest run in seconds, None without a limit."""
        found = workload["spec"].get("activeDeadlineSeconds")
        return None if found is None else int(found)

    def to_request(self, workload: Object, *, site: Site = DEFAULT_SITE) -> Jobspec:
        """Describe what it needs while it runs: one slot for each of its ``size`` pods.

        A workload of size 0 asks for nothing and has no slots.

        Raises
        ------
        InvalidInput
            An annotation, a quantity or an affinity term cannot be read.
        """
        return build_request(
            self.pod_spec(workload),
            self.wishes(workload),
            count=self.size(workload),
            deadline_s=self.deadline_s(workload),
            where=self.pod_spec_path,
            site=site,
        )

    @abstractmethod
    def why_not(self, workload: Object) -> str | None:
        """Return why it is not managed although no general rule excludes it, or None."""

    @abstractmethod
    def held(self, workload: Object, wishes: Wishes, user: str) -> Object:
        """Return it as it waits for fluxqueue, with its label, deadline and submitter.

        Idempotent: a workload that waits already is returned as it is.
        """

    def is_held(self, workload: Object) -> bool:
        """Tell whether a stored object waits for fluxqueue: the scheduling gate is on its pods."""
        return gate_index(self.pod_spec(workload)) is not None

    def is_suspended(self, workload: Object) -> bool:
        """Tell whether it is suspended, so that it must not start pods now."""
        return False


class AdmittedJob(AdmittedKind):
    """Answer the questions of ``AdmittedKind`` for BatchJobs."""

    name, group, version, plural = "Job", "batch", "v1", "jobs"
    pod_spec_path = "spec.template.spec"

    def claim(self, pod: Object) -> str | None:
        """Return the UID of the BatchJob that makes a pod, or None."""
        owner = controller_owner(pod) or {}
        # Other API groups have kinds of that name, too.
        is_its = (owner.get("apiVersion"), owner.get("kind")) == (self.api_version, self.name)
        return str(owner["uid"]) if is_its else None

    def pod_spec(self, workload: Object) -> Object:
        return template_spec(workload.get("spec") or {})

    def size(self, workload: Object) -> int:
        """Return how many pods must start together. Of a sweep one must."""
        size = size_of_job(workload)
        return min(1, size) if self.is_sweep(workload) else size

    def wishes(self, workload: Object) -> Wishes:
        return with_scheduling(workload, super().wishes(workload))

    def is_sweep(self, workload: Object) -> bool:
        return said_on(workload, labels.GANG) == "false"

    def deadline_s(self, workload: Object) -> int | None:
        # The time of a pod counts from its start. That of a Job counts while its pods are gated.
        limits = [super().deadline_s(workload)]
        if self._comes_gated(workload):
            own = self.pod_spec(workload).get("activeDeadlineSeconds")
            limits.append(None if own is None else int(own))
        return min((one for one in limits if one is not None), default=None)

    def _comes_gated(self, workload: Object) -> bool:
        """Tell whether each of its pods gets its node by itself."""
        return self.is_sweep(workload) or said_on(workload, labels.WAIT) == labels.GATED

    def why_not(self, workload: Object) -> str | None:
        spec = workload["spec"]
        managed_by = spec.get("managedBy")
        if managed_by and managed_by != OWN_JOB_CONTROLLER:
            return f"spec.managedBy is {managed_by}"
        template = (spec.get("template") or {}).get("metadata") or {}
        if (template.get("labels") or {}).get(labels.MANAGED) == "false":
            return f'label {labels.MANAGED} of the pod template is "false"'
        if self.pod_spec(workload).get("nodeName"):
            return "the pod template names its node"
        return None

    def held(self, workload: Object, wishes: Wishes, user: str) -> Object:
        group = _wider_group(workload)
        if wishes.is_sweep and read_membership(workload) is None:
            check_sweep(workload, wishes)
            check_scheduling(workload, wishes, are_independent=True)
            return suspended_job(workload, wishes, user)
        check_fits(wishes, can_restart=group is None)
        if group is None:
            check_scheduling(workload, wishes, are_independent=False)
            keeps_group = asks_for_group(workload)
            return suspended_job(workload, wishes, user, keeps_group=keeps_group)
        return gated_members(workload, wishes, user, group)

    def is_held(self, workload: Object) -> bool:
        """Tell whether it waits for fluxqueue. False if its pods are held for a group."""
        template = (workload.get("spec") or {}).get("template") or {}
        return read_mark(template) is None and super().is_held(workload)

    def is_suspended(self, workload: Object) -> bool:
        return bool(workload["spec"].get("suspend", False))


class AdmittedPod(AdmittedKind):
    """Answer the questions of ``AdmittedKind`` for bare Pods."""

    name, group, version, plural = "Pod", "", "v1", "pods"
    pod_spec_path = "spec"

    def pod_spec(self, workload: Object) -> Object:
        found: Object = workload.get("spec") or {}
        return found

    def size(self, workload: Object) -> int:
        return 1

    def why_not(self, workload: Object) -> str | None:
        meta, spec = workload.get("metadata") or {}, workload["spec"]
        owners = meta.get("ownerReferences") or ()
        if owners and (owners[0].get("kind") in _NEVER or read_membership(workload) is None):
            # This includes DaemonSet pods, mirror pods of a node, and pods of workloads.
            return f"it belongs to {owners[0].get('kind')} {owners[0].get('name')}"
        if labels.MIRROR in (meta.get("annotations") or {}):
            return "it is a mirror pod"
        if spec.get("nodeName"):
            return f"it is bound to {spec['nodeName']}"
        return None

    def held(self, workload: Object, wishes: Wishes, user: str) -> Object:
        check_fits(wishes, can_restart=False, waits=labels.GATED)
        group = read_membership(workload)
        is_unsaid = group is not None and group.minimum is None
        if group is not None and is_unsaid and not group.is_former and not group.of:
            hint = f'say how many pods it has: {labels.GROUP_SIZE}: "5"'
            raise InvalidInput(
                "is a group without a size", where=group.where, value=group.name, hint=hint
            )
        told = ""
        if is_driver(workload):
            # Drivers are rare, and no other pod has followers.
            from fluxqueue.workload.followers import learn_followers, read_followers

            if read_followers(workload) is None and group is not None:
                told = learn_followers(workload)
        return gated_pod(workload, wishes, user, group, followers=told)

    def is_held(self, workload: Object) -> bool:
        is_owned = (workload.get("metadata") or {}).get("ownerReferences")
        is_member = read_mark(workload) is not None
        return not is_owned and not is_member and super().is_held(workload)


class AdmittedOwner(AdmittedKind):
    """Answer the questions of ``AdmittedKind`` for objects that can be suspended."""

    name, group, version, plural = "SuspendedOwner", "", "", ""
    pod_spec_path = "spec"

    def pod_spec(self, workload: Object) -> Object:
        specs = self.pod_specs(workload)
        return specs[0] if specs else {}

    def pod_specs(self, workload: Object) -> Sequence[Object]:
        return [part.template["spec"] for _, part in parts_with_slots(workload)] or [NOTHING.spec]

    def wishes(self, workload: Object) -> Wishes:
        """Return its own wishes, then those of its templates. The first value of each wins."""
        said = [read_wishes({"metadata": workload["metadata"]})]
        for _, part in parts_with_slots(workload):
            try:
                said.append(read_wishes({"metadata": part.template.get("metadata") or {}}))
            except InvalidInput as error:
                where = ".".join([*map(str, part.at), error.where])
                raise InvalidInput(
                    error.message, where=where, value=error.value, hint=error.hint
                ) from None
        return first_said(said)

    def deadline_s(self, workload: Object) -> int | None:
        """Return its own deadline, or the longest one of its pods."""
        entry: OwnerKind = workload["entry"]
        said = value_at(workload, entry.deadline) if entry.deadline else None
        if isinstance(said, int) and said > 0:
            return said
        specs = [part.template["spec"] for _, part in parts_with_slots(workload)]
        return longest_deadline(specs)

    def size(self, workload: Object) -> int:
        return sum(part.count for _, part in parts_with_slots(workload))

    def to_request(self, workload: Object, *, site: Site = DEFAULT_SITE) -> Jobspec:
        """Return one kind of slots for each kind of its templates."""
        return self._request(workload, {}, site)

    def _request(self, workload: Object, others: Mapping[str, Object], site: Site) -> Jobspec:
        specs: dict[str, Object] = {}
        counts: Counter[str] = Counter()
        for label, part in parts_with_slots(workload):
            specs.setdefault(label, part.template["spec"])
            counts[label] += part.count
        specs |= others
        parts = [ShapePart(label, spec, counts[label]) for label, spec in specs.items()] or [
            NOTHING
        ]
        deadline_s = self.deadline_s(workload)
        return build_parts(parts, self.wishes(workload), deadline_s=deadline_s, site=site)

    def why_not(self, workload: Object) -> str | None:
        entry: OwnerKind = workload["entry"]
        if not can_be_suspended(entry, workload):
            return f"a {entry.kind} like this cannot wait suspended"
        # Its pods start with those of another workload, or with fewer than all.
        own = {"metadata": workload.get("metadata")}
        if any(map(has_group, [own, *(part.template for _, part in parts_with_slots(workload))])):
            return "its pods say of which group they are"
        is_known = entry.templates_in is None or workload["made"] is not None
        return "the queue takes none of its pods" if is_known and not self.size(workload) else None

    def held(self, workload: Object, wishes: Wishes, user: str) -> Object:
        check_fits(wishes, waits="suspended")
        return suspended_owner(workload, workload["entry"], _marks(workload), wishes, user)

    def marked(self, workload: Object) -> Object:
        """Return an object that defines the request of another object, and is released with it.

        Its pods opt in, and name the kind of slots that they need.

        Raises
        ------
        InvalidInput
            As ``wishes`` and ``to_request``.
        """
        return marked_templates(workload, _marks(workload), self.wishes(workload).duration_s)

    def is_held(self, workload: Object) -> bool:
        """Tell whether it was marked at admission and is stored with the field that suspends it.

        Some versions of a kind lack that field.
        """
        meta = workload["metadata"]
        is_marked = (meta.get("annotations") or {}).get(labels.SUSPENDED) == "true"
        is_asking = (meta.get("labels") or {}).get(labels.MANAGED) == "true"
        return is_marked and is_asking and is_suspended(workload["entry"], workload) is not None

    def is_suspended(self, workload: Object) -> bool:
        return bool(is_suspended(workload["entry"], workload))


JOB, POD, OWNER = AdmittedJob(), AdmittedPod(), AdmittedOwner()
NOTHING = ShapePart("pod", {}, 0)
"""The request of an object before it is known."""


@dataclass(frozen=True, slots=True)
class Made:
    """An object that a suspended object has made, and that contains its templates."""

    entry: OwnerKind
    uid: str
    generation: int
    spec: Object


def assemble_owner(
    stored: Object,
    entry: OwnerKind,
    api_version: str,
    *,
    made: Made | None = None,
    members: Mapping[str, Object] | None = None,
    slot_kinds: Mapping[str, str] | None = None,
    jobs: Mapping[str, Object] | None = None,
    left: Mapping[str, Object] | None = None,
) -> dict[str, Any]:
    """Make the workload of an object.

    ``made`` is the object that contains its templates, if that is another object. ``members``,
    ``slot_kinds``, ``jobs`` and ``left`` are as for a group (``kinds.pod_group.Assembly``). They
    are empty before its release.
    """
    meta = stored.get("metadata") or {}
    name, uid = meta.get("name") or meta.get("generateName") or "", meta.get("uid") or ""
    reference = Reference(api_version, entry.kind, name, uid, entry.resource, entry.suspend)
    return {
        **stored,
        "kind": OWNER.name,
        "entry": entry,
        "reference": reference,
        "made": made,
        "members": members or {},
        "slotKinds": slot_kinds or {},
        "jobs": jobs or {},
        "left": {} if left is None else left,
    }


def parts_with_slots(workload: Object) -> Iterator[tuple[str, PartOf]]:
    """Yield its pods by template with their kind of slots, without opted-out pods."""
    made: Made | None = workload["made"]
    told = (workload["entry"], workload) if made is None else (made.entry, {"spec": made.spec})
    for part in parts_of(*told) or ():
        marks = (part.template.get("metadata") or {}).get("labels") or {}
        if marks.get(labels.MANAGED) != "false":
            yield marks.get(labels.SLOTS) or slot_kind(part.template), part


def _marks(workload: Object) -> list[tuple[Path, str]]:
    """Return the place of each pod template, and the kind of slots that its pods need."""
    return [(part.at, slot_kind(part.template)) for _, part in parts_with_slots(workload)]


def _wider_group(job: Mapping[str, Any]) -> Membership | None:
    """Return the group that its pods start with, or None if that is the BatchJob itself.

    A BatchJob always starts as a whole, so a group of its size needs nothing more. A larger group
    waits for pods of other workloads. A group that can grow starts with fewer pods. A smaller group
    is not possible. For the predecessors of fluxqueue the size was a minimum, so all pods count in
    their spellings.

    Raises
    ------
    InvalidInput
        The group is smaller than the BatchJob, or cannot be read.
    """
    group, own = read_membership(job), size_of_job(job)
    if group is not None and group.of:
        return group
    if group is None or (group.minimum is None and not group.is_former):
        return None
    if group.minimum is None or group.minimum > own:
        return group
    if group.maximum is None or group.minimum < own <= group.maximum:
        return group
    if group.maximum is not None and group.maximum < own and not group.is_former:
        raise InvalidInput(
            f"is {group.size}, and the Job runs {own} pods at once",
            where=group.where,
            value=group.size,
            hint=f"give the group {own} pods or more, or leave its size out",
        )
    return None


def size_of_job(job: Mapping[str, Any]) -> int:
    """Return how many pods of ``job`` run at once: parallelism, but at most completions."""
    spec = job["spec"]
    parallelism = number(spec, "parallelism", 1)
    completions = spec.get("completions")
    return parallelism if completions is None else min(parallelism, int(completions))


def number(fields: Mapping[str, Any], name: str, default: int) -> int:
    value = fields.get(name)
    return default if value is None else int(value)
