"""Every change of a FluxJob's state: what is seen, decided, steered, judged and requeued.

``on_seen`` decides for an observation (``db/store/observations.py``), ``on_judged`` for a job that
waits for others (``db/store/dependencies.py``), and ``on_requeued`` when the last pod has gone
(``db/store/reconciling.py``). A ``Move`` is a change that a cycle or a user asks for, of many rows
at once (``db/store/moves.py``). The end of pods is decided in ``fluxjob/follow.py``, beside what
follows for slots. A rebuild sets what the cluster shows (``scheduler/adoption.py``).

The database repeats the transition table as a guard (``db/sql/33_transitions.sql``) and lets an
incomplete group gather (``32_gathering.sql``). Pure: no clock, no database.
"""

from __future__ import annotations

from dataclasses import dataclass

from fluxqueue.fluxjob import states
from fluxqueue.fluxjob.holders import (
    ANNOTATION,
    AUTHOR,
    BY_BEGIN_TIME,
    BY_DEPENDENCY,
    BY_QUEUE,
    BY_RETRY,
    BY_START,
    CHANGED,
    CHANGED_REASON,
    LOST_NODE,
    NOT_STARTED,
    OVERRAN,
    PAUSED,
    RELEASABLE,
    RESTARTED,
    RESTARTED_REASON,
    SET_ASIDE,
    SUSPENDED,
    author_reason,
    is_preemptor,
)
from fluxqueue.fluxjob.observation import WorkloadSeen
from fluxqueue.fluxjob.start_watch import retry_delay_s
from fluxqueue.fluxjob.states import FluxJobState

S = FluxJobState
_IN_TURN = frozenset({S.PENDING, S.RESERVED})
_NOT_OPERATORS = frozenset({AUTHOR, BY_DEPENDENCY, BY_QUEUE, *RELEASABLE})


@dataclass(frozen=True, slots=True)
class StoredRow:
    """What the row of a FluxJob says before an observation is written.

    Attributes
    ----------
    released_generation : generation of the workload's object at its release, None before it.
    is_cancelled : a user wants the workload deleted.
    is_same_request : the stored request equals the one that was seen.
    is_same_turn : so do priority, queue, dependencies and begin time.
    is_started : all of its pods have run since its nodes were allocated.
    """

    state: FluxJobState
    reason: str = ""
    held_by: str | None = None
    author_hold: str | None = None
    vacate_by: str | None = None
    released_generation: int | None = None
    result: str | None = None
    pinned_to: str | None = None
    is_placed: bool = False
    is_cancelled: bool = False
    is_examined: bool = False
    is_same_request: bool = True
    is_same_turn: bool = True
    is_started: bool = False


@dataclass(frozen=True, slots=True)
class RowChange:
    """What the row says afterwards, and the effects that it asks for.

    ``must_reconcile``: look at its slots and pods. ``must_release``: make the workload's object
    what the row says. ``leaves_quarantine``: it leaves quarantine.
    """

    state: FluxJobState
    reason: str
    held_by: str | None
    author_hold: str | None
    vacate_by: str | None
    released_generation: int | None
    result: str | None
    pinned_to: str | None
    is_deleting: bool
    is_examined: bool
    must_reconcile: bool
    must_release: bool
    leaves_quarantine: bool
    is_started: bool = False
    is_placed: bool = False


@dataclass(frozen=True, slots=True)
class _Findings:
    """What an observation means for a row. At most one of the first four holds.

    ``is_stopped``: its author suspended it after the release. ``is_paused``: its author wants no
    pods of it any more. ``is_changed``: its author edited what its pods ask for, and resumed it.
    ``is_resumed``: its author resumed it. ``is_restarted``: it would run with a limit that begins
    anew.
    ``leaves_quarantine``: it was set aside, and asks for something else now.
    """

    is_stopped: bool
    is_paused: bool
    is_changed: bool
    is_resumed: bool
    leaves_quarantine: bool
    hold: str | None
    growth: str = ""
    is_restarted: bool = False


