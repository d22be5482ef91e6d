"""Groups of pods as the controller follows them: which pods are of which, and since when.

Part of ``marking``. A group has no object: it begins with the first pod that admission marked as a
member, is known by a UID made from that pod's, and ends with the last that may run; a name that is
used again is another group. Who was a member when this process began, rows and FluxJobs tell
(``know``). A group is its user's: pods of somebody else join it only if its own pods name him
(``labels.GROUP_USERS``); else they are a group by themselves, of that name, and gain nothing.

What makes pods and is held by its suspension (``hold``) is followed like a group, though its object
is there before its pods, and stands for it.

Pods that something else makes are the group of their topmost owner (``owners``). It starts with as
many as that says it is to have; where nobody can tell, with those that come within the *arrival
window*: until none has come for a while. Those that come later grow it.
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
from fluxqueue.db.life.observations import KnownGroup
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import FLUXJOBS
from fluxqueue.objects import Object
from fluxqueue.workload import labels
from fluxqueue.workload.fluxjob_name import name_for
from fluxqueue.workload.groups import Membership, read_mark, read_users
from fluxqueue.workload.kinds.pod_group import POD_GROUP, assemble, slot_kind
from fluxqueue.workload.kinds.suspended_owner import slots_of_member
from fluxqueue.workload.pods import controller_owner, has_ended, pod_fact

logger = logging.getLogger(__name__)

_NAMESPACE = uuid.UUID("6f2a3c9e-7b1d-4f0e-9a35-0c7f5f1e2b44")


WINDOWS_MAX = 10
"""Arrival windows one after the other, before a group starts though pods go on coming."""


@dataclass(slots=True)
class _Group:
    """One group while it lasts. ``live``: members that have not ended; ``makers``: how many members
    each of their controllers has made, by UID. ``of``: what its FluxJob's name ends in, where an
    ``owner`` makes its pods; ``arrived``: how many there were when its arrival window closed, which
    was opened at ``opens_s`` and is open until ``closes_s``. ``held``: the object that stands for
    it, where it was held by its suspension; empty where that is gone, and pods of it are left.
    ``version``: that of the pod by which it was found, for the order of those of one second.
    ``left``: members that had ended before they went; ``gone_jobs``: BatchJobs that made members,
    as they were seen last. Both may tell how the group ended.
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
        """Count a further pod's word of its size: who disagree get the larger one."""
        if membership.minimum is not None:
            self.minimum = max(self.minimum or 0, membership.minimum)
        is_first = not self.members
        if is_first or (self.maximum is not None and membership.maximum is None):
            self.maximum = membership.maximum
        elif self.maximum is not None and membership.maximum is not None:
            self.maximum = max(self.maximum, membership.maximum)


