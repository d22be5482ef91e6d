"""Track groups of pods: which pods belong to which group, and since when.

Part of ``event_router``. A group has no object of its own. It begins with the first pod that
admission marked as a member, and its UID is made from the UID of that pod. It ends with the last
pod that may run. A name that is used again is another group. Rows and FluxJobs show which pods were
members before this process began (``know``).

A group belongs to its user. Pods of another user join it only if its own pods name that user
(``labels.GROUP_USERS``). Otherwise they form a separate group of that name and gain nothing.

An object that makes pods and is held by its suspension (``hold``) is tracked like a group. Its
object exists before its pods, and represents it.

Pods that another object makes form the group of their topmost owner (``owners``). The group starts
with the number of pods that the owner declares. If that number is unknown, it starts with the pods
that come within the *arrival window*, which ends when no pod has come for a while. Later pods grow
the group.
"""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from fluxqueue.clock import Clock
from fluxqueue.controller.observing.owners import Owner
from fluxqueue.controller.observing.pod_groups import Declared
from fluxqueue.controller.observing.workloads import LEFT_MAX
from fluxqueue.db.store.known import KnownGroup
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import FLUXJOBS
from fluxqueue.workload import labels
from fluxqueue.workload.fluxjob_name import name_for
from fluxqueue.workload.groups import POD, Membership, is_driver, read_mark, read_users
from fluxqueue.workload.kinds.pod_group import POD_GROUP, Assembly, slots_beside
from fluxqueue.workload.kinds.suspended_owner import slots_of_member
from fluxqueue.workload.objects import Object
from fluxqueue.workload.observed_pod import has_ended, pod_fact
from fluxqueue.workload.pods import controller_owner

logger = logging.getLogger(__name__)

_NAMESPACE = uuid.UUID("6f2a3c9e-7b1d-4f0e-9a35-0c7f5f1e2b44")


WINDOWS_MAX = 10
"""Consecutive arrival windows before a group starts although pods still arrive."""


@dataclass(slots=True)
class _Group:
    """One group while it lasts.

    ``live`` holds the members that have not ended. ``makers`` counts the members of each
    controller, by its UID. ``of`` is the suffix of the FluxJob's name if an ``owner`` makes its
    pods. ``version`` is the resourceVersion of its first pod. It orders groups that were created in
    the same second.

    ``arrived`` is the number of pods when the arrival window closed. The window opened at
    ``opens_s`` and stays open until ``closes_s``.

    ``held`` is the object of a group that is held by its suspension. It is empty if that object is
    gone and pods of it are left.

    ``left`` holds members that had ended before they went, or have no owner. ``gone_jobs`` holds
    BatchJobs that made members, as they were seen last. Both may show how the group ended.
    """

    uid: str
    namespace: str
    name: str
    user: str
    fluxjob: str
    created: str
    of: str = ""
    version: str = ""
    members: dict[str, Object] = field(default_factory=dict)
    slot_kinds: dict[str, str] = field(default_factory=dict)
    users: frozenset[str] = frozenset()
    minimum: int | None = None
    maximum: int | None = None
    live: set[str] = field(default_factory=set)
    left: dict[str, Object] = field(default_factory=dict)
    gone_jobs: dict[str, Object] = field(default_factory=dict)
    makers: Counter[str] = field(default_factory=Counter)
    owner: Owner | None = None
    arrived: int | None = None
    opens_s: float | None = None
    closes_s: float = 0.0
    held: Object | None = None

    def take(self, membership: Membership) -> None:
        """Apply the size that a further pod gives. If pods disagree, the larger size counts."""
        if membership.minimum is not None:
            self.minimum = max(self.minimum or 0, membership.minimum)
        is_first = not self.members
        if is_first or (self.maximum is not None and membership.maximum is None):
            self.maximum = membership.maximum
        elif self.maximum is not None and membership.maximum is not None:
            self.maximum = max(self.maximum, membership.maximum)


