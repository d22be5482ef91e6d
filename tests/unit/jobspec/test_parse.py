"""The jobspec parser: what is accepted, and that every refusal names the place."""

from __future__ import annotations

import pytest

from fluxqueue.errors import InvalidJobspec
from fluxqueue.jobspec import Constraint, Count
from fluxqueue.jobspec.parse import parse_jobspec

HEAD = "version: 1\ntasks: [{command: [app], slot: s, count: {per_slot: 1}}]\n"
CORES = "resources: [{type: slot, label: s, count: 1, with: [{type: core, count: 2}]}]\n"
PLAIN = HEAD + CORES


def resources(text: str) -> str:
    return HEAD + "attributes:\nresources: [" + text + "]\n"


def test_yaml_and_json_mean_the_same() -> None:
    """JSON is YAML. Attributes may be empty."""
    yaml = parse_jobspec(PLAIN + "attributes: {system: {duration: 1.5, queue: batch}}\n")
    json = parse_jobspec(
        '{"version": 1, "tasks": [{"command": ["app"], "slot": "s", "count": {"per_slot": 1}}],'
        ' "resources": [{"type": "slot", "label": "s", "count": 1,'
        ' "with": [{"type": "core", "count": 2}]}],'
        ' "attributes": {"system": {"duration": 1.5, "queue": "batch"}}}'
    )
    assert (yaml.resources, yaml.duration_s, yaml.queue) == (json.resources, 1.5, "batch")
    assert yaml.types() == {"core"}
    assert parse_jobspec(PLAIN + "attributes:\n").duration_s == 0


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("3", Count(3, 3)),
        ("{min: 2}", Count(2, (1 << 32) - 1)),
        ("{min: 2, max: 10, operator: '*', operand: 2}", Count(2, 10, "*", 2)),
    ],
)
def test_counts(text: str, count: Count) -> None:
    """A number, an open count, a moldable count."""
    found = parse_jobspec(resources("{type: core, count: " + text + "}"))
    assert found.resources[0].count == count


