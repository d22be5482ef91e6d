"""What is rendered is read back as the same jobspec, through JSON and through YAML."""

from __future__ import annotations

from dataclasses import replace

import orjson
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxqueue.fluxjob.request import MatchPolicy, NodeRequirement, Operator, Toleration
from fluxqueue.jobspec import Constraint, Count, Jobspec, NodeDemand, Resource, Task
from fluxqueue.jobspec.constraint import all_of
from fluxqueue.jobspec.model import AMOUNT_MAX, UNLIMITED
from fluxqueue.jobspec.parse import parse_jobspec, read_stored
from fluxqueue.jobspec.render import render
from fluxqueue.jobspec.shape import slot_kinds, slot_needs, within

words = st.text("abcxyz-.", min_size=1, max_size=6).filter(lambda text: text not in {"-", "."})
names = st.sampled_from(["node1", "node2", "gpu07", "login"])
kinds = st.sampled_from(["rack", "node", "core", "cpu", "nvidia.com/gpu"])

fixed = st.integers(1, UNLIMITED).map(lambda n: Count(n, n))
open_counts = st.integers(1, 1000).map(lambda n: Count(n, UNLIMITED))
moldable = st.builds(
    lambda low, more, operator, operand: Count(low, low + more, operator, operand),
    st.integers(2, 50), st.integers(1, 500), st.sampled_from("+*^"), st.integers(2, 9),
)  # fmt: skip
counts = st.one_of(fixed, open_counts, moldable)


@st.composite
def resources(draw: st.DrawFn, depth: int = 0) -> Resource:
    """Trees of any shape. Slots have a label and something in them."""
    below = tuple(draw(st.lists(resources(depth + 1), max_size=2))) if depth < 3 else ()
    kind = draw(kinds) if not below else draw(st.one_of(kinds, st.just("slot")))
    exclusive = draw(st.sampled_from([None, True, False]))
    unit = draw(st.sampled_from(["", "B"]))
    count = draw(counts)
    if unit and draw(st.booleans()):
        amount = draw(st.integers(UNLIMITED, AMOUNT_MAX))
        count = Count(amount, amount)
    label = draw(words) if kind == "slot" or draw(st.booleans()) else ""
    return Resource(kind, count, below, exclusive, label, unit)


requirements = st.builds(
    NodeRequirement, words, st.sampled_from(list(Operator)), st.lists(words, max_size=3).map(tuple)
)
leaves = st.one_of(
    st.just(Constraint()),
    st.builds(
        lambda found: Constraint("properties", names=tuple(found)),
        st.lists(st.sampled_from(["fast", "^slow", "a=b"]), max_size=2),
    ),
    st.builds(lambda found: Constraint("hostlist", hosts=frozenset(found)), st.sets(names)),
    st.builds(
        lambda found: Constraint("ranks", ranks=frozenset(found)), st.sets(st.integers(0, 99))
    ),
    st.builds(
        lambda found: Constraint("fluxqueue/matchExpressions", requirements=tuple(found)),
        st.lists(requirements, max_size=2),
    ),
)
constraints = st.recursive(
    leaves,
    lambda inner: st.builds(
        lambda operator, found: Constraint(operator, operands=tuple(found)),
        st.sampled_from(["and", "or", "not"]),
        st.lists(inner, max_size=3),
    ),
    max_leaves=6,
)
tolerations = st.builds(
    Toleration,
    st.one_of(st.just(""), words),
    st.sampled_from(["Equal", "Exists"]),
    st.one_of(st.just(""), words),
    st.sampled_from(["", "NoSchedule", "NoExecute"]),
)
bundles = st.dictionaries(words, st.integers(0, AMOUNT_MAX), max_size=2).map(
    lambda found: tuple(sorted(found.items()))
)


@st.composite
def demands(draw: st.DrawFn, common: Constraint | None = None) -> NodeDemand:
    own = draw(st.one_of(st.none(), constraints))
    parts = [one for one in (common, own) if one is not None]
    return NodeDemand(
        all_of(parts),
        tuple(draw(st.lists(tolerations, max_size=2))),
        tuple(draw(st.lists(bundles, max_size=2))),
    )


def labels(found: tuple[Resource, ...]) -> list[str]:
    return [one.label for one in found if one.is_slot] + [
        label for one in found for label in labels(one.with_)
    ]


@st.composite
def jobspecs(draw: st.DrawFn) -> Jobspec:
    tree = tuple(draw(st.lists(resources(), min_size=1, max_size=2)))
    where = draw(demands())
    named = draw(st.sets(st.sampled_from(labels(tree)))) if labels(tree) else set()
    count = draw(st.sampled_from([{}, {"per_slot": "1"}]))
    return Jobspec(
        version=draw(st.sampled_from([1, 9999])),
        resources=tree,
        tasks=(Task(("app", "-x"), "s", count, draw(st.sampled_from(["", "cyclic"]))),),
        duration_s=draw(st.sampled_from([0.0, 0.5, 90.0, 86400.0])),
        queue=draw(st.sampled_from(["", "batch"])),
        where=where,
        slot_where=tuple((label, draw(demands(where.constraint))) for label in sorted(named)),
        match_policy=draw(st.sampled_from([None, *MatchPolicy])),
        is_node_exclusive=draw(st.booleans()),
        prefer_within=draw(st.sampled_from(["", "rack"])),
        system=draw(st.sampled_from([{}, {"cwd": "/tmp", "shell": {"options": {"x": 1}}}])),
        user=draw(st.sampled_from([None, {"comment": "x"}])),
    )


class Quoted(yaml.SafeDumper):
    """Quotes all strings: RFC 31's properties must be."""


Quoted.add_representer(
    str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')
)


@settings(max_examples=200, deadline=None)
@given(jobspec=jobspecs())
def test_round_trip(jobspec: Jobspec) -> None:
    """JSON and YAML of a jobspec are that jobspec. Equal ones hash alike."""
    document = render(jobspec)
    text = orjson.dumps(document)
    for found in (parse_jobspec(text), parse_jobspec(yaml.dump(document, Dumper=Quoted))):
        assert found == jobspec
        assert hash(found) == hash(jobspec)
    assert orjson.dumps(render(parse_jobspec(text))) == text


@settings(max_examples=100, deadline=None)
@given(jobspec=jobspecs())
def test_slots_are_counted_alike(jobspec: Jobspec) -> None:
    """Size, kinds and the list of slots agree, whatever stands above them."""
    small = all(kind.count <= 5000 for kind in slot_kinds(jobspec))
    assert jobspec.size == sum(kind.count for kind in slot_kinds(jobspec))
    if small:
        assert jobspec.size == len(list(slot_needs(jobspec)))
    assert within(jobspec, "rack").size == jobspec.size


@settings(max_examples=50, deadline=None)
@given(jobspec=jobspecs())
def test_a_change_is_seen(jobspec: Jobspec) -> None:
    """Requests that differ in what is matched are not one cache key."""
    for change in (
        {"duration_s": jobspec.duration_s + 1},
        {"is_node_exclusive": not jobspec.is_node_exclusive},
        {"prefer_within": jobspec.prefer_within + "x"},
        {"where": NodeDemand(Constraint("properties", names=("other",)))},
    ):
        assert replace(jobspec, **change) != jobspec  # type: ignore[arg-type]


def test_a_workload_of_no_pods() -> None:
    """Nothing asked for is stored and read back. An author is refused it."""
    empty = Jobspec(9999, ())
    assert read_stored(render(empty)) == empty
    assert empty.size == 0
