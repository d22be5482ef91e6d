"""``WorkloadKind``: all questions that the rest of fluxqueue asks about a sort of workload. Pure.

The table of ``fluxqueue.workload.kinds`` has one entry for each sort. The defaults here are true
for a workload that only the gates of its pods hold. The webhook loads ``admitted`` alone.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fluxqueue.fluxjob.facts import WorkloadFacts
from fluxqueue.fluxjob.indexes import Range
from fluxqueue.fluxjob.pod_facts import PodFact, WorkloadProgress
from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.jobspec import Jobspec
from fluxqueue.workload import labels, release_patches
from fluxqueue.workload.json_patch import Patch
from fluxqueue.workload.kinds.admitted import AdmittedKind
from fluxqueue.workload.objects import Object
from fluxqueue.workload.observed_pod import pod_fact
from fluxqueue.workload.pod_request import (
    DEFAULT_PRIORITY,
    AskedPriority,
    choose_priority,
)
from fluxqueue.workload.references import Reference
from fluxqueue.workload.site import DEFAULT_SITE, Site


@dataclass(frozen=True, slots=True)
class Gathering:
    """A group that is not complete yet: how many of its pods are ``missing``, and why.

    ``reason`` is the message for users. The missing pods are overdue after ``patience_s`` seconds.
    None means the site's setting.
    """

    missing: int
    reason: str
    patience_s: int | None = None


class WorkloadKind(AdmittedKind):
    """A sort of workload."""

    # --- what is it ---------------------------------------------------------------------------

    can_be_suspended: ClassVar[bool] = False
    """Whether it has ``spec.suspend``. Such a workload has no pods while it waits."""
    is_known_by_gate_alone: ClassVar[bool] = True
    """Whether, after the release, only its FluxJob shows that fluxqueue manages it."""
    has_object: ClassVar[bool] = True
    """Whether an API object represents it and owns its FluxJob. Otherwise its pods define it."""
    is_made_of_pods: ClassVar[bool] = False
    """Whether its pods exist while it waits. Admission has completed them already."""
    is_built_in: ClassVar[bool] = True
    """Whether the API server knows its structure, and accepts strategic merge patches for it."""

    def shown_as(self, workload: Object) -> tuple[str, str]:
        """Return the apiVersion and kind that its FluxJob names."""
        return self.api_version, self.name

    def named(self, workload: Object) -> str:
        """Return its name in rows."""
        return self.name

    def reference(self, workload: Object) -> Reference | None:
        """Return the object that makes its pods, if the kind of that object has no entry."""
        return None

    def read(self, stored: Object, reference: Reference | None) -> Object:
        """Convert an object from the API server into the form that the other methods take."""
        return {"kind": self.name, **stored}

    @abstractmethod
    def looks_like(self, workload: Object) -> bool:
        """Tell whether an object that does not name its kind is of this kind."""

    # --- pod ownership ------------------------------------------------------------------------

    @abstractmethod
    def claim(self, pod: Object) -> str | None:
        """Return the UID of the workload of this kind that ``pod`` belongs to, or None."""

    # --- request ------------------------------------------------------------------------------

    def with_pods(self, workload: Object, change: Callable[[Object], Object]) -> Object:
        """Return the workload with ``change`` applied to each pod, or template of pods.

        A template has ``metadata`` and ``spec`` as a pod has. A workload that ``change`` leaves as
        it is is returned itself.
        """
        spec = workload.get("spec") or {}
        template = spec.get("template") or {}
        changed = change(template)
        if changed is template:
            return workload
        return {**workload, "spec": {**spec, "template": changed}}

    def pod_labels(self, workload: Object, pod: Object) -> Mapping[str, str]:
        """Return the labels that all pods of its kind surely have with equal values.

        ``pod`` is a pod, or a template of pods, as in ``with_pods``.
        """
        found: Mapping[str, str] = (pod.get("metadata") or {}).get("labels") or {}
        return found

    def metas(self, workload: Object) -> list[tuple[str, Object]]:
        """Return the metadata that can carry its author's wishes, with paths. The last one wins."""
        template = (workload.get("spec") or {}).get("template") or {}
        found = [("spec.template.metadata", template.get("metadata") or {})] if template else []
        return [*found, ("metadata", workload["metadata"])]

    def with_metas(self, workload: Object, change: Callable[[Object], Object]) -> Object:
        """Return a copy of the workload with ``change`` applied to each of its ``metas``."""
        changed = {**workload, "metadata": change(workload["metadata"])}
        template = (workload.get("spec") or {}).get("template") or {}
        if template.get("metadata"):
            template = {**template, "metadata": change(template["metadata"])}
            changed["spec"] = {**workload["spec"], "template": template}
        return changed

    def disregarded(self, workload: Object) -> Sequence[str]:
        """Return the wishes of its pods that do not count, as messages for users."""
        return ()

    def asks(self, workload: Object) -> tuple[Any, ...]:
        """Return everything that determines its request, its wishes and its priority."""
        meta, spec = workload["metadata"], dict(workload["spec"])
        spec.pop("suspend", None)
        return meta.get("annotations"), meta.get("labels"), spec

    def deletes_at(self, workload: Object) -> int | None:
        """Return when its controller deletes its pods (epoch seconds), None if it sets no time."""
        return None

    def priority(
        self,
        workload: Object,
        *,
        class_values: Mapping[str, int] | None = None,
        default: int = DEFAULT_PRIORITY,
    ) -> AskedPriority:
        """Choose its priority, as ``shape.choose_priority`` does.

        Raises
        ------
        InvalidInput
            An annotation cannot be read.
        """
        specs, wishes = self.pod_specs(workload), self.wishes(workload)
        return max(choose_priority(one, wishes, class_values or {}, default) for one in specs)

    def further(self, workload: Object, *, site: Site = DEFAULT_SITE) -> Jobspec | None:
        """Return every kind of slots that its pods need now, or None if all slots are equal.

        Its pods can come to need other slots than those that it started with.
        """
        return None

    def facts(self, workload: Object, common: WorkloadFacts) -> WorkloadFacts:
        """Add what only its kind knows to the facts that are read alike for all kinds."""
        return common

    def gathering(self, workload: Object) -> Gathering | None:
        """Return how far it is from complete, or None.

        This is for workloads with pods that arrive one by one before the start.
        """
        return None

    # --- how is it held -----------------------------------------------------------------------

    def is_taken_in(self, workload: Object) -> bool:
        """Tell whether a stored object itself shows that it is in the queue, or has left it."""
        return self.is_held(workload)

    def is_idle(self, workload: Object) -> bool:
        """Tell whether it is suspended and the controller of its pods reports that none is left."""
        return False

    def is_author_suspended(self, workload: Object) -> bool:
        """Tell whether its author created it suspended and has not unsuspended it yet."""
        return self._whose_suspension(workload) == "true"

    def is_suspended_again(self, workload: Object) -> bool:
        """Tell whether fluxqueue suspended it again after it was unsuspended.

        Either its author or fluxqueue can have unsuspended it.
        """
        return self._whose_suspension(workload) == "false"

    def _whose_suspension(self, workload: Object) -> str | None:
        notes = (workload.get("metadata") or {}).get("annotations") or {}
        return notes.get(labels.AUTHOR_SUSPENDED) if self.is_suspended(workload) else None

    def is_paused(self, workload: Object) -> bool:
        """Tell whether its author wants no pods of it now, and can raise their number later.

        Other workloads of size 0 are released at once, because their controllers decide whether
        they are complete.
        """
        return False

    # --- how is it released -------------------------------------------------------------------

    def resume_patch(
        self, uid: str, reference: Reference | None, *, is_pinned: bool
    ) -> dict[str, Any]:
        """Return the patch that releases the suspended object of this UID.

        See ``release_patches.resume_patch``.
        """
        # Here and below: admission loads this module, and never releases a workload.
        return release_patches.resume_patch(uid, is_pinned=is_pinned)

    def suspend_patch(self, workload: Object) -> Patch:
        """Return the patch that suspends a released one: it must wait, or its pods must end."""
        return release_patches.suspend_again_patch(workload)

    def pinned_node(self, workload: Object) -> str | None:
        """Return the node that its pod template names since its release."""
        return None

    def is_placed(self, workload: Object) -> bool:
        """Tell whether its pod template names the node of each index since its release."""
        return False

    def as_written(self, workload: Object) -> Object:
        """Return the object as its author wrote it, if its release has changed what it asks for."""
        return workload

    # --- how does it end ----------------------------------------------------------------------

    def pod_facts(self, workload: Object, pods: Sequence[Object]) -> tuple[PodFact, ...]:
        """Return its pods as rows store them, ordered by UID.

        Completion indexes count only if its pods have them, whatever a template contains.
        """
        facts = sorted((pod_fact(pod) for pod in pods), key=lambda one: one.uid)
        if self.has_indexes(workload):
            return tuple(facts)
        kinds = workload.get("slotKinds") or {}
        return tuple(replace(fact, index=None, kind=kinds.get(fact.uid, "")) for fact in facts)

    @abstractmethod
    def progress(self, workload: Object, pods: Sequence[PodFact] = ()) -> WorkloadProgress:
        """Return its progress.

        ``pods`` are its own pods as last seen. Its status counts succeeded pods a little later.
        """

    def last_result(self, workload: Object, pods: Sequence[PodFact] = ()) -> FluxJobState | None:
        """Return how it ended, if it is gone or terminating. None if it had not ended.

        The input is the last known state. ``pods`` are the pods that exist, and those that had
        ended before they were removed.
        """
        return self.progress(workload, pods).result

    def counted_pods(self, workload: Object) -> int:
        """Return how many pods its controller has counted so far, ended ones included."""
        return 0

    def has_indexes(self, workload: Object) -> bool:
        """Tell whether each pod has a completion index."""
        return False

    def ended_indexes(self, workload: Object, pods: Sequence[PodFact] = ()) -> list[Range]:
        """Return the completion indexes for which no more pods will be made."""
        return []

    @abstractmethod
    def news(self, workload: Object) -> tuple[Any, ...]:
        """Return what the rows keep of it. An equal answer means that no write is needed."""
