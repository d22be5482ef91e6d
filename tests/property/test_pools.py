"""The matcher of shares against a plain model: fits exactly when it can, earliest start, never
overcommitted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxqueue.errors import InsufficientResources
from fluxqueue.fluxjob.exclusive_use import is_exclusive, port_use
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.request import (
    CPU,
    MEMORY,
    MatchPolicy,
    NodeRequirement,
    Operator,
    Taint,
    Toleration,
)
from fluxqueue.graph.ledger.placement import FOREVER, PlacedSlot, Placement
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.jobspec import Jobspec
from tests.support.asked import Slots, demand
from tests.support.asked import asked as make
from tests.support.pool_model import GPU, RACK, Model, node, request

NOW = 1000
NAMES = ("n0", "n1", "n2", "n3")
TAINT = Taint("dedicated", "x")
CONSTRAINTS = (
    demand(),
    demand(selector=((RACK, "a"),)),
    demand(tolerations=(Toleration(key="dedicated", operator="Exists"),)),
    demand(terms=((NodeRequirement(RACK, Operator.NOT_IN, ("b",)),),)),
)


@st.composite
def facts(draw: st.DrawFn, name: str) -> NodeFact:
    """One node in any condition."""
    fact = node(
        name,
        cpu=draw(st.integers(0, 5)),
        memory=draw(st.integers(0, 6)),
        gpu=draw(st.sampled_from((0, 0, 2))),
        rack=draw(st.sampled_from(("a", "b", None))),
        is_up=draw(st.sampled_from((True, True, True, False))),
        taints=draw(st.sampled_from(((), (), (TAINT,)))),
    )
    return replace(fact, is_schedulable=draw(st.sampled_from((True, True, False))))


PORTS = st.sampled_from(
    (
        {},
        {},
        port_use([("TCP", 80, "0.0.0.0")]),
        port_use([("TCP", 80, "10.0.0.1")]),
        port_use([("TCP", 80, "10.0.0.2"), ("UDP", 80, "0.0.0.0")]),
    )
)
"""What one pod uses of the ports of its node."""


@st.composite
def groups(draw: st.DrawFn) -> Slots:
    """So many equal slots."""
    needs = {CPU: draw(st.integers(0, 3)), MEMORY: draw(st.integers(0, 3))}
    if draw(st.booleans()):
        needs[GPU] = draw(st.integers(0, 2))
    needs |= draw(PORTS)
    return Slots(
        draw(st.integers(0, 5)), tuple(sorted(needs.items())), draw(st.sampled_from(CONSTRAINTS))
    )


@st.composite
def requests(draw: st.DrawFn) -> Jobspec:
    """Slots of one kind, in any shape."""
    return make(
        (draw(groups()),),
        draw(st.one_of(st.none(), st.integers(1, 20))),
        is_exclusive=draw(st.sampled_from((False, False, True))),
        is_spread=draw(st.sampled_from((False, False, True))),
        within=draw(st.sampled_from((None, None, RACK))),
    )


USAGE = st.fixed_dictionaries({CPU: st.integers(0, 3), MEMORY: st.integers(0, 3)})


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Model, Matcher]:
    """The same small cluster twice: as model and as pools, with running work of known ends."""
    model = Model(NOW)
    policy = draw(st.sampled_from([p for p in MatchPolicy if not p.is_exclusive]))
    pools = Matcher(ShareLedger(), policy)
    for name in NAMES[: draw(st.integers(1, 4))]:
        model.nodes[name] = draw(facts(name))
        model.foreign[name] = draw(st.one_of(st.just({}), USAGE)) | draw(PORTS)
        pools.set_node(model.nodes[name], model.foreign[name])
    for key in range(draw(st.integers(0, 3))):
        # Running work was placed by the pools itself, at some time before now.
        asked = draw(requests())
        try:
            got = pools.match_now(asked, NOW)
        except InsufficientResources:
            continue
        end = draw(st.sampled_from((NOW - 5, NOW, NOW + 3, NOW + 7, NOW + 15, FOREVER)))
        got = replace(got, starts_at=NOW - 10, until=end)
        pools.allocate(f"old-{key}", got)
        model.booked[f"old-{key}"] = got
    return model, pools


def try_now(pools: Matcher, asked: Jobspec) -> Placement | None:
    """A match, or None."""
    try:
        return pools.match_now(asked, NOW)
    except InsufficientResources:
        return None


def try_later(pools: Matcher, asked: Jobspec) -> Placement | None:
    """A later match, or None."""
    try:
        return pools.match_later(asked, NOW)
    except InsufficientResources:
        return None


@settings(max_examples=300, deadline=None)
@given(world=worlds(), asked=requests())
def test_it_fits_now_exactly_when_the_model_says_so(
    world: tuple[Model, Matcher], asked: Jobspec
) -> None:
    """Complete and sound for one slot group, whatever the options."""
    model, pools = world
    got = try_now(pools, asked)
    assert (got is not None) == model.fits(asked, NOW)
    if got is not None:
        model.check_placed(asked, got)


@settings(max_examples=300, deadline=None)
@given(world=worlds(), queue=st.lists(requests(), max_size=6), asked=requests())
def test_a_cycle_never_overcommits_and_never_delays(
    world: tuple[Model, Matcher], queue: list[Jobspec], asked: Jobspec
) -> None:
    """Start or reserve one after the other: each answer agrees with the model, at all times."""
    model, pools = world
    for number, one in enumerate([*queue, asked]):
        expected = model.fits(one, NOW)
        got = try_now(pools, one)
        assert (got is not None) == expected
        if got is not None:
            model.check_placed(one, got)
            pools.allocate(str(number), got)
            model.booked[str(number)] = got
        else:
            at = model.earliest(one)
            later = try_later(pools, one)
            assert (later.starts_at if later else None) == at
            if later is not None:
                model.check_placed(one, later)
                pools.reserve(later, NOW)
                model.reserved.append(later)
        assert not model.is_overcommitted()
        assert model.is_exclusive_kept()


def state_of(pools: Matcher) -> dict[tuple[str, str], tuple[int, int, int]]:
    """Capacity, foreign and booked, by node and resource. Zeros left out."""
    found = {}
    for name, row in pools.ledger.rows.items():
        for resource, column in pools.ledger.columns.items():
            key = (
                int(pools.ledger.capacity[row, column]),
                int(pools.ledger.foreign[row, column]),
                int(pools.ledger.booked[row, column]),
            )
            if is_exclusive(resource):
                key = (0, 0, key[2])  # a port is there once a job has asked for it
            if any(key):
                found[name, resource] = key
    return found


@settings(max_examples=100, deadline=None)
@given(world=worlds(), asked=requests())
def test_cancel_restores_exactly(world: tuple[Model, Matcher], asked: Jobspec) -> None:
    """Booking, booking again and cancelling leaves nothing. A second cancel gives nothing."""
    _, pools = world
    before = state_of(pools)
    got = try_now(pools, asked)
    if got is not None:
        pools.allocate("x", got)
        once = state_of(pools)
        pools.allocate("x", got)
        assert state_of(pools) == once
        assert pools.cancel("x")
    assert not pools.cancel("x")
    assert state_of(pools) == before


@st.composite
def changes(draw: st.DrawFn) -> tuple[str, Any]:
    """One change of the cluster or of what is booked."""
    kind = draw(st.sampled_from(("set", "set", "remove", "book", "book", "cancel")))
    if kind == "set":
        return kind, (draw(facts(draw(st.sampled_from(NAMES)))), draw(USAGE))
    if kind == "remove":
        return kind, draw(st.sampled_from(NAMES))
    if kind == "cancel":
        return kind, draw(st.integers(0, 3))
    needs = tuple(sorted(draw(USAGE).items()))
    slots = draw(st.lists(st.sampled_from(NAMES), max_size=4))
    placed = tuple(PlacedSlot(name, needs) for name in slots)
    return kind, (draw(st.integers(0, 3)), Placement(placed, 0, FOREVER, draw(st.booleans())))


@settings(max_examples=200, deadline=None)
@given(history=st.lists(changes(), max_size=25), asked=st.lists(requests(), max_size=4))
def test_changes_one_by_one_equal_a_rebuild(
    history: list[tuple[str, Any]], asked: list[Jobspec]
) -> None:
    """Nodes come, change and go under running work. The result is that of reading it all anew."""
    pools = Matcher(ShareLedger(), "lonode")
    nodes: dict[str, tuple[NodeFact, dict[str, int]]] = {}
    booked: dict[str, Placement] = {}
    for question in asked:  # masks are made early, and must follow
        pools.is_satisfiable(question)
    for kind, value in history:
        if kind == "set":
            nodes[value[0].name] = value
            pools.set_node(*value)
        elif kind == "remove":
            nodes.pop(value, None)
            pools.remove_node(value)
        elif kind == "book":
            booked[str(value[0])] = value[1]
            pools.allocate(str(value[0]), value[1])
        else:
            booked.pop(str(value), None)
            pools.cancel(str(value))
    fresh = Matcher(ShareLedger(), "lonode")
    for fact, foreign in nodes.values():
        fresh.set_node(fact, foreign)
    for key, one in booked.items():
        fresh.allocate(key, one)
    # Shares of nodes that are gone stay booked in both. Their capacity belongs to no job.
    assert state_of(pools) == state_of(fresh)
    for question in asked:
        assert (try_now(pools, question) is None) == (try_now(fresh, question) is None)
        assert pools.is_satisfiable(question) == fresh.is_satisfiable(question)


@settings(max_examples=200, deadline=None)
@given(world=worlds(), asked=requests())
def test_satisfiable_is_fitting_on_the_empty_healthy_cluster(
    world: tuple[Model, Matcher], asked: Jobspec
) -> None:
    """*Never possible* looks at nothing that can change by itself."""
    model, pools = world
    healthy = {n: replace(f, is_up=True, is_schedulable=True) for n, f in model.nodes.items()}
    empty = Model(NOW, nodes=healthy)
    assert pools.is_satisfiable(asked) == empty.fits(replace(asked, duration_s=0.0), NOW)


@settings(max_examples=100, deadline=None)
@given(world=worlds(), groups=st.lists(groups(), min_size=2, max_size=3), is_spread=st.booleans())
def test_several_slot_groups_are_placed_soundly(
    world: tuple[Model, Matcher], groups: list[Slots], *, is_spread: bool
) -> None:
    """Groups share nodes without taking one thing twice. Spread holds across groups."""
    model, pools = world
    whole = make(groups, 20, is_spread=is_spread)
    got = try_now(pools, whole)
    if got is None:
        return
    pools.allocate("x", got)
    model.booked["x"] = got
    assert not model.is_overcommitted()
    assert len(got.slots) == whole.size
    if is_spread:
        assert len(set(got.nodes)) == len(got.nodes)


def test_arrays_stay_integers() -> None:
    """Bytes of a large cluster need all 64 bits. No step may pass through floats."""
    pools = Matcher(ShareLedger(), "lonode")
    pools.set_node(node("n0", memory=2**53 + 1), {MEMORY: 1})
    got = pools.match_now(request(1, memory=2**53), 0)
    pools.allocate("x", got)
    assert pools.ledger.now.free.dtype == np.int64
    assert int(pools.ledger.now.free[0, pools.ledger.columns[MEMORY]]) == 0
