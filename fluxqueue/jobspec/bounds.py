"""Every bound on a jobspec with its reason, and the work that one request may cost.

All code that reads, builds, counts, matches or explains a jobspec calls it. A bound on what is
*written* is checked when a user writes it. A bound on what is *stored* is checked when a request is
built, and never when a stored request is read. So what was admitted can always be read back.
``Work`` catches requests within these bounds that still cost too much to decide. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from fluxqueue.errors import TooComplex


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most of each that one jobspec may have.

    ``resources`` counts those in its tree. ``depth`` is that of its resources and of its
    constraints. ``parts`` counts the operators, expressions, names and values of its constraints,
    all of which are evaluated for each node. ``hosts`` counts hosts and ranks in them when written
    out.
    """

    resources: int
    depth: int
    parts: int
    hosts: int


WRITTEN = Bounds(resources=1_000, depth=32, parts=2_000, hosts=20_000)
"""What a user may write by hand.

No serious request comes near it. What a workload adds to it stays within ``BUILT``.
"""
BUILT = Bounds(resources=20_000, depth=64, parts=10_000, hosts=50_000)
"""The size that a request may reach when pods and annotations are added.

This is one kind of slots for each of 4,000 unequal pods with four resources each. It is checked
when a request is built, before it is stored. Reading a request of this size takes 0.1 s.
"""
STORED = Bounds(resources=1 << 40, depth=200, parts=1 << 40, hosts=1 << 40)
"""What a stored request may have: anything that was ever admitted.

The depth is bounded because reading is recursive.
"""


class Left:
    """What is left of the bounds while one jobspec is read."""

    __slots__ = ("bounds", "hosts", "parts", "resources")

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.resources, self.parts, self.hosts = bounds.resources, bounds.parts, bounds.hosts

    def take_resource(self, where: str) -> None:
        """Count one more resource. Raises ``TooComplex``."""
        self.resources -= 1
        if self.resources < 0:
            _refuse(f"more than {self.bounds.resources} resources", where, _FEWER_KINDS)

    def take_parts(self, number: int, where: str) -> None:
        """Count more operators, expressions, names and values. Raises ``TooComplex``."""
        self.parts -= number
        if self.parts < 0:
            most = self.bounds.parts
            _refuse(f"more than {most} parts in all constraints", where, _LABEL_NODES)

    def take_hosts(self, number: int, where: str) -> None:
        """Count more hosts or ranks. Raises ``TooComplex``."""
        self.hosts -= number
        if self.hosts < 0:
            most = self.bounds.hosts
            _refuse(f"more than {most} hosts in all constraints", where, _LABEL_NODES)

    def check_depth(self, depth: int, where: str) -> None:
        """Raise ``TooComplex`` if something is nested too deeply."""
        if depth > self.bounds.depth:
            _refuse(f"nested deeper than {self.bounds.depth}", where, "leave levels out")


WAY_OUT = "ask for fewer kinds of slots and shorter constraints, and fix the counts"
_FEWER_KINDS = "ask for fewer kinds of slots: equal ones are one kind with a count"
_LABEL_NODES = "label the nodes, and ask for the label"


def _refuse(message: str, where: str, hint: str) -> NoReturn:
    raise TooComplex(message, where=where, hint=hint)


SLOTS_MAX = 1_000_000
"""Most slots of one request. Rows and R hold each of them."""
OPEN_MAX = 10_000
"""Most slots that take shares of pools, if their number is not fixed.

A node fits billions of slots of one byte.
"""
SIZE_STEPS = 60_000
"""Work for finding the counts of a moldable jobspec: about 0.1 s."""
MATCH_STEPS = 200_000
"""Work for deciding about one request in one cycle: about 0.4 s.

A request that needs more on the empty cluster is quarantined with the reason TooComplex. One that
needs more beside what runs waits (``scheduler.walk.TOO_COSTLY``).
"""
REVIEW_STEPS = 400_000
"""Work for one review, with all its variants: about 0.8 s. No cycle runs meanwhile."""


class Work:
    """A number of steps that may be spent. A step is about two microseconds of one core.

    Parameters
    ----------
    steps : how many there are.
    what : what they are spent on, for the error message.
    is_over : called now and then. True ends the work early, for callers that have a deadline.
    within : larger work that this is a part of. Steps are spent there too.
    """

    __slots__ = ("_every", "_is_over", "_next", "_within", "left", "what")

    def __init__(
        self,
        steps: int,
        what: str,
        is_over: Callable[[], bool] | None = None,
        within: Work | None = None,
    ) -> None:
        self.left, self.what = steps, what
        self._is_over, self._within = is_over, within
        self._every = 5_000
        self._next = steps - self._every

    def spend(self, steps: int = 1) -> None:
        """Subtract ``steps``.

        Raises
        ------
        TooComplex
            No steps are left, or the caller's deadline has passed.
        """
        self.left -= steps
        if self._within is not None:
            self._within.spend(steps)
        if self.left < 0:
            self._give_up()
        if self._is_over is not None and self.left <= self._next:
            self._next = self.left - self._every
            if self._is_over():
                self.left = 0
                self._give_up()

    def _give_up(self) -> NoReturn:
        message = f"is too complex: {self.what} takes more work than one request may cost"
        raise TooComplex(message, hint=WAY_OUT)
