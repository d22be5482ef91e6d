"""The built-in sharing policies: subtract, headroom, partition, dedicated.

``policy.sharing.rules`` makes one from the spec of a ResourceSharingPolicy. Each class is short,
because ``policy.sharing.arithmetic`` has the sums. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.node import ForeignPod, NodeFact
from fluxqueue.policy.sharing.arithmetic import (
    Portion,
    at_most,
    describe_portions,
    given,
    kept,
    less,
    read_portions,
    used_by,
)
from fluxqueue.policy.sharing.interface import Grant, SharingPolicy


@dataclass(frozen=True, slots=True)
class Subtract:
    """Jobs may have what unmanaged pods leave. Nodes without a policy have the same arithmetic."""

    def grant(
        self, node: NodeFact, capacity: Mapping[str, int], pods: Sequence[ForeignPod], now: int
    ) -> Grant:
        """Return the capacity without what ``pods`` use."""
        del node, now
        return Grant(
            less(capacity, used_by(pods)), capacity, "gives jobs what unmanaged pods leave"
        )


@dataclass(frozen=True, slots=True)
class Headroom:
    """A part of each node stays free, so that unmanaged pods can start at once."""

    portions: Mapping[str, Portion]

    def grant(
        self, node: NodeFact, capacity: Mapping[str, int], pods: Sequence[ForeignPod], now: int
    ) -> Grant:
        """Return the capacity without what ``pods`` use and without the part that stays free."""
        del node, now
        free = kept(self.portions, capacity)
        return Grant(
            less(capacity, used_by(pods), free),
            less(capacity, free),
            f"keeps {describe_portions(self.portions)} free",
        )


@dataclass(frozen=True, slots=True)
class Partition:
    """Jobs have a fixed part of each node, and unmanaged pods the other part."""

    portions: Mapping[str, Portion]

    def grant(
        self, node: NodeFact, capacity: Mapping[str, int], pods: Sequence[ForeignPod], now: int
    ) -> Grant:
        """Return the part of jobs. It is less where ``pods`` use more than their own part."""
        del node, now
        ours = given(self.portions, capacity)
        return Grant(
            at_most(less(capacity, used_by(pods)), ours),
            at_most(capacity, ours),
            f"gives jobs {describe_portions(self.portions)}",
        )


@dataclass(frozen=True, slots=True)
class Dedicated:
    """The nodes are for jobs only. Pods that end only with their node belong to the node.

    ``is_tainted``: a taint keeps pods away that do not tolerate it.
    """

    is_tainted: bool = False

    def grant(
        self, node: NodeFact, capacity: Mapping[str, int], pods: Sequence[ForeignPod], now: int
    ) -> Grant:
        """Return what ``pods`` leave. Those that may leave the node violate the policy."""
        del node, now
        return Grant(
            less(capacity, used_by(pods)),
            capacity,
            "gives jobs the whole node",
            violations=[pod for pod in pods if not pod.is_permanent],
            is_tainted=self.is_tainted,
        )


def _dedicated(parameters: object) -> Dedicated:
    found = {} if parameters is None else parameters
    if not isinstance(found, Mapping) or not isinstance(found.get("taint", False), bool):
        hint = "taint: true or false"
        raise InvalidInput("is not usable", where="spec.dedicated", value=parameters, hint=hint)
    return Dedicated(is_tainted=found.get("taint", False))


def _subtract(parameters: object) -> Subtract:
    _no_parameters(parameters, "subtract")
    return Subtract()


def _no_parameters(parameters: object, name: str) -> None:
    if parameters not in (None, {}):
        where = f"spec.{name}"
        raise InvalidInput(
            "takes no parameters", where=where, value=parameters, hint="leave it out"
        )


BUILT_IN: Mapping[str, Callable[[Any], SharingPolicy]] = {
    "subtract": _subtract,
    "headroom": lambda found: Headroom(read_portions(found, "spec.headroom")),
    "partition": lambda found: Partition(read_portions(found, "spec.partition")),
    "dedicated": _dedicated,
}
"""Name -> how a policy is made of the part of the spec that has its name."""
