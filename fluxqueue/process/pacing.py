"""Pacing: every pause between an event in the cluster and what follows from it, in one place.

A batch has a fixed cost, so larger batches cost less for each job, and longer pauses leave nodes
idle. The constants here are the compromise. ``BatchPacer`` adapts the pause of the two loops that
write most: the writing of rows (``controller.observing.flusher``) and the cycle
(``worker.schedule``). ``BUDGET`` says what one pod waits for on its way. The page
docs/developer/performance.md shows it as a table and a picture, which ``docs/draw.py`` draws.
Pauses after a failure are not here: each stands beside the call that may fail.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from fluxqueue.clock import Clock

# --- reading of watches (kube/transport.py) ---

READS_EVERY_S, READS_CREDIT_S = 0.05, 0.3
"""A busy stream is read once per ``READS_EVERY_S`` seconds, after some free reads.

``READS_CREDIT_S`` is the credit for the free reads. Servers send each event by itself, and to
decrypt a TLS record costs more than to parse it. Events that are read together cost less than half.
"""
READ_BYTES, READS_RARER = 1 << 16, 4
"""After a read of more than ``READ_BYTES`` bytes, some ten pods, the next one waits longer.

The wait grows in proportion, up to ``READS_RARER`` times. A reader that is fifty pods behind gains
nothing from reading the first of them sooner.
"""

# --- collection of what was seen (controller/observing) ---

GATHER_S = 0.02
"""Pause before a change is written, so that a burst of events is one transaction."""
ENDED_S = 0.05
"""The pods of a gang end one after the other: this pause collects them in one write."""
LATER_S = 0.3
"""Nothing waits for the report that a pod arrived released, is bound, or runs.

It is written with the next change that matters."""
PODS_BEHIND_S, PODS_BEHIND_LOOK_S = 2.0, 0.1
"""The longest wait for pods that a deleted workload's controller has counted, and the time between
two looks.

Pods and workloads arrive by different watches. A deletion may arrive before its pods.
"""
BATCH_S, BATCH_MIN, BATCH_MAX = 0.4, 20, 200
"""How long a batch of changes should take to write, and its least and largest size.

The first change of another namespace waits for the batch before it.
"""
NEWCOMER_S = 0.2
"""The pause before the next batch if it has changes of a namespace that the last one did not have.

Without it, a tenant with thousands of changes brings the pauses of a busy system to all others.
"""
UNMANAGED_S = 0.5
"""Least interval between two batches of unmanaged pods, because these come in any number."""

# --- cycles and releases (worker) ---

EXAMINED_MAX = 2000
"""The most new FluxJobs that one cycle examines for satisfiability. Users take turns."""
RUSH = 10
"""More starts than this within the time between two status updates are a burst.

A user who submits a few jobs by hand sees each start at once.
"""

# --- shares of the matcher's time (worker), in each of which no cycle runs ---

FORECAST_SHARE = 0.05
"""Forecasts, whatever their number (``worker/plans.py``)."""
REVIEW_SHARE = 0.2
"""Reviews, whatever their number (``worker/review_tasks.py``)."""
PLAN_SHARE, PLAN_REST_S = 1 / 21, 30.0
"""Plans for new nodes (``worker/node_planning.py``), and their longest rest.

New nodes take a minute or more, so nothing is late. A job that is too large for all pools would
otherwise cost each cycle a long search.
"""

# --- status updates (db/store/statuses.py), in intervals of FLUXQUEUE_STATUS_INTERVAL_S ---

STATUS_CALM = 4
"""Starts at once beyond this number are many. Their status is updated only if they last."""
STATUS_PATIENCE, STATUS_PATIENCE_UNSEEN = 5, 15
"""Intervals after which a running FluxJob's status is updated all the same.

