"""The entry of bare Pods: a workload of one pod, held and released by its gate alone.

Called through the table (``workload.kinds``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.pod_facts import PodFact, WorkloadFact
from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.workload import labels
from fluxqueue.workload.annotations import Wishes, check_fits
from fluxqueue.workload.gates import gated_pod
from fluxqueue.workload.groups import is_driver, read_mark, read_membership
from fluxqueue.workload.kinds.kind import WorkloadKind
from fluxqueue.workload.objects import Object
from fluxqueue.workload.pods import pod_fact

_NEVER = frozenset({"DaemonSet", "Node", "Job"})
"""Owners that form no group: one pod for each node, or a Job with a marked template."""

_RESULTS = {"Succeeded": FluxJobState.COMPLETED, "Failed": FluxJobState.FAILED}


class BarePodKind(WorkloadKind):
    """Answer the questions of ``WorkloadKind`` for bare Pods."""

    name, group, version, plural = "Pod", "", "v1", "pods"
    pod_spec_path = "spec"
    is_made_of_pods = True

    def looks_like(self, workload: Object) -> bool:
        return "template" not in (workload.get("spec") or {})

    def claim(self, pod: Object) -> str | None:
        """Return the pod's own UID.

        A pod that no other kind claims is a workload of its own, managed or not.
        """
        return str(pod["metadata"]["uid"])

    def pod_spec(self, workload: Object) -> Object:
        found: Object = workload.get("spec") or {}
        return found

    def with_pods(self, workload: Object, change: Callable[[Object], Object]) -> Object:
        return change(workload)

    def size(self, workload: Object) -> int:
        return 1

    def why_not(self, workload: Object) -> str | None:
        meta, spec = workload.get("metadata") or {}, workload["spec"]
        owners = meta.get("ownerReferences") or ()
        if owners and (owners[0].get("kind") in _NEVER or read_membership(workload) is None):
            # This includes DaemonSet pods, mirror pods of a node, and pods of workloads.
            return f"it belongs to {owners[0].get('kind')} {owners[0].get('name')}"
        if labels.MIRROR in (meta.get("annotations") or {}):
            return "it is a mirror pod"
        if spec.get("nodeName"):
            return f"it is bound to {spec['nodeName']}"
        return None

    def held(self, workload: Object, wishes: Wishes, user: str) -> Object:
        check_fits(wishes, can_restart=False, waits=labels.GATED)
        group = read_membership(workload)
        is_unsaid = group is not None and group.minimum is None
        if group is not None and is_unsaid and not group.is_former and not group.of:
            hint = f'say how many pods it has: {labels.GROUP_SIZE}: "5"'
            raise InvalidInput(
                "is a group without a size", where=group.where, value=group.name, hint=hint
            )
        told = ""
        if is_driver(workload):
            # Drivers are rare, and no other pod has followers.
            from fluxqueue.workload.followers import learn_followers, read_followers

            if read_followers(workload) is None and group is not None:
                told = learn_followers(workload)
        return gated_pod(workload, wishes, user, group, followers=told)

    def is_held(self, workload: Object) -> bool:
        is_owned = (workload.get("metadata") or {}).get("ownerReferences")
        is_member = read_mark(workload) is not None
        return not is_owned and not is_member and super().is_held(workload)

    def fact(self, workload: Object, pods: Sequence[PodFact] = ()) -> WorkloadFact:
        """Return its progress from the phase, whatever its restart policy.

        Containers that restart in place keep the pod, and its slot, running. A pod that was deleted
        before it ended counts as cancelled, whatever its containers returned.
        """
        result = _RESULTS.get((workload.get("status") or {}).get("phase", ""))
        return WorkloadFact(
            wanted=0 if result else 1,
            result=None if pod_fact(workload).is_killed else result,
            is_deleting=bool(workload["metadata"].get("deletionTimestamp")),
        )

    def news(self, workload: Object) -> tuple[Any, ...]:
        meta = workload["metadata"]
        return pod_fact(workload), meta.get("annotations"), meta.get("labels")


BARE_POD = BarePodKind()
