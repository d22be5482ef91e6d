"""Structural schemas: pruning, defaults, validation with the real server's words, ratcheting."""

from __future__ import annotations

from typing import Any

import pytest

from localcluster.kinds.crd_schema import MISSING, NOT_CHECKED, StructuralSchema
from localcluster.kinds.custom import CustomStrategy, printer_columns
from localcluster.kinds.request_context import RequestContext, UserInfo
from localcluster.types.decode import DecodeError, Decoder, parse_time
from localcluster.types.jsonpath import JsonPathError, compile_path
from localcluster.types.quantity import QuantityError, canonical
from localcluster.types.table import builtin_node, type_names
from tests.support.resource_requests import EmptyReader

SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["spec"],
    "properties": {
        "spec": {
            "type": "object",
            "required": ["size"],
            "properties": {
                "size": {"type": "integer", "format": "int32", "minimum": 1, "maximum": 10},
                "kind": {"type": "string", "enum": ["pod", "job"], "default": "job"},
                "queue": {"type": "string", "pattern": "^[a-z]+$", "maxLength": 5},
                "until": {"type": "integer", "nullable": True},
                "free": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                "cpu": {"x-kubernetes-int-or-string": True},
                "tasks": {
                    "type": "array",
                    "maxItems": 2,
                    "x-kubernetes-list-type": "map",
                    "x-kubernetes-list-map-keys": ["name"],
                    "items": {
                        "type": "object",
                        "required": ["name"],
                        "properties": {
                            "name": {"type": "string"},
                            "count": {"type": "integer", "default": 1},
                        },
                    },
                },
                "fixed": {
                    "type": "string",
                    "x-kubernetes-validations": [
                        {"rule": "self == oldSelf", "message": "fixed is immutable"}
                    ],
                },
            },
        }
    },
}


def errors_of(spec: Any, old: Any = MISSING) -> list[tuple[str, str]]:
    """(field, message) of each broken rule, without the note on rules not checked."""
    before = {"spec": old} if old is not MISSING else MISSING
    found = StructuralSchema(SCHEMA).validate({"spec": spec}, before, "", ({}, {}))
    return [(e.field, e.message()) for e in found if e.detail != NOT_CHECKED]


def test_unknown_fields_are_pruned_and_named() -> None:
    """Except below preserve-unknown-fields."""
    value = {
        "spec": {"size": 1, "colour": "red", "free": {"x": 1}, "tasks": [{"name": "a", "j": 1}]}
    }
    unknown: list[str] = []
    StructuralSchema(SCHEMA).prune(value, "", unknown)
    assert unknown == ["spec.colour", "spec.tasks[0].j"]
    assert value["spec"] == {"size": 1, "free": {"x": 1}, "tasks": [{"name": "a"}]}


def test_defaults_reach_into_lists_and_null_counts_as_unset() -> None:
    """A nullable field keeps its null."""
    value = {"spec": {"size": 1, "kind": None, "until": None, "tasks": [{"name": "a"}]}}
    StructuralSchema(SCHEMA).default(value)
    assert value["spec"] == {
        "size": 1,
        "kind": "job",
        "until": None,
        "tasks": [{"name": "a", "count": 1}],
    }


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ({}, ("spec.size", "Required value")),
        (
            {"size": "x"},
            (
                "spec.size",
                'Invalid value: "string": spec.size in body must be of type integer: "string"',
            ),
        ),
        (
            {"size": 11},
            (
                "spec.size",
                "Invalid value: 11: spec.size in body should be less than or equal to 10",
            ),
        ),
        (
            {"size": 1, "kind": "x"},
            ("spec.kind", 'Unsupported value: "x": supported values: "pod", "job"'),
        ),
        (
            {"size": 1, "queue": "A"},
            ("spec.queue", "Invalid value: \"A\": spec.queue in body should match '^[a-z]+$'"),
        ),
        ({"size": 1, "queue": "abcdef"}, ("spec.queue", "Too long: may not be more than 5 bytes")),
        (
            {"size": 1, "tasks": [{"name": "a"}, {"name": "a"}]},
            ("spec.tasks[1]", 'Duplicate value: {"name":"a"}'),
        ),
        (
            {"size": 1, "cpu": 1.5},
            (
                "spec.cpu",
                (
                    'Invalid value: "number": spec.cpu in body must be of type '
                    'integer,string: "number"'
                ),
            ),
        ),
    ],
)
def test_refusals(spec: Any, error: tuple[str, str]) -> None:
    """One rule each, in the real server's words."""
    assert errors_of(spec) == [error]


def test_what_did_not_change_is_let_through() -> None:
    """A schema that became tighter does not lock stored objects (ratcheting)."""
    assert errors_of({"size": 50, "queue": "b"}, old={"size": 50, "queue": "a"}) == []
    assert [field for field, _ in errors_of({"size": 51}, old={"size": 50})] == ["spec.size"]


def test_transition_rules_see_the_old_value() -> None:
    """And do not run at creation."""
    assert errors_of({"size": 1, "fixed": "a"}) == []
    message = 'Invalid value: "b": fixed is immutable'
    assert errors_of({"size": 1, "fixed": "b"}, old={"size": 1, "fixed": "a"}) == [
        ("spec.fixed", message)
    ]


