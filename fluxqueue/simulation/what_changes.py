"""What a replay changes of a recorded day: the policy, more nodes, weights of queues. Pure.

``fluxqueue sim --from-history`` and the view server make it from text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.request import CPU, MEMORY, describe
from fluxqueue.policy.queue_policy import POLICIES
from fluxqueue.policy.queue_rules import QueueRules
from fluxqueue.simulation.learning import DurationSource
from fluxqueue.simulation.recorded_day import AMOUNT_MAX
from fluxqueue.workload.labels import HOSTNAME
from fluxqueue.workload.quantity import to_base_units

ADDED_MAX = 2_000
WEIGHT_MAX = 1_000_000
_COUNT = re.compile(r"[0-9]{1,6}")
_NODES_HINT = "COUNT:NODE, as 8:gpu-1, or COUNT:RESOURCE=AMOUNT,..., as 8:cpu=64,memory=256Gi"
_WEIGHT_HINT = f"QUEUE=NUMBER or QUEUE=xNUMBER, with a number from 1 to {WEIGHT_MAX}"


@dataclass(frozen=True, slots=True)
class AddedNodes:
    """``count`` more nodes: copies of the node ``like``, or of ``capacity`` (base units)."""

    count: int
    like: str = ""
    capacity: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Changes:
    """The changes of one replay.

    ``policy`` None leaves each queue its own. ``weights`` are new weights by queue, and
    ``factors`` multiply the present ones. ``durations`` says how run times are planned.
    """

    policy: str | None = None
    nodes: tuple[AddedNodes, ...] = ()
    weights: Mapping[str, int] = field(default_factory=dict)
    factors: Mapping[str, int] = field(default_factory=dict)
    durations: DurationSource = DurationSource.DECLARED

    def describe(self) -> str:
        """Return them in words."""
        parts = [f"policy {self.policy}"] if self.policy else []
        for one in self.nodes:
            shape = f"like {one.like}" if one.like else f"of {describe(one.capacity)}"
            parts.append(f"{one.count} more {'node' if one.count == 1 else 'nodes'} {shape}")
        parts += [f"weight of {name} {value}" for name, value in self.weights.items()]
        parts += [f"weight of {name} times {value}" for name, value in self.factors.items()]
        if self.durations != DurationSource.DECLARED:
            parts.append(f"{self.durations} durations")
        return ", ".join(parts) or "no change"


NONE = Changes()


def parse_changes(
    policy: str,
    nodes: Sequence[str],
    weights: Sequence[str],
    durations: DurationSource = DurationSource.DECLARED,
) -> Changes:
    """Read changes from text.

    Parameters
    ----------
    policy : a queue policy, empty for the policies of the queues.
    nodes : as ``8:gpu-1`` or ``8:cpu=64,memory=256Gi``.
    weights : as ``batch=2`` or ``batch=x2``.

    Raises
    ------
    InvalidInput
        One of them is not valid. ``where`` is ``policy``, ``add-nodes`` or ``queue-weight``.
    """
    if policy and policy not in POLICIES:
        raise InvalidInput(
            f"{policy!r} is no queue policy",
            where="policy",
            value=policy,
            hint=f"one of {', '.join(POLICIES)}",
        )
    added = tuple(_added(text) for text in nodes)
    if sum(one.count for one in added) > ADDED_MAX:
        raise InvalidInput("are too many", where="add-nodes", hint=f"add at most {ADDED_MAX}")
    fixed: dict[str, int] = {}
    factors: dict[str, int] = {}
    for text in weights:
        name, equals, value = text.rpartition("=")
        into = factors if value.startswith("x") else fixed
        digits = value.removeprefix("x")
        is_number = _COUNT.fullmatch(digits) is not None and digits.isascii()
        if not (name and equals and is_number and 1 <= int(digits) <= WEIGHT_MAX):
            raise InvalidInput(
                f"{text!r} is no weight", where="queue-weight", value=text, hint=_WEIGHT_HINT
            )
        into[name] = int(digits)
    return Changes(policy or None, added, fixed, factors, durations)


def _added(text: str) -> AddedNodes:
    count, colon, shape = text.partition(":")
    is_number = _COUNT.fullmatch(count) is not None and count.isascii()
    if not (colon and shape and is_number and 1 <= int(count) <= ADDED_MAX):
        raise InvalidInput(
            f"{text!r} adds no nodes", where="add-nodes", value=text, hint=_NODES_HINT
        )
    if "=" not in shape:
        return AddedNodes(int(count), like=shape)
    capacity: dict[str, int] = {}
    for part in shape.split(","):
        name, equals, amount = part.partition("=")
        if not (name and equals):
            raise InvalidInput(
                f"{part!r} is no resource", where="add-nodes", value=text, hint=_NODES_HINT
            )
        capacity[name] = min(AMOUNT_MAX, to_base_units(name, amount, where=f"add-nodes, {name}"))
    return AddedNodes(int(count), capacity=capacity)


def with_more(nodes: Sequence[NodeFact], added: Sequence[AddedNodes]) -> list[NodeFact]:
    """Return the nodes with the added ones. Copies are in the same places as their node.

    Raises
    ------
    InvalidInput
        There is no node of a given name.
    """
    found = list(nodes)
    by_name = {one.name: one for one in nodes}
    for number, one in enumerate(added, 1):
        if one.like and one.like not in by_name:
            some = ", ".join(sorted(by_name)[:3]) or "a shape"
            raise InvalidInput(
                f"there is no node {one.like!r}",
                where="add-nodes",
                value=one.like,
                hint=f"name one of the nodes, such as {some}",
            )
        for place in range(1, one.count + 1):
            name = f"{one.like or 'added'}-more{number}-{place}"
            found.append(_copy(by_name.get(one.like), one.capacity, name))
    return found


def _copy(like: NodeFact | None, capacity: Mapping[str, int], name: str) -> NodeFact:
    if like is None:
        roomy = {"pods": 1_000, MEMORY: AMOUNT_MAX, CPU: 0}
        return NodeFact(name, f"uid-{name}", {**roomy, **capacity}, {HOSTNAME: name})
    labels = {**like.labels, HOSTNAME: name}
    return replace(like, name=name, uid=f"uid-{name}", labels=labels)


def with_weights(queues: Mapping[str, QueueRules], changes: Changes) -> dict[str, QueueRules]:
    """Return the rules of the queues with the changes.

    Raises
    ------
    InvalidInput
        There is no queue of a given name.
    """
    for name in (*changes.weights, *changes.factors):
        if name not in queues:
            raise InvalidInput(
                f"there is no queue {name!r}",
                where="queue-weight",
                value=name,
                hint=f"one of {', '.join(sorted(queues)[:20])}",
            )
    found = {}
    for name, rules in queues.items():
        weight = changes.weights.get(name, rules.weight) * changes.factors.get(name, 1)
        rules = replace(rules, weight=min(weight, WEIGHT_MAX))
        if changes.policy is not None:
            rules = replace(rules, policy_name=changes.policy, reservation_depth=None)
        found[name] = rules
    return found
