"""The ``review`` task: answer a PlacementReview, once, in its status.

It runs on the worker that holds the matcher's role, between two cycles. It uses the graph as the
last cycle left it (``schedule.CycleRunner.between_cycles``). Reviews are questions, so they change
nothing in the queue. If a review is lost, its user asks again.

The answer depends on the asker (``spec.asker``, written by admission). It names a blocking job only
if the API server permits the asker to read its FluxJob.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from fluxqueue.db.database import Transaction
from fluxqueue.db.reading.review_records import (
    AskedFluxJob,
    read_asked,
    read_names,
    read_node_facts,
    read_place,
    read_priorities,
    read_standing,
)
from fluxqueue.db.store.preemption import read_candidates
from fluxqueue.errors import (
    ApiError,
    ApiUnavailable,
    Conflict,
    FluxQueueError,
    Invalid,
    InvalidInput,
    NotFound,
    TooComplex,
)
from fluxqueue.explain.answer import Answer, Change, PlacementOutcome, PlacementVerdict, Reason
from fluxqueue.explain.question import NEWCOMER, Keeper, Question, QueueSnapshot
from fluxqueue.explain.review import answer
from fluxqueue.explain.review_status import Named, render_answer, render_refusal
from fluxqueue.fluxjob.holders import BY_BEGIN_TIME, BY_RETRY
from fluxqueue.fluxjob.levels import parse_levels
from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.jobspec import Jobspec
from fluxqueue.jobspec.bounds import REVIEW_STEPS, WAY_OUT, Work
from fluxqueue.jobspec.shape import describe
from fluxqueue.kube.access_reviews import may
from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.discovery import find_served
from fluxqueue.kube.resources import FLUXJOBS, PLACEMENT_REVIEWS, PRIORITY_CLASSES, WORKLOAD_CLASSES
from fluxqueue.policy.queue_rules import DEFAULT_QUEUE
from fluxqueue.process import metrics
from fluxqueue.process.pacing import REVIEW_SHARE, TimeShare
from fluxqueue.scheduler.pending_job import PendingJob
from fluxqueue.worker.context import WorkerContext
from fluxqueue.worker.fetched_surroundings import fetch_surroundings
from fluxqueue.workload.aliases import parse_aliases
from fluxqueue.workload.objects import Object
from fluxqueue.workload.placement_review import Asker, ReviewRequest, begin_at_s, read_review
from fluxqueue.workload.pod_request import SYSTEM_CLASS, AskedPriority
from fluxqueue.workload.site import Site
from fluxqueue.workload.surroundings import complete

if TYPE_CHECKING:
    from fluxqueue.worker.schedule import CycleRunner

logger = logging.getLogger(__name__)

S = FluxJobState
_STARTED = frozenset({S.ALLOCATED, S.RUNNING})

FAILED = "it could not be answered; the log of the worker that holds the matcher says why"

ANSWER_S = 0.8
"""The time limit of one answer (seconds)."""

CRASHES_MAX = 1
"""The most workers that may crash during one answer.

