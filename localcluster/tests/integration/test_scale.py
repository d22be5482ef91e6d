"""Server-side apply of ``/scale``, with the answers that a real API server 1.36 gave."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.conftest import Api, Reply
from tests.integration.test_answers import WIDGETS, serve, widget

WEB = "/apis/apps/v1/namespaces/default/deployments/web"


def deployment(**spec: Any) -> dict[str, Any]:
    container = {"name": "c", "image": "none"}
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container]}}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template, **spec},
    }


def scale(replicas: int | None, name: str = "web", **more: Any) -> dict[str, Any]:
    spec = {} if replicas is None else {"spec": {"replicas": replicas}}
    head = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": name}}
    return {**head, **spec, **more}


async def applied(api: Api, body: dict[str, Any], path: str = f"{WEB}/scale", **more: str) -> Reply:
    """As the manager ``scaler`` unless told otherwise."""
    return await api.call("PATCH", path, body, patch="apply", **{"fieldManager": "scaler", **more})


async def owners(api: Api) -> dict[str, tuple[str, str, bool]]:
    """Who owns the number: operation, subresource, and whether the entry has a time."""
    entries = (await api.ok("GET", WEB))["metadata"]["managedFields"]
    return {
        entry["manager"]: (entry["operation"], entry.get("subresource", ""), "time" in entry)
        for entry in entries
        if "f:replicas" in entry["fieldsV1"].get("f:spec", {})
    }


@pytest.fixture
async def web(api: Api) -> Api:
    """The Deployment ``web`` of two, whose number ``creator`` has applied."""
    reply = await applied(api, deployment(replicas=2), WEB, fieldManager="creator")
    assert reply.code == 201
    return api


async def test_a_conflict_names_who_owns_the_number(web: Api) -> None:
    """Of an update the version of a Scale is named, and whose subresource it was."""
    reply = await applied(web, scale(3))
    text = 'Apply failed with 1 conflict: conflict with "creator": .spec.replicas'
    assert (reply.code, reply.body["message"]) == (409, text)
    await web.ok("PUT", f"{WEB}/scale", scale(4), fieldManager="putter")
    reply = await applied(web, scale(3))
    who = '"putter" with subresource "scale" using autoscaling/v1'
    assert reply.body["details"]["causes"] == [
        {
            "reason": "FieldManagerConflict",
            "message": f"conflict with {who}",
            "field": ".spec.replicas",
        }
    ]
    reply = await applied(web, deployment(replicas=2), WEB, fieldManager="creator")
    assert f"conflict with {who}".replace("autoscaling", "apps") in reply.body["message"]


async def test_forced_it_is_taken_over(web: Api) -> None:
    """The entry on the object has the subresource and no time; a dry run leaves it."""
    assert (await applied(web, scale(2))).code == 200
    assert await owners(web) == {
        "scaler": ("Apply", "scale", False),
        "creator": ("Apply", "", True),
    }
    reply = await applied(web, scale(3), force="true")
    assert (reply.code, reply.body["kind"], reply.body["spec"]) == (200, "Scale", {"replicas": 3})
    assert "managedFields" not in reply.body["metadata"]
    assert await owners(web) == {"scaler": ("Apply", "scale", False)}
    assert (await applied(web, scale(7), dryRun="All")).body["spec"] == {"replicas": 7}
    assert (await web.ok("GET", WEB))["spec"]["replicas"] == 3
    reply = await applied(web, deployment(replicas=2), WEB, fieldManager="creator")
    assert (
        'conflict with "scaler" with subresource "scale": .spec.replicas' in reply.body["message"]
    )


async def test_a_number_that_is_given_up_becomes_0(web: Api) -> None:
    """It is not the default of the Deployment, as an apply to the object would make it."""
    await applied(web, scale(3), force="true")
    reply = await applied(web, scale(None))
    assert (reply.code, reply.body["spec"]) == (200, {})
    assert (await web.ok("GET", WEB))["spec"]["replicas"] == 0
    assert await owners(web) == {}
    assert (await applied(web, scale(1))).code == 200


async def test_an_update_takes_the_number_from_who_applied_it(web: Api) -> None:
    """By PUT and by merge patch, without a time."""
    await applied(web, scale(3), force="true")
    await web.ok("PUT", f"{WEB}/scale", scale(4), fieldManager="putter")
    assert await owners(web) == {"putter": ("Update", "scale", False)}
    more = {"patch": "merge", "fieldManager": "merger"}
    await web.ok("PATCH", f"{WEB}/scale", {"spec": {"replicas": 5}}, **more)
    assert await owners(web) == {"merger": ("Update", "scale", False)}


@pytest.mark.parametrize(
    ("body", "query", "code", "said"),
    [
        (
            scale(1),
            {"fieldManager": ""},
            422,
            "fieldManager: Required value: is required",
        ),
        (scale(1, kind="Deployment"), {}, 400, "invalid object type: autoscaling/v1, Kind=Deploy"),
        (scale(1, apiVersion="apps/v1"), {}, 400, "invalid object type: apps/v1, Kind=Scale"),
        (
            scale(1, spec={"x": 1}),
            {},
            500,
            "(/web; autoscaling/v1, Kind=Scale): .spec.x: ",
        ),
        (
            scale(-1),
            {},
            422,
            'Scale.autoscaling "web" is invalid: spec.replicas: Invalid',
        ),
        (scale(2, metadata={"managedFields": []}), {}, 400, "metadata.managedFields must be nil"),
        (
            scale(2, metadata={"name": "web", "resourceVersion": "1"}),
            {},
            409,
            'deployments.apps "web": the object has been modified',
        ),
    ],
)
async def test_what_is_refused(
    web: Api, body: dict[str, Any], query: dict[str, str], code: int, said: str
) -> None:
    """Before anything is written."""
    reply = await applied(web, body, **{"force": "true", **query})
    assert reply.code == code
    assert said in reply.body["message"]
    assert (await web.ok("GET", WEB))["spec"]["replicas"] == 2


async def test_of_what_is_not_there(api: Api) -> None:
    """A Scale does not create its object."""
    reply = await applied(api, scale(1))
    assert (reply.code, reply.body["message"]) == (404, 'deployments.apps "web" not found')


async def test_labels_and_status_of_a_scale_are_not_its_own(web: Api) -> None:
    """They are left out, as the real server does."""
    body = scale(2, status={"replicas": 9}, metadata={"labels": {"q": "r"}})
    reply = await applied(web, body, force="true")
    assert (reply.code, reply.body["status"]["replicas"]) == (200, 0)
    assert "labels" not in (await web.ok("GET", WEB))["metadata"]


async def test_a_custom_resource_s_cannot_be_applied(api: Api) -> None:
    """A real server cannot do that either, and says so in these words."""
    paths = {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"}
    spec = {"type": "object", "properties": {"size": {"type": "integer"}}}
    await serve(api, spec, subresources={"status": {}, "scale": paths})
    await applied(api, widget("w", size=2), f"{WIDGETS}/w", fieldManager="creator")
    where = f"{WIDGETS}/w/scale"
    reply = await applied(api, scale(3, "w"), where)
    assert 'conflict with "creator": .spec.replicas' in reply.body["message"]
    reply = await applied(api, scale(3, "w"), where, force="true")
    why = "request to convert CR to an invalid group/version: autoscaling/v1"
    assert (reply.code, reply.body["message"].endswith(why)) == (500, True)
    assert (await applied(api, scale(None, "w"), where)).body["spec"] == {"replicas": 2}
