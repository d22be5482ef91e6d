"""Answers that no recording has, compared by hand with those of a real API server 1.36."""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.integration.conftest import Api, kinds, until

MAPS = "/api/v1/namespaces/default/configmaps"
WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"
METADATA_LIST = METADATA.replace("Metadata;", "MetadataList;")


def config_map(name: str, **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, **metadata},
        "data": {"a": "1"},
    }


def definition(spec: dict[str, Any], **version: Any) -> dict[str, Any]:
    """Widgets with this schema of ``spec``."""
    schema = {"type": "object", "properties": {"spec": spec, "status": {"type": "object"}}}
    names = {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"}
    one = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": names,
            "versions": [{**one, **version}],
        },
    }


def widget(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "example.com/v1",
        "kind": "Widget",
        "metadata": {"name": name},
        "spec": spec,
    }


async def serve(api: Api, spec: dict[str, Any], **version: Any) -> None:
    """Define widgets and wait until they are served."""
    await api.ok("POST", DEFINITIONS, definition(spec, **version))

    def is_served() -> bool:
        found = api.server.machinery.registry.lookup("example.com", "v1", "widgets")
        return found is not None

    await until(is_served, "widgets are served")


# -- only the metadata ------------------------------------------------------------------------


async def test_metadata_of_one_and_of_a_list(api: Api) -> None:
    await api.ok("POST", MAPS, config_map("a", labels={"l": "1"}))
    one = await api.ok("GET", f"{MAPS}/a", accept=METADATA)
    assert (one["kind"], one["metadata"]["labels"]) == ("PartialObjectMetadata", {"l": "1"})
    assert set(one) == {"kind", "apiVersion", "metadata"}
    found = await api.ok("GET", MAPS, accept=METADATA_LIST, labelSelector="l=1")
    assert found["kind"] == "PartialObjectMetadataList"
    assert [item["metadata"]["name"] for item in found["items"]] == ["a"]
    none = await api.ok("GET", MAPS, accept=METADATA_LIST, labelSelector="l=2")
    assert none["items"] is None, "a slice that nothing was added to"
    only = METADATA_LIST.split(",")[0]
    core = await api.ok("GET", "/api/v1/namespaces", accept=only)
    assert core["kind"] == "PartialObjectMetadataList", "a short path is no discovery document"


@pytest.mark.parametrize(
    ("path", "accept", "said"),
    [
        (MAPS, METADATA, "PartialObjectMetadata, but the requested object is a list (*core."),
        (f"{MAPS}/a", METADATA_LIST, "List, but the requested object is not a list (*core.Config"),
        (DEFINITIONS, METADATA, "is a list (*apiextensions.CustomResourceDefinitionList)"),
    ],
)
async def test_metadata_in_the_wrong_form(api: Api, path: str, accept: str, said: str) -> None:
    await api.ok("POST", MAPS, config_map("a"))
    reply = await api.call("GET", path, accept=accept)
    assert (reply.code, reply.body["reason"]) == (406, "NotAcceptable")
    assert said in reply.body["message"]


async def test_metadata_of_custom_resources(api: Api) -> None:
    await serve(api, {"type": "object", "x-kubernetes-preserve-unknown-fields": True})
    events = await api.watch(WIDGETS, accept=METADATA)
    await api.ok("POST", WIDGETS, widget("w", deep={"er": 1}))
    await until(lambda: kinds(events) == ["ADDED w"], "the event")
    assert events[0]["object"]["kind"] == "PartialObjectMetadata"
    assert "spec" not in events[0]["object"]
    assert "spec" not in await api.ok("GET", f"{WIDGETS}/w", accept=METADATA)
    reply = await api.call("GET", WIDGETS, accept=METADATA)
    assert "is a list (*unstructured.UnstructuredList)" in reply.body["message"]


# -- owners and other metadata ----------------------------------------------------------------


async def test_equal_owner_references_become_one(api: Api) -> None:
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u-1", "controller": True}
    reply = await api.call("POST", MAPS, config_map("a", ownerReferences=[owner, owner]))
    assert reply.code == 201
    assert reply.body["metadata"]["ownerReferences"] == [owner]
    assert "duplicate UID(s) observed: u-1" in reply.warnings[0]