def test_printer_columns_print_lists_as_json_and_missing_values_as_null() -> None:
    """The first column is always the name."""
    version = {
        "additionalPrinterColumns": [
            {"name": "Nodes", "type": "string", "jsonPath": ".status.nodes"},
            {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
            {
                "name": "Ready",
                "type": "string",
                "jsonPath": '.status.conditions[?(@.type=="Ready")].status',
            },
            {
                "name": "Pool",
                "type": "string",
                "jsonPath": r".metadata.labels.example\.com/node-pool",
            },
        ]
    }
    obj = {
        "metadata": {"name": "x", "labels": {"example.com/node-pool": "gpu"}},
        "status": {"nodes": ["a", "b"], "conditions": [{"type": "Ready", "status": "True"}]},
    }
    cells = [column.value(obj) for column in printer_columns(version)]
    assert cells == ["x", '["a","b"]', None, "True", "gpu"]


@pytest.mark.parametrize("path", ["spec.x", ".spec.[", ".a[?(x)]", ""])
def test_paths_that_are_not_understood(path: str) -> None:
    """They are refused when the definition is written."""
    with pytest.raises(JsonPathError):
        compile_path(path)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("1000m", "1"),
        ("1024Mi", "1Gi"),
        ("0.5", "500m"),
        ("1500M", "1500M"),
        ("1e3", "1e3"),
        ("0", "0"),
        ("0.1Ki", "102400m"),
        ("12E", "12E"),
    ],
)
def test_quantities_have_one_spelling(text: str, wanted: str) -> None:
    """And that spelling is stable."""
    assert canonical(text) == wanted
    assert canonical(wanted) == wanted


@pytest.mark.parametrize("text", ["abc", "1e3m", "", "1 Gi"])
def test_what_is_no_quantity(text: str) -> None:
    """As refused by the real server."""
    with pytest.raises(QuantityError):
        canonical(text)


def test_decoding_drops_what_go_would_drop() -> None:
    """Unknown fields, nulls, empty lists. Explicit zeros of pointers stay."""
    pod = {
        "metadata": {"name": "p", "labels": {}},
        "spec": {"containers": [{"name": "c", "imag": "x"}], "hostNetwork": False, "volumes": []},
        "status": None,
    }
    decoder = Decoder()
    decoder.clean_object(pod, builtin_node("Pod"))
    assert decoder.unknown == ["spec.containers[0].imag"]
    assert pod == {
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "c", "resources": {}}]},
        "status": {},
    }
    job = {"metadata": {}, "spec": {"suspend": False, "template": {}, "parallelism": 0}}
    Decoder().clean_object(job, builtin_node("Job"))
    assert job["spec"]["suspend"] is False
    assert job["spec"]["parallelism"] == 0


def test_wrong_types_are_named_as_go_names_them() -> None:
    """Clients show these texts."""
    pod = {"metadata": {}, "spec": {"containers": [{"name": "c", "ports": "eighty"}]}}
    with pytest.raises(DecodeError) as caught:
        Decoder().clean_object(pod, builtin_node("Pod"))
    assert str(caught.value) == (
        "json: cannot unmarshal string into Go struct field Container.spec.containers.ports of "
        "type []v1.ContainerPort"
    )


def test_micro_times_want_their_fraction() -> None:
    """Leases refuse whole seconds."""
    assert parse_time("2026-01-01T00:00:05.000001Z", is_micro=True).endswith("05.000001Z")
    with pytest.raises(DecodeError):
        parse_time("2026-01-01T00:00:05Z", is_micro=True)


def test_every_type_of_the_table_resolves() -> None:
    """A misspelt type name would be found only when it is used."""
    for name in type_names():
        for child in builtin_node(name).fields.values():
            assert child.type


def test_on_status_only_its_fields_but_all_rules_are_looked_at() -> None:
    """As the real one does: a rule of the whole object may compare status and spec."""
    rule = "!has(self.status) || !has(self.status.size) || self.status.size <= self.spec.size"
    schema = StructuralSchema(
        SCHEMA
        | {
            "x-kubernetes-validations": [{"rule": rule, "message": "more than asked for"}],
            "properties": SCHEMA["properties"]
            | {"status": {"type": "object", "properties": {"size": {"type": "integer"}}}},
        }
    )
    old = {"spec": {"size": 3, "queue": "NOT LOOKED AT"}}

    def found(size: Any) -> list[tuple[str, str]]:
        errors = schema.validate_status(old | {"status": {"size": size}}, old, ({}, {}))
        return [(e.field, e.message()) for e in errors if e.detail != NOT_CHECKED]

    assert found(3) == []
    ((field, message),) = found(4)
    assert (field, "more than asked for" in message) == ("<nil>", True)
    ((field, message),) = found("many")
    assert (field, "must be of type integer" in message) == ("status.size", True)


def test_a_default_of_the_status_is_there_from_the_first() -> None:
    """What a creation says of the status is dropped. What the definition says is not."""
    status = {"type": "object", "default": {"state": "New"}, "properties": {"state": {}}}
    version = {
        "name": "v1",
        "subresources": {"status": {}},
        "schema": {"openAPIV3Schema": {"type": "object", "properties": {"status": status}}},
    }
    definition = {"spec": {"names": {"kind": "Thing"}, "scope": "Namespaced"}}
    made = {"metadata": {"name": "a"}, "status": {"state": "Done"}}
    context = RequestContext(user=UserInfo("admin"), reader=EmptyReader())
    CustomStrategy(definition, version).prepare_create(made, context)
    assert made["status"] == {"state": "New"}
