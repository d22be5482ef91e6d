"""Moves in rows: one statement that carries out a ``Move`` of ``fluxjob/lifecycle.py``.

Modules of ``db/store`` that change states for a cycle or a user call ``apply_move``. The move says
which rows it applies to, so a row that another process has changed meanwhile stays as it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from fluxqueue.db.database import Transaction
from fluxqueue.fluxjob.lifecycle import Move
from fluxqueue.fluxjob.states import FluxJobState


@dataclass(frozen=True, slots=True)
class Moved:
    """A row to move, the reason that its users see, and its holder afterwards."""

    uid: str
    reason: str = ""
    held_by: str | None = None


async def apply_move(
    tx: Transaction,
    which: Move,
    rows: Sequence[Moved],
    *,
    also: str = "",
    values: Mapping[str, Any] | None = None,
) -> set[str]:
    """Carry out a move, and return the UIDs of the rows that it applied to.

    The transaction has locked the rows, or locks no others after them. ``also`` is a constant with
    further assignments in SQL, in which the row is ``f``. ``values`` has its parameters.
    """
    if not rows:
        return set()
    is_examined = "" if which.is_examined is None else f", is_examined = {which.is_examined}"
    still = "AND NOT f.is_deleting AND f.result IS NULL" if which.is_ending_excluded else ""
    moved = await tx.fetch(
        f"""
        UPDATE fluxjobs f SET state = :target, held_by = r.held_by, reason = r.reason,
                              expected_start = NULL{is_examined}{", " if also else ""}{also}
        FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (uid text, reason text, held_by text)
        WHERE f.uid = r.uid {still} AND (f.state = ANY(CAST(:sources AS text[]))
              OR (f.state = 'Held' AND f.held_by = ANY(CAST(:holders AS text[]))))
        RETURNING f.uid
        """,  # noqa: S608 constants of moves and of callers
        target=str(which.target),
        sources=_texts(which.sources),
        holders=sorted(which.held_by),
        rows=orjson.dumps([asdict(one) for one in sorted(rows, key=lambda one: one.uid)]).decode(),
        **(values or {}),
    )
    return {row["uid"] for row in moved}


def _texts(states: frozenset[FluxJobState]) -> list[str]:
    return sorted(str(state) for state in states)
