"""Resync: the whole cluster against all rows, both directions, and the difference as work to do.

Called by ``observer`` when its term begins and once in a resync interval. ``compare`` only looks,
and finds nothing in health; ``write`` stores what it found in one transaction. This is also how an
empty database is filled, and how one restored from a backup is brought up to the cluster.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from fluxqueue.db.database import Transaction
from fluxqueue.db.life.observations import WorkloadSeen, save_workloads
from fluxqueue.db.life.published import owe_status
from fluxqueue.db.life.rebuild import Found, Present, RowSeen, TakenOver, take_over
from fluxqueue.db.life.settling import settle
from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.follow import PodFact
from fluxqueue.fluxjob.indexes import is_in
from fluxqueue.fluxjob.request import Operator
from fluxqueue.fluxjob.states import FINAL
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import FLUXJOBS
from fluxqueue.scheduler.adoption import PlacedPod
from fluxqueue.scheduler.record import FIELDS, Record, read_record
from fluxqueue.workload import labels
from fluxqueue.workload.batch import ended_indexes
from fluxqueue.workload.fluxjob_object import fluxjob_name
from fluxqueue.workload.managed import POD, is_managed, kind_of
from fluxqueue.workload.pods import pod_fact
from fluxqueue.workload.resources import effective_request

logger = logging.getLogger(__name__)

Object = Mapping[str, Any]

CHUNK = 200
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True)
class Published:
    """A FluxJob as it was listed, as small as can be: a cluster may have very many.

    ``text``: what its record is read from, if it comes to that.
    """

    uid: str
    namespace: str
    name: str
    workload_uid: str
    version: int | None
    state: Any
    jobid: Any
    text: str

    def record(self) -> Record:
        """What it says was decided."""
        return read_record(orjson.loads(self.text))


@dataclass(frozen=True, slots=True)
class Sight:
    """The cluster as the controller sees it. ``hosts``: hostname label -> name of the node."""

    objects: Mapping[str, Object]
    pods_of: Mapping[str, Mapping[str, Object]]
    fluxjobs: Mapping[str, Published]
    hosts: Mapping[str, str]
    default_cpu_m: int


@dataclass(slots=True)
class Differences:
    """What rows and cluster do not agree on."""

    flux_uids: dict[str, str | None] = field(default_factory=dict)
    """UID of the FluxJob of each workload of ours; None where it has none."""
    found: list[Found] = field(default_factory=list)
    """Without a row, with one older than the cluster, or with pods that no slot accounts for."""
    changed: list[WorkloadSeen] = field(default_factory=list)
    gone: dict[str, tuple[str, list[PodFact]]] = field(default_factory=dict)
    unpublished: list[str] = field(default_factory=list)


async def list_fluxjobs(client: KubeClient) -> dict[str, Published]:
    """All FluxJobs by the UID of their workload, listed page by page."""
    kept, _ = await client.collect(FLUXJOBS, keep=publication)
    return {one.workload_uid: one for one in kept if one is not None}


def publication(fluxjob: Object) -> Published | None:
    """What is kept of a FluxJob; one that is going, or names no workload, is none."""
    meta, status = fluxjob["metadata"], fluxjob.get("status") or {}
    workload_uid = ((fluxjob.get("spec") or {}).get("workload") or {}).get("uid")
    if not workload_uid or meta.get("deletionTimestamp"):
        return None
    version = status.get("version")
    read = {
        "metadata": {key: meta[key] for key in ("uid", "creationTimestamp") if key in meta},
        "status": {key: status[key] for key in FIELDS if key in status},
    }
    return Published(
        uid=meta["uid"],
        namespace=sys.intern(meta["namespace"]),
        name=meta["name"],
        workload_uid=workload_uid,
        version=version if isinstance(version, int) else None,
        state=status.get("state"),
        jobid=status.get("jobid"),
        text=orjson.dumps(read).decode(),  # its bytes keep the 4 KB that they were written in
    )


See = Callable[[Object, Sequence[Object], str | None], WorkloadSeen]
"""Makes the observation of a workload from it, its pods and the UID of its FluxJob."""


async def compare(sight: Sight, present: Present, see: See) -> Differences:
    """Find what rows and cluster do not agree on.

    Parameters
    ----------
    see : may raise ``InvalidInput``, and the workload is left out then.
    """
    found = Differences()
    ordered = sorted(sight.objects, key=lambda uid: _age(sight.objects[uid]))
    for number, uid in enumerate(ordered):
        if number % CHUNK == 0:
            await asyncio.sleep(0)  # others have a Lease to renew
        row = present.rows.get(uid)
        if row is None and not _is_ours(sight, uid):
            continue
        fluxjob = _fluxjob_of(sight, uid)
        flux_uid = fluxjob.uid if fluxjob is not None else None
        found.flux_uids[uid] = flux_uid
        if row is None and fluxjob is None and kind_of(sight.objects[uid]) == POD:
            # Its gate is its only mark: let go before it has a FluxJob, and the rows lost then,
            # nobody would know it any more. Its FluxJob is made first, as for one just seen.
            continue
        try:
            pods = list(sight.pods_of.get(uid, {}).values())
            _look(found, sight, present, see(sight.objects[uid], pods, flux_uid), row)
        except InvalidInput as error:
            logger.warning("workload cannot be read", extra={"uid": uid, "error": str(error)})
    for uid, row in present.rows.items():
        if uid not in sight.objects:
            found.flux_uids[uid] = row.flux_uid
            _look_for_the_gone(found, sight, row)
    return found


def _look(
    found: Differences, sight: Sight, present: Present, seen: WorkloadSeen, row: RowSeen | None
) -> None:
    fluxjob = _fluxjob_of(sight, seen.uid)
    version = fluxjob.version if fluxjob is not None else None
    is_newer = row is not None and version is not None and version > row.version
    pods = placed_pods(sight, seen.uid)
    is_stray = (
        row is not None
        and row.state not in FINAL
        and any(pod.node and pod.uid not in present.holders for pod in pods)
    )
    if row is None or is_newer or is_stray:
        record = fluxjob.record() if fluxjob is not None else None
        for trouble in record.troubles if record is not None else ():
            logger.warning(
                "FluxJob not believed",
                extra={"action": "resync", "uid": seen.uid, "error": trouble},
            )
        found.found.append(Found(seen, record, pods, _last_nodes(sight, seen)))
    elif differs(row, seen):
        found.changed.append(seen)
    if row is None or fluxjob is None:
        return
    if (fluxjob.state, fluxjob.jobid) != (row.state, row.jobid):
        found.unpublished.append(seen.uid)


def _look_for_the_gone(found: Differences, sight: Sight, row: RowSeen) -> None:
    left = list(sight.pods_of.get(row.uid, {}).values())
    facts = [pod_fact(pod) for pod in left]
    if row.is_gone and _pods(facts) == dict(row.pods):
        return
    namespace = left[0]["metadata"]["namespace"] if left else ""
    found.gone[row.uid] = (namespace, facts)


def differs(row: RowSeen, seen: WorkloadSeen) -> bool:
    """Whether a row says something else than was seen, or the pods beside it do."""
    said = (row.wanted, row.ended_indexes, row.result, row.is_deleting, row.is_suspended)
    now = (seen.wanted, seen.ended_indexes, seen.result, seen.is_deleting, seen.is_suspended)
    is_other = seen.flux_uid is not None and seen.flux_uid != row.flux_uid
    return row.is_gone or said != now or is_other or _pods(seen.pods) != dict(row.pods)


def _pods(facts: Iterable[PodFact]) -> dict[str, tuple[str, bool, bool, str | None]]:
    return {
        fact.uid: (fact.phase, fact.is_gated, fact.is_terminating, fact.node)
        for fact in facts
        if not fact.is_terminal
    }


def _is_ours(sight: Sight, uid: str) -> bool:
    """Whether an object without a row was taken in: it is gated, or its FluxJob says so.

    The gate of a Pod is gone once it was released; then its FluxJob alone knows.
    """
    return is_managed(sight.objects[uid]) or _fluxjob_of(sight, uid) is not None


def _fluxjob_of(sight: Sight, uid: str) -> Published | None:
    fluxjob, workload = sight.fluxjobs.get(uid), sight.objects[uid]
    if fluxjob is None:
        return None
    is_its = (fluxjob.namespace, fluxjob.name) == (
        workload["metadata"]["namespace"],
        fluxjob_name(workload),
    )
    return fluxjob if is_its else None


def _age(workload: Object) -> tuple[str, int]:
    meta = workload["metadata"]
    return meta.get("creationTimestamp") or "", int(meta.get("resourceVersion") or 0)


def placed_pods(sight: Sight, uid: str) -> tuple[PlacedPod, ...]:
    """The pods of a workload that were let go and have not ended."""
    placed = []
    for pod in sight.pods_of.get(uid, {}).values():
        fact = pod_fact(pod)
        if fact.is_gated or fact.is_terminal:
            continue
        placed.append(
            PlacedPod(
                uid=fact.uid,
                name=fact.name,
                node=fact.node or _destination(pod["spec"], sight.hosts),
                resources=effective_request(pod["spec"], default_cpu_m=sight.default_cpu_m),
                phase=fact.phase,
                index=fact.index,
            )
        )
    return tuple(placed)


def _last_nodes(sight: Sight, seen: WorkloadSeen) -> dict[int, str]:
    """Where the last pod of a completion index was, if another is to come and may be there."""
    indexes = {fact.uid: fact.index for fact in seen.pods if fact.index is not None}
    last: dict[int, Object] = {}
    for pod in sight.pods_of.get(seen.uid, {}).values():
        index = indexes.get(pod["metadata"]["uid"])
        if index is not None and not pod_fact(pod).is_gated:
            last[index] = max(pod, last.get(index, pod), key=_age)
    ended = ended_indexes(sight.objects[seen.uid]) if last else []
    facts = {index: pod_fact(pod) for index, pod in last.items() if not is_in(index, ended)}
    return {
        index: fact.node
        for index, fact in facts.items()
        if fact.phase == "Failed" and fact.node is not None and not fact.is_refused
    }


def _destination(spec: Object, hosts: Mapping[str, str]) -> str | None:
    """Where a pod that is not bound yet was let go to (``workload.gates.ungate_patch``)."""
    host = (spec.get("nodeSelector") or {}).get(labels.HOSTNAME)
    if host is not None:
        return hosts.get(host, str(host))
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    for term in (affinity.get(_REQUIRED) or {}).get("nodeSelectorTerms") or ():
        for field_ in term.get("matchFields") or ():
            if field_.get("operator") == Operator.IN and len(field_.get("values") or ()) == 1:
                return str(field_["values"][0])
    return None


async def write(tx: Transaction, differences: Differences) -> TakenOver:
    """Store what was found; nodes and pods of others must have been written before, by ``tx``.

    Changed workloads are settled at once, so that what has ended makes room before it is measured
    what those that are taken over may keep.
    """
    changed = [seen.uid for seen in differences.changed]
    await _lock(tx, [*changed, *differences.gone, *(one.seen.uid for one in differences.found)])
    for start in range(0, len(changed), CHUNK):
        await save_workloads(tx, differences.changed[start : start + CHUNK])
    if differences.gone:
        await save_workloads(tx, (), differences.gone)
    if differences.found:
        await settle(tx, sorted([*changed, *differences.gone]))
    taken = await take_over(tx, differences.found)
    await owe_status(tx, differences.unpublished)
    return taken


async def _lock(tx: Transaction, uids: Sequence[str]) -> None:
    """All rows at once in the order of their UID, as everybody does, against deadlocks."""
    await tx.execute(
        "SELECT uid FROM fluxjobs WHERE uid = ANY(CAST(:uids AS text[])) ORDER BY uid FOR UPDATE",
        uids=list(uids),
    )


def tell(differences: Differences, taken: TakenOver) -> None:
    """Say in the log what a resync mended; in health it says nothing."""
    extra = {
        "action": "resync",
        "rows_made": taken.created,
        "rows_corrected": taken.corrected,
        "running_adopted": taken.adopted,
        "changed": len(differences.changed),
        "gone": len(differences.gone),
        "statuses": len(differences.unpublished),
    }
    if any(value for value in extra.values() if isinstance(value, int)):
        logger.info("rows and cluster brought together", extra=extra)
