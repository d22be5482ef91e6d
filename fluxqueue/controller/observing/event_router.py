"""Event router: turn informer events into dirty keys, which say what has to be written.

Part of ``observer``. The informers (``watches``) call it with each event. ``resync_schedule`` calls
it for each workload that lacks a FluxJob. It updates ``workloads``, assembles the groups of pods,
and has FluxJobs created (``fluxjob_creator``). It writes no row. It sends no request to the API
server itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any

from fluxqueue.clock import Clock
from fluxqueue.controller.observing.dirty_set import DirtyKind, DirtySet
from fluxqueue.controller.observing.fluxjob_creator import FluxJobCreator
from fluxqueue.controller.observing.group_assembly import Groups
from fluxqueue.controller.observing.owners import Owners
from fluxqueue.controller.observing.pod_groups import PodGroups
from fluxqueue.controller.observing.quarantine import FOREIGN, OWNER, WORKLOAD, Quarantine
from fluxqueue.controller.observing.read_workload import is_news, is_pod_news
from fluxqueue.controller.observing.unmanaged_pods import ForeignPods
from fluxqueue.controller.observing.workloads import Workloads
from fluxqueue.db.store.known import KnownGroup
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.informer import UNSEEN
from fluxqueue.process.pacing import ENDED_S, GATHER_S, LATER_S
from fluxqueue.workload.kinds.table import workload_uid
from fluxqueue.workload.managed import has_our_marks, is_taken_in
from fluxqueue.workload.node_object import node_fact
from fluxqueue.workload.objects import Object
from fluxqueue.workload.observed_pod import has_ended, pod_fact
from fluxqueue.workload.owner_kinds import OwnerKinds

ASK_OWNER_EVERY_S = 10.0
"""How often (seconds) the size of an owner is read again while its group lacks pods.

