"""Moves in rows: one statement that carries out a ``Move`` of ``fluxjob/lifecycle.py``.

Modules of ``db/store`` that change states for a cycle or a user call ``apply_move``. The move says
which rows it applies to, so a row that another process has changed meanwhile stays as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from fluxqueue.db.database import Transaction
from fluxqueue.db.queries import Q
from fluxqueue.fluxjob.lifecycle import Move


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
    query: str = Q.move_rows,
    **values: Any,
) -> set[str]:
    """Carry out a move, and return the UIDs of the rows that it applied to.

    ``query`` is ``Q.move_rows``, or one of its kind that sets more. ``values`` are its further
    parameters.
    """
    if not rows:
        return set()
    moved = await tx.fetch(
        query,
        str,
        target=str(which.target),
        is_examined=which.is_examined,
        is_ending_excluded=which.is_ending_excluded,
        sources=sorted(str(state) for state in which.sources),
        holders=sorted(which.held_by),
        rows=orjson.dumps([asdict(one) for one in sorted(rows, key=lambda one: one.uid)]).decode(),
        **values,
    )
    return set(moved)
