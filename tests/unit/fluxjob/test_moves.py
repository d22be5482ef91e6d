"""Every move that a cycle or a user asks for, against the one table of transitions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fluxqueue.db.queries import read_statements
from fluxqueue.fluxjob import lifecycle
from fluxqueue.fluxjob.holders import BY_DEPENDENCY, BY_QUEUE
from fluxqueue.fluxjob.lifecycle import Judged, Move, on_judged
from fluxqueue.fluxjob.states import TRANSITIONS
from fluxqueue.fluxjob.states import FluxJobState as S

DB = Path(lifecycle.__file__).parents[1] / "db"
MOVES = {name: one for name, one in vars(lifecycle).items() if isinstance(one, Move)}
WRITERS = {
    "observations.sql": "on_seen decides",
    "reconciling.sql": "fluxjob.follow decides",
    "outlook.sql": "the plan: RESERVED and WAITING, with the expected start",
    "rebuild.sql": "what the cluster shows, in a marked session",
    "moves.sql": "on_judged and on_requeued decide, a repair by way of Pending, and all moves",
}
"""The files that write a state, and what decides it."""
_SETS_A_STATE = re.compile(r"UPDATE fluxjobs\b.*?\bSET\b(.*?)(?:\bFROM\b|\bWHERE\b|$)", re.DOTALL)


@pytest.mark.parametrize("name", MOVES)
def test_every_move_is_a_transition(name: str) -> None:
    move = MOVES[name]
    sources = move.sources | ({S.HELD} if move.held_by else frozenset())
    assert sources, "it applies to nothing"
    for source in sources - {move.target}:
        assert move.target in TRANSITIONS[source], f"{source} -> {move.target}"


def test_a_move_to_the_queue_is_examined_anew() -> None:
    """Only a cycle that has just examined a job leaves it as it is."""
    anew = {
        name for name, one in MOVES.items() if one.target is S.PENDING and one.is_examined is False
    }
    assert anew == {name for name, one in MOVES.items() if one.target is S.PENDING} - {
        "WAITING",
        "OUT_OF_SIGHT",
    }


def test_states_are_written_where_they_are_decided() -> None:
    """One door: a new UPDATE of a state belongs to a move, or has its decision in ``lifecycle``."""
    found = {
        path.name
        for path in DB.glob("queries/*.sql")
        for _, text in read_statements(path.read_text(encoding="utf-8"), path.name)
        for assigned in _SETS_A_STATE.findall(text)
        if re.search(r"(?:^|[\s,])state = ", assigned)
    }
    assert found == set(WRITERS)


@pytest.mark.parametrize("state", sorted(S))
@pytest.mark.parametrize("held_by", [None, BY_DEPENDENCY, BY_QUEUE, "alice"])
@pytest.mark.parametrize("is_never", [False, True])
def test_a_verdict_on_dependencies_is_a_transition(
    state: S, held_by: str | None, is_never: bool
) -> None:
    """A hold of another user stays, and no job is held twice."""
    judged = on_judged(state, held_by, is_blocked=is_never, is_never=is_never, is_early=False)
    if not state.is_waiting or (state is S.HELD) == (held_by is None):
        return  # no row is like this
    assert judged.state is state or judged.state in TRANSITIONS[state]
    if state is S.HELD and held_by != BY_DEPENDENCY:
        assert judged == Judged(S.HELD, held_by, BY_DEPENDENCY if is_never else None)
    assert (judged.state is S.HELD) == (judged.held_by is not None)


def test_a_begin_time_blocks_behind_dependencies() -> None:
    early = on_judged(S.PENDING, None, is_blocked=False, is_never=False, is_early=True)
    both = on_judged(S.PENDING, None, is_blocked=True, is_never=False, is_early=True)
    assert (early.blocked_by, both.blocked_by) == ("begin-time", BY_DEPENDENCY)