The owner may have been changed."""


class EventRouter:
    """Handles each event.

    Parameters
    ----------
    window_s : the arrival window (seconds) of a group of unknown size.
    """

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        owner_kinds: OwnerKinds,
        *,
        window_s: float,
        dirty: DirtySet,
        workloads: Workloads,
        creator: FluxJobCreator,
        quarantine: Quarantine,
    ) -> None:
        self._clock, self._dirty = clock, dirty
        self._workloads, self._creator, self._quarantine = workloads, creator, quarantine
        self.foreign = ForeignPods(self._find_foreign, self._on_foreign_trouble)
        self._pod_groups = PodGroups(client, clock, self._on_pod_group, quarantine.tell_of)
        self._owners = Owners(
            client,
            clock,
            owner_kinds,
            find=workloads.find,
            on_found=self._on_owner,
            on_trouble=self._on_owner_trouble,
        )
        self._groups = Groups(
            workloads.objects.get,
            self._pod_groups.find,
            top=self._owners.top,
            clock=clock,
            window_s=window_s,
        )
        self._alarms: dict[str, asyncio.TimerHandle] = {}

    def _on_foreign_trouble(self, uid: str, pod: Object | None, error: Exception | None) -> None:
        if error is None:
            self._quarantine.clear(FOREIGN, uid)
        else:
            self._quarantine.note(FOREIGN, uid, error, pod, type_of=("v1", "Pod"))

    def _on_owner_trouble(self, owner: Mapping[str, Any], namespace: str, error: Exception) -> None:
        at = {"namespace": namespace, "name": owner["name"], "uid": owner["uid"]}
        of = (owner["apiVersion"], owner["kind"])
        self._quarantine.note(OWNER, owner["uid"], error, {"metadata": at}, type_of=of)

    async def run(self) -> None:
        """Follow the PodGroup objects until cancelled."""
        await self._pod_groups.run()

    async def stop(self) -> None:
        """Cancel all timers and look-ups."""
        for alarm in self._alarms.values():
            alarm.cancel()
        await self._owners.stop()

    # --- workloads and their FluxJobs --------------------------------------------------------

    def mark_workload(self, uid: str, *, within_s: float = GATHER_S) -> None:
        """Mark a workload to be written if it is managed. Its FluxJob is created first."""
        flux_uids = self._workloads.flux_uids
        if flux_uids.get(uid) is not None:
            # A FluxJob exists: the row can be written at once.
            self._dirty.mark(DirtyKind.WORKLOAD, uid, within_s=within_s)
        elif self._workloads.find_unwrapped(uid) is not None:
            self._creator.want(uid)
        elif uid in flux_uids:
            self._dirty.mark(DirtyKind.WORKLOAD, uid, within_s=within_s)  # it is gone
        else:
            obj = self._workloads.objects.get(uid)
            if obj is not None and has_our_marks(obj):
                self._creator.tell_unvouched(uid, obj)

    def mark_touched(self, is_touched: Callable[[Object], bool]) -> None:
        """Mark all managed workloads that a change of their surroundings may touch."""
        for uid in self._workloads.flux_uids:
            workload = self._workloads.objects.get(uid)
            if workload is not None and is_touched(workload):
                self._dirty.mark(DirtyKind.WORKLOAD, uid, within_s=LATER_S)

    def on_fluxjob_made(self, uid: str, flux_uid: str, flux_version: str) -> None:
        """Handle the creation of a workload's FluxJob with that UID and resourceVersion."""
        self._workloads.wrap(uid, flux_uid, flux_version)
        # If nothing else is being wrapped, there is no batch to wait for.
        self._dirty.mark(
            DirtyKind.WORKLOAD, uid, within_s=GATHER_S if self._creator.has_more else 0.0
        )
        if uid in self._workloads.pods:
            self._mark_foreign(uid)  # a bare Pod was unmanaged until now

    def on_fluxjob_deleted(self, uid: str) -> None:
        """Handle the deletion of a FluxJob. It is created again while its workload exists."""
        if self._workloads.unwrap(uid):
            self.mark_workload(uid)

    def on_namespace(self, old: Object | None, new: Object | None) -> None:
        """Handle that a namespace is being deleted: all its workloads are, its pods perhaps first.

        Their controllers report the pods that are killed as failed.
        """
        found = new or old
        assert found is not None, "an informer tells of an object, old or new"
        ends_at = None if new is None else new["metadata"].get("deletionTimestamp")
        for uid in self._workloads.end_namespace(found["metadata"]["name"], ends_at):
            self.mark_workload(uid)
            for group in self._groups.of_job(uid):
                self._see_group(group)

    def on_job(self, old: Object | None, new: Object | None) -> None:
        """Handle the change of a BatchJob from ``old`` to ``new``."""
        uid = _uid(old, new)
        self._keep(uid, old, new)
        # Only now its namespace is known: pods that were kept with it may be from another.
        if old is None:
            self._part_with_strangers(uid)
        # Before the groups are assembled below: the last state may show how they ended.
        if new is None and old is not None:
            self._groups.lose_job(old)
        if _is_news(old, new):
            self.mark_workload(uid)
            for group in self._groups.of_job(uid):
                self._see_group(group)

    def is_awaited(self, uid: str) -> bool:
        """Return whether the end of a BatchJob matters to a managed workload or group."""
        return uid in self._workloads.flux_uids or bool(self._groups.of_job(uid))

    def on_suspended(self, old: Object | None, new: Object | None) -> None:
        """Handle the change of an object that makes pods and is held by its suspension."""
        uid = _uid(old, new)
        is_ours = new is not None and (uid in self._workloads.flux_uids or is_taken_in(new))
        # Before ``_keep``, which stores what the group makes of it.
        self._groups.hold(uid, new if is_ours else None)
        self._keep(uid, old, self._groups.object(uid))
        if _is_news(old, new):
            self.mark_workload(uid)

    # --- pods and nodes ----------------------------------------------------------------------

    def on_pod(self, old: Object | None, new: Object | None) -> None:
        """Handle the change of a pod, managed or not, from ``old`` to ``new``."""
        pod = new or old
        assert pod is not None, "an informer tells of an object, old or new"
        uid, workload = pod["metadata"]["uid"], self._workload_uid(pod)
        flux_uids = self._workloads.flux_uids
        # The workload of the old pod can differ only if its owners or its group have changed.
        before = workload if old is None or _is_as_owned(old, pod) else self._workload_uid(old)
        # Forget before keeping: the other order would drop the pod that was just kept.
        if new is None or before != workload:
            self._workloads.forget_pod(uid, before)
        if new is not None:
            self._workloads.keep_pod(uid, workload, new)
        if before != workload:
            # Its BatchJob was deleted and left it behind: it now runs as an unmanaged pod.
            self.mark_workload(before)
            self._mark_foreign(uid)
        if workload in self._groups:
            self._on_member(uid, workload, old, new)
        elif uid == workload and _is_workload(pod, flux_uids):
            self._on_bare_pod(uid, old if before == workload else None, new)
        elif workload in flux_uids:
            self._on_pod_of_ours(workload, old, new)
        # Last: whether the pod is managed depends on the steps above.
        if workload not in flux_uids and self.foreign.is_news(old, new, uid):
            self._mark_foreign(uid)

    def on_node(self, old: Object | None, new: Object | None) -> None:
        """Handle the change of a node from ``old`` to ``new``."""
        node = new or old
        assert node is not None, "an informer tells of an object, old or new"
        if old is None or new is None or _is_node_news(old, new):
            self.mark_node(node["metadata"]["name"])

    def mark_node(self, name: str) -> None:
        """Mark a node to be written."""
        self._dirty.mark(DirtyKind.NODE, name)

    def mark_queue(self, name: str) -> None:
        """Mark a queue to be written."""
        self._dirty.mark(DirtyKind.QUEUE, name)

    def mark_rule(self, kind: DirtyKind, name: str) -> None:
        """Mark a ResourceSharingPolicy or a FluxNodePool to be written."""
        self._dirty.mark(kind, name)

    def _workload_uid(self, pod: Object) -> str:
        uid = self._groups.place(pod) or workload_uid(pod)
        return uid if self._workloads.may_own(uid, pod) else str(pod["metadata"]["uid"])

    def _part_with_strangers(self, uid: str) -> None:
        """Detach pods of other namespaces that name a workload as their owner."""
        for pod in self._workloads.strangers(uid):
            self._workloads.forget_pod(pod["metadata"]["uid"], uid)
            self.on_pod(None, pod)

    def _keep(self, uid: str, old: Object | None, stands: Object | None) -> None:
        """Store the object of a workload, which was ``old``."""
        self._workloads.keep(uid, stands)
        if stands is None and old is not None and UNSEEN in old:
            self._workloads.lose_sight(uid)

    def _on_bare_pod(self, uid: str, old: Object | None, new: Object | None) -> None:
        self._keep(uid, old, new)
        if _is_news(old, new):
            self.mark_workload(uid)

    def _on_pod_of_ours(self, workload: str, old: Object | None, new: Object | None) -> None:
        if old is None or new is None or is_pod_news(old, new):
            self.mark_workload(workload, within_s=_awaited_within_s(old, new))

    def is_managed_pod(self, uid: str) -> bool:
        """Return whether a pod exists and is of a managed workload."""
        pod = self._workloads.pods.get(uid)
        return pod is not None and self._workload_uid(pod) in self._workloads.flux_uids

    def _find_foreign(self, uid: str) -> Object | None:
        """Return a pod if it exists and is unmanaged."""
        pod = self._workloads.pods.get(uid)
        is_ours = pod is not None and self._workload_uid(pod) in self._workloads.flux_uids
        return None if is_ours else pod

    def _mark_foreign(self, uid: str) -> None:
        # Unmanaged pods change all the time: write them in batches, not one by one.
        within_s = max(GATHER_S, self.foreign.due_s - self._clock.monotonic_s())
        self._dirty.mark(DirtyKind.FOREIGN, uid, within_s=within_s)

    # --- groups of pods ----------------------------------------------------------------------

    def know_groups(self, known: Iterable[KnownGroup]) -> None:
        """Add groups from before this process, before their pods are seen."""
        self._groups.know(known)

    async def end_listing(self, known: Iterable[KnownGroup]) -> None:
        """Drop groups that have no pods after all pods were listed.

        They are marked, so that their FluxJobs without owner are deleted too.
        """
        # First: a pod with an unknown owner is in no group yet, and its group would seem empty.
        await self._owners.settle()
        self._groups.listed()
        for one in known:
            if one.flux_uid is None:
                continue
            self._creator.know(one.uid, one.namespace, one.fluxjob, one.flux_uid)
            if one.uid not in self._groups:
                self._workloads.know({one.uid: one.flux_uid})
                self._dirty.mark(DirtyKind.WORKLOAD, one.uid)

    def _on_member(self, uid: str, group: str, old: Object | None, new: Object | None) -> None:
        if new is None:
            self._groups.forget(uid)
        else:
            self._groups.keep(group, new)
        if old is None or new is None or is_pod_news(old, new):
            self._see_group(group, within_s=_awaited_within_s(old, new))
        # Its end was missed, so how the group ended is uncertain.
        if new is None and old is not None and UNSEEN in old and not has_ended(old):
            self._workloads.lose_sight(group)

    def _see_group(self, uid: str, *, within_s: float = GATHER_S) -> None:
        """Assemble the object that represents a group again, and mark it to be written."""
        try:
            stands = self._groups.object(uid)
        except Exception as error:  # noqa: BLE001  its last state stays in force
            self._quarantine.note(WORKLOAD, uid, error, self._workloads.objects.get(uid))
            return
        self._workloads.keep(uid, stands)
        self.mark_workload(uid, within_s=within_s)
        closes_in_s = self._groups.closes_in_s(uid)
        if closes_in_s is not None:
            self._set_alarm(uid, closes_in_s, self._see_group)
        elif self._groups.gathering(uid) is not None:
            self._set_alarm(uid, ASK_OWNER_EVERY_S, self._ask_owner)

    def _set_alarm(self, uid: str, delay_s: float, act: Callable[[str], None]) -> None:
        """Schedule the next check of a group, unless an event comes first."""
        # One timer per group: an older one could otherwise fire too early.
        old = self._alarms.pop(uid, None)
        if old is not None:
            old.cancel()
        self._alarms[uid] = asyncio.get_running_loop().call_later(delay_s, self._ring, uid, act)

    def _ring(self, uid: str, act: Callable[[str], None]) -> None:
        del self._alarms[uid]
        act(uid)

    def _ask_owner(self, uid: str) -> None:
        found = self._groups.gathering(uid)
        if found is not None:
            owner, pod = found
            meta = pod["metadata"]
            self._owners.ask_again(owner, meta["namespace"], meta["uid"])

    def _on_owner(self, pod_uid: str) -> None:
        """Handle that the topmost owner of a pod is known now."""
        pod = self._workloads.pods.get(pod_uid)
        if pod is None:
            return
        group = self._groups.look(pod)
        if group is not None:
            self._see_group(group)
        else:
            # The pod was kept under a provisional workload. Handle it again as if it had just come.
            self._workloads.forget_pod(pod_uid, workload_uid(pod))
            self.on_pod(None, pod)

    def _on_pod_group(self, namespace: str, name: str) -> None:
        for uid in self._groups.declared_by(namespace, name):
            self._see_group(uid)


