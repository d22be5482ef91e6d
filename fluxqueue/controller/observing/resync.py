"""Resync: the whole cluster against all rows, both directions, and the difference as work to do.

Called by ``comparing`` when a term begins and once in a resync interval. ``find`` looks at
everything, page by page and under no lock; in health it finds nobody. ``compare`` looks again at a
page of those found, in the transaction in which ``write`` stores what is different. This is also
how an empty database is filled, and how one restored from a backup is brought up to the cluster.
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

from fluxqueue import metrics
from fluxqueue.controller.observing.seen import Progress, age, see_progress
from fluxqueue.db.database import Database, Transaction
from fluxqueue.db.life.observations import save_workloads
from fluxqueue.db.life.present import Present, RowSeen, read_present, read_uids
from fluxqueue.db.life.published import owe_status
from fluxqueue.db.life.rebuild import (
    Found,
    NodeResource,
    TakenOver,
    take_over,
)
from fluxqueue.db.life.settling import settle
from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.follow import PodFact
from fluxqueue.fluxjob.indexes import is_in
from fluxqueue.fluxjob.observation import WorkloadGone, WorkloadSeen
from fluxqueue.fluxjob.states import FINAL
from fluxqueue.jobspec.stored import read_stored
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import FLUXJOBS
from fluxqueue.objects import Object
from fluxqueue.scheduler.adoption import PinnedStart, PlacedPod, with_start
from fluxqueue.scheduler.record import FIELDS, Record, read_record, read_version
from fluxqueue.workload import labels
from fluxqueue.workload.fluxjob_object import fluxjob_name
from fluxqueue.workload.kinds import kind_of
from fluxqueue.workload.managed import is_managed, is_taken_in
from fluxqueue.workload.pinning import named_node, pinned_as
from fluxqueue.workload.pods import pod_fact
from fluxqueue.workload.resources import effective_request

logger = logging.getLogger(__name__)


PAGE = 1000
"""Rows read at once."""
WRITE_PAGE = 100
"""Workloads written at once: whoever wants one of their rows waits for that long."""
YIELD_EVERY = 50
_NO_ROWS = Present({}, frozenset())


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

    def of(self, uids: Iterable[str]) -> Sight:
        """As it is now of some workloads, whatever is seen later."""
        chosen = list(uids)
        return replace(
            self,
            objects={uid: self.objects[uid] for uid in chosen if uid in self.objects},
            pods_of={uid: dict(self.pods_of[uid]) for uid in chosen if uid in self.pods_of},
        )


@dataclass(slots=True)
class Differences:
    """What rows and cluster do not agree on."""

    found: list[Found] = field(default_factory=list)
    """Without a row, with one older than the cluster, or with pods that no slot accounts for."""
    changed: list[WorkloadSeen] = field(default_factory=list)
    gone: dict[str, WorkloadGone] = field(default_factory=dict)
    unpublished: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Suspects:
    """Workloads that rows and cluster may not agree on, as ``find`` saw them.

    ``flux_uids``: UID of the FluxJob of each workload of ours; None where it has none. ``found``:
    those to be taken over, in the order of submission, each with what its pods have of which node;
    ``others``: all the rest. ``outdated``: those of ``found`` that have a row.
    """

    flux_uids: dict[str, str | None] = field(default_factory=dict)
    found: dict[str, dict[NodeResource, int]] = field(default_factory=dict)
    others: list[str] = field(default_factory=list)
    outdated: list[str] = field(default_factory=list)
    highest_jobid: int = 0

    def held(self, uids: Iterable[str]) -> Counter[NodeResource]:
        """What pods of those of ``found`` have, by node and resource."""
        held: Counter[NodeResource] = Counter()
        for uid in uids:
            held.update(self.found.get(uid, {}))
        return held


See = Callable[[Object, Sequence[Object], str | None], WorkloadSeen]
"""Makes the observation of a workload from it, its pods and the UID of its FluxJob."""
SeeGone = Callable[[str], WorkloadGone]
"""Makes the observation of a workload that is gone, by its UID."""


async def read_rows(database: Database) -> AsyncIterator[Present]:
    """All rows, page by page.

    Raises
    ------
    DatabaseUnavailable
        Postgres went away.
    """
    async with database.begin() as tx:
        uids = await read_uids(tx)
    for start in range(0, len(uids), PAGE):
        async with database.begin() as tx:
            present = await read_present(tx, uids[start : start + PAGE])
        yield present


async def find(sight: Sight, rows: AsyncIterator[Present]) -> Suspects:
    """Compare everything with everything, and tell of whom there is something to be done.

    ``sight`` may change while this runs: whoever is told of is looked at again (``compare``).
    """
    suspects, with_row, found = Suspects(), set[str](), list[str]()
    async for present in rows:
        for number, (uid, row) in enumerate(present.rows.items()):
            await _let_others_run(number)
            with_row.add(uid)
            verdict = _suspect(sight, present, uid)
            if Verdict.FOUND in verdict:
                found.append(uid)
                suspects.outdated.append(uid)
            elif verdict:
                suspects.others.append(uid)
            fluxjob = _fluxjob_of(sight, uid)
            is_there = uid in sight.objects
            suspects.flux_uids[uid] = _uid(fluxjob) if is_there else row.flux_uid
    for number, uid in enumerate(list(sight.objects)):
        await _let_others_run(number)
        if uid in with_row or uid not in sight.objects or not _is_ours(sight, uid):
            continue
        suspects.flux_uids[uid] = _uid(_fluxjob_of(sight, uid))
        if _suspect(sight, _NO_ROWS, uid):
            found.append(uid)
    oldest_first = sorted((uid for uid in found if uid in sight.objects), key=_by_age(sight))
    for number, uid in enumerate(oldest_first):
        await _let_others_run(number)
        if uid not in sight.objects:
            continue
        suspects.found[uid] = _held_by(sight, uid)
        fluxjob = _fluxjob_of(sight, uid)
        if fluxjob is None:
            continue  # it gets another number: nobody vouches for one in a template
        jobid = fluxjob.jobid if isinstance(fluxjob.jobid, int) else _pinned_as(sight, uid)
        suspects.highest_jobid = max(suspects.highest_jobid, jobid)
    return suspects


def _suspect(sight: Sight, present: Present, uid: str) -> Verdict:
    """``judge``, and of what it cannot judge that there is something, whatever it is."""
    try:
        return judge(sight, present, uid)
    except Exception:  # noqa: BLE001  it is told when it is looked at again, by itself
        return Verdict.CHANGED


def _held_by(sight: Sight, uid: str) -> dict[NodeResource, int]:
    try:
        return _held(placed_pods(sight, uid))
    except Exception as error:  # noqa: BLE001  of one workload, whatever it is
        _tell_unreadable(uid, error)
        return {}


def _pinned_as(sight: Sight, uid: str) -> int:
    """The jobid of a start that its FluxJob was not told of yet; 0 where there is none."""
    workload = sight.objects[uid]
    is_pinned = kind_of(workload).pinned_node(workload) is not None
    return (pinned_as(workload) or 0) if is_pinned else 0


def _tell_unreadable(uid: str, error: Exception) -> None:
    metrics.RESYNC_TROUBLES.labels("workload").inc()
    logger.warning(
        "workload cannot be read", extra={"action": "resync", "uid": uid, "error": str(error)}
    )


async def _let_others_run(number: int) -> None:
    """Now and then: others have a Lease to renew, and pods to let go."""
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


class Verdict(Flag):
    """What is different of one workload."""

    NOTHING = 0
    FOUND = auto()
    CHANGED = auto()
    GONE = auto()
    UNPUBLISHED = auto()
    STRANDED = auto()


async def list_fluxjobs(client: KubeClient) -> dict[str, Published]:
    """All FluxJobs by the UID of their workload, listed page by page."""
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
    """What is kept of a FluxJob; one that is going, or names no workload, is none."""
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
        state=status.get("state"),
        jobid=status.get("jobid"),
        text=orjson.dumps(read).decode(),  # its bytes keep the 4 KB that they were written in
    )


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
    """Tell what rows and cluster do not agree on of ``uids``.

    ``present`` must have been read after ``sight`` was taken: a pod is given its slot in the rows
    first, and is seen to run afterwards.

    Parameters
    ----------
    see : may raise ``InvalidInput``, and the workload is left out then.
    doubted : of these only the version of their record is believed.
    """
    found = Differences()
    ordered = sorted((uid for uid in uids if uid in sight.objects), key=_by_age(sight))
    for uid in [*ordered, *(uid for uid in uids if uid not in sight.objects)]:
        verdict = judge(sight, present, uid)
        if Verdict.GONE in verdict:
            found.gone[uid] = see_gone(uid)
        try:
            _note(found, sight, uid, verdict, see, is_doubted=uid in doubted)
        except InvalidInput as error:
            _tell_unreadable(uid, error)
    return found


def _note(
    found: Differences, sight: Sight, uid: str, verdict: Verdict, see: See, *, is_doubted: bool
) -> None:
    pods = list(sight.pods_of.get(uid, {}).values())
    fluxjob = _fluxjob_of(sight, uid)
    if Verdict.UNPUBLISHED in verdict:
        found.unpublished.append(uid)
    if verdict & (Verdict.FOUND | Verdict.CHANGED):
        seen = see(sight.objects[uid], pods, _uid(fluxjob))
        if Verdict.CHANGED in verdict:
            found.changed.append(seen)
            return
        is_stranded = Verdict.STRANDED in verdict
        record = _record(fluxjob, is_doubted=is_doubted or is_stranded)
        if record is not None and is_stranded and fluxjob is not None:
            # It keeps its number and its place. That it ended is what is wrong.
            told = fluxjob.record()
            record = replace(record, jobid=told.jobid, submitted_at_s=told.submitted_at_s)
        if record is not None and not is_doubted and not is_stranded:
            record = _with_pinned_start(record, seen, sight.objects[uid])
        placed = placed_pods(sight, uid)
        found.found.append(
            Found(seen, record, placed, _last_nodes(sight, uid), is_stranded=is_stranded)
        )


def _record(fluxjob: Published | None, *, is_doubted: bool) -> Record | None:
    """What its FluxJob says; what of it is no status of ours is told and left out."""
    if fluxjob is None or is_doubted:
        return None if fluxjob is None else Record(fluxjob.uid, version=fluxjob.version or 0)
    record = fluxjob.record()
    for trouble in record.troubles:
        metrics.RESYNC_TROUBLES.labels("field").inc()
        extra = {"action": "resync", "fluxjob": fluxjob.name, "error": trouble}
        logger.warning("FluxJob not believed", extra={**extra, "namespace": fluxjob.namespace})
    return record


def _with_pinned_start(record: Record, seen: WorkloadSeen, workload: Object) -> Record:
    """A start that its FluxJob was to be told of later stands in the pod template."""
    if seen.pinned_to is None or seen.is_suspended:
        return record
    since = (workload.get("status") or {}).get("startTime")
    start = PinnedStart(
        node=seen.pinned_to,
        request=read_stored(seen.request),
        queue=seen.queue,
        jobid=pinned_as(workload),
        starts_at_s=int(datetime.fromisoformat(since).timestamp()) if since else None,
    )
    return with_start(record, start)


def judge(sight: Sight, present: Present, uid: str) -> Verdict:
    """What is different of one workload; cheap, and nothing in health."""
    row = present.rows.get(uid)
    if uid not in sight.objects:
        is_news = row is not None and _is_gone_news(sight, row)
        return Verdict.GONE if is_news else Verdict.NOTHING
    fluxjob = _fluxjob_of(sight, uid)
    if row is not None and _is_stranded(sight, row):
        return Verdict.FOUND | Verdict.STRANDED
    if row is None:
        # Where a gate is the only mark: let go before it has a FluxJob, and the rows lost then,
        # nobody would know it any more. Its FluxJob is made first, as for one just seen.
        is_early = fluxjob is None and kind_of(sight.objects[uid]).is_known_by_gate_alone
        is_taken = _is_ours(sight, uid) and not is_early
        return Verdict.FOUND if is_taken else Verdict.NOTHING
    verdict = Verdict.NOTHING
    if fluxjob is not None and (fluxjob.state, fluxjob.jobid) != (row.state, row.jobid):
        verdict |= Verdict.UNPUBLISHED
    version = fluxjob.version if fluxjob is not None else None
    is_newer = version is not None and version > row.version
    if is_newer or (row.state not in FINAL and _has_stray(sight, present, uid)):
        return verdict | Verdict.FOUND
    seen = see_progress(sight.objects[uid], list(sight.pods_of.get(uid, {}).values()))
    return verdict | (Verdict.CHANGED if differs(row, seen, _uid(fluxjob)) else Verdict.NOTHING)


def _is_stranded(sight: Sight, row: RowSeen) -> bool:
    """Whether a workload waits for us, held, though its row has ended: no process would start it.

    So it is after a mix-up of databases. One that a user cancelled is about to be deleted.
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
    """Whether a pod of it was let go that no slot accounts for."""
    for pod in sight.pods_of.get(uid, {}).values():
        if pod["metadata"]["uid"] in present.holders:
            continue
        fact = pod_fact(pod)
        is_let_go = not fact.is_gated and not fact.is_terminal
        if is_let_go and (fact.node or _destination(pod["spec"], sight.hosts)):
            return True
    return False


