"""The table of shares gives what the walk gives, vertex by vertex: the same verbs, put to both.

Random clusters of zones, blocks and racks, with some nodes that do not say where they stand, are
down, tainted, or used by others. Random requests over any of the levels, named, passed over or
preferred, of one kind of slots or several, with starts, promises and cancels in between, and time
that passes over work that overruns, has no end, grows and shrinks. Small clusters are gone through
one by one. The walk is Fluxion's, on the graph of the same nodes. docs/developer/matcher.md says
for what it holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TypeAlias

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from fluxion.matcher import FluxionMatcher
from fluxion.model.from_nodes import graph_from_nodes
from fluxqueue.errors import InsufficientResources
from fluxqueue.fluxjob.levels import Level
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.request import MatchPolicy, Operator, Taint, Toleration
from fluxqueue.graph.ledger.placement import FOREVER, Placement
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher, MatcherVerbs
from fluxqueue.jobspec import Count, Jobspec, Resource
from fluxqueue.jobspec.demand import ANYWHERE, NodeDemand
from fluxqueue.jobspec.written_constraint import parse_constraint

NAMES = ("zone", "block", "rack")
LEVELS = tuple(Level(name, (f"topology.kubernetes.io/{name}",)) for name in NAMES)
GPU = "nvidia.com/gpu"
TAINT = Taint("dedicated", "gpu", "NoSchedule")
TOLERANT = NodeDemand(tolerations=(Toleration("dedicated", Operator.EXISTS),))
POLICIES = ["first", "firstnodex", "lonode", "hinode", "lonodex", "hinodex", "pack", "spread"]
QUIET = list(HealthCheck)
Pair: TypeAlias = tuple[Placement, Placement]
Cluster: TypeAlias = tuple[tuple[NodeFact, ...], dict[str, dict[str, int]]]
"""Nodes, and what others use of them."""


@dataclass
class Both:
    """One cluster as nodes and as a graph: one that is walked, or (not ``is_walked``) one that has
    a table of its own beside its vertices."""

    facts: tuple[NodeFact, ...]
    foreign: dict[str, dict[str, int]]
    policy: str
    is_walked: bool = True
    table: Matcher = field(init=False)
    walk: FluxionMatcher = field(init=False)

    def __post_init__(self) -> None:
        self.table = Matcher(ShareLedger(LEVELS), self.policy)
        for fact in self.facts:
            self.table.set_node(fact, self.foreign.get(fact.name, {}))
        graph = graph_from_nodes(self.facts, levels=LEVELS, takes_shares=True, foreign=self.foreign)
        filters = "ALL:cpu,ALL:node"
        self.walk = FluxionMatcher(
            graph, self.policy, filters, end=FOREVER, use_reference=self.is_walked
        )

    def knows(self, asked: Jobspec) -> bool:
        """A type that no node has is a jobspec error in Flux's words, and never fits in ours."""
        return all(kind in self.walk.graph.type_number for kind in asked.types())

    def match(self, asked: Jobspec, *, later: bool, now: int = 0) -> Pair | None:
        """What each answers, which is the same. None where neither has a place."""
        assert self.table.is_satisfiable(asked) == self.walk.is_satisfiable(asked)
        found = self.ask(lambda matcher: matcher.match_now(asked, now))
        if found is None and later and self.table.is_satisfiable(asked):
            return self.ask(lambda matcher: matcher.match_later(asked, now))
        return found

    def ask(self, question: Callable[[MatcherVerbs], Placement]) -> Pair | None:
        """The answer of each to one question, which is the same."""
        try:
            ours = question(self.table)
        except InsufficientResources:
            with pytest.raises(InsufficientResources):
                question(self.walk)
            return None
        theirs = question(self.walk)
        self.compare(ours, theirs)
        return ours, theirs

    def compare(self, ours: Placement, theirs: Placement) -> None:
        """The same start, the same nodes, as much of each resource on each."""
        both = f"{ours.nodes} from {ours.starts_at}, {theirs.slots} from {theirs.starts_at}"
        assert (ours.starts_at, ours.until) == (theirs.starts_at, theirs.until), both
        whole = set(ours.nodes) if ours.is_exclusive else set()
        whole.update(ours.held)
        assert whole == set(theirs.held), both
        assert set(ours.nodes) | whole == set(theirs.nodes), both
        assert amounts(ours, whole) == amounts(theirs, whole), both

    def start(self, job: int, found: Pair) -> None:
        """Book on both sides."""
        for matcher, placement in zip((self.table, self.walk), found, strict=True):
            matcher.allocate(job, placement)

    def promise(self, found: Pair, now: int = 0) -> None:
        """Reserve on both sides."""
        for matcher, placement in zip((self.table, self.walk), found, strict=True):
            matcher.reserve(placement, now)

    def unpromise(self, found: Pair) -> None:
        """Take a promise back on both sides."""
        for matcher, placement in zip((self.table, self.walk), found, strict=True):
            matcher.unreserve(placement)

    def grow(self, job: int, found: Pair) -> None:
        """Book more on both sides."""
        for matcher, placement in zip((self.table, self.walk), found, strict=True):
            matcher.extend(job, placement)

    def look(self, now: int) -> None:
        """A new cycle begins on both sides: the time has moved on, and all is planned anew."""
        for matcher in (self.table, self.walk):
            matcher.clear_plan()
            matcher.look(now)

    def cancel(self, job: int) -> None:
        """Give back on both sides."""
        assert self.table.cancel(job)
        assert self.walk.cancel(job)


