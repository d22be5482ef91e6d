"""Rows of cluster-scoped objects with rules of administrators: sharing policies and node pools.

``db.store.sharing`` and ``db.store.node_pools`` have the statements of their tables. The controller
writes rows from what it sees, and the worker reads them for the status of each object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson

from fluxqueue.db.database import Transaction
from fluxqueue.db.reader import columns
from fluxqueue.db.store.observations import tell_matcher
from fluxqueue.fluxjob.faults import as_text

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


@dataclass(frozen=True, slots=True)
class RuleTable:
    """The statements for one table.

    ``save`` takes ``rows``, a JSON list of ``RuleSeen``, and returns the names of those that
    changed. ``delete`` takes the names ``gone``, and returns those that had a row. ``stored``
    returns the columns of ``StoredRule``. ``change`` is the kind of the change for the matcher.
    """

    change: str
    save: str
    delete: str
    stored: str


async def save_rules(
    tx: Transaction, table: RuleTable, seen: Sequence[RuleSeen], gone: Iterable[str]
) -> None:
    """Write objects as they are, delete those that are gone, and notify the matcher of changes."""
    changed = await tx.fetch(table.save, str, rows=orjson.dumps(seen).decode())
    removed = await tx.fetch(table.delete, str, gone=list(gone))
    await tell_matcher(tx, table.change, [*changed, *removed])


async def read_stored_rules(tx: Transaction, table: RuleTable) -> list[StoredRule]:
    """Read all objects of one table, in the order of their names."""
    return await tx.fetch(table.stored, StoredRule)


async def read_in_force(
    tx: Transaction, query: str, read: Callable[..., T]
) -> tuple[list[T], dict[str, str]]:
    """Read the rules in force, and why some objects have none here.

    A spec may be of another release, or name what this process has not installed.

    Parameters
    ----------
    query : returns the name of each object, and what else ``read`` takes.
    """
    rules, unreadable = [], {}
    for name, *more in await tx.fetch(query, columns):
        try:
            rules.append(read(name, *more))
        except Exception as error:  # noqa: BLE001  one object must not stop the others
            unreadable[name] = as_text(error)
    return rules, unreadable
