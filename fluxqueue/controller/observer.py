"""The observer: informers mark what changed, a loop writes it down, one transaction a batch.

Runs in the one active controller, under its term. What it keeps in memory (stores, indexes, what
was written last) is a cache: a new process reads the rows and the cluster and goes on. It decides
nothing about placement; the worker's tasks do what follows from the rows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Container,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, TypeVar

from fluxqueue import metrics
from fluxqueue.clock import Clock, Pace
from fluxqueue.controller import resync
from fluxqueue.controller.batch_jobs import BatchJobs
from fluxqueue.controller.foreign import Change, ForeignPods
from fluxqueue.controller.groups import Groups, list_groups
from fluxqueue.controller.marks import GATHER_S, Batch, Kind, Marks
from fluxqueue.controller.mending import Mending
from fluxqueue.controller.observe import (
    Reader,
    age,
    is_news,
    is_pod_news,
    see_facts,
    trim_pod,
)
from fluxqueue.controller.owners import Owners
from fluxqueue.controller.pod_groups import PodGroups
from fluxqueue.controller.queues import QueueWatch
from fluxqueue.controller.suspended_owners import SuspendedOwners
from fluxqueue.controller.wrapping import Wrapper, report_unwritten, shown
from fluxqueue.controller.zones import ZoneWatch
from fluxqueue.db.database import Database, Transaction
from fluxqueue.db.leadership import check_term, confirm, doubt
from fluxqueue.db.life.observations import (
    Known,
    KnownGroup,
    WorkloadSeen,
    read_known,
    save_foreign,
    save_nodes,
    save_workloads,
)
from fluxqueue.db.life.owed import sweep
from fluxqueue.db.life.queues import queue_names, save_queues
from fluxqueue.db.life.rebuild import prepare
from fluxqueue.errors import (
    ApiError,
    ApiUnavailable,
    DatabaseUnavailable,
    InvalidInput,
    LostLeadership,
    Transient,
)
from fluxqueue.fluxjob.levels import parse_levels
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.informer import Informer
from fluxqueue.kube.resources import NODES, PODS, PRIORITY_CLASSES
from fluxqueue.objects import Object
from fluxqueue.settings import Settings
from fluxqueue.workload import labels
from fluxqueue.workload.kinds import workload_uid
from fluxqueue.workload.managed import is_managed
from fluxqueue.workload.nodes import node_fact
from fluxqueue.workload.owner_kinds import parse_owner_kinds
from fluxqueue.workload.pods import pod_fact
from fluxqueue.workload.site import Site

logger = logging.getLogger(__name__)


Read = TypeVar("Read")

ROLE = "controller"
BATCH_MAX = 200
PAGE = 1000
"""Nodes and pods of others written at once."""

ENDED_S = 0.05
"""The pods of a gang end one after the other."""
LATER_S = 0.3
"""Nobody waits to be told that a pod came let go, is bound, or runs: that goes with the next that
matters."""
FOREIGN_EVERY_S = 0.5
"""Pods that are not ours come in any number: they are written in batches at least so far apart."""

RETRY_MIN_S, RETRY_MAX_S = 0.2, 5.0

PASSING = (LostLeadership, Transient, ApiError)
"""What is wrong with the surroundings, and not with what is written."""
APART_S = 30.0
"""Until what could not be written by itself is tried again."""

RESYNC_RETRY_S = 30.0
ASK_OWNER_EVERY_S = 10.0
"""An owner that is to have more pods than have come may have been changed."""
CONFIRMS = 10
"""How often it says that it is there, in the time after which nobody would believe it."""


class Observer:
    """Follows the cluster while its term lasts."""

    def __init__(
        self, database: Database, client: KubeClient, settings: Settings, clock: Clock, term: int
    ) -> None:
        self._database, self._client, self._settings = database, client, settings
        self._clock, self._term = clock, term
        self._site = Site(
            settings.default_cpu_m, parse_levels(settings.levels), settings.gather_timeout_s
        )
        self._objects: dict[str, Object] = {}
        self._pods_by_uid: dict[str, Object] = {}
        self._pods_of: dict[str, dict[str, Object]] = {}
        self._flux_uids: dict[str, str | None] = {}
        self._news_of_fluxjobs: set[str] = set()
        self._written: dict[str, WorkloadSeen] = {}
        self._pod_groups = PodGroups(client, clock, self._on_pod_group)
        owner_kinds = parse_owner_kinds(settings.owner_kinds)
        self._suspended = SuspendedOwners(client, clock, owner_kinds, self._on_suspended)
        self._owners = Owners(
            client,
            clock,
            owner_kinds,
            find=self._find_watched,
            on_found=self._on_owner,
        )
        self._groups = Groups(
            self._objects.get,
            self._pod_groups.find,
            top=self._owners.top,
            clock=clock,
            window_s=settings.arrival_window_s,
        )
        self._alarms: dict[str, asyncio.TimerHandle] = {}
        self._marks = Marks(clock)
        self._writing = asyncio.Lock()
        self._lost: BaseException | None = None
        self._is_begun = self._is_in_doubt = False
        # Longer than it takes until another controller leads: then the queue goes on meanwhile.
        self._confirmed_s = 2 * settings.lease_duration_s
        self._pace, self._foreign_at_s = Pace(clock), float("-inf")
        self._reader = Reader(self._site)
        self._foreign = ForeignPods(self._find_foreign)
        self._wrapper = Wrapper(
            client,
            clock,
            self._site,
            find=self._find_unwrapped,
            stands=self.stands,
            class_values=self._class_values,
            on_made=self._on_made,
        )
        self._queues = QueueWatch(
            client, lambda name: self._marks.mark(Kind.QUEUE, name), clock, settings.queue_policy
        )
        self._zones = ZoneWatch(client, lambda name: self._marks.mark(Kind.NODE, name))
        self._jobs = BatchJobs(client, clock, is_known=self._is_awaited, on_change=self._on_job)
        self._informers = {
            "queues": self._queues.queues,
            "namespaces": self._queues.namespaces,
            "jobs": self._jobs.informer,
            "pods": self._informer(PODS, self._on_pod, trim_pod),
            "nodes": self._informer(NODES, self._on_node, None),
            "classes": self._informer(PRIORITY_CLASSES, None, None),
        }

    def _informer(
        self,
        resource: Any,
        on_change: Callable[[Object | None, Object | None], None] | None,
        transform: Callable[[Object], Object] | None,
    ) -> Informer:
        return Informer(
            self._client, resource, on_change=on_change, transform=transform, retry_cap_s=5.0
        )

    @property
    def is_synced(self) -> bool:
        """Whether the cluster has been read once, and the rows brought together with it."""
        return self._is_begun

    # --- events only mark --------------------------------------------------------------------

    def _on_job(self, old: Object | None, new: Object | None) -> None:
        job = new or old
        assert job is not None, "an informer tells of an object, old or new"
        self._keep(job["metadata"]["uid"], new)
        if old is None or new is None or is_news(old, new):
            self._mark_workload(job["metadata"]["uid"])
            for group in self._groups.of_job(job["metadata"]["uid"]):
                self._see_group(group)

    def _is_awaited(self, uid: str) -> bool:
        """Whether the end of a BatchJob is the end of something of ours."""
        return uid in self._flux_uids or bool(self._groups.of_job(uid))

    def _on_suspended(self, old: Object | None, new: Object | None) -> None:
        found = new or old
        assert found is not None, "an informer tells of an object, old or new"
        uid = found["metadata"]["uid"]
        is_ours = new is not None and (uid in self._flux_uids or is_managed(new))
        self._groups.hold(uid, new if is_ours else None)
        self._keep(uid, self._groups.object(uid))
        if old is None or new is None or is_news(old, new):
            self._mark_workload(uid)

    def _keep(self, uid: str, obj: Object | None) -> None:
        if obj is None:
            self._objects.pop(uid, None)
        else:
            self._objects[uid] = obj

    def _mark_workload(self, uid: str, *, within_s: float = GATHER_S) -> None:
        """Have a workload written, if it is one of ours; its FluxJob is made first."""
        if self._flux_uids.get(uid) is not None:
            self._marks.mark(Kind.WORKLOAD, uid, within_s=within_s)
        elif self._find_unwrapped(uid) is not None:
            self._wrapper.want(uid)
        elif uid in self._flux_uids:
            self._marks.mark(Kind.WORKLOAD, uid, within_s=within_s)  # it is gone

    def _find_unwrapped(self, uid: str) -> Object | None:
        """An object of ours that has no FluxJob."""
        obj = self._objects.get(uid)
        if obj is None or self._flux_uids.get(uid) is not None:
            return None
        return obj if uid in self._flux_uids or is_managed(obj) else None

    def _on_made(self, uid: str, flux_uid: str) -> None:
        self._flux_uids[uid] = flux_uid
        self._news_of_fluxjobs.add(uid)
        # Nobody comes with it: it need not wait for others.
        self._marks.mark(Kind.WORKLOAD, uid, within_s=GATHER_S if self._wrapper.has_more else 0.0)
        if uid in self._pods_by_uid:
            self._mark_foreign(uid)  # a bare Pod was somebody else's until now

    def on_fluxjob_deleted(self, workload_uid: str) -> None:
        """A FluxJob is gone; as long as its workload exists it is made again."""
        self._news_of_fluxjobs.add(workload_uid)
        if self._flux_uids.get(workload_uid) is not None:
            self._flux_uids[workload_uid] = None
            self._mark_workload(workload_uid)

    def _on_pod(self, old: Object | None, new: Object | None) -> None:
        pod = new or old
        assert pod is not None, "an informer tells of an object, old or new"
        uid, workload = pod["metadata"]["uid"], self._workload_uid(pod)
        before = workload if old is None else self._workload_uid(old)
        if new is None or before != workload:
            self._forget_pod(uid, before)
        if new is not None:
            self._pods_by_uid[uid] = new
            self._pods_of.setdefault(workload, {})[uid] = new
        if before != workload:
            # Its BatchJob was deleted and left it behind: it is nobody's now, and runs on.
            self._mark_workload(before)
            self._mark_foreign(uid)
        if workload in self._groups:
            self._on_member(uid, workload, old, new)
        elif uid == workload and _is_workload(pod, self._flux_uids):
            self._on_bare_pod(uid, old if before == workload else None, new)
        elif workload in self._flux_uids:
            self._on_pod_of_ours(workload, old, new)
        if workload not in self._flux_uids and self._foreign.is_news(old, new, uid):
            self._mark_foreign(uid)

    def _workload_uid(self, pod: Object) -> str:
        return self._groups.place(pod) or workload_uid(pod)

    def _on_member(self, uid: str, group: str, old: Object | None, new: Object | None) -> None:
        if new is None:
            self._groups.forget(uid)
        else:
            self._groups.keep(group, new)
        if old is None or new is None or is_pod_news(old, new):
            self._see_group(group, within_s=_awaited_within_s(old, new))

    def _see_group(self, uid: str, *, within_s: float = GATHER_S) -> None:
        """Put together anew what stands for a group, and have it written."""
        self._keep(uid, self._groups.object(uid))
        self._mark_workload(uid, within_s=within_s)
        closes_in_s = self._groups.closes_in_s(uid)
        if closes_in_s is not None:
            self._set_alarm(uid, closes_in_s, self._see_group)
        elif self._groups.gathering(uid) is not None:
            self._set_alarm(uid, ASK_OWNER_EVERY_S, self._ask_owner)

    def _set_alarm(self, uid: str, delay_s: float, act: Callable[[str], None]) -> None:
        """Look at a group again after a while, if nothing makes us look at it earlier."""
        old = self._alarms.pop(uid, None)
        if old is not None:
            old.cancel()
        self._alarms[uid] = asyncio.get_running_loop().call_later(delay_s, self._ring, uid, act)

    def _ring(self, uid: str, act: Callable[[str], None]) -> None:
        del self._alarms[uid]
        act(uid)

    def _ask_owner(self, uid: str) -> None:
        found = self._groups.gathering(uid)
        if found is not None:
            owner, pod = found
            meta = pod["metadata"]
            self._owners.ask_again(owner, meta["namespace"], meta["uid"])

    def _find_watched(self, uid: str) -> Mapping[str, Any] | None:
        return self._objects.get(uid) or self._pods_by_uid.get(uid)

    def _on_owner(self, pod_uid: str) -> None:
        """It is known now who makes a pod in the end."""
        pod = self._pods_by_uid.get(pod_uid)
        if pod is None:
            return
        group = self._groups.look(pod)
        if group is not None:
            self._see_group(group)
        else:
            self._forget_pod(pod_uid, workload_uid(pod))
            self._on_pod(None, pod)

    def _on_pod_group(self, namespace: str, name: str) -> None:
        for uid in self._groups.declared_by(namespace, name):
            self._see_group(uid)

    def find(self, uid: str) -> Mapping[str, Any] | None:
        """A workload that is there, in the form in which its entry takes it."""
        return self._objects.get(uid)

    def stands(self, uid: str) -> bool:
        """Whether a workload that no object stands for goes on, or that is not yet known."""
        return not self._is_begun or uid in self._objects

    def goes_on(self, uid: str) -> bool:
        """Whether a workload is there, and is not being deleted."""
        found = self._objects.get(uid)
        return found is not None and not found["metadata"].get("deletionTimestamp")

    def _on_bare_pod(self, uid: str, old: Object | None, new: Object | None) -> None:
        self._keep(uid, new)
        if old is None or new is None or is_news(old, new):
            self._mark_workload(uid)

    def _on_pod_of_ours(self, workload: str, old: Object | None, new: Object | None) -> None:
        if old is None or new is None or is_pod_news(old, new):
            self._mark_workload(workload, within_s=_awaited_within_s(old, new))

    def _forget_pod(self, uid: str, workload: str) -> None:
        self._pods_by_uid.pop(uid, None)
        self._pods_of.get(workload, {}).pop(uid, None)
        if not self._pods_of.get(workload):
            self._pods_of.pop(workload, None)

    def _find_foreign(self, uid: str) -> Object | None:
        """A pod that is there and not ours."""
        pod = self._pods_by_uid.get(uid)
        return None if pod is None or self._workload_uid(pod) in self._flux_uids else pod

    def _mark_foreign(self, uid: str) -> None:
        within_s = max(GATHER_S, self._foreign_at_s + FOREIGN_EVERY_S - self._clock.monotonic_s())
        self._marks.mark(Kind.FOREIGN, uid, within_s=within_s)

    def _on_node(self, old: Object | None, new: Object | None) -> None:
        node = new or old
        assert node is not None, "an informer tells of an object, old or new"
        if old is None or new is None or node_fact(old) != node_fact(new):
            self._marks.mark(Kind.NODE, node["metadata"]["name"])

    # --- the loop writes -----------------------------------------------------------------------

    async def run(self) -> None:
        """Observe until cancelled or until the term is lost.

        Raises
        ------
        LostLeadership
            Another controller has begun a term.
        """
        beside: list[asyncio.Task[None]] = []
        try:
            beside.append(self._start(self._wrapper.run()))
            beside.append(self._start(self._pod_groups.run()))
            await self._begin()
            beside.append(self._start(self._suspended.run()))
            beside.append(self._start(self._confirm_for_ever()))
            beside.append(self._start(self._resync_for_ever()))
            await self._write_for_ever()
        finally:
            for task in beside:
                task.cancel()
            for alarm in self._alarms.values():
                alarm.cancel()
            await self._owners.stop()
            await self._suspended.stop()
            await self._jobs.stop()
            for informer in self._informers.values():
                with suppress(asyncio.CancelledError):
                    await informer.stop()
            await self._zones.stop()

    def _start(self, loop: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a loop beside the one that writes; if it fails, all end, and are begun anew."""
        task = asyncio.create_task(loop)
        task.add_done_callback(self._see_end)
        return task

    def _see_end(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._lose(error)

    async def _write_for_ever(self) -> None:
        pause = RETRY_MIN_S
        while True:
            if self._lost is not None:
                raise self._lost
            try:
                await self._turn()
                pause = RETRY_MIN_S
            except LostLeadership:
                raise
            except Exception as error:
                # What was marked stays marked; one defect must not stop all observation.
                if isinstance(error, DatabaseUnavailable | ApiUnavailable):
                    logger.warning("will try again", extra={"action": "flush", "error": str(error)})
                else:
                    logger.exception("flush failed and is repeated")
                await self._clock.sleep(pause)
                pause = min(2 * pause, RETRY_MAX_S)

    async def _turn(self) -> None:
        """Wait until something is due, and write it with all that has come by then."""
        await self._marks.wait(float("inf"))
        if self._lost is not None:
            return
        await self._pace.rest()
        with self._pace.work():
            # A queue that was changed just before somebody names it goes with him.
            await self._flush(by_s=self._clock.monotonic_s() + GATHER_S)

    async def _confirm_for_ever(self) -> None:
        """Say that somebody compares the rows with the cluster, however slow the API server is."""
        while True:
            await self._clock.sleep(self._confirmed_s / CONFIRMS)
            if self._is_in_doubt:
                continue
            try:
                async with self.begin_write() as tx:
                    await self._confirm(tx)
            except DatabaseUnavailable as error:
                logger.warning("database away", extra={"action": "confirm", "error": str(error)})

    async def _confirm(self, tx: Transaction) -> None:
        if await confirm(tx, ROLE, term=self._term, duration_s=self._confirmed_s):
            await sweep(tx)

    def _lose(self, error: BaseException) -> None:
        """Have the loop that writes tell it to whoever runs us, though nothing may be to write."""
        self._lost = error
        self._marks.wake()

    @asynccontextmanager
    async def begin_write(self) -> AsyncIterator[Transaction]:
        """A transaction under our term."""
        async with self._database.begin() as tx:
            await check_term(tx, ROLE, self._term)
            yield tx

    async def _flush(self, by_s: float = float("inf")) -> None:
        """Write one batch; what could not be written is marked again."""
        async with self._writing:
            batch = self._marks.take(BATCH_MAX, by_s=by_s)
            try:
                await self._write(batch)
            except (*PASSING, asyncio.CancelledError):
                self._marks.put_back(batch)
                raise
            except Exception as error:  # noqa: BLE001  whatever it is, it is of one of these
                await self._write_apart(batch, error)

    async def _write_apart(self, batch: Batch, error: Exception) -> None:
        """Find who of a batch it is that it fails for, and write the others."""
        waiting = [([(kind, key) for kind, keys in batch.items() for key in keys], error)]
        try:
            while waiting:
                part, error = waiting.pop()
                middle = len(part) // 2
                if not middle:
                    self._write_later(*part[0], error)
                    continue
                for half in (part[middle:], part[:middle]):
                    failed = await self._try(half)
                    if failed is not None:
                        waiting.append((half, failed))
        except BaseException:
            # Written twice is written once.
            self._marks.put_back(batch)
            raise

    async def _try(self, part: Sequence[tuple[Kind, str]]) -> Exception | None:
        """Write a part of a batch; why it could not be, None where it is written."""
        batch: dict[Kind, list[str]] = {}
        for kind, key in part:
            batch.setdefault(kind, []).append(key)
        try:
            await self._write(batch)
        except PASSING:
            raise
        except Exception as error:  # noqa: BLE001  it is told of the one that it is for
            return error
        return None

    def _write_later(self, kind: Kind, key: str, error: Exception) -> None:
        """What cannot be written holds nobody up; it is tried again after a while."""
        metrics.UNWRITTEN.labels(kind.value).inc()
        logger.error(
            "cannot be written, and is tried again",
            extra={"action": "flush", "kind": kind.value, "key": key, "error": str(error)},
        )
        asyncio.get_running_loop().call_later(APART_S, self._marks.mark, kind, key)

    async def _write(self, batch: Batch) -> None:
        uids = batch.get(Kind.WORKLOAD, [])
        present = [uid for uid in uids if uid in self._objects]
        lost = [uid for uid in uids if uid not in self._objects and uid in self._flux_uids]
        gone = {uid: self._orphans(uid) for uid in lost}
        seen = self._see([uid for uid in present if self._flux_uids.get(uid) is not None])
        if Kind.QUEUE in batch:
            await self._queues.ensure_default()
        queues = self._queues.see(batch.get(Kind.QUEUE, []))
        nodes = self._nodes(batch.get(Kind.NODE, []))
        foreign = self._foreign.changes(batch.get(Kind.FOREIGN, []))
        if not any((seen, gone, *queues, *nodes, *foreign)):
            return
        async with self.begin_write() as tx:
            # First: what names a queue that was made just before it must find it.
            if any(queues):
                await save_queues(tx, *queues)
            if seen or gone:
                await save_workloads(tx, seen, gone, before=self._written)
            if any(nodes):
                await save_nodes(tx, *nodes)
            if any(foreign):
                await save_foreign(tx, *foreign)
        amended = [one for one in seen if _asks_otherwise(self._written.get(one.uid), one)]
        self._remember(seen, gone, foreign)
        for one in amended:
            self._wrapper.amend(one)
        await self._queues.tell_faults(queues[0])

    def _see(self, uids: Iterable[str]) -> list[WorkloadSeen]:
        """Observations that tell the rows something new, oldest workload first."""
        seen: list[WorkloadSeen] = []
        for uid in sorted(uids, key=lambda uid: age(self._objects[uid])):
            pods = list(self._pods_of.get(uid, {}).values())
            try:
                one = self._see_one(self._objects[uid], pods, self._flux_uids[uid])
            except InvalidInput as error:
                logger.warning("workload cannot be read", extra={"uid": uid, "error": str(error)})
                if uid not in self._written:
                    continue
                one = see_facts(self._written[uid], self._objects[uid], pods)
            if self._written.get(uid) != one:
                seen.append(one)
        return seen

    def _see_one(
        self, workload: Mapping[str, Any], pods: Sequence[Mapping[str, Any]], flux_uid: str | None
    ) -> WorkloadSeen:
        return self._reader.see(workload, pods, flux_uid, self._class_values())

    def _orphans(self, uid: str) -> tuple[str, list[Any]]:
        left = list(self._pods_of.get(uid, {}).values())
        namespace = left[0]["metadata"]["namespace"] if left else ""
        return namespace, [pod_fact(pod) for pod in left]

    def _nodes(self, names: Iterable[str]) -> tuple[list[Any], list[str]]:
        store = self._informers["nodes"]
        found = {name: store.get("", name) for name in names}
        present = [
            node_fact(node, self._zones.of(name))
            for name, node in found.items()
            if node is not None
        ]
        return present, [name for name, node in found.items() if node is None]

    def _remember(
        self,
        seen: list[WorkloadSeen],
        gone: Mapping[str, tuple[str, list[Any]]],
        foreign: Change = ([], []),
    ) -> None:
        self._written.update({one.uid: one for one in seen})
        for uid, (_, left) in gone.items():
            self._wrapper.unwrap(uid, self._written.pop(uid, None))
            self._reader.forget(uid)
            self._wrapper.forget(uid)
            # Also what was written counts: a pod that went meanwhile has yet to be written down.
            if not left and not self._pods_of.get(uid):
                self._flux_uids.pop(uid, None)
        self._foreign.remember(foreign)
        if any(foreign):
            self._foreign_at_s = self._clock.monotonic_s()

    def _class_values(self) -> dict[str, int]:
        return {
            item["metadata"]["name"]: int(item["value"])
            for item in self._informers["classes"].items()
        }

    # --- everything with everything --------------------------------------------------------------

    async def _begin(self) -> None:
        """Read the rows, then the cluster; bring the two together before anything is decided."""
        known = await self._read_known()
        self._flux_uids = dict(known.flux_uids)
        # What FluxJobs tell of groups, where the rows were lost.
        told = await self._insist(partial(list_groups, self._client), "FluxJobs")
        groups = [*known.groups, *told]
        self._groups.know(groups)
        self._foreign.know(known.foreign)
        # Before the pods: these are of whatever is held by its suspension.
        await self._suspended.begin(known.suspended)
        # Whoever is not seen is taken for gone.
        await self._insist(self._jobs.look, "BatchJobs")
        for informer in self._informers.values():
            informer.start()
        await self._zones.look()
        for informer in self._informers.values():
            await informer.synced.wait()
        await self._owners.settle()
        self._groups.listed()
        self._forget_groups(groups)
        pause = RETRY_MIN_S
        while True:
            try:
                await self._resync()
            except (DatabaseUnavailable, ApiUnavailable, ApiError) as error:
                logger.warning("resync failed", extra={"action": "begin", "error": str(error)})
                await self._clock.sleep(pause)
                pause = min(2 * pause, RETRY_MAX_S)
            else:
                self._is_begun = True
                return

    def _forget_groups(self, known: Iterable[KnownGroup]) -> None:
        """Those of which no pod is left go, and with them the FluxJobs that nobody owns."""
        for one in known:
            if one.flux_uid is None:
                continue
            self._wrapper.know(one.uid, one.namespace, one.fluxjob, one.flux_uid)
            if one.uid not in self._groups:
                self._flux_uids.setdefault(one.uid, one.flux_uid)
                self._marks.mark(Kind.WORKLOAD, one.uid)

    async def _read_known(self) -> Known:
        while True:
            try:
                async with self.begin_write() as tx:
                    return await read_known(tx)
            except DatabaseUnavailable as error:
                logger.warning("database away", extra={"action": "begin", "error": str(error)})
                await self._clock.sleep(RETRY_MAX_S / 5)

    async def _insist(self, read: Callable[[], Awaitable[Read]], what: str) -> Read:
        """Read until the API server answers."""
        pause = RETRY_MIN_S
        while True:
            try:
                return await read()
            except (ApiUnavailable, ApiError) as error:
                extra = {"action": "begin", "what": what, "error": str(error)}
                logger.warning("not read; tried again", extra=extra)
                await self._clock.sleep(pause)
                pause = min(2 * pause, RETRY_MAX_S)

    async def _resync_for_ever(self) -> None:
        """Now and then read the cluster anew and compare everything, while writing goes on."""
        pause_s = self._settings.resync_interval_s
        while True:
            await self._clock.sleep(pause_s)
            try:
                await asyncio.gather(*(one.relist() for one in self._informers.values()))
                await self._jobs.look()
                await self._suspended.relist()
                await self._zones.look()
                await self._resync()
                pause_s = self._settings.resync_interval_s
                continue
            except LostLeadership:
                raise
            except (DatabaseUnavailable, ApiUnavailable, ApiError) as error:
                logger.warning("resync failed", extra={"action": "resync", "error": str(error)})
            except Exception:
                logger.exception("resync failed and is repeated")
            pause_s = min(RESYNC_RETRY_S, self._settings.resync_interval_s)

    async def _resync(self) -> None:
        """Compare everything with everything, and store the differences page by page."""
        self._news_of_fluxjobs.clear()
        # FluxJobs first: a status that is newer than its row then proves the row to be old.
        sight = self._sight(await resync.list_fluxjobs(self._client))
        await self._queues.ensure_default()
        suspects = await resync.find(sight, resync.read_rows(self._database))
        self._know(suspects.flux_uids)
        self._wrapper.is_known.set()
        await self._write_surroundings()
        mended = await self._mend(sight, suspects)
        self._is_in_doubt = False
        async with self.begin_write() as tx:
            await self._confirm(tx)
            await tx.wake_matcher()
        mended.tell()

    async def _write_surroundings(self) -> None:
        """Queues, nodes and pods of others: what workloads are measured against."""
        async with self.begin_write() as tx:
            known, names = await read_known(tx), await queue_names(tx)
        self._foreign.know(known.foreign)
        async with self._writing, self.begin_write() as tx:
            await save_queues(tx, *self._queues.see({*names, *self._queues.names()}))
        for page in _pages(sorted({*known.nodes, *self._node_names()}), PAGE):
            async with self._writing, self.begin_write() as tx:
                await save_nodes(tx, *self._nodes(page))
        for page in _pages([*{*known.foreign, *self._pods_by_uid}], PAGE):
            async with self._writing:
                foreign = self._foreign.changes(page)
                async with self.begin_write() as tx:
                    await save_foreign(tx, *foreign)
                self._foreign.remember(foreign)

    async def _mend(self, sight: resync.Sight, suspects: resync.Suspects) -> resync.Mended:
        """Look again at those found, and write down what is different."""
        mending = Mending(
            self.begin_write,
            self._writing,
            sight,
            suspects,
            self._see_one,
            self._remember,
            self._database.begin,
        )
        if mending.is_takeover_in_pages:
            await self._prepare(suspects)
        mended = await mending.run()
        for uid, error in mending.refused.items():
            if uid in self._objects:
                await report_unwritten(self._client, self._objects[uid], error, self._clock.now_s())
        return mended

    async def _prepare(self, suspects: resync.Suspects) -> None:
        """Between two pages the rows are neither as before nor as the cluster: nobody may act."""
        self._is_in_doubt = True
        async with self.begin_write() as tx:
            await doubt(tx, ROLE, term=self._term)
        for page in _pages(suspects.outdated, PAGE) or [[]]:
            async with self.begin_write() as tx:
                await prepare(tx, page, highest_jobid=suspects.highest_jobid)

    def _know(self, flux_uids: Mapping[str, str | None]) -> None:
        """Take in which FluxJobs there were when they were listed; what lacks one gets one."""
        for uid, listed in flux_uids.items():
            if uid in self._news_of_fluxjobs:
                continue
            is_other = self._flux_uids.get(uid) != listed
            self._flux_uids[uid] = listed
            if listed is None or is_other:
                self._mark_workload(uid)

    def _sight(self, fluxjobs: Mapping[str, resync.Published]) -> resync.Sight:
        hosts = {
            node["metadata"].get("labels", {}).get(labels.HOSTNAME): node["metadata"]["name"]
            for node in self._informers["nodes"].items()
        }
        return resync.Sight(self._objects, self._pods_of, fluxjobs, hosts, self._site.default_cpu_m)

    def _node_names(self) -> set[str]:
        return {node["metadata"]["name"] for node in self._informers["nodes"].items()}


def _is_workload(pod: Object, ours: Container[str]) -> bool:
    """Whether a pod without a BatchJob may be a workload of its own."""
    meta = pod["metadata"]
    return not meta.get("ownerReferences") or meta["uid"] in ours


def _awaited_within_s(old: Object | None, new: Object | None) -> float:
    """How soon somebody waits to know what became of a pod: to let it go, or for its room."""
    if new is None:
        return LATER_S if old is not None and pod_fact(old).is_terminal else ENDED_S
    fact = pod_fact(new)
    if fact.is_terminal:
        return ENDED_S
    return GATHER_S if old is None and fact.is_gated else LATER_S


def _asks_otherwise(before: WorkloadSeen | None, now: WorkloadSeen) -> bool:
    """Whether a FluxJob should say what its workload asks for by now: one that was scaled, or a
    group that gathers. (What is left of a group when pods of it have ended is not what it asks.)
    """
    if now.is_gathered:
        return bool(now.pods) and all(pod.is_gated for pod in now.pods)
    is_known = before is not None and before.request is not now.request
    return is_known and before is not None and shown(before) != shown(now)


def _pages(keys: Sequence[str], size: int) -> list[Sequence[str]]:
    return [keys[start : start + size] for start in range(0, len(keys), size)]