async def test_twenty_thousand_owner_references_delay_nobody(api: Api) -> None:
    """One loop serves all requests. A comparison of each with each other took half a minute."""
    owner = {"apiVersion": "v1", "kind": "Pod"}
    owners = [{**owner, "name": f"p{n}", "uid": f"u-{n % 19_999}"} for n in range(20_000)]
    began_s = time.process_time()
    reply = await api.call("POST", MAPS, config_map("a", ownerReferences=owners), dryRun="All")
    assert time.process_time() - began_s < 5
    assert reply.code == 201
    assert len(reply.body["metadata"]["ownerReferences"]) == 20_000, "the uid alone is the same"
    owners[-1]["name"] = "p0"
    reply = await api.call("POST", MAPS, config_map("a", ownerReferences=owners), dryRun="All")
    assert reply.body["metadata"]["ownerReferences"] == owners[:-1]


async def test_bodies_of_very_many_values_are_refused(api: Api) -> None:
    """Their decoding would delay all other requests. Braces of a text do not count."""
    many = config_map("a") | {"data": [{}] * 100_001}
    reply = await api.call("POST", MAPS, many)
    assert (reply.code, reply.body["reason"]) == (413, "RequestEntityTooLarge")
    assert reply.body["message"].endswith("limit is 100000 nested values")
    text = config_map("a") | {"data": {"a": '{"[\\' * 100_001}}
    assert (await api.call("POST", MAPS, text)).code == 201


async def test_nobody_sets_a_deletion_timestamp(api: Api) -> None:
    await api.ok("POST", MAPS, config_map("a"))
    wanted = {"metadata": {"deletionTimestamp": "2020-01-01T00:00:00Z"}}
    reply = await api.call("PATCH", f"{MAPS}/a", wanted, patch="merge")
    assert reply.code == 422
    assert "metadata.deletionTimestamp" in reply.body["message"]


async def test_unprintable_field_managers(api: Api) -> None:
    reply = await api.call("POST", MAPS, config_map("a"), fieldManager="a\a")
    assert reply.code == 422
    assert "invalid character U+0007 (at position 1)" in reply.body["message"]


async def test_an_apply_brings_no_managed_fields(api: Api) -> None:
    body = config_map("a", managedFields=[])
    reply = await api.call("PATCH", f"{MAPS}/a", body, patch="apply", fieldManager="me")
    assert (reply.code, reply.body["message"]) == (400, "metadata.managedFields must be nil")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (config_map("n" * 254), "must be no more than 253 characters"),
        (config_map("a", labels={"p" * 254 + "/k": "v"}), "must be no more than 253 bytes"),
        (config_map("a", labels={"k": "v" * 64}), "must be no more than 63 bytes"),
        ({**config_map("a"), "binaryData": {"b": "!"}}, "illegal base64 data at input byte 0"),
        ({**config_map("a"), "binaryData": {"a": "MQ=="}}, "duplicate of key present in binaryDa"),
    ],
)
async def test_refused_config_maps(api: Api, body: dict[str, Any], said: str) -> None:
    reply = await api.call("POST", MAPS, body)
    assert reply.code in {400, 422}
    assert said in reply.body["message"]


# -- selectors and watches --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "selector", "said"),
    [
        (MAPS, "spec.x=1", '"spec.x" is not a known field selector: only "metadata.name", "met'),
        ("/api/v1/pods", "spec.x=1", "field label not supported: spec.x"),
        ("/apis/batch/v1/jobs", "spec.x=1", 'field label "spec.x" not supported for Job'),
        ("/apis/apps/v1/replicasets", "status.replicas=0", "is not a known field selector"),
    ],
)
async def test_unknown_field_selectors(api: Api, path: str, selector: str, said: str) -> None:
    reply = await api.call("GET", path, fieldSelector=selector)
    assert reply.code == 400
    assert said in reply.body["message"]


async def test_services_by_their_type(api: Api) -> None:
    found = await api.ok("GET", "/api/v1/services", fieldSelector="spec.type=ClusterIP")
    assert found["items"] == []


async def test_a_value_that_no_label_can_have(api: Api) -> None:
    reply = await api.call("GET", MAPS, labelSelector="k=" + "v" * 64)
    assert "values[0][k]: Invalid value" in reply.body["message"]


async def test_a_version_that_is_no_number(api: Api) -> None:
    await api.ok("POST", MAPS, config_map("a"))
    codes = [(await api.call("GET", at, resourceVersion="x")).code for at in (MAPS, f"{MAPS}/a")]
    assert codes == [400, 500]


