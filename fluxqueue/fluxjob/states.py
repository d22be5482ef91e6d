"""States of a FluxJob and the one table of legal transitions.

``docs/developer/state-machine.md`` draws this table and the database repeats it in a trigger
(``db/sql/33_transitions.sql``); a test holds the three against each other. Called by the scheduler,
the stores and the worker; decides nothing about *when* a transition happens.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType

from fluxqueue.errors import IllegalTransition


class FluxJobState(StrEnum):
    """Where a FluxJob is in its life; the values are what users read in ``kubectl get``."""

    GATHERING = "Gathering"
    PENDING = "Pending"
    RESERVED = "Reserved"
    HELD = "Held"
    UNSATISFIABLE = "Unsatisfiable"
    ALLOCATED = "Allocated"
    RUNNING = "Running"
    COMPLETED = "Completed"
    FAILED = "Failed"
    CANCELLED = "Cancelled"

    @property
    def is_final(self) -> bool:
        """Whether no transition leaves this state."""
        return self in FINAL

    @property
    def is_waiting(self) -> bool:
        """Whether a FluxJob in this state holds nothing and stands in the queue or beside it."""
        return self in WAITING


_S = FluxJobState
FINAL = frozenset({_S.COMPLETED, _S.FAILED, _S.CANCELLED})
WAITING = frozenset({_S.GATHERING, _S.PENDING, _S.RESERVED, _S.HELD, _S.UNSATISFIABLE})

# A waiting workload can end without us: its author deletes it, or its deadline strikes while its
# pods are gated. An allocation returns to the queue when it was lost before anything ran, or when
# it is requeued and its pods are gone; beside the queue where its author holds it by then. Wherever
# it could go to the queue, a group that is not complete gathers instead.
TRANSITIONS: Mapping[FluxJobState, frozenset[FluxJobState]] = MappingProxyType(
    {
        _S.GATHERING: frozenset({_S.PENDING, _S.HELD, *FINAL}),
        _S.PENDING: frozenset(
            {_S.GATHERING, _S.RESERVED, _S.HELD, _S.UNSATISFIABLE, _S.ALLOCATED, *FINAL}
        ),
        _S.RESERVED: frozenset(
            {_S.GATHERING, _S.PENDING, _S.HELD, _S.UNSATISFIABLE, _S.ALLOCATED, *FINAL}
        ),
        _S.HELD: frozenset({_S.GATHERING, _S.PENDING, *FINAL}),
        _S.UNSATISFIABLE: frozenset({_S.GATHERING, _S.PENDING, _S.HELD, *FINAL}),
        _S.ALLOCATED: frozenset({_S.RUNNING, _S.GATHERING, _S.PENDING, _S.HELD, *FINAL}),
        _S.RUNNING: frozenset({_S.GATHERING, _S.PENDING, _S.HELD, *FINAL}),
        _S.COMPLETED: frozenset(),
        _S.FAILED: frozenset(),
        _S.CANCELLED: frozenset(),
    }
)


def check_transition(old: FluxJobState, new: FluxJobState) -> None:
    """Refuse a transition the table does not have.

    Staying in the same state is no transition and always allowed.

    Raises
    ------
    IllegalTransition
        Naming both states and what is allowed instead.
    """
    if old is not new and new not in TRANSITIONS[old]:
        allowed = ", ".join(sorted(TRANSITIONS[old])) or "nothing: it is final"
        raise IllegalTransition(f"{old} -> {new} is not a transition; from {old}: {allowed}")