def on_first_seen(seen: WorkloadSeen) -> RowChange:
    """Decide the row of a workload that has none yet."""
    # Its author may have suspended it before anything of it was observed.
    hold = _wished_hold(seen) or (SUSPENDED if is_suspended_while_gated(seen) else None)
    hold = hold or (PAUSED if seen.is_paused else None)
    is_held = hold is not None
    return RowChange(
        state=S.HELD if is_held else S.PENDING,
        reason=author_reason(hold) if hold is not None else "",
        held_by=AUTHOR if is_held else None,
        author_hold=hold,
        vacate_by=None,
        released_generation=None,
        result=seen.result,
        pinned_to=seen.pinned_to,
        is_deleting=seen.is_deleting,
        is_examined=False,
        must_reconcile=_is_over(seen),
        # Its author unsuspended it. It is suspended again until its turn comes.
        must_release=waits_otherwise(seen, is_held=is_held) and not _is_over(seen),
        leaves_quarantine=False,
        is_placed=seen.is_placed,
    )


def on_seen(
    row: StoredRow,
    seen: WorkloadSeen,
    *,
    needs_look: bool,
    is_reshaped: bool,
    has_progress: bool = False,
) -> RowChange:
    """Decide what an observation changes in a row.

    Parameters
    ----------
    row : the row, locked.
    seen : the workload as it is now.
    needs_look : its pods changed in a way that matters for slots.
    is_reshaped : its pods ask for something else than before, by an edit of its object.
    has_progress : another of its pods has succeeded.
    """
    found = _find(row, seen, is_reshaped=is_reshaped)
    is_released = row.state in states.RELEASED
    is_later = seen.facts.generation >= (row.released_generation or 0)
    return RowChange(
        state=_state(row, found),
        reason=_reason(row, found),
        held_by=_held_by(row, found),
        author_hold=found.hold,
        vacate_by=_vacate_by(row, found),
        released_generation=_released_generation(row, seen, found),
        # A workload that is being deleted loses its pods, which may have told how it ended.
        result=seen.result or (row.result if seen.is_deleting else None),
        # An observation from before the release knows nothing of the node that the release wrote.
        pinned_to=seen.pinned_to if is_later else row.pinned_to,
        is_placed=seen.is_placed if is_later else row.is_placed,
        is_deleting=seen.is_deleting or row.is_cancelled,
        is_examined=row.is_examined and _keeps_its_turn(row, found),
        must_reconcile=(needs_look and is_released)
        or (_is_over(seen) and not row.state.is_final)
        or found.is_changed,
        must_release=_must_release(row, seen, found),
        leaves_quarantine=found.leaves_quarantine,
        is_started=_is_started(row, seen, has_progress=has_progress),
    )


@dataclass(frozen=True, slots=True)
class Move:
    """A change of state that a cycle or a user asks for. Rows in other states stay as they are.

    Attributes
    ----------
    sources : states that it leads from.
    target : the state afterwards.
    held_by : a held row is moved as well if one of these holds it.
    is_examined : whether a cycle has examined it afterwards. None: as before.
    is_ending_excluded : rows of workloads that end or are being deleted stay as they are.
    """

    sources: frozenset[FluxJobState]
    target: FluxJobState
    held_by: frozenset[str] = frozenset()
    is_examined: bool | None = None
    is_ending_excluded: bool = False


# A cycle decides about what is in its turn, and about nothing else: another process may have held,
# cancelled or ended it since the cycle read it.
STARTED = Move(_IN_TURN, S.ALLOCATED, is_ending_excluded=True)
RESERVED = Move(_IN_TURN, S.RESERVED)
WAITING = Move(_IN_TURN, S.PENDING)
OUT_OF_SIGHT = Move(frozenset({S.RESERVED}), S.PENDING)
"""It is behind the jobs that a cycle looks at, so it loses its reservation."""

IMPOSSIBLE = Move(_IN_TURN, S.UNSATISFIABLE)
POSSIBLE = Move(frozenset({S.UNSATISFIABLE}), S.PENDING, is_examined=False)