class Groups:
    """All groups that exist.

    Parameters
    ----------
    find_job : returns a BatchJob by its UID, if it exists.
    declared : returns what the PodGroup object of a namespace and name declares, if there is one.
    top : returns the topmost owner of a pod that another object makes, or None until it is known.
    window_s : the arrival window (seconds).
    """

    def __init__(
        self,
        find_job: Callable[[str], Object | None],
        declared: Callable[[str, str], Declared | None],
        *,
        top: Callable[[Object], Owner | None],
        clock: Clock,
        window_s: float,
    ) -> None:
        self._find_job, self._declared, self._top = find_job, declared, top
        self._clock, self._window_s = clock, window_s
        self._groups: dict[str, _Group] = {}
        self._named: dict[tuple[str, str], list[str]] = {}
        self._of_pod: dict[str, str] = {}
        self._of_job: dict[str, set[str]] = {}

    def know(self, known: Iterable[KnownGroup]) -> None:
        """Add groups from before this process, oldest first. Of one name, the last group counts."""
        for one in known:
            if one.uid in self._groups:
                continue
            of = one.fluxjob.rpartition("-")[2]
            of = "" if of == POD_GROUP.suffix else of
            found = _Group(one.uid, one.namespace, one.name, one.user, one.fluxjob, one.created, of)
            # The group was complete before: without its size it would gather again.
            found.arrived = one.size
            self._add(found)
            self._of_pod.update(dict.fromkeys(one.pods, one.uid))

    def hold(self, uid: str, owner: Object | None) -> None:
        """Store an object that makes pods and is held by its suspension. None: it is gone."""
        group = self._groups.get(uid)
        # Pods may outlive the object: keep the group, without its object, until the last pod is
        # gone.
        if owner is None:
            if group is not None and group.held is not None:
                group.held = {}
                self._drop_if_empty(group)
            return
        if group is None:
            meta = owner["metadata"]
            at = (meta["namespace"], meta["name"], "", "", meta["creationTimestamp"])
            group = self._groups[uid] = _Group(uid, *at)
        group.held = owner
        for pod_uid, pod in group.members.items():
            group.slot_kinds[pod_uid] = slots_of_member(owner, pod)

    def place(self, pod: Object) -> str | None:
        """Return the UID of the group of ``pod``, or None if admission marked it for none.

        If the pod may join no existing group, it founds one.
        """
        uid = pod["metadata"]["uid"]
        # First: a pod stays in its group even if its mark or its owner changes later.
        if uid in self._of_pod:
            return self._of_pod[uid]
        membership = read_mark(pod)
        if membership is None or _is_of_nobody(pod):
            return None
        owner = self._maker(pod) if membership.of else None
        # Not placed yet: a group founded before the owner is known would never be merged with it.
        if membership.of and owner is None:
            return None
        if owner is not None and owner.uid in self._groups:
            self._of_pod[uid] = owner.uid
            return owner.uid
        name = membership.name if owner is None else owner.name
        group = self._find(pod, name, owner)
        if group is None:
            if pod_fact(pod).is_terminal:
                return None  # its group is no longer known
            group = self._found(pod, name, owner)
        self._of_pod[uid] = group.uid
        return group.uid

    def keep(self, uid: str, pod: Object) -> None:
        """Store a pod of the group ``uid``."""
        group, pod_uid = self._groups[uid], pod["metadata"]["uid"]
        (group.live.discard if pod_fact(pod).is_terminal else group.live.add)(pod_uid)
        if pod_uid not in group.members:
            membership = read_mark(pod)
            if membership is not None:
                group.take(membership)
            self._extend_window(group)
            members = {**group.members, pod_uid: pod}
            # A driver decides which slots its followers need, also if they were seen before it.
            for one in members.values() if is_driver(pod) else (pod,):
                group.slot_kinds[one["metadata"]["uid"]] = (
                    slots_of_member(group.held, one) if group.held else slots_beside(members, one)
                )
            # Only the group's own user may admit other users: a guest pod must not admit more of
            # them.
            if _user(pod) == group.user:
                group.users |= read_users(pod)
            owner = controller_owner(pod)
            if owner is not None:
                group.makers[owner["uid"]] += 1
                self._of_job.setdefault(owner["uid"], set()).add(uid)
        group.members[pod_uid] = pod
        # Without its owner, the size of the group stays unknown and it waits for the whole window.
        if group.of and group.owner is None:
            group.owner = self._maker(pod)

    def _maker(self, pod: Object) -> Owner | None:
        """Return the topmost owner of a pod, or None until it is known. A driver is its own."""
        meta, mark = pod["metadata"], read_mark(pod)
        if controller_owner(pod) is None and mark is not None and mark.of == POD:
            return Owner("v1", POD, meta["name"], meta["uid"])
        return self._top(pod)

    def _extend_window(self, group: _Group) -> None:
        if group.of and group.arrived is None:
            now_s = self._clock.monotonic_s()
            if group.opens_s is None:
                group.opens_s = now_s
            # Bounded: otherwise a steady flow of pods would keep the window open for ever.
            latest_s = group.opens_s + WINDOWS_MAX * self._window_s
            group.closes_s = min(now_s + self._window_s, latest_s)

    def look(self, pod: Object) -> str | None:
        """Update the owner of a pod's group. Return the UID of the group, if the pod is in one."""
        uid = self._of_pod.get(pod["metadata"]["uid"])
        group = self._groups.get(uid or "")
        if group is not None and group.of:
            group.owner = self._maker(pod) or group.owner
        return uid

    def gathering(self, uid: str) -> tuple[Owner, Object] | None:
        """Return owner and one pod of a group that waits for as many pods as the owner declares."""
        group = self._groups.get(uid)
        if group is None or group.owner is None or group.arrived is not None:
            return None
        pod = next(iter(group.members.values()), None)
        is_short = group.owner.size is not None and len(group.members) < group.owner.size
        return (group.owner, pod) if pod is not None and is_short else None

    def closes_in_s(self, uid: str) -> float | None:
        """Return the seconds until the arrival window of a group closes, or None."""
        group = self._groups.get(uid)
        if group is None or not self._is_arriving(group):
            return None
        return max(0.0, group.closes_s - self._clock.monotonic_s())

    def _is_arriving(self, group: _Group) -> bool:
        """Return whether the number of pods is unknown and more of them may arrive."""
        if not group.of or group.arrived is not None or group.minimum is not None:
            return False
        return group.owner is None or group.owner.size is None

    def forget(self, pod_uid: str) -> None:
        """Drop a pod that is gone, and its group with the last pod."""
        uid = self._of_pod.pop(pod_uid, None)
        group = self._groups.get(uid or "")
        if group is None:
            return
        pod = group.members.pop(pod_uid, None)
        owner = None if pod is None else controller_owner(pod)
        # An ended pod may be the only evidence of how the group ended. A pod that nothing replaces
        # shows that the group was deleted before its end.
        is_evidence = pod is not None and (has_ended(pod) or owner is None)
        if pod is not None and is_evidence and len(group.left) < LEFT_MAX:
            group.left[pod_uid] = pod
        group.slot_kinds.pop(pod_uid, None)
        group.live.discard(pod_uid)
        if owner is not None:
            group.makers[owner["uid"]] -= 1
        if pod is not None:
            self._drop_if_empty(group)

    def listed(self) -> None:
        """Drop all known pods that the complete list did not contain, and the groups left empty."""
        # Pods that went unseen: nothing else would ever remove them or their groups.
        self._of_pod = {
            pod: uid
            for pod, uid in self._of_pod.items()
            if uid in self._groups and pod in self._groups[uid].members
        }
        for group in list(self._groups.values()):
            self._drop_if_empty(group)

    def __contains__(self, uid: object) -> bool:
        return uid in self._groups

    def lose_job(self, job: Object) -> None:
        """Keep the last seen state of a BatchJob that is gone."""
        for uid in self.of_job(job["metadata"]["uid"]):
            self._groups[uid].gone_jobs[job["metadata"]["uid"]] = job

    def of_job(self, job_uid: str) -> list[str]:
        """Return the UIDs of the groups that pods of a BatchJob belong to."""
        return sorted(self._of_job.get(job_uid, ()))

    def named(self, namespace: str, name: str) -> list[str]:
        """Return the UIDs of the groups with a name."""
        return list(self._named.get((namespace, name), ()))

    def declared_by(self, namespace: str, name: str) -> list[str]:
        """Return the UIDs of the groups to which the PodGroup of a name applies."""
        return [
            uid
            for (where, one), uids in self._named.items()
            if where == namespace and name in {one, one.rpartition(".")[0]}
            for uid in uids
        ]

    def object(self, uid: str) -> dict[str, Any] | None:
        """Return the object that represents a group now, or None if no pod of it is left."""
        group = self._groups.get(uid)
        if group is not None and group.held is not None:
            return self._owner(group) if group.held else None
        if group is None or not group.members:
            return None
        declared = None if group.of else self._declared(group.namespace, group.name)
        spec = {
            "minimum": group.minimum if declared is None or group.minimum else declared.minimum,
            "maximum": group.maximum,
            "patience_s": None if declared is None else declared.patience_s,
            "within": None if declared is None else declared.within,
            "priority": None if declared is None else declared.priority,
            "priorityClassName": None if declared is None else declared.priority_class,
            # What names a group of ours may combine all parts of a CompositePodGroup.
            "parent": None if declared is None or group.minimum else declared.parent,
            "note": self._note(group),
        }
        if group.of:
            spec |= self._least(group)
        return Assembly(
            uid=uid,
            name=group.name,
            fluxjob=group.fluxjob,
            namespace=group.namespace,
            user=group.user,
            created=group.created,
            version=group.version,
            made_by=None if group.owner is None else group.owner.reference(),
            spec=spec,
            members=group.members,
            slot_kinds=group.slot_kinds,
            jobs=self._jobs(group),
            left=group.left,
            gone_jobs=group.gone_jobs,
        ).assemble()

    def _owner(self, group: _Group) -> dict[str, Any]:
        assert group.held is not None, "asked of those that are held"
        return {
            **group.held,
            "members": group.members,
            "slotKinds": group.slot_kinds,
            "jobs": self._jobs(group),
            "left": group.left,
        }

    def _jobs(self, group: _Group) -> dict[str, Object]:
        """Return the BatchJobs that made pods of the group."""
        makers = sorted(+group.makers)
        return {one: job for one in makers for job in [self._find_job(one)] if job is not None}

    def _least(self, group: _Group) -> dict[str, Any]:
        """Return how many pods of an owner start at once, and whether more of those are to come."""
        said = group.minimum or (None if group.owner is None else group.owner.size)
        there = sum(not pod_fact(pod).is_terminal for pod in group.members.values())
        # Decided once: the size must not change again when members end.
        if group.arrived is None:
            if said is not None:
                group.arrived = said if there >= said else None
            elif self._clock.monotonic_s() >= group.closes_s:
                group.arrived = there
        is_complete = group.arrived is not None
        return {
            "minimum": group.arrived if is_complete else said,
            "complete": is_complete,
            "arriving_s": None if is_complete or said is not None else self._window_s,
        }

    def _note(self, group: _Group) -> str:
        """Describe the groups of other users with this name, which pods were meant to join."""
        others = sorted(one.user or "an unknown user" for one in self._others(group))
        if not others:
            return ""
        allow = f"to join them, their pods must name this user in {labels.GROUP_USERS}"
        return f"another group of this name is of {', '.join(others)} ({allow})"

    def _others(self, group: _Group) -> Iterator[_Group]:
        for uid in self._named.get((group.namespace, group.name), ()):
            other = self._groups[uid]
            is_namesake = other.of == group.of and other.user != group.user
            if is_namesake and other.members and not _is_over(self, other):
                yield other

    def _find(self, pod: Object, name: str, owner: Owner | None) -> _Group | None:
        """Return the active group that a pod may join. Pods that ended also match an ended group.

        Groups of the pod's own user come before groups of users that admit it. Thereby, another
        user cannot draw pods away from the user's own group.
        """
        user, of = _user(pod), _suffix(owner)
        named = [
            self._groups[uid] for uid in reversed(self.named(pod["metadata"]["namespace"], name))
        ]
        # The sort is stable: the newest group of the user first, then the newest of other users.
        for group in sorted(named, key=lambda one: one.user != user):
            is_its = group.owner is None or owner is None or group.owner.uid == owner.uid
            if group.of != of or not is_its:
                continue
            if group.user != user and user not in group.users:
                continue
            is_known = not group.members  # of an earlier process: its pods are being listed
            # An ended group admits no new pod: its FluxJob is final.
            if is_known or pod_fact(pod).is_terminal or not _is_over(self, group):
                return group
        return None

    def _found(self, pod: Object, name: str, owner: Owner | None) -> _Group:
        meta, of = pod["metadata"], _suffix(owner)
        uid = str(uuid.uuid5(_NAMESPACE, f"{meta['namespace']}/{name}/{meta['uid']}"))
        # An ended group keeps its FluxJob as long as its pods exist, so its name stays taken.
        is_taken = any(self._groups[one].of == of for one in self.named(meta["namespace"], name))
        told_apart = f"{name}-{uid[:8]}" if is_taken else name
        group = _Group(
            uid=uid,
            namespace=meta["namespace"],
            name=name,
            user=_user(pod),
            fluxjob=name_for(told_apart, of or POD_GROUP.suffix),
            of=of,
            owner=owner,
            created=meta.get("creationTimestamp") or "",
            version=meta.get("resourceVersion") or "",
        )
        self._add(group)
        return group

    def _add(self, group: _Group) -> None:
        self._groups[group.uid] = group
        self._named.setdefault((group.namespace, group.name), []).append(group.uid)

    def _drop_if_empty(self, group: _Group) -> None:
        if not group.members and not group.held:
            self._drop(group)

    def _drop(self, group: _Group) -> None:
        del self._groups[group.uid]
        if group.held is None:
            self._named[group.namespace, group.name].remove(group.uid)
        for job in [job for job, uids in self._of_job.items() if group.uid in uids]:
            self._of_job[job].discard(group.uid)
            if not self._of_job[job]:
                del self._of_job[job]


