"""Nodes that autoscalers must leave alone: which, and which annotations, against plain models."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from fluxqueue.errors import InsufficientResources
from fluxqueue.graph.ledger.placement import PlacedSlot, Placement
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.nodepools.plan.node_protection import (
    CHANGES_MAX,
    KEYS,
    ON,
    RELEASE_S,
    NodeNeeds,
    Protect,
    ProtectedNodes,
    needed_nodes,
    protecting_notes,
    releasing_notes,
)
from fluxqueue.workload.labels import PROTECTED
from tests.support.pool_model import node, request

Notes = dict[str, str]


@dataclass
class AnnotatedNodes:
    """A cluster of nodes with annotations, and the process that protects them."""

    notes: dict[str, Notes]
    state: ProtectedNodes = field(default_factory=ProtectedNodes)

    def crash(self) -> None:
        """Forget everything, and read it again as the next process does."""
        marked = {name for name, one in self.notes.items() if PROTECTED in one}
        damaged = {name for name in marked if protecting_notes(self.notes[name])}
        self.state = ProtectedNodes(marked, damaged)

    def turn(self, needed: set[str], now: int, *, dies_after: int | None = None) -> None:
        """One turn. With ``dies_after``, the process ends after so many changes."""
        needs = NodeNeeds(frozenset(self.notes), frozenset(needed & self.notes.keys()))
        wanted, over = self.state.changes(needs, now)
        assert len(wanted) <= CHANGES_MAX
        assert len(over) <= CHANGES_MAX
        assert not set(over) & needs.needed, "a node that is needed is released"
        for number, name in enumerate([*wanted, *over]):
            if number == dies_after:
                self.crash()
                return
            changes = (protecting_notes if name in wanted else releasing_notes)(self.notes[name])
            merged = {**self.notes[name], **changes}
            self.notes[name] = {key: one for key, one in merged.items() if one is not None}
            self.state.note(name, is_marked=name in wanted)


NAMES = [f"n{number}" for number in range(4)]
foreign = st.dictionaries(st.sampled_from([*KEYS, "other"]), st.sampled_from([ON, "false"]))
steps = st.lists(
    st.tuples(
        st.sets(st.sampled_from(NAMES)),
        st.integers(0, 2 * RELEASE_S),
        st.none() | st.integers(0, 3),
    ),
    max_size=12,
)


@settings(max_examples=200, deadline=None)
@given(
    before=st.lists(foreign, min_size=4, max_size=4),
    steps=steps,
    last=st.sets(st.sampled_from(NAMES)),
)
def test_annotations_of_others_stay_and_ours_go(
    before: list[Notes], steps: list[tuple[set[str], int, int | None]], last: set[str]
) -> None:
    """However often the process died: in the end, the needed nodes alone bear ours."""
    cluster = AnnotatedNodes({name: dict(one) for name, one in zip(NAMES, before, strict=True)})
    now = 0
    for needed, pause_s, dies_after in steps:
        now += pause_s
        cluster.turn(needed, now, dies_after=dies_after)
    cluster.turn(last, now)
    for name in last:
        assert all(key in cluster.notes[name] for key in KEYS), "it is protected at once"
    cluster.turn(last, now + RELEASE_S)
    for name, own in zip(NAMES, before, strict=True):
        expected = dict(own)
        if name in last:
            added = [key for key in KEYS if key not in own]
            expected |= dict.fromkeys(added, ON) | ({PROTECTED: ",".join(added)} if added else {})
        assert cluster.notes[name] == expected


@settings(max_examples=100, deadline=None)
@given(value=st.sampled_from([ON, "false", None]), key=st.sampled_from(KEYS))
def test_what_others_change_meanwhile_is_theirs(value: str | None, key: str) -> None:
    """One of ours that is removed comes back. One with another value stays as it is."""
    cluster = AnnotatedNodes({"n0": {}})
    cluster.turn({"n0"}, 0)
    cluster.notes["n0"].pop(key)
    if value is not None:
        cluster.notes["n0"][key] = value
    cluster.crash()
    cluster.turn({"n0"}, 1)
    assert cluster.notes["n0"][key] == (value or ON)
    cluster.turn(set(), 2)
    assert PROTECTED in cluster.notes["n0"], "it is kept a moment longer"
    cluster.turn(set(), 2 + RELEASE_S)
    assert cluster.notes["n0"] == ({key: "false"} if value == "false" else {})


def test_changes_are_bounded() -> None:
    """At 10,000 nodes, each turn writes few, and all are reached in the end."""
    cluster = AnnotatedNodes({f"n{number:05}": {} for number in range(10_000)})
    needed = {f"n{number:05}" for number in range(0, 10_000, 50)}
    for turn in range(len(needed) // CHANGES_MAX):
        cluster.turn(needed, turn)
    assert cluster.state.marked == needed
    needs = NodeNeeds(frozenset(cluster.notes), frozenset(needed))
    assert cluster.state.changes(needs, 100) == ([], []), "nothing is written twice"


works = st.lists(
    st.tuples(st.integers(1, 4), st.integers(1, 4), st.booleans(), st.booleans()), max_size=8
)


@settings(max_examples=150, deadline=None)
@given(work=works, protect=st.sampled_from(Protect), returning=st.sets(st.sampled_from(NAMES)))
def test_which_nodes_are_needed(
    work: list[tuple[int, int, bool, bool]], protect: Protect, returning: set[str]
) -> None:
    """Jobs that start now, or get a reservation if they do not fit, against a plain list."""
    matcher = Matcher(ShareLedger(), "pack")
    for name in NAMES:
        matcher.set_node(node(name), {})
    starting, expected = set[str](), set[str]()
    for number, (slots, cpu, is_starting, is_reserved) in enumerate(work):
        asked = request(slots, cpu=cpu, duration_s=100)
        try:
            place = matcher.match_now(asked, 0)
            matcher.allocate(str(number), place)
        except InsufficientResources:
            if is_reserved and slots * cpu <= 16:
                place = matcher.match_later(asked, 0)
                matcher.reserve(place, 0)
                expected |= set(place.nodes)
            continue
        nodes = set(place.nodes)
        if is_starting:
            starting.add(str(number))
        is_gang = len(nodes) > 1 and protect is not Protect.WAITING
        if is_starting or is_gang or protect is Protect.RUNNING:
            expected |= nodes
    # What a provider takes back is held whole in the plan, and belongs to no job.
    slots_of = tuple(PlacedSlot(name, ()) for name in sorted(returning))
    if slots_of:
        matcher.reserve(Placement(slots_of, 0, 1 << 62, is_exclusive=True), 0)
    found = needed_nodes(matcher.ledger, protect, starting, returning)
    assert found.present == set(NAMES)
    assert found.needed == (set() if protect is Protect.NEVER else expected - returning)