# What a queue refuses is examined: it is read again only when its queue or its request changes.
REFUSED_BY_QUEUE = Move(_IN_TURN, S.HELD, held_by=frozenset({BY_QUEUE}), is_examined=True)
ADMITTED_BY_QUEUE = Move(frozenset(), S.PENDING, held_by=frozenset({BY_QUEUE}), is_examined=False)
# Also what is impossible: whether it still is cannot be judged.
QUARANTINED = Move(
    _IN_TURN | {S.UNSATISFIABLE}, S.HELD, held_by=frozenset({BY_QUEUE}), is_examined=True
)
OUT_OF_QUARANTINE = Move(frozenset(), S.PENDING, held_by=SET_ASIDE, is_examined=False)

HELD_BY_HAND = Move(states.WAITING, S.HELD)
RELEASED_BY_HAND = Move(frozenset({S.HELD}), S.PENDING, is_examined=False)
ALLOCATION_LOST = Move(states.RELEASED, S.PENDING, is_examined=False)
"""A row without an allocation that it should have: a defect, or a change of tables by hand."""


@dataclass(frozen=True, slots=True)
class Judged:
    """How a job waits for others. ``blocked_by``: why no cycle looks at it, or None."""

    state: FluxJobState
    held_by: str | None
    blocked_by: str | None


def on_judged(
    state: FluxJobState,
    held_by: str | None,
    *,
    is_blocked: bool,
    is_never: bool,
    is_early: bool,
    is_retry: bool = False,
) -> Judged:
    """Decide for a waiting job what its dependencies mean.

    Parameters
    ----------
    state, held_by : as the row says.
    is_blocked : a dependency is not satisfied.
    is_never : one never will be. The job is held until a user changes that.
    is_early : its begin time is in the future.
    is_retry : its last start failed, and the time of the next try is in the future.
    """
    by_time = BY_BEGIN_TIME if is_early else BY_RETRY if is_retry else None
    blocked_by = BY_DEPENDENCY if is_blocked else by_time
    if state is not S.HELD and is_never:
        return Judged(S.HELD, BY_DEPENDENCY, blocked_by)
    if state is S.HELD and held_by == BY_DEPENDENCY and not is_never:
        return Judged(S.PENDING, None, blocked_by)
    return Judged(state, held_by, blocked_by)


@dataclass(frozen=True, slots=True)
class Requeued:
    """How a job waits again when its pods have ended.

    ``is_asked``: a user or a preemptor requested it, so it counts as a requeue.
    """

    state: FluxJobState
    held_by: str | None
    reason: str
    is_asked: bool
    delay_s: int = 0


@dataclass(frozen=True, slots=True)
class FailedTry:
    """A start that has failed: ``tries`` of at most ``tries_max``, with the reason in ``words``."""

    tries: int
    tries_max: int
    words: str


def on_requeued(
    author_hold: str | None, vacate_by: str | None, failed: FailedTry | None = None
) -> Requeued:
    """Decide how it waits: in its old place in the queue, or beside it if its author holds it.

    Parameters
    ----------
    author_hold : how its author holds it by now.
    vacate_by : why its pods were made to end, None if nothing of it had started.
    failed : the start that has failed, if ``vacate_by`` says so.
    """
    is_asked = vacate_by not in {None, LOST_NODE, CHANGED, NOT_STARTED, PAUSED, RESTARTED}
    if author_hold is not None:
        return Requeued(S.HELD, AUTHOR, author_reason(author_hold), is_asked)
    if vacate_by == NOT_STARTED and failed is not None:
        return _after_try(failed)
    if vacate_by == CHANGED:
        reason = CHANGED_REASON
    elif vacate_by == RESTARTED:
        reason = RESTARTED_REASON
    elif vacate_by == PAUSED:
        reason = "paused by its author, and continued before its pods had ended"
    elif not is_asked:
        reason = "a node it was given is lost"
    elif vacate_by == OVERRAN:
        reason = "requeued because it ran past its limit"
    elif is_preemptor(vacate_by):
        reason = f"preempted for {vacate_by}"
    else:
        reason = f"requeued by {vacate_by}"
    return Requeued(S.PENDING, None, reason, is_asked)


