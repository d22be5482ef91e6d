"""What keeps the pods of a released workload from running, and what is done about it.

``db/store/reconciling.py`` calls ``judge_start`` beside ``follow``, with the facts of the rows and
the words that kube-scheduler and the Job controller have left. The function repeats nothing by
itself. It says when to look again, and the caller remembers ``Starting`` until then.

The rules:

- A pod that kube-scheduler cannot bind is *stuck* after ``unschedulable_s`` seconds. It is deleted
  if another pod is made for it. Its slot counts as refused, and the next pod gets a slot on another
  node.
- A deleted pod counts as failed in its BatchJob. A BatchJob that may not lose another pod is not
  repaired pod by pod.
- If a pod cannot be replaced, if no other node has room, or if the other node refuses it as well,
  the whole workload returns to the queue. This happens only while nothing is lost by it: before all
  of its pods have run once, or while none of them is bound.
- A pod that is not created is reported in the words of the Job controller, or after
  ``NOT_CREATED_S`` seconds without words. After the start timeout the whole workload returns to the
  queue.
- If kube-scheduler refuses a PodGroup, only the pods that fit nowhere count as stuck. No node has
  refused the others. If none of its pods is named, the group is reported. After the start timeout
  the whole workload returns to the queue.
- If the PodGroup that pods name cannot be made, they wait for ever. After ``unschedulable_s``
  seconds the whole workload returns to the queue. Its next try does without the group.
- A pod that no scheduler has looked at is reported with the name of its scheduler. After the start
  timeout the whole workload returns to the queue. It concerns other schedulers than the cluster's
  own, which may be down or busy for a while.
- A pod that is bound and does not run, or that waits for gates of others, counts only if its author
  or its queue has set a start timeout. Images may be large, and gates may be meant.
- A workload that has returned ``tries_max`` times is held, with the reason.

Pure: all times are arguments in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from fluxqueue.fluxjob.pod_facts import NOT_SEEN, OF_GROUP, PodFact, cut

DELAY_MIN_S, DELAY_MAX_S = 10, 600
"""Pause in seconds before the second try, and the longest pause. Each pause doubles the last."""

NOT_RUNNING_S = 30.0
"""Seconds after which a pod is reported that is bound and does not run."""

NOT_CREATED_S = 120.0
"""Seconds after which a pod is reported that is not created, if its controller does not say why."""

NOT_SEEN_S = 10.0
"""Seconds after which a pod is reported that no scheduler has looked at."""

ASK_AGAIN_S = 15.0
"""Seconds between two questions to the API server why pods are missing."""

GROUP_EVERY_S = 10.0
"""Seconds between two looks at the PodGroup of a gang that waits."""
_LOOK_MIN_S, _LOOK_MAX_S = 5.0, 60.0
_NAMED = 2


class StartFault(StrEnum):
    """Kind of what keeps a released workload from running. Users read it as a reason."""

    UNSCHEDULABLE = "Unschedulable"
    NO_OTHER_NODE = "NoOtherNode"
    NO_SCHEDULER = "NoScheduler"
    NO_GROUP = "NoPodGroup"
    FAILED_CREATE = "FailedCreate"
    NOT_RUNNING = "NotRunning"


@dataclass(frozen=True, slots=True)
class StartRules:
    """How long a start may take.

    ``unschedulable_s``: seconds until an unbound pod is given another node. ``timeout_s``: seconds
    until a workload that has not started returns to the queue, 0 for no limit. ``is_asked``: its
    author or its queue has set this limit. ``tries_max``: after so many tries it is held.
    ``binds_groups``: placed gangs are bound in PodGroups that fluxqueue makes.
    """

    unschedulable_s: float = 5.0
    timeout_s: float = 300.0
    is_asked: bool = False
    tries_max: int = 5
    binds_groups: bool = False


@dataclass(frozen=True, slots=True)
class Starting:
    """What was found by the last look, kept in the row.

    ``since_s`` is the epoch second of the first look that found this fault. ``words`` are those of
    the Job controller, read at ``asked_s``, or say which PodGroup cannot be made, and why.
    """

    fault: StartFault
    since_s: float
    words: str = ""
    asked_s: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the form of the row."""
        return {
            "fault": str(self.fault),
            "since_s": self.since_s,
            "words": self.words,
            "asked_s": self.asked_s,
        }

    @classmethod
    def from_json(cls, found: Mapping[str, Any] | None) -> Starting | None:
        """Read the form of the row."""
        if not found:
            return None
        return cls(
            StartFault(found["fault"]),
            float(found["since_s"]),
            str(found.get("words") or ""),
            found.get("asked_s"),
        )