def amounts(placement: Placement, whole: set[str]) -> dict[tuple[str, str], int]:
    """Units of each resource that are taken of each node that is shared."""
    found: dict[tuple[str, str], int] = {}
    for slot in placement.slots:
        for name, units in slot.resources if slot.node not in whole else ():
            found[slot.node, name] = found.get((slot.node, name), 0) + units
    return found


@st.composite
def clusters(draw: st.DrawFn, *, flat: bool = False) -> Cluster:
    """Up to eight nodes: odd amounts, some gpus, some use by others, some down. A level that one of
    them lacks, a few or many, stands for an unknown place."""
    facts = []
    labelled = draw(st.sampled_from([2, 9]))
    foreign: dict[str, dict[str, int]] = {}
    for number in range(draw(st.integers(1, 8))):
        name = f"n{number}"
        labels = {
            f"topology.kubernetes.io/{level}": f"{level[0]}{draw(st.integers(0, 1))}"
            for level in NAMES
            if not flat and draw(st.integers(0, labelled))
        }
        capacity = {
            "cpu": draw(st.sampled_from([1000, 2000, 3333, 4000])),
            "memory": draw(st.integers(1 << 20, 1 << 34)),
        }
        if draw(st.integers(0, 3)) == 0:
            capacity[GPU] = draw(st.integers(1, 3))
        if draw(st.integers(0, 4)) == 0:
            foreign[name] = {
                kind: draw(st.integers(0, capacity[kind])) for kind in ("cpu", "memory")
            }
        is_up = bool(draw(st.integers(0, 9)))
        taints = (TAINT,) if draw(st.integers(0, 7)) == 0 else ()
        facts.append(NodeFact(name, "", capacity, labels, taints, is_up=is_up))
    return tuple(facts), foreign


@st.composite
def jobspecs(draw: st.DrawFn, *, flat: bool = False) -> Jobspec:
    """Slots, perhaps on nodes of their own, below any of the levels. Nodes, pools and racks shared
    or whole. Perhaps as many as there are."""
    needs = {"cpu": draw(st.sampled_from([1, 700, 1000, 2000]))}
    if draw(st.booleans()):
        needs["memory"] = draw(st.integers(1, 1 << 33))
    if draw(st.integers(0, 3)) == 0:
        needs[GPU] = draw(st.integers(1, 2))
    whole = draw(st.sampled_from([name for name in sorted(needs) if name != "memory"]))
    is_pool_whole = draw(st.integers(0, 4)) == 0
    top = slots(draw(st.integers(1, 4)), needs, whole if is_pool_whole else "")
    if draw(st.booleans()):
        is_whole = draw(st.integers(0, 3)) == 0 or None
        top = above("node", draw(st.integers(1, 3)), top, is_exclusive=is_whole)
    for name in () if flat else reversed(NAMES):
        if draw(st.integers(0, 2)) == 0:
            is_whole = draw(st.integers(0, 4)) == 0 or None
            top = above(name, draw(st.integers(1, 2)), top, is_exclusive=is_whole)
    if draw(st.integers(0, 3)) == 0:
        top = draw(with_series(top))
    return Jobspec(1, (top,), duration_s=draw(st.sampled_from([5.0, 10.0, 20.0])))


