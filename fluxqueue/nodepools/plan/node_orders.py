"""A pool as its row has it, and what its provider has to bring.

``db.store.node_pools`` makes both from rows. The plan reads the first, and providers fulfil the
second. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fluxqueue.errors import InvalidInput
from fluxqueue.nodepools.plan.coming_nodes import PoolState
from fluxqueue.nodepools.pool import LEARNED_MAX, NodePool, read_node_pool

BACKOFF_S, BACKOFF_MAX_S = 60, 3600
"""How long a pool is left alone after its first failure in a row, and at most."""


@dataclass(frozen=True, slots=True)
class OrderedNodes:
    """A request as its provider needs it. ``arrived``: the names of nodes that have come."""

    number: int
    count: int
    arrived: tuple[str, ...]

    @property
    def coming(self) -> int:
        """Return the number of nodes that have yet to come."""
        return max(0, self.count - len(self.arrived))


@dataclass(frozen=True, slots=True)
class PoolOrder:
    """What the provider of a pool has to bring.

    ``present``: the names of the nodes that the pool has. ``returning``: those of them that it is
    to take back. ``ended``: requests that ended, and that the provider has not taken back yet.
    ``jobs``: the job of each open request, namespace/name. ``stored`` is None if the pool was
    deleted, or has another provider by now. The former provider then only takes back.
    """

    pool: NodePool
    open: tuple[OrderedNodes, ...] = ()
    present: tuple[str, ...] = ()
    returning: tuple[str, ...] = ()
    ended: tuple[OrderedNodes, ...] = ()
    stored: StoredPool | None = None
    jobs: Mapping[int, str] = field(default_factory=dict)

    @property
    def coming(self) -> int:
        """Return the number of nodes that have yet to come."""
        return sum(one.coming for one in self.open)


@dataclass(frozen=True, slots=True)
class UnsettledRequest:
    """A request that is open, or that ended and was not taken back yet.

    ``pool_spec``: that of its pool when it was made. ``job``: namespace/name, or nothing.
    """

    number: int
    pool: str
    count: int
    is_ended: bool
    pool_spec: Any
    job: str
    arrived: Sequence[str]

    def as_ordered(self) -> OrderedNodes:
        """Return it as its provider needs it."""
        return OrderedNodes(self.number, self.count, tuple(self.arrived))


@dataclass(frozen=True, slots=True)
class StoredPool:
    """A pool as its row has it: ``learned`` are measured seconds, ``retry_at`` epoch seconds."""

    pool: NodePool
    learned: tuple[int, ...] = ()
    failures: int = 0
    retry_at: int = 0
    why: str = ""

    def state(self, present: int) -> PoolState:
        """Return the pool for the plan. ``present``: the number of its nodes."""
        wait_s = self.pool.expected_s(self.learned)
        return PoolState(self.pool, present, wait_s, self.retry_at, self.why)

    def order(
        self,
        requests: Sequence[UnsettledRequest],
        nodes: Mapping[str, str],
        returning: Collection[str],
    ) -> PoolOrder:
        """Return what its provider has to do.

        Parameters
        ----------
        requests : those of all pools that present providers fulfil or take back.
        nodes : the pool of each node by name.
        returning : nodes that their providers take back.
        """
        own = [one for one in requests if one.pool == self.pool.name]
        present = tuple(sorted(node for node, pool in nodes.items() if pool == self.pool.name))
        return PoolOrder(
            self.pool,
            tuple(one.as_ordered() for one in own if not one.is_ended),
            present,
            tuple(node for node in present if node in returning),
            tuple(one.as_ordered() for one in own if one.is_ended),
            self,
            {one.number: one.job for one in own if not one.is_ended},
        )

    def after(self, took_s: Sequence[int], why: str | None, now: int) -> StoredPool:
        """Return the pool after new nodes took ``took_s`` seconds each, and a failure or none.

        ``why``: why it has failed. None: it has not, and the next request needs no pause.
        """
        failures = 0 if why is None else self.failures + 1
        return replace(
            self,
            learned=(*self.learned, *took_s)[-LEARNED_MAX:],
            failures=failures,
            retry_at=0 if why is None else now + backoff_s(failures),
            why=why or "",
        )


def backoff_s(failures: int) -> int:
    """Return how long a pool is left alone after ``failures`` failures in a row, in seconds."""
    return min(BACKOFF_MAX_S, BACKOFF_S << min(failures - 1, 10)) if failures > 0 else 0


def former_pools(
    requests: Sequence[UnsettledRequest], pools: Mapping[str, NodePool]
) -> tuple[list[tuple[NodePool, list[UnsettledRequest]]], set[int]]:
    """Return the requests that the present providers cannot take back, by their former pools.

    The second value has the numbers of those that nothing can take back: their pool is gone, and
    this release cannot read how it was.
    """
    found: list[tuple[NodePool, list[UnsettledRequest]]] = []
    lost: set[int] = set()
    for one in requests:
        present = pools.get(one.pool)
        try:
            pool = read_node_pool(one.pool, one.pool_spec)
        except InvalidInput:
            if present is None:
                lost.add(one.number)
            continue
        if present is not None and present.has_provider_of(pool):
            continue
        same = (r for p, r in found if p.name == pool.name and p.has_provider_of(pool))
        own = next(same, None)
        if own is None:
            found.append((replace(pool, least=0), [one]))
        else:
            own.append(one)
    return found, lost
