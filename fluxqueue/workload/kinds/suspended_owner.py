"""The entry of all kinds that make pods and can be suspended: JobSet, MPIJob, RayJob, ….

Called through the table (``workload.kinds``). The differences between such kinds are in
``workload.owner_kinds``, and the code here knows none of them. Such an object waits suspended,
without pods, and is released whole. A workload of this kind is the object with the additions of
``assemble_owner``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fluxqueue.fluxjob.facts import WorkloadFacts
from fluxqueue.fluxjob.pod_facts import PodFact, WorkloadProgress
from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.jobspec import Jobspec
from fluxqueue.workload import labels
from fluxqueue.workload.deletion import as_of_deletion
from fluxqueue.workload.json_patch import Patch, edited
from fluxqueue.workload.kinds.admitted import (
    AdmittedOwner,
    Made,
    assemble_owner,
    parts_with_slots,
    size_of_job,
)
from fluxqueue.workload.kinds.batch_job import BATCH_JOB
from fluxqueue.workload.kinds.kind import Gathering, WorkloadKind
from fluxqueue.workload.object_paths import replaced
from fluxqueue.workload.objects import Object
from fluxqueue.workload.observed_pod import pod_fact
from fluxqueue.workload.owner_kinds import OwnerKind, PartOf, result_of
from fluxqueue.workload.pod_request import slot_kind
from fluxqueue.workload.pods import controller_owner
from fluxqueue.workload.references import Reference
from fluxqueue.workload.site import DEFAULT_SITE, Site
from fluxqueue.workload.suspension import resume_owner_patch, suspend_owner_patch


class SuspendedOwnerKind(AdmittedOwner, WorkloadKind):
    """Answer the questions of ``WorkloadKind`` for objects that can be suspended."""

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

    def with_pods(self, workload: Object, change: Callable[[Object], Object]) -> Object:
        parts = [(part, change(part.template)) for _, part in parts_with_slots(workload)]
        if all(changed is part.template for part, changed in parts):
            return workload
        return _with_templates(workload, parts)

    def metas(self, workload: Object) -> list[tuple[str, Object]]:
        parts = [part for _, part in parts_with_slots(workload)]
        return [
            *(
                (".".join([*map(str, part.at), "metadata"]), part.template.get("metadata") or {})
                for part in reversed(parts)
            ),
            ("metadata", workload["metadata"]),
        ]

    def with_metas(self, workload: Object, change: Callable[[Object], Object]) -> Object:
        parts = [
            (part, {**part.template, "metadata": change(part.template["metadata"])})
            for _, part in parts_with_slots(workload)
            if part.template.get("metadata")
        ]
        return _with_templates({**workload, "metadata": change(workload["metadata"])}, parts)

    def asks(self, workload: Object) -> tuple[Any, ...]:
        meta, entry, made = workload["metadata"], workload["entry"], workload["made"]
        spec = _unsuspended(workload.get("spec"), entry)
        kinds = frozenset(workload["slotKinds"].values())
        told = None if made is None else _unsuspended(made.spec, made.entry)
        return meta.get("annotations"), meta.get("labels"), spec, told, kinds

    def further(self, workload: Object, *, site: Site = DEFAULT_SITE) -> Jobspec | None:
        """Return all kinds of slots, with those of pods that no template describes."""
        known = {label for label, _ in parts_with_slots(workload)}
        others = {}
        for uid, pod in workload["members"].items():
            label = workload["slotKinds"][uid]
            # A released pod names its node, which its author did not request.
            if label not in known and pod_fact(pod).is_gated:
                others[label] = pod["spec"]
        return self._request(workload, others, site)

    # --- how is it held -----------------------------------------------------------------------

    def gathering(self, workload: Object) -> Gathering | None:
        """Return how far it is from complete.

        Its request is unknown until the object that defines it exists.
        """
        templates_in = workload["entry"].templates_in
        if templates_in is None or workload["made"] is not None:
            return None
        return Gathering(1, f"waits for its {templates_in[1]}, which says what it asks for")

    def facts(self, workload: Object, common: WorkloadFacts) -> WorkloadFacts:
        # Its kind decides what a deleted pod means, and some kinds then fail.
        return replace(common, replaces_pods=True, spare_failures=0)

    def resume_patch(self, uid: str, reference: Reference | None, *, is_pinned: bool) -> Any:
        assert reference is not None, "rows of this kind have one"
        return resume_owner_patch(uid, reference.suspend)

    def suspend_patch(self, workload: Object) -> Patch:
        return suspend_owner_patch(workload, workload["entry"].suspend)

    # --- how does it end ----------------------------------------------------------------------

    def progress(self, workload: Object, pods: Sequence[PodFact] = ()) -> WorkloadProgress:
        """Return its progress.

        It wants as many pods as its request has, without those that succeeded and are not made
        again. It ends when its status reports the end. If its kind reports none, it ends when all
        pods have succeeded.
        """
        wanted = _wanted(workload)
        return WorkloadProgress(
            wanted=sum(wanted.values()),
            result=_result(workload, wanted),
            is_deleting=bool(workload["metadata"].get("deletionTimestamp")),
            wanted_of=wanted,
        )

    def last_result(self, workload: Object, pods: Sequence[PodFact] = ()) -> FluxJobState | None:
        """Return the result as of ``progress``, with pods that had ended before they were removed.

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


def _with_templates(workload: Object, parts: Iterable[tuple[PartOf, Object]]) -> Object:
    """Return a workload with other templates in these places."""
    made: Made | None = workload["made"]
    told: Object = {"spec": workload.get("spec") if made is None else made.spec}
    for part, changed in parts:
        told = replaced(told, part.at, changed)
    if made is None:
        return {**workload, "spec": told["spec"]}
    return {**workload, "made": replace(made, spec=told["spec"])}


def tell_made(stored: Object, entry: OwnerKind) -> Made:
    """Return what a stored object shows about the pods of its maker."""
    meta = stored["metadata"]
    generation = int(meta.get("generation") or 0)
    return Made(entry, meta["uid"], generation, stored.get("spec") or {})


def slots_of_member(workload: Object, pod: Object) -> str:
    """Return the kind of slots that a pod of ``workload`` needs.

    That is the mark of its template, if the workload has slots of this kind. Otherwise the pod's
    own fields decide.
    """
    said = (pod["metadata"].get("labels") or {}).get(labels.SLOTS)
    return said if said in {label for label, _ in parts_with_slots(workload)} else slot_kind(pod)


def _unsuspended(spec: Object | None, entry: OwnerKind) -> Object:
    """Return what a spec asks for, whether it is suspended or not."""
    return edited({"spec": spec or {}}, {tuple(entry.suspend.split(".")): None})


def _wanted(workload: Object) -> Counter[str]:
    """Return how many pods of each kind it may still run at once, if it has not ended."""
    kinds, jobs = workload["slotKinds"], workload["jobs"]
    left: Counter[str] = Counter()
    for label, part in parts_with_slots(workload):
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
        left[label] -= max(0, size_of_job(job) - BATCH_JOB.progress(job).wanted)
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
