"""Unmanaged pods: write what they use of their nodes, by difference.

Part of ``event_router`` and of ``flusher``. A cluster may have many more unmanaged than managed
pods. Only three facts of each pod matter: its node, what it uses there, and whether it has ended.
Most events of such pods therefore change nothing here. The rest is written in batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from fluxqueue.fluxjob.exclusive_use import port_use
from fluxqueue.fluxjob.node import ForeignPod
from fluxqueue.process.pacing import UNMANAGED_S
from fluxqueue.workload.labels import NODE_POOL
from fluxqueue.workload.node_object import foreign_pod
from fluxqueue.workload.objects import Object
from fluxqueue.workload.own_pods import host_ports

Change = tuple[list[ForeignPod], list[str]]
"""Pods that use something of a node, and the UIDs of those that no longer do."""


class ForeignPods:
    """Remembers which unmanaged pods have rows.

    Parameters
    ----------
    find : returns a pod by its UID if it exists and is unmanaged.
    on_trouble : called with each pod that cannot be read, and its error. Called without an error
        for all other pods. The row of an unreadable pod stays.

    ``due_s`` is the time from which the next batch may be written (monotonic).
    """

    def __init__(
        self,
        find: Callable[[str], Object | None],
        on_trouble: Callable[[str, Object | None, Exception | None], None] = lambda *_: None,
    ) -> None:
        self._find, self._on_trouble = find, on_trouble
        self.volumes_of: Callable[[Object], Mapping[str, int]] = lambda _: {}
        """Returns what a pod uses of its node beside its requests."""
        self.own_namespace = ""
        """The namespace of fluxqueue. Its placeholders leave for jobs, so they use nothing."""
        self._written: set[str] = set()
        self.due_s = float("-inf")

    def know(self, uids: Iterable[str]) -> None:
        """Store which pods have rows already."""
        self._written |= set(uids)

    def is_news(self, old: Object | None, new: Object | None, uid: str) -> bool:
        """Return whether a change of an unmanaged pod changes anything on a node."""
        before, now = self._counts(old), self._counts(new)
        if not now:
            # Also if its row is from an earlier process: it would keep counting otherwise.
            return before or uid in self._written
        if not before or old is None or new is None:
            return True
        return bool(old["spec"] != new["spec"] or _in_use(old) != _in_use(new))

    def _counts(self, pod: Object | None) -> bool:
        """Return whether a pod uses something of a node."""
        return (
            pod is not None
            and bool(pod["spec"].get("nodeName"))
            and pod["status"].get("phase") not in _ENDED
            and not is_placeholder(pod, self.own_namespace)
        )

    def changes(self, uids: Iterable[str]) -> Change:
        """Return what has to be written for ``uids``."""
        present: list[ForeignPod] = []
        gone: list[str] = []
        for uid in uids:
            pod = self._find(uid)
            try:
                is_counted = pod is not None and not is_placeholder(pod, self.own_namespace)
                used = foreign_pod(pod) if pod is not None and is_counted else None
                if used is not None and pod is not None:
                    more = {**self.volumes_of(pod), **port_use(host_ports(pod["spec"]))}
                    used = replace(used, resources={**used.resources, **more}) if more else used
            except Exception as error:  # noqa: BLE001  one pod must not hide the others
                self._on_trouble(uid, pod, error)
                continue
            self._on_trouble(uid, pod, None)
            if used is not None:
                present.append(used)
            elif uid in self._written:
                gone.append(uid)
        return present, gone

    def remember(self, written: Change, *, at_s: float | None = None) -> None:
        """Store what was written. ``at_s`` is the time of a batch of events (monotonic)."""
        self._written |= {pod.uid for pod in written[0]}
        self._written.difference_update(written[1])
        if at_s is not None and any(written):
            self.due_s = at_s + UNMANAGED_S


def is_placeholder(pod: Object, own_namespace: str) -> bool:
    """Return whether a pod only holds a place on a new node (``nodepools.cluster``).

    The label alone does not decide: any user may write it in a namespace of their own.
    """
    meta = pod["metadata"]
    return meta.get("namespace") == own_namespace and NODE_POOL in (meta.get("labels") or {})


def _in_use(pod: Object) -> Any:
    status = pod["status"]
    return status.get("containerStatuses"), status.get("initContainerStatuses")


_ENDED = frozenset({"Succeeded", "Failed"})
