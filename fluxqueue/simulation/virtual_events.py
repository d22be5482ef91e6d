"""The events of a simulation, in the order of virtual time. The engine makes and takes them."""

from __future__ import annotations

from typing import NamedTuple

END, NODE, SUBMIT, LEAVE, LOOK = range(5)
"""Order of events at one instant: resources are given back before they are requested."""


class Event(NamedTuple):
    """One event.

    ``number`` is the index of a job or fault in its list. ``version`` identifies an end that no
    longer counts.
    """

    at: int
    kind: int
    number: int
    version: int = 0
