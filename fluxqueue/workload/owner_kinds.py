"""What makes pods, beside Jobs: how many pods an object of a kind is to have, and their labels.

Called by the webhook (``labels_paths``: pods of what asks to be queued are to ask, too) and the
controller (``size_of``: how many pods to wait for). A kind that is not in the table is queued as
well: its pods say whose they are, and those count that come within the arrival window. An
administrator adds entries by a setting (``parse_owner_kinds``). Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from fluxqueue.errors import InvalidSettings

Object = Mapping[str, Any]
Path = tuple[str | int, ...]

_SEGMENT = r"(?:[A-Za-z0-9_-]+|\*)"
_PATH = re.compile(rf"{_SEGMENT}(?:\.{_SEGMENT})*")
_KIND = re.compile(r"[A-Z][A-Za-z0-9]{0,62}")
_GROUP = re.compile(r"[a-z0-9][-a-z0-9]*(?:\.[a-z0-9][-a-z0-9]*)+")
_RESOURCE = re.compile(r"[a-z][a-z0-9]{0,62}")
_KEYS = {"kind", "group", "resource", "pods"}
_PART_KEYS = {"each", "count", "template", "labels"}
_EXAMPLE = (
    '[{"kind": "Gang", "group": "example.org", "resource": "gangs", "pods":'
    ' [{"each": "spec.roles.*", "count": ["replicas"], "template": "template"}]}]'
)


@dataclass(frozen=True, slots=True)
class PodsOf:
    """Some of the pods of an object.

    ``each``: path of what there is one of for each sort of pods, ``*`` being all of a list or map;
    empty is the object. ``count``: below that, paths of numbers, to be multiplied; of alternatives
    (``a|b``) the first that is there, and 1 where none is. ``labels``: below that, the path of the
    labels of its pods; empty where there is none.
    """

    each: str = ""
    count: tuple[str | int, ...] = ()
    labels: str = ""


@dataclass(frozen=True, slots=True)
class OwnerKind:
    """A kind: ``resource`` is its plural. Without ``pods`` nobody can tell how many there will be.

    ``is_late``: an edit of a stored object reaches its pods, too.
    """

    kind: str
    group: str
    resource: str
    pods: tuple[PodsOf, ...] = ()
    has_size: bool = True
    is_late: bool = False


def _template(path: str) -> str:
    return f"{path}.metadata.labels" if path else "metadata.labels"


def _sets() -> Iterator[OwnerKind]:
    """Started with the pods that are there: a set may make them one after the other."""
    for kind in ("Deployment", "ReplicaSet", "StatefulSet"):
        pods = (PodsOf(labels=_template("spec.template")),)
        yield OwnerKind(kind, "apps", f"{kind.lower()}s", pods, has_size=False, is_late=True)


def _replicas(kind: str, each: str) -> OwnerKind:
    pods = (PodsOf(each, ("replicas",), _template("template")),)
    return OwnerKind(kind, "kubeflow.org", f"{kind.lower()}s", pods)


_RAY = "spec.rayClusterSpec."
_HEAD, _WORKERS = "headGroupSpec", "workerGroupSpecs.*"


def _ray(kind: str, prefix: str) -> OwnerKind:
    workers = ("replicas|minReplicas", "numOfHosts")
    pods = (
        PodsOf(f"{prefix}{_HEAD}", (1,), _template("template")),
        PodsOf(f"{prefix}{_WORKERS}", workers, _template("template")),
    )
    return OwnerKind(kind, "ray.io", f"{kind.lower()}s", pods)


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
                _template("template.spec.template"),
            ),
        ),
    ),
    OwnerKind(
        "LeaderWorkerSet",
        "leaderworkerset.x-k8s.io",
        "leaderworkersets",
        (
            PodsOf(
                "",
                ("spec.replicas", "spec.leaderWorkerTemplate.size"),
                _template("spec.leaderWorkerTemplate.workerTemplate"),
            ),
            PodsOf("spec.leaderWorkerTemplate.leaderTemplate", (0,), _template("")),
        ),
    ),
    _replicas("MPIJob", "spec.mpiReplicaSpecs.*"),
    _replicas("PyTorchJob", "spec.pytorchReplicaSpecs.*"),
    _replicas("TFJob", "spec.tfReplicaSpecs.*"),
    _ray("RayCluster", "spec."),
    _ray("RayJob", _RAY),
    OwnerKind(
        "MiniCluster",
        "flux-framework.org",
        "miniclusters",
        (PodsOf("", ("spec.size",), "spec.pod.labels"),),
    ),
    # Its executors come when the driver runs, one by one.
    OwnerKind(
        "SparkApplication",
        "sparkoperator.k8s.io",
        "sparkapplications",
        (
            PodsOf("spec.driver", (1,), "labels"),
            PodsOf("spec.executor", (0,), "labels"),
        ),
    ),
    # Its steps come one after the other, by what its templates say at run time.
    OwnerKind(
        "Workflow",
        "argoproj.io",
        "workflows",
        (PodsOf("", (), "spec.podMetadata.labels"),),
        has_size=False,
    ),
)


class OwnerKinds:
    """The table: what is built in, and over it what a setting adds."""

    def __init__(self, added: Sequence[OwnerKind] = ()) -> None:
        self._entries = {(one.group, one.kind): one for one in (*BUILT_IN, *added)}

    def find(self, group: str, kind: str) -> OwnerKind | None:
        """The entry of a kind; None where there is none."""
        return self._entries.get((group, kind))

    def __iter__(self) -> Iterator[OwnerKind]:
        return iter(self._entries.values())


def size_of(entry: OwnerKind, obj: Object) -> int | None:
    """How many pods ``obj`` is to have; None where that cannot be read from it."""
    if not entry.has_size or not entry.pods:
        return None
    total = 0
    for part in entry.pods:
        for _, one in _find(obj, part.each):
            number = 1
            for count in part.count:
                value = count if isinstance(count, int) else _number(one, count)
                if value is None:
                    return None
                number *= value
            total += number
    return total or None


def _number(obj: Any, alternatives: str) -> int | None:
    """1 where nothing is said; None where what is said is no number of pods."""
    for path in alternatives.split("|"):
        for _, value in _find(obj, path):
            is_number = isinstance(value, int) and not isinstance(value, bool) and value >= 0
            return value if is_number else None
    return 1


def labels_paths(entry: OwnerKind, obj: Object) -> list[Path]:
    """Where the labels of the pods of ``obj`` stand or belong, as keys and list indexes."""
    found: dict[Path, None] = {}
    for part in entry.pods:
        if part.labels:
            found |= {
                (*at, *part.labels.split(".")): None
                for at, one in _find(obj, part.each)
                if isinstance(one, Mapping)
            }
    return list(found)


def _find(obj: Any, path: str) -> Iterator[tuple[Path, Any]]:
    """What ``path`` leads to, each with its place; nothing where a step is missing."""
    here: list[tuple[Path, Any]] = [((), obj)]
    for name in path.split(".") if path else ():
        here = [((*at, key), value) for at, one in here for key, value in _step(one, name)]
    return iter(here)


def _step(obj: Any, name: str) -> Iterator[tuple[str | int, Any]]:
    if name == "*" and isinstance(obj, Sequence) and not isinstance(obj, str):
        yield from enumerate(obj)
    elif name == "*" and isinstance(obj, Mapping):
        yield from obj.items()
    elif isinstance(obj, Mapping) and obj.get(name) is not None:
        yield name, obj[name]


# --- what an administrator adds -------------------------------------------------------------------


def parse_owner_kinds(text: str, where: str = "FLUXQUEUE_OWNER_KINDS") -> OwnerKinds:
    """Read the setting: a JSON list of entries, empty for none.

    Raises
    ------
    InvalidSettings
        Something in it cannot be used; names the field, its value and what is allowed.
    """
    if not text.strip():
        return OwnerKinds()
    try:
        entries = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise _invalid(f"is no JSON ({error})", where, text[:80]) from None
    if not isinstance(entries, list):
        raise _invalid("is no list of entries", where, text[:80])
    return OwnerKinds([_entry(one, f"{where}[{number}]") for number, one in enumerate(entries)])


def _entry(entry: Any, where: str) -> OwnerKind:
    _check_keys(entry, _KEYS, {"kind", "group", "resource"}, where)
    kind = _text(entry["kind"], _KIND, f"{where}.kind", "a kind as in objects: RayCluster")
    group = _text(entry["group"], _GROUP, f"{where}.group", "an API group: ray.io")
    hint = "the plural in lower case, as in URLs: rayclusters"
    resource = _text(entry["resource"], _RESOURCE, f"{where}.resource", hint)
    parts = entry.get("pods", [])
    if not isinstance(parts, list):
        raise _invalid("is no list", f"{where}.pods", parts)
    pods = tuple(_part(one, f"{where}.pods[{number}]") for number, one in enumerate(parts))
    has_size = bool(pods) and all(one.count for one in pods)
    return OwnerKind(kind, group, resource, pods, has_size=has_size)


def _part(part: Any, where: str) -> PodsOf:
    _check_keys(part, _PART_KEYS, set(), where)
    hint = "keys joined by '.', '*' for all of a list or map: spec.workers.*"
    each, labels = part.get("each", ""), part.get("labels", "")
    if "template" in part:
        labels = _template(_text(part["template"], _PATH, f"{where}.template", hint))
    if each:
        _text(each, _PATH, f"{where}.each", hint)
    if labels:
        _text(labels, _PATH, f"{where}.labels", hint)
    counts = part.get("count", [])
    if not isinstance(counts, list):
        raise _invalid("is no list", f"{where}.count", counts)
    for number, count in enumerate(counts):
        at = f"{where}.count[{number}]"
        if isinstance(count, int) and not isinstance(count, bool) and count >= 0:
            continue
        for one in count.split("|") if isinstance(count, str) else [count]:
            _text(one, _PATH, at, f"a number of pods, or its path: {hint}")
    return PodsOf(each, tuple(counts), labels)


def _check_keys(entry: Any, known: set[str], needed: set[str], where: str) -> None:
    if not isinstance(entry, dict):
        raise _invalid("is no entry", where, entry)
    if unknown := sorted(entry.keys() - known):
        raise _invalid("is no field of an entry", f"{where}.{unknown[0]}", entry[unknown[0]])
    if missing := sorted(needed - entry.keys()):
        raise _invalid("is missing", f"{where}.{missing[0]}", None)


def _text(value: Any, form: re.Pattern[str], where: str, hint: str) -> str:
    if not isinstance(value, str) or not form.fullmatch(value):
        raise InvalidSettings(f"{value!r} cannot be used", where=where, value=value, hint=hint)
    return value


def _invalid(message: str, where: str, value: Any) -> InvalidSettings:
    said = f"{value!r} {message}" if value is not None else message
    return InvalidSettings(said, where=where, value=value, hint=f"for example {_EXAMPLE}")
