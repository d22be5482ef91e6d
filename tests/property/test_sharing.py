"""Sharing policies: their arithmetic over random nodes, pods and portions, and what NodeSharing
makes of policies that answer anything at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import hypothesis.strategies as st
from hypothesis import assume, given

from fluxqueue.fluxjob.node import ForeignPod, NodeFact
from fluxqueue.fluxjob.request import CPU, MEMORY
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.policy.label_selector import read_selector
from fluxqueue.policy.sharing.arithmetic import Portion, used_by
from fluxqueue.policy.sharing.built_in import Dedicated, Headroom, Partition, Subtract
from fluxqueue.policy.sharing.interface import Grant, SharingPolicy
from fluxqueue.policy.sharing.node_grants import NodeGrant, NodeSharing
from fluxqueue.policy.sharing.rules import SharingRule

NAMES = (CPU, MEMORY, "nvidia.com/gpu")
NOW = 1_700_000_000

amounts = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 2**40), max_size=3)
capacities = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 2**40), min_size=1)
shares = st.fractions(0, 1, max_denominator=1000)
portions = st.one_of(
    st.builds(lambda amount: Portion(amount=amount), st.integers(0, 2**41)),
    st.builds(lambda share: Portion(share=share), shares),
)
named_portions = st.dictionaries(st.sampled_from(NAMES), portions, min_size=1)
policies: st.SearchStrategy[SharingPolicy] = st.one_of(
    st.just(Subtract()),
    st.just(Dedicated()),
    st.builds(Headroom, named_portions),
    st.builds(Partition, named_portions),
)


def pods(least: int = 0) -> st.SearchStrategy[list[ForeignPod]]:
    def of(found: list[tuple[dict[str, int], bool]]) -> list[ForeignPod]:
        return [
            ForeignPod(f"u{n}", "theirs", f"p{n}", "n", one, is_permanent=lasts)
            for n, (one, lasts) in enumerate(found)
        ]

    return st.lists(st.tuples(amounts, st.booleans()), min_size=least, max_size=4).map(of)


def asked(
    policy: SharingPolicy, capacity: Mapping[str, int], there: Sequence[ForeignPod]
) -> NodeGrant:
    """What NodeSharing gives by one policy for all nodes."""
    sharing = NodeSharing()
    sharing.set_rules([SharingRule("p", 0, read_selector({}, ""), policy)], {})
    found = sharing.grant(NodeFact("n", "u", capacity), there, NOW)
    assert found is not None
    assert not sharing.failures
    return found


@given(policies, capacities, pods())
def test_jobs_never_get_what_others_use(
    policy: SharingPolicy, capacity: dict[str, int], there: list[ForeignPod]
) -> None:
    """Nothing below zero, nothing above the capacity, and no resource is given twice."""
    found, used = asked(policy, capacity, there), used_by(there)
    for name, whole in capacity.items():
        assert 0 <= found.now[name] <= found.at_best[name] <= whole
        assert found.now[name] + min(used.get(name, 0), whole) <= whole
        assert found.withheld[name] >= found.permanent.get(name, 0) >= 0


@given(policies, capacities, pods(1))
def test_a_further_pod_never_gives_more(
    policy: SharingPolicy, capacity: dict[str, int], there: list[ForeignPod]
) -> None:
    fewer, all_there = asked(policy, capacity, there[1:]), asked(policy, capacity, there)
    assert fewer.at_best == all_there.at_best
    for name in capacity:
        assert all_there.now[name] <= fewer.now[name]


@given(named_portions, capacities, pods())
def test_headroom_stays_free(
    kept: dict[str, Portion], capacity: dict[str, int], there: list[ForeignPod]
) -> None:
    """What jobs have and unmanaged pods use leaves the headroom, where the pods alone leave it."""
    found, used = asked(Headroom(kept), capacity, there), used_by(there)
    for name, whole in capacity.items():
        one = kept.get(name, Portion(amount=0))
        least = one.amount if one.share is None else one.share * whole
        assert least is not None
        free = whole - used.get(name, 0) - found.now[name]
        assert free >= min(least, whole) or found.now[name] == 0
        assert found.at_best[name] <= max(Fraction(0), whole - least)


@given(named_portions, capacities, pods())
def test_a_partition_is_never_exceeded_and_never_starved(
    part: dict[str, Portion], capacity: dict[str, int], there: list[ForeignPod]
) -> None:
    """Jobs get all of their part as long as the others stay within theirs."""
    found, used = asked(Partition(part), capacity, there), used_by(there)
    for name, whole in capacity.items():
        one = part.get(name, Portion(share=Fraction(1)))
        most = one.amount if one.share is None else one.share * whole
        assert most is not None
        assert found.now[name] <= found.at_best[name] <= most
        assert found.at_best[name] > min(most, whole) - 1, "less than one base unit is lost"
        if used.get(name, 0) <= whole - found.at_best[name]:
            assert found.now[name] == found.at_best[name]


@given(capacities, pods())
def test_subtract_is_the_arithmetic_of_nodes_without_a_policy(
    capacity: dict[str, int], there: list[ForeignPod]
) -> None:
    used = used_by(there)
    assume(all(used.get(name, 0) <= whole for name, whole in capacity.items()))
    found = asked(Subtract(), capacity, there)
    plain, by_policy = ShareLedger(), ShareLedger()
    plain.set_node(NodeFact("n", "u", capacity), used)
    by_policy.set_node(NodeFact("n", "u", found.at_best), found.withheld)
    for name in capacity:
        values = [
            (int(one.capacity[0, at]), int(one.foreign[0, at]), int(one.now.free[0, at]))
            for one in (plain, by_policy)
            for at in [one.columns[name]]
        ]
        assert values[0] == values[1]


@given(pods())
def test_dedicated_counts_pods_that_may_leave(there: list[ForeignPod]) -> None:
    found = asked(Dedicated(), {CPU: 1000}, there)
    assert found.violations == tuple(f"theirs/{p.name}" for p in there if not p.is_permanent)


# --- policies of other packages ------------------------------------------------------------------

anything = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
    lambda below: st.one_of(
        st.lists(below, max_size=3),
        st.dictionaries(st.sampled_from((*NAMES, "x")), below, max_size=3),
    ),
    max_leaves=6,
)


@dataclass(frozen=True)
class Answers:
    """A policy that answers or raises what it was made with."""

    answer: Any

    def grant(self, *_: Any) -> Grant:
        if isinstance(self.answer, type):
            raise self.answer
        return self.answer  # type: ignore[no-any-return]


answers = st.one_of(
    anything,
    st.sampled_from((ValueError, RecursionError, SystemExit, MemoryError, StopIteration)),
    st.builds(Grant, now=anything, at_best=anything, why=anything, again_at=anything),  # type: ignore[arg-type]
    st.builds(Grant, violations=anything),  # type: ignore[arg-type]
    st.builds(Grant, now=amounts, at_best=amounts, again_at=st.integers(0, 2 * NOW)),
)


@given(answers, capacities, pods())
def test_no_answer_of_a_policy_stops_anything(
    answer: Any, capacity: dict[str, int], there: list[ForeignPod]
) -> None:
    """It is in bounds, or set aside with its reason: then the next policy counts."""
    every = read_selector({}, "")
    sharing = NodeSharing()
    rules = [
        SharingRule("bad", 1, every, Answers(answer)),
        SharingRule("good", 2, every, Subtract()),
    ]
    sharing.set_rules(rules, {})
    fact = NodeFact("n", "u", capacity)
    found = sharing.grant(fact, there, NOW)
    assert found is not None
    assert (found.policy == "good") == (("bad", "n") in sharing.failures)
    for name, whole in capacity.items():
        assert 0 <= found.now[name] <= found.at_best[name] <= whole
    assert found.again_at is None or found.again_at > NOW
    assert fact.capacity == capacity


@given(answers, capacities)
def test_a_policy_that_fails_keeps_what_it_gave(answer: Any, capacity: dict[str, int]) -> None:
    every = read_selector({}, "")
    sharing, fact = NodeSharing(), NodeFact("n", "u", capacity)
    sharing.set_rules([SharingRule("p", 0, every, Partition({CPU: Portion(amount=1)}))], {})
    before = sharing.grant(fact, (), NOW)
    sharing.set_rules([SharingRule("p", 0, every, Answers(answer))], {})
    after = sharing.grant(fact, (), NOW)
    assert not sharing.failures or after == before


labels = st.dictionaries(st.sampled_from("ab"), st.sampled_from("12"))


@given(
    st.lists(st.tuples(st.integers(0, 3), labels), max_size=6),
    st.lists(labels, min_size=1, max_size=4),
)
def test_the_lowest_order_counts(found: list[tuple[int, dict[str, str]]], nodes: Any) -> None:
    """The first by order and name of those that match. Changed labels choose anew."""
    rules = [
        SharingRule(f"p{n}", order, read_selector({"matchLabels": wanted}, ""), Subtract())
        for n, (order, wanted) in enumerate(found)
    ]
    sharing = NodeSharing()
    sharing.set_rules(reversed(rules), {})
    for own in nodes:
        grant = sharing.grant(NodeFact("n", "u", {CPU: 1}, own), (), NOW)
        matching = [
            (order, f"p{n}")
            for n, (order, wanted) in enumerate(found)
            if wanted.items() <= own.items()
        ]
        assert (None if grant is None else grant.policy) == min(matching, default=(0, None))[1]


@given(st.lists(st.integers(-5, 50), min_size=1, max_size=5), st.integers(0, 60))
def test_a_policy_is_asked_again_when_it_said(offsets: list[int], later: int) -> None:
    """Each node at its own time, and none twice."""
    sharing = NodeSharing()
    facts = [NodeFact(f"n{n}", "u", {CPU: 1}, {"n": str(n)}) for n in range(len(offsets))]
    rules = [
        SharingRule(
            f"p{n}",
            n,
            read_selector({"matchLabels": {"n": str(n)}}, ""),
            Answers(Grant(again_at=NOW + offset)),
        )
        for n, offset in enumerate(offsets)
    ]
    sharing.set_rules(rules, {})
    for fact in facts:
        sharing.grant(fact, (), NOW)
    due = {f"n{n}" for n, offset in enumerate(offsets) if max(offset, 1) <= later}
    assert sharing.is_due(NOW + later) == bool(due)
    assert set(sharing.take_due(NOW + later)) == due
    assert not sharing.is_due(NOW + later)
