"""The entry of pod groups: defined by their pods, whatever makes those, and started as one.

Called through the table (``workload.kinds``). No API object represents a group. The controller
(``observing.group_assembly``) assembles one (``Assembly``) from the pods that admission marked as
members. The oldest pods, up to the group's minimum, are its request. The other pods grow it, slot
by slot, when capacity is free. A group of Kubernetes starts with all its pods, and grows by all
that wait.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.pod_facts import PodFact, WorkloadProgress
from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.jobspec import Jobspec
from fluxqueue.workload import labels
from fluxqueue.workload.annotations import Wishes, first_said, read_wishes
from fluxqueue.workload.followers import Followers, stored_followers
from fluxqueue.workload.groups import POD
from fluxqueue.workload.kinds.batch_job import BATCH_JOB
from fluxqueue.workload.kinds.kind import Gathering, WorkloadKind
from fluxqueue.workload.objects import Object
from fluxqueue.workload.observed_pod import is_grouped, pod_fact
from fluxqueue.workload.pod_bounds import bounds_of
from fluxqueue.workload.pod_request import (
    DEFAULT_PRIORITY,
    SYSTEM_CLASS,
    AskedPriority,
    ShapePart,
    build_parts,
    slot_kind,
)
from fluxqueue.workload.pods import controller_owner, longest_deadline
from fluxqueue.workload.references import Reference
from fluxqueue.workload.site import DEFAULT_SITE, Site

if TYPE_CHECKING:
    from fluxqueue.fluxjob.facts import WorkloadFacts

_NO_WISHES = {
    *(labels.MANAGED, labels.USER, labels.GROUP, labels.JOBID, labels.NODES, labels.SLOTS),
    *(labels.POD_GROUP, labels.GROUP_SIZE, labels.GROUP_USERS, labels.SUBMITTER),
    labels.FOLLOWERS,
}


class PodGroupKind(WorkloadKind):
    """Answer the questions of ``WorkloadKind`` for a workload that ``Assembly`` makes."""

    name, group, version, plural = "PodGroup", "jobs.converged-computing.org", "v1alpha1", ""
    pod_spec_path = "spec"
    has_object = False
    is_made_of_pods = True
    suffix = "group"
    """Suffix of its FluxJob's name."""

    def shown_as(self, workload: Object) -> tuple[str, str]:
        of = self.reference(workload)
        return super().shown_as(workload) if of is None else (of.api_version, of.kind)

    def reference(self, workload: Object) -> Reference | None:
        found: Reference | None = workload["of"]
        return found

    def facts(self, workload: Object, common: WorkloadFacts) -> WorkloadFacts:
        pods = workload["members"].values()
        return replace(
            common,
            made_by=_made_by(workload),
            # An owner makes a replacement, or the group is notified.
            replaces_pods=all(map(controller_owner, pods)),
            # A BatchJob would count a deleted pod as failed. Other owners have no such count.
            spare_failures=0 if any(map(BATCH_JOB.claim, pods)) else None,
        )

    def looks_like(self, workload: Object) -> bool:
        return "members" in workload

    def claim(self, pod: Object) -> str | None:
        """Return None: group names are reused, so a pod cannot identify its group.

        ``observing.group_assembly`` knows it.
        """
        return None

    def pod_spec(self, workload: Object) -> Object:
        specs = self.pod_specs(workload)
        return specs[0] if specs else {}

    def pod_specs(self, workload: Object) -> Sequence[Object]:
        return [pod["spec"] for pod in _first_of_each_kind(workload)]

    def with_pods(self, workload: Object, change: Callable[[Object], Object]) -> Object:
        """Return the group with ``change`` applied to those pods that its request is read from."""
        first = {pod["metadata"]["uid"]: pod for pod in _first_of_each_kind(workload)}
        changed = {uid: change(pod) for uid, pod in first.items()}
        if all(changed[uid] is pod for uid, pod in first.items()):
            return workload
        return {**workload, "members": {**workload["members"], **changed}}

    def pod_labels(self, workload: Object, pod: Object) -> Mapping[str, str]:
        """Return the labels that its pods share, as pods of a set have labels of their own."""
        found = set(super().pod_labels(workload, pod).items())
        for one in workload["members"].values():
            found &= set(super().pod_labels(workload, one).items())
        return dict(found)

    def wishes(self, workload: Object) -> Wishes:
        """Return the wishes of its pods, then those of its PodGroup.

        If pods disagree, the oldest one wins.
        """
        spec = workload["spec"]
        of_object = Wishes(within=spec.get("within"), priority=spec.get("priority"))
        return first_said([*map(read_wishes, _telling(workload)), of_object])

    def priority(
        self,
        workload: Object,
        *,
        class_values: Mapping[str, int] | None = None,
        default: int = DEFAULT_PRIORITY,
    ) -> AskedPriority:
        asked = super().priority(workload, class_values=class_values, default=default)
        # The API server has resolved the class that a native PodGroup names.
        name = workload["spec"].get("priorityClassName") or SYSTEM_CLASS
        of_class = None if name.startswith(SYSTEM_CLASS) else (class_values or {}).get(name)
        return asked._replace(is_granted=asked.is_granted or asked.value == of_class)

    def metas(self, workload: Object) -> list[tuple[str, Object]]:
        """Return the metadata of the first pod of each kind. The oldest pod wins."""
        return [("metadata", pod["metadata"]) for pod in reversed(_first_of_each_kind(workload))]

    def with_metas(self, workload: Object, change: Callable[[Object], Object]) -> Object:
        members = {
            uid: {**pod, "metadata": change(pod["metadata"])}
            for uid, pod in workload["members"].items()
        }
        return {**workload, "members": members}

    def disregarded(self, workload: Object) -> Sequence[str]:
        """Return the wishes on which its pods disagree."""
        return [f"{key} where pods disagree (the oldest's counts)" for key in _disputed(workload)]

    def asks(self, workload: Object) -> tuple[Any, ...]:
        kinds = workload["slotKinds"]
        first = tuple(kinds[pod["metadata"]["uid"]] for pod in first_pods(workload))
        said = [pod["metadata"].get("annotations") for pod in _first_of_each_kind(workload)]
        marks = [pod["metadata"].get("labels") for pod in _first_of_each_kind(workload)]
        of_object = workload["spec"].get("within"), workload["spec"].get("priority")
        bounds = tuple(bounds_of(pod["spec"]) for pod in _first_of_each_kind(workload))
        return first, frozenset(kinds.values()), said, marks, _disputed(workload), of_object, bounds

    def size(self, workload: Object) -> int:
        return len(first_pods(workload))

    def to_request(self, workload: Object, *, site: Site = DEFAULT_SITE) -> Jobspec:
        """Return one kind of slots for each kind of pods. Kinds that need no pod yet count 0."""
        first = first_pods(workload)
        return self._request(workload, first, site, _still_to_come(workload, first))

    def further(self, workload: Object, *, site: Site = DEFAULT_SITE) -> Jobspec | None:
        return self._request(workload, _first_of_each_kind(workload), site)

    def _request(
        self,
        workload: Object,
        pods: Sequence[Object],
        site: Site,
        to_come: Iterable[tuple[Object, Followers, int]] = (),
    ) -> Jobspec:
        kinds = workload["slotKinds"]
        counts = Counter(kinds[one["metadata"]["uid"]] for one in pods)
        specs = {
            kinds[pod["metadata"]["uid"]]: pod["spec"] for pod in _first_of_each_kind(workload)
        }
        for driver, told, count in to_come:
            specs.setdefault(told.label, told.pod_spec(driver["spec"]))
            counts[told.label] += count
        parts = [ShapePart(label, spec, counts[label]) for label, spec in specs.items()]
        deadline_s = self.deadline_s(workload)
        return build_parts(parts, self.wishes(workload), deadline_s=deadline_s, site=site)

    def deadline_s(self, workload: Object) -> int | None:
        """Return the longest deadline of its pods, or that of their driver."""
        return longest_deadline([pod["spec"] for pod in _telling(workload)])

    def why_not(self, workload: Object) -> str | None:
        return "a group has no object of its own"

    def held(self, workload: Object, wishes: Wishes, user: str) -> Object:
        raise InvalidInput("a group has no object of its own", where="kind", value=self.name)

    def is_held(self, workload: Object) -> bool:
        return any(pod_fact(pod).is_gated for pod in workload["members"].values())

    def gathering(self, workload: Object) -> Gathering | None:
        spec, came = workload["spec"], len(_counted(workload))
        patience_s = spec.get("patience_s")
        if spec.get("complete"):
            return None
        if spec.get("arriving_s"):
            window = (
                f"it starts with those that come until none has come for {spec['arriving_s']:g} s"
            )
            return Gathering(1, f"{_pods(came)}; {window}", patience_s)
        if spec["minimum"] is None:
            reason = f"{_pods(came)}; waits for PodGroup {workload['metadata']['name']}, whose"
            return Gathering(1, f"{reason} minMember or minCount says how many it has", patience_s)
        if spec.get("parent"):
            part = f"PodGroup {workload['metadata']['name']} is a part of CompositePodGroup"
            reason = f"{part} {spec['parent']}, and kube-scheduler binds all parts together"
            way = f"name one group in {labels.POD_GROUP} on the pods of all parts"
            return Gathering(1, f"{_pods(came)}; {reason}: {way}", patience_s)
        missing = max(0, spec["minimum"] - came)
        reason = f"{came} of {_pods(spec['minimum'])}; missing {missing}" if missing else ""
        if reason and spec.get("note"):
            reason = f"{reason}; {spec['note']}"
        return Gathering(missing, reason, patience_s)

    def progress(self, workload: Object, pods: Sequence[PodFact] = ()) -> WorkloadProgress:
        """Return its progress. It ends when no pod can still run and none will be made.

        It has failed if a pod has failed and was not replaced. For pods of a BatchJob, the result
        of that BatchJob counts. It was cancelled if a part of it was deleted before its end.
        """
        live = [pod for pod in workload["members"].values() if not pod_fact(pod).is_terminal]
        jobs: Mapping[str, Object] = workload["jobs"]
        results = {uid: _job_result(workload, job) for uid, job in jobs.items()}
        results |= {uid: _last_result(workload, job) for uid, job in workload["goneJobs"].items()}
        to_come = sum(_to_come(jobs[uid], live) for uid in jobs if not results[uid])
        kept = [(told.label, count) for _, told, count in _still_to_come(workload, live)]
        to_come += sum(count for _, count in kept)
        counted = _counted(workload)
        staying = len(counted)
        most = workload["spec"]["maximum"]
        wanted = staying + to_come
        is_waited_for = any(not results[uid] for uid in jobs)
        has_ended = any(map(_has_ended, _ended(workload)))
        wanted_of = Counter(workload["slotKinds"][pod["metadata"]["uid"]] for pod in counted)
        for label, count in kept:
            wanted_of[label] += count
        is_over = not live and not is_waited_for and has_ended
        return WorkloadProgress(
            wanted=wanted if most is None else min(wanted, most),
            result=_result(workload, results) if is_over else None,
            wanted_of=wanted_of if kept else {},
        )

    def news(self, workload: Object) -> tuple[Any, ...]:
        return ()