class Groups:
    """The groups that there are.

    Parameters
    ----------
    find_job : gives a BatchJob by its UID, if it is there.
    declared : what the PodGroup object of a namespace and name says, if there is one.
    top : gives the topmost owner of a pod that something else makes; None until it is known.
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
        """Take in groups of before this process, oldest first; of a name the last one counts."""
        for one in known:
            if one.uid in self._groups:
                continue
            of = one.fluxjob.rpartition("-")[2]
            of = "" if of == POD_GROUP.suffix else of
            found = _Group(one.uid, one.namespace, one.name, one.user, one.fluxjob, one.created, of)
            found.arrived = one.size
            self._add(found)
            self._of_pod.update(dict.fromkeys(one.pods, one.uid))

    def hold(self, uid: str, owner: Object | None) -> None:
        """What makes pods and is held by its suspension is as given; None: it is gone."""
        group = self._groups.get(uid)
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
        """UID of the group that ``pod`` is of; None where admission marked it for none.

        Founds a group, if there is none that it may join.
        """
        uid = pod["metadata"]["uid"]
        if uid in self._of_pod:
            return self._of_pod[uid]
        membership = read_mark(pod)
        if membership is None or _is_of_nobody(pod):
            return None
        owner = self._top(pod) if membership.of else None
        if membership.of and owner is None:
            return None
        if owner is not None and owner.uid in self._groups:
            self._of_pod[uid] = owner.uid
            return owner.uid
        name = membership.name if owner is None else owner.name
        group = self._find(pod, name, owner)
        if group is None:
            if pod_fact(pod).is_terminal:
                return None  # of a group that nobody remembers
            group = self._found(pod, name, owner)
        self._of_pod[uid] = group.uid
        return group.uid

    def keep(self, uid: str, pod: Object) -> None:
        """A pod of the group ``uid`` is as given."""
        group, pod_uid = self._groups[uid], pod["metadata"]["uid"]
        (group.live.discard if pod_fact(pod).is_terminal else group.live.add)(pod_uid)
        if pod_uid not in group.members:
            membership = read_mark(pod)
            if membership is not None:
                group.take(membership)
            self._extend_window(group)
            group.slot_kinds[pod_uid] = (
                slots_of_member(group.held, pod) if group.held else (slot_kind(pod))
            )
            if _user(pod) == group.user:
                group.users |= read_users(pod)
            owner = controller_owner(pod)
            if owner is not None:
                group.makers[owner["uid"]] += 1
                self._of_job.setdefault(owner["uid"], set()).add(uid)
        group.members[pod_uid] = pod
        if group.of and group.owner is None:
            group.owner = self._top(pod)

    def _extend_window(self, group: _Group) -> None:
        if group.of and group.arrived is None:
            now_s = self._clock.monotonic_s()
            if group.opens_s is None:
                group.opens_s = now_s
            latest_s = group.opens_s + WINDOWS_MAX * self._window_s
            group.closes_s = min(now_s + self._window_s, latest_s)

    def look(self, pod: Object) -> str | None:
        """What is known of a pod's owner has changed: UID of its group, if it is in one."""
        uid = self._of_pod.get(pod["metadata"]["uid"])
        group = self._groups.get(uid or "")
        if group is not None and group.of:
            group.owner = self._top(pod) or group.owner
        return uid

    def gathering(self, uid: str) -> tuple[Owner, Object] | None:
        """The owner of a group that waits for as many pods as it says, and one of them."""
        group = self._groups.get(uid)
        if group is None or group.owner is None or group.arrived is not None:
            return None
        pod = next(iter(group.members.values()), None)
        is_short = group.owner.size is not None and len(group.members) < group.owner.size
        return (group.owner, pod) if pod is not None and is_short else None

    def closes_in_s(self, uid: str) -> float | None:
        """Seconds until the arrival window of a group closes; None where none is open."""
        group = self._groups.get(uid)
        if group is None or not self._is_arriving(group):
            return None
        return max(0.0, group.closes_s - self._clock.monotonic_s())

    def _is_arriving(self, group: _Group) -> bool:
        """Whether nobody can tell how many pods there will be, and more may be on their way."""
        if not group.of or group.arrived is not None or group.minimum is not None:
            return False
        return group.owner is None or group.owner.size is None

    def forget(self, pod_uid: str) -> None:
        """A pod is gone; with its last pod a group is."""
        uid = self._of_pod.pop(pod_uid, None)
        group = self._groups.get(uid or "")
        if group is None:
            return
        pod = group.members.pop(pod_uid, None)
        if pod is not None and has_ended(pod) and len(group.left) < LEFT_MAX:
            group.left[pod_uid] = pod
        group.slot_kinds.pop(pod_uid, None)
        group.live.discard(pod_uid)
        owner = None if pod is None else controller_owner(pod)
        if owner is not None:
            group.makers[owner["uid"]] -= 1
        if pod is not None:
            self._drop_if_empty(group)

    def listed(self) -> None:
        """All pods have been listed: what is known of others is of pods that went unseen."""
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
        """A BatchJob is gone, and was last seen as given."""
        for uid in self.of_job(job["metadata"]["uid"]):
            self._groups[uid].gone_jobs[job["metadata"]["uid"]] = job

    def of_job(self, job_uid: str) -> list[str]:
        """UIDs of the groups that pods of a BatchJob are of."""
        return sorted(self._of_job.get(job_uid, ()))

    def named(self, namespace: str, name: str) -> list[str]:
        """UIDs of the groups of a name."""
        return list(self._named.get((namespace, name), ()))

    def declared_by(self, namespace: str, name: str) -> list[str]:
        """UIDs of the groups that the PodGroup of a name speaks of."""
        return [
            uid
            for (where, one), uids in self._named.items()
            if where == namespace and name in {one, one.rpartition(".")[0]}
            for uid in uids
        ]

    def object(self, uid: str) -> dict[str, Any] | None:
        """What stands for a group now; None where no pod of it is left."""
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
            "note": self._note(group),
        }
        if group.of:
            spec |= self._least(group)
        return assemble(
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
        )

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
        """BatchJobs that have made pods of it."""
        makers = sorted(+group.makers)
        return {one: job for one in makers for job in [self._find_job(one)] if job is not None}

    def _least(self, group: _Group) -> dict[str, Any]:
        """How many pods of an owner start at once, and whether more of those are to come."""
        said = group.minimum or (None if group.owner is None else group.owner.size)
        there = sum(not pod_fact(pod).is_terminal for pod in group.members.values())
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
        """Whose else there are groups of this name: pods that were meant to join stay out."""
        others = sorted(one.user or "nobody known" for one in self._others(group))
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
        """The group that goes on and that a pod may join; one that has ended counts for its own
        ended pods. One of its user goes before those whose pods let him in: nobody draws another's
        pods away from what is his.
        """
        user, of = _user(pod), _suffix(owner)
        named = [
            self._groups[uid] for uid in reversed(self.named(pod["metadata"]["namespace"], name))
        ]
        for group in sorted(named, key=lambda one: one.user != user):
            is_its = group.owner is None or owner is None or group.owner.uid == owner.uid
            if group.of != of or not is_its:
                continue
            if group.user != user and user not in group.users:
                continue
            is_known = not group.members  # of before this process: its pods are still being listed
            if is_known or pod_fact(pod).is_terminal or not _is_over(self, group):
                return group
        return None

    def _found(self, pod: Object, name: str, owner: Owner | None) -> _Group:
        meta, of = pod["metadata"], _suffix(owner)
        uid = str(uuid.uuid5(_NAMESPACE, f"{meta['namespace']}/{name}/{meta['uid']}"))
        # Also one that has ended keeps its FluxJob as long as pods of it are there.
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
    return stands is None or POD_GROUP.fact(stands).result is not None


