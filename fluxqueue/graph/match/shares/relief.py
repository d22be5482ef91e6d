"""Relief: what a request lacks, and the most that the end of each of some others could add to it.

For whoever looks for the fewest that have to make way: a set whose reliefs do not add up to what is
lacking cannot be enough, so it need not be tried. That a set is enough only the match itself says:
reservations, places and whole pools are left aside here. Called by the matcher; pure.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fluxqueue.graph.ledger.shares import SHARES_TOTAL
from fluxqueue.graph.ledger.what_if import WhatIf
from fluxqueue.graph.match.shares.offer import Offer

HOPELESS = float("inf")


@dataclass(frozen=True, slots=True)
class Relief:
    """Of one leaf of a request: ``lacking`` units over the whole cluster, and the most that each of
    those asked about gives back of them (by their numbers). Both in units.
    """

    lacking: float
    gains: tuple[float, ...]


def relief(what_if: WhatIf, offer: Offer, count: int, *, is_distinct: bool) -> Relief:
    """What is lacking of ``count`` units of ``offer`` (``is_distinct``: nodes), and who holds it.

    A node has room for a further unit when enough is given back of that of its resources of which
    most is short; so what somebody holds of it, as a share of what is short there, is the most that
    his end adds.
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
