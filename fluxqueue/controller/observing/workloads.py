"""The workloads that are there: their objects, their pods, their FluxJobs, as they were seen last.

Part of ``observer``: ``marking`` keeps it as informers tell, ``comparing`` as FluxJobs are listed,
and ``writing`` forgets what it has written off. A cache of the cluster and no more: it looks at
nothing by itself, and marks nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from fluxqueue.kube.informer import UNSEEN
from fluxqueue.objects import Object
from fluxqueue.workload.managed import is_taken_in
from fluxqueue.workload.pods import has_ended

LEFT_MAX = 5000
"""Pods that had ended before they went, and that one workload remembers."""


class Workloads:
    """Everything by UID; used within one event loop.

    Its mappings are live, and changed by its methods only: every event of every pod reads them.

    ``objects``: what stands for each workload, in the form in which its entry takes it. ``pods``:
    all pods of the cluster; ``pods_of``: the same by their workload. ``flux_uids``: the UID of the
    FluxJob of each workload of ours, None where it has none; who is not in it is not ours.

    What was seen last of a workload of ours decides how it ended, so that is kept until it is
    written off: its object, and those of its pods that had ended before they went.
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
        self.objects: Mapping[str, Object] = self._objects
        self.pods: Mapping[str, Object] = self._pods
        self.pods_of: Mapping[str, Mapping[str, Object]] = self._pods_of
        self.flux_uids: Mapping[str, str | None] = self._flux_uids

    # --- objects and pods --------------------------------------------------------------------

    def keep(self, uid: str, obj: Object | None) -> None:
        """What stands for a workload is as given; None: it is gone."""
        if obj is not None:
            self._objects[uid] = obj
            self._namespaces[uid] = str(obj["metadata"]["namespace"])
            self._last.pop(uid, None)
            return
        last = self._objects.pop(uid, None)
        if last is not None and uid in self._flux_uids:
            self._last[uid] = last

    def may_own(self, uid: str, pod: Object) -> bool:
        """Whether a pod that names a workload as its owner is in the namespace of that.

        The API server does not check owner references, so anybody who knows a UID can write it.
        """
        its = str(pod["metadata"]["namespace"])
        return self._namespaces.get(uid, its) == its

    def strangers(self, uid: str) -> list[Object]:
        """Pods kept with a workload before it was known that its namespace is another."""
        return [pod for pod in self._pods_of.get(uid, {}).values() if not self.may_own(uid, pod)]

    def lose_sight(self, uid: str) -> None:
        """A workload that is gone may have changed after it was seen last."""
        if uid in self._last:
            self._last[uid] = {**self._last[uid], UNSEEN: True}

    def last(self, uid: str) -> Object | None:
        """A workload that is gone as it was seen last; None where nothing of it was seen."""
        return self._last.get(uid)

    def left(self, uid: str) -> list[Object]:
        """Pods of a workload that had ended before they went, or before they lost their owner."""
        return list(self._left.get(uid, {}).values())

    def keep_pod(self, uid: str, workload: str, pod: Object) -> None:
        """A pod is as given, and of that workload."""
        self._pods[uid] = pod
        self._pods_of.setdefault(workload, {})[uid] = pod

    def forget_pod(self, uid: str, workload: str) -> None:
        """A pod is gone, or no longer of that workload."""
        pod = self._pods.pop(uid, None)
        if pod is not None and workload in self._flux_uids and has_ended(pod):
            left = self._left.setdefault(workload, {})
            left[uid] = pod
            if len(left) > LEFT_MAX:
                del left[next(iter(left))]
        self._pods_of.get(workload, {}).pop(uid, None)
        if not self._pods_of.get(workload):
            self._pods_of.pop(workload, None)

    def find(self, uid: str) -> Object | None:
        """An object that is watched anyway."""
        return self._objects.get(uid) or self._pods.get(uid)

    # --- FluxJobs ----------------------------------------------------------------------------

    def find_unwrapped(self, uid: str) -> Object | None:
        """An object of ours that has no FluxJob."""
        obj = self._objects.get(uid)
        if obj is None or self._flux_uids.get(uid) is not None:
            return None
        return obj if uid in self._flux_uids or is_taken_in(obj) else None

    def know(
        self, flux_uids: Mapping[str, str | None], namespaces: Mapping[str, str] | None = None
    ) -> None:
        """Take in what was known before, and where it is; news of it are not overwritten."""
        for uid, flux_uid in flux_uids.items():
            self._flux_uids.setdefault(uid, flux_uid)
        for uid, namespace in (namespaces or {}).items():
            self._namespaces.setdefault(uid, namespace)

    def wrap(self, uid: str, flux_uid: str, flux_version: str) -> None:
        """A workload has its FluxJob now, of that UID and resourceVersion."""
        self._flux_uids[uid], self._flux_versions[uid] = flux_uid, flux_version
        self._news_of_fluxjobs.add(uid)

    def take_version(self, uid: str) -> str | None:
        """With which resourceVersion the FluxJob of a workload was made, once; else None."""
        return self._flux_versions.pop(uid, None)

    def unwrap(self, uid: str) -> bool:
        """The FluxJob of a workload is gone; tell whether it had one."""
        self._news_of_fluxjobs.add(uid)
        self._flux_versions.pop(uid, None)
        if self._flux_uids.get(uid) is None:
            return False
        self._flux_uids[uid] = None
        return True

    def forget(self, uid: str) -> None:
        """A workload is written off; as long as pods of it are left they are still ours."""
        self._flux_versions.pop(uid, None)
        if not self._pods_of.get(uid):
            self._flux_uids.pop(uid, None)
            self._namespaces.pop(uid, None)
            self._last.pop(uid, None)
            self._left.pop(uid, None)

    def begin_listing(self) -> None:
        """FluxJobs are being listed: what is told of them from now on is newer than the list."""
        self._news_of_fluxjobs.clear()

    def take_listed(self, flux_uids: Mapping[str, str | None]) -> Iterator[str]:
        """Take in which FluxJobs there were when they were listed; UIDs of those whose FluxJob is
        another than was known, or that lack one.
        """
        for uid, listed in flux_uids.items():
            if uid in self._news_of_fluxjobs:
                continue
            is_other = self._flux_uids.get(uid) != listed
            self._flux_uids[uid] = listed
            if listed is None or is_other:
                yield uid
