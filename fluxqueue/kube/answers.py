"""The meaning of an API server's answer: Status to exceptions, Retry-After, decoding.

Pure functions that ``client.py`` calls. They are separate so that unit tests cover every mapping
without a server.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from fluxqueue.errors import ApiError, ApiUnavailable, Conflict, Gone, Invalid, NotFound

WRONG_SERVER = ". Fix: check the server of the kubeconfig, and the proxy"
REFUSED_FROM = 300
"""Smallest code of a refusal. No API server redirects: proxies and login pages do."""
_BY_CODE: dict[int, type[ApiError]] = {404: NotFound, 409: Conflict, 410: Gone, 422: Invalid}

# A longer pause is not spent inside a request: the caller gets ApiUnavailable with the figure.
RETRY_AFTER_MAX_S = 30.0


def decode(body: bytes) -> Any:
    """Return the JSON of an answer. Raises ApiUnavailable for anything else.

    A proxy's error page is an example of such an answer.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise ApiUnavailable(f"the answer is not JSON: {body[:200]!r}{WRONG_SERVER}") from error


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return the seconds of a Retry-After header, None if it is absent or a date.

    API servers never send a date.
    """
    value = headers.get("Retry-After") or headers.get("retry-after")
    try:
        return max(0.0, float(value)) if value is not None else None
    except ValueError:
        return None


def as_error(
    code: int, headers: Mapping[str, str], body: bytes, *, what: str = ""
) -> ApiError | ApiUnavailable:
    """Return the exception for an answer of ``REFUSED_FROM`` or more.

    Parameters
    ----------
    what : Names the request in the message.
    """
    try:
        status = orjson.loads(body) if body else {}
    except orjson.JSONDecodeError:
        status = {}
    if not isinstance(status, dict) or status.get("kind") != "Status":
        # RFC 9457, which the view server uses.
        told = status.get("detail") if isinstance(status, dict) else None
        text = str(told) if told else body[:200].decode("utf-8", "replace").strip()
        if code < 400:
            elsewhere = headers.get("Location") or headers.get("location") or "another place"
            text = f"the server sends us to {elsewhere[:200]}{WRONG_SERVER}"
        status = {"kind": "Status", "code": code, "message": text}
    return status_error(code, status, after_s=retry_after_s(headers), what=what)


def status_error(
    code: int, status: dict[str, Any], *, after_s: float | None = None, what: str = ""
) -> ApiError | ApiUnavailable:
    """Return the exception for a Status object, also one inside a watch's ERROR event."""
    message = str(status.get("message") or "no message")
    if what:
        message = f"{what}: {message}"
    if code == 429 or code >= 500:
        if after_s is None:
            after_s = (status.get("details") or {}).get("retryAfterSeconds")
        return ApiUnavailable(f"{code} {message}", retry_after_s=after_s)
    kind = _BY_CODE.get(code, ApiError)
    return kind(code, str(status.get("reason") or "Unknown"), message, status)
