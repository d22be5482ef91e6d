"""The PodGroup in which kube-scheduler binds a placed gang: all of its pods, or none. Pure.

The pods of an Indexed BatchJob that admission places name it (``index_placement``), and the worker
makes it once all of them are there (``worker.gang_groups``). A pod that comes gated does not name
it, and is bound by itself. So no pod of the group is ever gated. Each start has a group of its own:
pods of an earlier start that still end do not count.

It has the least number of pods that must be bound together. Once a pod of the gang is bound, that
is one: a pod that replaces another one must not wait for pods that have ended. Kubernetes deletes
it with its BatchJob.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fluxqueue.workload.objects import Object

KIND = ("scheduling.k8s.io", "PodGroup")
VERSIONS = frozenset({"v1beta1", "v1"})
"""Those of Kubernetes 1.37 and later. Before, ``minCount`` could not be changed."""


@dataclass(frozen=True, slots=True)
class GangGroup:
    """The PodGroup of the BatchJob ``job`` with this ``uid``, allocated at ``start_s`` (epoch).

    ``least``: how many pods are bound together. ``priority_class``: the class of its pods, if they
    name one. kube-scheduler preempts a pod by the priority of its group.
    """

    uid: str
    job: str
    least: int
    start_s: int = 0
    priority_class: str = ""

    @property
    def name(self) -> str:
        """Return its name. No later BatchJob has the same one."""
        return f"fluxqueue-{self.uid}-{self.start_s:x}"

    def body(self) -> dict[str, Any]:
        """Return the object without its kind. Preemption takes all of its pods or none."""
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": self.job, "uid": self.uid}
        spec: dict[str, Any] = {
            "schedulingPolicy": {"gang": {"minCount": self.least}},
            "disruptionMode": {"all": {}},
        }
        if self.priority_class:
            spec["priorityClassName"] = self.priority_class
        return {"metadata": {"name": self.name, "ownerReferences": [owner]}, "spec": spec}

    def is_made_for(self, stored: Object) -> bool:
        """Tell whether a stored object of this name is the group of this BatchJob."""
        owners = stored["metadata"].get("ownerReferences") or ()
        is_gang = "gang" in (stored.get("spec") or {}).get("schedulingPolicy", {})
        return is_gang and any(one.get("uid") == self.uid for one in owners)

    def correction(self, stored: Object) -> dict[str, Any] | None:
        """Return the merge patch that corrects a stored group, or None if it is as it should be."""
        if stored["spec"]["schedulingPolicy"]["gang"].get("minCount") == self.least:
            return None
        policy = {"schedulingPolicy": {"gang": {"minCount": self.least}}}
        return {"metadata": {"uid": stored["metadata"]["uid"]}, "spec": policy}