def _is_gone_news(sight: Sight, row: RowSeen) -> bool:
    facts = [pod_fact(pod) for pod in sight.pods_of.get(row.uid, {}).values()]
    return not (row.is_gone and _pods(facts) == dict(row.pods))


def differs(row: RowSeen, seen: Progress, flux_uid: str | None) -> bool:
    """Whether a row says something else than was seen, or the pods beside it do."""
    names = ("wanted", "missing", "ended_indexes", "result", "is_deleting", "is_suspended")
    said, now = ([getattr(one, name) for name in names] for one in (row, seen))
    is_other = flux_uid is not None and flux_uid != row.flux_uid
    return row.is_gone or said != now or is_other or _pods(seen.pods) != dict(row.pods)


def _pods(facts: Iterable[PodFact]) -> dict[str, tuple[str, bool, bool, str | None]]:
    return {
        fact.uid: (fact.phase, fact.is_gated, fact.is_terminating, fact.node)
        for fact in facts
        if not fact.is_terminal
    }


def _is_ours(sight: Sight, uid: str) -> bool:
    """Whether an object without a row was taken in: it shows it, or its FluxJob says so.

    The gate of a Pod is gone once it was released; then its FluxJob alone knows.
    """
    if _fluxjob_of(sight, uid) is not None:
        return True
    try:
        return is_taken_in(sight.objects[uid])
    except Exception:  # noqa: BLE001  one that cannot be read is reported when it is seen by itself
        return False


