"""In which order several kinds of slots are placed, each beside those before it.

Used by the table of shares and by the walk alike: both then find the same. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

One = TypeVar("One")
Placed = TypeVar("Placed")


def place_all(
    parts: Sequence[One],
    place: Callable[[One], Placed | None],
    start_again: Callable[[], None],
) -> list[Placed] | None:
    """Place all ``parts``, in their order if that can be; what was found for each, in their order.

    One that finds no room beside those before it goes first in the next try: a launcher that fits
    anywhere does not keep the workers from the one node that has what they need. None where one
    finds no room though it is the first, or no order is left that this leads to.

    Parameters
    ----------
    place : what is placed stays until ``start_again``; None where there is no room.
    start_again : takes back all that was placed.
    """
    order = tuple(range(len(parts)))
    tried: set[tuple[int, ...]] = set()
    while order not in tried:
        tried.add(order)
        found: dict[int, Placed] = {}
        for number in order:
            one = place(parts[number])
            if one is None:
                break
            found[number] = one
        else:
            return [found[number] for number in range(len(parts))]
        start_again()
        if not found:
            return None
        order = (number, *(other for other in order if other != number))
    return None