@pytest.mark.parametrize(
    ("count", "available", "taken"),
    [
        (Count(2, 2), 1, 0),
        (Count(2, 2), 9, 2),
        (Count(1, 10, "+", 3), 9, 7),
        (Count(1, 10, "+", 3), 100, 10),
        (Count(2, 100, "*", 2), 9, 8),
        (Count(2, 100, "^", 2), 300, 16),
        (Count(0, 0), 5, 0),
        (Count(5, 4), 9, 0),
    ],
)
def test_largest_within(count: Count, available: int, taken: int) -> None:
    """The largest member of the series that fits is taken."""
    assert count.largest_within(available) == taken


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("", "jobspec"),
        ("- 1", "jobspec"),
        ("a: b: c", "line 1"),
        ("a: 1\na: 2", "line 2"),
        ("a: &x [1]\nb: *x\n", "line 2"),
        ("--- 1\n--- 2\n", "line 2"),
        (PLAIN, "jobspec"),
        (PLAIN + "attributes:\nextra: 1\n", "extra"),
        (PLAIN.replace("version: 1", "version: 0") + "attributes:\n", "version"),
        (PLAIN.replace("version: 1", "version: [1]") + "attributes:\n", "version"),
        (PLAIN + "attributes: {flux: 1}\n", "attributes.flux"),
        (PLAIN + "attributes: {system: {duration: .nan}}\n", "attributes.system.duration"),
        (PLAIN + "attributes: {system: {duration: .inf}}\n", "attributes.system.duration"),
        (PLAIN + "attributes: {system: {duration: -1}}\n", "attributes.system.duration"),
        (PLAIN + "attributes: {system: {duration: soon}}\n", "attributes.system.duration"),
        (resources(""), "resources"),
        (resources("{type: core}"), "resources[0]"),
        (resources("{type: core, count: -1}"), "resources[0].count"),
        (resources("{type: core, count: 99999999999}"), "resources[0].count"),
        (resources("{type: core, count: 1.5}"), "resources[0].count"),
        (resources("{type: core, count: {min: 0}}"), "resources[0].count.min"),
        (resources("{type: core, count: {min: 1, max: 2}}"), "resources[0].count"),
        (resources("{type: core, count: 1, requires: [x]}"), "resources[0].requires"),
        (resources("{type: core, count: 1, exclusive: maybe}"), "resources[0].exclusive"),
        (resources("{type: slot, count: 1, with: [{type: core, count: 1}]}"), "resources[0]"),
        (resources("{type: slot, count: 1, label: s}"), "resources[0]"),
        (
            resources("{type: node, count: 1, with: [{type: core, count: x}]}"),
            "resources[0].with[0].count",
        ),
    ],
)
def test_refusals_name_the_place(text: str, where: str) -> None:
    """Each mistake is an InvalidJobspec with its place."""
    with pytest.raises(InvalidJobspec) as failure:
        parse_jobspec(text)
    assert failure.value.where == where


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("{properties: [fast]}", "properties[0]"),
        ("{properties: ['a|b']}", "properties[0]"),
        ("{properties: fast}", "properties"),
        ("{fast: []}", ""),
        ("{and: [], or: []}", ""),
        ("{hostlist: ['node[3-1]']}", "hostlist[0]"),
        ("{ranks: ['x']}", "ranks[0]"),
        ("{ranks: ['0-4000000000']}", "ranks[0]"),
        ("{and: [{not: [7]}]}", "and[0].not[0]"),
    ],
)
def test_constraint_refusals(text: str, where: str) -> None:
    """Constraints are checked to the leaf. Properties must be quoted, as in Fluxion."""
    with pytest.raises(InvalidJobspec) as failure:
        parse_jobspec(PLAIN + "attributes: {system: {constraints: " + text + "}}\n")
    start = "attributes.system.constraints"
    assert failure.value.where == (f"{start}.{where}" if where else start)


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("{}", True),
        ("{properties: ['fast', '^big']}", True),
        ("{properties: ['^fast']}", False),
        ("{hostlist: ['node[1-3]']}", True),
        ("{ranks: ['0-1']}", False),
        ("{or: [{ranks: ['0']}, {hostlist: ['node2']}]}", True),
        ("{not: [{properties: ['fast']}, {ranks: ['9']}]}", True),
        ("{and: [{properties: ['fast']}, {ranks: ['2']}]}", True),
    ],
)
def test_constraints_on_a_node(text: str, matches: bool) -> None:
    """node2, rank 2, with the property fast."""
    found = parse_jobspec(PLAIN + "attributes: {system: {constraints: " + text + "}}\n")
    assert isinstance(found.constraint, Constraint)
    assert found.constraint.matches("node2", 2, {"fast": ""}) is matches


def nested(depth: int, opening: str, closing: str) -> str:
    return opening * depth + closing * depth


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [x]\nb: &b [*a, *a]\nc: [*b, *b, *b]\n",
        nested(10_000, "[", "]"),
        nested(10_000, '{"a":', "}"),
        nested(10_000, "- ", ""),
        "{" * 10_000,
        "? " * 10_000,
        "[" + "1," * 300_000 + "1]",
        "x" * (2 << 20),
        b"\xff\xfe\x00",
        "version: !!python/object/apply:os.system ['true']\n",
        '{"version": ' + "9" * 10_000 + "}",
    ],
    ids=["aliases", "lists", "objects", "dashes", "open", "keys", "many", "large", "bytes", "tag",
         "digits"],
)  # fmt: skip
def test_bombs_are_refused(text: str | bytes) -> None:
    """Expansion, depth, width, size, encoding and tags: a typed error each, and quickly."""
    with pytest.raises(InvalidJobspec):
        parse_jobspec(text)


def test_deep_and_wide_requests_are_refused() -> None:
    """The request tree itself is bounded: 32 levels, 1000 resources."""
    deep = "{type: core, count: 1}"
    for _ in range(40):
        deep = "{type: node, count: 1, with: [" + deep + "]}"
    with pytest.raises(InvalidJobspec, match="deeper than 32"):
        parse_jobspec(resources(deep))
    with pytest.raises(InvalidJobspec, match="more than 1000"):
        parse_jobspec(resources(", ".join(["{type: core, count: 1}"] * 1001)))
