"""The transition table: what it forbids, and that every state can end."""

from __future__ import annotations

import pytest

from fluxqueue.fluxjob.states import (
    FINAL,
    PROVISIONING,
    SHOWN,
    TRANSITIONS,
    WAITING,
    FluxJobState,
    read_state,
    shown_state,
)


def test_table_names_every_state() -> None:
    """No state is forgotten, none leads to itself."""
    assert set(TRANSITIONS) == set(FluxJobState)
    assert all(state not in following for state, following in TRANSITIONS.items())


@pytest.mark.parametrize("state", sorted(FINAL))
def test_final_states_are_left_by_nothing(state: FluxJobState) -> None:
    """What has ended has ended, and says so."""
    assert not TRANSITIONS[state]


def test_a_job_that_waits_for_nodes_is_shown_as_provisioning() -> None:
    """The word stands for a pending job alone, and is read back as one."""
    assert shown_state(FluxJobState.PENDING, PROVISIONING) == PROVISIONING
    assert shown_state(FluxJobState.PENDING, "OverLimit") == "Pending"
    for state in set(FluxJobState) - {FluxJobState.PENDING}:
        assert shown_state(state, PROVISIONING) == state
    for word in SHOWN:
        state = read_state(word)
        assert shown_state(state, PROVISIONING if word == PROVISIONING else None) == word
    with pytest.raises(ValueError, match="Nowhere"):
        read_state("Nowhere")


@pytest.mark.parametrize("state", sorted(set(FluxJobState) - FINAL))
def test_every_other_state_can_end(state: FluxJobState) -> None:
    """A workload may be deleted, complete or fail at any time."""
    assert TRANSITIONS[state] >= FINAL


def test_nothing_runs_without_an_allocation() -> None:
    """Running is reached from Allocated only, Allocated only from the queue."""
    before = {s: {old for old in FluxJobState if s in TRANSITIONS[old]} for s in FluxJobState}
    assert before[FluxJobState.RUNNING] == {FluxJobState.ALLOCATED}
    assert before[FluxJobState.ALLOCATED] == {FluxJobState.PENDING, FluxJobState.RESERVED}


def test_waiting_final_and_running_are_disjoint_and_complete() -> None:
    """The helpers partition the states."""
    active = {FluxJobState.ALLOCATED, FluxJobState.RUNNING}
    assert set(FluxJobState) == WAITING | FINAL | active
    assert len(FluxJobState) == len(WAITING) + len(FINAL) + len(active)
    assert all(s.is_waiting == (s in WAITING) for s in FluxJobState)
    assert all(s.is_final == (s in FINAL) for s in FluxJobState)
