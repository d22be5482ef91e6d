"""Resync, the difference: compare the whole cluster with all rows, in both directions.

``resync_schedule`` calls it when a term begins and once per resync interval. ``find`` compares
everything page by page and takes no lock. In a healthy cluster it finds no difference. ``compare``
checks a page of the suspects again, in the transaction in which ``write`` stores the differences.

A resync also fills an empty database. It brings a database restored from a backup up to date.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from enum import Flag, auto

from fluxqueue.controller.observing.read_workload import UNREAD, see_progress
from fluxqueue.controller.observing.sight import InSight, Published, Sight
from fluxqueue.db.database import Database, Transaction
from fluxqueue.db.store.observations import save_workloads
from fluxqueue.db.store.rebuild import Found, NodeResource, TakenOver, take_over
from fluxqueue.db.store.reconciling import reconcile
from fluxqueue.db.store.resync_rows import Present, RowSeen, read_present, read_uids
from fluxqueue.db.store.statuses import rewrite_statuses
from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.observation import WorkloadGone, WorkloadSeen
from fluxqueue.fluxjob.pod_facts import PodFact
from fluxqueue.fluxjob.states import FINAL
from fluxqueue.jobspec.parse import read_stored
from fluxqueue.process import metrics
from fluxqueue.scheduler.adoption import PinnedStart, with_start
from fluxqueue.scheduler.record import DecisionRecord
from fluxqueue.workload.objects import Object
from fluxqueue.workload.observed_pod import pod_fact

logger = logging.getLogger(__name__)


PAGE = 1000
"""Rows per read."""
WRITE_PAGE = 100
"""Workloads per write.

Other transactions that need one of their rows wait for the whole page."""
YIELD_EVERY = 50
_NO_ROWS = Present({}, frozenset())


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
            one = sight.one(uid)
            suspects.flux_uids[uid] = row.flux_uid if one is None else one.flux_uid
    # Informers change ``objects`` while this yields: iterate over a copy, check each UID again.
    for number, uid in enumerate(list(sight.objects)):
        await _let_others_run(number)
        one = sight.one(uid)
        if one is None or uid in with_row or not one.is_ours:
            continue
        suspects.flux_uids[uid] = one.flux_uid
        if _suspect(sight, _NO_ROWS, uid):
            found.append(uid)
    for number, one in enumerate(_oldest_first(sight, found)):
        await _let_others_run(number)
        if one.uid in sight.objects:
            suspects.found[one.uid] = _held_by(one)
            suspects.highest_jobid = max(suspects.highest_jobid, one.jobid())
    return suspects


def _oldest_first(sight: Sight, uids: Iterable[str]) -> list[InSight]:
    """Return the workloads that are there in the order of submission.

    Jobids are given in this order, so it survives a lost database.
    """
    there = [one for uid in uids if (one := sight.one(uid)) is not None]
    return sorted(there, key=lambda one: one.age)


def _suspect(sight: Sight, present: Present, uid: str) -> ResyncVerdict:
    """Return the verdict of ``judge``, or CHANGED for a workload that it cannot judge."""
    try:
        return judge(sight, present, uid)
    except Exception:  # noqa: BLE001  reported when it is compared again by itself
        return ResyncVerdict.CHANGED


def _held_by(one: InSight) -> dict[NodeResource, int]:
    """Return what the pods of a workload use, or nothing if they cannot be read."""
    try:
        return one.held()
    except Exception as error:  # noqa: BLE001  any defect of one workload
        _tell_unreadable(one.uid, error)
        return {}


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


class ResyncVerdict(Flag):
    """Differences of one workload."""

    NOTHING = 0
    FOUND = auto()
    CHANGED = auto()
    GONE = auto()
    UNPUBLISHED = auto()
    STRANDED = auto()


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
    for one in _oldest_first(sight, uids):
        verdict = judge(sight, present, one.uid)
        try:
            _note(found, one, verdict, see, is_doubted=one.uid in doubted)
        except InvalidInput as error:
            _tell_unreadable(one.uid, error)
    for uid in (uid for uid in uids if uid not in sight.objects):
        if ResyncVerdict.GONE in judge(sight, present, uid):
            found.gone[uid] = see_gone(uid)
    return found


def _note(
    found: Differences, one: InSight, verdict: ResyncVerdict, see: See, *, is_doubted: bool
) -> None:
    fluxjob = one.fluxjob
    if ResyncVerdict.UNPUBLISHED in verdict:
        found.stale_statuses.append(one.uid)
    if not verdict & (ResyncVerdict.FOUND | ResyncVerdict.CHANGED):
        return
    seen = see(one.workload, one.pods, one.flux_uid)
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
        record = _with_pinned_start(record, seen, one)
    found.found.append(
        Found(seen, record, one.placed_pods(), one.last_nodes(), is_stranded=is_stranded)
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


def _with_pinned_start(record: DecisionRecord, seen: WorkloadSeen, one: InSight) -> DecisionRecord:
    """Add to a record the start that stands only in the pod template.

    A later update of its FluxJob was pending.
    """
    found = one.start_in_template()
    if found is None or seen.facts.is_suspended:
        return record
    nodes, jobid = found
    since = (one.workload.get("status") or {}).get("startTime")
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
    row, one = present.rows.get(uid), sight.one(uid)
    if one is not None:
        return differences(one, row, present.holders)
    is_news = row is not None and _is_gone_news(row, sight.pods(uid))
    return ResyncVerdict.GONE if is_news else ResyncVerdict.NOTHING


def differences(one: InSight, row: RowSeen | None, holders: frozenset[str]) -> ResyncVerdict:
    """Return the differences between a workload that is there and its row.

    ``holders``: UIDs of pods with slots.
    """
    fluxjob = one.fluxjob
    if row is None:
        # Here the gate is the only mark. If it were released before its FluxJob exists and the rows
        # were then lost, nothing would identify it. So its FluxJob is made first.
        is_early = fluxjob is None and one.kind.is_known_by_gate_alone
        return ResyncVerdict.FOUND if one.is_ours and not is_early else ResyncVerdict.NOTHING
    # Before all other checks: a final row without news would otherwise count as healthy. No process
    # would start what is still held. This happens after a mix-up of databases. A workload that a
    # user cancelled does not count, because it is about to be deleted.
    if row.state in FINAL and not row.is_cancelled and one.is_held:
        return ResyncVerdict.FOUND | ResyncVerdict.STRANDED
    verdict = ResyncVerdict.NOTHING
    if fluxjob is not None and (fluxjob.state, fluxjob.jobid) != (row.state, row.jobid):
        verdict |= ResyncVerdict.UNPUBLISHED
    version = fluxjob.version if fluxjob is not None else None
    # A status that is newer than its row proves that the row is outdated.
    is_newer = version is not None and version > row.version
    if is_newer or (row.state not in FINAL and one.has_stray(holders)):
        return verdict | ResyncVerdict.FOUND
    seen = see_progress(UNREAD, one.workload, one.pods)
    is_other = differs(row, seen, one.flux_uid)
    return verdict | (ResyncVerdict.CHANGED if is_other else ResyncVerdict.NOTHING)


def _is_gone_news(row: RowSeen, pods: Sequence[Object]) -> bool:
    """Return whether the row does not yet say that the workload is gone, or lists other pods."""
    return not (row.is_gone and _pods(map(pod_fact, pods)) == dict(row.pods))


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
