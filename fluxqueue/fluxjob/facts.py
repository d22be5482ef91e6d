"""The facts of a workload: what its object and its pods say, in one document.

``controller.observing.read_workload`` makes them, and ``facts`` of its kind adds what only the kind
knows. ``db.store.observations`` writes them into the column ``observed`` of the row, and whatever
needs one reads it from there. A new fact is a field here, its value, and its use. Pure.

A document leaves out each fact that has its default. So it is small, a row that was written before
a fact existed has the default, and in SQL ``observed ? 'is_sweep'`` asks for a fact that holds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from fluxqueue.fluxjob.faults import Fault
from fluxqueue.fluxjob.indexes import NO_INDEXES


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadFacts:
    """What was last seen of a workload.

    Attributes
    ----------
    generation : of its object.
    wanted : how many pods it may still run at once.
    wanted_of : of the ``wanted`` pods, how many need each kind of slots, if that is known.
    is_suspended : its object is suspended.
    is_idle : it is suspended, and its controller counts no pod any more.
    ended_indexes : completion indexes that get no further pod, as an ``int4multirange``.
    missing : how many pods of a group are yet to come, as ``gather_reason`` says. They are overdue
        after ``gather_s`` seconds.
    faults : values that cannot be used since the author changed them after admission.
    said : what its author says that counts, by annotation: the last good value of each.
    priority : what its author asks for. ``is_priority_granted``: an administrator's class gives it.
    depends_on : its dependencies, as its author wrote them.
    ignored : constraints of its pods that are not considered.
    further : jobspec with every kind of slots that its pods need, if later pods may need other
        kinds than the first.
    asked : request, size and duration that it asks for now, if its slots were decided for others.
    made_by : what makes its pods, if fluxqueue cannot delete them one by one.
    owner : the object that makes its pods, of a kind without an entry (``workload.references``).
    has_affinity : its pods require node affinity of their own.
    is_gathered : it is a group, which has pods but no object.
    is_suspendable : it waits suspended. ``replaces_pods``: a deleted pod of it is made again.
    waits_gated : it is not suspended while it waits. Its pods exist, gated.
    is_sweep : its pods are independent, so it starts with one of them and grows in its turn.
    is_pinnable : its pod template may name the node of all its slots.
    is_placeable : its pod template may name the node of each index, for pods to come.
    is_whole : its pods are in a PodGroup of Kubernetes. While one of them is gated, kube-scheduler
        holds all of them back.
    priority_class : the class that its pods name, if ``is_placeable``.
    restarts_on_loss : if a pod is lost with its node, all pods start again.
    spare_failures : how many of its pods may be deleted before it counts as failed. None: any
        number.
    start_timeout_s : how long its start may take, in seconds, if its author says so.
    provision : whether nodes may be asked for, if its author says so (``fluxjob.provision``).
    grace_s : how long its pods may take to end, in seconds.
    is_limited : Kubernetes ends its pods after its duration.
    template : fingerprint of its pods (``workload.fingerprint``).
    """

    generation: int = 0
    wanted: int = 0
    wanted_of: Mapping[str, int] = field(default_factory=dict)
    is_suspended: bool = False
    is_idle: bool = False
    ended_indexes: str = NO_INDEXES
    missing: int = 0
    gather_reason: str = ""
    gather_s: int = 0
    faults: tuple[Fault, ...] = ()
    said: Mapping[str, str] = field(default_factory=dict)
    priority: int = 0
    is_priority_granted: bool = False
    depends_on: Sequence[Mapping[str, str]] = ()
    ignored: Sequence[str] = ()
    further: Mapping[str, Any] | None = None
    asked: Mapping[str, Any] | None = None
    made_by: str | None = None
    owner: Mapping[str, str] | None = None
    has_affinity: bool = False
    is_gathered: bool = False
    is_suspendable: bool = False
    replaces_pods: bool = False
    waits_gated: bool = False
    is_sweep: bool = False
    is_pinnable: bool = False
    is_placeable: bool = False
    is_whole: bool = False
    priority_class: str = ""
    restarts_on_loss: bool = False
    spare_failures: int | None = None
    start_timeout_s: int | None = None
    provision: str | None = None
    grace_s: int = 0
    is_limited: bool = False
    template: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the document of the row."""
        found = ((name, getattr(self, name), default) for name, default in _DEFAULTS.items())
        return {
            name: value
            for name, value, default in found
            if value != default and value not in _EMPTY
        }

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> WorkloadFacts:
        """Return the facts of a document. Facts that only another release knows are left out."""
        known = {name: value for name, value in document.items() if name in _DEFAULTS}
        faults = tuple(Fault(**one) for one in known.pop("faults", ()))
        return cls(**known, faults=faults)


_DEFAULTS = {one.name: getattr(WorkloadFacts(), one.name) for one in fields(WorkloadFacts)}
_EMPTY: tuple[object, ...] = ((), [], {})
