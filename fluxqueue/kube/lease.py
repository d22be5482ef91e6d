"""Leader election by a coordination Lease, with a fencing term.

Every controller process runs it. At most one of them believes at a time that it leads. That is not
proof, so the term also fences commits. Two rules make it independent of clocks:

- The Lease of another holder has expired only if it has not changed for its duration *on our
  monotonic clock*.
- Our own lead ends locally well before the Lease does. It counts from the *start* of the last
  successful renewal, so a slow answer cannot extend it.

The term is the Lease's ``leaseTransitions``. It rises with every acquisition, even if the same
process takes its own Lease again. So two leads never share a term.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, NamedTuple

from fluxqueue.errors import ApiError, ApiUnavailable, Conflict, NotFound
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import LEASES

logger = logging.getLogger(__name__)

Lease = dict[str, Any]

# The part of the duration for which we trust a renewal. The rest covers the request on its way,
# clocks of different speeds, and work in flight when the trust ends.
TRUSTED_SHARE = 2 / 3

RESIGN_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Observation:
    """The last Lease seen, and since when it has not changed (monotonic seconds)."""

    resource_version: str
    since_s: float


def is_free(lease: Lease, seen: Observation, now_s: float, identity: str = "") -> bool:
    """Return whether ``identity`` may take this Lease: released, its own, or expired.

    A Lease is expired if it has not changed for its whole duration. A process that was killed and
    restarted under the same name need not wait for itself. The term rises all the same. If both
    live, only the newer one can commit.
    """
    spec = lease.get("spec") or {}
    if spec.get("holderIdentity") in (None, "", identity):
        return True
    return now_s >= seen.since_s + float(spec.get("leaseDurationSeconds") or 0)


def micro_time(now: datetime) -> str:
    """Return a MicroTime as the API server requires it: always six digits of fraction."""
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class LeaseIdentity(NamedTuple):
    """Which Lease an elector campaigns for, and under which name of its own."""

    namespace: str
    name: str
    identity: str


class LeaseTimes(NamedTuple):
    """How long a Lease lasts, how often its holder renews it, how often others try (seconds)."""

    duration_s: float
    renew_s: float
    retry_s: float = 2.0


class LeaseElector:
    """Campaigns for one Lease until cancelled.

    Parameters
    ----------
    on_started, on_lost : Plain functions called in the event loop, ``on_started`` with the term.
        They start and stop work, and must not do it themselves.
    term_floor : The highest term known from elsewhere (the database). A Lease that was deleted must
        not start again below it. It may be raised later.
    annotations : What each renewal writes on the Lease.
    on_seen : Called with the annotations of the Lease before it is taken.
    """

    def __init__(
        self,
        client: KubeClient,
        identity: LeaseIdentity,
        times: LeaseTimes,
        *,
        on_started: Callable[[int], None],
        on_lost: Callable[[], None],
        term_floor: int = 0,
        annotations: Callable[[], Mapping[str, str]] = dict,
        on_seen: Callable[[Mapping[str, str]], None] = lambda _: None,
    ) -> None:
        self._annotations, self._on_seen = annotations, on_seen
        self.term_floor = term_floor
        self._client = client
        self._namespace, self._name, self._identity = identity
        self._on_started, self._on_lost = on_started, on_lost
        self._duration_s, self._renew_s, self._retry_s = times
        self._seen: Observation | None = None
        self._held: Lease | None = None
        self._trusted_until_s = float("-inf")

    @property
    def is_leader(self) -> bool:
        """True only inside the trust window. Ask before every step that must not happen twice."""
        return self._held is not None and time.monotonic() < self._trusted_until_s

    @property
    def term(self) -> int:
        """The present term, 0 when not leading."""
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
        """Take the Lease if it is free. Return it, or None."""
        try:
            lease = await self._client.get(LEASES, self._namespace, self._name)
        except NotFound:
            return await self._client.create(LEASES, self._namespace, self._next_lease(None))
        self._on_seen(lease["metadata"].get("annotations") or {})
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
            # Cancellation passes here too: work that was started must stop.
            if self._held is not None and not self.is_leader:
                self._held = None
            logger.info("no longer leading action=lose lease=%s", self._name)
            self._on_lost()

    async def _renew_until_trusted(self) -> None:
        """Renew once. Set ``_held`` to None if another process holds the Lease or time is up."""
        try:
            async with asyncio.timeout(self._trust_left_s()):
                while not await self._renew_once():  # noqa: ASYNC110 - remote state, no event
                    await asyncio.sleep(min(self._retry_s, self._renew_s))
        except TimeoutError:
            self._held = None

    async def _renew_once(self) -> bool:
        """Return True if renewed or certainly lost, False to try again."""
        assert self._held is not None
        started_s = time.monotonic()
        meta = self._held["metadata"]
        said = {**(meta.get("annotations") or {}), **self._annotations()}
        spec = {**self._held["spec"], "renewTime": self._now()}
        lease = {**self._held, "metadata": {**meta, "annotations": said}, "spec": spec}
        try:
            renewed = await self._put(lease)
        except Conflict:
            return await self._look_who_holds()
        except NotFound:
            self._held = None  # deleted by hand: the next campaign creates it with a higher term
            return True
        except (ApiUnavailable, ApiError) as error:
            logger.warning("lease not renewed action=renew lease=%s error=%s", self._name, error)
            return False
        self._trust(renewed, started_s)
        return True

    async def _look_who_holds(self) -> bool:
        """After a conflict, return True if the Lease is lost, False to try again.

        An edit by a third party is harmless. Another holder or term is not.
        """
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
        """Release the Lease on a clean end, so that the successor need not wait for its expiry."""
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
        """Return the present Lease if we hold it under the same term, else None.

        A renewal that was under way when we were cancelled may have arrived after all.
        """
        found = await self._client.get(LEASES, self._namespace, self._name)
        same = ("holderIdentity", "leaseTransitions")
        is_same = all((found.get("spec") or {}).get(key) == lease["spec"][key] for key in same)
        return found if is_same else None

    def _trust(self, lease: Lease, started_s: float) -> bool:
        """Trust ``lease`` from the start of the attempt. False if that time is over already."""
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
