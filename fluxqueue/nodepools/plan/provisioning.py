"""Wait, or ask for nodes, and for which: the plan behind a cycle, for clusters with node pools.

The worker calls it after ``run_cycle``, inside the same transaction. Simulations call it as well.
A job gets new nodes if no present ones can hold it, or if the rule of its queue says so. Present
nodes are used first, then nodes under way, then new ones. Pure: time is an argument.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from decimal import Decimal

from fluxqueue.errors import InsufficientResources
from fluxqueue.fluxjob.provision import Provision
from fluxqueue.fluxjob.turns import Turns
from fluxqueue.graph.ledger.placement import Placement
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.graph.tell.blockers import write_time
from fluxqueue.jobspec import Jobspec
from fluxqueue.jobspec.shape import slot_kinds
from fluxqueue.nodepools.plan.coming_nodes import (
    ComingNodes,
    NodeRequest,
    NodesFound,
    PoolState,
    coming_nodes,
)
from fluxqueue.nodepools.plan.node_packing import Packing, PackingTask
from fluxqueue.nodepools.plan.node_plan import NodeAsk, NodePlan, describe_counts
from fluxqueue.nodepools.plan.packing_task import MovableJob, packed_placement, packing_task
from fluxqueue.nodepools.plan.plan_search import PlanTried, PlanVariant, PoolNames, search_cheaper
from fluxqueue.policy.limits import LimitUse
from fluxqueue.policy.provision_rules import NO_RULES, ProvisionRules, describe_price
from fluxqueue.scheduler.allowances import Allowances
from fluxqueue.scheduler.cycle_decisions import Decisions, Queues
from fluxqueue.scheduler.pending_job import PendingJob, amounts_of

JOBS_MAX = 50
"""The most jobs for which one cycle searches new nodes. Users take turns.

