"""What would change for objects of a namespace if fluxqueue managed it. Pure.

``fluxqueue adopt`` calls it with what is in the cluster. It says what admission would do with each
object that is created again, and what happens to work that is already there.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from fluxqueue.errors import InvalidInput
from fluxqueue.workload import labels
from fluxqueue.workload.aliases import Aliases
from fluxqueue.workload.annotations import read_wishes
from fluxqueue.workload.json_patch import at
from fluxqueue.workload.owner_kinds import OwnerKind, OwnerKinds, is_suspended
from fluxqueue.workload.pods import controller_owner

DEFAULT_QUEUE = "default"
OTHER_GATES = frozenset({"kueue.x-k8s.io/admission", "kueue.x-k8s.io/topology"})
_ENDED = frozenset({"Complete", "Failed", "Completed", "Succeeded"})


@dataclass(frozen=True, slots=True)
class PlannedChange:
    """One object: what it does now, and what happens.

    ``now`` is ``runs``, ``waits`` or ``ended``. ``queue`` is the FluxQueue of the object when it is
    created again, empty if it is not queued. ``note`` tells what to do. ``is_problem``: admission
    would refuse it, or its queue is missing.
    """

    kind: str
    name: str
    now: str
    queue: str
    note: str
    is_problem: bool = False


def plan_change(
    obj: Mapping[str, Any], namespace: str, aliases: Aliases, kinds: OwnerKinds, queues: Set[str]
) -> PlannedChange | None:
    """Return what would change for a Job, a Pod or an object that makes pods.

    None if nothing does: it has ended, another object makes it, or it does not ask to be queued.

    Parameters
    ----------
    queues : names of the FluxQueues that exist.
    """
    kind, meta = str(obj.get("kind") or ""), obj.get("metadata") or {}
    group = str(obj.get("apiVersion") or "").rpartition("/")[0]
    entry = kinds.find(group, kind)
    if _has_ended(obj) or controller_owner({"metadata": meta}) is not None:
        return None
    translated = aliases.translate(obj, namespace)
    told = translated.obj["metadata"].get("labels") or {}
    said, name = told.get(labels.MANAGED), str(meta.get("name") or "")
    if said == "false":
        return PlannedChange(kind, name, _now(obj, entry), "", "stays outside the queue")
    if entry is not None and said != "true":
        return None
    try:
        wishes = read_wishes({**translated.obj, "spec": _with_template(translated.obj)})
    except InvalidInput as error:
        fault = translated.in_words_of_author(error)
        return PlannedChange(kind, name, _now(obj, entry), "", f"would be refused: {fault}", True)
    queue, now = wishes.queue or DEFAULT_QUEUE, _now(obj, entry)
    if queue not in queues:
        note = f"FluxQueue {queue} is missing: create it, or map the name in queueNames"
        return PlannedChange(kind, name, now, queue, note, True)
    return PlannedChange(kind, name, now, queue, _note(obj, now, translated.left_out))


def _note(obj: Mapping[str, Any], now: str, left_out: tuple[str, ...]) -> str:
    if labels.MANAGED in ((obj.get("metadata") or {}).get("labels") or {}):
        return "is queued here already"
    if now == "runs":
        note = "runs on; its pods count as unmanaged"
    else:
        note = "delete it, and create it again"
    return f"{note}; without a meaning here: {', '.join(left_out)}" if left_out else note


def _with_template(obj: Mapping[str, Any]) -> dict[str, Any]:
    """Return a spec with the ``template`` that is read for annotations, if there is one."""
    template = at(obj, ("spec", "template"))
    return {"template": template} if isinstance(template, Mapping) else {}


def _now(obj: Mapping[str, Any], entry: OwnerKind | None) -> str:
    gates = at(obj, ("spec", "schedulingGates")) or ()
    is_gated = any(one.get("name") in {*OTHER_GATES, labels.GATE} for one in gates)
    is_held = bool(at(obj, ("spec", "suspend")))
    if entry is not None and entry.suspend:
        is_held = bool(is_suspended(entry, obj))
    return "waits" if is_gated or is_held else "runs"


def _has_ended(obj: Mapping[str, Any]) -> bool:
    status = obj.get("status") or {}
    conditions = status.get("conditions") or ()
    is_over = any(one.get("type") in _ENDED and one.get("status") == "True" for one in conditions)
    return is_over or status.get("phase") in {"Succeeded", "Failed"}
