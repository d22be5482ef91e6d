"""Which policy counts for each node, and what it gives there now.

The worker that matches owns one ``NodeSharing``, beside its matcher. ``db.store.matcher_rows`` asks
it for each node that it reads. A policy that fails is set aside for that node. Matching goes on.
Pure: the callers pass times.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from types import MappingProxyType

from fluxqueue.fluxjob.node import ForeignPod, NodeFact
from fluxqueue.policy.sharing.arithmetic import Amounts, less, used_by
from fluxqueue.policy.sharing.rules import SAID_MAX, SharingRule

RULES_MAX = 100
"""The most policies in force. Each node may compare its labels with all of them."""

WHY_MAX = 200
"""The longest text of a policy that a reason quotes."""


@dataclass(frozen=True, slots=True)
class NodeGrant:
    """What a policy gives on one node, checked: amounts are between nothing and the capacity.

    ``withheld`` is what jobs may have at best, but not now. ``permanent`` is the part of it that
    unmanaged pods use which end only with the node. ``violations`` are pods as namespace/name.
    ``is_tainted``: the policy wants the node to have the taint of dedicated nodes.
    """

    policy: str
    capacity: Mapping[str, int]
    now: Mapping[str, int]
    at_best: Mapping[str, int]
    permanent: Mapping[str, int]
    why: str = ""
    violations: tuple[str, ...] = ()
    is_tainted: bool = False
    again_at: int | None = None

    @property
    def withheld(self) -> Amounts:
        """Return what jobs may have there at best, but not now."""
        return {name: amount - self.now[name] for name, amount in self.at_best.items()}


class NodeSharing:
    """The rules in force, and what each gives.

    ``set_aside``: policy -> why it is not in force. ``failures``: (policy, node) -> the error.
    """

    def __init__(self) -> None:
        self.rules: tuple[SharingRule, ...] = ()
        self.grants: dict[str, NodeGrant] = {}
        self.set_aside: dict[str, str] = {}
        self.failures: dict[tuple[str, str], str] = {}
        self._first: dict[str, tuple[Mapping[str, str], SharingRule | None]] = {}
        self._next_at: int | None = None

    def set_rules(self, rules: Iterable[SharingRule], unreadable: Mapping[str, str]) -> None:
        """Replace all rules. ``unreadable``: policies without a rule, with the reason.

        Every node must be asked again after this. Until then it has its former grant.
        """
        ordered = sorted(rules, key=lambda rule: rule.place)
        self.rules = tuple(ordered[:RULES_MAX])
        late = f"{RULES_MAX} policies come before it, and no more are in force"
        self.set_aside = {rule.name: late for rule in islice(ordered, RULES_MAX, None)}
        self.set_aside |= unreadable
        self.failures.clear()
        self._first.clear()

    def is_governed(self, fact: NodeFact) -> bool:
        """Return whether a policy counts for a node."""
        return bool(self.rules) and self._rule(fact) is not None

    def grant(self, fact: NodeFact, pods: Sequence[ForeignPod], now: int) -> NodeGrant | None:
        """Return what jobs may have of a node. None: what unmanaged pods leave.

        A policy that fails keeps what it last gave there. Without that, the next policy counts.
        """
        former = self.grants.pop(fact.name, None)
        first = self._rule(fact) if self.rules else None
        found = None if first is None else self._ask(first, fact, pods, now, former)
        if first is not None and found is None:
            others = (rule for rule in self._matching(fact) if rule is not first)
            asked = (self._ask(rule, fact, pods, now, former) for rule in others)
            found = next((one for one in asked if one is not None), None)
        if found is not None:
            self.grants[fact.name] = found
            if found.again_at is not None:
                self._next_at = min(found.again_at, self._next_at or found.again_at)
        return found

    def forget(self, node: str) -> None:
        """Forget a node that is gone."""
        self.grants.pop(node, None)
        self._first.pop(node, None)
        for key in [one for one in self.failures if one[1] == node]:
            del self.failures[key]

    def is_due(self, now: int) -> bool:
        """Return whether a policy wants to be asked again although nothing has changed."""
        return self._next_at is not None and self._next_at <= now

    def take_due(self, now: int) -> list[str]:
        """Return the nodes of which a policy wants to be asked again. They are asked next."""
        if not self.is_due(now):
            return []
        times = {name: one.again_at for name, one in self.grants.items() if one.again_at}
        self._next_at = min((at for at in times.values() if at > now), default=None)
        return [name for name, at in times.items() if at <= now]

    def _rule(self, fact: NodeFact) -> SharingRule | None:
        known = self._first.get(fact.name)
        if known is None or known[0] != fact.labels:
            known = fact.labels, next(self._matching(fact), None)
            self._first[fact.name] = known
        return known[1]

    def _matching(self, fact: NodeFact) -> Iterator[SharingRule]:
        return (rule for rule in self.rules if rule.nodes.matches(fact.labels))

    def _ask(
        self,
        rule: SharingRule,
        fact: NodeFact,
        pods: Sequence[ForeignPod],
        now: int,
        former: NodeGrant | None,
    ) -> NodeGrant | None:
        try:
            found = _asked(rule, fact, pods, now)
        except (Exception, SystemExit) as error:  # noqa: BLE001  another package: it stops no cycle
            text = f"{type(error).__name__}: {error}"[:SAID_MAX]
            self.failures[rule.name, fact.name] = text
            is_its = former is not None and former.policy == rule.name
            return former if is_its else None
        self.failures.pop((rule.name, fact.name), None)
        return found


def _asked(rule: SharingRule, fact: NodeFact, pods: Sequence[ForeignPod], now: int) -> NodeGrant:
    """Ask a policy, and check its answer."""
    # A copy: a policy of another package may change what it is given.
    capacity = dict(fact.capacity)
    grant = rule.policy.grant(fact, MappingProxyType(capacity), pods, now)
    present = _checked(grant.now, less(capacity, used_by(pods)), capacity, "now")
    at_best = _checked(grant.at_best, capacity, capacity, "at_best")
    best = {name: max(amount, present[name]) for name, amount in at_best.items()}
    again_at = grant.again_at
    if again_at is not None:
        again_at = max(_whole(again_at, "again_at"), now + 1)
    return NodeGrant(
        policy=rule.name,
        capacity=capacity,
        now=present,
        at_best=best,
        permanent=_permanent(rule, fact, capacity, pods, now, best),
        why=str(grant.why)[:WHY_MAX],
        violations=tuple(f"{pod.namespace}/{pod.name}" for pod in grant.violations),
        is_tainted=grant.is_tainted is True,
        again_at=again_at,
    )


def _permanent(
    rule: SharingRule,
    fact: NodeFact,
    capacity: Mapping[str, int],
    pods: Sequence[ForeignPod],
    now: int,
    best: Amounts,
) -> Amounts:
    """Return what DaemonSet pods and static pods withhold for good, if only they are there."""
    lasting = [pod for pod in pods if pod.is_permanent]
    if not lasting:
        return {}
    grant = rule.policy.grant(fact, MappingProxyType(dict(capacity)), lasting, now)
    alone = _checked(grant.now, less(capacity, used_by(lasting)), capacity, "now")
    return {name: max(0, amount - alone[name]) for name, amount in best.items()}


def _checked(
    found: Mapping[str, int], default: Mapping[str, int], capacity: Mapping[str, int], what: str
) -> Amounts:
    """Return an amount for each resource of the node, between nothing and all of it."""
    return {
        name: max(0, min(_whole(found.get(name, default[name]), f"{what}.{name}"), most))
        for name, most in capacity.items()
    }


def _whole(value: object, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{what} is {value!r}, not a whole number")
    return value