@st.composite
def with_series(draw: st.DrawFn, part: Resource) -> Resource:
    """The same with some of its counts not fixed, at any of its levels."""
    below = part.with_
    if part.type != "slot":
        below = tuple(draw(with_series(one)) for one in below)
    least, count = part.count.minimum, part.count
    if draw(st.booleans()):
        series = draw(st.sampled_from([("+", 1), ("+", 2), ("*", 2)]))
        count = Count(least, least + draw(st.integers(1, 6)), *series)
    return replace(part, count=count, with_=below)


def slots(count: int, needs: dict[str, int], whole: str = "") -> Resource:
    """Equal slots. Each takes all that its node has of ``whole``."""
    parts = tuple(
        Resource(name, Count(n, n), is_exclusive=name == whole or None)
        for name, n in sorted(needs.items())
    )
    return Resource("slot", Count(count, count), parts, label="x")


def above(kind: str, count: int, below: Resource, *, is_exclusive: bool | None = None) -> Resource:
    """``count`` vertices with ``below`` in each."""
    return Resource(kind, Count(count, count), (below,), is_exclusive=is_exclusive)


def history(
    both: Both, data: st.DataObject, *, flat: bool, later: bool, policies: list[str]
) -> None:
    """Starts, promises (with ``later``) and cancels at random, the same on both sides."""
    booked: list[int] = []
    for job in range(data.draw(st.integers(1, 10))):
        if booked and data.draw(st.integers(0, 3)) == 0:
            both.cancel(booked.pop(data.draw(st.integers(0, len(booked) - 1))))
        asked = data.draw(jobspecs(flat=flat))
        if policies:
            policy = MatchPolicy(data.draw(st.sampled_from(policies)))
            asked = replace(asked, match_policy=policy)
        note(f"{job}: {asked.resources} {asked.duration_s} {asked.match_policy}")
        found = both.match(asked, later=later) if both.knows(asked) else None
        if found is not None and found[0].starts_at:
            both.promise(found)
        elif found is not None:
            both.start(job, found)
            booked.append(job)


@st.composite
def any_jobspecs(draw: st.DrawFn) -> Jobspec:
    """Of all that a user may ask for: several kinds of slots, on one level or below nodes or racks,
    each with its own constraint. Preferred levels. Whole nodes. No duration."""
    asked = draw(jobspecs())
    where = TOLERANT if draw(st.booleans()) else ANYWHERE
    duration_s = draw(st.sampled_from([0.0, 5.0, 10.0, 20.0]))
    asked = replace(asked, duration_s=duration_s, where=where)
    form = draw(st.sampled_from(["as it is", "preferred", "whole nodes", "kinds", "kinds"]))
    if form == "preferred":
        return replace(asked, prefer_within=draw(st.sampled_from([*NAMES, "node"])))
    if form == "whole nodes":
        return replace(asked, is_node_exclusive=True)
    if form == "kinds":
        return draw(of_several_kinds(asked))
    return asked


@st.composite
def of_several_kinds(draw: st.DrawFn, asked: Jobspec) -> Jobspec:
    """Two or three kinds of slots: side by side, on each of some nodes, or in each of some racks.
    The last perhaps only for nodes of its own."""
    labels = "abc"[: draw(st.integers(2, 3))]
    kinds = tuple(
        replace(
            slots(draw(st.integers(1, 2)), {"cpu": draw(st.sampled_from([300, 1000]))}), label=label
        )
        for label in labels
    )
    form = draw(st.sampled_from(["side by side", "on nodes", "nodes side by side", "in racks"]))
    where: tuple[tuple[str, NodeDemand], ...] = ()
    if form == "on nodes":
        kinds = (above_all("node", draw(st.integers(1, 2)), kinds),)
    else:
        if form == "nodes side by side" or (form == "in racks" and draw(st.booleans())):
            kinds = tuple(
                above(
                    "node",
                    draw(st.integers(1, 2)),
                    one,
                    is_exclusive=draw(st.integers(0, 3)) == 0 or None,
                )
                for one in kinds
            )
        if form == "in racks":
            is_whole = draw(st.integers(0, 3)) == 0 or None
            kinds = (above_all("rack", draw(st.integers(1, 2)), kinds, is_exclusive=is_whole),)
        if draw(st.booleans()):
            own = parse_constraint({"hostlist": ["n[0-3]"]})
            where = ((labels[-1], NodeDemand(own, TOLERANT.tolerations)),)
    if draw(st.integers(0, 3)) == 0:
        kinds = tuple(draw(with_series(one)) for one in kinds)
    return replace(asked, resources=kinds, slot_where=where)


