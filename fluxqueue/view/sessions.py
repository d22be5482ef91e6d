"""The token of a request: from a header, or from the cookie that the page has after a login. Pure.

``server`` calls it. The cookie holds the token itself, so any replica can answer, and a session
ends with its token. Scripts cannot read it. Browsers send it to this server only, by https only.
"""

from __future__ import annotations

from aiohttp import web

from fluxqueue.errors import InvalidInput
from fluxqueue.view.replies import AUTHORIZATION
from fluxqueue.view.same_site import why_foreign

COOKIE = "__Host-fluxqueue"
"""Browsers accept this prefix for cookies of one host, with ``Secure`` and without a path only."""
TOKEN_MAX = 16 * 1024
COOKIE_MAX = 3_800
"""Browsers drop cookies of more than 4,096 bytes, with their name and attributes."""


def token_of(request: web.Request) -> str | None:
    """Return the bearer token of a request, or None if it has none that counts.

    A cookie counts only for a request that the page itself has made.
    """
    for name in AUTHORIZATION:
        scheme, _, token = request.headers.get(name, "").partition(" ")
        if scheme.lower() == "bearer" and 0 < len(token.strip()) <= TOKEN_MAX:
            return token.strip()
    return request.cookies.get(COOKIE) or None


def why_not_ours(request: web.Request) -> str | None:
    """Return why a request with the cookie may come from another site, or None."""
    has_header = any(name in request.headers for name in AUTHORIZATION)
    return None if has_header else why_foreign(request.method, request.host, request.headers)


def keep(response: web.Response, token: str) -> None:
    """Store the token in the cookie of the browser.

    Raises
    ------
    InvalidInput
        It is too long, or is no token at all.
    """
    is_plain = token.isascii() and token.isprintable() and not set(token) & set(' ";,\\')
    if not token or not is_plain:
        raise InvalidInput("is not a token", where="token", hint="kubectl create token NAME")
    if len(token) > COOKIE_MAX:
        raise InvalidInput(
            f"has {len(token)} characters, and a cookie holds {COOKIE_MAX}",
            where="token",
            hint="kubectl fluxqueue web works with a token of any length",
        )
    response.set_cookie(COOKIE, token, path="/", secure=True, httponly=True, samesite="Strict")


def forget(response: web.Response) -> None:
    """Remove the cookie."""
    response.del_cookie(COOKIE, path="/", secure=True, httponly=True, samesite="Strict")