def _is_over(groups: Groups, group: _Group) -> bool:
    if group.live:
        return False
    stands = groups.object(group.uid)
    return stands is None or POD_GROUP.progress(stands).result is not None


def _suffix(owner: Owner | None) -> str:
    return "" if owner is None else owner.kind.lower()


def _user(pod: Object) -> str:
    """Return the user that created a pod, as recorded by admission."""
    return str((pod["metadata"].get("annotations") or {}).get(labels.USER, ""))


def _is_of_nobody(pod: Object) -> bool:
    """Return whether the pod was never held, so that its author wrote the mark.

    It was released before it was known as a member, or it opted out.
    """
    fact, marks = pod_fact(pod), pod["metadata"].get("labels") or {}
    return marks.get(labels.MANAGED) == "false" or (
        not fact.is_gated and not fact.is_terminal and labels.JOBID not in marks
    )


async def list_groups(client: KubeClient) -> list[KnownGroup]:
    """Return the groups that FluxJobs record, oldest first.

    Raises
    ------
    ApiUnavailable, ApiError
        They cannot be listed.
    """
    found, _ = await client.collect(
        FLUXJOBS, keep=_read_status_safely, label_selector=f"{labels.WITHOUT_OBJECT}=true"
    )
    return sorted((one for one in found if one is not None), key=lambda one: one.created)