def _after_try(failed: FailedTry) -> Requeued:
    """Decide what follows a start that has failed: another try after a pause, or a hold."""
    if failed.tries >= failed.tries_max:
        times = "once" if failed.tries == 1 else f"in {failed.tries} tries"
        reason = f"its pods did not start {times}: {failed.words}"
        return Requeued(S.HELD, BY_START, reason, is_asked=False)
    reason = f"its pods did not start: {failed.words}"
    delay_s = retry_delay_s(failed.tries)
    return Requeued(S.PENDING, None, reason, is_asked=False, delay_s=delay_s)


def _is_started(row: StoredRow, seen: WorkloadSeen, *, has_progress: bool) -> bool:
    """Return whether all of its pods have run since its nodes were allocated.

    A pod that succeeded counts for all: its pods may be too short to run at the same time. Of a
    sweep one pod counts for all.
    """
    if row.state not in states.RELEASED or row.vacate_by is not None:
        return False
    if seen.facts.is_sweep and seen.running:
        return True
    return row.is_started or has_progress or 0 < seen.facts.wanted <= seen.running


def waits_otherwise(seen: WorkloadSeen, *, is_held: bool) -> bool:
    """Return whether the object of a waiting row must be suspended, or resumed with gated pods."""
    if seen.facts.waits_gated:
        return seen.facts.is_suspendable and seen.facts.is_suspended and not is_held
    return seen.facts.is_suspendable and not seen.facts.is_suspended


def _is_over(seen: WorkloadSeen) -> bool:
    return seen.result is not None or seen.is_deleting


def _is_operators(held_by: str | None) -> bool:
    """Whether a user holds it by name. Such a hold outlives what its author does."""
    return held_by is not None and held_by not in _NOT_OPERATORS


def _is_after_release(row: StoredRow, seen: WorkloadSeen) -> bool:
    """Whether the object was changed after its release: by its author, or suspended again by us."""
    return row.released_generation is not None and seen.facts.generation > row.released_generation


def _find(row: StoredRow, seen: WorkloadSeen, *, is_reshaped: bool) -> _Findings:
    is_live = row.state in states.RELEASED and not _is_over(seen)
    # Suspended in a later generation than the release: the author did it, unless we did it again.
    # Before the release the suspension is ours.
    is_stopped = (
        is_live
        and row.vacate_by is None
        and seen.facts.is_suspended
        and not seen.is_suspended_again
        and _is_after_release(row, seen)
    )
    is_resumed = row.vacate_by == AUTHOR and not seen.facts.is_suspended
    # Its template may name its nodes, so its slots return only after it is suspended.
    is_paused = is_live and seen.is_paused and not is_stopped
    is_paused = is_paused and (row.vacate_by is None or is_resumed)
    # Nothing was decided for what it asks for now, so it must not run in its present slots.
    is_edited = (is_resumed and not row.is_same_request) or (row.vacate_by is None and is_reshaped)
    # Its slots were decided for its template, and its pods are larger. No pod is bound yet.
    is_grown = bool(seen.growth) and row.vacate_by is None and not row.is_same_request
    is_edited |= is_grown
    # Its limit counts from its last resumption, so it would hold its slots for longer than planned.
    is_restarted = is_resumed and seen.facts.is_limited and row.is_same_request
    is_edited |= is_restarted
    is_changed = seen.facts.is_suspendable and is_live and not seen.facts.is_suspended and is_edited
    is_changed = is_changed and not is_paused
    return _Findings(
        is_stopped=is_stopped,
        is_paused=is_paused,
        is_changed=is_changed,
        is_resumed=is_resumed and not is_changed and not is_paused,
        leaves_quarantine=row.state is S.HELD
        and row.held_by in RELEASABLE
        and not row.is_same_request,
        hold=_author_hold(row, seen, is_stopped=is_stopped),
        growth=seen.growth if is_grown else "",
        is_restarted=is_changed and is_restarted,
    )


def _author_hold(row: StoredRow, seen: WorkloadSeen, *, is_stopped: bool) -> str | None:
    """Return how its author holds it now, None if its author does not."""
    wished = _wished_hold(seen)
    if wished is not None:
        return wished
    # A suspension by the author stays one until the author resumes it.
    is_authors = is_stopped or row.author_hold == SUSPENDED
    if seen.facts.waits_gated and row.state.is_waiting and seen.facts.generation > 1:
        is_authors = is_suspended_while_gated(seen)
    if seen.facts.is_suspended and is_authors:
        return SUSPENDED
    # Asked last: a suspension by the author outlives the pause.
    return PAUSED if seen.is_paused else None


