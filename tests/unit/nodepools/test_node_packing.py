"""The cheapest nodes for a few jobs together: rules, bounds, and what is proven."""

from __future__ import annotations

from decimal import Decimal

from fluxqueue.nodepools.plan.node_packing import (
    JobToPack,
    NodeKind,
    PackingTask,
    cheapest_packing,
)

ALL = frozenset({"small", "large", "there"})


def _kind(name: str, *free: int, price: str = "0", most: int = 3, ready_at: int = 60) -> NodeKind:
    names = tuple(f"{name}/{number}" for number in range(most)) if most else (name,)
    return NodeKind(name, free, ready_at, Decimal(price), names, is_new=most > 0)


def _job(uid: str, count: int, *needs: int, due_at: int = 60, **more: bool) -> JobToPack:
    return JobToPack(uid, needs, count, due_at, ALL, ALL, **more)


def _price(jobs: list[JobToPack], kinds: list[NodeKind], below: str = "100") -> Decimal | None:
    found = cheapest_packing(PackingTask(jobs, kinds), Decimal(below))
    assert found.is_proven
    return found.cost if found.nodes else None


SMALL, LARGE = _kind("small", 4, 8, price="3.10"), _kind("large", 8, 16, price="5")


def test_jobs_share_a_node_that_is_cheaper() -> None:
    """Both resources count. Every unit has a node, in the order of the units."""
    assert _price([_job("a", 1, 4, 8)], [SMALL, LARGE]) == Decimal("3.10")
    assert _price([_job("a", 1, 4, 8), _job("b", 1, 4, 8)], [SMALL, LARGE]) == 5
    assert _price([_job("a", 1, 4, 9), _job("b", 1, 4, 9)], [SMALL, LARGE]) == 10
    found = cheapest_packing(PackingTask([_job("a", 3, 4, 8)], [SMALL, LARGE]), Decimal(100))
    assert sorted(found.nodes["a"]) == ["large/0", "large/0", "small/0"]


def test_nothing_is_found_that_costs_as_much() -> None:
    """A plan of the same price stays as it is."""
    assert _price([_job("a", 1, 4, 8)], [SMALL], below="3.10") is None


def test_nodes_that_are_there_cost_nothing() -> None:
    """They are used if they are ready in time."""
    there = _kind("there", 4, 8, most=0, ready_at=90)
    assert _price([_job("a", 1, 4, 8, due_at=90)], [SMALL, there]) == 0
    assert _price([_job("a", 1, 4, 8, due_at=60)], [SMALL, there]) == Decimal("3.10")


def test_nodes_of_its_own() -> None:
    """One unit on a node, or no other job on its nodes."""
    assert _price([_job("a", 2, 1, 1, is_distinct=True)], [SMALL]) == Decimal("6.20")
    other = _job("b", 1, 1, 1)
    assert _price([_job("a", 2, 1, 1, is_whole=True), other], [SMALL]) == Decimal("6.20")
    assert _price([_job("a", 2, 1, 1, is_whole=True)], [SMALL]) == Decimal("3.10")


def test_only_its_pools_bring_nodes_for_a_job() -> None:
    """It may use what they bring for others."""
    bound = JobToPack("b", (4, 8), 1, 60, frozenset({"small"}), ALL)
    assert _price([bound], [LARGE]) is None
    assert _price([_job("a", 1, 4, 8), bound], [LARGE, SMALL]) == 5
    stranger = JobToPack("c", (4, 8), 1, 60, ALL, frozenset({"small"}))
    assert _price([_job("a", 1, 4, 8), stranger], [LARGE, SMALL]) == Decimal("6.20")


def test_the_steps_are_limited() -> None:
    """What was found by then counts, and is not called the cheapest."""
    jobs = [_job(str(n), 4, 1 + n % 3, 2 + n % 4) for n in range(9)]
    kinds = [_kind("small", 7, 11, price="5", most=30), _kind("large", 13, 17, price="9", most=30)]
    found = cheapest_packing(PackingTask(jobs, kinds), Decimal(1000), 200)
    assert not found.is_proven
    assert found.cost < 1000
    assert sum(len(nodes) for nodes in found.nodes.values()) == 36


def test_nodes_that_are_left_out_prove_nothing() -> None:
    task = PackingTask([_job("a", 1, 4, 8)], [SMALL], is_complete=False)
    assert not cheapest_packing(task, Decimal(100)).is_proven
