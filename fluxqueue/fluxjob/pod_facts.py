"""What is seen of a workload and of its pods. Pure.

The kinds of workloads make these facts from objects (``workload.kinds``). Rows keep them.
``follow`` and ``start_watch`` decide from them. Nothing here decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fluxqueue.fluxjob.states import FluxJobState

WORDS_MAX = 500
"""The most characters of a foreign message that are kept."""

NOT_SEEN = "no scheduler has looked at it: "
"""What stands before the name of a scheduler in place of words of kube-scheduler."""

OF_GROUP = "its PodGroup is refused: "
"""What stands before words of kube-scheduler that concern all pods of a group, and no node."""


def cut(words: str) -> str:
    """Return a foreign message in a form that rows and statuses can keep."""
    return " ".join(words.replace("\0", "").split())[:WORDS_MAX]


@dataclass(frozen=True, slots=True)
class PodFact:
    """One pod of the workload as last seen.

    ``index`` is the completion index in an Indexed BatchJob. ``kind`` is the label of the kind of
    slots that it needs, empty if all pods are equal. ``uses`` is its own request, as pairs of
    resource and base units.

    ``is_refused``: it failed because its node refused it. ``is_sent``: a process is ungating it.
    ``is_killed``: its deletion was requested before its containers ended. The way they ended then
    tells nothing about the work. ``unschedulable``: why kube-scheduler cannot bind it, in its own
    words.
    """

    uid: str
    name: str
    phase: str
    is_gated: bool
    is_terminating: bool = False
    node: str | None = None
    index: int | None = None
    is_refused: bool = False
    kind: str = ""
    uses: tuple[tuple[str, int], ...] = ()
    is_sent: bool = False
    is_killed: bool = False
    unschedulable: str = ""

    @property
    def is_terminal(self) -> bool:
        """Whether its containers have ended for good."""
        return self.phase in {"Succeeded", "Failed"}


@dataclass(frozen=True, slots=True)
class WorkloadProgress:
    """How far a workload is, as last seen.

    ``wanted`` is the number of pods that it may still run at once: its parallelism, limited by the
    completions left. ``wanted_of`` is how many of those need each kind of slots, if that is known
    before they come.

    ``result`` is set once it has reported its end. ``is_deleting``: it is gone or being deleted.
    ``is_vacating``: its pods must go, and it then waits again. ``is_stopping``: it vacates, and
    ungated pods may exist that no process has seen.

    ``is_pinned``: its pods come without a gate, because its template names the node of all slots.
    ``is_placed``: its template names the node of each index, so pods may come without a gate.
    ``is_placing``: more of them may still come so. Later pods are gated.
    ``restarts_on_loss``: if one pod is lost with its node, all pods start again.
    ``is_independent``: its pods are independent, and each of them takes its turn in the queue.
    ``is_whole``: kube-scheduler holds all its pods back while one of them is gated.
    """

    wanted: int
    result: FluxJobState | None = None
    is_deleting: bool = False
    is_vacating: bool = False
    is_pinned: bool = False
    is_placed: bool = False
    is_placing: bool = False
    is_stopping: bool = False
    wanted_of: Mapping[str, int] = field(default_factory=dict)
    restarts_on_loss: bool = False
    is_independent: bool = False
    is_whole: bool = False

    @property
    def comes_ungated(self) -> bool:
        """Whether pods without a gate may be there that hold no slot yet."""
        return self.is_pinned or self.is_placed

    @property
    def is_over(self) -> bool:
        """Whether it will never want another pod."""
        return self.result is not None or self.is_deleting


GONE = WorkloadProgress(wanted=0, is_deleting=True)
"""A workload that no longer exists."""
