"""Relief: what a request lacks, and the most that the end of other jobs could add to it.

The search for victims of preemption uses it. A set of jobs with reliefs below the shortage cannot
be enough, so it need not be tried. Only the match itself says that a set is enough: reservations,
places and whole pools are ignored here. The matcher calls it. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fluxqueue.graph.ledger.if_ended import WhatIf
from fluxqueue.graph.ledger.share_table import SHARES_TOTAL
from fluxqueue.graph.match.shares.offer import Offer

HOPELESS = float("inf")


@dataclass(frozen=True, slots=True)
class Relief:
    """What one leaf of a request lacks, in units over the whole cluster.

    ``gains`` has the most units that the end of each job could add, by the job's number.
    """

    lacking: float
    gains: tuple[float, ...]


def relief(what_if: WhatIf, offer: Offer, count: int, *, is_distinct: bool) -> Relief:
    """Return what is missing of ``count`` units of ``offer`` (nodes, if ``is_distinct``).

    A node fits one more unit when enough of its scarcest resource is given back. So the most that
    the end of a job adds is its part of that resource, as a share of what is short there.
    """
    if offer.needs is None:
        return Relief(HOPELESS, (0.0,) * what_if.count)
    needs = [(0, SHARES_TOTAL), *offer.needs] if offer.is_whole else offer.needs
    columns = np.array([column for column, _ in needs])
    amounts = np.array([need for _, need in needs], dtype=np.int64)
    free = what_if.ledger.now.free[:, columns]
    units = np.maximum((free // amounts).min(axis=1), 0)
    short = np.minimum(amounts * (units[:, None] + 1) - free, amounts)
    scarce = np.argmax(short / amounts, axis=1)
    lacks = short[np.arange(len(short)), scarce].astype(np.float64)
    if is_distinct:
        lacks[units > 0] = HOPELESS
        units = np.minimum(units, 1)
    allowed = offer.allowed()
    lacks[~allowed] = HOPELESS
    rows = what_if.rows
    given = what_if.takes[np.arange(len(rows)), columns[scarce[rows]]] / lacks[rows]
    if is_distinct:
        given = np.minimum(given, 1.0)
    gains = np.bincount(what_if.owners, weights=given, minlength=what_if.count)
    return Relief(float(count - int((units * allowed).sum())), tuple(gains.tolist()))