@pytest.mark.parametrize("version", ["", "0"])
async def test_a_bookmark_ends_the_initial_state(api: Api, version: str) -> None:
    """Also without ``sendInitialEvents`` in the request: the server turns it on."""
    await api.ok("POST", MAPS, config_map("a"))
    events = await api.watch(MAPS, allowWatchBookmarks="true", resourceVersion=version)
    await until(lambda: len(events) == 2, "the object and the bookmark")
    assert [event["type"] for event in events] == ["ADDED", "BOOKMARK"]
    marked = events[1]["object"]["metadata"]["annotations"]
    assert marked == {"k8s.io/initial-events-end": "true"}


# -- definitions ------------------------------------------------------------------------------

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}}


def spec_with(**words: Any) -> dict[str, Any]:
    return {**NUMBER, **words}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (definition({"type": "int"}), 'Unsupported value: "int": supported values: "array", "bo'),
        (
            definition(
                {"type": "object", "properties": {"n": {"type": "integer", "default": "x"}}}
            ),
            'properties[n].default: Invalid value: "string":  in body must be of type integer',
        ),
        (definition(spec_with(pattern="(")), "must be a valid regular expression"),
        (definition(spec_with(**{"$ref": "#/x"})), "Forbidden: $ref is not supported"),
        (definition(spec_with(uniqueItems=True)), "uniqueItems cannot be set to true"),
        (
            definition(spec_with(additionalProperties={"type": "string"})),
            "Forbidden: additionalProperties and properties are mutual exclusive",
        ),
        (
            definition(NUMBER, subresources={"scale": {}}),
            "spec.subresources.scale.specReplicasPath: Required value",
        ),
        (
            definition(NUMBER, selectableFields=[{"jsonPath": ".spec.x"}]),
            "is an invalid path: does not refer to a valid field",
        ),
    ],
)
async def test_refused_definitions(api: Api, body: dict[str, Any], said: str) -> None:
    reply = await api.call("POST", DEFINITIONS, body)
    assert reply.code == 422
    assert said in reply.body["message"]


async def test_a_definition_leaves_metadata_alone(api: Api) -> None:
    body = definition(NUMBER)
    schema = body["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    schema["properties"]["metadata"] = {
        "type": "object",
        "properties": {"labels": {"type": "object"}},
    }
    reply = await api.call("POST", DEFINITIONS, body)
    assert "must not specify anything other than name and generateName" in reply.body["message"]


ONE_OF_TWO = {
    "type": "object",
    "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
    "oneOf": [{"required": ["a"]}, {"required": ["b"]}],
}


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ({"type": "string", "format": "duration"}, "1x", "spec.v in body must be of type duration"),
        ({"type": "string", "format": "ipv4"}, "1.2.3", "spec.v in body must be of type ipv4"),
        (ONE_OF_TWO, {}, '"spec.v" must validate one and only one schema (oneOf). Found none'),
        (ONE_OF_TWO, {"a": "", "b": ""}, "(oneOf). Found 2 valid alternatives"),
        (
            {"type": "integer", "anyOf": [{"minimum": 5}, {"maximum": 1}]},
            3,
            '"spec.v" must validate at least one schema (anyOf)',
        ),
        (
            {"type": "integer", "allOf": [{"minimum": 5}]},
            3,
            '"spec.v" must validate all the schemas (allOf)',
        ),
        ({"type": "integer", "not": {"minimum": 5}}, 7, "must not validate the schema (not)"),
        ({"type": "integer"}, 1.5, "must be of type integer (default format) in spec.v"),
        ({"type": "integer", "format": "int64"}, 2**63, 'must be of type int64: "float64"'),
        (
            {
                "type": "object",
                "x-kubernetes-embedded-resource": True,
                "x-kubernetes-preserve-unknown-fields": True,
            },
            {},
            "spec.v.kind: Required value",
        ),
        (
            {
                "type": "integer",
                "x-kubernetes-validations": [{"rule": "self + 1 > 0", "message": "m"}],
            },
            2**63 - 1,
            "integer overflow evaluating rule: m",
        ),
    ],
)
async def test_refused_custom_resources(
    api: Api, field: dict[str, Any], value: Any, said: str
) -> None:
    await serve(api, {"type": "object", "properties": {"v": field}})
    reply = await api.call("POST", WIDGETS, widget("w", v=value))
    assert reply.code == 422, reply.body
    assert said in reply.body["message"]


