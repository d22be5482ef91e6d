"""The manager that owns the number of a Scale, as a real API server 1.36 gave it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.conftest import Api, Reply

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
    """The owners of the number: operation, subresource, and whether the entry has a time."""
    entries = (await api.ok("GET", WEB))["metadata"]["managedFields"]
    return {
        entry["manager"]: (entry["operation"], entry.get("subresource", ""), "time" in entry)
        for entry in entries
        if "f:replicas" in entry["fieldsV1"].get("f:spec", {})
    }


@pytest.fixture
async def web(api: Api) -> Api:
    """The Deployment ``web`` of two, a number that ``creator`` has applied."""
    reply = await applied(api, deployment(replicas=2), WEB, fieldManager="creator")
    assert reply.code == 201
    return api


async def test_an_update_takes_the_number_from_who_applied_it(web: Api) -> None:
    """By PUT and by merge patch, without a time."""
    await web.ok("PUT", f"{WEB}/scale", scale(4), fieldManager="putter")
    assert await owners(web) == {"putter": ("Update", "scale", False)}
    more = {"patch": "merge", "fieldManager": "merger"}
    await web.ok("PATCH", f"{WEB}/scale", {"spec": {"replicas": 5}}, **more)
    assert await owners(web) == {"merger": ("Update", "scale", False)}


async def test_a_scale_cannot_be_applied(web: Api) -> None:
    """It says so, and changes nothing."""
    reply = await applied(web, scale(3), force="true")
    assert (reply.code, reply.body["reason"]) == (501, "NotImplemented")
    assert (await web.ok("GET", WEB))["spec"]["replicas"] == 2
