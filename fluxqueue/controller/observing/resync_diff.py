"""Resync, the difference: compare the whole cluster with all rows, in both directions.

``resync_schedule`` calls it when a term begins and once per resync interval. ``find`` compares
everything page by page and takes no lock. In a healthy cluster it finds no difference. ``compare``
checks a page of the suspects again, in the transaction in which ``write`` stores the differences.

A resync also fills an empty database. It brings a database restored from a backup up to date.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from enum import Flag, auto
from typing import Any

import orjson

from fluxqueue.controller.observing.read_workload import UNREAD, age, see_progress
from fluxqueue.db.database import Database, Transaction
from fluxqueue.db.store.observations import save_workloads
from fluxqueue.db.store.rebuild import (
    Found,
    NodeResource,
    TakenOver,
    take_over,
)
from fluxqueue.db.store.reconciling import reconcile
from fluxqueue.db.store.resync_rows import Present, RowSeen, read_present, read_uids
from fluxqueue.db.store.statuses import rewrite_statuses
from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.indexes import is_in
from fluxqueue.fluxjob.observation import WorkloadGone, WorkloadSeen
from fluxqueue.fluxjob.pod_facts import PodFact
from fluxqueue.fluxjob.states import FINAL, PROVISIONING, FluxJobState
from fluxqueue.jobspec.stored import read_stored
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import FLUXJOBS
from fluxqueue.process import metrics
from fluxqueue.scheduler.adoption import PinnedStart, PlacedPod, with_start
from fluxqueue.scheduler.record import FIELDS, DecisionRecord, read_record, read_version
from fluxqueue.workload import labels
from fluxqueue.workload.fluxjob_object import fluxjob_name
from fluxqueue.workload.index_placement import read_placement
from fluxqueue.workload.kinds.table import kind_of
from fluxqueue.workload.managed import is_managed, is_taken_in
from fluxqueue.workload.objects import Object
from fluxqueue.workload.pinning import named_node, pinned_as
from fluxqueue.workload.pods import pod_fact
from fluxqueue.workload.resources import effective_request

logger = logging.getLogger(__name__)


PAGE = 1000
"""Rows per read."""
WRITE_PAGE = 100
"""Workloads per write.