def _read_status_safely(fluxjob: Object) -> KnownGroup | None:
    try:
        return _published(fluxjob)
    except Exception as error:  # noqa: BLE001  one FluxJob must not hide the groups of all others
        name = (fluxjob.get("metadata") or {}).get("name")
        logger.warning("FluxJob cannot be read", extra={"fluxjob": name, "error": str(error)})
        return None


def _published(fluxjob: Object) -> KnownGroup | None:
    meta, spec = fluxjob["metadata"], fluxjob.get("spec") or {}
    workload = spec.get("workload") or {}
    if not {"uid", "name"} <= workload.keys() or meta.get("deletionTimestamp"):
        return None
    return KnownGroup(
        uid=str(workload["uid"]),
        namespace=meta["namespace"],
        name=str(workload["name"]),
        fluxjob=meta["name"],
        user=str(spec.get("user") or ""),
        created=str(meta.get("creationTimestamp") or ""),
        flux_uid=str(meta["uid"]),
        size=_size((fluxjob.get("status") or {}).get("state"), spec.get("size")),
    )


def _size(state: Any, size: Any) -> int | None:
    """Return the number of pods with which the group was complete, or None while it gathers."""
    is_complete = state not in {None, "Gathering"} and isinstance(size, int)
    return size if is_complete else None
