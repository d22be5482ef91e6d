"""Node pools in a simulation: nodes come after their provisioning time, and idle ones go.

``Engine`` calls it. Which nodes are asked for, and what becomes of requests, is production code.
Every request is fulfilled in time, and a node goes after it was idle for the idle time of its pool.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from decimal import Decimal

from fluxqueue.errors import InvalidSettings
from fluxqueue.fluxjob.request import CPU
from fluxqueue.graph.ledger.placement import Placement
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.nodepools.plan.coming_nodes import NodeRequest, PoolState, Reach
from fluxqueue.nodepools.plan.node_plan import hold_nodes
from fluxqueue.nodepools.plan.node_requests import idle_nodes, review_requests
from fluxqueue.nodepools.plan.provisioning import Supply, plan_nodes
from fluxqueue.nodepools.pool import NODES_MAX, NodePool
from fluxqueue.policy.provision_rules import NO_RULES, ProvisionRules, parse_price
from fluxqueue.scheduler.cycle_decisions import Decisions, Queues
from fluxqueue.scheduler.pending_job import PendingJob
from fluxqueue.workload.annotations import parse_duration

IDLE_S = 600
HOUR_S = 3600


@dataclass(slots=True)
class GrowingCluster:
    """The pools of one run, their nodes, and what they have cost.

    ``node_s``: the seconds of all nodes that pools have brought.
    """

    matcher: Matcher
    pools: Sequence[NodePool]
    rule: ProvisionRules
    node_s: int = 0
    most: int = 0
    asked: int = 0
    cost: Decimal = Decimal(0)
    _requests: list[NodeRequest] = field(default_factory=list)
    _due: list[tuple[int, int, str]] = field(default_factory=list)
    _nodes: dict[str, tuple[NodePool, int]] = field(default_factory=dict)
    _fresh: dict[str, str] = field(default_factory=dict)
    _idle_since: dict[str, int] = field(default_factory=dict)
    _paid: list[tuple[NodePool, int]] = field(default_factory=list)
    _used: list[NodeRequest] = field(default_factory=list)
    _held: Mapping[str, Sequence[Placement]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Let the matcher judge requests with the pools, and bring the least nodes of each."""
        if self.pools:
            self.matcher.further = Reach(self.matcher.ledger, self.pools)
        for pool in self.pools:
            for _ in range(pool.least):
                self._add(pool, 0)
        self._fresh.clear()

    def _add(self, pool: NodePool, now: int) -> None:
        self.asked += 1
        name = f"{pool.name}-{self.asked}"
        fact = replace(pool.node(0), name=name, uid=name, labels=dict(pool.labels))
        self.matcher.set_node(fact, {})
        self._nodes[name] = pool, now
        self._fresh[name] = pool.name
        self.most = max(self.most, len(self._nodes))

    def arrive(self, now: int) -> None:
        """Bring the nodes that are due, unless their request has ended."""
        open_ = {one.number for one in self._requests}
        by_name = {one.name: one for one in self.pools}
        while self._due and self._due[0][0] <= now:
            _, number, pool = heapq.heappop(self._due)
            if number in open_:
                self._add(by_name[pool], now)

    def begin(self, running: Set[str], now: int) -> Mapping[str, Sequence[Placement]]:
        """Assign what has come, and hold it. Return the reservations by UID. The plan is empty."""
        review = review_requests(self._requests, self._fresh, running, {}, now)
        self._requests, self._fresh = review.requests, {}
        self._held = hold_nodes(self.matcher, self._requests, now)
        return self._held

    def finish(
        self,
        queue: Sequence[PendingJob],
        decisions: Decisions,
        queues: Queues,
        running: Set[str],
        now: int,
    ) -> list[int]:
        """Ask for nodes after a cycle, and remove idle ones. Return when to look again."""
        counts = Counter(pool.name for pool, _ in self._nodes.values())
        states = [PoolState(one, counts[one.name], one.provisioning_s) for one in self.pools]
        own = {
            name: one if one.provision != NO_RULES else replace(one, provision=self.rule)
            for name, one in queues.rules.items()
        }
        held = {uid: placed for uid, placed in self._held.items() if uid not in running}
        requests = self._requests
        plan = plan_nodes(
            self.matcher,
            queue,
            decisions,
            Supply(states, requests, spent=self._spent(running)),
            now,
            queues=Queues(own, queues.use),
            held=held,
        )
        self._used += [one for one in requests if one.number in plan.used]
        ended = {*plan.used, *plan.withdrawn}
        self._requests = [
            replace(one, uid=plan.moved.get(one.number, one.uid))
            for one in requests
            if one.number not in ended
        ]
        for ask in plan.asks:
            self.asked += 1
            self._requests.append(ask.request(self.asked, now))
            for _ in range(ask.count):
                heapq.heappush(self._due, (ask.ready_at, self.asked, ask.pool))
        return [*{at for at, _, _ in self._due if at > now}, *self._remove_idle(now)]

    def _spent(self, running: Set[str]) -> dict[str, Decimal]:
        """Return what the nodes of running jobs cost for an hour, by queue."""
        self._used = [one for one in self._used if one.uid in running]
        found: dict[str, Decimal] = {}
        for one in self._used:
            found[one.queue] = found.get(one.queue, Decimal(0)) + one.price * one.count
        return found

    def _remove_idle(self, now: int) -> list[int]:
        """Remove nodes that were idle for long enough. Return when the next ones may be."""
        counts = Counter(pool.name for pool, _ in self._nodes.values())
        idle = idle_nodes(self.matcher.ledger, sorted(self._nodes))
        self._idle_since = {name: self._idle_since.get(name, now) for name in idle}
        again = set[int]()
        for name, since in list(self._idle_since.items()):
            pool, born = self._nodes[name]
            goes_at = since + (IDLE_S if pool.idle_s is None else pool.idle_s)
            if counts[pool.name] <= pool.least:
                continue
            if goes_at > now:
                again.add(goes_at)
                continue
            counts[pool.name] -= 1
            self._pay(pool, now - born)
            self.matcher.remove_node(name)
            del self._nodes[name], self._idle_since[name]
        return sorted(again)

    @property
    def cpu_s(self) -> int:
        """Return the millicore-seconds of all nodes that pools have brought."""
        return sum(pool.capacity.get(CPU, 0) * s for pool, s in self._paid)

    def close(self, now: int) -> None:
        """Pay for the nodes that are left at the end."""
        for pool, born in self._nodes.values():
            self._pay(pool, now - born)

    def _pay(self, pool: NodePool, seconds: int) -> None:
        self.node_s += seconds
        self._paid.append((pool, seconds))
        self.cost += pool.price * seconds / HOUR_S


def parse_pool(text: str, cores: int) -> NodePool:
    """Read ``gpu=0..16,4m,3.10``: the name, least and most nodes, their time and their price.

    A node has ``cores`` cores.

    Raises
    ------
    InvalidSettings
        It is something else.
    """
    name, _, rest = text.partition("=")
    bounds, *more = rest.split(",")
    least, _, most = bounds.partition("..")
    is_whole = least.isdecimal() and most.isdecimal() and int(least) <= int(most) <= NODES_MAX
    if not name or not is_whole or not 1 <= len(more) <= 2:
        raise InvalidSettings(
            f"{text!r} is no node pool",
            where="--pool",
            value=text,
            hint="NAME=MIN..MAX,TIME or NAME=MIN..MAX,TIME,PRICE, such as gpu=0..16,4m,3.10",
        )
    price = more[1] if len(more) > 1 else "0"
    return NodePool(
        name,
        {CPU: cores * 1000},
        {"pool": name},
        int(most),
        parse_duration(more[0], "--pool"),
        "placeholder",
        least=int(least),
        price=parse_price(price, "--pool"),
    )
