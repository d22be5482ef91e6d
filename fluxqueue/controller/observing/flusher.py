"""Flusher: a loop takes the dirty keys and writes their objects, one transaction per batch.

Part of ``observer``. It writes the present state, as ``workloads`` and ``watches`` have it, so
writing again changes nothing. It remembers what it wrote last and skips what is unchanged. It reads
only what is marked. ``resync_schedule`` covers the rest, and writes under the same lock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace

from fluxqueue.controller.observing.dirty_set import Batch, DirtyKind
from fluxqueue.controller.observing.fluxjob_creator import shown, type_of
from fluxqueue.controller.observing.observer_parts import ObserverParts
from fluxqueue.controller.observing.quarantine import QUEUE, WORKLOAD, said
from fluxqueue.controller.observing.read_workload import (
    WorkloadReader,
    age,
    last_result,
    see_gone,
    see_progress,
)
from fluxqueue.controller.observing.rule_watch import RuleWatch
from fluxqueue.controller.observing.unmanaged_pods import Change
from fluxqueue.controller.observing.watches import RETRY_MAX_S, RETRY_MIN_S
from fluxqueue.db.store.cluster_rows import save_autoscaler, save_foreign, save_nodes
from fluxqueue.db.store.last_readings import Past
from fluxqueue.db.store.learned import save_learned
from fluxqueue.db.store.observations import save_workloads
from fluxqueue.db.store.queues import QueueSeen, save_queues
from fluxqueue.db.store.rule_rows import RuleSeen, save_rules
from fluxqueue.errors import (
    ApiError,
    ApiUnavailable,
    DatabaseUnavailable,
    InvalidInput,
    LostLeadership,
    Transient,
)
from fluxqueue.fluxjob.faults import UNREADABLE, Fault
from fluxqueue.fluxjob.observation import WorkloadGone, WorkloadSeen
from fluxqueue.process import metrics
from fluxqueue.process.pacing import (
    GATHER_S,
    PODS_BEHIND_LOOK_S,
    PODS_BEHIND_S,
    BatchPacer,
    BatchSize,
)
from fluxqueue.workload.kinds.table import kind_of
from fluxqueue.workload.last_good import LAST_REQUEST
from fluxqueue.workload.learned_sizes import LearnedSize
from fluxqueue.workload.objects import Object

logger = logging.getLogger(__name__)

LOOP = "observe"
"""Name of the loop in reports of loop times."""

Recall = Callable[[AbstractSet[str]], Awaitable[Mapping[str, Past]]]

PASSING = (LostLeadership, Transient, ApiError)
"""Errors of the environment, not of the data that is written."""
APART_S = 30.0
"""Seconds until an object that could not be written by itself is tried again."""


class Flusher:
    """Writes what is marked.

    ``lock`` is held while objects are read and written, so that both happen in one order.
    ``recall`` returns what workloads said before, by their UIDs.
    """

    def __init__(
        self,
        parts: ObserverParts,
        *,
        reader: WorkloadReader,
        recall: Recall,
    ) -> None:
        self._term, self._clock, self._liveness = parts.term, parts.clock, parts.liveness
        self._quarantine, self._recall = parts.quarantine, recall
        self._reader, self._dirty = reader, parts.dirty
        self._workloads, self._watches = parts.workloads, parts.watches
        self._foreign, self._creator = parts.router.foreign, parts.creator
        self._written: dict[str, WorkloadSeen] = {}
        self._pace, self._size = (
            BatchPacer(parts.clock, lambda: parts.client.answer_times.delay_s),
            BatchSize(),
        )
        self._lost: BaseException | None = None
        self._unwritten: set[tuple[DirtyKind, str]] = set()
        self._behind_since: dict[str, float] = {}
        self.lock = asyncio.Lock()

    # --- the loop ----------------------------------------------------------------------------

    async def run(self) -> None:
        """Write until cancelled, or until a parallel loop fails.

        Raises
        ------
        LostLeadership
            Another controller has begun a term.
        """
        pause = RETRY_MIN_S
        while True:
            if self._lost is not None:
                raise self._lost
            try:
                await self._turn()
                pause = RETRY_MIN_S
                self._liveness.succeed(LOOP)
            except LostLeadership:
                raise
            except Exception as error:
                self._liveness.fail(LOOP, error)
                # The marks are kept. One defect must not stop all observation.
                if isinstance(error, DatabaseUnavailable | ApiUnavailable):
                    logger.warning("will try again", extra={"action": "flush", "error": str(error)})
                else:
                    logger.exception("flush failed and is repeated")
                await self._clock.sleep(pause)
                pause = min(2 * pause, RETRY_MAX_S)

    def lose(self, error: BaseException) -> None:
        """Make ``run`` raise the error of a parallel loop, even if nothing has to be written."""
        self._lost = error
        self._dirty.wake()

    async def _turn(self) -> None:
        """Wait until a mark is due, and write it with all that has arrived by then."""
        await self._dirty.wait(float("inf"))
        if self._lost is not None:
            return
        self._liveness.begin(LOOP)
        await self._pace.rest(self._dirty.has_newcomer)
        with self._pace.work():
            # A queue that changed just before a workload names it must be in the same batch.
            await self.flush(by_s=self._clock.monotonic_s() + GATHER_S)

    async def flush(self, by_s: float = float("inf")) -> None:
        """Write one batch of what is due by ``by_s``. On failure, mark it again."""
        async with self.lock:
            # Under the lock: otherwise an older state could be written after a newer one.
            batch = self._dirty.take(self._size.limit, by_s=by_s)
            began_s = self._clock.monotonic_s()
            try:
                await self._write(batch)
                took_s = self._clock.monotonic_s() - began_s
                self._size.note(sum(map(len, batch.values())), took_s)
            except (*PASSING, asyncio.CancelledError):
                self._dirty.put_back(batch)
                raise
            except Exception as error:  # noqa: BLE001  any defect of one object in the batch
                await self._write_apart(batch, error)

    # --- a batch that fails ------------------------------------------------------------------

    async def _write_apart(self, batch: Batch, error: Exception) -> None:
        """Find the objects for which a batch fails, and write the others."""
        waiting = [([(kind, key) for kind, keys in batch.items() for key in keys], error)]
        try:
            while waiting:
                part, error = waiting.pop()
                middle = len(part) // 2
                if not middle:
                    self._write_later(*part[0], error)
                    continue
                # The first half is pushed last, so that the stack continues with it.
                for half in (part[middle:], part[:middle]):
                    failed = await self._try(half)
                    if failed is not None:
                        waiting.append((half, failed))
        except BaseException:
            # Writing is idempotent, so marking again what was written does no harm.
            self._dirty.put_back(batch)
            raise

    async def _try(self, part: Sequence[tuple[DirtyKind, str]]) -> Exception | None:
        """Write a part of a batch. Return the error if it could not be written, else None."""
        batch: dict[DirtyKind, list[str]] = {}
        for kind, key in part:
            batch.setdefault(kind, []).append(key)
        try:
            await self._write(batch)
        except PASSING:
            raise
        except Exception as error:  # noqa: BLE001  reported for the object that causes it
            return error
        return None

    def _write_later(self, kind: DirtyKind, key: str, error: Exception) -> None:
        """Report an object that cannot be written, and mark it again after a while."""
        metrics.UNWRITTEN.labels(kind.value).inc()
        if kind is DirtyKind.WORKLOAD:
            self._isolate(key, error)
        else:
            self._quarantine.note(kind.value, key, error)
        self._unwritten.add((kind, key))
        # Later, not at once: a permanent defect would otherwise fail every batch.
        asyncio.get_running_loop().call_later(APART_S, self._dirty.mark, kind, key)

    # --- what is written ---------------------------------------------------------------------

    async def _write(self, batch: Batch) -> None:
        objects, flux_uids = self._workloads.objects, self._workloads.flux_uids
        uids = [uid for uid in batch.get(DirtyKind.WORKLOAD, []) if not self._awaits_pods(uid)]
        present = [uid for uid in uids if uid in objects]
        # Only workloads that were managed: the rows know no other.
        lost = [uid for uid in uids if uid not in objects and uid in flux_uids]
        gone = {uid: self.see_gone(uid) for uid in lost}
        wrapped = [uid for uid in present if flux_uids.get(uid) is not None]
        seen = await self._see(wrapped)
        # Before the queues are read: the batch then includes a recreated ``default``.
        if DirtyKind.QUEUE in batch:
            await self._watches.queues.ensure_default()
        queues = self._watches.queues.see(batch.get(DirtyKind.QUEUE, []))
        looked = [(one, one.see(batch.get(one.kind.dirty, []))) for one in self._watches.rules]
        rules = [(watch, changed) for watch, changed in looked if any(changed)]
        nodes = self._watches.nodes(batch.get(DirtyKind.NODE, []))
        foreign = self._foreign.changes(batch.get(DirtyKind.FOREIGN, []))
        self._pace.size = len(seen) + len(gone)
        if not any((seen, gone, *queues, *rules, *nodes, *foreign)):
            return
        async with self._term.begin_write() as tx:
            # Queues first: a workload must find a queue that was created just before it.
            if any(queues):
                await save_queues(tx, *queues)
            for watch, changed in rules:
                await save_rules(tx, watch.kind.rows, *changed)
            if seen or gone:
                is_awaited = await save_workloads(tx, seen, gone, before=self._written)
                self._pace.is_awaited = is_awaited
            if any(nodes):
                await save_nodes(tx, *nodes)
            if any(foreign):
                await save_foreign(tx, *foreign)
            learned = self._reader.sizes.news
            await save_learned(tx, learned)
        # After the commit: nothing may count as written that was rolled back.
        self._reader.sizes.saved(learned)
        self._forgive(batch)
        # Before ``remember``, which replaces the observation that is compared here.
        amended = [one for one in seen if _asks_otherwise(self._written.get(one.uid), one)]
        self.remember(seen, gone)
        self._foreign.remember(foreign, at_s=self._clock.monotonic_s())
        for one in amended:
            self._creator.amend(one)
        self._note_rules(QUEUE, *queues)
        for watch, changed in rules:
            self._note_rules(watch.kind.dirty, *changed)
        await self._watches.queues.tell_faults(queues[0])
        for watch, changed in rules:
            await watch.tell_faults(changed[0])

    def _note_rules(
        self, kind: str, seen: Iterable[QueueSeen | RuleSeen], gone: Iterable[str]
    ) -> None:
        """Report queues, policies or pools with an unusable spec. The former spec stays in force.

        ``kind``: their kind in quarantine.
        """
        for one in seen:
            if one.fault is None:
                self._quarantine.clear(kind, one.name)
            else:
                self._quarantine.note(kind, one.name, InvalidInput(one.fault))
        for name in gone:
            self._quarantine.clear(kind, name)

    async def write_rules(self, watch: RuleWatch, names: Iterable[str]) -> None:
        """Write the sharing policies or node pools of ``watch`` as they are, marked or not."""
        async with self.lock:
            seen, gone = watch.see(names)
            async with self._term.begin_write() as tx:
                await save_rules(tx, watch.kind.rows, seen, gone)
        self._note_rules(watch.kind.dirty, seen, gone)

    async def write_queues(self, names: Iterable[str]) -> None:
        """Write queues as they are, marked or not."""
        async with self.lock:
            queues = self._watches.queues.see(names)
            async with self._term.begin_write() as tx:
                await save_queues(tx, *queues)
        self._note_rules(QUEUE, *queues)

    async def write_autoscaler(self) -> None:
        """Write what adds nodes to the cluster."""
        async with self.lock, self._term.begin_write() as tx:
            await save_autoscaler(tx, self._watches.autoscaler())

    async def write_nodes(self, names: Iterable[str]) -> None:
        """Write nodes as they are, marked or not."""
        async with self.lock, self._term.begin_write() as tx:
            await save_nodes(tx, *self._watches.nodes(names))

    async def write_foreign(self, uids: Iterable[str]) -> None:
        """Write what unmanaged pods use, marked or not."""
        async with self.lock:
            foreign: Change = self._foreign.changes(uids)
            async with self._term.begin_write() as tx:
                await save_foreign(tx, *foreign)
            self._foreign.remember(foreign)

    def _forgive(self, batch: Batch) -> None:
        """Clear the reports of objects that have been written at last."""
        for kind, keys in batch.items() if self._unwritten else ():
            for key in keys:
                if (kind, key) in self._unwritten:
                    self._unwritten.discard((kind, key))
                    if kind is not DirtyKind.WORKLOAD:
                        self._quarantine.clear(kind.value, key)

    # --- what is seen, and what was written --------------------------------------------------

    def see(self, workload: Object, pods: Sequence[Object], flux_uid: str | None) -> WorkloadSeen:
        """Return what the rows should say of a workload.

        Raises
        ------
        InvalidInput
            The object cannot be turned into a request.
        """
        return self._reader.see(workload, pods, flux_uid, self._watches.class_values())

    def remember(self, seen: Iterable[WorkloadSeen], gone: Mapping[str, WorkloadGone]) -> None:
        """Store what was written. ``gone`` holds the workloads that were written as gone."""
        self._written.update({one.uid: one for one in seen})
        for uid, one in gone.items():
            self._quarantine.clear(WORKLOAD, uid)
            self._creator.unwrap(uid, self._written.pop(uid, None))
            self._reader.forget(uid)
            self._creator.forget(uid)
            self._behind_since.pop(uid, None)
            # Forget it only if no pod was written: a pod that went meanwhile must still be written.
            if not one.pods:
                self._workloads.forget(uid)

    async def _see(self, uids: Sequence[str]) -> list[WorkloadSeen]:
        """Return the observations that change a row, oldest workload first."""
        found, failed = self._look(uids)
        if await self.recall():
            found, failed = self._look(uids)
        for uid, error in failed.items():
            self._isolate(uid, error)
        seen: list[WorkloadSeen] = []
        for one in found:
            if not one.facts.faults or one.facts.faults[0].reason != UNREADABLE:
                self._quarantine.clear(WORKLOAD, one.uid)
            if self._written.get(one.uid) != one:
                version = self._workloads.take_version(one.uid)
                seen.append(one if version is None else replace(one, flux_version=version))
        return seen

    def _awaits_pods(self, uid: str) -> bool:
        """Return whether a deleted workload waits for its pods to be seen. Mark it again if so.

        Without them, how it ended is unknown, and its slots would return while its pods run.
        """
        if not self._are_pods_behind(uid):
            self._behind_since.pop(uid, None)
            return False
        now_s = self._clock.monotonic_s()
        # The wait has an end: pods that went before this process began are never seen.
        if now_s - self._behind_since.setdefault(uid, now_s) > PODS_BEHIND_S:
            return False
        self._dirty.mark(DirtyKind.WORKLOAD, uid, within_s=PODS_BEHIND_LOOK_S)
        return True

    def _are_pods_behind(self, uid: str) -> bool:
        last = self._workloads.objects.get(uid) or self._workloads.last(uid)
        if last is None or uid not in self._workloads.flux_uids:
            return False
        try:
            is_over = uid not in self._workloads.objects or last["metadata"].get(
                "deletionTimestamp"
            )
            kind = kind_of(last)
            if not is_over or kind.counted_pods(last) <= self._workloads.arrived(uid):
                return False
            return last_result(last, self._pods_of(uid), self._workloads.left(uid)) is None
        except Exception:  # noqa: BLE001  an unreadable workload is reported by its observation
            return False

    def _look(self, uids: Sequence[str]) -> tuple[list[WorkloadSeen], dict[str, Exception]]:
        """Return the observations, oldest first, and the errors of the other workloads by UID."""
        objects = self._workloads.objects
        found: list[WorkloadSeen] = []
        failed: dict[str, Exception] = {}
        for uid in sorted(
            (uid for uid in uids if uid in objects), key=lambda uid: age(objects[uid])
        ):
            try:
                found.append(self._see_one(uid))
            except Exception as error:  # noqa: BLE001  one workload must not hide the others
                failed[uid] = error
        return found, failed

    def _see_one(self, uid: str) -> WorkloadSeen:
        """Return the observation of one workload.

        If it cannot be read, its progress is still followed, because its pods run and end.

        Raises
        ------
        Exception
            Nothing of it can be reported.
        """
        workload, pods = self._workloads.objects[uid], self._pods_of(uid)
        try:
            one = self.see(workload, pods, self._workloads.flux_uids[uid])
        except Exception as error:
            if uid not in self._written:
                raise
            one = see_progress(self._written[uid], workload, pods)
            fault = Fault(UNREADABLE, "", said(error), LAST_REQUEST)
            one = replace(one, facts=replace(one.facts, faults=(fault,)))
        if one.is_deleting and one.result is None:
            # An orphaning deletion detaches its pods first: their last states show how it ended.
            left = self._workloads.left(uid)
            one = replace(one, result=last_result(workload, pods, left))
        return one

    def _isolate(self, uid: str, error: Exception) -> None:
        """Report a workload that cannot be read or written. It is read again when it changes."""
        # Only the next written observation clears the note on its row, so it must not be skipped.
        self._written.pop(uid, None)
        workload = self._workloads.objects.get(uid)
        of = None if workload is None else type_of(workload)
        self._quarantine.note(WORKLOAD, uid, error, workload, type_of=of)

    def know_sizes(self, learned: Iterable[LearnedSize]) -> None:
        """Add what pods ask for beyond their templates, as it was learned before this process."""
        self._reader.sizes.know(learned)

    def is_unsure(self) -> bool:
        """Return whether an unreadable workload was seen and its past must be recalled first."""
        return self._reader.is_unsure

    async def recall(self) -> bool:
        """Recall the past of the unreadable workloads seen since. Return whether there were any.

        Raises
        ------
        DatabaseUnavailable, ApiUnavailable
            The recall must be repeated.
        """
        unsure = self._reader.take_unsure()
        if unsure:
            self._reader.recall(unsure, await self._recall(unsure))
        return bool(unsure)

    def see_gone(self, uid: str) -> WorkloadGone:
        """Return what the rows should say of a workload that is gone."""
        last, pods, left = self._workloads.last(uid), self._pods_of(uid), self._workloads.left(uid)
        try:
            return see_gone(last, pods, left)
        except Exception as error:  # noqa: BLE001  it is gone, and its capacity is needed
            logger.warning("last state not read", extra={"uid": uid, "error": str(error)})
            return see_gone(None, pods, left)

    def _pods_of(self, uid: str) -> list[Object]:
        return list(self._workloads.pods_of.get(uid, {}).values())


def _asks_otherwise(before: WorkloadSeen | None, now: WorkloadSeen) -> bool:
    """Return whether a FluxJob must be updated: its workload was scaled, or its group gathers.

    A group is left out once a pod of it was released. What remains when pods end is not its
    request.
    """
    if now.facts.is_gathered:
        return bool(now.pods) and all(pod.is_gated for pod in now.pods)
    is_known = before is not None and before.request is not now.request
    return is_known and before is not None and shown(before) != shown(now)
