"""The errors that this package raises on purpose, apart from the API server's own answers.

::

    LocalClusterError
    ├── InvalidSettings     an argument, a kubeconfig or a data directory that cannot be used
    └── ClientError         a request of a controller or a simulated node did not succeed
        ├── ApiUnavailable  no answer, 429 or 5xx: the same request may succeed later
        └── ApiError        refused (``code``, ``reason``, ``body``)
            ├── NotFound    404
            ├── Conflict    409: read again, then decide again
            ├── Gone        410: the watch is too old, list again
            └── Invalid     422

The server's errors, before they become bytes, are ``StatusError``. This module imports none of our
modules.
"""

from __future__ import annotations

from typing import Any


class LocalClusterError(Exception):
    """Root of all errors raised on purpose."""


class InvalidSettings(LocalClusterError):
    """A given value cannot be used. ``where`` names it, ``hint`` is the way out."""

    def __init__(self, message: str, *, where: str, hint: str = "") -> None:
        self.where, self.hint = where, hint
        super().__init__(f"{where}: {message}" + (f" ({hint})" if hint else ""))


class ClientError(LocalClusterError):
    """A request that did not succeed."""


class ApiUnavailable(ClientError):
    """No answer, or an answer that means: not now."""


class ApiError(ClientError):
    """The API server refused. ``body`` is its Status object."""

    def __init__(self, what: str, code: int, body: dict[str, Any]) -> None:
        self.code, self.body = code, body
        self.reason = str(body.get("reason") or "Unknown")
        super().__init__(f"{what}: {code} {self.reason}: {body.get('message') or 'no message'}")


class NotFound(ApiError):
    """404."""


class Conflict(ApiError):
    """409: AlreadyExists, a stale resourceVersion or a precondition. ``reason`` says which."""


class Gone(ApiError):
    """410."""


class Invalid(ApiError):
    """422: validation, an immutable field or a JSON Patch ``test``."""


_BY_CODE = {404: NotFound, 409: Conflict, 410: Gone, 422: Invalid}


def refusal(what: str, code: int, status: dict[str, Any]) -> ClientError:
    """Return the exception for an answer of 400 or more. ``what`` names the request."""
    if code == 429 or code >= 500:
        return ApiUnavailable(f"{what}: {code} {status.get('message') or 'no message'}")
    return _BY_CODE.get(code, ApiError)(what, code, status)