def above_all(
    kind: str, count: int, below: tuple[Resource, ...], *, is_exclusive: bool | None = None
) -> Resource:
    """``count`` vertices, with each of ``below`` in each."""
    return Resource(kind, Count(count, count), below, is_exclusive=is_exclusive)


def brief(asked: Jobspec) -> str:
    """A request on one line. ``!`` is whole."""
    more = f"for {asked.duration_s:g} s", asked.prefer_within, asked.slot_where, asked.where
    return f"{' '.join(map(brief_part, asked.resources))} {more} {asked.is_node_exclusive}"


def brief_part(part: Resource) -> str:
    """One vertex of a request."""
    count = f"{part.count.minimum}-{part.count.maximum}{'!' if part.is_exclusive else ''}"
    below = " ".join(map(brief_part, part.with_))
    return f"{part.type}{part.label}[{count}]" + (f"({below})" if below else "")


@dataclass
class Life:
    """What runs and is promised on both sides, and the time."""

    both: Both
    now: int = 0
    asked: dict[int, Jobspec] = field(default_factory=dict)
    held: dict[int, Pair] = field(default_factory=dict)
    promised: list[Pair] = field(default_factory=list)

    def ask(self, job: int, asked: Jobspec) -> None:
        """It starts, or is promised a start, or neither."""
        found = self.both.match(asked, later=True, now=self.now)
        if found is None:
            return
        if found[0].starts_at > self.now:
            self.both.promise(found, self.now)
            self.promised.append(found)
        else:
            self.both.start(job, found)
            self.asked[job], self.held[job] = asked, found

    def grow(self, job: int, until: int, avoided: list[str]) -> None:
        """One slot more beside the others, and all of it until then."""
        asked, nodes = self.asked[job], self.held[job][0].nodes
        more = self.both.ask(
            lambda matcher: matcher.match_more(asked, nodes, self.now, until, avoid=avoided)
        )
        if more is not None:
            self.both.grow(job, more)

    def pass_time(self, seconds: int) -> None:
        """Work that should have ended goes on. Promises are made anew."""
        self.now += seconds
        self.both.look(self.now)
        self.promised.clear()

    def try_out(self, asked: Jobspec) -> None:
        """What is promised inside is forgotten, and what was before stands again."""
        with self.both.table.trying(), self.both.walk.trying():
            for found in self.promised:
                self.both.unpromise(found)
            again = self.both.match(asked, later=True, now=self.now)
            if again is not None:
                self.both.promise(again, self.now)


@pytest.mark.cases_long("the other match policies")
@pytest.mark.parametrize("policy", POLICIES)
@settings(deadline=None, max_examples=80, suppress_health_check=QUIET)
@given(cluster=clusters(), data=st.data())
def test_the_same_life(policy: str, cluster: Cluster, data: st.DataObject) -> None:
    """Promises, unlimited durations, overrun, growth, partial release, several kinds of slots:
    after each step both answer alike."""
    live(Life(Both(*cluster, policy)), data)


@pytest.mark.parametrize("policy", ["first", "lonode", "hinodex", "spread"])
@settings(deadline=None, max_examples=40, suppress_health_check=QUIET)
@given(cluster=clusters(), data=st.data())
def test_a_clusters_graph_lives_the_same_life(
    policy: str, cluster: Cluster, data: st.DataObject
) -> None:
    """Its vertices and the table that follows them, some questions answered by one, some by the
    other, are as the cycle's nodes."""
    live(Life(Both(*cluster, policy, is_walked=False)), data)


def live(life: Life, data: st.DataObject) -> None:
    """Up to twelve steps."""
    for job in range(data.draw(st.integers(1, 12))):
        step = data.draw(st.sampled_from(["ask"] * 5 + ["end", "grow", "shrink", "time", "try"]))
        asked = data.draw(any_jobspecs())
        job_there = data.draw(st.sampled_from(sorted(life.held))) if life.held else None
        note(f"{job} at {life.now}: {step} {job_there}; {brief(asked)}")
        if step == "time":
            life.pass_time(data.draw(st.integers(1, 30)))
        elif step in {"ask", "try"}:
            if life.both.knows(asked):
                life.ask(job, asked) if step == "ask" else life.try_out(asked)
        elif job_there is None:
            continue
        elif step == "end":
            life.both.cancel(job_there)
            del life.held[job_there]
        elif step == "shrink":
            life.both.start(job_there, life.held[job_there])
        else:
            until = data.draw(st.sampled_from([life.now + 7, life.held[job_there][0].until]))
            names = [fact.name for fact in life.both.facts]
            life.grow(job_there, until, data.draw(st.lists(st.sampled_from(names), max_size=2)))