def _uid(old: Object | None, new: Object | None) -> str:
    told = new or old
    assert told is not None, "an informer tells of an object, old or new"
    return str(told["metadata"]["uid"])


def _is_news(old: Object | None, new: Object | None) -> bool:
    """Return whether a change of a workload must be written.

    An unreadable workload always is, so that it is reported.
    """
    if old is None or new is None:
        return True
    try:
        return is_news(old, new)
    except Exception:  # noqa: BLE001  the writer reports what is wrong with it
        return True


def _is_node_news(old: Object, new: Object) -> bool:
    try:
        return node_fact(old) != node_fact(new)
    except Exception:  # noqa: BLE001  the writer reports what is wrong with it
        return True


def _is_as_owned(old: Object, new: Object) -> bool:
    """Return whether the owners and the group of a pod are unchanged."""
    before, now = old["metadata"], new["metadata"]
    return all(before.get(key) == now.get(key) for key in ("ownerReferences", "annotations"))


def _is_workload(pod: Object, ours: Container[str]) -> bool:
    """Return whether a pod without a BatchJob may be a workload of its own."""
    meta = pod["metadata"]
    return not meta.get("ownerReferences") or meta["uid"] in ours


def _awaited_within_s(old: Object | None, new: Object | None) -> float:
    """Return how soon a change of a pod is needed: to release the pod, or to use its capacity."""
    if new is None:
        return LATER_S if old is not None and pod_fact(old).is_terminal else ENDED_S
    fact = pod_fact(new)
    if fact.is_terminal:
        return ENDED_S
    return GATHER_S if old is None and fact.is_gated else LATER_S
