"""Released BatchJobs that name the node of each index, with a proof. Pure.

The worker writes an ``IndexPlacement`` into the template of an Indexed BatchJob (``release``). The
template keeps the gate. When the Job controller creates a pod, the webhook reads the annotation,
checks its proof, names the node of the pod's index and removes the gate (``placed_by_proof``). So
the pod needs no patch of its own, and kube-scheduler looks at it once.

A pod that the webhook did not see stays gated, and so does a pod that the proof does not cover. The
worker ungates it as any other pod. The proof is an HMAC over the UID of the BatchJob and the
annotation, so no user can make one, or use that of another BatchJob. It ends ``OPEN_S`` seconds
after the nodes were allocated: a pod that replaces another one comes gated again, and a copy from
before a requeue is worth nothing.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import Any

import orjson

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.hostlist import MAX_HOSTS, compress, expand
from fluxqueue.fluxjob.node import Destination
from fluxqueue.workload import labels
from fluxqueue.workload.gates import placed_pod
from fluxqueue.workload.json_patch import edited
from fluxqueue.workload.kinds.admitted import JOB
from fluxqueue.workload.objects import Object
from fluxqueue.workload.observed_pod import completion_index
from fluxqueue.workload.pinning import has_required_affinity, sealed_in
from fluxqueue.workload.pod_resources import raw_request
from fluxqueue.workload.pods import gate_index

OPEN_S = 60.0
"""Seconds after the allocation in which pods are placed at their creation."""
VALID_S = OPEN_S + 10.0
"""The same by the clock of Postgres, which may differ. Slots are kept so long."""
LONGEST = 8192
"""The most characters of the annotation. Each pod is created with it, and loses it."""


@dataclass(frozen=True, slots=True)
class IndexPlacement:
    """Where the pod of each index goes.

    ``nodes``: by index. ``uses``: what one slot has, resource name -> base units. A larger pod
    stays gated. ``until_s``: epoch seconds. ``is_by_name``: kube-scheduler gets the node's name,
    too (``Destination.is_labelled_index``).

    ``drops_managed_fields``: its pods are stored without ``managedFields``. The API server then
    records no owners of their fields at later updates either, which is a fifth of what a pod costs
    it. Kubernetes documents the reset ("Clearing managedFields"). A server-side apply begins them
    again. No author applies a pod that the Job controller makes.

    ``group``: the PodGroup that its pods name (``gang_group``). Empty: they are bound one by one.
    """

    jobid: int
    nodes: tuple[str, ...]
    uses: Mapping[str, int] = field(hash=False)
    until_s: float
    is_by_name: bool = False
    drops_managed_fields: bool = False
    group: str = ""


def plan_placement(
    jobid: int, slots: Sequence[tuple[Destination, Mapping[str, int]]], allocated_s: float
) -> IndexPlacement | None:
    """Return the placement of a BatchJob with these slots, the slot of index 0 first.

    Parameters
    ----------
    slots : the node of each slot, and what the slot has.
    allocated_s : epoch seconds.

    Returns None if a node cannot be selected by its label, or if the slots are unequal.
    """
    uses = slots[0][1] if slots else {}
    is_plain = all(to.hostname == to.name and has == uses for to, has in slots)
    if not slots or not is_plain:
        return None
    nodes = tuple(to.name for to, _ in slots)
    is_by_name = not all(to.is_labelled_index for to, _ in slots)
    return IndexPlacement(jobid, nodes, uses, allocated_s + OPEN_S, is_by_name)


def seal(placement: IndexPlacement, uid: str, key: bytes) -> str | None:
    """Return the annotation for the BatchJob of this UID, or None if it is too long."""
    body = {
        "job": placement.jobid,
        "nodes": _shorten(placement.nodes),
        "uses": dict(sorted(placement.uses.items())),
        "until": placement.until_s,
        "byName": placement.is_by_name,
        "dropManagedFields": placement.drops_managed_fields,
        **({"group": placement.group} if placement.group else {}),
    }
    text = orjson.dumps(body).decode()
    sealed = f"{_proof(text, uid, key)} {text}"
    return sealed if len(sealed) <= LONGEST else None


def unseal(sealed: str, uid: str, key: bytes) -> IndexPlacement | None:
    """Return what an annotation says, or None if it was not made for this UID with this key."""
    proof, _, text = sealed.partition(" ")
    # First of all: nothing in an unproven text is read.
    if not key or not hmac.compare_digest(proof.encode(), _proof(text, uid, key).encode()):
        return None
    return _parse(text)


@lru_cache(maxsize=64)
def _all_nodes(placement: IndexPlacement) -> str:
    """Return the nodes of a placement as one hostlist."""
    return compress(sorted(set(placement.nodes)))


def read_placement(job: Object) -> IndexPlacement | None:
    """Return what the template of ``job`` has, without a proof, or None if it cannot be read.

    This is for rows that are lost: policies guard the template. No pod is released by it.
    """
    text = (sealed_in(job) or "").partition(" ")[2]
    try:
        return _parse(text)
    except (ValueError, TypeError, LookupError, AttributeError, InvalidInput):
        return None


@lru_cache(maxsize=64)
def _parse(text: str) -> IndexPlacement:
    # Cached: all pods of a gang are created with the same text, and it has all of their nodes.
    body = orjson.loads(text)
    nodes = tuple(name for names, each in body["nodes"] for name in _expand(names, each))
    # A former worker says neither.
    drops, group = bool(body.get("dropManagedFields")), str(body.get("group", ""))
    return IndexPlacement(
        int(body["job"]), nodes, body["uses"], body["until"], body["byName"], drops, group
    )


def _proof(text: str, uid: str, key: bytes) -> str:
    made = hmac.new(key, f"{uid}\n{text}".encode(), hashlib.sha256).digest()
    return base64.urlsafe_b64encode(made).decode()


def _shorten(nodes: Sequence[str]) -> list[list[Any]]:
    """Return hostlists with the number of neighbouring indexes on each of their nodes."""
    runs = [(node, len(list(same))) for node, same in groupby(nodes)]
    return [
        [compress(node for node, _ in same), each]
        for each, same in groupby(runs, key=lambda run: run[1])
    ]


def _expand(names: str, each: int) -> list[str]:
    return [name for name in expand(names) for _ in range(min(each, MAX_HOSTS))]


def placed_by_proof(
    pod: Object,
    *,
    requester: str,
    controllers: Set[str],
    key: bytes,
    now_s: float,
) -> Object | None:
    """Return a new pod as it is released to the node of its index.

    None if the pod must stay gated: its annotation is not proven, is over, or does not cover this
    pod.

    Parameters
    ----------
    requester : the account that creates the pod, as the API server authenticated it.
    controllers : accounts of the cluster's controllers. Another account makes no pods of a Job.
    now_s : epoch seconds.
    """
    annotations, job_uid = pod["metadata"].get("annotations") or {}, JOB.claim(pod)
    if requester not in controllers or job_uid is None:
        return None
    placement = unseal(annotations.get(labels.PLACEMENT) or "", job_uid, key)
    index = completion_index(pod["metadata"])
    if placement is None or index is None or index >= len(placement.nodes):
        return None
    if now_s > placement.until_s or not _is_first(annotations) or not _fits(pod, placement):
        return None
    node = placement.nodes[index]
    to = Destination(node, node, is_labelled_index=not placement.is_by_name)
    placed = placed_pod(
        pod, to=to, jobid=placement.jobid, nodes=_all_nodes(placement), group=placement.group
    )
    drops = placement.drops_managed_fields
    return edited(placed, {("metadata", "managedFields"): None}) if drops else placed


def _is_first(annotations: Mapping[str, Any]) -> bool:
    """Tell whether no pod of its index has failed yet, as far as the Job controller tells."""
    return str(annotations.get(labels.INDEX_FAILURES, "0")) == "0"


def _fits(pod: Object, placement: IndexPlacement) -> bool:
    """Tell whether a pod asks for no more than its slot has. Other admission may have enlarged it.

    Its host constraints may have been changed as well.
    """
    spec = pod.get("spec") or {}
    is_free = labels.HOSTNAME not in (spec.get("nodeSelector") or {})
    if gate_index(spec) is None or has_required_affinity(spec) or not is_free:
        return False
    try:
        uses = raw_request(spec)
    except InvalidInput:
        return False
    has = placement.uses
    return all(amount <= has.get(name, 0) for name, amount in uses.items())
