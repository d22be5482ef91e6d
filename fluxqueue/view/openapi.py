"""The OpenAPI document of the view server, made from the table that it serves. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fluxqueue import __version__
from fluxqueue.view import answer_fields
from fluxqueue.view.answer_fields import ITEMS, Item
from fluxqueue.view.as_user import VERBS
from fluxqueue.view.endpoints import CHANGES, ENDPOINTS, RECORDED, ROOT, Needs, ViewEndpoint
from fluxqueue.view.parameters import Parameter, word

ABOUT = """\
The content of the queue, for users with the right to see it. Every request needs a bearer token
that the API server knows. It is in `Authorization`, or in `X-Fluxqueue-Authorization` if a proxy
removes the former. Lists come in pages of `limit` items, with `continue` while there are more. Each
answer has an `ETag`. A request with `If-None-Match` gets 304 if nothing has changed."""

_PROBLEMS = {
    "400": ("A parameter is unknown, or its value is not valid", ()),
    "401": ("No token, or an unknown one", ("WWW-Authenticate",)),
    "403": ("The right to see it is missing", ()),
    "503": (
        "Database or API server are unavailable, or there are too many requests",
        ("Retry-After",),
    ),
}
_PROBLEM = {
    "type": "object",
    "description": "What went wrong (RFC 9457)",
    "properties": {
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string", "description": "The field, its value and a fix"},
    },
    "required": ["title", "status", "detail"],
    "additionalProperties": False,
}


def document() -> dict[str, Any]:
    """Return the whole document as JSON."""
    paths = {ROOT + one.path: {"get": _list(one)} for one in ENDPOINTS}
    paths[f"{ROOT}/jobs/{{jobid}}"] = {"get": _job()}
    paths |= {f"{ROOT}/jobs/{{jobid}}{path}": told for path, told in _of_one_job().items()}
    paths[f"{ROOT}/map"] = {"get": _map()}
    paths[f"{ROOT}/whoami"] = {"get": _whoami()}
    paths[f"{ROOT}/changes"] = {"get": _changes()}
    paths[f"{ROOT}/replays"] = {"post": _replay()}
    paths[f"{ROOT}/swf"] = {"get": _swf()}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "fluxqueue view server",
            "version": __version__,
            "description": ABOUT,
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}, {"proxied": []}],
        "paths": paths,
        "components": {
            "schemas": {
                **{one.name: one.schema() for one in ITEMS},
                **{f"{one.item.name}List": _list_schema(one.item) for one in ENDPOINTS},
                "Problem": _PROBLEM,
            },
            "responses": {f"Problem{code}": _problem(*said) for code, said in _PROBLEMS.items()},
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "proxied": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "X-Fluxqueue-Authorization",
                    "description": "`Bearer` and a token, through a proxy such as the API server's",
                },
            },
        },
    }


def _list(one: ViewEndpoint) -> dict[str, Any]:
    return _operation(
        one.path.strip("/").replace("/", "-"),
        f"{one.summary}. Needs the right to {one.needs}",
        _parameters(one.parameters),
        _json(f"{one.item.name}List"),
    )


_JOBID = {
    "name": "jobid",
    "in": "path",
    "required": True,
    "description": "Its number",
    "schema": {"type": "integer", "minimum": 1},
}


def _job() -> dict[str, Any]:
    text = f"One FluxJob. Needs the right to {Needs.ONE_NAMESPACE}, otherwise 404"
    found = _operation("job", text, [_JOBID], _json(answer_fields.JOB.name))
    found["responses"]["404"] = _problem("No FluxJob with this number that you may see", ())
    return found


def _whoami() -> dict[str, Any]:
    return _operation("whoami", answer_fields.CALLER.text, [], _json(answer_fields.CALLER.name))


def _map() -> dict[str, Any]:
    return _operation("map", f"{answer_fields.MAP.text}. Needs the right to {Needs.NODES}", [],
                      _json(answer_fields.MAP.name))  # fmt: skip


def _asked_as_user(name: str, text: str, parameters: Sequence[Parameter] = ()) -> dict[str, Any]:
    """Return what is asked of the API server with the token of the caller."""
    found = _operation(name, f"{text}. With your own rights", [], _json(answer_fields.FOUND.name))
    found["parameters"] = [_JOBID, *_parameters(parameters)]
    found["responses"]["404"] = _problem("No FluxJob with this number that you may see", ())
    return found


def _of_one_job() -> dict[str, Any]:
    pod = word("pod", "Name of the pod", is_required=True)
    container = word("container", "Name of the container (default: the only one)")
    told = {
        "/object": {"get": _asked_as_user("object", "The FluxJob with its jobspec and R")},
        "/pods": {"get": _asked_as_user("pods", "Pods of the present run")},
        "/events": {"get": _asked_as_user("events", "Events of the FluxJob, the latest first")},
        "/log": {"get": _asked_as_user("log", "The end of a pod's log", (pod, container))},
        "/explain": {"post": _steered("explain", "Ask when it starts, as a PlacementReview")},
    }
    return told | {f"/{verb}": {"post": _steered(verb, f"{verb}: one change")} for verb in VERBS}


def _steered(name: str, text: str) -> dict[str, Any]:
    """Return a change that the API server makes with the token of the caller."""
    found = _asked_as_user(name, text)
    body = {"type": "object", "properties": {"value": {}, "changes": {"type": "object"}}}
    found["requestBody"] = {"content": {"application/json": {"schema": body}}}
    del found["responses"]["304"]
    return found


def _changes() -> dict[str, Any]:
    last = {
        "name": "Last-Event-ID",
        "in": "header",
        "required": False,
        "description": "Continue after this line. Browsers send it when they reconnect",
        "schema": {"type": "string"},
    }
    text = (
        "Changes from now on, as server-sent events: `change` with a Change as its data, and "
        "`reset` if the lists must be read again. An event may come twice. "
        f"Needs the right to {Needs.FLUXJOBS}"
    )
    events = {
        "description": "A stream until one side ends it",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    }
    return _operation("changes", text, [*_parameters(CHANGES), last], events)


def _replay() -> dict[str, Any]:
    text = (
        "Replay a recorded time with changes, and compare. Needs the rights to list fluxjobs in all"
        " namespaces and to list nodes"
    )
    found = _operation("replay", text, [], _json(answer_fields.REPLAY.name))
    texts = {"type": "array", "items": {"type": "string"}, "maxItems": 20}
    fields = {
        "from": {"type": "string", "description": "Begin: a time or an age (default: 1d)"},
        "until": {"type": "string", "description": "End: a time or an age (default: now)"},
        "policy": {"type": "string", "description": "Policy of all queues (default: their own)"},
        "addNodes": {**texts, "description": "As `8:gpu-1`, or `8:cpu=64,memory=256Gi`"},
        "queueWeights": {**texts, "description": "As `batch=2`, or `batch=x2`"},
    }
    schema = {"type": "object", "properties": fields, "additionalProperties": False}
    found["requestBody"] = {"content": {"application/json": {"schema": schema}}}
    del found["responses"]["304"]
    found["responses"]["504"] = _problem("The replay takes too long, or too much memory", ())
    return found


def _swf() -> dict[str, Any]:
    text = (
        "A recorded time as a workload log (SWF), for other simulators. Needs the rights to list"
        " fluxjobs in all namespaces and to list nodes"
    )
    log = {
        "description": "Jobs that have ended, one in a line",
        "content": {"text/plain": {"schema": {"type": "string"}}},
    }
    found = _operation("swf", text, _parameters(RECORDED), log)
    del found["responses"]["304"]
    found["responses"]["504"] = _problem("It takes too long, or too much memory", ())
    return found


def _operation(
    name: str, text: str, parameters: Sequence[Mapping[str, Any]], answer: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "operationId": name,
        "summary": text,
        "parameters": list(parameters),
        "responses": {
            "200": answer,
            "304": {"description": "Unchanged (If-None-Match)"},
            **{code: {"$ref": f"#/components/responses/Problem{code}"} for code in _PROBLEMS},
        },
    }


def _parameters(parameters: Sequence[Parameter]) -> list[dict[str, Any]]:
    return [
        {
            "name": one.name,
            "in": "query",
            "required": one.is_required,
            "description": one.text,
            "schema": dict(one.schema),
            **({"style": "form", "explode": False} if one.schema["type"] == "array" else {}),
        }
        for one in parameters
    ]


def _json(schema: str) -> dict[str, Any]:
    return {
        "description": "The answer",
        "headers": {"ETag": {"schema": {"type": "string"}}},
        "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}},
    }


def _list_schema(item: Item) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {
            "items": {"type": "array", "items": {"$ref": f"#/components/schemas/{item.name}"}},
            "continue": {
                "type": "string",
                "description": "There are more items: send this with the next request",
            },
        },
        "required": ["items"],
        "additionalProperties": False,
    }


def _problem(text: str, headers: Sequence[str]) -> dict[str, Any]:
    return {
        "description": text,
        "headers": {one: {"schema": {"type": "string"}} for one in headers},
        "content": {
            "application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}
        },
    }
