"""In which order several kinds of slots are placed, each in addition to those before it.

The table of shares and the walk both use it, so they find the same. Pure.
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
    """Place all ``parts``, in their order if possible, and return the results in that order.

    If one does not fit after those before it, it goes first in the next try. So a launcher that
    fits anywhere does not keep the workers from the only node that fits them. None means that one
    does not fit even as the first, or that this leads to no new order.

    Parameters
    ----------
    place : places one part until ``start_again`` is called. It returns None if nothing is free.
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
