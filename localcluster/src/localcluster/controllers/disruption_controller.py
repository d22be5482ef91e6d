"""PodDisruptionBudgets: how many pods may be evicted now. Evictions read this number.

It follows ``pkg/controller/disruption``. Not implemented is ``disruptedPods``, the record of
evictions that the count does not include yet. So two evictions at the same moment may both be
allowed.
"""

from __future__ import annotations

import math

from localcluster.client.resources import BUDGETS, PODS, REPLICASETS, STATEFULSETS
from localcluster.errors import Conflict, NotFound
from localcluster.loops.context import Context, QueueController
from localcluster.loops.objects import (
    controller_of,
    is_deleting,
    is_finished,
    is_true,
    key_of,
    now,
    write_time,
)
from localcluster.loops.workqueue import WorkQueue
from localcluster.obj import Obj
from localcluster.types.label_match import match_label_selector

COMPONENT = "disruption-controller"
_CONDITION = "DisruptionAllowed"


def budget_status(budget: Obj, pods: list[Obj], scale: int | None, stamp: str) -> Obj:
    """Return the status of a budget over ``pods``, all that its selector matches.

    ``scale`` is the number of pods that their controllers want. It is None if one of them has no
    controller with a number of replicas. Then percentages and ``maxUnavailable`` have no meaning,
    and no pod may be evicted. ``stamp`` is the time of a change.
    """
    spec = budget["spec"]
    healthy = sum(is_true(pod, "Ready") and not is_deleting(pod) for pod in pods)
    at_least = spec.get("minAvailable")
    if isinstance(at_least, int):
        expected, desired = len(pods), at_least
    else:
        expected = scale or 0
        if at_least is not None:
            desired = _share(at_least, expected)
        else:
            desired = max(0, expected - _share(spec.get("maxUnavailable", 0), expected))
    is_known = isinstance(at_least, int) or scale is not None
    allowed = max(0, healthy - desired) if is_known and expected > 0 else 0
    reason = "SufficientPods" if allowed else "InsufficientPods"
    condition = {
        "type": _CONDITION,
        "status": "True" if allowed else "False",
        "reason": reason if is_known else "SyncFailed",
        "message": "" if is_known else "found no controllers for the pods, or none with a scale",
        "observedGeneration": budget["metadata"].get("generation", 0),
        "lastTransitionTime": stamp,
    }
    before = budget.get("status") or {}
    for old in before.get("conditions") or ():
        if old["type"] == _CONDITION and old["status"] == condition["status"]:
            condition["lastTransitionTime"] = old["lastTransitionTime"]
    return {
        "observedGeneration": budget["metadata"].get("generation", 0),
        "disruptionsAllowed": allowed,
        "currentHealthy": healthy,
        "desiredHealthy": desired,
        "expectedPods": expected,
        "conditions": [condition],
    }


def _share(value: int | str, of: int) -> int:
    """Return a number, or a percentage of ``of`` rounded up as the real controller does."""
    if isinstance(value, int):
        return value
    return math.ceil(int(value.removesuffix("%")) * of / 100)


class DisruptionController(QueueController):
    """Writes the status of budgets."""

    def __init__(self, context: Context) -> None:
        self._client = context.client_of(COMPONENT)
        self._budgets = context.informers.get(BUDGETS)
        self._pods = context.informers.get(PODS)
        self._owners = [context.informers.get(kind) for kind in (REPLICASETS, STATEFULSETS)]
        self._queue: WorkQueue[tuple[str, str]] = WorkQueue(COMPONENT, self._sync)
        self._budgets.add_handler(self._changed)
        self._pods.add_handler(self._content_changed)
        for owners in self._owners:
            owners.add_handler(self._content_changed)

    def _content_changed(self, old: Obj | None, new: Obj | None) -> None:
        if not len(self._budgets):
            return
        namespace = (new or old or {})["metadata"]["namespace"]
        for budget in self._budgets.items():
            if budget["metadata"]["namespace"] == namespace:
                self._queue.add(key_of(budget))

    async def _sync(self, key: tuple[str, str]) -> None:
        budget = self._budgets.get(*key)
        if budget is None or is_deleting(budget):
            return
        namespace, name = key
        selector = budget["spec"].get("selector")
        pods = [
            pod
            for pod in self._pods.items()
            if pod["metadata"]["namespace"] == namespace
            and not is_finished(pod)
            and match_label_selector(selector, pod["metadata"].get("labels") or {})
        ]
        status = budget_status(budget, pods, self._scale(pods), write_time(now()))
        if status == budget.get("status"):
            return
        try:
            body = {**budget, "status": status}
            written = await self._client.replace(
                BUDGETS, namespace, name, body, subresource="status"
            )
        except (NotFound, Conflict):
            return  # The informer brings the present state.
        self._budgets.observe(written)

    def _scale(self, pods: list[Obj]) -> int | None:
        """Return how many replicas the controllers of the pods want together, or None."""
        wanted: dict[str, int] = {}
        for pod in pods:
            owner = controller_of(pod)
            if owner is None:
                return None
            namespace = pod["metadata"]["namespace"]
            found = [
                kept["spec"].get("replicas", 1)
                for owners in self._owners
                if (kept := owners.get(namespace, owner["name"])) is not None
                and kept["metadata"]["uid"] == owner["uid"]
            ]
            if not found:
                return None
            wanted[owner["uid"]] = found[0]
        return sum(wanted.values())
