"""What the controller saw of one workload: the facts from which its row follows.

Made by ``controller/observing/read_workload.py``, decided on by ``fluxjob/lifecycle.py`` and
written by ``db/store/observations.py``. An observation is a whole present state and never an event.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fluxqueue.fluxjob.facts import PodFact
from fluxqueue.fluxjob.faults import Fault
from fluxqueue.fluxjob.indexes import NO_INDEXES


@dataclass(frozen=True, slots=True)
class WorkloadSeen:
    """A workload and all its pods as the controller sees them now.

    Attributes
    ----------
    has_hold : the annotation ``fluxqueue/hold`` is set.
    is_paused : its author wants no pod of it now, although it has not ended.
    generation : of the workload's object. It tells a suspension by the author from the one before
        the release.
    is_suspended_again : fluxqueue suspended it, although it had been released.
    is_idle : it is suspended, and its controller counts no pod any more.
    ended_indexes : completion indexes that get no further pod, as an ``int4multirange``.
    has_affinity : its pods require node affinity of their own.
    is_suspendable, replaces_pods : properties of its kind (``workload.kinds``).
    is_gathered : it is a group, which has pods but no object. ``missing`` of the pods are yet to
        come, as ``gather_reason`` says. They are overdue after ``gather_s`` seconds.
    further : jobspec with every kind of slots that its pods need, if later pods may need other
        kinds than the first.
    made_by : what makes its pods, if fluxqueue cannot delete them one by one.
    owner : the object that makes its pods, of a kind without an entry (``workload.references``).
    wanted_of : of the ``wanted`` pods, how many need each kind of slots.
    restarts_on_loss : if a pod is lost with its node, all pods start again.
    said : what its author says that counts, by annotation: the last good value of each.
    faults : values that cannot be used since the author changed them after admission.
    is_pinnable : its pod template may name the node of all its slots.
    pinned_to : the node that its pod template names, without our gate.
    is_placeable : its pod template may name the node of each index, for pods to come.
    is_placed : it does so now.
    running, succeeded : how many of its pods run, and have succeeded.
    spare_failures : how many of its pods may be deleted before it counts as failed. None: any
        number.
    is_sweep : its pods are independent, so it starts with one of them and grows in its turn.
    waits_gated : it is not suspended while it waits. Its pods exist, gated.
    start_timeout_s : how long its start may take, in seconds, if its author says so.
    provision : whether nodes may be asked for, if its author says so (``fluxjob.provision``).
    grace_s : how long its pods may take to end, in seconds.
    is_limited : Kubernetes ends its pods after ``duration_s``.
    ends_at_s : when Kubernetes has ended all its pods at the latest, as far as they tell.
    authored : the request as its author wrote it, if admission or the cluster adds to it.
    growth : what each of its pods asks for beyond its template, if none of them is bound.
    is_priority_granted : an administrator's class gives its priority.
    flux_version : resourceVersion of its FluxJob, if that was created just now.
    """

    uid: str
    namespace: str
    name: str
    workload_kind: str
    is_suspendable: bool
    replaces_pods: bool
    workload_name: str
    flux_uid: str | None
    user_name: str
    queue: str
    priority: int
    held_by: str | None
    request: Mapping[str, Any]
    size: int
    duration_s: int | None
    begin_at_s: int | None
    depends_on: Sequence[Mapping[str, str]]
    ignored: Sequence[str]
    wanted: int
    result: str | None
    is_deleting: bool
    is_gone: bool
    is_suspended: bool
    is_suspended_again: bool = False
    pods: tuple[PodFact, ...] = field(default=())
    has_hold: bool = False
    is_paused: bool = False
    generation: int = 0
    is_idle: bool = False
    ended_indexes: str = NO_INDEXES
    has_affinity: bool = False
    is_pinnable: bool = False
    pinned_to: str | None = None
    is_placeable: bool = False
    is_placed: bool = False
    is_gathered: bool = False
    missing: int = 0
    gather_reason: str = ""
    gather_s: int = 0
    further: Mapping[str, Any] | None = None
    made_by: str | None = None
    owner: Mapping[str, str] | None = None
    wanted_of: Mapping[str, int] | None = None
    restarts_on_loss: bool = False
    said: Mapping[str, str] = field(default_factory=dict)
    faults: tuple[Fault, ...] = ()
    running: int = 0
    succeeded: int = 0
    spare_failures: int | None = None
    start_timeout_s: int | None = None
    is_sweep: bool = False
    waits_gated: bool = False
    provision: str | None = None
    is_priority_granted: bool = False
    growth: str = ""
    grace_s: int = 0
    is_limited: bool = False
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
