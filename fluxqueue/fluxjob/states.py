"""States of a FluxJob, and the one table of legal transitions.

``docs/developer/state-machine.md`` draws this table, and a trigger in the database repeats it
(``db/sql/33_transitions.sql``). A test compares the three. The scheduler, the stores and the worker
call this module. It does not decide *when* a transition happens.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType


class FluxJobState(StrEnum):
    """State of a FluxJob in its life. The values are what users read in ``kubectl get``."""

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
        """Whether a job in this state holds nothing, and is in the queue or beside it."""
        return self in WAITING


_S = FluxJobState
FINAL = frozenset({_S.COMPLETED, _S.FAILED, _S.CANCELLED})
RELEASED = frozenset({_S.ALLOCATED, _S.RUNNING})
WAITING = frozenset({_S.GATHERING, _S.PENDING, _S.RESERVED, _S.HELD, _S.UNSATISFIABLE})

PROVISIONING = "Provisioning"
"""Shown instead of Pending while nodes come for a job. The row stays Pending."""

SHOWN = (*(state.value for state in _S), PROVISIONING)
"""All words that a status shows."""


def shown_state(state: FluxJobState, wait_reason: str | None) -> str:
    """Return the word that users read. ``wait_reason`` is what keeps a job from its turn."""
    is_coming = state is _S.PENDING and wait_reason == PROVISIONING
    return PROVISIONING if is_coming else str(state)


def read_state(shown: str) -> FluxJobState:
    """Return the state behind the word in a status.

    Raises
    ------
    ValueError
        It is no such word.
    """
    return _S.PENDING if shown == PROVISIONING else FluxJobState(shown)


# A waiting workload can end by itself: its author deletes it, or its deadline passes.
# An allocation returns to the queue if it was lost before anything ran, or if it is requeued and
# its pods are gone. If its author holds it by then, it becomes Held instead.
# Instead of returning to the queue, an incomplete group always becomes Gathering.
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