A review that crashes its worker would crash each one.
"""

CRASHED = "its answer was begun before, and its worker did not survive it"

RELEASED = Change("hold", "false", "if it is released")


@dataclass(frozen=True, slots=True)
class _Told:
    """Hold an answer, with what is known about the FluxJob in question."""

    answer: Answer
    known: Mapping[str, Any]


class Reviewer:
    """Answer reviews with one matcher, while its owner holds the role."""

    def __init__(self, context: WorkerContext, runner: CycleRunner) -> None:
        self._context, self._runner = context, runner
        settings = context.settings
        self._share = TimeShare(context.clock, REVIEW_SHARE)
        aliases = parse_aliases(settings.aliases, settings.queue_names)
        self._site = Site(settings.default_cpu_m, parse_levels(settings.levels), aliases=aliases)

    async def review(self, namespace: str, name: str, uid: str, *, crashes: int = 0) -> None:
        """Answer one review, unless it is gone, answered, or another one has its name.

        ``crashes``: workers that crashed during this answer. After ``CRASHES_MAX`` the answer is
        that the review is too complex.

        Raises
        ------
        ApiUnavailable, DatabaseUnavailable
            No answer is possible now. The task is run again.
        """
        context = self._context
        try:
            found = await context.client.get(PLACEMENT_REVIEWS, namespace, name)
        except NotFound:
            return
        if found["metadata"]["uid"] != uid or (found.get("status") or {}).get("answeredAt"):
            return
        try:
            if crashes > CRASHES_MAX:
                raise TooComplex(CRASHED, hint=WAY_OUT)
            status = await self._answer(found)
        except InvalidInput as error:
            reason = _word(error)
            status = render_refusal(reason, str(error), context.clock.now_s())
        except FluxQueueError:
            raise
        except Exception:
            # A defect would fail each retry in the same way, so the review gets an answer now.
            logger.exception("a review broke", extra={"action": "review", "uid": uid})
            status = render_refusal("Failed", FAILED, context.clock.now_s())
        await write_answer(context, namespace, name, status)
        metrics.REVIEWS.labels(status.get("verdict") or status["reason"]).inc()

    async def _answer(self, found: Mapping[str, Any]) -> dict[str, Any]:
        namespace = found["metadata"]["namespace"]
        asked = await self._with_class(await self._read(found["spec"], namespace))
        rights = _Rights(self._context, asked.asker)
        if asked.fluxjob and not await rights.may_read(namespace, asked.fluxjob):
            raise _NotThere(namespace, asked.fluxjob)
        # Outside the matcher's lock: a pause inside would delay the cycles, not only the reviews.
        if rest_s := self._share.left_s:
            await self._context.clock.sleep(rest_s)
        async with self._runner.between_cycles() as scene:
            with self._share.work(), metrics.REVIEW_S.time():
                told = await self._ask(scene, found, asked)
        blockers = [one.uid for one in told.answer.outcome.blockers]
        names = await self._names(rights, blockers) if blockers else {}
        return render_answer(told.answer, names, self._context.clock.now_s(), known=told.known)

    async def _read(self, spec: Mapping[str, Any], namespace: str) -> ReviewRequest:
        """Read the question. A manifest is completed as admission would complete it."""
        if not isinstance(spec.get("manifest"), Mapping):
            return read_review(spec, self._site)
        context = self._context
        around = await fetch_surroundings(
            context.client,
            namespace,
            spec["manifest"],
            lambda: read_node_facts(context.database),
        )

        def completed(workload: Object) -> Object:
            return complete(workload, around, self._site.levels, namespace=namespace, is_new=True)

        return read_review(spec, self._site, completed)

    async def _with_class(self, asked: ReviewRequest) -> ReviewRequest:
        """Return the question with the value of its class, if that class exists."""
        if asked.priority_class is None:
            return asked
        client = self._context.client
        # The pods name a PriorityClass. Only the annotation may name one of Kueue's, which wins.
        is_annotated = asked.wishes is not None and asked.wishes.priority_class is not None
        first = await find_served(client, WORKLOAD_CLASSES) if is_annotated else []
        for resource in (*first, PRIORITY_CLASSES):
            with suppress(NotFound):
                found = await client.get(resource, None, asked.priority_class)
                name, value = asked.priority_class, int(found["value"])
                is_granted = resource is not PRIORITY_CLASSES or not (
                    is_annotated or name.startswith(SYSTEM_CLASS)
                )
                return replace(asked, priority=value, is_priority_granted=is_granted)
        return asked

    async def _ask(
        self, scene: QueueSnapshot, found: Mapping[str, Any], asked: ReviewRequest
    ) -> _Told:
        namespace, uid = found["metadata"]["namespace"], found["metadata"]["uid"]
        rules = scene.queues.rules
        async with self._context.database.begin() as tx:
            row = None
            if asked.fluxjob:
                row = await read_asked(tx, namespace, asked.fluxjob, rules, scene.times)
                if row is None:
                    raise _NotThere(namespace, asked.fluxjob)
                is_as_it_is = asked.request is None and asked.changes.is_empty
                if is_as_it_is and not FluxJobState(row.state).is_waiting:
                    return _Told(_of_the_past(row), _known(row))
            wanted = _wanted(row, asked, uid)
            priority = _asked_priority(row, asked)
            priorities = await read_priorities(
                tx, wanted.user, priority.value, is_granted=priority.is_granted
            )
            job = _in_queue(wanted, priorities, scene)
            if row is None:
                job = scene.with_plan(job, asked.template, job.user or f"namespace {namespace}")
            place = await read_place(tx, job)
            scene = await _with_candidates(tx, scene, job, priority)
        question = Question(
            job=job,
            namespace=namespace,
            is_accepted=row is not None and row.accepted_by == job.queue,
            place=place,
            keeper=_keeper(row, asked, scene.now),
            priorities=priorities,
        )
        return _Told(
            await asyncio.to_thread(answer, scene, question, self._work()),
            _known(row) if row else {},
        )

    def _work(self) -> Work:
        """Return the bound of one answer in steps and time, because no cycle runs meanwhile."""
        clock = self._context.clock
        until_s = clock.monotonic_s() + ANSWER_S
        return Work(REVIEW_STEPS, "this question", lambda: clock.monotonic_s() >= until_s)

    async def _names(self, rights: _Rights, uids: Collection[str]) -> dict[str, Named]:
        found = await read_names(self._context.database, uids)
        readable = {
            namespace: await rights.may_read(namespace)
            for namespace in sorted({one.namespace for one in found.values()})
        }
        return {uid: one for uid, one in found.items() if readable[one.namespace]}


def _word(error: InvalidInput) -> str:
    if isinstance(error, TooComplex):
        return "TooComplex"
    return "NotFound" if isinstance(error, _NotThere) else "Invalid"


async def write_answer(
    context: WorkerContext, namespace: str, name: str, status: Mapping[str, Any]
) -> None:
    """Write a status. The first one stays (a rule of the definition)."""
    at = (PLACEMENT_REVIEWS, namespace, name)
    try:
        await context.client.patch(
            *at, {"status": dict(status)}, kind=PatchKind.MERGE, subresource="status"
        )
    except NotFound:
        return
    except (Conflict, Invalid):
        # Race: another worker may have answered first. Its answer stays, and this is no failure.
        there = await context.client.get(*at)
        if not (there.get("status") or {}).get("answeredAt"):
            raise


class _NotThere(InvalidInput):
    """Report that the FluxJob does not exist or that the asker may not read it.

    The asker does not learn which of the two is the case.
    """

    def __init__(self, namespace: str, name: str) -> None:
        super().__init__(
            f"namespace {namespace} has no such FluxJob that you may read",
            where="spec.fluxJob",
            value=name,
            hint=f"fluxqueue jobs -n {namespace} --state all shows which there are",
        )


class _Rights:
    """Find what one asker may read. The API server is asked once for each namespace."""

    def __init__(self, context: WorkerContext, asker: Asker) -> None:
        self._client, self._asker = context.client, asker
        self._known: dict[tuple[str, str], bool] = {}

    async def may_read(self, namespace: str, name: str = "") -> bool:
        """Return whether the asker may read the FluxJobs of ``namespace``, or the named one."""
        key = namespace, name
        if key not in self._known:
            self._known[key] = await self._ask(namespace, name)
        return self._known[key]

    async def _ask(self, namespace: str, name: str) -> bool:
        if not self._asker.username:
            return False  # it has not passed admission
        try:
            return await may(self._client, self._asker, "get", FLUXJOBS, namespace, name)
        except ApiUnavailable:
            raise
        except ApiError as error:
            logger.warning("rights unknown", extra={"action": "review", "error": str(error)})
            return False


# --- what is asked, as the queue knows it --------------------------------------------------------


def _known(row: AskedFluxJob) -> dict[str, Any]:
    return {"jobid": row.job.jobid, "state": row.state}


def _of_the_past(row: AskedFluxJob) -> Answer:
    """Return the answer for a job that has its nodes or has ended, without the matcher."""
    if FluxJobState(row.state) in _STARTED:
        outcome = PlacementOutcome(
            PlacementVerdict.NOW,
            Reason.RUNNING,
            f"is {row.state}",
            row.allocated_at,
            nodes=tuple(row.nodes),
        )
    else:
        message = f"is {row.state}: it has ended; submit it again"
        outcome = PlacementOutcome(PlacementVerdict.NEVER, Reason.ENDED, message)
    return Answer(describe(row.job.request), outcome)


def _wanted(row: AskedFluxJob | None, asked: ReviewRequest, uid: str) -> PendingJob:
    """Return the job in question, before the rules of its queue apply."""
    newcomer = PendingJob(
        f"review/{uid}",
        NEWCOMER,
        asked.priority,
        asked.request or Jobspec(1, ()),
        asked.queue or DEFAULT_QUEUE,
        asked.asker.username,
    )
    if row is None:
        return newcomer
    request = asked.request or asked.changes.apply(row.job.request)
    queue = asked.changes.queue or row.job.queue
    has_limit = asked.request is not None or row.job.has_limit or bool(asked.changes.duration_s)
    if FluxJobState(row.state).is_waiting:
        # What ended runs say is of the request as it is.
        learned = row.job.learned if request == row.job.request else None
        return replace(row.job, request=request, queue=queue, has_limit=has_limit, learned=learned)
    return replace(newcomer, request=request, queue=queue, user=row.job.user, has_limit=has_limit)


def _asked_priority(row: AskedFluxJob | None, asked: ReviewRequest) -> AskedPriority:
    if asked.changes.priority is not None:
        return AskedPriority(asked.changes.priority)
    if row is None:
        return AskedPriority(asked.priority, asked.is_priority_granted)
    return AskedPriority(row.asked_priority, row.is_priority_granted)


def _in_queue(job: PendingJob, priorities: Mapping[str, int], scene: QueueSnapshot) -> PendingJob:
    """Return the job with the priority and the duration that its queue gives it."""
    has_limit = job.has_limit and bool(job.request.duration_s)
    duration_s = job.request.duration_s if has_limit else scene.rules(job.queue).planned_s
    request = replace(job.request, queue="", duration_s=float(duration_s))
    priority = priorities.get(job.queue, job.priority)
    return replace(
        job, request=request, priority=priority, has_limit=has_limit, is_planned=not has_limit
    )


async def _with_candidates(
    tx: Transaction, scene: QueueSnapshot, job: PendingJob, asked: AskedPriority
) -> QueueSnapshot:
    """Return the scene with possible victims, if the queue of the job permits preemption."""
    rules = scene.queues.rules.get(job.queue)
    if rules is None or rules.preemption is None:
        return replace(scene, preemptions=replace(scene.preemptions, candidates=(), standings={}))
    standing = await read_standing(
        tx, job.queue, job.user, asked.value, is_granted=asked.is_granted
    )
    candidates = await read_candidates(tx, rules.preemption.queues, standing)
    preemptions = replace(scene.preemptions, candidates=candidates, standings={job.uid: standing})
    return replace(scene, preemptions=preemptions)


def _keeper(row: AskedFluxJob | None, asked: ReviewRequest, now: int) -> Keeper | None:
    """Return what the job waits for besides resources, or None."""
    if row is not None:
        return _keeper_of(row) if FluxJobState(row.state).is_waiting else None
    wishes = asked.wishes
    if wishes.is_held:
        return Keeper(Reason.HELD, "would be held by its author", RELEASED)
    if wishes.depends_on:
        return Keeper(
            Reason.DEPENDENCY,
            f"would wait for {', '.join(f'{one.kind}:{one.job}' for one in wishes.depends_on)}",
            Change("dependsOn", "", "when what it depends on is there"),
        )
    begin_at = begin_at_s(wishes, now)
    if begin_at is not None and begin_at > now:
        return _begins(begin_at, "would not start before its begin time")
    return None


def _begins(at: int, message: str) -> Keeper:
    change = Change("beginTime", "", "if it might begin at once")
    return Keeper(Reason.BEGIN_TIME, message, change, not_before=at)


def _keeper_of(row: AskedFluxJob) -> Keeper | None:
    reason = row.blocked_reason or row.reason
    if row.state == S.GATHERING:
        return Keeper(Reason.GATHERING, reason, Change("pods", "", "when all its pods are there"))
    if row.state == S.HELD and row.held_by != "queue":
        return Keeper(Reason.HELD, reason or "is held", RELEASED)
    if row.blocked_by in {BY_BEGIN_TIME, BY_RETRY} and row.begin_at is not None:
        return _begins(row.begin_at, reason)
    if row.blocked_by is not None:
        change = Change("dependsOn", "", "when what it depends on is there")
        return Keeper(Reason.DEPENDENCY, reason, change)
    return None