@pytest.mark.cases_long("the other match policies")
@pytest.mark.parametrize("policy", POLICIES)
@settings(deadline=None, max_examples=30, suppress_health_check=QUIET)
@given(cluster=clusters(), data=st.data())
def test_the_same_nodes_over_any_levels(policy: str, cluster: Cluster, data: st.DataObject) -> None:
    """Same refusals, same racks, same nodes, same slots on each."""
    history(Both(*cluster, policy), data, flat=False, later=False, policies=[])


@pytest.mark.cases_long("the other match policies")
@pytest.mark.parametrize("policy", POLICIES)
@settings(deadline=None, max_examples=30, suppress_health_check=QUIET)
@given(cluster=clusters(), data=st.data())
def test_the_same_promises_over_any_levels(
    policy: str, cluster: Cluster, data: st.DataObject
) -> None:
    """What does not fit now starts at the same second on the same nodes in both plans, whatever
    else is running and promised."""
    history(Both(*cluster, policy), data, flat=False, later=True, policies=[])


@settings(deadline=None, max_examples=60, suppress_health_check=QUIET)
@given(cluster=clusters(flat=True), data=st.data())
def test_the_same_nodes_when_each_request_has_its_policy(
    cluster: Cluster, data: st.DataObject
) -> None:
    """Policies mixed, ``first`` too: what one has placed counts for the next, in both."""
    both = Both(*cluster, "lonode")
    history(both, data, flat=True, later=False, policies=POLICIES)


def small_clusters(size: int) -> Iterator[tuple[NodeFact, ...]]:
    """All clusters of ``size`` nodes of one or two cores in racks a, b or none. Names of racks that
    only swap are one cluster."""
    for racks, cores in product(
        product((None, "a", "b"), repeat=size), product((1, 2), repeat=size)
    ):
        named = [rack for rack in racks if rack]
        if named[:1] == ["b"] or (size > 2 and len(set(cores)) > 1):
            continue
        yield tuple(
            NodeFact(
                f"n{number}", "", {"cpu": cpu},
                {} if rack is None else {"topology.kubernetes.io/rack": rack},
            )
            for number, (rack, cpu) in enumerate(zip(racks, cores, strict=True))
        )  # fmt: skip


def small_jobspecs() -> list[Jobspec]:
    """One or two slots of one or two cores, on nodes or not, in one rack, two, or anywhere, and as
    many slots, nodes and racks as there are, from one of each."""
    found = []
    for racks, nodes_, count, cpu in product((0, 1, 2), (0, 1, 2), (1, 2), (1, 2)):
        top = slots(count, {"cpu": cpu})
        if nodes_:
            top = above("node", nodes_, top)
        if racks:
            top = above("rack", racks, top)
        found.append(Jobspec(1, (top,), duration_s=10))
        if (count, cpu) == (1, 1) and (racks, nodes_) != (2, 2):
            found.append(replace(found[-1], resources=(as_many_as_there_are(top),)))
    return found


def as_many_as_there_are(part: Resource) -> Resource:
    """The same with all counts open, up to four."""
    below = part.with_ if part.type == "slot" else tuple(map(as_many_as_there_are, part.with_))
    return replace(part, count=Count(part.count.minimum, 4), with_=below)


@pytest.mark.cases_long("larger clusters, and the other match policies")
@pytest.mark.parametrize(
    ("size", "policy"), [(1, "pack"), (2, "lonode"), (2, "spread"), (3, "pack")]
)
def test_every_small_request_on_every_small_cluster(size: int, policy: str) -> None:
    """Exhaustive: each set of nodes that others' work holds in part until second 7, each request,
    now or else later."""
    questions = small_jobspecs()
    for facts in small_clusters(size):
        for held in product((False, True), repeat=size):
            both = Both(facts, {}, policy)
            for number, is_held in enumerate(held):
                if is_held:
                    hold_one_core(both, number)
            for asked in questions:
                if both.knows(asked):
                    both.match(asked, later=True)


