"""The last seen state of all workloads: their objects, their pods and their FluxJobs.

Part of ``observer``. ``event_router`` updates it from informer events, ``resync_schedule`` from
lists of FluxJobs. ``flusher`` drops what it has written as gone. It is only a cache of the cluster:
it reads nothing by itself, and marks nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fluxqueue.kube.informer import UNSEEN
from fluxqueue.workload.deletion import with_deletion
from fluxqueue.workload.managed import is_taken_in
from fluxqueue.workload.objects import Object
from fluxqueue.workload.observed_pod import has_ended

LEFT_MAX = 5000
"""How many pods that ended before they went are kept for one workload."""


class Workloads:
    """All state by UID, used within one event loop.

    Its mappings are live, and only its methods change them. Every event of every pod reads them.

    ``objects`` holds the object of each workload, in the form that its kind reads. ``pods`` holds
    all pods of the cluster, and ``pods_of`` holds the same pods by workload. ``flux_uids`` holds
    the UID of the FluxJob of each managed workload, or None where it has none. A UID that is not in
    it is unmanaged.

    The last seen state of a managed workload shows how it ended. So its object, and its pods that
    had ended before they went, are kept until it is written as gone.
    """

    def __init__(self) -> None:
        self._objects: dict[str, Object] = {}
        self._pods: dict[str, Object] = {}
        self._pods_of: dict[str, dict[str, Object]] = {}
        self._flux_uids: dict[str, str | None] = {}
        self._flux_versions: dict[str, str] = {}
        self._news_of_fluxjobs: set[str] = set()
        self._namespaces: dict[str, str] = {}
        self._last: dict[str, Object] = {}
        self._left: dict[str, dict[str, Object]] = {}
        self._arrived: dict[str, int] = {}
        self._ending: dict[str, str] = {}
        self.objects: Mapping[str, Object] = self._objects
        self.pods: Mapping[str, Object] = self._pods
        self.pods_of: Mapping[str, Mapping[str, Object]] = self._pods_of
        self.flux_uids: Mapping[str, str | None] = self._flux_uids

    # --- objects and pods --------------------------------------------------------------------

    def keep(self, uid: str, obj: Object | None) -> None:
        """Store the object of a workload. None means that it is gone."""
        if obj is not None:
            namespace = self._namespaces[uid] = str(obj["metadata"]["namespace"])
            ends_at = self._ending.get(namespace)
            self._objects[uid] = obj if ends_at is None else with_deletion(obj, ends_at)
            self._last.pop(uid, None)
            return
        # Its last state may show how it ended, which matters for managed workloads only.
        last = self._objects.pop(uid, None)
        if last is not None and uid in self._flux_uids:
            self._last[uid] = last

    def end_namespace(self, namespace: str, ends_at: str | None) -> list[str]:
        """Record the deletion of a namespace, None if it is gone. Return its workloads."""
        if ends_at is None:
            self._ending.pop(namespace, None)
            return []
        if self._ending.get(namespace) == ends_at:
            return []
        self._ending[namespace] = ends_at
        its = [uid for uid in self._objects if self._namespaces.get(uid) == namespace]
        for uid in its:
            self._objects[uid] = with_deletion(self._objects[uid], ends_at)
        return its

    def may_own(self, uid: str, pod: Object) -> bool:
        """Return whether a pod is in the namespace of the workload that it names as its owner.

        The API server does not check owner references, so users can write any UID that they know.
        """
        its = str(pod["metadata"]["namespace"])
        return self._namespaces.get(uid, its) == its

    def namespace_of(self, uid: str) -> str:
        """Return the namespace of a workload or a pod, empty if it is not known."""
        pod = self._pods.get(uid)
        return self._namespaces.get(uid) or (str(pod["metadata"]["namespace"]) if pod else "")

    def strangers(self, uid: str) -> list[Object]:
        """Return pods kept with a workload before its namespace turned out to differ."""
        return [pod for pod in self._pods_of.get(uid, {}).values() if not self.may_own(uid, pod)]

    def lose_sight(self, uid: str) -> None:
        """Record that a workload that is gone may have changed after it was seen last."""
        if uid in self._last:
            self._last[uid] = {**self._last[uid], UNSEEN: True}

    def last(self, uid: str) -> Object | None:
        """Return the last seen object of a workload that is gone, or None if it was never seen."""
        return self._last.get(uid)

    def left(self, uid: str) -> list[Object]:
        """Return pods of a workload that had ended before they went or lost their owner."""
        return list(self._left.get(uid, {}).values())

    def keep_pod(self, uid: str, workload: str, pod: Object) -> None:
        """Store a pod of a workload."""
        self._pods[uid] = pod
        its = self._pods_of.setdefault(workload, {})
        if uid not in its:
            self._arrived[workload] = self._arrived.get(workload, 0) + 1
        its[uid] = pod

    def arrived(self, workload: str) -> int:
        """Return how many pods of a managed workload have been seen, gone ones included."""
        return self._arrived.get(workload, 0)

    def forget_pod(self, uid: str, workload: str) -> None:
        """Remove a pod that is gone, or that no longer belongs to the workload."""
        # An ended pod may be the only evidence of how the workload ended.
        pod = self._pods.pop(uid, None)
        if pod is not None and workload in self._flux_uids and has_ended(pod):
            left = self._left.setdefault(workload, {})
            left[uid] = pod
            # Bounded: a workload that keeps making pods must not fill the memory.
            if len(left) > LEFT_MAX:
                del left[next(iter(left))]
        self._pods_of.get(workload, {}).pop(uid, None)
        if not self._pods_of.get(workload):
            self._pods_of.pop(workload, None)
            if workload not in self._flux_uids:
                self._arrived.pop(workload, None)

    def find(self, uid: str) -> Object | None:
        """Return an object that is watched anyway."""
        return self._objects.get(uid) or self._pods.get(uid)

    # --- FluxJobs ----------------------------------------------------------------------------

    def find_unwrapped(self, uid: str) -> Object | None:
        """Return a managed object that has no FluxJob."""
        obj = self._objects.get(uid)
        if obj is None or self._flux_uids.get(uid) is not None:
            return None
        return obj if uid in self._flux_uids or is_taken_in(obj) else None

    def know(
        self, flux_uids: Mapping[str, str | None], namespaces: Mapping[str, str] | None = None
    ) -> None:
        """Store earlier knowledge of FluxJobs and namespaces. It does not overwrite newer news."""
        for uid, flux_uid in flux_uids.items():
            self._flux_uids.setdefault(uid, flux_uid)
        for uid, namespace in (namespaces or {}).items():
            self._namespaces.setdefault(uid, namespace)

    def wrap(self, uid: str, flux_uid: str, flux_version: str) -> None:
        """Store the UID and resourceVersion of the new FluxJob of a workload."""
        self._flux_uids[uid], self._flux_versions[uid] = flux_uid, flux_version
        self._news_of_fluxjobs.add(uid)

    def take_version(self, uid: str) -> str | None:
        """Return, once, the resourceVersion with which a FluxJob was created, else None."""
        return self._flux_versions.pop(uid, None)

    def unwrap(self, uid: str) -> bool:
        """Record that the FluxJob of a workload is gone. Return whether it lacks one now."""
        self._news_of_fluxjobs.add(uid)
        self._flux_versions.pop(uid, None)
        if self._flux_uids.get(uid) is None or self._is_ending(uid):
            return False
        self._flux_uids[uid] = None
        return True

    def _is_ending(self, uid: str) -> bool:
        """Return whether a workload is being deleted: its FluxJob was collected first, for good.

        A new one would be collected, too, and its job would end under a UID that no client knows.
        """
        obj = self._objects.get(uid)
        return obj is not None and bool(obj["metadata"].get("deletionTimestamp"))

    def forget(self, uid: str) -> None:
        """Drop a workload that was written as gone. While it has pods, it remains managed."""
        self._flux_versions.pop(uid, None)
        if not self._pods_of.get(uid):
            self._flux_uids.pop(uid, None)
            self._namespaces.pop(uid, None)
            self._last.pop(uid, None)
            self._left.pop(uid, None)
            self._arrived.pop(uid, None)

    def begin_listing(self) -> None:
        """Begin a list of FluxJobs: later events about them are newer than the list."""
        self._news_of_fluxjobs.clear()

    def take_listed(self, flux_uids: Mapping[str, str | None]) -> Iterator[str]:
        """Store the listed FluxJobs. Yield the workloads with a different FluxJob or none."""
        for uid, listed in flux_uids.items():
            # An event during the list is newer than the list.
            if uid in self._news_of_fluxjobs or (listed is None and self._is_ending(uid)):
                continue
            is_other = self._flux_uids.get(uid) != listed
            self._flux_uids[uid] = listed
            if listed is None or is_other:
                yield uid