async def test_a_rule_says_what_is_wrong_and_where(api: Api) -> None:
    rule = {
        "rule": "self.n > 1",
        "message": "too small",
        "messageExpression": "'n is ' + string(self.n)",
        "reason": "FieldValueForbidden",
        "fieldPath": ".n",
    }
    await serve(api, spec_with(**{"x-kubernetes-validations": [rule]}))
    reply = await api.call("POST", WIDGETS, widget("w", n=1))
    assert "spec.n: Forbidden: n is 1" in reply.body["message"]


async def test_the_scale_of_a_custom_resource_stands_where_it_says(api: Api) -> None:
    """Its paths, not those of a Deployment, and the schema's limits hold."""
    paths = {"specReplicasPath": ".spec.n", "statusReplicasPath": ".status.ready"}
    limited = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}}}
    await serve(api, limited, subresources={"status": {}, "scale": paths})
    await api.ok("POST", WIDGETS, widget("w", n=3))
    assert (await api.ok("GET", f"{WIDGETS}/w/scale"))["spec"] == {"replicas": 3}
    wanted = {"spec": {"replicas": 5}}
    await api.ok("PATCH", f"{WIDGETS}/w/scale", wanted, patch="merge")
    assert (await api.ok("GET", f"{WIDGETS}/w"))["spec"] == {"n": 5}
    wanted = {"spec": {"replicas": 40}}
    reply = await api.call("PATCH", f"{WIDGETS}/w/scale", wanted, patch="merge")
    assert reply.code == 422
    assert "spec.n in body should be less than or equal to 9" in reply.body["message"]


# -- what workloads may say -------------------------------------------------------------------

CONTAINER = {"name": "c", "image": "registry.example/app:1"}
TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [CONTAINER]}}


def pod_of(**spec: Any) -> dict[str, Any]:
    return {"metadata": {"name": "p"}, "spec": {"containers": [CONTAINER], **spec}}


def job_of(**spec: Any) -> dict[str, Any]:
    pods = {"spec": {"restartPolicy": "Never", "containers": [CONTAINER]}}
    return {"metadata": {"name": "j"}, "spec": {"template": pods, **spec}}


def deployment_of(**spec: Any) -> dict[str, Any]:
    selector = {"matchLabels": {"a": "b"}}
    return {"metadata": {"name": "d"}, "spec": {"selector": selector, "template": TEMPLATE, **spec}}


PODS = "/api/v1/namespaces/default/pods"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
REPLICASETS = "/apis/apps/v1/namespaces/default/replicasets"
REVIEWS = "/apis/authentication.k8s.io/v1/tokenreviews"
ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
NO_ROLLING = {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}}
ODD = {"resources": {"requests": {"odd": "1"}}}
BOTH = {"nonResourceAttributes": {"path": "/", "verb": "get"}, "resourceAttributes": {"verb": "g"}}


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        (
            PODS,
            pod_of(dnsPolicy="x"),
            'spec.dnsPolicy: Unsupported value: "x": supported values: "C',
        ),
        (PODS, pod_of(runtimeClassName="x"), 'pod rejected: RuntimeClass "x" not found'),
        (PODS, pod_of(overhead={"cpu": "1"}), "Overhead set without corresponding RuntimeClass"),
        (PODS, pod_of(containers=[{**CONTAINER, **ODD}]), "must be a standard resource for conta"),
        (JOBS, job_of(successPolicy={"rules": []}), "requires indexed completion mode"),
        (
            JOBS,
            job_of(completionMode="Indexed", completions=2, maxFailedIndexes=1),
            "spec.backoffLimitPerIndex: Required value: when maxFailedIndexes is specified",
        ),
        (DEPLOYMENTS, deployment_of(strategy={"type": "X"}), 'supported values: "Recreate", "Rol'),
        (DEPLOYMENTS, deployment_of(strategy=NO_ROLLING), "may not be 0 when `maxSurge` is 0"),
        (
            DEPLOYMENTS,
            deployment_of(strategy={"type": "Recreate", **NO_ROLLING}),
            "may not be specified when strategy `type` is 'Recreate'",
        ),
        (DEPLOYMENTS, deployment_of(progressDeadlineSeconds=0), "greater than minReadySeconds"),
        (REPLICASETS, deployment_of(selector={}), "empty selector is invalid for deployment"),
        (REVIEWS, {"spec": {}}, "token is required for TokenReview in authentication"),
        (ACCESS, {"spec": {"user": "u", **BOTH}}, "cannot be specified in combination with resour"),
    ],
)
async def test_refused_workloads_and_reviews(
    api: Api, path: str, body: dict[str, Any], said: str
) -> None:
    reply = await api.call("POST", path, body)
    assert reply.code in {400, 403, 422}, reply.body
    assert said in reply.body["message"]