def hold_one_core(both: Both, number: int) -> None:
    """Take one core of one node on both sides."""
    where = parse_constraint({"hostlist": [f"n{number}"]})
    one = Jobspec(1, (slots(1, {"cpu": 1}),), duration_s=7, where=NodeDemand(where))
    found = both.match(one, later=False)
    assert found is not None
    both.start(number, found)


@pytest.mark.parametrize("is_whole", [False, True])
def test_nodes_without_a_label_are_in_no_common_place(is_whole: bool) -> None:
    """Where no zone holds what prefers one, it lies anywhere. Not together on the nodes that do not
    say in which zone they are. A level that no node names is passed over on the way up."""
    zones = (None, "a", None, "a", None)
    facts = tuple(
        NodeFact(
            f"n{number}", "", {"cpu": 1}, {"topology.kubernetes.io/zone": zone} if zone else {}
        )
        for number, zone in enumerate(zones)
    )
    both = Both(facts, {}, "lonode")
    for level, count, nodes in (
        ("zone", 2, ("n1", "n3")),
        ("rack", 2, ("n1", "n3")),
        ("zone", 3, ("n0", "n1", "n2")),
    ):
        asked = Jobspec(1, (slots(count, {"cpu": 1}),), duration_s=10, prefer_within=level)
        found = both.match(replace(asked, is_node_exclusive=is_whole), later=False)
        assert found is not None
        assert tuple(sorted(found[0].nodes)) == nodes


@pytest.mark.parametrize("policy", ["first", "lonode", "hinode", "pack", "spread"])
@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    jobs=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), min_size=1, max_size=6),
)
def test_the_same_nodes_for_whole_cores(
    policy: str, sizes: list[int], jobs: list[tuple[int, int]]
) -> None:
    """On Fluxion's own graph, with a vertex per core: slot by slot, until both refuse in turn."""
    facts = [NodeFact(f"n{i}", "", {"cpu": 1000 * n}) for i, n in enumerate(sizes)]
    table = Matcher(ShareLedger(), policy)
    for fact in facts:
        table.set_node(fact, {})
    cores = FluxionMatcher(graph_from_nodes(facts), policy)
    for number, (count, each) in enumerate(jobs):
        asked = Jobspec(1, (slots(count, {"cpu": 1000 * each}),), duration_s=3600)
        in_cores = replace(asked, resources=(slots(count, {"core": each}),))
        try:
            placement = table.match_now(asked, 0)
        except InsufficientResources:
            with pytest.raises(InsufficientResources):
                cores.match_now(in_cores, 0)
            continue
        theirs = cores.match_now(in_cores, 0)
        assert set(placement.nodes) == set(theirs.nodes)
        table.allocate(number, placement)
        cores.allocate(number, theirs)


@pytest.mark.parametrize("policy", POLICIES)
def test_no_kind_of_slots_keeps_another_from_its_only_node(policy: str) -> None:
    """A launcher that fits anywhere, and a worker for the one node with a gpu: whichever is named
    first, it is possible, and now."""
    facts = tuple(
        NodeFact(f"n{number}", "", {"cpu": 4, GPU: 1} if number == 1 else {"cpu": 4})
        for number in range(3)
    )
    launcher = replace(slots(1, {"cpu": 2}), label="launcher")
    worker = replace(slots(1, {"cpu": 4, GPU: 1}), label="worker")
    both = Both(facts, {}, policy)
    for kinds in ((launcher, worker), (worker, launcher)):
        found = both.match(Jobspec(1, kinds, duration_s=10), later=False)
        assert found is not None
        on = {slot.kind: slot.node for slot in found[0].slots}
        assert on["worker"] == "n1"
        assert [slot.kind for slot in found[0].slots] == [kind.label for kind in kinds]


def test_of_work_that_overruns_one_more_slot_takes_what_is_free_now() -> None:
    """Its end has passed: what it grows by has no time of its own."""
    both = Both(tuple(NodeFact(f"n{n}", "", {"cpu": 1}) for n in range(2)), {}, "lonode")
    life, one = Life(both), Jobspec(1, (slots(1, {"cpu": 1}),), duration_s=10)
    life.ask(1, one)
    life.pass_time(10)
    life.grow(1, 10, [])
    assert both.table.ledger.live["1"].until == 10
    assert (
        both.match(Jobspec(1, (slots(1, {"cpu": 1}),), duration_s=10), later=False, now=10) is None
    )
