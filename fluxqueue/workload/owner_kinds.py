"""The table of what makes pods, beside Jobs: number of pods, templates and suspension.

The webhook uses it (``labels_paths``) to make the pods of an object that asks to be queued ask,
too. The controller uses it (``size_of``) to know how many pods to wait for. The entry of objects
that can be suspended uses it as well (``workload.kinds.suspended_owner``).

A kind that is not in the table is queued as well. Its pods name their owner, and the pods that
arrive within the arrival window count. An administrator adds entries with a setting
(``owner_kind_settings``). Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.workload.object_paths import Path, find, value_at
from fluxqueue.workload.objects import Object

_COMPLETED = tuple(
    f"status.conditions.{name}.status=True" for name in ("Complete", "Completed", "Succeeded")
)
_FAILED = ("status.conditions.Failed.status=True",)


@dataclass(frozen=True, slots=True)
class PodsOf:
    """Some of the pods of an object.

    ``each``: path of the parts, one part for each sort of pods. ``*`` means all of a list or map.
    Empty means the object itself. ``count``: paths of numbers below a part, which are multiplied.
    Of alternatives (``a|b``) the first that exists counts, and 1 if none does. ``template``: path
    of the pod template below a part. Empty if the part is the template, None if it has none.
    ``labels``: the path of the labels of its pods, if no template has them.
    """

    each: str = ""
    count: tuple[str | int, ...] = ()
    template: str | None = None
    labels: str = ""

    @property
    def labels_path(self) -> str:
        """Return the path of the pods' labels below each part, empty if there is none."""
        if self.template is None:
            return self.labels
        return f"{self.template}.metadata.labels" if self.template else "metadata.labels"


@dataclass(frozen=True, slots=True)
class OwnerKind:
    """A kind: ``resource`` is its plural. Without ``pods`` the number of its pods is unknown.

    ``is_late``: an edit of a stored object reaches its pods, too. ``suspend``: path of the field
    that prevents pods, empty if it has none. ``suspend_if``: the condition for its use, as
    ``path=value``. ``completed``, ``failed``: any one of these appears in the object at its end.

    ``templates_in``: API group and kind of the object that it makes at once, suspended like itself.
    It is set if the templates are in that object. ``hands_on``: paths of the labels that it copies
    to what it makes, each in some of its versions. ``list[key=value]`` is an element of a list.
    ``deadline``: path of the maximum run time (seconds), counted from its release. ``is_stamped``:
    admission keeps the submitter in its templates, for edits by any account
    (``workload.submitter``).
    """

    kind: str
    group: str
    resource: str
    pods: tuple[PodsOf, ...] = ()
    has_size: bool = True
    is_late: bool = False
    suspend: str = ""
    suspend_if: tuple[str, ...] = ()
    templates_in: tuple[str, str] | None = None
    hands_on: tuple[str, ...] = ()
    deadline: str = ""
    is_stamped: bool = False
    completed: tuple[str, ...] = _COMPLETED
    failed: tuple[str, ...] = _FAILED

    @property
    def operations(self) -> list[str]:
        """Return the operations that admission is asked about."""
        has_updates = self.is_late or self.suspend or self.is_stamped
        return ["CREATE", "UPDATE"] if has_updates else ["CREATE"]


def _sets() -> Iterator[OwnerKind]:
    """Yield sets. They start with the pods that exist: a set may make them one after the other."""
    for kind in ("Deployment", "ReplicaSet", "StatefulSet"):
        pods = (PodsOf(template="spec.template"),)
        yield OwnerKind(kind, "apps", f"{kind.lower()}s", pods, has_size=False, is_late=True)


def _replicas(kind: str, each: str) -> OwnerKind:
    """Return an entry for Kubeflow. Versions without the field are stored as not suspended."""
    pods = (PodsOf(each, ("replicas",), "template"),)
    suspend = "spec.runPolicy.suspend"
    return OwnerKind(kind, "kubeflow.org", f"{kind.lower()}s", pods, suspend=suspend)


_HEAD, _WORKERS = "headGroupSpec", "workerGroupSpecs.*"


def _ray(kind: str, prefix: str, **more: Any) -> OwnerKind:
    workers = ("replicas|minReplicas", "numOfHosts")
    pods = (
        PodsOf(f"{prefix}{_HEAD}", (1,), "template"),
        PodsOf(f"{prefix}{_WORKERS}", workers, "template"),
    )
    return OwnerKind(kind, "ray.io", f"{kind.lower()}s", pods, suspend="spec.suspend", **more)