@dataclass(frozen=True, slots=True)
class StartingPod:
    """A live pod of a released workload.

    ``node`` is that of its slot, None without one. ``stuck_s``: for how many seconds kube-scheduler
    has not been able to bind it. ``is_moving``: its slot counts as refused already, and it is being
    deleted. ``is_second``: its slot was given after this node had refused a pod, because no other
    node had room. ``excess``: what it asks for, if that is more than its slot has. It stays gated.
    """

    fact: PodFact
    node: str | None
    stuck_s: float = 0.0
    is_moving: bool = False
    is_second: bool = False
    excess: str = ""

    @property
    def is_unbound(self) -> bool:
        """Return whether kube-scheduler says that it cannot bind this pod."""
        return self._is_waiting and not self.is_unseen and not self.is_held_back

    @property
    def is_unseen(self) -> bool:
        """Return whether no scheduler has looked at this pod."""
        return self._is_waiting and self.fact.unschedulable.startswith(NOT_SEEN)

    @property
    def is_held_back(self) -> bool:
        """Return whether kube-scheduler refuses the PodGroup of this pod, and not the pod."""
        return self._is_waiting and self.fact.unschedulable.startswith(OF_GROUP)

    @property
    def _is_waiting(self) -> bool:
        return bool(self.fact.unschedulable) and self.fact.node is None and not self.fact.is_gated


@dataclass(frozen=True, slots=True)
class StartFacts:
    """What is known of a released workload at one look.

    ``waited_s``: seconds since its nodes were allocated. ``needed``: how many pods it wants and has
    slots for. ``pods``: those that have not ended. ``lacking``: slots that the matcher must add.
    ``refused``: nodes that refused one of its pods since its nodes were allocated. ``spare``: how
    many of its pods may be deleted, None for any number. ``can_requeue``: it can be suspended.
    ``has_started``: all of its pods have run. ``is_whole``: kube-scheduler treats them as one.
    ``is_placed``: its pods come with their nodes. ``group_s``: epoch second of the last look at
    their PodGroup.
    """

    waited_s: float
    needed: int
    pods: Sequence[StartingPod] = ()
    lacking: int = 0
    refused: AbstractSet[str] = frozenset()
    spare: int | None = 0
    can_requeue: bool = True
    has_started: bool = False
    is_whole: bool = False
    is_placed: bool = False
    group_s: float | None = None
    past: Starting | None = None


@dataclass(frozen=True, slots=True)
class StartDecision:
    """What follows from one look.

    ``move``: UIDs of pods to delete, with slots that count as refused from now on. ``again``: those
    of an earlier look, if they are still there. ``refuse``: UIDs of pods on nodes that the next try
    avoids. ``must_requeue``: the whole workload returns to the queue.
    ``must_ask``: read from the API server why pods are missing. ``look_in_s``: seconds until
    the next look, None for no further look. ``must_release``: look at the PodGroup of its pods.
    """

    starting: Starting | None = None
    reason: str = ""
    move: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    refuse: tuple[str, ...] = ()
    must_requeue: bool = False
    must_ask: bool = False
    look_in_s: float | None = None
    has_started: bool = False
    must_release: bool = False


@dataclass(slots=True)
class _PodsFound:
    """The pods of one look by what they wait for."""

    unbound: list[StartingPod] = field(default_factory=list)
    unseen: list[StartingPod] = field(default_factory=list)
    held_back: list[StartingPod] = field(default_factory=list)
    idle: list[StartingPod] = field(default_factory=list)
    running: int = 0
    missing: int = 0


