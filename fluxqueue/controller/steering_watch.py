"""Turn user changes of FluxJobs into rows: changes of their spec, and their deletion.

kopf's handlers (``operator``) report to it. A loop of the leading controller does the work, so that
an unavailable database delays no event. A spec is compared with the one that was applied last
(``db.store.steering.apply_spec_changes``). So seeing it twice, or late, changes nothing.

Admission records the user of a spec change, ``cancel`` included. A deletion does not show its user.
Only the audit log of the API server does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from fluxqueue.clock import Clock
from fluxqueue.db.database import Transaction
from fluxqueue.db.liveness import Liveness
from fluxqueue.db.store.steering import (
    FluxJobOf,
    SteeringOutcome,
    apply_spec_changes,
    cancel_deleted,
)
from fluxqueue.errors import (
    ApiError,
    ApiUnavailable,
    DatabaseUnavailable,
    LostLeadership,
    NotFound,
)
from fluxqueue.fluxjob.faults import as_text
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.events import Involved, build_event, tell_event
from fluxqueue.kube.resources import CRDS, FLUXJOBS, ApiResource
from fluxqueue.kube.workload_resource import resource_of
from fluxqueue.process import metrics
from fluxqueue.workload.kinds.table import kind_of_fluxjob
from fluxqueue.workload.objects import Object
from fluxqueue.workload.steered import Steered, read_steered

logger = logging.getLogger(__name__)


LOOP = "steer"
"""Name of the loop in reports of loop times."""

RETRY_S = 1.0
"""Pause (seconds) before a retry of what could not be written, or has no row yet."""

_AS_MADE = (1, Steered())
"""The generation and values of a spec that is unchanged since its creation."""

DELETER = "deletion of its FluxJob"
"""Stands where history names a user. The API server does not say which user deleted an object."""


class SteeringWatch:
    """Stores user changes of FluxJobs in rows.

    Parameters
    ----------
    begin : begins a transaction under the leader's term. Raises LostLeadership if the term is over.
    stands : returns whether the workload of a UID exists and is not being deleted.
    find : returns the workload of a UID, if it exists.
    on_lost : called with the UID of a workload that continues without its FluxJob. It gets a new
        one.
    """

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        *,
        begin: Callable[[], AbstractAsyncContextManager[Transaction]],
        stands: Callable[[str], bool],
        find: Callable[[str], Object | None],
        on_lost: Callable[[str], None],
        liveness: Liveness | None = None,
    ) -> None:
        self._liveness = liveness or Liveness(clock, LOOP)
        self._client, self._clock, self._begin = client, clock, begin
        self._stands, self._workload, self._on_lost = stands, find, on_lost
        self._applied: dict[str, tuple[int, Steered]] = {}
        self._failed: dict[str, Any] = {}
        """The generation of a spec that could not be applied, by UID."""
        self._steered: dict[str, Object] = {}
        self._deleted: dict[str, Object] = {}
        self._ours: set[str] = set()
        self._more = asyncio.Event()

    def see(self, fluxjob: Object) -> None:
        """Store the present state of a FluxJob."""
        uid = fluxjob["metadata"]["uid"]
        generation = fluxjob["metadata"].get("generation")
        if uid in self._failed and self._failed[uid] == generation:
            return  # reported already, and unchanged
        try:
            spec = _read(fluxjob)
        except Exception:  # noqa: BLE001  the error is reported when the change is applied
            spec = None
        if spec != _AS_MADE and self._applied.get(uid) != spec:
            self._steered[uid] = fluxjob
            self._more.set()

    def forgive(self, fluxjob: Object) -> None:
        """Ignore the next deletion of this FluxJob, because it is our own."""
        self._ours.add(fluxjob["metadata"]["uid"])

    def see_deleted(self, fluxjob: Object) -> None:
        """Handle a deleted FluxJob. If its workload continues, the user cancelled it."""
        uid, workload = fluxjob["metadata"]["uid"], fluxjob["spec"]["workload"]["uid"]
        self._applied.pop(uid, None)
        self._failed.pop(uid, None)
        self._steered.pop(uid, None)
        # Our own deletion, or the FluxJob went together with its workload: no user cancelled it.
        if uid in self._ours or not self._stands(workload):
            self._ours.discard(uid)
            self._on_lost(workload)
            return
        self._deleted[uid] = fluxjob
        self._more.set()

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self._more.wait()
            self._more.clear()
            self._liveness.begin(LOOP)
            for uid, fluxjob in list(self._steered.items()):
                if await self._attempt(fluxjob, self._apply_spec_change(uid, fluxjob)):
                    self._done(self._steered, uid, fluxjob)
            for uid, fluxjob in list(self._deleted.items()):
                if await self._attempt(fluxjob, self._cancel(fluxjob)):
                    self._done(self._deleted, uid, fluxjob)
            if self._steered or self._deleted:
                await self._clock.sleep(RETRY_S)
                self._more.set()

    @staticmethod
    def _done(where: dict[str, Object], uid: str, fluxjob: Object) -> None:
        # A newer version may have come during the work: it must not be lost.
        if where.get(uid) is fluxjob:
            del where[uid]

    async def _attempt(self, fluxjob: Object, work: Awaitable[bool]) -> bool:
        """Do the work of one FluxJob. Return whether nothing is left to do.

        An error that only a user can correct is reported once. It is tried again when the FluxJob
        changes.
        """
        try:
            is_done = await work
        except (DatabaseUnavailable, LostLeadership, ApiUnavailable, ApiError) as error:
            self._liveness.fail(LOOP, error)
            logger.warning("will try again", extra={"action": "steer", "error": str(error)})
            return False
        except Exception as error:
            logger.exception("a change of a FluxJob cannot be carried out")
            metrics.OBJECTS_SET_ASIDE.labels("fluxjob").inc()
            meta = fluxjob["metadata"]
            self._failed[meta["uid"]] = meta.get("generation")
            await self._refuse(
                fluxjob, SteeringOutcome("spec", False, f"cannot be read: {as_text(error)}")
            )
            return True
        self._liveness.succeed(LOOP)
        return is_done

    async def _apply_spec_change(self, uid: str, fluxjob: Object) -> bool:
        generation, steered = _read(fluxjob)
        workload = fluxjob["spec"]["workload"]["uid"]
        async with self._begin() as tx:
            outcomes = await apply_spec_changes(
                tx, _of(fluxjob), steered.values, steered.by, generation
            )
        if outcomes is None:
            return not self._stands(workload)  # its row does not exist yet
        self._applied[uid] = generation, steered
        for one in outcomes:
            extra = {"action": "steer", "uid": workload, "field": one.reference}
            logger.info(one.message, extra=extra)
            if not one.is_done:
                await self._refuse(fluxjob, one)
        return True

    async def _refuse(self, fluxjob: Object, outcome: SteeringOutcome) -> None:
        """Emit an Event on the FluxJob: what was not done, and why. Admission could not know it."""
        version = fluxjob["metadata"].get("resourceVersion")
        event = build_event(
            Involved.of(fluxjob, api_version=FLUXJOBS.api_version, kind=FLUXJOBS.kind),
            key=f"steer/{outcome.reference}/{version}",
            reason="SteeringRefused",
            message=f"{outcome.reference}: {outcome.message}",
            at_s=self._clock.now_s(),
            is_warning=True,
        )
        await tell_event(self._client, event)

    async def _cancel(self, fluxjob: Object) -> bool:
        """Cancel the job if only this FluxJob was deleted, not its workload or all FluxJobs."""
        workload = fluxjob["spec"]["workload"]
        # Race: the watch of workloads may be behind. A FluxJob that is made again for a workload
        # that goes is collected at once, and no client knows its UID.
        if self._stands(workload["uid"]) and not await self._has_workload(fluxjob):
            return True
        if not await self._is_meant(fluxjob):
            self._on_lost(workload["uid"])
            return True
        async with self._begin() as tx:
            outcome = await cancel_deleted(tx, _of(fluxjob), DELETER)
        if outcome is None or not outcome.is_done:
            self._on_lost(workload["uid"])
        if outcome is not None:
            logger.info(outcome.message, extra={"action": "cancel", "uid": workload["uid"]})
        return True

    async def _is_meant(self, fluxjob: Object) -> bool:
        meta, workload = fluxjob["metadata"], fluxjob["spec"]["workload"]
        if not self._stands(workload["uid"]) or not await self._outlived(meta["creationTimestamp"]):
            return False
        # A FluxJob of that name exists again: the deletion no longer counts.
        return not await self._exists(FLUXJOBS, meta["namespace"], meta["name"])

    async def _has_workload(self, fluxjob: Object) -> bool:
        """Return whether its workload exists, and is not being deleted."""
        meta, workload = fluxjob["metadata"], fluxjob["spec"]["workload"]
        kind, reference = kind_of_fluxjob(fluxjob), None
        if not kind.has_object:
            return True
        if not kind.is_built_in:
            found = self._workload(workload["uid"])
            if found is None:
                return False
            reference = kind.reference(found)
        at = (resource_of(kind.name, reference), meta["namespace"])
        return await self._exists(*at, workload["name"], workload["uid"])

    async def _outlived(self, created: str) -> bool:
        """Return whether the definition of FluxJobs exists, and existed before time ``created``.

        To remove the definition removes all FluxJobs, and is not meant to cancel any of them. That
        also holds if the definition is created again at once. Times are whole seconds. If both
        times are in the same second, the deletion cancels nothing.
        """
        definition = await self._find(CRDS, None, f"{FLUXJOBS.plural}.{FLUXJOBS.group}")
        return definition is not None and str(definition["creationTimestamp"]) < created

    async def _exists(
        self, resource: ApiResource, namespace: str, name: str, uid: str | None = None
    ) -> bool:
        meta = await self._find(resource, namespace, name)
        return meta is not None and uid in {None, meta["uid"]}

    async def _find(self, resource: ApiResource, namespace: str | None, name: str) -> Object | None:
        """Return the metadata of an object that exists and is not being deleted, or None."""
        try:
            meta: Object = (await self._client.get(resource, namespace, name))["metadata"]
        except NotFound:
            return None
        return None if "deletionTimestamp" in meta else meta


def _read(fluxjob: Object) -> tuple[int, Steered]:
    """Return the generation of a FluxJob's spec, and the values in it that a user set."""
    return int(fluxjob["metadata"].get("generation") or 1), read_steered(fluxjob) or Steered()


def _of(fluxjob: Object) -> FluxJobOf:
    meta = fluxjob["metadata"]
    return FluxJobOf(meta["namespace"], meta["name"], fluxjob["spec"]["workload"]["uid"])
