"""Rows of cluster-scoped objects with rules of administrators.

The controller writes them from what it sees. A cycle reads the rules in force, and the worker reads
all of them for the status of each object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

from fluxqueue.db.database import Transaction
from fluxqueue.db.queries import Q
from fluxqueue.db.reader import columns
from fluxqueue.db.store.cluster_rows import tell_matcher
from fluxqueue.fluxjob.faults import as_text
from fluxqueue.policy.calendar.reservation import ReservationRule, read_reservation

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RuleSeen:
    """An object with rules as the controller sees it now.

    ``fault``: why its spec cannot be used. The row then keeps the spec that it has.
    """

    name: str
    uid: str
    generation: int
    spec: Mapping[str, Any]
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class StoredRule:
    """An object with rules as its row has it, for its status."""

    name: str
    uid: str
    generation: int
    fault: str | None


class RuleRowKind(StrEnum):
    """A kind of such objects: their rows, and the changes of them that the matcher reads."""

    SHARING = "sharing"
    POOL = "pool"
    RESERVATION = "reservation"


async def save_rules(
    tx: Transaction, kind: RuleRowKind, seen: Sequence[RuleSeen], gone: Iterable[str]
) -> None:
    """Write objects as they are, delete those that are gone, and notify the matcher of changes."""
    changed = await tx.fetch(Q.save_rules, str, kind=kind.value, rows=seen)
    removed = await tx.fetch(Q.delete_rules, str, kind=kind.value, gone=list(gone))
    await tell_matcher(tx, kind.value, [*changed, *removed])


async def read_stored_rules(tx: Transaction, kind: RuleRowKind) -> list[StoredRule]:
    """Read all objects of a kind, in the order of their names."""
    return await tx.fetch(Q.stored_rules, StoredRule, kind=kind.value)


async def read_in_force(
    tx: Transaction, kind: RuleRowKind, read: Callable[[str, Any, Mapping[str, Any]], T]
) -> tuple[list[T], dict[str, str]]:
    """Read the rules in force by name, and why some objects have none here.

    A spec may be of another release, or name what this process has not installed. ``read`` receives
    the name, the spec, and what was recorded of the object.
    """
    rules, unreadable = [], {}
    for name, spec, recorded in await tx.fetch(Q.rules_in_force, columns, kind=kind.value):
        try:
            rules.append(read(name, spec, recorded))
        except Exception as error:  # noqa: BLE001  one object must not stop the others
            unreadable[name] = as_text(error)
    return rules, unreadable


async def read_reservations(tx: Transaction) -> tuple[list[ReservationRule], dict[str, str]]:
    """Read the reservations in force, and why some have none here."""
    return await read_in_force(
        tx, RuleRowKind.RESERVATION, lambda name, spec, _: read_reservation(name, spec)
    )


async def record(tx: Transaction, kind: RuleRowKind, name: str, found: Mapping[str, Any]) -> None:
    """Write what is recorded of an object besides its spec."""
    await tx.execute(Q.record_rule, kind=kind.value, name=name, record=found)
