"""The forms of answers of the view server: JSON with a tag, problems, and headers of safety. Pure.

``server`` and ``window`` call it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

import orjson
from aiohttp import ETag, web

from fluxqueue.view.same_site import SAFE

AUTHORIZATION = ("Authorization", "X-Fluxqueue-Authorization")
"""The first header that is present counts. The API server's proxy removes the first one."""
RETRY_S = 5
COMPRESSED_MIN = 2048
"""Bytes from which an answer is compressed."""
PRIVATE = {
    "Cache-Control": "private, no-cache",
    "Vary": ", ".join((*AUTHORIZATION, "Cookie", "Accept-Encoding")),
}


def to_json(found: Mapping[str, Any]) -> bytes:
    """Return JSON with times in UTC."""
    return orjson.dumps(found, default=float, option=orjson.OPT_UTC_Z | orjson.OPT_NAIVE_UTC)


def cached(
    request: web.Request, body: bytes, control: str = PRIVATE["Cache-Control"]
) -> web.Response:
    """Return the answer, or 304 if the caller has it already."""
    tag = ETag(hashlib.blake2b(body, digest_size=12).hexdigest())
    known = request.if_none_match or ()
    headers = {**SAFE, "Cache-Control": control, "Vary": PRIVATE["Vary"]}
    if any(one.value in (tag.value, "*") for one in known):
        response = web.Response(status=304, headers=headers)
    else:
        response = web.Response(body=body, content_type="application/json", headers=headers)
        if len(body) > COMPRESSED_MIN:
            response.enable_compression()
    response.etag = tag
    return response


def problem(code: int, detail: str, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return an error as a problem of RFC 9457."""
    body = {"title": HTTPStatus(code).phrase, "status": code, "detail": detail}
    return web.Response(
        status=code,
        body=to_json(body),
        content_type="application/problem+json",
        headers={**SAFE, "Cache-Control": "no-store", **(headers or {})},
    )


def later(detail: str, after_s: float | None) -> web.Response:
    """Return that the caller should try again after a while."""
    return problem(503, detail, {"Retry-After": str(int(after_s or RETRY_S))})


def unauthorized(why: str) -> web.Response:
    """Return that the request has no valid token, and how to get one."""
    way_out = (
        "send `Authorization: Bearer TOKEN` with a token that the API server knows "
        "(`kubectl create token NAME` makes one for a service account)"
    )
    return problem(401, f"{why}: {way_out}", {"WWW-Authenticate": 'Bearer realm="fluxqueue"'})
