"""``spec.scheduling`` of a Job: what its author asks of Kubernetes' own group of its pods (1.37).

The entry of Jobs calls it (``kinds.batch_job``). All pods of a Job start together here, which is
at least its ``minCount``, and are preempted together, as with ``disruptionMode: all``. Its topology
is ``fluxqueue/within``. What cannot be honoured is refused at admission. Pure.

The Job controller puts the pods into a PodGroup that it makes. If ``spec.scheduling`` does not ask
for that group, a policy takes the pods out of it (``chart/files/ungrouped-pods.yaml``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fluxqueue.errors import InvalidInput
from fluxqueue.workload import labels
from fluxqueue.workload.annotations import Wishes
from fluxqueue.workload.json_patch import at
from fluxqueue.workload.object_paths import Path
from fluxqueue.workload.objects import Object

_FIELD: Path = ("spec", "scheduling")
_TOPOLOGY = "spec.scheduling.schedulingConstraints.topology[0].key"


def with_scheduling(job: Object, wishes: Wishes) -> Wishes:
    """Return the wishes with the topology of ``spec.scheduling``, if annotations name none."""
    key = _topology(job)
    if key is None or wishes.within is not None:
        return wishes
    return replace(wishes, within=key, paths={**wishes.paths, labels.WITHIN: _TOPOLOGY})


def asks_for_group(job: Object) -> bool:
    """Tell whether its author asks for more than Kubernetes does for each Job."""
    said: Mapping[str, Any] = at(job, _FIELD) or {}
    policy, mode = said.get("schedulingPolicy") or {}, said.get("disruptionMode") or {}
    return "gang" in policy or "all" in mode or _topology(job) is not None


def check_scheduling(job: Object, wishes: Wishes, *, are_independent: bool) -> None:
    """Refuse what of ``spec.scheduling`` cannot be honoured. ``are_independent``: its pods.

    Raises
    ------
    InvalidInput
        It contradicts an annotation, or shares devices between pods. ``where`` is the path.
    """
    key, claims = _topology(job), at(job, (*_FIELD, "resourceClaims"))
    if key is not None and wishes.within != key:
        hint = f"remove one of them: kube-scheduler places the pods by {_TOPOLOGY}, which is {key}"
        where = wishes.paths.get(labels.WITHIN, labels.WITHIN)
        raise InvalidInput("contradicts it", where=where, value=wishes.within, hint=hint)
    if are_independent and asks_for_group(job):
        hint = f"remove it, or remove spec.scheduling: {labels.GANG} makes the pods independent"
        where = wishes.paths.get(labels.GANG, labels.GANG)
        raise InvalidInput("contradicts spec.scheduling", where=where, value="false", hint=hint)
    if claims:
        hint = "give each pod a claim of its own (spec.template.spec.resourceClaims)"
        where = "spec.scheduling.resourceClaims"
        raise InvalidInput("shares devices between pods: not counted", where=where, hint=hint)


def _topology(job: Object) -> str | None:
    """Return the node label by which kube-scheduler keeps its pods together."""
    constraints = at(job, (*_FIELD, "schedulingConstraints", "topology")) or ()
    return next((str(one["key"]) for one in constraints if one.get("key")), None)
