"""Pods that are not ours: what they take of their nodes, written down by difference.

Part of ``marking``, and of ``writing``. A cluster may have many more of them than of ours, and all
that counts of one is its node, what it takes there and whether it has ended. So most of what is
told of it ends here, and the rest is written in batches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fluxqueue.fluxjob.node import ForeignPod
from fluxqueue.objects import Object
from fluxqueue.workload.nodes import foreign_pod

Change = tuple[list[ForeignPod], list[str]]
"""Pods that take something of a node, and the UIDs of those that no longer do."""

EVERY_S = 0.5
"""They come in any number: batches of them are written at least so far apart."""


class ForeignPods:
    """Remembers which pods of others stand in the rows.

    Parameters: ``find`` gives a pod by its UID if it exists and is not ours. ``on_trouble`` gets
    each pod that cannot be read, with the error, and all others without one. The row of a pod that
    cannot be read stays.

    ``due_s``: when the next batch may be written (monotonic).
    """

    def __init__(
        self,
        find: Callable[[str], Object | None],
        on_trouble: Callable[[str, Object | None, Exception | None], None] = lambda *_: None,
    ) -> None:
        self._find, self._on_trouble = find, on_trouble
        self._written: set[str] = set()
        self.due_s = float("-inf")

    def know(self, uids: Iterable[str]) -> None:
        """Take in which of them stand in the rows already."""
        self._written |= set(uids)

    def is_news(self, old: Object | None, new: Object | None, uid: str) -> bool:
        """Whether a change of a pod that is not ours changes anything on a node."""
        before, now = old is not None and _counts(old), new is not None and _counts(new)
        if not now:
            return before or uid in self._written
        if not before or old is None or new is None:
            return True
        return bool(old["spec"] != new["spec"] or _in_use(old) != _in_use(new))

    def changes(self, uids: Iterable[str]) -> Change:
        """What the rows are to be told of ``uids``."""
        present: list[ForeignPod] = []
        gone: list[str] = []
        for uid in uids:
            pod = self._find(uid)
            try:
                used = foreign_pod(pod) if pod is not None else None
            except Exception as error:  # noqa: BLE001  one pod must not keep the others away
                self._on_trouble(uid, pod, error)
                continue
            self._on_trouble(uid, pod, None)
            if used is not None:
                present.append(used)
            elif uid in self._written:
                gone.append(uid)
        return present, gone

    def remember(self, written: Change, *, at_s: float | None = None) -> None:
        """Take in what was written; in a batch of events, when that was (monotonic)."""
        self._written |= {pod.uid for pod in written[0]}
        self._written.difference_update(written[1])
        if at_s is not None and any(written):
            self.due_s = at_s + EVERY_S


def _counts(pod: Object) -> bool:
    return bool(pod["spec"].get("nodeName")) and pod["status"].get("phase") not in _ENDED


def _in_use(pod: Object) -> Any:
    status = pod["status"]
    return status.get("containerStatuses"), status.get("initContainerStatuses")


_ENDED = frozenset({"Succeeded", "Failed"})
