"""Leader election by a coordination Lease, with a fencing term.

Run by every controller process; at most one believes to lead at a time, and commits are fenced by
the term besides, because belief is no proof. Two rules keep clocks out of it: another holder's
Lease counts as expired only after it has not changed for its duration *on our monotonic clock*,
and our own lead ends (locally) a good while before the Lease does, counted from the moment the
last successful renewal was *started*, so a slow answer cannot lengthen it.

The term is the Lease's ``leaseTransitions``; it rises with every acquisition, also when the same
process takes its own Lease again, so two leads never share a term.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from fluxqueue.errors import ApiError, ApiUnavailable, Conflict, NotFound
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import LEASES

logger = logging.getLogger(__name__)

Lease = dict[str, Any]

# Part of the duration during which we trust a renewal; the rest is for the request on its way,
# for clocks that run at different speeds and for work in flight when trust ends.
TRUSTED_SHARE = 2 / 3

RESIGN_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Observation:
    """The last Lease seen and since when (monotonic seconds) it has not changed."""

    resource_version: str
    since_s: float


def is_free(lease: Lease, seen: Observation, now_s: float, identity: str = "") -> bool:
    """May ``identity`` take this Lease? Released, its own, or unchanged for its whole duration.

    Its own: a process that was killed and started again under the same name need not wait for
    itself. The term rises all the same, so should both live, only the newer can commit.
    """
    spec = lease.get("spec") or {}
    if spec.get("holderIdentity") in (None, "", identity):
        return True
    return now_s >= seen.since_s + float(spec.get("leaseDurationSeconds") or 0)


def micro_time(now: datetime) -> str:
    """MicroTime as the API server wants it: always six digits of fraction."""
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class LeaseElector:
    """Campaigns for one Lease until cancelled.

    Parameters: durations in seconds; ``renew_s`` defaults to a third of ``duration_s``.
    ``on_started(term)`` and ``on_lost()`` are plain functions called in the event loop; they start
    and stop work, they do not do it. ``term_floor``: the highest term known from elsewhere (the
    database), so that a Lease that was deleted does not start again below it; may be raised later.
    """

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        name: str,
        identity: str,
        *,
        on_started: Callable[[int], None],
        on_lost: Callable[[], None],
        duration_s: float = 15.0,
        renew_s: float | None = None,
        retry_s: float = 2.0,
        term_floor: int = 0,
    ) -> None:
        self.term_floor = term_floor
        self._client = client
        self._namespace, self._name, self._identity = namespace, name, identity
        self._on_started, self._on_lost = on_started, on_lost
        self._duration_s, self._retry_s = duration_s, retry_s
        self._renew_s = renew_s if renew_s is not None else duration_s / 3
        self._seen: Observation | None = None
        self._held: Lease | None = None
        self._trusted_until_s = float("-inf")

    @property
    def is_leader(self) -> bool:
        """True only inside the trust window; ask before every step that must not be done twice."""
        return self._held is not None and time.monotonic() < self._trusted_until_s

    @property
    def term(self) -> int:
        """The present term; 0 when not leading."""
        return int(self._held["spec"]["leaseTransitions"]) if self._held is not None else 0

    async def run(self) -> None:
        """Campaign, lead, campaign again. On cancellation a held Lease is released."""
        try:
            while True:
                await self._campaign()
                await self._lead()
        finally:
            await self._resign()

    async def _campaign(self) -> None:
        while True:
            started_s = time.monotonic()
            try:
                lease = await self._try_acquire(started_s)
            except Conflict:
                lease = None  # another candidate wrote first
            except (ApiUnavailable, ApiError) as error:
                lease = None
                logger.warning(
                    "lease cannot be acquired action=campaign lease=%s error=%s", self._name, error
                )
            if lease is not None and self._trust(lease, started_s):
                logger.info("leading action=lead lease=%s term=%d", self._name, self.term)
                self._on_started(self.term)
                return
            await asyncio.sleep(self._retry_s)

    async def _try_acquire(self, now_s: float) -> Lease | None:
        try:
            lease = await self._client.get(LEASES, self._namespace, self._name)
        except NotFound:
            return await self._client.create(LEASES, self._namespace, self._next_lease(None))
        version = lease["metadata"]["resourceVersion"]
        if self._seen is None or self._seen.resource_version != version:
            self._seen = Observation(version, time.monotonic())
        if not is_free(lease, self._seen, now_s, self._identity):
            return None
        return await self._put(self._next_lease(lease))

    async def _lead(self) -> None:
        """Renew until that fails for too long, then report the loss."""
        try:
            while self._held is not None:
                await asyncio.sleep(min(self._renew_s, self._trust_left_s()))
                await self._renew_until_trusted()
        finally:
            # Cancellation passes here too: whoever started work must be told to stop it.
            if self._held is not None and not self.is_leader:
                self._held = None
            logger.info("not leading any more action=lose lease=%s", self._name)
            self._on_lost()

    async def _renew_until_trusted(self) -> None:
        """One successful renewal, or ``_held = None`` when another holds it or time is up."""
        try:
            async with asyncio.timeout(self._trust_left_s()):
                while not await self._renew_once():  # noqa: ASYNC110 - remote state, no event
                    await asyncio.sleep(min(self._retry_s, self._renew_s))
        except TimeoutError:
            self._held = None

    async def _renew_once(self) -> bool:
        """True: renewed or certainly lost; False: try again."""
        assert self._held is not None
        started_s = time.monotonic()
        lease = {**self._held, "spec": {**self._held["spec"], "renewTime": self._now()}}
        try:
            renewed = await self._put(lease)
        except Conflict:
            return await self._look_who_holds()
        except NotFound:
            self._held = None  # deleted by hand: the next campaign makes it with a higher term
            return True
        except (ApiUnavailable, ApiError) as error:
            logger.warning("lease not renewed action=renew lease=%s error=%s", self._name, error)
            return False
        self._trust(renewed, started_s)
        return True

    async def _look_who_holds(self) -> bool:
        """After a conflict: an edit by a third party is harmless, another holder or term is not."""
        assert self._held is not None
        try:
            lease = await self._client.get(LEASES, self._namespace, self._name)
        except (ApiUnavailable, ApiError):
            return False
        spec = lease.get("spec") or {}
        if spec.get("holderIdentity") == self._identity and (
            spec.get("leaseTransitions") == self.term
        ):
            self._held = lease
            return False
        self._held = None
        return True

    async def _resign(self) -> None:
        """Release on a clean end, so that the successor need not wait for the expiry."""
        lease, self._held = self._held, None
        try:
            for _ in range(RESIGN_ATTEMPTS):
                if lease is None:
                    return
                spec = {**lease["spec"], "holderIdentity": "", "renewTime": self._now()}
                try:
                    await self._put({**lease, "spec": spec})
                    return
                except Conflict:
                    lease = await self._still_held(lease)
        except (ApiUnavailable, ApiError) as error:
            logger.info("lease not released action=resign lease=%s error=%s", self._name, error)

    async def _still_held(self, lease: Lease) -> Lease | None:
        """The Lease as it is now, if it is held under the same term.

        A renewal that was under way when we were cancelled may have arrived all the same.
        """
        found = await self._client.get(LEASES, self._namespace, self._name)
        same = ("holderIdentity", "leaseTransitions")
        is_same = all((found.get("spec") or {}).get(key) == lease["spec"][key] for key in same)
        return found if is_same else None

    def _trust(self, lease: Lease, started_s: float) -> bool:
        """Believe in ``lease`` from the attempt's start; False if that time is over already."""
        self.term_floor = max(self.term_floor, int(lease["spec"]["leaseTransitions"]))
        self._trusted_until_s = started_s + self._duration_s * TRUSTED_SHARE
        is_trusted = time.monotonic() < self._trusted_until_s
        self._held = lease if is_trusted else None
        return is_trusted

    def _trust_left_s(self) -> float:
        return max(0.0, self._trusted_until_s - time.monotonic())

    def _next_lease(self, old: Lease | None) -> Lease:
        before = int(((old or {}).get("spec") or {}).get("leaseTransitions") or 0)
        now = self._now()
        spec = {
            "holderIdentity": self._identity,
            "leaseDurationSeconds": max(1, round(self._duration_s)),
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": max(before, self.term_floor) + 1,
        }
        base = old or {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"namespace": self._namespace, "name": self._name},
        }
        return {**base, "spec": {**(base.get("spec") or {}), **spec}}

    async def _put(self, lease: Lease) -> Lease:
        return await self._client.replace(LEASES, self._namespace, self._name, lease)

    @staticmethod
    def _now() -> str:
        return micro_time(datetime.now(UTC))
