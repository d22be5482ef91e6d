"""What pods ask for beyond their template, learned from the pods that admission has changed.

Service meshes and VPA change pods after their Job was read. LimitRanges and RuntimeClasses are
counted before that (``surroundings``). The controller's reader (``observing.read_workload``) learns
the difference from the first pod of a template that it sees. The next Job with such a template is
then matched at its real size.

Only pods that have not started teach: a running pod may have been resized in place. Pure.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from fluxqueue.fluxjob.request import CPU
from fluxqueue.workload import labels
from fluxqueue.workload.objects import Object
from fluxqueue.workload.observed_pod import USES
from fluxqueue.workload.pod_resources import raw_request
from fluxqueue.workload.pods import template_spec

TEMPLATES_MAX, OF_NAMESPACE_MAX = 10_000, 1_000
"""Templates that are remembered, in all and of one namespace. The one that was used least recently
goes first."""

_MADE_BY_THE_CONTROLLER = frozenset({"controller-uid", "job-name"})
_CONTAINER = ("name", "image", "resources", "restartPolicy")
_SPEC = ("serviceAccountName", "runtimeClassName", "priorityClassName", "resources", "overhead")


@dataclass(frozen=True, slots=True)
class LearnedSize:
    """What each pod of a template asks for beyond it: resource and base units, in order.

    ``key`` is ``template_key`` of that template in ``namespace``. ``learned_at`` is the creation
    time of the pod that taught it.
    """

    namespace: str
    key: str
    extra: tuple[tuple[str, int], ...]
    learned_at: str


class LearnedSizes:
    """The learned sizes of one cluster."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], LearnedSize] = OrderedDict()
        self._news: dict[tuple[str, str], LearnedSize] = {}

    def know(self, sizes: Iterable[LearnedSize]) -> None:
        """Add what was learned before this process."""
        for one in sizes:
            self._known.setdefault((one.namespace, one.key), one)

    def learn(self, job: Object, pods: Sequence[Object], *, keeps_equal: bool = False) -> None:
        """Compare the newest pod of a Job that has not started with its template.

        With ``keeps_equal`` also a template is remembered that its pods do not exceed.

        Raises
        ------
        InvalidInput
            A quantity of the template cannot be read.
        """
        teachers = [pod for pod in pods if _teaches(pod)]
        if not teachers:
            return
        pod = max(teachers, key=_created)
        where = (str(job["metadata"]["namespace"]), template_key(job))
        known = self._known.get(where)
        if known is not None and known.learned_at > _created(pod):
            return
        own = raw_request(template_spec(job["spec"]))
        uses = dict(pod["status"][USES])
        more = {name: amount - own.get(name, 0) for name, amount in uses.items()}
        extra = tuple(sorted((name, amount) for name, amount in more.items() if amount > 0))
        if known is None and not extra and not keeps_equal:
            return
        if known is not None and extra == known.extra:
            return
        self._known[where] = self._news[where] = LearnedSize(*where, extra, _created(pod))
        self._forget(where[0])

    def _forget(self, namespace: str) -> None:
        """Forget what is too much, after something was learned in ``namespace``."""
        own = [where for where in self._known if where[0] == namespace]
        if len(own) > OF_NAMESPACE_MAX:
            del self._known[own[0]]
        while len(self._known) > TEMPLATES_MAX:
            self._known.popitem(last=False)

    def of(self, job: Object) -> tuple[tuple[str, int], ...]:
        """Return what each pod of a Job asks for beyond its template, as far as it is known."""
        if not self._known:
            return ()
        where = (str(job["metadata"]["namespace"]), template_key(job))
        found = self._known.get(where)
        if found is None:
            return ()
        self._known.move_to_end(where)
        return found.extra

    def knows(self, job: Object) -> bool:
        """Return whether the real size of the pods of a Job is remembered."""
        return (str(job["metadata"]["namespace"]), template_key(job)) in self._known

    @property
    def news(self) -> list[LearnedSize]:
        """Return what was learned and is not in a row yet."""
        return list(self._news.values())

    def saved(self, news: Iterable[LearnedSize]) -> None:
        """Record that ``news`` are in rows now."""
        for one in news:
            if self._news.get((one.namespace, one.key)) == one:
                del self._news[one.namespace, one.key]


def template_key(job: Object) -> str:
    """Return what admission can decide by: the parts of a template that webhooks select on.

    Commands and environments are left out. So the Jobs of one user with one image share a key.
    """
    template = job["spec"].get("template") or {}
    meta, spec = template.get("metadata") or {}, template.get("spec") or {}
    asked = {
        "labels": _selectable(meta.get("labels") or {}),
        "annotations": _selectable(meta.get("annotations") or {}),
        "containers": [_part(one, _CONTAINER) for one in spec.get("containers") or ()],
        "init": [_part(one, _CONTAINER) for one in spec.get("initContainers") or ()],
        "spec": _part(spec, _SPEC),
    }
    written = orjson.dumps(asked, option=orjson.OPT_SORT_KEYS)
    return hashlib.sha256(written).hexdigest()[:32]


def with_extra(job: Object, extra: Sequence[tuple[str, int]]) -> Object:
    """Return a Job with pods that ask for ``extra`` (base units) more, as overhead of the pod."""
    if not extra:
        return job
    spec = template_spec(job["spec"])
    overhead = dict(spec.get("overhead") or {})
    before = raw_request({"overhead": overhead})
    for name, amount in extra:
        total = before.get(name, 0) + amount
        overhead[name] = f"{total}m" if name == CPU else str(total)
    template = {**job["spec"]["template"], "spec": {**spec, "overhead": overhead}}
    return {**job, "spec": {**job["spec"], "template": template}}


def _teaches(pod: Object) -> bool:
    status = pod.get("status") or {}
    return status.get("phase", "Pending") == "Pending" and bool(status.get(USES))


def _created(pod: Object) -> str:
    return str(pod["metadata"].get("creationTimestamp") or "")


def _selectable(found: Mapping[str, Any]) -> dict[str, str]:
    """Return labels or annotations without those that differ from Job to Job by themselves."""
    return {
        key: str(value)
        for key, value in found.items()
        if not key.startswith((labels.PREFIX, "batch.kubernetes.io/"))
        and key not in _MADE_BY_THE_CONTROLLER
    }


def _part(found: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: found[key] for key in keys if found.get(key)}