def is_suspended_while_gated(seen: WorkloadSeen) -> bool:
    """Return whether the author of a workload that waits gated has suspended it.

    Admission leaves it unsuspended, so a suspension after its creation is its author's, unless
    fluxqueue says that it has made it.
    """
    is_suspended = seen.facts.waits_gated and seen.facts.is_suspended and seen.facts.generation > 1
    return is_suspended and not seen.is_suspended_again


def _wished_hold(seen: WorkloadSeen) -> str | None:
    """Return how the object itself says that its author holds it."""
    return ANNOTATION if seen.has_hold else seen.held_by


def _state(row: StoredRow, found: _Findings) -> FluxJobState:
    if row.state.is_waiting and found.hold is not None:
        return S.HELD
    if row.state is S.HELD and (row.held_by == AUTHOR or found.leaves_quarantine):
        return S.PENDING
    # It asks for something else, which may be possible.
    if row.state is S.UNSATISFIABLE and not row.is_same_request:
        return S.PENDING
    return row.state


def _held_by(row: StoredRow, found: _Findings) -> str | None:
    if _is_operators(row.held_by) or not row.state.is_waiting:
        return row.held_by
    if found.hold is not None:
        return AUTHOR
    is_over = found.leaves_quarantine or row.held_by == AUTHOR
    return None if is_over else row.held_by


def _reason(row: StoredRow, found: _Findings) -> str:
    if row.state.is_waiting and found.hold is not None and not _is_operators(row.held_by):
        return author_reason(found.hold)
    if row.state is S.HELD and row.held_by == AUTHOR and found.hold is None:
        return ""
    if found.is_stopped:
        return f"{author_reason(SUSPENDED)}; goes back to the queue as its pods end"
    if found.is_paused:
        return "paused by its author: its slots return as its pods end"
    if found.is_changed and found.growth:
        more = f"each of its pods asks for {found.growth} more than its template"
        return f"{more}, so it is placed again"
    if found.is_changed:
        return RESTARTED_REASON if found.is_restarted else CHANGED_REASON
    is_new = row.state is S.UNSATISFIABLE and not row.is_same_request
    return "" if found.is_resumed or found.leaves_quarantine or is_new else row.reason


def _vacate_by(row: StoredRow, found: _Findings) -> str | None:
    if found.is_stopped:
        return AUTHOR
    if found.is_paused:
        return PAUSED
    if found.is_changed:
        return RESTARTED if found.is_restarted else CHANGED
    return None if found.is_resumed else row.vacate_by


def _released_generation(row: StoredRow, seen: WorkloadSeen, found: _Findings) -> int | None:
    """Return the generation with which its pods were released."""
    is_first = (
        row.state in states.RELEASED
        and row.released_generation is None
        and row.vacate_by is None
        and not seen.facts.is_suspended
    )
    return seen.facts.generation if found.is_resumed or is_first else row.released_generation


def _keeps_its_turn(row: StoredRow, found: _Findings) -> bool:
    """Return whether no new examination by the cycle is needed: its turn is unchanged."""
    is_let_in = row.held_by == AUTHOR and found.hold is None
    return row.is_same_request and row.is_same_turn and not is_let_in


def _must_release(row: StoredRow, seen: WorkloadSeen, found: _Findings) -> bool:
    """Whether it has to wait and is not suspended. It is suspended again."""
    # Its release may be under way, so it may run although this observation is suspended.
    if found.is_paused:
        return True
    if row.state.is_waiting and seen.facts.waits_gated:
        return waits_otherwise(seen, is_held=found.hold is not None) and not _is_over(seen)
    if not seen.facts.is_suspendable or seen.facts.is_suspended or _is_over(seen):
        return False
    # Also if its author resumes what was suspended to be requeued.
    is_vacating = row.vacate_by is not None and row.vacate_by != AUTHOR
    is_against_us = row.state in states.RELEASED and is_vacating and _is_after_release(row, seen)
    return row.state.is_waiting or found.is_changed or is_against_us
