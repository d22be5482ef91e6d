"""Create exactly one FluxJob object for each managed workload, with its own UID.

Part of ``observer``, beside ``flusher``. A workload that cannot be wrapped is retried by itself
with growing pauses, and delays no other. Creation is idempotent. An existing FluxJob counts only if
its owner has the same UID. A FluxJob of an older workload of the same name must be deleted first.
Until then, the creation is retried.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

from fluxqueue.clock import Clock
from fluxqueue.controller.observing.read_workload import age
from fluxqueue.db.store.last_readings import Past
from fluxqueue.errors import (
    ApiError,
    ApiUnavailable,
    Conflict,
    DatabaseUnavailable,
    Invalid,
    InvalidInput,
    NotFound,
)
from fluxqueue.fluxjob.faults import as_text
from fluxqueue.fluxjob.observation import WorkloadSeen
from fluxqueue.fluxjob.turns import Turns
from fluxqueue.kube.backoff import Backoff
from fluxqueue.kube.client import KubeClient, PatchKind
from fluxqueue.kube.events import Involved, build_event, tell_event
from fluxqueue.kube.resources import FLUXJOBS
from fluxqueue.process import metrics
from fluxqueue.workload import labels
from fluxqueue.workload.fluxjob_object import (
    build,
    fluxjob_name,
    is_fluxjob_of,
)
from fluxqueue.workload.kinds.table import kind_of
from fluxqueue.workload.last_good import mend
from fluxqueue.workload.managed import why_not_vouched
from fluxqueue.workload.objects import Object
from fluxqueue.workload.site import Site

logger = logging.getLogger(__name__)


RETRY_MIN_S, RETRY_MAX_S = 0.2, 60.0
AT_ONCE = 64
"""How many FluxJobs are created at once. The next ones wait for the first try of all these."""
PATIENCE_S = 0.25
"""How long (seconds) later workloads wait for the first try of earlier ones.

Rows are numbered in the order in which their FluxJobs are reported. So the first submission is the
first row, unless the API server is slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookups:
    """What the creator asks the observer.

    ``find``: a workload by its UID as long as it lacks its FluxJob, else None. ``recall``: what
    workloads said before, by their UIDs. ``stands``: whether a workload without an object still
    exists. ``class_values``: the present values of PriorityClasses by name. ``complete``: a
    workload with its pods as admission completes them.
    """

    find: Callable[[str], Object | None]
    recall: Callable[[AbstractSet[str]], Awaitable[Mapping[str, Past]]]
    stands: Callable[[str], bool] = lambda _: True
    class_values: Callable[[], Mapping[str, int]] = dict
    complete: Callable[[Object], Object] = lambda one: one


