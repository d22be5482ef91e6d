"""Starts in rows: what a look at a released workload finds, and what becomes of a failed start.

``reconciling`` calls it under the row's lock. It turns a row into facts for the pure
``fluxjob.start_watch`` and writes its answers. The words of the Job controller are read from the
cluster by the worker, which keeps them with ``keep_words``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fluxqueue.db.database import Database, Transaction
from fluxqueue.db.queries import Q
from fluxqueue.db.store import moves
from fluxqueue.db.store.workload_rows import StoredPod, StoredSlot, WorkloadRow
from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.follow import FollowDecision
from fluxqueue.fluxjob.holders import NOT_STARTED
from fluxqueue.fluxjob.lifecycle import FailedTry
from fluxqueue.fluxjob.pod_facts import cut
from fluxqueue.fluxjob.request import describe
from fluxqueue.fluxjob.start_watch import (
    StartDecision,
    StartFacts,
    Starting,
    StartingPod,
    StartRules,
    judge_start,
)
from fluxqueue.workload.annotations import parse_duration
from fluxqueue.workload.index_placement import VALID_S

NOT_JUDGED = StartDecision()
"""Of a workload that nothing is asked about: it ends, vacates, or is not released yet."""


@dataclass(frozen=True, slots=True)
class MissingPods:
    """A workload with pods that were not created since ``since_s`` (epoch seconds).

    ``is_told``: its status says so already.
    """

    workload_uid: str
    namespace: str
    since_s: float
    is_told: bool = False


def judge(
    row: WorkloadRow,
    decision: FollowDecision,
    holders: Mapping[str, StoredSlot],
    rules: StartRules,
) -> StartDecision:
    """Return what follows for the start of one allocated workload.

    Parameters
    ----------
    holders : the slot of each pod, as it is after ``decision``.
    rules : of the settings. Its queue and its author may set another timeout.
    """
    if decision.is_ended or decision.is_requeued or decision.must_vacate:
        return NOT_JUDGED
    if row.vacate_by is not None or row.result is not None or row.is_deleting:
        return NOT_JUDGED
    # Until its object is resumed no pod can be there. A refused release is reported by itself.
    if row.facts.is_suspendable and row.released_generation is None:
        return NOT_JUDGED
    facts = _facts(row, decision, holders, rules)
    return judge_start(facts, rules_of(row, rules), float(row.now_s))


def rules_of(row: WorkloadRow, rules: StartRules) -> StartRules:
    """Return the rules of one workload.

    The timeout of its author counts, else that of its queue, else that of the settings.
    """
    asked = row.facts.start_timeout_s or _read_timeout(row.queue_timeout)
    return rules if asked is None else replace(rules, timeout_s=float(asked), is_asked=True)


def _read_timeout(text: str | None) -> int | None:
    if not text:
        return None
    try:
        return parse_duration(text, "spec.startTimeout")
    except InvalidInput:
        return None  # the queue's fault says so


def _facts(
    row: WorkloadRow,
    decision: FollowDecision,
    holders: Mapping[str, StoredSlot],
    rules: StartRules,
) -> StartFacts:
    left = set(decision.give_back)
    kept = [s for s in row.slots if s.state != "returned" and s.number not in left]
    refused = [slot for slot in row.slots if slot.is_refused]
    live = [
        replace(
            _starting_pod(pod, holders.get(pod.uid), refused),
            excess=_excess(pod.amounts, holders.get(pod.uid)) if pod.is_gated else "",
        )
        for pod in row.pods.values()
        if not pod.is_terminal
    ]
    # While a template names the nodes, a new pod would be sent to the same place.
    its = row.facts
    may_delete = its.replaces_pods and row.pinned_to is None and not is_placing(row)
    # The others of its PodGroup would wait for a pod that is sent elsewhere by itself.
    is_one = rules.binds_groups and row.is_placed and its.is_whole
    may_delete = may_delete and not (is_one and not any(pod.node for pod in row.pods.values()))
    spare = its.spare_failures
    return StartFacts(
        waited_s=float(row.released_s or 0),
        needed=min(its.wanted, len(kept)),
        pods=live,
        lacking=decision.lacking,
        refused={slot.node for slot in refused},
        spare=(None if spare is None else spare - len(refused)) if may_delete else 0,
        can_requeue=its.is_suspendable,
        has_started=row.is_started,
        is_whole=its.is_whole,
        is_placed=bool(row.is_placed),
        group_s=row.group_s,
        past=Starting.from_json(row.starting),
    )


def is_placing(row: WorkloadRow) -> bool:
    """Return whether further pods may still come with the nodes that the template names."""
    return bool(row.is_placed) and placing_left_s(row) > 0


def placing_left_s(row: WorkloadRow) -> float:
    """Return for how long (seconds) the placement of an allocated workload is still valid."""
    return VALID_S - float(row.released_s or 0)


def _excess(uses: Mapping[str, Any], slot: StoredSlot | None) -> str:
    """Return what a pod asks for of each resource that its slot has too little of."""
    if slot is None:
        return ""
    has = slot.resources
    more = {name: int(n) for name, n in uses.items() if int(n) > int(has.get(name, 0))}
    if not more:
        return ""
    there = describe({name: int(has.get(name, 0)) for name in more})
    return f"{describe(more)} instead of {there}"


def _starting_pod(
    pod: StoredPod, slot: StoredSlot | None, refused: Sequence[StoredSlot]
) -> StartingPod:
    stuck_s = float(pod.stuck_s or 0)
    if slot is None:
        return StartingPod(pod, None, stuck_s)
    is_moving = slot.is_refused
    is_second = any(
        one.node == slot.node and (one.refused_s or 0) <= slot.given_s for one in refused
    )
    places = f"{slot.node} or {len(slot.others)} others" if slot.others else slot.node
    return StartingPod(pod, places, stuck_s, is_moving=is_moving, is_second=is_second)


async def mark_refused(tx: Transaction, pod_uids: Sequence[str]) -> None:
    """Record that the nodes of these pods' slots did not take them."""
    if pod_uids:
        await tx.execute(
            Q.mark_refused,
            pods=list(pod_uids),
        )


async def vacate(tx: Transaction, uid: str, decision: StartDecision) -> None:
    """Have a workload suspended that does not start. It returns to the queue as its pods end."""
    starting = decision.starting
    assert starting is not None, "a requeue has a reason"
    reason = f"{decision.reason}; it goes back to the queue"
    await moves.vacate(tx, uid, by=NOT_STARTED, reason=reason, words=cut(decision.reason))


def failed_try(row: WorkloadRow, rules: StartRules) -> FailedTry:
    """Return the start that has failed, of a workload that vacates for it."""
    words = row.start_error or row.reason
    return FailedTry(row.start_tries + 1, rules.tries_max, words)


async def keep_words(database: Database, words: Mapping[str, str]) -> None:
    """Keep what the controllers of pods say, by the UID of the workload, and look at them again.

    Empty words are kept where a missing pod is reported already: the question is not asked again at
    once.
    """
    if words:
        await database.execute(
            Q.keep_start_words, uids=list(words), words=[cut(one) for one in words.values()]
        )
