"""Pods that are not ours: what they take of their nodes, written down by difference.

Part of ``marking``, and of ``writing``. A cluster may have many more of them than of ours, and all
that counts of one is its node, what it takes there and whether it has ended. So most of what is
told of it ends here, and the rest is written in batches.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.node import ForeignPod
from fluxqueue.objects import Object
from fluxqueue.workload.nodes import foreign_pod

logger = logging.getLogger(__name__)

Change = tuple[list[ForeignPod], list[str]]
"""Pods that take something of a node, and the UIDs of those that no longer do."""

EVERY_S = 0.5
"""They come in any number: batches of them are written at least so far apart."""


class ForeignPods:
    """Remembers which pods of others stand in the rows.

    Parameters: ``find`` gives a pod by its UID if it exists and is not ours.

    ``due_s``: when the next batch may be written (monotonic).
    """

    def __init__(self, find: Callable[[str], Object | None]) -> None:
        self._find = find
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
            used = self._used(uid)
            if used is not None:
                present.append(used)
            elif uid in self._written:
                gone.append(uid)
        return present, gone

    def _used(self, uid: str) -> ForeignPod | None:
        pod = self._find(uid)
        try:
            return foreign_pod(pod) if pod is not None else None
        except InvalidInput as error:
            logger.warning("pod cannot be read", extra={"uid": uid, "error": str(error)})
            return None

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
