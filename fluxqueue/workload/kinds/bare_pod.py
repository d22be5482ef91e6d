"""The entry of bare Pods: a workload of one pod, held and released by its gate alone.

Called through the table (``workload.kinds``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fluxqueue.fluxjob.pod_facts import PodFact, WorkloadProgress
from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.workload.kinds.admitted import AdmittedPod
from fluxqueue.workload.kinds.kind import WorkloadKind
from fluxqueue.workload.objects import Object
from fluxqueue.workload.observed_pod import pod_fact

_RESULTS = {"Succeeded": FluxJobState.COMPLETED, "Failed": FluxJobState.FAILED}


class BarePodKind(AdmittedPod, WorkloadKind):
    """Answer the questions of ``WorkloadKind`` for bare Pods."""

    is_made_of_pods = True

    def looks_like(self, workload: Object) -> bool:
        return "template" not in (workload.get("spec") or {})

    def claim(self, pod: Object) -> str | None:
        """Return the pod's own UID.

        A pod that no other kind claims is a workload of its own, managed or not.
        """
        return str(pod["metadata"]["uid"])

    def with_pods(self, workload: Object, change: Callable[[Object], Object]) -> Object:
        return change(workload)

    def progress(self, workload: Object, pods: Sequence[PodFact] = ()) -> WorkloadProgress:
        """Return its progress from the phase, whatever its restart policy.

        Containers that restart in place keep the pod, and its slot, running. A pod that was deleted
        before it ended counts as cancelled, whatever its containers returned.
        """
        result = _RESULTS.get((workload.get("status") or {}).get("phase", ""))
        return WorkloadProgress(
            wanted=0 if result else 1,
            result=None if pod_fact(workload).is_killed else result,
            is_deleting=bool(workload["metadata"].get("deletionTimestamp")),
        )

    def news(self, workload: Object) -> tuple[Any, ...]:
        meta = workload["metadata"]
        return pod_fact(workload), meta.get("annotations"), meta.get("labels")


BARE_POD = BarePodKind()