def judge_start(facts: StartFacts, rules: StartRules, now_s: float) -> StartDecision:
    """Decide what follows from the present facts of one released workload.

    Parameters
    ----------
    now_s : epoch seconds of this look.
    """
    decision, group_in_s = (
        _judge_pods(facts, rules, now_s),
        _look_at_group_in_s(facts, rules, now_s),
    )
    if group_in_s is None or decision.must_requeue:
        return decision
    looks = [one for one in (decision.look_in_s, group_in_s) if one]
    return replace(decision, must_release=group_in_s == 0, look_in_s=min(looks, default=None))


def _judge_pods(facts: StartFacts, rules: StartRules, now_s: float) -> StartDecision:
    found = _sort(facts)
    if found.unbound:
        return _unbound(facts, found, rules, now_s)
    if _waits_for_group(facts):
        return _without_group(facts, rules, now_s)
    if facts.lacking and facts.refused:
        return _without_node(facts, rules, now_s)
    if found.running >= facts.needed:
        return StartDecision(has_started=True)
    if facts.has_started:
        return StartDecision(has_started=True)
    if found.unseen:
        return _unseen(facts, found, rules, now_s)
    if found.held_back:
        return _held_back(facts, found, rules, now_s)
    if found.missing and facts.waited_s >= rules.unschedulable_s:
        return _missing(facts, found, rules, now_s)
    return _slow(facts, found, rules, now_s)


def _look_at_group_in_s(facts: StartFacts, rules: StartRules, now_s: float) -> float | None:
    """Return in how many seconds the PodGroup of a gang must be looked at, 0 for now, or None.

    It is made when all pods are there: that releases them. Later it may be gone, or ask for more
    pods than there are. Those that have ended do not count for a pod that replaces another one.
    """
    waiting = _waiting(facts)
    if not (rules.binds_groups and facts.is_whole and facts.is_placed and waiting):
        return None
    if facts.group_s is not None:
        return max(0.0, facts.group_s + GROUP_EVERY_S - now_s)
    is_due = len(waiting) >= facts.needed or facts.waited_s >= rules.unschedulable_s
    # Nothing is planned: each pod that comes has a look. The sweep finds those that are late.
    return 0.0 if is_due else None


def _waiting(facts: StartFacts) -> list[StartingPod]:
    """Return the released pods that kube-scheduler has not bound."""
    return [pod for pod in facts.pods if pod.fact.node is None and not pod.fact.is_gated]


def retry_delay_s(tries: int) -> int:
    """Return the pause in seconds after ``tries`` tries that have failed."""
    doublings = min(max(0, tries - 1), 16)
    return min(DELAY_MAX_S, DELAY_MIN_S << doublings)


def _sort(facts: StartFacts) -> _PodsFound:
    found = _PodsFound()
    for pod in facts.pods:
        if pod.fact.is_terminating:
            continue
        if pod.fact.phase == "Running":
            found.running += 1
        elif pod.is_unbound:
            found.unbound.append(pod)
        elif pod.is_unseen:
            found.unseen.append(pod)
        elif pod.is_held_back:
            found.held_back.append(pod)
        elif not pod.fact.is_gated:
            found.idle.append(pod)
    there = sum(not pod.fact.is_terminating for pod in facts.pods)
    found.missing = max(0, facts.needed - there)
    return found


def _unbound(
    facts: StartFacts, found: _PodsFound, rules: StartRules, now_s: float
) -> StartDecision:
    """Decide about pods that kube-scheduler cannot bind."""
    starting = _remember(facts.past, StartFault.UNSCHEDULABLE, now_s)
    first = max(found.unbound, key=lambda pod: (pod.stuck_s, pod.fact.name))
    places = ", ".join(_place(pod) for pod in found.unbound[:_NAMED])
    said = f"{_count(len(found.unbound), facts)} cannot be bound: {places}: "
    said += cut(first.fact.unschedulable)
    stuck = [pod for pod in found.unbound if pod.stuck_s >= rules.unschedulable_s]
    if not stuck:
        return StartDecision(starting, said, look_in_s=rules.unschedulable_s - first.stuck_s + 0.1)
    moving = tuple(pod.fact.uid for pod in stuck if pod.is_moving)
    rest = [pod for pod in stuck if not pod.is_moving]
    may_move = len(rest) if facts.spare is None else facts.spare
    is_movable = may_move >= len(rest) and not any(
        pod.is_second or pod.node is None for pod in rest
    )
    if is_movable:
        return StartDecision(
            starting,
            f"{said}; another node is looked for",
            move=tuple(pod.fact.uid for pod in rest),
            again=moving,
            look_in_s=_LOOK_MIN_S,
        )
    # Nothing may be lost by the requeue: either the start is not complete, or no pod is bound.
    is_harmless = not facts.has_started or not any(pod.fact.node for pod in facts.pods)
    if facts.can_requeue and is_harmless:
        refuse = tuple(pod.fact.uid for pod in stuck)
        return StartDecision(starting, said, refuse=refuse, must_requeue=True)
    hint = "; its pods cannot be sent elsewhere: delete the pod, and create it again"
    return StartDecision(starting, said + hint, look_in_s=_LOOK_MAX_S)