async def test_a_negative_grace_period_is_a_second(api: Api) -> None:
    account = {"metadata": {"name": "default"}}
    await api.call("POST", "/api/v1/namespaces/default/serviceaccounts", account)
    made = await api.ok("POST", PODS, pod_of(terminationGracePeriodSeconds=-1))
    assert made["spec"]["terminationGracePeriodSeconds"] == 1


async def test_a_zero_that_was_said_stays(api: Api) -> None:
    """Of numbers that may be percentages, too. Unset they would become 25%."""
    rolling = {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}
    made = await api.ok("POST", DEPLOYMENTS, deployment_of(strategy=rolling))
    assert made["spec"]["strategy"]["rollingUpdate"] == rolling["rollingUpdate"]


PODS = "/api/v1/namespaces/default/pods"
TOKENS = "/api/v1/namespaces/default/serviceaccounts/default/token"
REVIEWS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
TWICE = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: d}\ndata: {a: '1'}\ndata: {a: '2'}\n"


def bound(kind: str, name: str) -> dict[str, Any]:
    return {"spec": {"boundObjectRef": {"apiVersion": "v1", "kind": kind, "name": name}}}


@pytest.mark.parametrize(
    ("method", "path", "body", "query", "code", "said"),
    [
        (
            "POST",
            MAPS,
            TWICE,
            {"fieldValidation": "Strict", "content_type": "application/yaml"},
            400,
            'error: yaml: unmarshal errors:\n  line 5: key "data" already set in map',
        ),
        (
            "DELETE",
            f"{MAPS}/kept",
            {"kind": "Pod", "apiVersion": "v1"},
            {},
            400,
            'no kind "Pod" is registered for version "v1" in scheme "pkg/runtime/scheme.go:111"',
        ),
        (
            "GET",
            MAPS,
            None,
            {"watch": "1", "resourceVersionMatch": "Exact", "resourceVersion": "1"},
            422,
            'resourceVersionMatch: Unsupported value: "Exact": supported values: "NotOlderThan"',
        ),
        ("POST", TOKENS, bound("Pod", "nope"), {}, 404, 'pods "nope" not found'),
        (
            "POST",
            TOKENS,
            bound("Service", "nope"),
            {},
            400,
            "cannot bind token to object of type /v1, Kind=Service",
        ),
        (
            "POST",
            REVIEWS,
            {
                "spec": {
                    "user": "x",
                    "resourceAttributes": {"verb": "get"},
                    "nonResourceAttributes": {"path": "/"},
                }
            },
            {},
            422,
            'Invalid value: {"Path":"/","Verb":""}: cannot be specified in combination with',
        ),
        (
            "POST",
            PODS,
            {
                "metadata": {"name": "p"},
                "spec": {
                    "containers": [
                        {
                            "name": "c",
                            "image": "i",
                            "ports": [{"containerPort": 80, "name": "UPPER"}],
                        }
                    ]
                },
            },
            {},
            422,
            'spec.containers[0].ports[0].name: Invalid value: "UPPER": must contain at least one',
        ),
    ],
)
async def test_refused_requests(
    api: Api, method: str, path: str, body: Any, query: dict[str, str], code: int, said: str
) -> None:
    """Of 110 requests of all kinds that were compared these were answered otherwise before."""
    await api.ok("POST", MAPS, config_map("kept"))
    account = {"metadata": {"name": "default"}}
    await api.call("POST", TOKENS.rpartition("/default/")[0], account)
    reply = await api.call(method, path, body, **query)
    assert (reply.code, said in reply.body["message"]) == (code, True), reply.body
    await api.ok("GET", f"{MAPS}/kept")


async def test_an_applied_null_gives_up_what_was_applied_and_no_more(api: Api) -> None:
    """What another manager owns of a map stays, though the whole map was set to null."""
    for manager, data in (("one", {"a": "1", "b": "2"}), ("two", {"a": "1"}), ("one", None)):
        body = {**config_map("s"), "data": data}
        made = await api.ok("PATCH", f"{MAPS}/s", body, patch="apply", fieldManager=manager)
    assert made["data"] == {"a": "1"}
