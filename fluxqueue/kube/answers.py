"""What an answer of the API server means: Status bodies to exceptions, Retry-After, decoding.

Pure functions, called by ``client.py``; kept apart so that every mapping is unit-tested without a
server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from fluxqueue.errors import ApiError, ApiUnavailable, Conflict, Gone, Invalid, NotFound

_BY_CODE: dict[int, type[ApiError]] = {404: NotFound, 409: Conflict, 410: Gone, 422: Invalid}

# A server that asks for a longer pause than this is not waited for inside a request: the caller
# gets ApiUnavailable with the figure and decides.
RETRY_AFTER_MAX_S = 30.0


def decode(body: bytes) -> Any:
    """JSON of an answer; raises ApiUnavailable if it is none (a proxy's error page)."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiUnavailable(f"answer is no JSON: {body[:200]!r}") from error


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Seconds of a Retry-After header; None if absent or given as a date (API servers never do)."""
    value = headers.get("Retry-After") or headers.get("retry-after")
    try:
        return max(0.0, float(value)) if value is not None else None
    except ValueError:
        return None


def as_error(
    code: int, headers: Mapping[str, str], body: bytes, *, what: str = ""
) -> ApiError | ApiUnavailable:
    """The exception for an answer of 400 or more; ``what`` names the request in the message."""
    try:
        status = orjson.loads(body) if body else {}
    except orjson.JSONDecodeError:
        status = {}
    if not isinstance(status, dict) or status.get("kind") != "Status":
        # RFC 9457, as the view server has it.
        told = status.get("detail") if isinstance(status, dict) else None
        text = str(told) if told else body[:200].decode("utf-8", "replace").strip()
        status = {"kind": "Status", "code": code, "message": text}
    return status_error(code, status, after_s=retry_after_s(headers), what=what)


def status_error(
    code: int, status: dict[str, Any], *, after_s: float | None = None, what: str = ""
) -> ApiError | ApiUnavailable:
    """The exception for a Status object (also one inside a watch's ERROR event)."""
    message = str(status.get("message") or "no message")
    if what:
        message = f"{what}: {message}"
    if code == 429 or code >= 500:
        if after_s is None:
            after_s = (status.get("details") or {}).get("retryAfterSeconds")
        return ApiUnavailable(f"{code} {message}", retry_after_s=after_s)
    kind = _BY_CODE.get(code, ApiError)
    return kind(code, str(status.get("reason") or "Unknown"), message, status)