def _unseen(facts: StartFacts, found: _PodsFound, rules: StartRules, now_s: float) -> StartDecision:
    """Decide about pods that no scheduler has looked at."""
    stuck_s = max(pod.stuck_s for pod in found.unseen)
    if stuck_s < NOT_SEEN_S:
        return StartDecision(look_in_s=NOT_SEEN_S - stuck_s + 0.1)
    starting = _remember(facts.past, StartFault.NO_SCHEDULER, now_s)
    name = cut(found.unseen[0].fact.unschedulable.removeprefix(NOT_SEEN))
    waiting = _count(len(found.unseen), facts)
    said = f"no scheduler {name!r} has looked at {waiting}; install it, or remove schedulerName"
    if _is_over(facts, rules, is_bound=False):
        return StartDecision(starting, said, must_requeue=True)
    return StartDecision(starting, said, look_in_s=_pause(facts, rules))


def _held_back(
    facts: StartFacts, found: _PodsFound, rules: StartRules, now_s: float
) -> StartDecision:
    """Decide about pods of a PodGroup that is refused although each of its pods fits."""
    starting = _remember(facts.past, StartFault.UNSCHEDULABLE, now_s)
    words = cut(found.held_back[0].fact.unschedulable.removeprefix(OF_GROUP))
    said = f"{_count(len(found.held_back), facts)} cannot be bound with their PodGroup: {words}"
    if _is_over(facts, rules, is_bound=False):
        return StartDecision(starting, said, must_requeue=True)
    return StartDecision(starting, said, look_in_s=_pause(facts, rules))


def _waits_for_group(facts: StartFacts) -> bool:
    is_known = facts.past is not None and facts.past.fault is StartFault.NO_GROUP
    return is_known and facts.is_placed and bool(_waiting(facts))


def _without_group(facts: StartFacts, rules: StartRules, now_s: float) -> StartDecision:
    """Decide about pods that name a PodGroup that cannot be made."""
    assert facts.past is not None, "the release has found the fault"
    said = f"{_count(len(_waiting(facts)), facts)} cannot be bound in PodGroup {facts.past.words}"
    # It may be another one of the same name that binds them.
    is_late = now_s - facts.past.since_s >= rules.unschedulable_s
    if is_late and facts.can_requeue and not any(pod.fact.node for pod in facts.pods):
        return StartDecision(facts.past, said, must_requeue=True)
    return StartDecision(facts.past, said, look_in_s=_LOOK_MIN_S)


def _without_node(facts: StartFacts, rules: StartRules, now_s: float) -> StartDecision:
    """Decide about pods that a node refused, and that no other node has room for."""
    starting = _remember(facts.past, StartFault.NO_OTHER_NODE, now_s)
    nodes = ", ".join(sorted(facts.refused)[:_NAMED])
    said = f"{_count(facts.lacking, facts)} cannot run on {nodes}, and no other node has room"
    is_over = now_s - starting.since_s >= rules.unschedulable_s
    if is_over and facts.can_requeue and not facts.has_started:
        return StartDecision(starting, said, must_requeue=True)
    return StartDecision(starting, said, look_in_s=_LOOK_MIN_S, has_started=facts.has_started)


