"""The upkeep of the named queues, by the holder of the matcher's role.

At intervals it computes fair shares, ends jobs that run past their limit, and writes the counts
that FluxQueues show. Each has a bounded rate and writes only what has changed.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from fluxqueue.db.leadership import check_term, may_decide
from fluxqueue.db.reading.occupancy import read_paths
from fluxqueue.db.store.ends import end_overruns
from fluxqueue.db.store.fair_shares import QueueUser, Share, SharesRead, read_shares, store_shares
from fluxqueue.db.store.queues import QueueFigures, last_transition, read_figures, read_rules
from fluxqueue.errors import (
    DatabaseUnavailable,
    LostLeadership,
)
from fluxqueue.fluxjob.levels import parse_levels
from fluxqueue.fluxjob.tree import LevelCount, count_paths
from fluxqueue.kube.resources import FLUXQUEUES
from fluxqueue.policy.fair_share import decay, decayed_use, factors, to_points
from fluxqueue.policy.queue_rules import QueueRules
from fluxqueue.process import metrics
from fluxqueue.worker.context import WorkerContext
from fluxqueue.worker.keeping import ObjectStatuses, conditions, is_valid, keep

logger = logging.getLogger(__name__)

LOOP = "queues"
"""The name of this loop where the times of loops are reported."""

STATUS_S = 2.0
"""The shortest interval in seconds between two writes of a queue's counts."""

OVERRUNS_S = 5.0
"""The interval in seconds at which jobs past their limit are looked for."""

LEVELS_S = 60.0
"""The interval in seconds at which the places of each level are counted."""


class QueueKeeper:
    """Keep shares and counts up to date while the term lasts."""

    def __init__(self, context: WorkerContext, role: str, term: int) -> None:
        self._context, self._role, self._term = context, role, term
        self._shares_at_s = self._overruns_at_s = float("-inf")
        self._seen: tuple[int, list[QueueFigures]] | None = None
        self._statuses = ObjectStatuses(context.client, FLUXQUEUES, "queue")
        self._levels = parse_levels(context.settings.levels)
        self._counts: list[LevelCount] = []
        self._counted_at_s = float("-inf")

    async def run(self) -> None:
        """Run until cancelled, or until the term is over."""
        clock = self._context.clock
        await keep(self._context, LOOP, self.turn, lambda: clock.sleep(STATUS_S))

    async def turn(self) -> None:
        """Compute shares, end overruns and write counts if they are due."""
        now_s = self._context.clock.monotonic_s()
        if now_s - self._overruns_at_s >= OVERRUNS_S:
            self._overruns_at_s = now_s
            await self.end_overruns()
        if now_s - self._shares_at_s >= self._context.settings.fair_share_interval_s:
            self._shares_at_s = now_s
            try:
                await self.share()
            except (LostLeadership, DatabaseUnavailable):
                raise
            except Exception:
                metrics.ROWS_SKIPPED.labels("share").inc()
                logger.exception("shares not computed; they stay as they are")
        await self.show()

    # --- fair share ----------------------------------------------------------------------------

    async def share(self) -> int:
        """Compute all shares again. Return the number of FluxJobs with a changed priority."""
        async with self._context.database.begin() as tx:
            await check_term(tx, self._role, self._term)
            rules = {
                name: one
                for name, one in (await read_rules(tx)).items()
                if one.fair_share is not None
            }
            read = await read_shares(tx, list(rules))
            if not rules and not read.old:
                return 0
            shares = compute_shares(rules, read)
            changed = {
                pair
                for pair in {*shares, *read.old}
                if (shares[pair].points if pair in shares else None)
                != (read.old[pair].points if pair in read.old else None)
            }
            touched = await store_shares(tx, shares, changed)
        if touched:
            logger.info("shares", extra={"action": "share", "fluxjobs": touched})
        return touched

    async def end_overruns(self) -> int:
        """Do what each queue says about jobs past their limit. Return how many are new."""
        async with self._context.database.begin() as tx:
            if not await may_decide(tx, self._role, self._term):
                return 0  # the rows are not compared with the cluster yet
            rules = await read_rules(tx)
            return await end_overruns(tx, rules, self._context.clock.now_s())

    # --- what FluxQueues show ------------------------------------------------------------------

    async def show(self) -> int:
        """Write the counts of queues that have changed. Return the number of writes."""
        last = await last_transition(self._context.database)
        figures = await read_figures(self._context.database, with_counts=self._must_count(last))
        if self._seen is not None and not self._must_count(last):
            figures = _with_counts(figures, self._seen[1])
        await self._count_levels()
        now_s, written = self._context.clock.now_s(), 0
        for one in figures:
            render = partial(render_status, one, at_s=now_s, levels=self._counts)
            before = await self._statuses.write(one.name, one.uid or one.name, render)
            written += before is not None
        self._seen = (last, figures)
        return written

    async def _count_levels(self) -> None:
        now_s = self._context.clock.monotonic_s()
        if now_s - self._counted_at_s >= LEVELS_S:
            self._counted_at_s = now_s
            paths = await read_paths(self._context.database, self._levels)
            self._counts = count_paths(self._levels, paths)

    def _must_count(self, last: int) -> bool:
        return self._seen is None or self._seen[0] != last


def compute_shares(rules: Mapping[str, QueueRules], read: SharesRead) -> dict[QueueUser, Share]:
    """Return shares: decay earlier use, add what was held since, and convert it to points."""
    used: dict[QueueUser, float] = defaultdict(float)
    half_lives = {name: one.fair_share.half_life_s for name, one in rules.items() if one.fair_share}
    for pair, old in read.old.items():
        if pair[0] in half_lives:
            elapsed_s = read.now_s - read.computed_s[pair[0]]
            used[pair] += decay(old.used, elapsed_s, half_lives[pair[0]])
    for held in read.held:
        begin_s = max(held.begin_s, read.computed_s.get(held.queue, 0.0))
        used[held.queue, held.user] += decayed_use(
            held.cpus, begin_s, held.end_s, read.now_s, half_lives[held.queue]
        )
    found = factors(used, read.waiting, {name: one.weight for name, one in rules.items()})
    return {
        pair: Share(used.get(pair, 0.0), factor, to_points(factor, rules[pair[0]]))
        for pair, factor in found.items()
    }


def _with_counts(
    figures: Sequence[QueueFigures], counted: Sequence[QueueFigures]
) -> list[QueueFigures]:
    before = {one.name: one for one in counted}
    return [one.counted_as(before[one.name]) if one.name in before else one for one in figures]


def render_status(
    figures: QueueFigures,
    before: Mapping[str, Any],
    *,
    at_s: int,
    levels: Sequence[LevelCount],
) -> dict[str, Any]:
    """Return a whole status. Conditions that do not change keep their time."""
    spec = figures.spec
    is_enabled, is_started = spec.get("enabled", True), spec.get("started", True)
    wanted = (
        is_valid(figures.fault, "Refused"),
        ("Enabled", is_enabled, "AsSpecified", "" if is_enabled else "takes no submissions"),
        ("Started", is_started, "AsSpecified", "" if is_started else "starts no jobs"),
    )
    return {
        "pending": figures.pending,
        "running": figures.running,
        "held": figures.held,
        "unsatisfiable": figures.unsatisfiable,
        "levels": [one.to_json() for one in levels],
        "observedGeneration": figures.generation,
        "conditions": conditions(before, wanted, at_s),
    }