Other transactions that need one of their rows wait for the whole page."""
YIELD_EVERY = 50
_NO_ROWS = Present({}, frozenset())


@dataclass(frozen=True, slots=True)
class Published:
    """A listed FluxJob, kept as small as possible because a cluster may have very many.

    ``text`` is the JSON from which its record is read if that is needed.
    """

    uid: str
    namespace: str
    name: str
    workload_uid: str
    version: int | None
    state: Any
    jobid: Any
    text: str

    def record(self) -> DecisionRecord:
        """Return the scheduling decisions that the FluxJob records."""
        return read_record(orjson.loads(self.text))


@dataclass(frozen=True, slots=True)
class Sight:
    """The cluster as the controller sees it.

    ``hosts`` maps hostname labels to node names.
    """

    objects: Mapping[str, Object]
    pods_of: Mapping[str, Mapping[str, Object]]
    fluxjobs: Mapping[str, Published]
    hosts: Mapping[str, str]
    default_cpu_m: int

    def of(self, uids: Iterable[str]) -> Sight:
        """Return a copy of some workloads that later events do not change."""
        chosen = list(uids)
        return replace(
            self,
            objects={uid: self.objects[uid] for uid in chosen if uid in self.objects},
            pods_of={uid: dict(self.pods_of[uid]) for uid in chosen if uid in self.pods_of},
        )


@dataclass(slots=True)
class Differences:
    """Differences between rows and cluster."""

    found: list[Found] = field(default_factory=list)
    """Workloads without a row, with an outdated row, or with pods that no slot accounts for."""
    changed: list[WorkloadSeen] = field(default_factory=list)
    gone: dict[str, WorkloadGone] = field(default_factory=dict)
    stale_statuses: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Suspects:
    """Workloads for which rows and cluster may differ, as ``find`` saw them.

    ``flux_uids`` holds the UID of the FluxJob of each managed workload, or None where it has none.
    ``found`` holds the workloads to take over, in order of submission. Each entry says how much of
    each node its pods use. ``others`` holds all remaining suspects. ``outdated`` holds the
    workloads of ``found`` that have a row.
    """

    flux_uids: dict[str, str | None] = field(default_factory=dict)
    found: dict[str, dict[NodeResource, int]] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    outdated: list[str] = field(default_factory=list)
    highest_jobid: int = 0

    def held(self, uids: Iterable[str]) -> Counter[NodeResource]:
        """Return what the pods of those of ``found`` use, by node and resource."""
        held: Counter[NodeResource] = Counter()
        for uid in uids:
            held.update(self.found.get(uid, {}))
        return held


See = Callable[[Object, Sequence[Object], str | None], WorkloadSeen]
"""Makes the observation of a workload from its object, its pods and the UID of its FluxJob."""
SeeGone = Callable[[str], WorkloadGone]
"""Makes the observation of a workload that is gone, by its UID."""


async def read_rows(database: Database) -> AsyncIterator[Present]:
    """Yield all rows, page by page.

    Raises
    ------
    DatabaseUnavailable
        Postgres cannot be reached.
    """
    async with database.begin() as tx:
        uids = await read_uids(tx)
    for start in range(0, len(uids), PAGE):
        async with database.begin() as tx:
            present = await read_present(tx, uids[start : start + PAGE])
        yield present


async def find(sight: Sight, rows: AsyncIterator[Present]) -> Suspects:
    """Compare all rows with the whole cluster and return the workloads that may differ.

    ``sight`` may change while this runs. ``compare`` therefore checks every suspect again.
    """
    suspects, with_row, found = Suspects(), set[str](), list[str]()
    async for present in rows:
        for number, (uid, row) in enumerate(present.rows.items()):
            await _let_others_run(number)
            # Without this, a workload that has a row would be taken over a second time below.
            with_row.add(uid)
            verdict = _suspect(sight, present, uid)
            if ResyncVerdict.FOUND in verdict:
                found.append(uid)
                suspects.outdated.append(uid)
            elif verdict:
                suspects.others.append(uid)
            fluxjob = _fluxjob_of(sight, uid)
            is_there = uid in sight.objects
            suspects.flux_uids[uid] = _uid(fluxjob) if is_there else row.flux_uid
    # Informers change ``objects`` while this yields: iterate over a copy, check each UID again.
    for number, uid in enumerate(list(sight.objects)):
        await _let_others_run(number)
        if uid in with_row or uid not in sight.objects or not _is_ours(sight, uid):
            continue
        suspects.flux_uids[uid] = _uid(_fluxjob_of(sight, uid))
        if _suspect(sight, _NO_ROWS, uid):
            found.append(uid)
    # Oldest first: jobids are given in this order, so submission order survives a lost database.
    oldest_first = sorted((uid for uid in found if uid in sight.objects), key=_by_age(sight))
    for number, uid in enumerate(oldest_first):
        await _let_others_run(number)
        if uid not in sight.objects:
            continue
        suspects.found[uid] = _held_by(sight, uid)
        fluxjob = _fluxjob_of(sight, uid)
        if fluxjob is None:
            continue  # it gets a new jobid: the one in its template is unverified
        jobid = fluxjob.jobid if isinstance(fluxjob.jobid, int) else _pinned_as(sight, uid)
        suspects.highest_jobid = max(suspects.highest_jobid, jobid)
    return suspects


def _suspect(sight: Sight, present: Present, uid: str) -> ResyncVerdict:
    """Return the verdict of ``judge``, or CHANGED for a workload that it cannot judge."""
    try:
        return judge(sight, present, uid)
    except Exception:  # noqa: BLE001  reported when it is compared again by itself
        return ResyncVerdict.CHANGED


def start_in_template(workload: Object) -> tuple[tuple[str, ...], int | None] | None:
    """Return the nodes and the jobid of a start that the pod template of a workload has, or None.

    There is one node for all slots, or one for each.
    """
    kind = kind_of(workload)
    node = kind.pinned_node(workload)
    if node is not None:
        return (node,), pinned_as(workload)
    placement = read_placement(workload) if kind.is_placed(workload) else None
    return None if placement is None else (placement.nodes, placement.jobid)


def _held_by(sight: Sight, uid: str) -> dict[NodeResource, int]:
    """Return what the pods of a workload use, or nothing if they cannot be read."""
    try:
        return _held(placed_pods(sight, uid))
    except Exception as error:  # noqa: BLE001  any defect of one workload
        _tell_unreadable(uid, error)
        return {}


def _pinned_as(sight: Sight, uid: str) -> int:
    """Return the jobid of a start that its FluxJob does not show yet, or 0 if there is none."""
    found = start_in_template(sight.objects[uid])
    return (found[1] or 0) if found is not None else 0


def _tell_unreadable(uid: str, error: Exception) -> None:
    metrics.RESYNC_TROUBLES.labels("workload").inc()
    logger.warning(
        "workload cannot be read", extra={"action": "resync", "uid": uid, "error": str(error)}
    )


async def _let_others_run(number: int) -> None:
    """Yield to the event loop every ``YIELD_EVERY`` calls.

    Other tasks must renew the Lease and release pods meanwhile.
    """
    if number % YIELD_EVERY == 0:
        await asyncio.sleep(0)


def _uid(fluxjob: Published | None) -> str | None:
    return None if fluxjob is None else fluxjob.uid


def _by_age(sight: Sight) -> Callable[[str], tuple[str, int]]:
    return lambda uid: age(sight.objects[uid])


def _held(pods: Iterable[PlacedPod]) -> dict[NodeResource, int]:
    held: Counter[NodeResource] = Counter()
    for pod in pods:
        if pod.node is not None:
            held.update({(pod.node, name): amount for name, amount in pod.resources.items()})
    return dict(held)


class ResyncVerdict(Flag):
    """Differences of one workload."""

    NOTHING = 0
    FOUND = auto()
    CHANGED = auto()
    GONE = auto()
    UNPUBLISHED = auto()
    STRANDED = auto()


async def list_fluxjobs(client: KubeClient) -> dict[str, Published]:
    """Return all FluxJobs by the UID of their workload, listed page by page."""
    kept, _ = await client.collect(FLUXJOBS, keep=_publication)
    return {one.workload_uid: one for one in kept if one is not None}


def _publication(fluxjob: Object) -> Published | None:
    try:
        return publication(fluxjob)
    except Exception as error:  # noqa: BLE001  one FluxJob must not stop the whole comparison
        metrics.RESYNC_TROUBLES.labels("record").inc()
        name = (fluxjob.get("metadata") or {}).get("name")
        logger.warning("FluxJob cannot be read", extra={"fluxjob": name, "error": str(error)})
        return None


def publication(fluxjob: Object) -> Published | None:
    """Return what is kept of a FluxJob, or None if it is being deleted or names no workload."""
    meta, status = fluxjob["metadata"], _fields(fluxjob.get("status"))
    workload_uid = _fields(_fields(fluxjob.get("spec")).get("workload")).get("uid")
    if not isinstance(workload_uid, str) or not workload_uid or meta.get("deletionTimestamp"):
        return None
    read = {
        "metadata": {key: meta[key] for key in ("uid", "creationTimestamp") if key in meta},
        "status": {key: status[key] for key in FIELDS if key in status},
    }
    return Published(
        uid=meta["uid"],
        namespace=sys.intern(meta["namespace"]),
        name=meta["name"],
        workload_uid=workload_uid,
        version=read_version(status),
        state=_row_state(status.get("state")),
        jobid=status.get("jobid"),
        text=orjson.dumps(read).decode(),  # bytes would keep the 4 KB buffer alive
    )


def _row_state(shown: Any) -> Any:
    """Return the state that the row of a status has. It is not checked here."""
    return FluxJobState.PENDING.value if shown == PROVISIONING else shown


def _fields(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def compare(
    sight: Sight,
    present: Present,
    uids: Iterable[str],
    see: See,
    see_gone: SeeGone,
    doubted: Collection[str] = (),
) -> Differences:
    """Return the differences between rows and cluster for ``uids``.

    ``present`` must be read after ``sight`` was taken. A pod gets its slot in the rows first and is
    seen to run afterwards.

    Parameters
    ----------
    see : makes an observation. If it raises ``InvalidInput``, the workload is left out.
    doubted : UIDs of workloads of which only the version of the record is trusted.
    """
    found = Differences()
    # Present workloads first, oldest first, so that rows are made in the order of submission.
    ordered = sorted((uid for uid in uids if uid in sight.objects), key=_by_age(sight))
    for uid in [*ordered, *(uid for uid in uids if uid not in sight.objects)]:
        verdict = judge(sight, present, uid)
        if ResyncVerdict.GONE in verdict:
            found.gone[uid] = see_gone(uid)
        try:
            _note(found, sight, uid, verdict, see, is_doubted=uid in doubted)
        except InvalidInput as error:
            _tell_unreadable(uid, error)
    return found


def _note(
    found: Differences,
    sight: Sight,
    uid: str,
    verdict: ResyncVerdict,
    see: See,
    *,
    is_doubted: bool,
) -> None:
    pods = list(sight.pods_of.get(uid, {}).values())
    fluxjob = _fluxjob_of(sight, uid)
    if ResyncVerdict.UNPUBLISHED in verdict:
        found.stale_statuses.append(uid)
    if verdict & (ResyncVerdict.FOUND | ResyncVerdict.CHANGED):
        seen = see(sight.objects[uid], pods, _uid(fluxjob))
        if ResyncVerdict.CHANGED in verdict:
            found.changed.append(seen)
            return
        is_stranded = ResyncVerdict.STRANDED in verdict
        record = _record(fluxjob, is_doubted=is_doubted or is_stranded)
        if record is not None and is_stranded and fluxjob is not None:
            # It keeps its jobid and its position. Only the recorded end is wrong.
            told = fluxjob.record()
            record = replace(record, jobid=told.jobid, submitted_at_s=told.submitted_at_s)
        if record is not None and not is_doubted and not is_stranded:
            record = _with_pinned_start(record, seen, sight.objects[uid])
        placed = placed_pods(sight, uid)
        found.found.append(
            Found(seen, record, placed, _last_nodes(sight, uid), is_stranded=is_stranded)
        )


def _record(fluxjob: Published | None, *, is_doubted: bool) -> DecisionRecord | None:
    """Return the record in a FluxJob, or None without a FluxJob.

    Fields that are not a valid status are logged and left out.
    """
    if fluxjob is None or is_doubted:
        return (
            None if fluxjob is None else DecisionRecord(fluxjob.uid, version=fluxjob.version or 0)
        )
    record = fluxjob.record()
    for trouble in record.troubles:
        metrics.RESYNC_TROUBLES.labels("field").inc()
        extra = {"action": "resync", "fluxjob": fluxjob.name, "error": trouble}
        logger.warning("FluxJob not believed", extra={**extra, "namespace": fluxjob.namespace})
    return record


def _with_pinned_start(
    record: DecisionRecord, seen: WorkloadSeen, workload: Object
) -> DecisionRecord:
    """Add to a record the start that stands only in the pod template.

    A later update of its FluxJob was pending.
    """
    found = start_in_template(workload)
    if found is None or seen.facts.is_suspended:
        return record
    nodes, jobid = found
    since = (workload.get("status") or {}).get("startTime")
    start = PinnedStart(
        nodes=nodes,
        request=read_stored(seen.request),
        queue=seen.queue,
        jobid=jobid,
        starts_at_s=int(datetime.fromisoformat(since).timestamp()) if since else None,
    )
    return with_start(record, start)


def judge(sight: Sight, present: Present, uid: str) -> ResyncVerdict:
    """Return the differences of one workload. It is cheap, and a healthy workload has none."""
    row = present.rows.get(uid)
    if uid not in sight.objects:
        is_news = row is not None and _is_gone_news(sight, row)
        return ResyncVerdict.GONE if is_news else ResyncVerdict.NOTHING
    fluxjob = _fluxjob_of(sight, uid)
    # Before all other checks: a final row without news would otherwise count as healthy.
    if row is not None and _is_stranded(sight, row):
        return ResyncVerdict.FOUND | ResyncVerdict.STRANDED
    if row is None:
        # Here the gate is the only mark. If it were released before its FluxJob exists and the rows
        # were then lost, nothing would identify it. So its FluxJob is made first.
        is_early = fluxjob is None and kind_of(sight.objects[uid]).is_known_by_gate_alone
        is_taken = _is_ours(sight, uid) and not is_early
        return ResyncVerdict.FOUND if is_taken else ResyncVerdict.NOTHING
    verdict = ResyncVerdict.NOTHING
    if fluxjob is not None and (fluxjob.state, fluxjob.jobid) != (row.state, row.jobid):
        verdict |= ResyncVerdict.UNPUBLISHED
    version = fluxjob.version if fluxjob is not None else None
    # A status that is newer than its row proves that the row is outdated.
    is_newer = version is not None and version > row.version
    if is_newer or (row.state not in FINAL and _has_stray(sight, present, uid)):
        return verdict | ResyncVerdict.FOUND
    seen = see_progress(UNREAD, sight.objects[uid], list(sight.pods_of.get(uid, {}).values()))
    return verdict | (
        ResyncVerdict.CHANGED if differs(row, seen, _uid(fluxjob)) else ResyncVerdict.NOTHING
    )


def _is_stranded(sight: Sight, row: RowSeen) -> bool:
    """Return whether a workload is still held although its row has ended.

    No process would start it. This happens after a mix-up of databases. A workload that a user
    cancelled does not count, because it is about to be deleted.
    """
    if row.state not in FINAL or row.is_cancelled:
        return False
    workload = sight.objects[row.uid]
    kind = kind_of(workload)
    if not kind.has_object or not is_managed(workload):
        return False
    if kind.can_be_suspended and not kind.is_suspended(workload):
        return False
    return kind.fact(workload).result is None


def _has_stray(sight: Sight, present: Present, uid: str) -> bool:
    """Return whether a released pod of the workload has no slot that accounts for it."""
    for pod in sight.pods_of.get(uid, {}).values():
        # A pod with a slot is accounted for, wherever it was released to.
        if pod["metadata"]["uid"] in present.holders:
            continue
        fact = pod_fact(pod)
        is_let_go = not fact.is_gated and not fact.is_terminal
        if is_let_go and (fact.node or _destination(pod["spec"], sight.hosts)):
            return True
    return False


def _is_gone_news(sight: Sight, row: RowSeen) -> bool:
    """Return whether the row does not yet say that the workload is gone, or lists other pods."""
    facts = [pod_fact(pod) for pod in sight.pods_of.get(row.uid, {}).values()]
    return not (row.is_gone and _pods(facts) == dict(row.pods))


def differs(row: RowSeen, seen: WorkloadSeen, flux_uid: str | None) -> bool:
    """Return whether a row or the pods stored with it differ from what was observed."""
    said, now = (
        (of.wanted, of.missing, of.ended_indexes, of.is_suspended, one.result, one.is_deleting)
        for one in (row, seen)
        for of in [one.facts]
    )
    is_other = flux_uid is not None and flux_uid != row.flux_uid
    return row.is_gone or said != now or is_other or _pods(seen.pods) != dict(row.pods)


def _pods(facts: Iterable[PodFact]) -> dict[str, tuple[str, bool, bool, str | None]]:
    return {
        fact.uid: (fact.phase, fact.is_gated, fact.is_terminating, fact.node)
        for fact in facts
        if not fact.is_terminal
    }


def _is_ours(sight: Sight, uid: str) -> bool:
    """Return whether an object without a row was adopted, by its marks or by its FluxJob.

    The gate of a Pod is gone once the Pod was released. Then only its FluxJob shows it.
    """
    if _fluxjob_of(sight, uid) is not None:
        return True
    try:
        return is_taken_in(sight.objects[uid])
    except Exception:  # noqa: BLE001  an unreadable object is reported when it is seen by itself
        return False


def _fluxjob_of(sight: Sight, uid: str) -> Published | None:
    """Return the FluxJob of a workload, or None if its name or namespace does not match."""
    fluxjob, workload = sight.fluxjobs.get(uid), sight.objects.get(uid)
    if fluxjob is None or workload is None:
        return None
    try:
        its = workload["metadata"]["namespace"], fluxjob_name(workload)
    except Exception:  # noqa: BLE001  an unreadable object is reported when it is seen by itself
        return None
    return fluxjob if (fluxjob.namespace, fluxjob.name) == its else None


def placed_pods(sight: Sight, uid: str) -> tuple[PlacedPod, ...]:
    """Return the pods of a workload that were released and have not ended."""
    workload, pods = sight.objects[uid], sight.pods_of.get(uid, {})
    placed = []
    for fact in kind_of(workload).pod_facts(workload, list(pods.values())):
        if fact.is_gated or fact.is_terminal:
            continue
        spec = pods[fact.uid]["spec"]
        placed.append(
            PlacedPod(
                uid=fact.uid,
                name=fact.name,
                node=fact.node or _destination(spec, sight.hosts),
                resources=effective_request(spec, default_cpu_m=sight.default_cpu_m),
                phase=fact.phase,
                index=fact.index,
                kind=fact.kind,
            )
        )
    return tuple(placed)


def _last_nodes(sight: Sight, uid: str) -> dict[int, str]:
    """Return the node of the last failed pod of each index that may run there again."""
    workload = sight.objects[uid]
    kind = kind_of(workload)
    if not kind.has_indexes(workload):
        return {}
    last: dict[int, Object] = {}
    for pod in sight.pods_of.get(uid, {}).values():
        fact = pod_fact(pod)
        if fact.index is not None and not fact.is_gated:
            last[fact.index] = max(pod, last.get(fact.index, pod), key=age)
    ended = kind.ended_indexes(workload) if last else []
    facts = {index: pod_fact(pod) for index, pod in last.items() if not is_in(index, ended)}
    return {
        index: fact.node
        for index, fact in facts.items()
        if fact.phase == "Failed" and fact.node is not None and not fact.is_refused
    }


def _destination(spec: Object, hosts: Mapping[str, str]) -> str | None:
    """Return the node to which an unbound pod was released (``workload.gates.ungate_patch``)."""
    name = named_node(spec)
    if name is not None:
        return name  # the name is unique, a hostname label may be on several nodes
    host = (spec.get("nodeSelector") or {}).get(labels.HOSTNAME)
    return None if host is None else hosts.get(host, str(host))


async def write(
    tx: Transaction,
    differences: Differences,
    held: Mapping[NodeResource, int],
    *,
    is_room_measured: bool,
) -> TakenOver:
    """Store the differences. Nodes and unmanaged pods must have been written before.

    Parameters
    ----------
    held : by node and resource, what belongs to pods of workloads that are still to be taken over.
    is_room_measured : whether workloads are, or will be, taken over. If so, changed workloads are
        reconciled at once. Ended workloads then free their capacity before the takeover measures
        it.
    """
    changed = [seen.uid for seen in differences.changed]
    # Lock before any write: rows locked one by one could deadlock with a worker.
    await tx.lock_fluxjobs(
        [*changed, *differences.gone, *(one.seen.uid for one in differences.found)]
    )
    await save_workloads(tx, differences.changed, differences.gone)
    # Before the takeover: capacity of ended workloads must be free when it is measured.
    if is_room_measured:
        await reconcile(tx, sorted([*changed, *differences.gone]))
    # After ``save_workloads``: the takeover measures what the changed workloads left free.
    taken = await take_over(tx, differences.found, held)
    await rewrite_statuses(tx, differences.stale_statuses)
    return taken


@dataclass(slots=True)
class Repaired:
    """Counts of what a resync has corrected so far."""

    rows_made: int = 0
    rows_corrected: int = 0
    running_adopted: int = 0
    changed: int = 0
    gone: int = 0
    statuses: int = 0

    def add(self, differences: Differences, taken: TakenOver) -> None:
        """Count one page."""
        self.rows_made += taken.created
        self.rows_corrected += taken.corrected
        self.running_adopted += taken.adopted
        self.changed += len(differences.changed)
        self.gone += len(differences.gone)
        self.statuses += len(differences.stale_statuses)

    def tell(self) -> None:
        """Log the counts, or nothing if no difference was found."""
        counts = asdict(self)
        if any(counts.values()):
            logger.info("rows and cluster brought together", extra={"action": "resync", **counts})
