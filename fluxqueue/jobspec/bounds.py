"""Every bound on a jobspec, each with its reason, and the work that one request may cost.

Called by all that reads, builds, counts, matches or explains a jobspec. A bound on what is
*written* is checked when a user writes it. A bound on what is *stored* is checked when a request is
built, and never when a stored request is read: what was admitted can always be read back. What
costs too much to decide although it is within these bounds is caught by ``Work``. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NoReturn

from fluxqueue.errors import TooComplex


@dataclass(frozen=True, slots=True)
class Bounds:
    """The most that one jobspec may have of each.

    ``resources`` in its tree, ``depth`` of its resources and of its constraints, ``parts`` of its
    constraints (operators, expressions, names and values, each of which is looked at for each
    node), ``hosts`` and ranks in them when written out.
    """

    resources: int
    depth: int
    parts: int
    hosts: int


WRITTEN = Bounds(resources=1_000, depth=32, parts=2_000, hosts=20_000)
"""What a user may write by hand. No request that is meant seriously is near it, and what a workload
adds to it stays within ``BUILT``."""
BUILT = Bounds(resources=20_000, depth=64, parts=10_000, hosts=50_000)
"""What a request may come to when pods and annotations are added: one kind of slots for each of
4,000 unequal pods with four resources each. Checked when a request is built and before it is
stored. One of this size is read in 0.1 s."""
STORED = Bounds(resources=1 << 40, depth=200, parts=1 << 40, hosts=1 << 40)
"""What a stored request may have: anything that was ever admitted. Reading is recursive, so the
depth ends somewhere."""


class Left:
    """What of the bounds the reading of one jobspec has left."""

    __slots__ = ("bounds", "hosts", "parts", "resources")

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.resources, self.parts, self.hosts = bounds.resources, bounds.parts, bounds.hosts

    def take_resource(self, where: str) -> None:
        """One resource more; raises ``TooComplex``."""
        self.resources -= 1
        if self.resources < 0:
            _refuse(f"more than {self.bounds.resources} resources", where, _FEWER_KINDS)

    def take_parts(self, number: int, where: str) -> None:
        """So many operators, expressions, names and values more; raises ``TooComplex``."""
        self.parts -= number
        if self.parts < 0:
            most = self.bounds.parts
            _refuse(f"more than {most} parts in all constraints", where, _LABEL_NODES)

    def take_hosts(self, number: int, where: str) -> None:
        """So many hosts or ranks more; raises ``TooComplex``."""
        self.hosts -= number
        if self.hosts < 0:
            most = self.bounds.hosts
            _refuse(f"more than {most} hosts in all constraints", where, _LABEL_NODES)

    def check_depth(self, depth: int, where: str) -> None:
        """Raises ``TooComplex`` where something stands too deep."""
        if depth > self.bounds.depth:
            _refuse(f"nested deeper than {self.bounds.depth}", where, "leave levels out")


WAY_OUT = "ask for fewer kinds of slots and shorter constraints, and fix the counts"
_FEWER_KINDS = "ask for fewer kinds of slots: equal ones are one kind with a count"
_LABEL_NODES = "label the nodes, and ask for the label"


def _refuse(message: str, where: str, hint: str) -> NoReturn:
    raise TooComplex(message, where=where, hint=hint)


SLOTS_MAX = 1_000_000
"""Slots of one request: rows and R hold each of them."""
OPEN_MAX = 10_000
"""Slots that take shares of pools become no more where their number is not fixed: a node has room
for billions of slots of one byte."""
SIZE_STEPS = 60_000
"""Work for finding the counts of a moldable jobspec: some 0.1 s."""
MATCH_STEPS = 400_000
"""Work for deciding about one request in one cycle: some 0.8 s. A request that needs more is set
aside with the reason TooComplex."""
REVIEW_STEPS = 400_000
"""Work for one review, all its variants included: some 0.8 s. No cycle runs meanwhile."""


class Work:
    """A number of steps that may be spent; a step is some two microseconds of one core.

    Parameters
    ----------
    steps : how many there are.
    what : what they are spent on, for the refusal.
    is_over : asked now and then; True ends the work early. For callers that have a deadline.
    within : larger work that this is a part of, and that is spent with it.
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
        """Take ``steps`` off.

        Raises
        ------
        TooComplex
            None are left, or the caller's deadline has passed.
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