POD_GROUP = PodGroupKind()


@dataclass(frozen=True, slots=True, kw_only=True)
class Assembly:
    """A group as it was found in the cluster.

    Parameters
    ----------
    fluxjob : name of its FluxJob.
    created, version : when it was found, and the resourceVersion that orders groups within that
        second.
    made_by : the object that makes its pods. ``name`` is then the name of that object. None if the
        pods name the group.
    spec : ``minimum`` and ``maximum`` (pods, None as in ``groups.Membership``). If known, also
        ``patience_s``, ``note``, and ``within``, ``priority`` and ``parent`` of its PodGroup. With
        ``made_by`` also ``complete``: no more pods are expected. And ``arriving_s``: an arrival
        window (seconds) determines the pods that start.
    members : its pods by UID. May change later.
    slot_kinds : kind of slot by pod UID. May change later.
    jobs : BatchJobs that make some of its pods, by UID.
    left : its pods that had ended and are gone, by UID. May change later.
    gone_jobs : BatchJobs that made some of its pods and are gone, as last seen.
    """

    uid: str
    name: str
    fluxjob: str
    namespace: str
    user: str
    created: str
    version: str = ""
    made_by: Reference | None = None
    spec: Mapping[str, Any]
    members: Mapping[str, Object]
    slot_kinds: Mapping[str, str]
    jobs: Mapping[str, Object]
    left: Mapping[str, Object] = field(default_factory=dict)
    gone_jobs: Mapping[str, Object] = field(default_factory=dict)

    def assemble(self) -> dict[str, Any]:
        """Make the object that represents the group."""
        return {
            "kind": POD_GROUP.name,
            "metadata": {
                "uid": self.uid,
                "name": self.name,
                "fluxjob": self.fluxjob,
                "namespace": self.namespace,
                "creationTimestamp": self.created,
                "resourceVersion": self.version,
                "annotations": {labels.USER: self.user} if self.user else {},
            },
            "spec": dict(self.spec),
            "of": self.made_by,
            "members": self.members,
            "slotKinds": self.slot_kinds,
            "jobs": self.jobs,
            "left": self.left,
            "goneJobs": self.gone_jobs,
        }