A job that only waits for a full pool needs no search, and does not count."""


@dataclass(frozen=True, slots=True)
class Supply:
    """The nodes that can be asked for.

    ``pools``: all pools, as they are now. ``requests``: everything that is under way, or has come
    and is not used yet. ``spent``: what the nodes of each queue cost now for an hour, beside those
    of ``requests``.
    """

    pools: Sequence[PoolState]
    requests: Sequence[NodeRequest]
    spent: Mapping[str, Decimal] = field(default_factory=dict)


def plan_nodes(
    matcher: Matcher,
    jobs: Sequence[PendingJob],
    decisions: Decisions,
    supply: Supply,
    now: int,
    *,
    queues: Queues | None = None,
    held: Mapping[str, Sequence[Placement]] | None = None,
    holds: dict[Jobspec, bool] | None = None,
) -> NodePlan:
    """Decide for which waiting jobs nodes are asked for, and which requests are withdrawn.

    Parameters
    ----------
    matcher : As the cycle left it, with its reservations in the plan. It is the same afterwards.
    jobs, decisions : The queue of the cycle in its order, and what the cycle decided.
    supply : Which nodes can come, and which ones do.
    now : Epoch seconds.
    queues : The rules of the queues, and what each uses already, both as ``run_cycle`` got them.
    held : What ``hold_nodes`` has reserved.
    holds : Whether present nodes can hold a request, as far as an earlier call with the same nodes
        has found out. What this call finds out is added.
    """
    pools, requests = supply.pools, supply.requests
    waiting = _waiting(jobs, decisions)
    started = {job.uid for job, _ in decisions.allocated}
    used = _used(requests, decisions)
    open_ = [one for one in requests if one not in used]
    known = {} if holds is None else holds

    def walk(variant: PlanVariant) -> PlanTried[NodePlan]:
        planner = _NodePlanner(
            *(matcher, decisions, pools, open_, now, queues or Queues()),
            *(supply.spent, variant.choices, known),
        )
        planner.plan.used = [one.number for one in used]
        with matcher.trying():
            planner.walk(_in_order(waiting, variant.first, pools), variant.packing)
            is_usual = not variant.choices and not variant.first
            return planner.tried(planner.task(waiting) if is_usual else None)

    with matcher.trying():
        for uid, placements in (held or {}).items():
            for placement in placements if uid not in started else ():
                matcher.unreserve(placement)
        return search_cheaper(walk).plan


def carry_over(
    last: NodePlan,
    jobs: Sequence[PendingJob],
    decisions: Decisions,
    requests: Sequence[NodeRequest],
) -> NodePlan:
    """Return what still holds of the last plan, for a cycle that makes none.

    It asks for nothing and withdraws nothing. A job that has started on what came uses it.
    """
    waiting = {job.uid for job in _waiting(jobs, decisions)}
    plan = NodePlan(used=[one.number for one in _used(requests, decisions)])
    plan.ready_at = {uid: at for uid, at in last.ready_at.items() if uid in waiting}
    plan.why = {uid: why for uid, why in last.why.items() if uid in waiting}
    return plan


def _waiting(jobs: Sequence[PendingJob], decisions: Decisions) -> list[PendingJob]:
    """Return the jobs that a cycle has left waiting, and that could use new nodes."""
    gone = {job.uid for job, _ in decisions.allocated} | decisions.barred
    gone |= decisions.making_way.keys()
    return [job for job in jobs if job.uid not in gone]


def _used(requests: Sequence[NodeRequest], decisions: Decisions) -> list[NodeRequest]:
    """Return the requests whose job has started on what came."""
    started = {job.uid: set(where.nodes) for job, where in decisions.allocated}
    return [one for one in requests if not started.get(one.uid, set()).isdisjoint(one.arrived)]


def _in_order(
    waiting: Sequence[PendingJob], first: Set[str], pools: Sequence[PoolState]
) -> Sequence[PendingJob]:
    """Return the jobs, those of ``first`` by the size of their slots, all others as they are."""
    if not first:
        return waiting
    by_size = sorted(
        (job for job in waiting if job.uid in first), key=lambda job: -_size(job.request, pools)
    )
    ordered = iter(by_size)
    return [next(ordered) if job.uid in first else job for job in waiting]


def _size(request: Jobspec, pools: Sequence[PoolState]) -> float:
    """Return the share of a node that the largest slot takes, on the largest nodes of all pools."""
    largest: dict[str, int] = {}
    for one in pools:
        for name, amount in one.pool.capacity.items():
            largest[name] = max(largest.get(name, 0), amount)
    needs = (need for kind in slot_kinds(request) for need in kind.needs)
    return max((amount / (largest.get(name) or 1) for name, amount in needs), default=0.0)


@dataclass(slots=True)
class _NodePlanner:
    """The state of one walk over the waiting jobs."""

    matcher: Matcher
    decisions: Decisions
    pools: Sequence[PoolState]
    requests: Sequence[NodeRequest]
    now: int
    queues: Queues
    spent: Mapping[str, Decimal]
    choices: Mapping[str, PoolNames] = field(default_factory=dict)
    """Jobs with pools that they try before all others."""
    _holds: dict[Jobspec, bool] = field(default_factory=dict)
    plan: NodePlan = field(default_factory=NodePlan)
    _chosen: dict[str, PoolNames] = field(default_factory=dict)
    _rivals: dict[str, list[PoolNames]] = field(default_factory=dict)
    _equals: dict[str, set[str]] = field(default_factory=dict)
    """The pools of the same rank as those of a job, which competed by price."""
    _tables: dict[tuple[str, ...], ComingNodes] = field(default_factory=dict)
    _booked: list[tuple[str, Placement]] = field(default_factory=list)
    _used: dict[str, tuple[str, int]] = field(default_factory=dict)
    """New nodes of this plan by name: the pool, and when it can be used."""
    _users: dict[int, str] = field(default_factory=dict)
    """The first job of this plan that uses nodes of a request, by the number of the request."""
    _states: dict[str, PoolState] = field(default_factory=dict)
    _rooms: dict[str, int] = field(default_factory=dict)
    _cost: dict[str, Decimal] = field(default_factory=dict)
    _failed: set[tuple[tuple[str, ...], Jobspec]] = field(default_factory=set)
    _allowances: Allowances = field(default_factory=Allowances)
    _limit_use: LimitUse = field(init=False)
    """What runs, is promised or is on order. It grows with this plan."""
    _counted: set[str] = field(default_factory=set)
    _searches: int = 0

    def walk(self, waiting: Sequence[PendingJob], packing: Packing | None = None) -> None:
        """Plan first what is under way, then a packing, then every other job in its turn."""
        owners = {one.uid for one in self.requests}
        present = [job for job in waiting if job.uid in owners]
        self._count(present)
        for job in present:
            self._plan_again(job)
        packed = set[str]() if packing is None else packing.nodes.keys()
        if packing is not None and not self._follow(waiting, packing):
            return
        starts = {job.uid: where.starts_at for job, where in self.decisions.reserved}
        turns, jobs = Turns[int](), {job.uid: job for job in waiting}
        for place, job in enumerate(waiting):
            if job.uid not in owners and self._may_want(job):
                turns.put(job.uid, job.user, place)
        left = JOBS_MAX
        while left > 0 and (batch := turns.take(left)):
            for job in map(jobs.__getitem__, batch):
                before = self._searches
                if self._wants(job, starts) and job.uid not in packed:
                    start = starts.get(job.uid)
                    if self._can_be_earlier(job, start):
                        self._plan_one(job, start)
                left -= self._searches > before
        self._give_up({job.uid for job in present})

    def tried(self, task: PackingTask | None) -> PlanTried[NodePlan]:
        """Return the plan for a comparison with others. Call it after ``walk``."""
        costs: dict[str, Decimal] = {}
        for one in self.plan.asks:
            costs[one.uid] = costs.get(one.uid, Decimal(0)) + one.price * one.count
        ready_at = self.plan.ready_at
        nodes = sum(len(one.matcher.ledger.names) for one in self._tables.values())
        effort = nodes * (1 + len(ready_at))
        return PlanTried(self.plan, costs, ready_at, self._chosen, self._rivals, effort, task)

    def _count(self, present: Sequence[PendingJob]) -> None:
        """Count what may still be asked for, what is spent, and what limits count.

        ``present``: the waiting jobs that have nodes under way.
        """
        self._limit_use = LimitUse.of(self.queues.use)
        for job, where in (*self.decisions.allocated, *self.decisions.reserved):
            self._count_job(job, len(set(where.nodes)))
        for job in present:
            self._count_job(job)
        self._states = {one.pool.name: one for one in self.pools}
        self._cost = dict(self.spent)
        coming = dict.fromkeys(self._states, 0)
        for one in self.requests:
            coming[one.pool] = coming.get(one.pool, 0) + one.coming
            cost = one.price * one.count
            self._cost[one.queue] = self._cost.get(one.queue, Decimal(0)) + cost
        for name, state in self._states.items():
            self._rooms[name] = max(0, state.pool.most - state.present - coming[name])

    def _count_job(self, job: PendingJob, nodes: int = 0) -> None:
        if job.uid not in self._counted:
            self._counted.add(job.uid)
            self._limit_use.add(job.queue, job.user, amounts_of(job, nodes))

    # --- which jobs ------------------------------------------------------------------------------

    def _rule(self, job: PendingJob) -> ProvisionRules:
        rules = self.queues.rules.get(job.queue)
        return NO_RULES if rules is None else rules.provision

    def _may_want(self, job: PendingJob) -> bool:
        """Return whether ``job`` may get new nodes, without a search for its start."""
        if job.provision is not Provision.WHEN_NEEDED:
            return job.provision is Provision.NOW
        return self._rule(job).earlier_s is not None or not self._can_be_held(job.request)

    def _wants(self, job: PendingJob, starts: dict[str, int]) -> bool:
        """Return whether new nodes could help ``job``. Its start on present nodes is noted."""
        if not self._can_be_held(job.request):
            return True
        if job.uid not in starts:
            # Reserve it, so that the jobs behind are planned behind it. ``trying`` forgets this.
            placement = self._later(job)
            if placement is not None:
                self.matcher.reserve(placement, self.now)
                starts[job.uid] = placement.starts_at
        return True

    def _can_be_earlier(self, job: PendingJob, start: int | None) -> bool:
        """Return whether the quickest pool could start ``job`` early enough to be worth it."""
        if start is None:
            return True
        earlier_s = 1 if job.provision is Provision.NOW else self._rule(job).earlier_s or 0
        soonest = min((one.wait_s for one in self.pools), default=0)
        return self.now + soonest + earlier_s <= start

    def _can_be_held(self, request: Jobspec) -> bool:
        """Return whether present nodes can hold it, now or later."""
        known = self._holds.get(request)
        if known is None:
            known = self._holds[request] = self.matcher.by_shares.is_satisfiable(request)
        return known

    def _later(self, job: PendingJob) -> Placement | None:
        self._searches += 1
        try:
            with self._allowances.deciding(self.matcher, job.user, job.request):
                return self.matcher.match_later(job.request, self.now)
        except InsufficientResources:
            return None
        except Exception:  # noqa: BLE001  its start is not known, and all other jobs go on
            return None

    # --- which nodes -----------------------------------------------------------------------------

    def _plan_again(self, job: PendingJob) -> None:
        """Plan a job for which nodes are under way. It gets no further ones.

        If what comes does not hold it, its requests fail in time. Asking for more nodes instead
        could go on up to the maximum of the pool.
        """
        found = self._try(job, (), None, [])
        if found is not None:
            self._take(job, (), found)
        own = [one for one in self.requests if one.uid == job.uid]
        late = max(self.now, *(one.ready_at for one in own))
        self.plan.ready_at[job.uid] = found.ready_at if found is not None else late
        for one in own:
            self._users.setdefault(one.number, job.uid)

    def _plan_one(self, job: PendingJob, start: int | None = None) -> None:
        """Plan ``job`` on the cheapest pools of the first rank that can hold it.

        ``start``: when it starts on present nodes, None if that is not known.
        """
        refused: list[str] = []
        best: tuple[Decimal, int, tuple[str, ...]] | None = None
        chosen: NodesFound | None = None
        best_rank: object = None
        rivals: list[PoolNames] = []
        equals: dict[object, set[str]] = {}
        for names, rank in self._choices(job):
            if best is not None and rank != best_rank:
                break
            equals.setdefault(rank, set()).update(names)
            found = self._try(job, names, start, refused)
            if found is None:
                continue
            if found.new and len(names) == 1:
                rivals.append(names)
            option = self._price(found), found.ready_at, names
            if best is None or option < best:
                if best is not None:
                    self._tables[best[2]].undo(job.uid)
                best, chosen, best_rank = option, found, rank
            else:
                self._tables[names].undo(job.uid)
        if best is not None and chosen is not None:
            self._equals[job.uid] = equals[best_rank]
            if chosen.new:
                self._chosen[job.uid], self._rivals[job.uid] = best[2], rivals
            self._take(job, best[2], chosen)
        elif refused and not self._can_be_held(job.request):
            self.plan.why[job.uid] = "; ".join(dict.fromkeys(refused))

    def _choices(self, job: PendingJob) -> Iterator[tuple[tuple[str, ...], object]]:
        """Yield the sets of pools to try, each with its rank. Equal ranks compete by price."""
        yield (), -1  # nodes under way may be enough
        if job.uid in self.choices:
            yield self.choices[job.uid], "chosen"
        allowed = self._rule(job).pools
        if allowed is not None:
            names = [name for name in allowed if name in self._states]
            yield from (((name,), place) for place, name in enumerate(names))
        else:
            ordered = sorted(
                self._states.values(), key=lambda one: (-one.pool.priority, one.pool.name)
            )
            yield from (((one.pool.name,), ("priority", one.pool.priority)) for one in ordered)
            # Together, the nodes of the cheapest pool are used first.
            ordered.sort(key=lambda one: (-one.pool.priority, one.pool.price, one.pool.name))
            names = [one.pool.name for one in ordered]
        if len(names) > 1:
            yield tuple(names), "together"

    def _try(
        self, job: PendingJob, names: tuple[str, ...], start: int | None, refused: list[str]
    ) -> NodesFound | None:
        """Return where ``job`` starts with new nodes of these pools, if they may be asked for."""
        states = [self._states[name] for name in names]
        resting = [one for one in states if one.retry_at > self.now]
        for one in resting:
            until = write_time(one.retry_at, self.now)
            refused.append(f"pool {one.pool.name} is asked again at {until}, because {one.why}")
        if resting:
            return None
        # What is free only shrinks during a walk: a request that did not fit never fits later.
        is_full = bool(names) and not any(self._left(one) for one in names)
        if is_full or (names, job.request) in self._failed:
            refused += [self._why_full(one) for one in states if self._is_bounded(one)]
            return None
        table = self._table(names)
        self._searches += 1
        try:
            with self._allowances.deciding(table.matcher, job.user, job.request):
                found = table.find(job.uid, job.request, self.now)
        except Exception:  # noqa: BLE001  one job less gets nodes, and all others go on
            table.undo(job.uid)
            return None
        if found is None:
            self._failed.add((names, job.request))
            refused += [self._why_full(one) for one in states if self._is_bounded(one)]
        elif not self._is_worth(job, found, start, refused):
            table.undo(job.uid)
            return None
        return found

    def _is_bounded(self, state: PoolState) -> bool:
        """Return whether a pool can bring fewer nodes now than it may have."""
        return self._rooms[state.pool.name] < state.pool.most

    def _why_full(self, state: PoolState) -> str:
        left = self._left(state.pool.name)
        return f"pool {state.pool.name} may have {state.pool.most} nodes, and {left} more can come"

    def _left(self, pool: str) -> int:
        """Return how many nodes of a pool nothing has asked for, in this plan or before."""
        return self._rooms[pool] - sum(one == pool for one, _ in self._used.values())

    def _is_worth(
        self, job: PendingJob, found: NodesFound, start: int | None, refused: list[str]
    ) -> bool:
        """Return whether the new nodes are within limits and budget, and come early enough."""
        if not found.new:
            return True
        over = self._why_over(job, found)
        if over is not None:
            refused.append(over)
            return False
        rule, price = self._rule(job), self._price(found)
        spent = self._cost.get(job.queue, Decimal(0))
        if rule.budget is not None and spent + price > rule.budget:
            left = describe_price(max(Decimal(0), rule.budget - spent))
            refused.append(
                f"{describe_counts(found.counts())} would cost {describe_price(price)} an hour,"
                f" and queue {job.queue} has {left} of its budget left"
            )
            return False
        if start is None:
            return True
        earlier_s = 1 if job.provision is Provision.NOW else rule.earlier_s
        return earlier_s is not None and found.ready_at + earlier_s <= start

    def _why_over(self, job: PendingJob, found: NodesFound) -> str | None:
        """Return the limit that ``job`` would exceed with its new nodes, or None."""
        rules = self.queues.rules.get(job.queue)
        if rules is None or job.uid in self._counted:
            return None
        amounts = amounts_of(job, len(set(found.placement.nodes)))
        return self._limit_use.why_over(rules, job.user, amounts)

    def _price(self, found: NodesFound) -> Decimal:
        """Return what its new nodes cost for an hour."""
        return sum((self._states[pool].pool.price for pool in found.new.values()), Decimal(0))

    def _ready_at(self, pool: str) -> int:
        """Return when a new node of a pool can be used (epoch seconds)."""
        return self.now + self._states[pool].wait_s

    def _table(self, names: tuple[str, ...]) -> ComingNodes:
        """Return the table of some pools. Everything that was planned before is booked there."""
        table = self._tables.get(names)
        if table is None:
            pools = [self._states[name] for name in names]
            table = self._tables[names] = coming_nodes(
                self.matcher.ledger, pools, self.requests, self._states, self._rooms, self.now
            )
            for name in self._used:
                self._use(table, name)
            for uid, placement in self._booked:
                table.book(uid, placement)
        return table

    def _use(self, table: ComingNodes, name: str) -> None:
        pool, ready_at = self._used[name]
        index = int(name.rpartition("/")[2])
        table.use(self._states[pool].pool.node(index), pool, ready_at)

    def _take(self, job: PendingJob, names: tuple[str, ...], found: NodesFound) -> None:
        """Put what was found into the plan, and into all tables."""
        self._booked.append((job.uid, found.placement))
        self._used |= {name: (pool, self._ready_at(pool)) for name, pool in found.new.items()}
        if found.new:
            self._count_job(job, len(set(found.placement.nodes)))
        for number in found.requests:
            self._users.setdefault(number, job.uid)
        if found.is_coming:
            self.plan.ready_at[job.uid] = found.ready_at
        kept = found.kept
        # One of the requests of a job keeps its present nodes: the one that takes longest.
        for pool, count in sorted(found.counts().items(), key=lambda one: -self._ready_at(one[0])):
            price = self._states[pool].pool.price
            ask = NodeAsk(job.uid, job.queue, pool, count, self._ready_at(pool), price, kept)
            self.plan.asks.append(ask)
            kept = ()
            self._cost[job.queue] = self._cost.get(job.queue, Decimal(0)) + price * count
        for other, table in self._tables.items():
            for name in found.new:
                self._use(table, name)
            if other != names:
                table.book(job.uid, found.placement)

    # --- several jobs together ---------------------------------------------------------------

    def task(self, waiting: Sequence[PendingJob]) -> PackingTask | None:
        """Return the jobs that get nodes as a packing. The tables cannot be used afterwards."""
        owners = {one.uid for one in self.requests}
        booked = dict(self._booked)
        jobs = [
            MovableJob(job.uid, job.request, self.plan.ready_at[job.uid], self._pools_for(job),
                       set(booked[job.uid].nodes))
            for job in waiting
            if job.uid in self.plan.ready_at and job.uid not in owners
        ]  # fmt: skip
        now_table = self._tables.get(())
        if not self._chosen or now_table is None:
            return None
        table = max((self._tables[one] for one in self._chosen.values()), key=lambda t: t.start)
        for one in jobs:
            now_table.undo(one.uid)
            table.undo(one.uid)
        names = sorted({name for one in jobs for name in one.pools})
        offers = [
            (self._states[name], self._rooms[name])
            for name in names
            if self._states[name].retry_at <= self.now
        ]
        return packing_task(jobs, now_table, table, offers, self.now)

    def _pools_for(self, job: PendingJob) -> set[str]:
        """Return the pools that may bring nodes for a job, as those that competed for it."""
        found = self._equals.get(job.uid)
        if found:
            return found
        # It uses nodes of other jobs. Its own would come from the pools that are tried first.
        ranks: dict[object, set[str]] = {}
        for names, rank in self._choices(job):
            ranks.setdefault(rank, set()).update(names)
        return next((names for names in ranks.values() if names), set())

    def _follow(self, waiting: Sequence[PendingJob], packing: Packing) -> bool:
        """Plan the jobs of a packing. Return False if one of them does not fit, or may not."""
        jobs = [job for job in waiting if job.uid in packing.nodes]
        pools = {job.uid: self._pools_until(packing, packing.due_at[job.uid]) for job in jobs}
        for names in {*pools.values()}:
            table = self._table(names)
            # The whole packing is booked, so that no job takes what is meant for another.
            for job in jobs:
                where = packed_placement(job.request, packing.nodes[job.uid], self.now)
                table.book(job.uid, where)
        for job in jobs:
            names = pools[job.uid]
            nodes = set(packing.nodes[job.uid])
            found = self._on(job, names, nodes, packing.due_at[job.uid])
            if found is None or not self._is_worth(job, found, None, []):
                return False
            self._equals[job.uid] = self._pools_for(job)
            if found.new:
                self._chosen[job.uid], self._rivals[job.uid] = names, []
            self._take(job, names, found)
        return True

    def _on(
        self, job: PendingJob, names: PoolNames, nodes: Set[str], due_at: int
    ) -> NodesFound | None:
        """Return where ``job`` starts on these new nodes, on which it is booked so far."""
        table = self._table(names)
        table.undo(job.uid)
        try:
            with self._allowances.deciding(table.matcher, job.user, job.request):
                return table.find_on(job.uid, job.request, nodes, due_at, self.now)
        except Exception:  # noqa: BLE001  the plan without the packing counts
            return None

    def _pools_until(self, packing: Packing, due_at: int) -> PoolNames:
        """Return the pools of a packing that bring nodes until a time, the cheapest first."""
        names = {name.rpartition("/")[0] for nodes in packing.nodes.values() for name in nodes}
        pools = [one.pool for one in map(self._states.get, names)
                 if one is not None and self.now + one.wait_s <= due_at]  # fmt: skip
        pools.sort(key=lambda one: (-one.priority, one.price, one.name))
        return tuple(one.name for one in pools)

    def _give_up(self, waiting: set[str]) -> None:
        """Give requests of jobs that wait no more to others that use them, or withdraw them."""
        for one in self.requests:
            if one.uid in waiting:
                continue
            user = self._users.get(one.number)
            if user is None:
                self.plan.withdrawn.append(one.number)
            else:
                self.plan.moved[one.number] = user
