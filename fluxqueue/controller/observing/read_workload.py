"""Convert objects to observations: pure functions between the informers and the rows.

``event_router``, ``flusher`` and ``resync_diff`` call them. They use no client and no database.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fluxqueue.db.store.last_readings import LastRequest, Past
from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.facts import WorkloadFacts
from fluxqueue.fluxjob.holders import AUTHOR
from fluxqueue.fluxjob.indexes import as_multirange
from fluxqueue.fluxjob.observation import WorkloadGone, WorkloadSeen
from fluxqueue.fluxjob.request import describe
from fluxqueue.jobspec import Jobspec
from fluxqueue.jobspec.render import render
from fluxqueue.kube.informer import UNSEEN
from fluxqueue.workload import labels, observed_pod, pods
from fluxqueue.workload.annotations import Wishes
from fluxqueue.workload.constraints import ignored
from fluxqueue.workload.fingerprint import fingerprint
from fluxqueue.workload.fluxjob_object import begin_time, fluxjob_name, submitter
from fluxqueue.workload.groups import read_mark
from fluxqueue.workload.kinds.bare_pod import BARE_POD
from fluxqueue.workload.kinds.batch_job import BATCH_JOB
from fluxqueue.workload.kinds.kind import Gathering
from fluxqueue.workload.kinds.table import kind_of
from fluxqueue.workload.last_good import mend, said_by
from fluxqueue.workload.learned_sizes import LearnedSizes, with_extra
from fluxqueue.workload.objects import Object
from fluxqueue.workload.pinning import has_required_affinity
from fluxqueue.workload.pod_resources import CLAIMED, INFEASIBLE, is_resize_infeasible, raw_request
from fluxqueue.workload.site import Site

logger = logging.getLogger(__name__)

_META = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "ownerReferences",
)
_WISHES = ("annotations", "labels")
_SPEC = (
    *("nodeName", "schedulingGates", "nodeSelector", "affinity", "resources", "overhead"),
    *("activeDeadlineSeconds", "terminationGracePeriodSeconds", "schedulingGroup"),
)
_CLAIMING = frozenset({"persistentVolumeClaim", "ephemeral"})
_ENDED = frozenset({"Succeeded", "Failed"})
_CONTAINERS = ("initContainers", "containers")
_PROGRAM = frozenset(
    (
        *("args", "command", "env", "envFrom", "lifecycle", "livenessProbe", "readinessProbe"),
        *("securityContext", "startupProbe", "volumeDevices", "volumeMounts"),
    )
)
"""Fields of a container that decide nothing here. Their size is up to their author."""
_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_STATUSES = ("initContainerStatuses", "containerStatuses")


def trim_pod(pod: Object) -> dict[str, Any]:
    """Keep the fields of a pod that are read, and fewer if it cannot be a workload itself.

    This is an informer transform: each event of each pod of the cluster passes here.
    """
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    kept = {key: meta[key] for key in _META if key in meta}
    # It cannot be a workload or a group member: of its annotations, only the index is read.
    if meta.get("ownerReferences") and read_mark(pod) is None:
        index = (meta.get("annotations") or {}).get(labels.COMPLETION_INDEX)
        if index is not None:
            kept["annotations"] = {labels.COMPLETION_INDEX: index}
        asked = {key: spec[key] for key in _SPEC if spec.get(key)}
        for key in _CONTAINERS:
            if spec.get(key):
                asked[key] = [_trim_container(one) for one in spec[key]]
        # What an unmanaged pod attaches to its node.
        if volumes := [one for one in spec.get("volumes") or () if _CLAIMING & one.keys()]:
            asked["volumes"] = volumes
    else:
        kept |= {key: meta[key] for key in _WISHES if key in meta}
        asked = dict(_without_programs(spec))
    told = {key: status[key] for key in ("phase", "reason") if key in status}
    if "activeDeadlineSeconds" in spec and "startTime" in status:
        told["startTime"] = status["startTime"]
    if "deletionTimestamp" in meta and (is_killed := observed_pod.was_killed(pod)) is not False:
        told[observed_pod.KILLED] = is_killed
    for key, containers in zip(_STATUSES, _CONTAINERS, strict=True):
        resized = _resized(status.get(key) or (), spec.get(containers) or ())
        if resized:
            told[key] = resized
    if status.get(CLAIMED):
        told[CLAIMED] = status[CLAIMED]
    told |= _held_otherwise(status, spec)
    if is_resize_infeasible(status):
        told["conditions"] = [dict(INFEASIBLE)]
    # Unmanaged pods are many, and their requests are not needed here. A pod that names a Job as
    # its owner is counted with that Job, so its own requests must be known.
    if told.get("phase") not in _ENDED and (
        labels.MANAGED in (meta.get("labels") or {}) or BATCH_JOB.claim(pod) is not None
    ):
        told[observed_pod.USES] = _uses(spec, told)
        why = observed_pod.why_unbound(pod)
        if why:
            told[observed_pod.UNSCHEDULABLE] = why
    return {"kind": BARE_POD.name, "metadata": kept, "spec": asked, "status": told}


def _uses(spec: Object, told: Object) -> tuple[tuple[str, int], ...]:
    """Return what a pod requests in its own spec, which it takes of its node once bound."""
    try:
        amounts = raw_request(spec, status=told)
    except InvalidInput:
        return ()  # what was read from the template stays valid
    return tuple(sorted(amounts.items()))


def _trim_container(container: Object) -> dict[str, Any]:
    kept = ("name", "resources", "restartPolicy")
    found = {key: container[key] for key in kept if container.get(key)}
    # The ports of a pod on the network of its node are host ports as the API server stores it.
    if ports := [port for port in container.get("ports") or () if port.get("hostPort")]:
        found["ports"] = ports
    return found


def _resized(statuses: Sequence[Object], containers: Sequence[Object]) -> list[dict[str, Any]]:
    """Return the requests in use that differ from the spec (an in-place resize)."""
    found = []
    for status in statuses:
        asked = next((one for one in containers if one.get("name") == status.get("name")), {})
        if held := _held_otherwise(status, asked):
            found.append({"name": status.get("name"), **held})
    return found


def _held_otherwise(status: Object, asked: Object) -> dict[str, Any]:
    """Return what a container, or a pod as a whole, holds if it differs from its spec."""
    requests = (asked.get("resources") or {}).get("requests")
    running = (status.get("resources") or {}).get("requests")
    allocated = status.get("allocatedResources")
    held: dict[str, Any] = {}
    if running is not None and running != requests:
        held["resources"] = {"requests": running}
    if allocated is not None and allocated != requests:
        held["allocatedResources"] = allocated
    return held


def trim_job(job: Object) -> dict[str, Any]:
    """Add the kind, which lists leave out, and drop what nothing reads.

    A user may make hundreds of Jobs of more than a megabyte, and this process keeps each of them.
    """
    meta = {key: value for key, value in job["metadata"].items() if key != "managedFields"}
    if _APPLIED in (meta.get("annotations") or {}):
        kept = {key: text for key, text in meta["annotations"].items() if key != _APPLIED}
        meta["annotations"] = kept
    trimmed = {**job, "kind": BATCH_JOB.name, "metadata": meta}
    template = (job.get("spec") or {}).get("template") or {}
    if template.get("spec"):
        template = {**template, "spec": _without_programs(template["spec"])}
        trimmed["spec"] = {**job["spec"], "template": template}
    return trimmed


def _without_programs(spec: Object) -> Object:
    """Return the spec of a pod without what its containers run."""
    found = dict(spec)
    for key in _CONTAINERS:
        if spec.get(key):
            found[key] = [
                {part: value for part, value in one.items() if part not in _PROGRAM}
                for one in spec[key]
            ]
    return found


def age(workload: Object) -> tuple[str, int]:
    """Return a sort key for the order in which objects were created."""
    meta = workload["metadata"]
    version = str(meta.get("resourceVersion") or "")
    return str(meta.get("creationTimestamp") or ""), int(version) if version.isdigit() else 0


def see_progress(
    seen: WorkloadSeen, workload: Object, its_pods: Sequence[Object], *, gather_s: int | None = None
) -> WorkloadSeen:
    """Return an observation with the present progress of its workload.

    That is what changes while its requests stay the same. A running workload is followed even after
    an edit that makes its requests unreadable. Its pods are those that have not ended, and those
    that their node refused.

    Parameters
    ----------
    seen : what is known of its requests. ``UNREAD`` if nothing is.
    gather_s : how long (seconds) the pods of a group may arrive if the group does not say. None: as
        before.
    """
    gather_s = seen.facts.gather_s if gather_s is None else gather_s
    kind = kind_of(workload)
    pinned_to, is_paused = kind.pinned_node(workload), kind.is_paused(workload)
    # After both: the written form lacks the pin.
    workload = kind.as_written(workload)
    its = kind.pod_facts(workload, its_pods)
    fact = kind.progress(workload, its)
    # While it is being deleted, its pods may show a result that its own status does not.
    result = kind.last_result(workload, its) if fact.is_deleting else fact.result
    gathering = kind.gathering(workload) or Gathering(0, "")
    facts = replace(
        seen.facts,
        generation=int(workload["metadata"].get("generation") or 0),
        wanted=fact.wanted,
        wanted_of=dict(fact.wanted_of),
        is_suspended=kind.is_suspended(workload),
        is_idle=kind.is_idle(workload),
        ended_indexes=as_multirange(kind.ended_indexes(workload, its)),
        is_whole=any(map(observed_pod.is_grouped, its_pods)),
        missing=gathering.missing,
        gather_reason=gathering.reason,
        gather_s=gather_s if gathering.patience_s is None else gathering.patience_s,
    )
    return replace(
        seen,
        facts=facts,
        size=seen.size - seen.facts.missing + facts.missing,
        result=str(result) if result else None,
        is_deleting=fact.is_deleting,
        is_suspended_again=kind.is_suspended_again(workload),
        pods=tuple(one for one in its if not one.is_terminal or one.is_refused),
        pinned_to=pinned_to,
        is_paused=is_paused,
        is_placed=kind.is_placed(workload),
        running=sum(one.phase == "Running" and not one.is_terminating for one in its),
        succeeded=sum(one.phase == "Succeeded" for one in its),
        ends_at_s=_ends_at(workload, its_pods),
    )


UNREAD = WorkloadSeen(
    uid="", namespace="", name="", workload_kind="", workload_name="", flux_uid=None, user_name="",
    queue="", held_by=None, request={}, size=0, duration_s=None, begin_at_s=None,
    facts=WorkloadFacts(),
)  # fmt: skip
"""What is known of a workload before its requests are read."""


def _ends_at(workload: Object, its_pods: Sequence[Object]) -> int | None:
    """Return when Kubernetes has ended all pods that use a node, as far as they tell."""
    kind = kind_of(workload)
    own_end = kind.deletes_at(workload)
    there = [one for one in its_pods if (one.get("spec") or {}).get("nodeName")]
    live = [one for one in there if (one.get("status") or {}).get("phase") not in _ENDED]
    ends = [observed_pod.enforced_end(one, own_end) for one in live]
    return max((end for end in ends if end is not None), default=None)


def see_gone(
    last: Object | None, its_pods: Sequence[Object], left: Sequence[Object]
) -> WorkloadGone:
    """Describe a workload that is gone.

    Parameters
    ----------
    last : its object as it was seen last, or None if it was never seen.
    its_pods : its pods that still exist.
    left : its pods that are gone and had ended when they were seen last.
    """
    namespace = its_pods[0]["metadata"]["namespace"] if its_pods else ""
    if last is None:
        return WorkloadGone(namespace, tuple(map(observed_pod.pod_fact, its_pods)), is_seen=False)
    return WorkloadGone(
        namespace,
        kind_of(last).pod_facts(last, its_pods),
        result=last_result(last, its_pods, left),
        is_seen=UNSEEN not in last,
    )


def last_result(last: Object, its_pods: Sequence[Object], left: Sequence[Object]) -> str | None:
    """Return how a workload that is gone or being deleted ended.

    The parameters are those of ``see_gone``.
    """
    kind = kind_of(last)
    result = kind.last_result(last, kind.pod_facts(last, [*its_pods, *left]))
    return str(result) if result else None


def see_workload(
    workload: Object,
    its_pods: Sequence[Object],
    *,
    flux_uid: str | None,
    class_values: Mapping[str, int],
    site: Site,
) -> WorkloadSeen:
    """Describe a workload and its pods as rows store them.

    Raises
    ------
    InvalidInput
        The object cannot be turned into a request because it bypassed admission.
    """
    kind = kind_of(workload)
    written = kind.as_written(workload)
    request, further = kind.to_request(written, site=site), kind.further(written, site=site)
    seen = _describe(written, _asked(request, further), class_values, said_by(written))
    seen = replace(seen, flux_uid=flux_uid)
    return see_progress(seen, workload, its_pods, gather_s=site.gather_s)


def _asked(request: Jobspec, further: Jobspec | None) -> LastRequest:
    return LastRequest(
        render(request),
        request.size,
        int(request.duration_s) or None,
        None if further is None else render(further),
    )


def see_spoilt(
    workload: Object,
    its_pods: Sequence[Object],
    past: Past,
    *,
    flux_uid: str | None,
    class_values: Mapping[str, int],
    site: Site,
) -> WorkloadSeen:
    """Describe a workload that ``see_workload`` cannot read, by its readable parts.

    For each unusable value, the last good value of ``past`` counts. ``faults`` lists all of them.

    Raises
    ------
    InvalidInput
        What its pods request cannot be read, and never could.
    """
    mended = mend(kind_of(workload).as_written(workload), past.said, site)
    asked = past.asked
    if mended.request is not None:
        asked = _asked(mended.request, mended.further)
    if asked is None:
        raise InvalidInput(mended.faults[-1].message)
    seen = _describe(mended.workload, asked, class_values, mended.said)
    seen = replace(seen, flux_uid=flux_uid, facts=replace(seen.facts, faults=mended.faults))
    return see_progress(seen, workload, its_pods, gather_s=site.gather_s)


def _describe(
    workload: Object, asked: LastRequest, class_values: Mapping[str, int], said: Mapping[str, str]
) -> WorkloadSeen:
    kind, meta, wishes = kind_of(workload), workload["metadata"], kind_of(workload).wishes(workload)
    return replace(
        UNREAD,
        uid=meta["uid"],
        namespace=meta["namespace"],
        name=fluxjob_name(workload),
        workload_kind=kind.named(workload),
        workload_name=meta["name"],
        user_name=submitter(workload),
        queue=wishes.queue or "default",
        held_by=_held_by(workload, has_hold=wishes.is_held),
        has_hold=wishes.is_held,
        request=asked.request,
        size=asked.size,
        duration_s=asked.duration_s,
        begin_at_s=begin_time(workload, wishes),
        facts=replace(
            _facts(workload, wishes, class_values),
            further=asked.further,
            said=said,
            template=fingerprint(kind.pod_specs(workload), asked.size),
        ),
    )


def _facts(workload: Object, wishes: Wishes, class_values: Mapping[str, int]) -> WorkloadFacts:
    """Return what a row keeps of an object, as its author wrote it."""
    kind, specs = kind_of(workload), kind_of(workload).pod_specs(workload)
    owner = kind.reference(workload)
    priority = kind.priority(workload, class_values=class_values)
    hints = dict.fromkeys(one for spec in specs for one in _ignored(spec))
    common = WorkloadFacts(
        priority=priority.value,
        is_priority_granted=priority.is_granted,
        depends_on=tuple(edge.to_json() for edge in wishes.depends_on),
        ignored=[*hints, *kind.disregarded(workload)],
        owner=None if owner is None else owner.to_json(),
        has_affinity=any(map(has_required_affinity, specs)),
        is_gathered=not kind.has_object,
        is_suspendable=kind.can_be_suspended,
        restarts_on_loss=wishes.restarts_on_loss and kind.can_be_suspended,
        start_timeout_s=wishes.start_timeout_s,
        provision=wishes.provision,
        grace_s=max(map(pods.grace_s, specs), default=0),
        is_limited=kind.deadline_s(workload) is not None,
    )
    return kind.facts(workload, common)


def _ignored(spec: Object) -> Sequence[str]:
    """Return the parts of a pod spec that are not considered, or nothing if it is defective."""
    try:
        return ignored(spec)
    except Exception as error:  # noqa: BLE001  a failed hint must not hide the workload
        logger.warning("pod spec cannot be read", extra={"error": str(error)})
        return ()


class WorkloadReader:
    """Makes observations, and reads the requests of a workload only when they have changed.

    Parameters
    ----------
    complete : returns a workload with its pods as admission completes them.
    are_pods_changed : tells whether webhooks of others may change its pods in addition.
    """

    def __init__(
        self,
        site: Site,
        complete: Callable[[Object], Object] = lambda one: one,
        are_pods_changed: Callable[[], bool] = lambda: False,
    ) -> None:
        self._site, self._complete = site, complete
        self._are_pods_changed = are_pods_changed
        self._asked: dict[str, tuple[Any, WorkloadSeen]] = {}
        self._recalled: dict[str, Past] = {}
        self._unsure: set[str] = set()
        self.sizes = LearnedSizes()
        """What pods ask for beyond their templates."""

    def see(
        self,
        workload: Object,
        its_pods: Sequence[Object],
        flux_uid: str | None,
        class_values: Mapping[str, int],
    ) -> WorkloadSeen:
        """Return the observation of ``see_workload``, or else of ``see_spoilt``.

        Raises
        ------
        InvalidInput
            The object cannot be turned into a request, and never could.
        """
        uid = workload["metadata"]["uid"]
        written = workload
        workload, growth = self._at_its_size(self._complete(workload), its_pods)
        asks = (kind_of(workload).asks(workload), dict(class_values))
        known = self._asked.get(uid)
        # Only the progress has changed: reading the requests again would be wasted work.
        if known is not None and known[0] == asks:
            held_by = _held_by(workload, has_hold=known[1].has_hold)
            old = replace(known[1], growth=growth, flux_uid=flux_uid, held_by=held_by)
            old = see_progress(old, workload, its_pods, gather_s=self._site.gather_s)
            return self._safely(workload, its_pods, old)
        seen = replace(self._read(workload, its_pods, flux_uid, class_values), growth=growth)
        if workload is not written:
            seen = replace(seen, authored=self._authored(written))
        # Not cached while unsure: the past may still replace what could not be read.
        if uid not in self._unsure:
            self._asked[uid] = asks, seen
        return self._safely(workload, its_pods, seen)

    def _authored(self, written: Object) -> Mapping[str, Any] | None:
        """Return the request of a workload without what the cluster adds to it."""
        kind = kind_of(written)
        try:
            return render(kind.to_request(kind.as_written(written), site=self._site))
        except Exception as error:  # noqa: BLE001  ``_read`` has reported it
            logger.info("request is not compared", extra={"error": str(error)})
            return None

    def _safely(
        self, workload: Object, its_pods: Sequence[Object], seen: WorkloadSeen
    ) -> WorkloadSeen:
        """Return an observation that permits the release in the template only where it is safe.

        Pods without a gate are bound before their size is compared with their slot.
        """
        is_waiting = seen.facts.is_suspended and not its_pods
        can_be = seen.facts.is_pinnable or seen.facts.is_placeable
        if not (can_be and is_waiting and self._are_pods_changed()) or self.sizes.knows(workload):
            return seen
        return replace(seen, facts=replace(seen.facts, is_pinnable=False, is_placeable=False))

    def _at_its_size(self, workload: Object, its_pods: Sequence[Object]) -> tuple[Object, str]:
        """Return the workload as its pods ask for it, and what they ask for in addition.

        The second is empty if a pod of it is bound: what that pod uses counts where it is.
        """
        # Pods of other kinds are read themselves, or their templates are in several objects.
        if kind_of(workload) is not BATCH_JOB:
            return workload, ""
        try:
            self.sizes.learn(workload, its_pods, keeps_equal=self._are_pods_changed())
            extra = self.sizes.of(workload)
        except Exception as error:  # noqa: BLE001  what cannot be read is reported by ``_read``
            logger.info("template is not compared", extra={"error": str(error)})
            return workload, ""
        is_bound = any((pod.get("spec") or {}).get("nodeName") for pod in its_pods)
        growth = describe(dict(extra)) if extra and its_pods and not is_bound else ""
        return with_extra(workload, extra), growth

    def _read(
        self,
        workload: Object,
        its_pods: Sequence[Object],
        flux_uid: str | None,
        class_values: Mapping[str, int],
    ) -> WorkloadSeen:
        uid = workload["metadata"]["uid"]
        try:
            return see_workload(
                workload, its_pods, flux_uid=flux_uid, class_values=class_values, site=self._site
            )
        except Exception as error:  # noqa: BLE001  ``see_spoilt`` finds the faults
            logger.info("workload is spoilt", extra={"uid": uid, "error": str(error)})
        past = self._past(uid)
        # Without its past, a default could overwrite a good value. The caller recalls it and
        # repeats.
        if past is None:
            self._unsure.add(uid)
        return see_spoilt(
            workload,
            its_pods,
            past or Past(),
            flux_uid=flux_uid,
            class_values=class_values,
            site=self._site,
        )

    def _past(self, uid: str) -> Past | None:
        """Return what a workload said before.

        None if this process has not seen it and it has not been recalled.
        """
        known = self._asked.get(uid)
        if known is None:
            return self._recalled.get(uid)
        seen = known[1]
        size, facts = seen.size - seen.facts.missing, seen.facts
        return Past(facts.said, LastRequest(seen.request, size, seen.duration_s, facts.further))

    @property
    def is_unsure(self) -> bool:
        """Return whether the past of a workload must be recalled."""
        return bool(self._unsure)

    def take_unsure(self) -> set[str]:
        """Return, once, the UIDs of unreadable workloads that need ``recall``."""
        # Cleared first: a workload seen while the recall runs must be recalled in the next round.
        unsure, self._unsure = self._unsure, set()
        return unsure

    def recall(self, uids: Iterable[str], found: Mapping[str, Past]) -> None:
        """Store what rows and FluxJobs say of workloads that this process never read well."""
        for uid in uids:
            self._recalled[uid] = found.get(uid, Past())

    def forget(self, uid: str) -> None:
        """Drop a workload that is gone."""
        self._asked.pop(uid, None)
        self._recalled.pop(uid, None)
        self._unsure.discard(uid)


def is_news(old: Object, new: Object) -> bool:
    """Return whether a change of a workload affects its row."""
    kind = kind_of(new)
    return kind.news(old) != kind.news(new)


def is_pod_news(old: Object, new: Object) -> bool:
    """Return whether a change of a managed pod affects a row."""
    if observed_pod.pod_fact(old) != observed_pod.pod_fact(new):
        return True
    # A member of a group carries values of the group.
    return read_mark(new) is not None and BARE_POD.news(old) != BARE_POD.news(new)


def _held_by(workload: Object, *, has_hold: bool) -> str | None:
    """Return how the author holds the workload, or None."""
    is_suspended = kind_of(workload).is_author_suspended(workload)
    return AUTHOR if is_suspended or has_hold else None