def _missing(
    facts: StartFacts, found: _PodsFound, rules: StartRules, now_s: float
) -> StartDecision:
    """Decide about pods that their controller has not created.

    In a burst the Job controller is behind, and nothing is wrong. So for a while the words of a
    failure are asked for, and without them nothing is reported. A report for each job of a burst
    would cost more than its start.
    """
    is_over = _is_over(facts, rules, is_bound=False)
    if facts.past is None and facts.waited_s < NOT_CREATED_S and not is_over:
        return StartDecision(must_ask=True, look_in_s=_pause(facts, rules))
    starting = _remember(facts.past, StartFault.FAILED_CREATE, now_s)
    said = f"{_count(found.missing, facts)} {_is(found.missing)} not created"
    said += f": {cut(starting.words)}" if starting.words else " yet"
    # Ask once before the end, because the next try shows these words.
    is_explained = starting.asked_s is not None
    is_late = facts.waited_s >= rules.timeout_s + 2 * ASK_AGAIN_S
    if is_over and (is_explained or is_late):
        return StartDecision(starting, said, must_requeue=True)
    must_ask = starting.asked_s is None or now_s - starting.asked_s >= ASK_AGAIN_S
    return StartDecision(starting, said, must_ask=must_ask, look_in_s=_pause(facts, rules))


def _slow(facts: StartFacts, found: _PodsFound, rules: StartRules, now_s: float) -> StartDecision:
    """Decide about pods that are there, and that nothing is known to be wrong with."""
    # Most pods run at once. Until a while has passed no look is planned, because it would cost a
    # task for each workload. The sweep finds those that are slow.
    if facts.waited_s < rules.unschedulable_s:
        return StartDecision()
    # Unbound pods of a PodGroup may wait for one that came later and has no slot.
    is_bound = not facts.is_whole or any(pod.fact.node for pod in facts.pods)
    is_over = _is_over(facts, rules, is_bound=is_bound)
    large = [pod for pod in facts.pods if pod.excess]
    if facts.waited_s < NOT_RUNNING_S and not is_over and not large:
        return StartDecision(look_in_s=_pause(facts, rules))
    starting = _remember(facts.past, StartFault.NOT_RUNNING, now_s)
    waiting = max(1, facts.needed - found.running)
    places = ", ".join(_place(pod) for pod in found.idle[:_NAMED])
    said = f"{_count(waiting, facts)} {_does(waiting)} not run yet"
    said += f": {places}" if places else ""
    if large:
        said = f"{large[0].fact.name} asks for more than its slot has: {large[0].excess}"
    if is_over:
        return StartDecision(starting, said, must_requeue=True)
    return StartDecision(starting, said, look_in_s=_pause(facts, rules))


def _is_over(facts: StartFacts, rules: StartRules, *, is_bound: bool) -> bool:
    """Return whether the start timeout has passed, and counts for what the pods wait for."""
    counts = rules.is_asked or not is_bound
    has_passed = bool(rules.timeout_s) and facts.waited_s >= rules.timeout_s
    return counts and has_passed and facts.can_requeue


def _remember(past: Starting | None, fault: StartFault, now_s: float) -> Starting:
    return past if past is not None and past.fault is fault else Starting(fault, now_s)


def _pause(facts: StartFacts, rules: StartRules) -> float:
    """Return the seconds until the next look: rarer with time, but at the timeout.

    Whole steps: jobs that were released one after the other get their next look as one task.
    """
    steps = max(1, facts.waited_s / 2 // _LOOK_MIN_S)
    pause_s = min(_LOOK_MAX_S, steps * _LOOK_MIN_S)
    left_s = rules.timeout_s - facts.waited_s
    return min(pause_s, left_s + 0.1) if left_s > 0 else pause_s


def _place(pod: StartingPod) -> str:
    return pod.fact.name if pod.node is None else f"{pod.fact.name} to {pod.node}"


def _count(number: int, facts: StartFacts) -> str:
    of = max(number, facts.needed)
    return "its pod" if of == 1 else f"{number} of its {of} pods"


def _is(number: int) -> str:
    return "is" if number == 1 else "are"


def _does(number: int) -> str:
    return "does" if number == 1 else "do"
