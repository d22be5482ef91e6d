"""``Kind``: all that the rest of fluxqueue asks about a sort of workload. Pure.

One entry for each sort, in the table of ``fluxqueue.workload.kinds``. What the defaults say is true
of a workload that is held by the gates of its pods alone.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from fluxqueue.fluxjob.follow import PodFact, WorkloadFact
from fluxqueue.fluxjob.indexes import Range
from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.jobspec import Jobspec
from fluxqueue.objects import Object
from fluxqueue.workload.annotations import Wishes, read_wishes
from fluxqueue.workload.gates import Merge, release_patch, resuspend_patch
from fluxqueue.workload.json_patch import Patch
from fluxqueue.workload.pods import gate_index, pod_fact
from fluxqueue.workload.references import Reference
from fluxqueue.workload.shape import DEFAULT_PRIORITY, build_request, choose_priority
from fluxqueue.workload.site import DEFAULT_SITE, Site


@dataclass(frozen=True, slots=True)
class Gathering:
    """A group: how many of its pods are ``missing``, as ``reason`` says in words; they are overdue
    after ``patience_s`` seconds, None being the site's setting."""

    missing: int
    reason: str
    patience_s: int | None = None


class Kind(ABC):
    """A sort of workload."""

    # --- what is it ---------------------------------------------------------------------------

    name: ClassVar[str]
    """As objects, rows and FluxJobs name it."""
    group: ClassVar[str]
    version: ClassVar[str]
    plural: ClassVar[str]
    pod_spec_path: ClassVar[str]
    """Where the spec of its pods stands, for errors."""

    can_be_suspended: ClassVar[bool] = False
    """Whether it has ``spec.suspend``: held by that, so that it makes no pods while it waits."""
    is_known_by_gate_alone: ClassVar[bool] = True
    """Whether nothing but its FluxJob tells that it is ours once it was let go."""
    has_object: ClassVar[bool] = True
    """Whether an object stands for it, that owns its FluxJob; else its pods make it."""
    is_built_in: ClassVar[bool] = True
    """Whether the API server knows its structure, and takes strategic merge patches for it."""

    @property
    def api_version(self) -> str:
        """``v1`` or ``batch/v1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def shown_as(self, workload: Object) -> tuple[str, str]:
        """apiVersion and kind that its FluxJob names."""
        return self.api_version, self.name

    def named(self, workload: Object) -> str:
        """What rows call it."""
        return self.name

    def reference(self, workload: Object) -> Reference | None:
        """What makes its pods, where that is of a kind that is no entry."""
        return None

    def read(self, stored: Object, reference: Reference | None) -> Object:
        """An object as the API server gives it, in the form that the other questions take."""
        return {"kind": self.name, **stored}

    @abstractmethod
    def looks_like(self, workload: Object) -> bool:
        """Whether an object that does not name its kind is of this one."""

    # --- whose are its pods -------------------------------------------------------------------

    @abstractmethod
    def claim(self, pod: Object) -> str | None:
        """UID of the workload of this kind that ``pod`` belongs to, if it does."""

    # --- what does it ask for -----------------------------------------------------------------

    @abstractmethod
    def pod_spec(self, workload: Object) -> Object:
        """The spec of its pods; empty where it has none."""

    def pod_specs(self, workload: Object) -> Sequence[Object]:
        """The specs of its pods, each kind of pods once."""
        return (self.pod_spec(workload),)

    def wishes(self, workload: Object) -> Wishes:
        """What its author asked for beside its pods' resources.

        Raises
        ------
        InvalidInput
            An annotation cannot be read.
        """
        return read_wishes(workload)

    def metas(self, workload: Object) -> list[tuple[str, Object]]:
        """The metadata in which its author's wishes stand, with their paths. The last one wins."""
        template = (workload.get("spec") or {}).get("template") or {}
        found = [("spec.template.metadata", template.get("metadata") or {})] if template else []
        return [*found, ("metadata", workload["metadata"])]

    def with_metas(self, workload: Object, change: Callable[[Object], Object]) -> Object:
        """The workload with each of its ``metas`` as ``change`` makes it."""
        changed = {**workload, "metadata": change(workload["metadata"])}
        template = (workload.get("spec") or {}).get("template") or {}
        if template.get("metadata"):
            template = {**template, "metadata": change(template["metadata"])}
            changed["spec"] = {**workload["spec"], "template": template}
        return changed

    def disregarded(self, workload: Object) -> Sequence[str]:
        """What its pods wish and does not count, as people are told."""
        return ()

    def asks(self, workload: Object) -> tuple[Any, ...]:
        """All that its request, its wishes and its priority are read from."""
        meta, spec = workload["metadata"], dict(workload["spec"])
        spec.pop("suspend", None)
        return meta.get("annotations"), meta.get("labels"), spec

    @abstractmethod
    def size(self, workload: Object) -> int:
        """How many pods it runs at once."""

    def to_request(self, workload: Object, *, site: Site = DEFAULT_SITE) -> Jobspec:
        """Describe what it needs while it runs: one slot for each of its ``size`` pods.

        A workload of size 0 asks for nothing and has no slots.

        Raises
        ------
        InvalidInput
            An annotation, a quantity or an affinity term cannot be read.
        """
        return build_request(
            self.pod_spec(workload),
            self.wishes(workload),
            count=self.size(workload),
            deadline_s=workload["spec"].get("activeDeadlineSeconds"),
            where=self.pod_spec_path,
            site=site,
        )

    def priority(
        self,
        workload: Object,
        *,
        class_values: Mapping[str, int] | None = None,
        default: int = DEFAULT_PRIORITY,
    ) -> int:
        """Choose its priority; see ``shape.choose_priority``.

        Raises
        ------
        InvalidInput
            An annotation cannot be read.
        """
        specs, wishes = self.pod_specs(workload), self.wishes(workload)
        return max(choose_priority(one, wishes, class_values or {}, default) for one in specs)

    def further(self, workload: Object, *, site: Site = DEFAULT_SITE) -> Jobspec | None:
        """Every kind of slots that its pods need now, where they may come to need others than
        those that it started with; None where all are equal.
        """
        return None

    def gathering(self, workload: Object) -> Gathering | None:
        """How far it is from being complete, where its pods come one by one before it starts."""
        return None

    # --- how is it held -----------------------------------------------------------------------

    @abstractmethod
    def why_not(self, workload: Object) -> str | None:
        """Say why one that nothing else speaks against is not to be taken in."""

    @abstractmethod
    def hold_patch(self, workload: Object, wishes: Wishes, user: str) -> Patch:
        """Take it in at admission: held, labelled, with its deadline and its submitter.

        Idempotent: what the patch makes gets an empty one.
        """

    def is_held(self, workload: Object) -> bool:
        """Whether a stored object waits for us: our gate is on its pods."""
        return gate_index(self.pod_spec(workload)) is not None

    def is_taken_in(self, workload: Object) -> bool:
        """Whether a stored object says by itself that it is in the queue, or came out of it."""
        return self.is_held(workload)

    def is_suspended(self, workload: Object) -> bool:
        """Whether it may not start pods now."""
        return False

    def is_idle(self, workload: Object) -> bool:
        """Whether it is suspended, and whoever makes its pods says that none of them is left."""
        return False

    def is_author_suspended(self, workload: Object) -> bool:
        """Whether its author made it suspended and has not let it go yet."""
        return False

    def is_suspended_again(self, workload: Object) -> bool:
        """Whether it is we who suspended it after it had been let go, by its author or by us."""
        return False

    def replaces_pods(self, workload: Object) -> bool:
        """Whether it makes another pod for one that is deleted."""
        return False

    def made_by(self, workload: Object) -> str | None:
        """Who makes its pods again, where whoever wants it away has to delete that; else None."""
        return None

    # --- how is it released -------------------------------------------------------------------

    def release_patch(self, uid: str, reference: Reference | None, *, is_pinned: bool) -> Merge:
        """Let a suspended one of this UID go; see ``gates.release_patch``."""
        return release_patch(uid, is_pinned=is_pinned)

    def stop_patch(self, workload: Object) -> Patch:
        """Suspend one that was let go: its turn has not come, or its pods are to end."""
        return resuspend_patch(workload)

    def is_pinnable(self, workload: Object) -> bool:
        """Whether its pod template may name the node of all its slots (``pinning``)."""
        return False

    def pinned_node(self, workload: Object) -> str | None:
        """The node that its pod template names since its release."""
        return None

    def as_written(self, workload: Object) -> Object:
        """The object as its author wrote it, where its release has changed what it asks for."""
        return workload

    # --- how does it end ----------------------------------------------------------------------

    def facts(self, workload: Object, pods: Sequence[Object]) -> tuple[PodFact, ...]:
        """Its pods as rows store them, in the order of their UIDs.

        Only where pods have indexes do they count, whatever a template says.
        """
        facts = sorted((pod_fact(pod) for pod in pods), key=lambda one: one.uid)
        if self.has_indexes(workload):
            return tuple(facts)
        return tuple(replace(fact, index=None) for fact in facts)

    @abstractmethod
    def fact(self, workload: Object, pods: Sequence[PodFact] = ()) -> WorkloadFact:
        """Tell how far it is.

        ``pods`` are its own as last seen: its status counts those that succeeded a little later.
        """

    def last_result(self, workload: Object, pods: Sequence[PodFact] = ()) -> FluxJobState | None:
        """How it ended, where it is gone or going; None where it had not ended.

        Asked of what was seen last: ``pods`` are those that are there, and those that had ended
        before they went.
        """
        return self.fact(workload, pods).result

    def has_indexes(self, workload: Object) -> bool:
        """Whether each pod has a completion index."""
        return False

    def ended_indexes(self, workload: Object, pods: Sequence[PodFact] = ()) -> list[Range]:
        """Completion indexes for which no pod will be made any more."""
        return []

    @abstractmethod
    def news(self, workload: Object) -> tuple[Any, ...]:
        """What of it the rows keep: an equal answer means that nothing is to be written."""
