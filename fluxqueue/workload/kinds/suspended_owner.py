"""The entry of all kinds that make pods and can be suspended: JobSet, MPIJob, RayJob, ….

Called through the table (``workload.kinds``). The differences between such kinds are in
``workload.owner_kinds``, and the code here knows none of them. Such an object waits suspended,
without pods, and is released whole. A workload of this kind is the object with the additions of
``assemble_owner``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.pod_facts import PodFact, WorkloadFact
from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.jobspec import Jobspec
from fluxqueue.workload import labels
from fluxqueue.workload.annotations import (
    Wishes,
    check_fits,
    first_said,
    read_wishes,
)
from fluxqueue.workload.deletion import as_of_deletion
from fluxqueue.workload.groups import has_group
from fluxqueue.workload.json_patch import Patch, edited
from fluxqueue.workload.kinds.batch_job import BATCH_JOB
from fluxqueue.workload.kinds.batch_job import size as size_of_job
from fluxqueue.workload.kinds.kind import Gathering, WorkloadKind
from fluxqueue.workload.object_paths import Path, replaced, value_at
from fluxqueue.workload.objects import Object
from fluxqueue.workload.owner_kinds import (
    OwnerKind,
    PartOf,
    can_be_suspended,
    is_suspended,
    parts_of,
    result_of,
)
from fluxqueue.workload.pod_request import ShapePart, build_parts, slot_kind
from fluxqueue.workload.pods import controller_owner, longest_deadline, pod_fact
from fluxqueue.workload.references import Reference
from fluxqueue.workload.site import DEFAULT_SITE, Site
from fluxqueue.workload.suspension import (
    marked_templates,
    resume_owner_patch,
    suspend_owner_patch,
    suspended_owner,
)

if TYPE_CHECKING:
    from fluxqueue.fluxjob.facts import WorkloadFacts


class SuspendedOwnerKind(WorkloadKind):
    """Answer the questions of ``WorkloadKind`` for objects that can be suspended."""

    name, group, version, plural = "SuspendedOwner", "", "", ""
    pod_spec_path = "spec"
    can_be_suspended = True
    is_known_by_gate_alone = False
    is_built_in = False

    def shown_as(self, workload: Object) -> tuple[str, str]:
        reference: Reference = workload["reference"]
        return reference.api_version, reference.kind

    def named(self, workload: Object) -> str:
        return str(workload["reference"].kind)

    def reference(self, workload: Object) -> Reference | None:
        found: Reference = workload["reference"]
        return found

    def read(self, stored: Object, reference: Reference | None) -> Object:
        """Return a workload that can only answer how it is held."""
        assert reference is not None, "rows of this kind have one"
        group = reference.api_version.rpartition("/")[0]
        entry = OwnerKind(reference.kind, group, reference.resource, (), suspend=reference.suspend)
        return assemble_owner(stored, entry, reference.api_version)

    def looks_like(self, workload: Object) -> bool:
        return "reference" in workload

    def claim(self, pod: Object) -> str | None:
        """Return None: the pod does not name its top owner (``observing.group_assembly``)."""
        return None

    # --- request ------------------------------------------------------------------------------

    def pod_spec(self, workload: Object) -> Object:
        specs = self.pod_specs(workload)
        return specs[0] if specs else {}

    def pod_specs(self, workload: Object) -> Sequence[Object]:
        return [part.template["spec"] for _, part in _parts(workload)] or [NOTHING.spec]

    def with_pods(self, workload: Object, change: Callable[[Object], Object]) -> Object:
        parts = [(part, change(part.template)) for _, part in _parts(workload)]
        if all(changed is part.template for part, changed in parts):
            return workload
        made: Made | None = workload["made"]
        told: dict[str, Any] = {"spec": workload.get("spec") if made is None else made.spec}
        for part, changed in parts:
            told = replaced(told, part.at, changed)
        if made is None:
            return {**workload, "spec": told["spec"]}
        return {**workload, "made": replace(made, spec=told["spec"])}

    def wishes(self, workload: Object) -> Wishes:
        """Return its own wishes, then those of its templates. The first value of each wins."""
        said = [read_wishes({"metadata": workload["metadata"]})]
        for _, part in _parts(workload):
            try:
                said.append(read_wishes({"metadata": part.template.get("metadata") or {}}))
            except InvalidInput as error:
                where = ".".join([*map(str, part.at), error.where])
                raise InvalidInput(
                    error.message, where=where, value=error.value, hint=error.hint
                ) from None
        return first_said(said)

    def metas(self, workload: Object) -> list[tuple[str, Object]]:
        parts = [part for _, part in _parts(workload)]
        return [
            *(
                (".".join([*map(str, part.at), "metadata"]), part.template.get("metadata") or {})
                for part in reversed(parts)
            ),
            ("metadata", workload["metadata"]),
        ]

    def with_metas(self, workload: Object, change: Callable[[Object], Object]) -> Object:
        made: Made | None = workload["made"]
        told: dict[str, Any] = {"spec": workload.get("spec") if made is None else made.spec}
        for _, part in _parts(workload):
            if part.template.get("metadata"):
                template = {**part.template, "metadata": change(part.template["metadata"])}
                told = replaced(told, part.at, template)
        changed = {**workload, "metadata": change(workload["metadata"])}
        if made is None:
            return {**changed, "spec": told["spec"]}
        return {**changed, "made": replace(made, spec=told["spec"])}

    def asks(self, workload: Object) -> tuple[Any, ...]:
        meta, entry, made = workload["metadata"], workload["entry"], workload["made"]
        spec = _unsuspended(workload.get("spec"), entry)
        kinds = frozenset(workload["slotKinds"].values())
        told = None if made is None else _unsuspended(made.spec, made.entry)
        return meta.get("annotations"), meta.get("labels"), spec, told, kinds

    def deadline_s(self, workload: Object) -> int | None:
        """Return its own deadline, or the longest one of its pods."""
        entry: OwnerKind = workload["entry"]
        said = value_at(workload, entry.deadline) if entry.deadline else None
        if isinstance(said, int) and said > 0:
            return said
        specs = [part.template["spec"] for _, part in _parts(workload)]
        return longest_deadline(specs)

    def size(self, workload: Object) -> int:
        return sum(part.count for _, part in _parts(workload))

    def to_request(self, workload: Object, *, site: Site = DEFAULT_SITE) -> Jobspec:
        """Return one kind of slots for each kind of its templates."""
        return self._request(workload, {}, site)

    def further(self, workload: Object, *, site: Site = DEFAULT_SITE) -> Jobspec | None:
        """Return all kinds of slots, with those of pods that no template describes."""
        known = {label for label, _ in _parts(workload)}
        others = {}
        for uid, pod in workload["members"].items():
            label = workload["slotKinds"][uid]
            # A released pod names its node, which its author did not request.
            if label not in known and pod_fact(pod).is_gated:
                others[label] = pod["spec"]
        return self._request(workload, others, site)

    def _request(self, workload: Object, others: Mapping[str, Object], site: Site) -> Jobspec:
        specs: dict[str, Object] = {}
        counts: Counter[str] = Counter()
        for label, part in _parts(workload):
            specs.setdefault(label, part.template["spec"])
            counts[label] += part.count
        specs |= others
        parts = [ShapePart(label, spec, counts[label]) for label, spec in specs.items()] or [
            NOTHING
        ]
        deadline_s = self.deadline_s(workload)
        return build_parts(parts, self.wishes(workload), deadline_s=deadline_s, site=site)

    # --- how is it held -----------------------------------------------------------------------

    def gathering(self, workload: Object) -> Gathering | None:
        """Return how far it is from complete.

        Its request is unknown until the object that defines it exists.
        """
        templates_in = workload["entry"].templates_in
        if templates_in is None or workload["made"] is not None:
            return None
        return Gathering(1, f"waits for its {templates_in[1]}, which says what it asks for")

    def why_not(self, workload: Object) -> str | None:
        entry: OwnerKind = workload["entry"]
        if not can_be_suspended(entry, workload):
            return f"a {entry.kind} like this cannot wait suspended"
        # Its pods start with those of another workload, or with fewer than all.
        own = {"metadata": workload.get("metadata")}
        if any(map(has_group, [own, *(part.template for _, part in _parts(workload))])):
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

    def is_author_suspended(self, workload: Object) -> bool:
        return self._whose_suspension(workload) == "true"

    def is_suspended_again(self, workload: Object) -> bool:
        return self._whose_suspension(workload) == "false"

    def _whose_suspension(self, workload: Object) -> str | None:
        annotations = (workload.get("metadata") or {}).get("annotations") or {}
        return annotations.get(labels.AUTHOR_SUSPENDED) if self.is_suspended(workload) else None

    def facts(self, workload: Object, common: WorkloadFacts) -> WorkloadFacts:
        # Its kind decides what a deleted pod means, and some kinds then fail.
        return replace(common, replaces_pods=True, spare_failures=0)

    def resume_patch(self, uid: str, reference: Reference | None, *, is_pinned: bool) -> Any:
        assert reference is not None, "rows of this kind have one"
        return resume_owner_patch(uid, reference.suspend)

    def suspend_patch(self, workload: Object) -> Patch:
        return suspend_owner_patch(workload, workload["entry"].suspend)

    # --- how does it end ----------------------------------------------------------------------

    def pod_facts(self, workload: Object, pods: Sequence[Object]) -> tuple[PodFact, ...]:
        kinds = workload["slotKinds"]
        return tuple(
            replace(fact, index=None, kind=kinds.get(fact.uid, ""))
            for fact in super().pod_facts(workload, pods)
        )

    def fact(self, workload: Object, pods: Sequence[PodFact] = ()) -> WorkloadFact:
        """Return its progress.

        It wants as many pods as its request has, without those that succeeded and are not made
        again. It ends when its status reports the end. If its kind reports none, it ends when all
        pods have succeeded.
        """
        wanted = _wanted(workload)
        return WorkloadFact(
            wanted=sum(wanted.values()),
            result=_result(workload, wanted),
            is_deleting=bool(workload["metadata"].get("deletionTimestamp")),
            wanted_of=wanted,
        )

    def last_result(self, workload: Object, pods: Sequence[PodFact] = ()) -> FluxJobState | None:
        """Return the result as ``fact`` does, with pods that had ended before they were removed.

        A killed pod gives no result, nor does what its controller reports after the deletion.
        """
        workload = as_of_deletion(workload)
        there = {**workload["left"], **workload["members"]}
        told = {uid: pod for uid, pod in there.items() if not pod_fact(pod).is_killed}
        kinds = {uid: slots_of_member(workload, pod) for uid, pod in told.items()}
        whole = {**workload, "members": told, "slotKinds": kinds}
        return _result(whole, _wanted(whole))

    def news(self, workload: Object) -> tuple[Any, ...]:
        meta, made = workload["metadata"], workload["made"]
        return (
            None if made is None else (made.uid, made.generation),
            meta.get("generation"),
            meta.get("deletionTimestamp"),
            meta.get("annotations"),
            meta.get("labels"),
            result_of(workload["entry"], workload),
        )


SUSPENDED_OWNER = SuspendedOwnerKind()
NOTHING = ShapePart("pod", {}, 0)
"""The request of an object before it is known."""


@dataclass(frozen=True, slots=True)
class Made:
    """An object that a suspended object has made, and that contains its templates."""

    entry: OwnerKind
    uid: str
    generation: int
    spec: Object


def tell_made(stored: Object, entry: OwnerKind) -> Made:
    """Return what a stored object shows about the pods of its maker."""
    meta = stored["metadata"]
    generation = int(meta.get("generation") or 0)
    return Made(entry, meta["uid"], generation, stored.get("spec") or {})


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
        "kind": SUSPENDED_OWNER.name,
        "entry": entry,
        "reference": reference,
        "made": made,
        "members": members or {},
        "slotKinds": slot_kinds or {},
        "jobs": jobs or {},
        "left": {} if left is None else left,
    }


def slots_of_member(workload: Object, pod: Object) -> str:
    """Return the kind of slots that a pod of ``workload`` needs.

    That is the mark of its template, if the workload has slots of this kind. Otherwise the pod's
    own fields decide.
    """
    said = (pod["metadata"].get("labels") or {}).get(labels.SLOTS)
    return said if said in {label for label, _ in _parts(workload)} else slot_kind(pod)


def _parts(workload: Object) -> Iterator[tuple[str, PartOf]]:
    """Yield its pods by template with their kind of slots, without opted-out pods."""
    made: Made | None = workload["made"]
    told = (workload["entry"], workload) if made is None else (made.entry, {"spec": made.spec})
    for part in parts_of(*told) or ():
        marks = (part.template.get("metadata") or {}).get("labels") or {}
        if marks.get(labels.MANAGED) != "false":
            yield marks.get(labels.SLOTS) or slot_kind(part.template), part


def _unsuspended(spec: Object | None, entry: OwnerKind) -> Object:
    """Return what a spec asks for, whether it is suspended or not."""
    return edited({"spec": spec or {}}, {tuple(entry.suspend.split(".")): None})


def _marks(workload: Object) -> list[tuple[Path, str]]:
    """Return the place of each pod template, and the kind of slots that its pods need."""
    return [(part.at, slot_kind(part.template)) for _, part in _parts(workload)]


def _wanted(workload: Object) -> Counter[str]:
    """Return how many pods of each kind it may still run at once, if it has not ended."""
    kinds, jobs = workload["slotKinds"], workload["jobs"]
    left: Counter[str] = Counter()
    for label, part in _parts(workload):
        left[label] += part.count
    staying: Counter[str] = Counter()
    of_jobs: dict[str, str] = {}
    for uid, pod in workload["members"].items():
        fact, maker = pod_fact(pod), str((controller_owner(pod) or {}).get("uid"))
        if maker in jobs:
            of_jobs[maker] = kinds[uid]
        elif fact.phase == "Succeeded":
            left[kinds[uid]] -= 1
        if not fact.is_terminal and not fact.is_terminating:
            staying[kinds[uid]] += 1
    for maker, label in of_jobs.items():
        job = jobs[maker]
        left[label] -= max(0, size_of_job(job) - BATCH_JOB.fact(job).wanted)
    return Counter({label: max(left[label], staying[label]) for label in (left | staying)})


def _result(workload: Object, wanted: Mapping[str, int]) -> FluxJobState | None:
    said = result_of(workload["entry"], workload)
    if said is not None:
        return said
    is_told = workload["entry"].templates_in is None or workload["made"] is not None
    is_begun = is_told and bool(workload["members"])
    live = (pod for pod in workload["members"].values() if not pod_fact(pod).is_terminal)
    is_done = is_begun and not any(wanted.values()) and next(live, None) is None
    return FluxJobState.COMPLETED if is_done else None