def _fluxjob_of(sight: Sight, uid: str) -> Published | None:
    fluxjob, workload = sight.fluxjobs.get(uid), sight.objects.get(uid)
    if fluxjob is None or workload is None:
        return None
    try:
        its = workload["metadata"]["namespace"], fluxjob_name(workload)
    except Exception:  # noqa: BLE001  one that cannot be read is reported when it is seen by itself
        return None
    return fluxjob if (fluxjob.namespace, fluxjob.name) == its else None


def placed_pods(sight: Sight, uid: str) -> tuple[PlacedPod, ...]:
    """The pods of a workload that were let go and have not ended."""
    workload, pods = sight.objects[uid], sight.pods_of.get(uid, {})
    placed = []
    for fact in kind_of(workload).facts(workload, list(pods.values())):
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
    """Where the last pod of a completion index was, if another is to come and may be there."""
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
    """Where a pod that is not bound yet was let go to (``workload.gates.ungate_patch``)."""
    name = named_node(spec)
    if name is not None:
        return name  # several nodes may bear one label
    host = (spec.get("nodeSelector") or {}).get(labels.HOSTNAME)
    return None if host is None else hosts.get(host, str(host))


async def write(
    tx: Transaction,
    differences: Differences,
    held: Mapping[NodeResource, int],
    *,
    is_room_measured: bool,
) -> TakenOver:
    """Store what was found; nodes and pods of others must have been written before.

    Parameters
    ----------
    held : what of which node belongs to pods of workloads that are still to be taken over.
    is_room_measured : somebody is, or will be, taken over. Changed workloads are settled at once
        then, so that what has ended makes room before it is measured what others may keep.
    """
    changed = [seen.uid for seen in differences.changed]
    await _lock(tx, [*changed, *differences.gone, *(one.seen.uid for one in differences.found)])
    await save_workloads(tx, differences.changed, differences.gone)
    if is_room_measured:
        await settle(tx, sorted([*changed, *differences.gone]))
    taken = await take_over(tx, differences.found, held)
    await owe_status(tx, differences.unpublished)
    return taken


async def _lock(tx: Transaction, uids: Sequence[str]) -> None:
    """All rows at once in the order of their UID, as everybody does, against deadlocks."""
    await tx.execute(
        "SELECT uid FROM fluxjobs WHERE uid = ANY(CAST(:uids AS text[])) ORDER BY uid FOR UPDATE",
        uids=list(uids),
    )


@dataclass(slots=True)
class Mended:
    """What a resync has mended so far."""

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
        self.statuses += len(differences.unpublished)

    def tell(self) -> None:
        """Say it in the log; in health nothing is said."""
        counts = asdict(self)
        if any(counts.values()):
            logger.info("rows and cluster brought together", extra={"action": "resync", **counts})
