"""The observer: informers mark what changed, a loop writes it down, one transaction a batch.

Runs in the one active controller, under its term. What it keeps in memory (stores, indexes, what
was written last) is a cache: a new process reads the rows and the cluster and goes on. It decides
nothing about placement; the worker's tasks do what follows from the rows.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from fluxqueue.clock import Clock
from fluxqueue.controller import resync
from fluxqueue.controller.observe import (
    is_same,
    see_facts,
    see_workload,
    trim_job,
    trim_pod,
    workload_of,
)
from fluxqueue.controller.queues import QueueWatch
from fluxqueue.controller.wrapping import ensure_fluxjobs, report_invalid
from fluxqueue.db.database import Database
from fluxqueue.db.leadership import check_term, confirm
from fluxqueue.db.life.observations import (
    Known,
    WorkloadSeen,
    read_known,
    save_foreign,
    save_gone,
    save_nodes,
    save_workloads,
)
from fluxqueue.db.life.queues import queue_names, save_queues
from fluxqueue.db.life.rebuild import read_present
from fluxqueue.db.task_queue import TaskName
from fluxqueue.errors import (
    ApiError,
    ApiUnavailable,
    DatabaseUnavailable,
    InvalidInput,
    LostLeadership,
)
from fluxqueue.fluxjob.levels import parse_levels
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.informer import Informer
from fluxqueue.kube.resources import JOBS, NODES, PODS, PRIORITY_CLASSES
from fluxqueue.settings import Settings
from fluxqueue.workload import labels
from fluxqueue.workload.managed import is_managed
from fluxqueue.workload.nodes import foreign_pod, node_fact
from fluxqueue.workload.pods import pod_fact
from fluxqueue.workload.site import Site

logger = logging.getLogger(__name__)

Object = dict[str, Any]

ROLE = "controller"
BATCH_MAX = 200
GATHER_S = 0.01
"""Pause before a batch, so that a burst of events is one transaction."""

RETRY_MIN_S, RETRY_MAX_S = 0.2, 5.0

RESYNC_RETRY_S = 30.0
CONFIRMS = 10
"""How often it says that it is there, in the time after which nobody would believe it."""


class Observer:
    """Follows the cluster while its term lasts."""

    def __init__(
        self, database: Database, client: KubeClient, settings: Settings, clock: Clock, term: int
    ) -> None:
        self._database, self._client, self._settings = database, client, settings
        self._site = Site(settings.default_cpu_m, parse_levels(settings.levels))
        self._clock, self._term = clock, term
        self._objects: dict[str, Object] = {}
        self._pods_of: dict[str, dict[str, Object]] = {}
        self._flux_uids: dict[str, str | None] = {}
        self._foreign: set[str] = set()
        self._written: dict[str, WorkloadSeen] = {}
        self._dirty: dict[str, dict[str, None]] = {
            kind: {} for kind in ("workload", "node", "foreign", "queue")
        }
        self._changed = asyncio.Event()
        self._resync_at_s = float("-inf")
        self._let_go: set[str] = set()
        # Longer than it takes until another controller leads: then the queue goes on meanwhile.
        self._confirmed_s = 2 * settings.lease_duration_s
        self._is_begun = False
        self._pods_by_uid: dict[str, Object] = {}
        self._queues = QueueWatch(
            client, lambda name: self._mark("queue", name), clock, settings.queue_policy
        )
        self._informers = {
            "queues": self._queues.queues,
            "namespaces": self._queues.namespaces,
            "jobs": self._informer(JOBS, self._on_job, trim_job),
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
        uid = job["metadata"]["uid"]
        if new is None:
            self._objects.pop(uid, None)
        else:
            self._objects[uid] = new
        if uid in self._flux_uids or (new is not None and is_managed(new)):
            self._mark("workload", uid)

    def _on_pod(self, old: Object | None, new: Object | None) -> None:
        pod = new or old
        assert pod is not None, "an informer tells of an object, old or new"
        uid, workload = pod["metadata"]["uid"], workload_of(pod)
        before = workload if old is None else workload_of(old)
        if new is None or before != workload:
            self._forget_pod(uid, before)
        if before != workload and before in self._flux_uids:
            # Its BatchJob was deleted and left it behind: it is nobody's now, and runs on.
            self._mark("workload", before)
        if new is not None:
            self._pods_by_uid[uid] = new
            self._pods_of.setdefault(workload, {})[uid] = new
        if uid == workload:
            self._on_job(old, new)
        elif workload in self._flux_uids:
            self._mark("workload", workload)
        if workload not in self._flux_uids:
            self._mark("foreign", uid)

    def _forget_pod(self, uid: str, workload: str) -> None:
        self._pods_by_uid.pop(uid, None)
        self._pods_of.get(workload, {}).pop(uid, None)
        if not self._pods_of.get(workload):
            self._pods_of.pop(workload, None)

    def _on_node(self, old: Object | None, new: Object | None) -> None:
        node = new or old
        assert node is not None, "an informer tells of an object, old or new"
        if old is None or new is None or node_fact(old) != node_fact(new):
            self._mark("node", node["metadata"]["name"])

    def on_fluxjob_deleted(self, workload_uid: str) -> None:
        """A FluxJob is gone; as long as its workload exists it is made again."""
        self._let_go.add(workload_uid)
        if self._flux_uids.get(workload_uid) is not None:
            self._flux_uids[workload_uid] = None
            self._mark("workload", workload_uid)

    def _mark(self, kind: str, key: str) -> None:
        self._dirty[kind][key] = None
        self._changed.set()

    # --- the loop writes -----------------------------------------------------------------------

    async def run(self) -> None:
        """Observe until cancelled or until the term is lost.

        Raises
        ------
        LostLeadership
            Another controller has begun a term.
        """
        pause = RETRY_MIN_S
        confirming: asyncio.Task[None] | None = None
        try:
            await self._begin()
            confirming = asyncio.create_task(self._confirm_for_ever())
            while True:
                try:
                    await self._turn()
                    pause = RETRY_MIN_S
                except (DatabaseUnavailable, ApiUnavailable) as error:
                    logger.warning("will try again", extra={"action": "flush", "error": str(error)})
                    await self._clock.sleep(pause)
                    pause = min(2 * pause, RETRY_MAX_S)
                except LostLeadership:
                    raise
                except Exception:
                    # What was marked stays marked; one defect must not stop all observation.
                    logger.exception("flush failed and is repeated")
                    await self._clock.sleep(pause)
                    pause = min(2 * pause, RETRY_MAX_S)
        finally:
            if confirming is not None:
                confirming.cancel()
            for informer in self._informers.values():
                with suppress(asyncio.CancelledError):
                    await informer.stop()

    async def _turn(self) -> None:
        """Write what has changed; now and then compare everything."""
        now = self._clock.monotonic_s()
        if now >= self._resync_at_s:
            self._resync_at_s = now + RESYNC_RETRY_S  # should it fail
            for informer in self._informers.values():
                await informer.relist()
            await self._resync()
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, self._resync_at_s - now)):
                await self._changed.wait()
        if self._changed.is_set():
            await self._clock.sleep(GATHER_S)
            await self._flush()

    async def _begin(self) -> None:
        """Read the rows, then the cluster; bring the two together before anything is decided."""
        known = await self._read_known()
        self._flux_uids, self._foreign = dict(known.flux_uids), set(known.foreign)
        for informer in self._informers.values():
            informer.start()
        for informer in self._informers.values():
            await informer.synced.wait()
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

    async def _resync(self) -> None:
        """Compare everything with everything and store the differences, as one transaction."""
        self._let_go.clear()
        # FluxJobs first: a status that is newer than its row then proves the row to be old.
        fluxjobs = await resync.list_fluxjobs(self._client)
        await self._queues.ensure_default()
        # Before the rows: a pod is given its slot in them first, and is seen to run afterwards.
        sight = self._sight(fluxjobs)
        async with self._database.begin() as tx:
            await check_term(tx, ROLE, self._term)
            known, present = await read_known(tx), await read_present(tx)
            differences = await resync.compare(sight, present, self._see_one)
            ours = {**known.flux_uids, **differences.flux_uids}
            self._foreign |= known.foreign
            nodes = self._nodes({*known.nodes, *self._node_names()})
            foreign = self._foreign_pods({*known.foreign, *self._pods_by_uid}, ours)
            names = {*await queue_names(tx), *self._queues.names()}
            await save_queues(tx, *self._queues.see(names))
            await save_nodes(tx, *nodes)
            await save_foreign(tx, *foreign)
            taken = await resync.write(tx, differences)
            await confirm(tx, ROLE, term=self._term, duration_s=self._confirmed_s)
            tx.wake(TaskName.SCHEDULE)
        self._know(differences.flux_uids)
        seen = [*differences.changed, *(one.seen for one in differences.found)]
        self._remember(seen, differences.gone, foreign)
        resync.tell(differences, taken)
        self._resync_at_s = self._clock.monotonic_s() + self._settings.resync_interval_s

    def _know(self, flux_uids: Mapping[str, str | None]) -> None:
        """Take in which FluxJobs exist; those that do not are made again."""
        for uid, listed in flux_uids.items():
            flux_uid = None if uid in self._let_go else listed
            if flux_uid is None or self._flux_uids.get(uid) != flux_uid:
                self._mark("workload", uid)
            self._flux_uids[uid] = flux_uid

    def _sight(self, fluxjobs: Mapping[str, resync.Published]) -> resync.Sight:
        hosts = {
            node["metadata"].get("labels", {}).get(labels.HOSTNAME): node["metadata"]["name"]
            for node in self._informers["nodes"].items()
        }
        return resync.Sight(
            dict(self._objects),
            {uid: dict(pods) for uid, pods in self._pods_of.items()},
            fluxjobs,
            hosts,
            self._settings.default_cpu_m,
        )

    def _node_names(self) -> set[str]:
        return {node["metadata"]["name"] for node in self._informers["nodes"].items()}

    async def _confirm_for_ever(self) -> None:
        """Say that somebody compares the rows with the cluster, however slow the API server is."""
        while True:
            await self._clock.sleep(self._confirmed_s / CONFIRMS)
            try:
                async with self._database.begin() as tx:
                    await check_term(tx, ROLE, self._term)
                    if await confirm(tx, ROLE, term=self._term, duration_s=self._confirmed_s):
                        tx.wake(TaskName.SCHEDULE)
            except DatabaseUnavailable as error:
                logger.warning("database away", extra={"action": "confirm", "error": str(error)})
            except LostLeadership:
                self._changed.set()  # the next write will tell whoever runs us
                return

    async def _read_known(self) -> Known:
        while True:
            try:
                async with self._database.begin() as tx:
                    await check_term(tx, ROLE, self._term)
                    return await read_known(tx)
            except DatabaseUnavailable as error:
                logger.warning("database away", extra={"action": "begin", "error": str(error)})
                await self._clock.sleep(RETRY_MAX_S / 5)

    async def _flush(self) -> None:
        """Write one batch; what could not be written is marked again."""
        batch = {kind: self._take(kind) for kind in self._dirty}
        try:
            await self._write(batch)
        except BaseException:
            for kind, keys in batch.items():
                for key in keys:
                    self._mark(kind, key)
            raise
        if not any(self._dirty.values()):
            self._changed.clear()

    def _take(self, kind: str) -> list[str]:
        keys = list(self._dirty[kind])[:BATCH_MAX]
        for key in keys:
            del self._dirty[kind][key]
        return keys

    async def _write(self, batch: dict[str, list[str]]) -> None:
        present = [uid for uid in batch["workload"] if uid in self._objects]
        lost = [u for u in batch["workload"] if u not in self._objects and u in self._flux_uids]
        gone = {uid: self._orphans(uid) for uid in lost}
        await self._wrap(present)
        if batch["queue"]:
            await self._queues.ensure_default()
        queues = self._queues.see(batch["queue"])
        seen = self._see([uid for uid in present if self._flux_uids.get(uid) is not None])
        nodes = self._nodes(batch["node"])
        foreign = self._foreign_pods(batch["foreign"])
        async with self._database.begin() as tx:
            await check_term(tx, ROLE, self._term)
            # First: what names a queue that was made just before it must find it.
            if batch["queue"]:
                await save_queues(tx, *queues)
            if seen:
                await save_workloads(tx, seen)
            if gone:
                await save_gone(tx, gone)
            if batch["node"]:
                await save_nodes(tx, *nodes)
            if batch["foreign"]:
                await save_foreign(tx, *foreign)
        self._remember(seen, gone, foreign)
        await self._queues.tell_faults(queues[0])

    async def _wrap(self, uids: Iterable[str]) -> None:
        """Make sure that each managed workload has its FluxJob; a failure marks it again."""
        missing = {
            uid: self._objects[uid]
            for uid in uids
            if self._flux_uids.get(uid) is None and self._must_wrap(uid)
        }
        outcome = await ensure_fluxjobs(self._client, missing, self._class_values(), self._site)
        self._flux_uids.update(outcome.flux_uids)
        for uid, error in outcome.invalid.items():
            await report_invalid(self._client, missing[uid], error, self._clock.now_s())
        if outcome.again:
            await self._clock.sleep(RETRY_MIN_S)
            for uid in outcome.again:
                self._mark("workload", uid)

    def _must_wrap(self, uid: str) -> bool:
        return uid in self._flux_uids or is_managed(self._objects[uid])

    def _see(self, uids: Iterable[str]) -> list[WorkloadSeen]:
        """Observations that tell the rows something new, oldest workload first."""
        seen: list[WorkloadSeen] = []
        for uid in sorted(uids, key=self._age):
            pods = list(self._pods_of.get(uid, {}).values())
            try:
                one = self._see_one(self._objects[uid], pods, self._flux_uids[uid])
            except InvalidInput as error:
                logger.warning("workload cannot be read", extra={"uid": uid, "error": str(error)})
                if uid not in self._written:
                    continue
                one = see_facts(self._written[uid], self._objects[uid], pods)
            if not is_same(self._written.get(uid), one):
                seen.append(one)
        return seen

    def _see_one(
        self, workload: Mapping[str, Any], pods: Sequence[Mapping[str, Any]], flux_uid: str | None
    ) -> WorkloadSeen:
        return see_workload(
            workload,
            pods,
            flux_uid=flux_uid,
            class_values=self._class_values(),
            site=self._site,
        )

    def _age(self, uid: str) -> tuple[str, int]:
        meta = self._objects[uid]["metadata"]
        return meta.get("creationTimestamp") or "", int(meta.get("resourceVersion") or 0)

    def _orphans(self, uid: str) -> tuple[str, list[Any]]:
        left = list(self._pods_of.get(uid, {}).values())
        namespace = left[0]["metadata"]["namespace"] if left else ""
        return namespace, [pod_fact(pod) for pod in left]

    def _nodes(self, names: Iterable[str]) -> tuple[list[Any], list[str]]:
        store = self._informers["nodes"]
        found = {name: store.get("", name) for name in names}
        present = [node_fact(node) for node in found.values() if node is not None]
        return present, [name for name, node in found.items() if node is None]

    def _foreign_pods(
        self, uids: Iterable[str], ours: Container[str] | None = None
    ) -> tuple[list[Any], list[str]]:
        """Pods of others that take something of a node, and those that no longer do."""
        ours = self._flux_uids if ours is None else ours
        present, gone = [], []
        for uid in uids:
            pod = self._pods_by_uid.get(uid)
            is_ours = pod is not None and workload_of(pod) in ours
            used = foreign_pod(pod) if pod is not None and not is_ours else None
            if used is not None:
                present.append(used)
            elif uid in self._foreign:
                gone.append(uid)
        return present, gone

    def _remember(
        self,
        seen: list[WorkloadSeen],
        gone: Mapping[str, tuple[str, list[Any]]],
        foreign: tuple[list[Any], list[str]],
    ) -> None:
        self._written.update({one.uid: one for one in seen})
        for uid, (_, left) in gone.items():
            self._written.pop(uid, None)
            # Also what was written counts: a pod that went meanwhile has yet to be written down.
            if not left and not self._pods_of.get(uid):
                self._flux_uids.pop(uid, None)
        self._foreign |= {pod.uid for pod in foreign[0]}
        self._foreign -= set(foreign[1])

    def _class_values(self) -> dict[str, int]:
        return {
            item["metadata"]["name"]: int(item["value"])
            for item in self._informers["classes"].items()
        }