def slots_beside(members: Mapping[str, Object], pod: Object) -> str:
    """Return the kind of slots that a pod of a group with ``members`` needs.

    A follower that fits gets a slot that was kept for the followers of its driver.
    """
    driver = members.get(_maker(pod) or "")
    told = None if driver is None else stored_followers(driver)
    if driver is not None and told is not None and told.fits(pod, driver["spec"]):
        return told.label
    return slot_kind(pod)


def _counted(workload: Object) -> list[Object]:
    """Return the pods that can be started, oldest first."""
    facts = ((pod, pod_fact(pod)) for pod in workload["members"].values())
    found = [pod for pod, fact in facts if not fact.is_terminal and not fact.is_terminating]
    return sorted(found, key=_age)


def first_pods(workload: Object) -> list[Object]:
    """Return the pods that the group starts with.

    kube-scheduler holds all pods of its own groups back while one of them is gated. So such a group
    starts with all pods that are there, and its minimum says for how many it waits.
    """
    counted = _counted(workload)
    return counted if any(map(is_grouped, counted)) else counted[: workload["spec"]["minimum"]]


def _first_of_each_kind(workload: Object) -> list[Object]:
    """Return the first pod of each kind, among pending pods as long as there are any.

    A released pod names its node, which its author did not request.
    """
    kinds, counted = workload["slotKinds"], _counted(workload)
    waiting = [pod for pod in counted if pod_fact(pod).is_gated]
    found: dict[str, Object] = {}
    for pod in waiting or counted or sorted(workload["members"].values(), key=_age):
        found.setdefault(kinds[pod["metadata"]["uid"]], pod)
    return list(found.values())


