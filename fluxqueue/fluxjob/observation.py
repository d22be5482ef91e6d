"""What the controller saw of one workload: the facts from which its row follows.

Made by ``controller/observing/read_workload.py``, decided on by ``fluxjob/lifecycle.py`` and
written by ``db/store/observations.py``. An observation is a whole present state and never an event.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fluxqueue.fluxjob.facts import WorkloadFacts
from fluxqueue.fluxjob.pod_facts import PodFact


@dataclass(frozen=True, slots=True)
class WorkloadSeen:
    """A workload and all its pods as the controller sees them now.

    Attributes
    ----------
    facts : what the row keeps as it was seen. The rest serves the decision of the row.
    has_hold : the annotation ``fluxqueue/hold`` is set.
    is_paused : its author wants no pod of it now, although it has not ended.
    is_suspended_again : fluxqueue suspended it, although it had been released.
    pinned_to : the node that its pod template names, without our gate.
    is_placed : its pod template names the node of each index.
    running, succeeded : how many of its pods run, and have succeeded.
    ends_at_s : when Kubernetes has ended all its pods at the latest, as far as they tell.
    authored : the request as its author wrote it, if admission or the cluster adds to it.
    growth : what each of its pods asks for beyond its template, if none of them is bound.
    flux_version : resourceVersion of its FluxJob, if that was created just now.
    """

    uid: str
    namespace: str
    name: str
    workload_kind: str
    workload_name: str
    flux_uid: str | None
    user_name: str
    queue: str
    held_by: str | None
    request: Mapping[str, Any]
    size: int
    duration_s: int | None
    begin_at_s: int | None
    facts: WorkloadFacts
    result: str | None = None
    is_deleting: bool = False
    is_suspended_again: bool = False
    pods: tuple[PodFact, ...] = ()
    has_hold: bool = False
    is_paused: bool = False
    pinned_to: str | None = None
    is_placed: bool = False
    running: int = 0
    succeeded: int = 0
    growth: str = ""
    ends_at_s: int | None = None
    authored: Mapping[str, Any] | None = None
    flux_version: str | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class WorkloadGone:
    """A workload that was deleted, and its pods that are still there.

    ``result``: how it ended, as far as its last known state tells. ``is_seen``: that state is the
    one at its end. Otherwise it was deleted while nothing watched it, and may have ended otherwise.
    """

    namespace: str = ""
    pods: Sequence[PodFact] = ()
    result: str | None = None
    is_seen: bool = True
