"""From a pod spec and the author's wishes to a ``ResourceRequest``: one slot per pod.

Called by ``workload.batch`` and ``workload.pods``, which know how many pods there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluxqueue.fluxjob.request import ResourceRequest, SlotRequest
from fluxqueue.workload.annotations import Wishes
from fluxqueue.workload.constraints import read_constraint
from fluxqueue.workload.own_jobspec import apply_jobspec
from fluxqueue.workload.resources import effective_request

DEFAULT_PRIORITY = 0


def build_request(
    spec: Mapping[str, Any],
    wishes: Wishes,
    *,
    count: int,
    deadline_s: int | None,
    where: str,
    default_cpu_m: int,
) -> ResourceRequest:
    """Describe ``count`` equal pods with ``spec``.

    ``deadline_s`` is the enforced deadline and wins over the wished duration: it is what will
    happen. A deadline of 0 (which Kubernetes allows) counts as one second.

    Raises
    ------
    InvalidInput
        Something in ``spec`` cannot be read; ``where`` of the error is the field's path.
    """
    slot = SlotRequest(
        count=count,
        resources=tuple(
            sorted(effective_request(spec, where=where, default_cpu_m=default_cpu_m).items())
        ),
        constraint=read_constraint(spec, where=where),
    )
    duration_s = wishes.duration_s if deadline_s is None else max(1, deadline_s)
    request = ResourceRequest(
        slots=(slot,) if count else (),
        duration_s=duration_s,
        is_exclusive=wishes.is_exclusive,
        is_spread=wishes.is_spread,
        within=wishes.within,
        match_policy=wishes.match_policy,
    )
    return request if wishes.jobspec is None else apply_jobspec(request, wishes.jobspec)


def choose_priority(
    spec: Mapping[str, Any], wishes: Wishes, class_values: Mapping[str, int], default: int
) -> int:
    """Choose a priority: the annotation, else the pod's own, else its class's, else ``default``.

    ``class_values`` maps names of PriorityClasses to their values; a class that is not (yet) among
    them counts as ``default``.
    """
    if wishes.priority is not None:
        return wishes.priority
    # Admission writes 0 on every pod without a class, so 0 is nobody's word.
    own = spec.get("priority")
    if own:
        return int(own)
    return class_values.get(spec.get("priorityClassName") or "", default)