class FluxJobCreator:
    """Creates the FluxJobs that are requested.

    Parameters
    ----------
    on_made : called with the UID of a workload, and UID and resourceVersion of its new FluxJob.
    """

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        site: Site,
        lookups: Lookups,
        *,
        on_made: Callable[[str, str, str], None],
    ) -> None:
        self._lookups, self._on_made = lookups, on_made
        self._client, self._clock, self._site = client, clock, site
        self._shown: dict[str, Mapping[str, Any]] = {}
        self._amends: dict[str, WorkloadSeen] = {}
        self._made: dict[str, tuple[str, str, str]] = {}
        self._beside: set[asyncio.Task[None]] = set()
        self._wanted: Turns[tuple[str, int]] = Turns()
        self._more = asyncio.Event()
        self.is_known = asyncio.Event()
        """Set as soon as the existing FluxJobs are known.

        Before that, every workload seems to have none."""
        self._trying: dict[str, asyncio.Task[None]] = {}
        self._told: dict[str, str] = {}

    def want(self, uid: str) -> None:
        """Request a FluxJob for a workload. Harmless while that is being tried."""
        workload = self._lookups.find(uid)
        if uid not in self._trying and workload is not None:
            self._wanted.put(uid, str(workload["metadata"]["namespace"]), age(workload))
            self._more.set()

    @property
    def has_more(self) -> bool:
        """Return whether other workloads are being wrapped at the same time."""
        return len(self._trying) > 1 or bool(self._wanted)

    def forget(self, uid: str) -> None:
        """Drop a workload that is gone."""
        self._told.pop(uid, None)
        self._shown.pop(uid, None)
        self._amends.pop(uid, None)
        self._made.pop(uid, None)

    def amend(self, seen: WorkloadSeen) -> None:
        """Update a FluxJob to what its workload requests now."""
        if self._shown.get(seen.uid) == shown(seen):
            return
        # One patch at a time per FluxJob: two could arrive in the wrong order.
        is_under_way = seen.uid in self._amends
        self._amends[seen.uid] = seen
        if not is_under_way:
            self._do_beside(self._amend(seen.uid), f"amend {seen.uid}")

    def know(self, uid: str, namespace: str, name: str, flux_uid: str) -> None:
        """Register a FluxJob without owner that existed before this process."""
        self._made[uid] = namespace, name, flux_uid

    def unwrap(self, uid: str, seen: WorkloadSeen | None) -> None:
        """Delete the FluxJob of a group without pods. It has no owner, so it is not collected.

        ``read_workload`` is the observation that was written last, or None if the group was gone
        before that.
        """
        made = self._made.pop(uid, None)
        # The written observation is newer than what was known at the start.
        if seen is not None and seen.facts.is_gathered and seen.flux_uid is not None:
            made = seen.namespace, seen.name, seen.flux_uid
        if made is not None:
            self._do_beside(self._unwrap(uid, *made), f"unwrap {uid}")

    def _do_beside(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    async def _amend(self, uid: str) -> None:
        backoff = Backoff(base_s=RETRY_MIN_S, cap_s=RETRY_MAX_S)
        while (seen := self._amends.get(uid)) is not None:
            # With the UID: a FluxJob that was created again under this name is refused (Conflict).
            body = {"metadata": {"uid": seen.flux_uid}, "spec": shown(seen)}
            try:
                await self._client.patch(
                    FLUXJOBS,
                    seen.namespace,
                    seen.name,
                    body,
                    kind=PatchKind.MERGE,
                    field_manager=labels.FIELD_MANAGER,
                    metadata_only=True,
                )
            except (NotFound, Conflict, Invalid):
                del self._amends[uid]  # its replacement is created with the present spec
                return
            except (ApiUnavailable, ApiError) as error:
                extra = {"action": "amend", "uid": uid, "error": str(error)}
                logger.warning("FluxJob not amended; tried again", extra=extra)
                await self._clock.sleep(backoff.next_delay_s())
                continue
            # A newer request may have come during the patch: then the loop sends that too.
            self._shown[uid] = shown(seen)
            if self._amends.get(uid) is seen:
                del self._amends[uid]

    async def _unwrap(self, uid: str, namespace: str, name: str, flux_uid: str) -> None:
        backoff = Backoff(base_s=RETRY_MIN_S, cap_s=RETRY_MAX_S)
        while True:
            try:
                # With the UID: the name may already belong to a newer group.
                await self._client.delete(FLUXJOBS, namespace, name, uid=flux_uid)
            except (NotFound, Conflict):
                return
            except (ApiUnavailable, ApiError) as error:
                extra = {"action": "unwrap", "uid": uid, "error": str(error)}
                logger.warning("FluxJob not deleted; tried again", extra=extra)
                await self._clock.sleep(backoff.next_delay_s())
                continue
            return

    async def run(self) -> None:
        """Wrap workloads until cancelled."""
        try:
            # Earlier, a FluxJob would be requested for every workload that already has one.
            await self.is_known.wait()
            while True:
                await self._more.wait()
                batch_ = self._take(AT_ONCE)
                # No await since ``_take``: a workload requested now cannot be missed.
                if not self._wanted:
                    self._more.clear()
                if batch_:
                    await self._start(batch_)
        finally:
            for task in (*self._trying.values(), *self._beside):
                task.cancel()

    def _take(self, limit: int) -> list[str]:
        """Remove and return the oldest workloads of each namespace, up to ``limit``."""
        # A workload may be gone, or wrapped by now.
        return [uid for uid in self._wanted.take(limit) if self._lookups.find(uid) is not None]

    async def _start(self, uids: Sequence[str]) -> None:
        """Start a try for each workload, and wait until the first tries are processed."""
        turn = _Turn(None, self._clock, ends_s=self._clock.monotonic_s() + PATIENCE_S)
        for uid in uids:
            self._trying[uid] = asyncio.create_task(self._wrap(uid, turn), name=f"wrap {uid}")
            # Each try waits for the one before: rows must follow the order of submission.
            turn = turn.next()
        await turn.wait()

    async def _wrap(self, uid: str, turn: _Turn) -> None:
        backoff = Backoff(base_s=RETRY_MIN_S, cap_s=RETRY_MAX_S)
        try:
            while (workload := self._lookups.find(uid)) is not None:
                if await self._try(uid, workload, turn):
                    return
                # A retry must not block the reports of later workloads.
                turn.end()
                await self._clock.sleep(backoff.next_delay_s())
        finally:
            # Also if cancelled or failed: otherwise the next try waits for the full patience.
            turn.end()
            del self._trying[uid]

    async def _try(self, uid: str, workload: Object, turn: _Turn) -> bool:
        """Try once. Return whether nothing is left to do for the object as it is now."""
        try:
            body = await self._body(uid, workload)
            made = await self._create(workload, body)
        except InvalidInput as error:
            await self._refuse(uid, workload, error)
            return True
        except (ApiUnavailable, ApiError, DatabaseUnavailable) as error:
            if isinstance(error, ApiError) and error.is_namespace_ending:
                return True  # the workload is deleted too, which frees its capacity
            if isinstance(error, Invalid):
                await self._refuse(uid, workload, InvalidInput(f"its FluxJob is refused: {error}"))
            extra = {"action": "wrap", "uid": uid, "error": str(error)}
            logger.warning("FluxJob not created; tried again", extra=extra)
            return False
        except Exception as error:
            logger.exception("FluxJob not created; tried again", extra={"uid": uid})
            metrics.OBJECTS_SET_ASIDE.labels("unwrapped").inc()
            await self._refuse(uid, workload, InvalidInput(f"cannot be read: {as_text(error)}"))
            return False
        if made is None:
            return False
        flux_uid, flux_version = made["uid"], made["resourceVersion"]
        # Report in order: ``on_made`` leads to the row, which gets the next number.
        await turn.wait()
        self._told.pop(uid, None)
        if not kind_of(workload).has_object:
            self._made[uid] = workload["metadata"]["namespace"], fluxjob_name(workload), flux_uid
        self._on_made(uid, flux_uid, flux_version)
        return True

    async def _body(self, uid: str, workload: Object) -> dict[str, Any]:
        """Return the FluxJob of a workload.

        If the workload became invalid after admission, use its last good values (``last_good``).
        """
        try:
            return _build(
                self._lookups.complete(workload), self._lookups.class_values(), self._site
            )
        except InvalidInput as error:
            past = (await self._lookups.recall({uid})).get(uid, Past())
            mended = mend(workload, past.said, self._site)
            if mended.request is None:
                raise
            logger.warning("workload is spoilt", extra={"uid": uid, "error": str(error)})
            return _build(mended.workload, self._lookups.class_values(), self._site)

    async def _create(self, workload: Object, body: dict[str, Any]) -> dict[str, Any] | None:
        """Create or find the FluxJob, and return its metadata.

        None if the FluxJob of another workload is in the way.
        """
        client, namespace = self._client, workload["metadata"]["namespace"]
        try:
            made = await client.create(FLUXJOBS, namespace, body, metadata_only=True)
            return dict(made["metadata"])
        # It exists: created by an earlier try, by an earlier leader, or for an older workload.
        except Conflict:
            pass
        try:
            found = await client.get(FLUXJOBS, namespace, fluxjob_name(workload))
        except NotFound:
            return None
        meta, its = found["metadata"], found["spec"]["workload"]["uid"]
        if not is_fluxjob_of(found, workload) or meta.get("deletionTimestamp"):
            # Without an owner it is not collected: delete it, or it keeps blocking the name.
            if not meta.get("ownerReferences") and not self._lookups.stands(its):
                await client.delete(FLUXJOBS, namespace, meta["name"], uid=meta["uid"])
            return None
        return dict(meta)

    def tell_unvouched(self, uid: str, workload: Object) -> None:
        """Report on an object with managed marks that bypassed admission that it is not queued."""
        error = InvalidInput(
            f"carries the marks of queued work, but admission did not see it: "
            f"{why_not_vouched(workload)}",
            where=f"metadata.labels[{labels.MANAGED}]",
            hint=f"create it without the scheduling gate {labels.GATE}, or let admission queue it",
        )
        self._do_beside(self._refuse(uid, workload, error), f"refuse {uid}")

    async def _refuse(self, uid: str, workload: Object, error: InvalidInput) -> None:
        """Emit an Event on the workload, once for each fault, that says why it is not queued."""
        if self._told.get(uid) != str(error):
            # Recorded first: a retry must not repeat the Event.
            self._told[uid] = str(error)
            await report_invalid(self._client, workload, error, self._clock.now_s())


class _Turn:
    """A place in the order in which simultaneous tries are reported.

    Its turn comes after the one ``before`` is over, or at ``ends_s`` (monotonic).
    """

    def __init__(self, before: _Turn | None, clock: Clock, *, ends_s: float) -> None:
        self._before = None if before is None else before._over
        self._clock, self._ends_s = clock, ends_s
        self._over: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def next(self) -> _Turn:
        """Return the place after this one."""
        return _Turn(self, self._clock, ends_s=self._ends_s)

    async def wait(self) -> None:
        """Wait for this turn."""
        if self._before is not None and not self._before.done():
            # With a limit: one slow request must not delay all later workloads.
            pause_s = max(0.0, self._ends_s - self._clock.monotonic_s())
            await asyncio.wait([self._before], timeout=pause_s)

    def end(self) -> None:
        """End this turn, so that the next one may report. Harmless if it has ended already."""
        if not self._over.done():
            self._over.set_result(None)


def _build(workload: Object, class_values: Mapping[str, int], site: Site) -> dict[str, Any]:
    kind = kind_of(workload)
    wishes = kind.wishes(workload)
    gathering = kind.gathering(workload)
    return build(
        workload,
        kind.to_request(workload, site=site),
        missing=0 if gathering is None else gathering.missing,
        priority=kind.priority(workload, class_values=class_values).value,
        queue=wishes.queue or "default",
        wishes=wishes,
    )


def shown(seen: WorkloadSeen) -> dict[str, Any]:
    """Return the fields of a FluxJob's spec that change when its group gathers or it is scaled."""
    return {
        "size": seen.size,
        "jobspec": seen.request,
        "durationSeconds": seen.duration_s,
    }


async def report_invalid(
    client: KubeClient, workload: Object, error: InvalidInput, at_s: int
) -> None:
    """Emit one Event on a workload that bypassed admission: why it is not queued."""
    uid = workload["metadata"]["uid"]
    logger.warning("invalid workload", extra={"uid": uid, "error": str(error)})
    told = ("InvalidRequest", f"is not queued: {error}")
    await _warn(client, workload, f"invalid/{error}", told, at_s)


async def report_unwritten(client: KubeClient, workload: Object, error: str, at_s: int) -> None:
    """Emit one Event on a workload: its row is not what the cluster shows, and why."""
    told = ("NotWritten", f"cannot be written down, and is not looked after meanwhile: {error}")
    await _warn(client, workload, f"unwritten/{error}", told, at_s)


def type_of(workload: Object) -> tuple[str, str] | None:
    """Return apiVersion and kind of the object of a workload, or None if it has none."""
    kind = kind_of(workload)
    return kind.shown_as(workload) if kind.has_object else None


async def _warn(
    client: KubeClient, workload: Object, key: str, told: tuple[str, str], at_s: int
) -> None:
    of, (reason, message) = type_of(workload), told
    if of is None:
        return
    involved = Involved.of(workload, api_version=of[0], kind=of[1])
    event = build_event(
        involved, key=key, reason=reason, message=message, at_s=at_s, is_warning=True
    )
    await tell_event(client, event)