def _telling(workload: Object) -> list[Object]:
    """Return the pods that say what the group wishes. Followers do not repeat it."""
    of = workload["of"]
    driver = None if of is None else workload["members"].get(of.uid)
    return _first_of_each_kind(workload) if driver is None else [driver]


def _made_by(workload: Object) -> str | None:
    """Return the owner to delete, or None if its pods have no owner except BatchJobs.

    BatchJobs are deleted with their group. Any other owner belongs to its author.
    """
    if _has_driver(workload):
        return None
    if workload["of"] is not None:
        return f"{workload['of'].kind} {workload['metadata']['name']}"
    for pod in workload["members"].values():
        owner = controller_owner(pod)
        if owner is not None and BATCH_JOB.claim(pod) is None:
            return f"{owner['kind']} {owner['name']}"
    return None


def _has_driver(workload: Object) -> bool:
    """Tell whether the group consists of a driver and of the pods that it makes."""
    return workload["of"] is not None and workload["of"].kind == POD


def _still_to_come(workload: Object, pods: Sequence[Object]) -> list[tuple[Object, Followers, int]]:
    """Return each driver among ``pods`` with its followers, and how many are not there.

    A driver that terminates makes no more of them.
    """
    makers = Counter(
        (_maker(pod), workload["slotKinds"][pod["metadata"]["uid"]])
        for pod in pods
        if not pod_fact(pod).is_terminating
    )
    found = []
    for pod in pods:
        told = stored_followers(pod)
        if told is not None and not pod_fact(pod).is_terminating:
            there = makers[pod["metadata"]["uid"], told.label]
            found.append((pod, told, max(0, told.count - there)))
    return found