BUILT_IN: tuple[OwnerKind, ...] = (
    *_sets(),
    OwnerKind(
        "JobSet",
        "jobset.x-k8s.io",
        "jobsets",
        (
            PodsOf(
                "spec.replicatedJobs.*",
                ("replicas", "template.spec.parallelism"),
                "template.spec.template",
            ),
        ),
        suspend="spec.suspend",
    ),
    OwnerKind(
        "LeaderWorkerSet",
        "leaderworkerset.x-k8s.io",
        "leaderworkersets",
        (
            PodsOf(
                "",
                ("spec.replicas", "spec.leaderWorkerTemplate.size"),
                "spec.leaderWorkerTemplate.workerTemplate",
            ),
            PodsOf("spec.leaderWorkerTemplate.leaderTemplate", (0,), ""),
        ),
        is_stamped=True,
    ),
    _replicas("MPIJob", "spec.mpiReplicaSpecs.*"),
    _replicas("PyTorchJob", "spec.pytorchReplicaSpecs.*"),
    _replicas("TFJob", "spec.tfReplicaSpecs.*"),
    _replicas("XGBoostJob", "spec.xgbReplicaSpecs.*"),
    _replicas("PaddleJob", "spec.paddleReplicaSpecs.*"),
    _replicas("JAXJob", "spec.jaxReplicaSpecs.*"),
    _ray("RayCluster", "spec."),
    # The operator refuses to suspend a RayJob that keeps its cluster after its end.
    _ray(
        "RayJob",
        "spec.rayClusterSpec.",
        suspend_if=("spec.shutdownAfterJobFinishes=true",),
        completed=("status.jobDeploymentStatus=Complete",),
        failed=("status.jobDeploymentStatus=Failed",),
    ),
    OwnerKind(
        "MiniCluster",
        "flux-framework.org",
        "miniclusters",
        (PodsOf("", ("spec.size",), labels="spec.pod.labels"),),
    ),
    # Its executors arrive one by one when the driver runs.
    OwnerKind(
        "SparkApplication",
        "sparkoperator.k8s.io",
        "sparkapplications",
        (
            PodsOf("spec.driver", (1,), labels="labels"),
            PodsOf("spec.executor", (0,), labels="labels"),
        ),
    ),
    # Its templates are in the runtime that it names, and, as changed by it, in the JobSet of the
    # same name. That JobSet is made at once, suspended like it, and released together with it.
    OwnerKind(
        "TrainJob",
        "trainer.kubeflow.org",
        "trainjobs",
        has_size=False,
        suspend="spec.suspend",
        templates_in=("jobset.x-k8s.io", "JobSet"),
        hands_on=(
            "spec.labels",
            "spec.runtimePatches[manager=fluxqueue].trainingRuntimeSpec.template.metadata.labels",
        ),
        deadline="spec.activeDeadlineSeconds",
    ),
    # Its steps run one after the other, as its templates determine at run time.
    OwnerKind(
        "Workflow",
        "argoproj.io",
        "workflows",
        (PodsOf(labels="spec.podMetadata.labels"),),
        has_size=False,
    ),
)


class OwnerKinds:
    """The table: the built-in entries, and over them those that a setting adds."""

    def __init__(self, added: Sequence[OwnerKind] = ()) -> None:
        self._entries = {(one.group, one.kind): one for one in (*BUILT_IN, *added)}

    def find(self, group: str, kind: str) -> OwnerKind | None:
        """Return the entry of a kind, or None if there is none."""
        return self._entries.get((group, kind))

    def of_reference(self, owner: Object) -> OwnerKind | None:
        """Return the entry of the kind that an owner reference names, or None."""
        return self.find(owner["apiVersion"].rpartition("/")[0], owner["kind"])

    def __iter__(self) -> Iterator[OwnerKind]:
        return iter(self._entries.values())


@dataclass(frozen=True, slots=True)
class PartOf:
    """Equal pods of an object: their ``template``, its path, and how many there will be."""

    at: Path
    template: Object
    count: int


def size_of(entry: OwnerKind, obj: Object) -> int | None:
    """Return how many pods ``obj`` will have, or None if that cannot be read from it."""
    if not entry.has_size or not entry.pods:
        return None
    counts = [_count(part, one) for part in entry.pods for _, one in find(obj, part.each)]
    if any(count is None for count in counts):
        return None
    return sum(count or 0 for count in counts) or None


def _count(part: PodsOf, one: Any) -> int | None:
    number = 1
    for count in part.count:
        value = count if isinstance(count, int) else _number(one, count)
        if value is None:
            return None
        number *= value
    return number


def _number(obj: Any, alternatives: str) -> int | None:
    """Return 1 if no value is there. None if the value is no number of pods."""
    for path in alternatives.split("|"):
        for _, value in find(obj, path):
            is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
            return value if is_number else None
    return 1


def labels_paths(entry: OwnerKind, obj: Object) -> list[Path]:
    """Return the places for the labels of the pods of ``obj``, as keys and list indexes."""
    found: dict[Path, None] = {}
    for part in entry.pods:
        if part.labels_path:
            found |= {
                (*at, *part.labels_path.split(".")): None
                for at, one in find(obj, part.each)
                if isinstance(one, Mapping)
            }
    return list(found)


def parts_of(entry: OwnerKind, obj: Object) -> list[PartOf] | None:
    """Return the pods of ``obj`` by template, or None if some of that cannot be read from it."""
    if size_of(entry, obj) is None:
        return None
    found = []
    for part in entry.pods:
        for at, one in find(obj, part.each):
            template = one if part.template == "" else value_at(one, part.template or "?")
            if not isinstance(template, Mapping) or not (template.get("spec") or {}):
                return None
            path = (*at, *(part.template or "").split(".")) if part.template else at
            found.append(PartOf(path, template, _count(part, one) or 0))
    return found


def can_be_suspended(entry: OwnerKind, obj: Object) -> bool:
    """Tell whether ``obj`` can wait suspended: its kind can, and its request is known."""
    is_so = all(_is(obj, one) for one in entry.suspend_if)
    is_told = entry.templates_in is not None or parts_of(entry, obj) is not None
    return bool(entry.suspend) and is_so and is_told


def is_suspended(entry: OwnerKind, obj: Object) -> bool | None:
    """Tell whether ``obj`` is suspended. None if it has no such field, as in another version."""
    value = value_at(obj, entry.suspend) if entry.suspend else None
    return value if isinstance(value, bool) else None


def result_of(entry: OwnerKind, obj: Object) -> FluxJobState | None:
    """Return the result that ``obj`` reports, or None if it has not ended."""
    if any(_is(obj, one) for one in entry.failed):
        return FluxJobState.FAILED
    return FluxJobState.COMPLETED if any(_is(obj, one) for one in entry.completed) else None


def _is(obj: Object, said: str) -> bool:
    path, _, value = said.partition("=")
    found = value_at(obj, path)
    return (str(found).lower() if isinstance(found, bool) else str(found)) == value
