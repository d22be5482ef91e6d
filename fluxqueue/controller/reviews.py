"""PlacementReviews: pass them on at a bounded rate, and delete old ones.

kopf's handlers (``operator``) report them. A loop of the leading controller passes each one to the
worker that holds the matcher (task ``review``). The rate is limited per user and for all users
together.

Answers are deleted after some minutes. A new leader reads the reviews from the cluster again, and
starts to count anew.
"""

from __future__ import annotations

import asyncio
import logging
import math
from contextlib import suppress

from fluxqueue.clock import Clock
from fluxqueue.db.database import Database
from fluxqueue.db.liveness import Liveness
from fluxqueue.errors import (
    ApiError,
    ApiUnavailable,
    Conflict,
    DatabaseUnavailable,
    Invalid,
    NotFound,
)
from fluxqueue.explain.review_status import render_refusal
from fluxqueue.fluxjob.times import from_rfc3339
from fluxqueue.kube.client import KubeClient, PatchKind
from fluxqueue.kube.resources import PLACEMENT_REVIEWS
from fluxqueue.process import metrics
from fluxqueue.workload.objects import Object
from fluxqueue.workload.placement_review import read_asker

logger = logging.getLogger(__name__)


LOOP = "reviews"
"""Name of the loop in reports of loop times."""

ALL_USERS = 10
"""The rate of all users together, as a multiple of the rate of one user."""

LOOK_S = 5.0
"""Interval (seconds) between two searches for old reviews."""

BURST_S = 30.0
"""A user without recent reviews may ask at once for as many as this time (seconds) allows."""

_EVERYBODY = ""


class Allowance:
    """The allowed rate of reviews by name: the generic cell rate algorithm (ITU-T I.371).

    Pure. Times are seconds of a monotonic clock. Names without recent reviews are dropped.
    """

    def __init__(self, per_minute: int) -> None:
        self._gap_s = 60.0 / per_minute
        self._due_s: dict[str, float] = {}

    def take(self, who: str, now_s: float) -> float:
        """Count one review of ``who`` and return 0, or return the seconds until the next try."""
        gap_s = self._gap_s / (ALL_USERS if who == _EVERYBODY else 1)
        due_s = max(self._due_s.get(who, now_s), now_s)
        if due_s - now_s > BURST_S:
            return due_s - now_s - BURST_S
        self._due_s[who] = due_s + gap_s
        return 0.0

    def forget(self, now_s: float) -> None:
        """Drop names with a full allowance."""
        self._due_s = {who: due_s for who, due_s in self._due_s.items() if due_s > now_s}


class ReviewWatch:
    """Passes reviews on at a bounded rate, and deletes old ones.

    Parameters
    ----------
    per_minute : reviews of one user.
    keep_s : age (seconds) at which a review is deleted.
    """

    def __init__(
        self,
        database: Database,
        client: KubeClient,
        clock: Clock,
        *,
        per_minute: int,
        keep_s: int,
        liveness: Liveness | None = None,
    ) -> None:
        self._liveness = liveness or Liveness(clock, LOOP)
        self._database, self._client, self._clock = database, client, clock
        self._keep_s = keep_s
        self._allowance = Allowance(per_minute)
        self._new: dict[str, Object] = {}
        self._admitted: set[str] = set()
        """Those of the new reviews that were counted already. A retry does not count again."""
        self._kept: dict[str, tuple[int, str, str]] = {}
        self._more = asyncio.Event()
        self._is_failing = False

    def see(self, review: Object) -> None:
        """Handle a review that exists."""
        meta = review["metadata"]
        uid = meta["uid"]
        is_known = uid in self._kept
        created_s = from_rfc3339(meta["creationTimestamp"])
        self._kept[uid] = created_s, meta["namespace"], meta["name"]
        if not is_known and not (review.get("status") or {}).get("answeredAt"):
            self._new[uid] = review
            self._more.set()

    def see_deleted(self, review: Object) -> None:
        """Handle a review that is gone."""
        self._kept.pop(review["metadata"]["uid"], None)
        self._settle(review["metadata"]["uid"])

    def _settle(self, uid: str) -> None:
        """Drop a review for which nothing is left to do."""
        self._new.pop(uid, None)
        self._admitted.discard(uid)

    async def run(self) -> None:
        """Work until cancelled."""
        cleared_s = self._clock.monotonic_s()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._more.wait()
            # Cleared before the work: a review that arrives during it leads to another round.
            self._more.clear()
            self._liveness.begin(LOOP)
            if self._clock.monotonic_s() - cleared_s >= LOOK_S:
                cleared_s = self._clock.monotonic_s()
                try:
                    await self._clear_away()
                except Exception:
                    logger.exception("old reviews were not deleted")
            self._is_failing = False
            for uid, review in list(self._new.items()):
                if await self._attempt(review):
                    self._settle(uid)
            if not self._is_failing:
                self._liveness.succeed(LOOP)

    async def _attempt(self, review: Object) -> bool:
        try:
            await self._pass_on(review)
        except (DatabaseUnavailable, ApiUnavailable, ApiError) as error:
            self._is_failing = True
            self._liveness.fail(LOOP, error)
            logger.warning("will try again", extra={"action": "review", "error": str(error)})
            return False
        except Exception:
            logger.exception("a review was not passed on")
            metrics.OBJECTS_SET_ASIDE.labels("review").inc()
        return True

    async def _pass_on(self, review: Object) -> None:
        meta = review["metadata"]
        wait_s = self._admit(review)
        if not wait_s:
            await self._database.defer_review(meta["namespace"], meta["name"], meta["uid"])
            return
        again_s = max(1, math.ceil(wait_s))
        refusal = render_refusal(
            "TooMany",
            f"too many reviews are asked for; try again in {again_s} s",
            self._clock.now_s(),
            retryAfterSeconds=again_s,
        )
        try:
            await self._client.patch(
                PLACEMENT_REVIEWS,
                meta["namespace"],
                meta["name"],
                {"status": refusal},
                kind=PatchKind.MERGE,
                subresource="status",
            )
        except (NotFound, Conflict, Invalid):
            return  # gone or answered
        metrics.REVIEWS.labels("TooMany").inc()

    def _admit(self, review: Object) -> float:
        """Count a review against its user's allowance, once. Return the seconds to wait, or 0."""
        meta = review["metadata"]
        if meta["uid"] in self._admitted:
            return 0.0
        asker = read_asker((review.get("spec") or {}).get("asker") or {})
        now_s = self._clock.monotonic_s()
        # A user without a name shares the allowance of the namespace.
        who = asker.username or f"namespace {meta['namespace']}"
        wait_s = self._allowance.take(who, now_s) or self._allowance.take(_EVERYBODY, now_s)
        if not wait_s:
            self._admitted.add(meta["uid"])
        return wait_s

    async def _clear_away(self) -> None:
        """Delete old reviews. A review that cannot be deleted now is tried again."""
        self._allowance.forget(self._clock.monotonic_s())
        oldest_s = self._clock.now_s() - self._keep_s
        for uid, (created_s, namespace, name) in list(self._kept.items()):
            if created_s > oldest_s:
                continue
            try:
                await self._client.delete(PLACEMENT_REVIEWS, namespace, name, uid=uid)
            except (NotFound, Conflict):
                pass
            except (ApiUnavailable, ApiError) as error:
                logger.warning("will try again", extra={"action": "review", "error": str(error)})
                return
            self._kept.pop(uid, None)
            self._settle(uid)