def _disputed(workload: Object) -> list[str]:
    """Return the fluxqueue annotations and labels that have different values on its pods."""
    values: dict[str, set[str]] = {}
    for pod in workload["members"].values():
        meta = pod["metadata"]
        for place in (meta.get("annotations") or {}, meta.get("labels") or {}):
            for key, value in place.items():
                if key.startswith(labels.PREFIX) and key not in _NO_WISHES:
                    values.setdefault(key, set()).add(value)
    return sorted(key for key, said in values.items() if len(said) > 1)


def _age(pod: Object) -> tuple[str, str]:
    meta = pod["metadata"]
    return meta.get("creationTimestamp") or "", meta["name"]


def _to_come(job: Object, live: Sequence[Object]) -> int:
    """Return how many replacement pods a BatchJob has yet to make."""
    uid = job["metadata"]["uid"]
    there = [pod for pod in live if (controller_owner(pod) or {}).get("uid") == uid]
    return max(0, BATCH_JOB.progress(job).wanted - len(there))


def _ended(workload: Object) -> list[Object]:
    """Return members that exist, and members that had ended before they were removed."""
    return [*workload["members"].values(), *workload["left"].values()]


def _job_result(workload: Object, job: Object) -> FluxJobState | None:
    is_deleting = bool(job["metadata"].get("deletionTimestamp"))
    return _last_result(workload, job) if is_deleting else BATCH_JOB.progress(job).result


def _last_result(workload: Object, job: Object) -> FluxJobState | None:
    """Return how a BatchJob ended that is gone or being deleted."""
    uid = job["metadata"]["uid"]
    pods = [pod for pod in _ended(workload) if _maker(pod) == uid]
    return BATCH_JOB.last_result(job, BATCH_JOB.pod_facts(job, pods))


def _maker(pod: Object) -> str | None:
    return (controller_owner(pod) or {}).get("uid")


def _has_ended(pod: Object) -> bool:
    fact = pod_fact(pod)
    return fact.is_terminal and not fact.is_killed


def _result(workload: Object, results: Mapping[str, FluxJobState | None]) -> FluxJobState:
    # A driver replaces its followers, so its own end counts.
    if _has_driver(workload):
        ended = [one for one in _ended(workload) if one["metadata"]["uid"] == workload["of"].uid]
        phases = {pod_fact(one).phase for one in ended if _has_ended(one)}
        if not phases:
            return FluxJobState.CANCELLED
        return FluxJobState.FAILED if "Failed" in phases else FluxJobState.COMPLETED
    # An owner may have replaced its failed or deleted pod. What has gone of others was not.
    own = [pod for pod in workload["members"].values() if _maker(pod) not in results]
    left = [pod for pod in workload["left"].values() if _maker(pod) is None]
    alone = [*left, *(pod for pod in own if _maker(pod) is None)]
    told = [pod for pod in (*own, *left) if _has_ended(pod)]
    has_failed = any(pod_fact(pod).phase == "Failed" for pod in told)
    if has_failed or FluxJobState.FAILED in results.values():
        return FluxJobState.FAILED
    is_cut = any(results[uid] is None for uid in workload["goneJobs"])
    # A pod that was made again by hand counts once.
    is_whole = len(told) >= (workload["spec"]["minimum"] or len(told) + 1)
    is_cut |= not is_whole and not all(map(_has_ended, alone))
    return FluxJobState.CANCELLED if is_cut else FluxJobState.COMPLETED


def _pods(count: int) -> str:
    return f"{count} pod" if count == 1 else f"{count} pods"