def _suffix(owner: Owner | None) -> str:
    return "" if owner is None else owner.kind.lower()


def _user(pod: Object) -> str:
    """Who made a pod, as admission wrote it down."""
    return str((pod["metadata"].get("annotations") or {}).get(labels.USER, ""))


def _is_of_nobody(pod: Object) -> bool:
    """Whether nobody held it: it was let go before it was known to us as a member, or it opted out,
    and its author wrote the mark.
    """
    fact, marks = pod_fact(pod), pod["metadata"].get("labels") or {}
    return marks.get(labels.MANAGED) == "false" or (
        not fact.is_gated and not fact.is_terminal and labels.JOBID not in marks
    )


async def list_groups(client: KubeClient) -> list[KnownGroup]:
    """Groups as their FluxJobs tell of them, oldest first.

    Raises
    ------
    ApiUnavailable, ApiError
        They cannot be listed.
    """
    found, _ = await client.collect(
        FLUXJOBS, keep=_published_safely, label_selector=f"{labels.WITHOUT_OBJECT}=true"
    )
    return sorted((one for one in found if one is not None), key=lambda one: one.created)


def _published_safely(fluxjob: Object) -> KnownGroup | None:
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
    """With how many pods it was complete; None where it gathers."""
    is_complete = state not in {None, "Gathering"} and isinstance(size, int)
    return size if is_complete else None