They count from the update that reported its start, or from when that was put off. The second number
is for one without a pod that was seen to run: its status then says that it has its nodes.
"""

# --- what was lost on the way (worker/maintain.py) ---

SWEEP_S = 2
"""The interval between two searches for lost tasks."""
GRACE_S = 3.0
"""How long an action may be pending before a task for it must exist."""


class BudgetStep(NamedTuple):
    """One step of a pod from its submission to its end.

    ``idle_ms``: the pause on an idle system, without the requests themselves. ``idle``, ``busy``:
    the same in words, and under load. ``constant``: file and name of what sets it.
    """

    name: str
    idle_ms: float
    idle: str
    busy: str
    constant: str


_MS = 1000
_PAUSE = "and the pause above"
BUDGET = (
    BudgetStep(
        "admission",
        0,
        "one request",
        "0.5 s of processor time at most",
        "`webhook/fluxqueue_webhook/bounded.py`: `CPU_MAX_S`",
    ),
    BudgetStep(
        "read of the watch",
        0,
        "at once",
        f"{READS_EVERY_S * _MS:.0f} ms, or {READS_EVERY_S * READS_RARER * _MS:.0f} ms if a read "
        "has about 50 pods",
        "`READS_EVERY_S`, `READS_RARER`",
    ),
    BudgetStep(
        "creation of the FluxJob",
        0,
        "one request",
        "64 at once",
        "`controller/observing/fluxjob_creator.py`: `AT_ONCE`",
    ),
    BudgetStep(
        "collection of observations",
        GATHER_S * _MS,
        f"{GATHER_S * _MS:.0f} ms",
        f"{GATHER_S * _MS:.0f} ms {_PAUSE}",
        "`GATHER_S`",
    ),
    BudgetStep(
        "start of a `schedule` task",
        0,
        "notification",
        "within 0.5 s if a notification is lost",
        "`FLUXQUEUE_WORKER_POLLING_S`",
    ),
    BudgetStep(
        "cycle",
        0,
        "milliseconds",
        f"up to {EXAMINED_MAX:,} new jobs, {_PAUSE}",
        "`EXAMINED_MAX`",
    ),
    BudgetStep(
        "release",
        0,
        "two requests: status, resume",
        "one request (statuses are put off)",
        "`RUSH`",
    ),
    BudgetStep("creation of the pod", 0, "by the Job controller", "by the Job controller", "–"),
    BudgetStep(
        "collection of new gated pods",
        GATHER_S * _MS,
        f"{GATHER_S * _MS:.0f} ms",
        f"{GATHER_S * _MS:.0f} ms {_PAUSE}",
        "`GATHER_S`",
    ),
    BudgetStep("ungate", 0, "one request", "20 requests at once", "`FLUXQUEUE_KUBE_CONCURRENCY`"),
    BudgetStep("binding", 0, "by kube-scheduler", "by kube-scheduler", "–"),
    BudgetStep(
        "observation that it runs",
        LATER_S * _MS,
        f"{LATER_S * _MS:.0f} ms",
        f"{LATER_S * _MS:.0f} ms {_PAUSE}",
        "`LATER_S`",
    ),
    BudgetStep(
        "observation that it ended",
        ENDED_S * _MS,
        f"{ENDED_S * _MS:.0f} ms",
        f"{ENDED_S * _MS:.0f} ms {_PAUSE}",
        "`ENDED_S`",
    ),
)
"""The latency budget of one pod. Constants without a file stand in this module."""


class Rest(NamedTuple):
    """The pause after a batch, in seconds.

    It is ``each_s`` plus ``times`` the duration of the batch, where the second part is at most
    ``most_s``.
    """

    each_s: float
    times: float
    most_s: float


class BatchPacer:
    """Pauses between batches, in proportion to the work: under load fewer, larger batches.

    If each batch has a fixed cost, fewer and larger batches are cheaper. A batch also causes costs
    elsewhere (``Rest.each_s``): tasks, and statements of other processes. A few batches in a row
    run without a pause (the generic cell rate algorithm, ITU-T I.371), so a single job does not
    wait.

    Parameters
    ----------
    clock : The clock that times are measured with.
    delay_s : Returns how much longer than its quickest answer the API server takes at present, in
        seconds.

    ``is_awaited``: jobs wait for the capacity that a batch finds. Nodes are idle meanwhile, which
    costs more than our own time, so the pause is short (``AWAITED``). If the API server is the
    bottleneck, deciding faster would not start pods any sooner. The pause then grows with the delay
    (``AWAITED_DELAYS``), up to the pause of the other case.

    If no job waits, batches may be larger (``CALM``). If jobs also come faster than one per
    ``PIECE_S``, the pause grows with the last batch (``size``), up to ``CALM_MAX_S``. If they come
    more slowly, a longer pause would only delay them.

    That growth stops at ``DELAYS`` times the delay. While the API server answers at once, larger
    batches would save nothing, and would only delay jobs that come one by one.
    """

    CREDIT_S = 1.5
    AWAITED = Rest(each_s=0.05, times=2, most_s=0.2)
    AWAITED_DELAYS = 10
    CALM = Rest(each_s=0.3, times=4, most_s=0.35)
    PIECE_S, CALM_MAX_S = 0.05, 0.9
    DELAYS = 20

    def __init__(self, clock: Clock, delay_s: Callable[[], float]) -> None:
        self._clock, self._delay_s = clock, delay_s
        self.is_awaited = True
        self.size = 0
        self._rested_s = float("-inf")
        """The time when all pauses that are due would be over."""

    async def rest(self, has_newcomer: Callable[[], bool] = lambda: False) -> None:
        """Wait until the next batch may begin.

        ``has_newcomer``: whether the next batch has changes of a namespace that the last one did
        not have. The pause is then ``NEWCOMER_S`` at most.
        """
        ends_s = self._rested_s - self.CREDIT_S
        while (pause_s := ends_s - self._clock.monotonic_s()) > 0:
            await self._clock.sleep(min(pause_s, NEWCOMER_S))
            if has_newcomer():
                return

    @contextmanager
    def work(self) -> Iterator[None]:
        """Run one batch, and derive the next pause from its duration."""
        began_s = self._clock.monotonic_s()
        try:
            yield
        finally:
            ended_s = self._clock.monotonic_s()
            rest = self._due()
            owed_s = max(self._rested_s, began_s) + rest.each_s + rest.times * (ended_s - began_s)
            self._rested_s = min(owed_s, ended_s + self.CREDIT_S + rest.each_s + rest.most_s)

    def _due(self) -> Rest:
        if self.is_awaited:
            each_s = min(self.CALM.each_s, self.AWAITED_DELAYS * self._delay_s())
            return self.AWAITED._replace(each_s=max(self.AWAITED.each_s, each_s))
        each_s = max(self.CALM.each_s, self.size * self.PIECE_S)
        most_s = min(self.CALM_MAX_S, self.DELAYS * self._delay_s())
        return self.CALM._replace(each_s=min(each_s, most_s))


class TimeShare:
    """Limits some work to a share of the time: after it, it rests in proportion.

    Work that fails rests as well. Otherwise questions that end at their limit would have no limit.

    Parameters
    ----------
    clock : The clock that times are measured with.
    share : The largest share of the time, above 0 and below 1.
    least_s, most_s : The shortest and the longest rest in seconds.
    """

    def __init__(
        self, clock: Clock, share: float, *, least_s: float = 0.0, most_s: float = float("inf")
    ) -> None:
        self._clock, self._times = clock, 1 / share - 1
        self._least_s, self._most_s = least_s, most_s
        self._rested_s = float("-inf")

    @property
    def left_s(self) -> float:
        """Return the rest that is left, in seconds. Zero: the work may run."""
        return max(0.0, self._rested_s - self._clock.monotonic_s())

    def forget(self) -> None:
        """End the rest."""
        self._rested_s = float("-inf")

    @contextmanager
    def work(self) -> Iterator[None]:
        """Run the work, and derive the rest from its duration."""
        began_s = self._clock.monotonic_s()
        try:
            yield
        finally:
            ended_s = self._clock.monotonic_s()
            rest_s = max(self._least_s, self._times * (ended_s - began_s))
            self._rested_s = ended_s + min(self._most_s, rest_s)


class BatchSize:
    """The size of the next batch, from the duration of the last one: about ``BATCH_S``."""

    def __init__(self) -> None:
        self.limit = BATCH_MAX

    def note(self, size: int, took_s: float) -> None:
        """Record that a batch of ``size`` changes took ``took_s`` seconds."""
        # The fixed cost of a small batch says nothing of a large one.
        if size >= BATCH_MIN:
            fitting = int(size * BATCH_S / max(took_s, 1e-6))
            self.limit = max(BATCH_MIN, min(BATCH_MAX, fitting))


class Lately:
    """Counts how many there were within the last ``span_s`` seconds of ``clock``."""

    def __init__(self, clock: Clock, span_s: float) -> None:
        self._clock, self._span_s = clock, span_s
        self._found: deque[tuple[float, int]] = deque()

    def count(self, more: int) -> int:
        """Record ``more`` now, and return the count within the span, these included."""
        now_s = self._clock.monotonic_s()
        while self._found and self._found[0][0] <= now_s - self._span_s:
            self._found.popleft()
        if more:
            self._found.append((now_s, more))
        return sum(number for _, number in self._found)
