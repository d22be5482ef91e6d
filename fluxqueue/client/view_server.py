"""How a client reaches the view server, with the credentials of the kubeconfig alone.

A ConfigMap that all users may read (``kube-public/fluxqueue-view``) has its address. That is a URL,
or a Service behind the API server's own proxy. The user then needs no address. The token of the
kubeconfig identifies the user. Other credentials identify them to the API server only.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from fluxqueue.errors import ApiError, ApiUnavailable, InvalidInput, NotFound

if TYPE_CHECKING:
    from fluxqueue.kube.client import KubeClient
    from fluxqueue.kube.config import ClusterConfig

ROOT = "/api/v1"
PROXIED = "X-Fluxqueue-Authorization"
PAGE = "500"
BAD_REQUEST, UNAUTHORIZED = 400, 401
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
URL_VARIABLE, TOKEN_VARIABLE = "FLUXQUEUE_VIEW", "FLUXQUEUE_VIEW_TOKEN"
NO_VIEW = (
    "this cluster has no view server, which history and acct need: an administrator can enable it "
    "(chart: view.enabled=true), or use --view URL (see docs/reference/view.md)"
)


class NoView(ApiError):
    """There is no view server that could be asked."""

    def __init__(self, message: str) -> None:
        super().__init__(0, "NoView", message, {"message": message})


@dataclass(frozen=True, slots=True)
class ViewClient:
    """An open connection to a view server."""

    client: KubeClient
    root: str

    async def lists(
        self, path: str, query: Mapping[str, str], limit: int = 0
    ) -> AsyncGenerator[list[dict[str, Any]], None]:
        """Yield items of a list, page by page. ``limit`` 0 means all.

        Raises
        ------
        InvalidInput
            The server rejects a parameter, or does not know the token.
        ApiError, ApiUnavailable
            The server refuses, or cannot be reached.
        """
        given, count = {key: one for key, one in query.items() if one}, 0
        while True:
            rest = str(min(int(PAGE), limit - count)) if limit else PAGE
            page = await self._get(self.root + path, {**given, "limit": rest})
            count += len(page["items"])
            yield page["items"]
            if not page.get("continue") or (limit and count >= limit):
                return
            given["continue"] = page["continue"]

    async def _get(self, path: str, query: Mapping[str, str]) -> dict[str, Any]:
        """Return one answer. A refusal is reported as the view server's, not the API server's."""
        try:
            return await self.client.request("GET", path, query=query)
        except ApiUnavailable as error:
            raise ApiUnavailable(f"the view server does not answer: {error}") from error
        except ApiError as error:
            said = str(error.body.get("message") or error.body.get("detail") or error)
            if error.code == BAD_REQUEST:
                raise InvalidInput(said) from error
            if error.code == UNAUTHORIZED:
                raise InvalidInput(
                    "the view server does not know this token",
                    where="--token",
                    hint=f"it may have expired: log in again, or leave out --token and"
                    f" {TOKEN_VARIABLE} to use the kubeconfig's",
                ) from error
            raise


def _check_url(url: str) -> None:
    """Refuse a URL that would send the token in clear text, except on this machine.

    Raises
    ------
    InvalidInput
        The URL must not be used.
    """
    parts = urlsplit(url)
    is_ours = parts.hostname in LOOPBACK
    if not parts.hostname or parts.scheme not in ({"https", "http"} if is_ours else {"https"}):
        raise InvalidInput(
            "tokens are sent to the view server by https only",
            where="--view",
            value=url,
            hint="for example https://view.example.org:8443",
        )


@asynccontextmanager
async def open_view(
    client: KubeClient, url: str = "", token: str = "", *, impersonated: str = ""
) -> AsyncIterator[ViewClient]:
    """Open the view server of a cluster, or the one at ``url``.

    Raises
    ------
    NoView
        The cluster has no view server.
    InvalidInput
        There is no token, another user is impersonated without one, or ``url`` is not valid.
    """
    from fluxqueue.kube.client import KubeClient

    bearer, place = await _bearer_and_place(client, url, token, impersonated)
    if "url" in place:
        async with KubeClient(_config_of(place, lambda: bearer)) as other:
            yield ViewClient(other, ROOT)
        return
    yield ViewClient(client.sending({PROXIED: bearer}), _proxy_path(place) + ROOT)


async def view_address(
    client: KubeClient, url: str = "", token: str = "", *, impersonated: str = ""
) -> tuple[str, Callable[[], dict[str, str]], ssl.SSLContext | None]:
    """Return the address of the view server, the headers of a request to it, and its TLS.

    The headers are made anew for each request, because tokens expire. Raises as ``open_view``.
    """
    bearer, place = await _bearer_and_place(client, url, token, impersonated)
    own = client.config

    def present() -> str:
        return bearer if token else own.authorization_header() or bearer

    if "url" in place:
        config = _config_of(place, present)
        return config.server, lambda: {"Authorization": present()}, config.ssl_context()

    def both() -> dict[str, str]:
        return {"Authorization": own.authorization_header() or present(), PROXIED: present()}

    return own.server.rstrip("/") + _proxy_path(place), both, own.ssl_context()


async def _bearer_and_place(
    client: KubeClient, url: str, token: str, impersonated: str
) -> tuple[str, dict[str, str]]:
    if impersonated and not token:
        raise InvalidInput(
            "the view server identifies users by their own token",
            where="--as",
            value=impersonated,
            hint="use a token of that user with --token",
        )
    if url:
        _check_url(url)
    bearer = f"Bearer {token}" if token else await _own_token(client)
    return bearer, {"url": url} if url else await _find(client)


def _config_of(place: Mapping[str, str], bearer: Callable[[], str]) -> ClusterConfig:
    from fluxqueue.kube.config import ClusterConfig

    is_told = place.get("ca.crt") or None
    return ClusterConfig(server=place["url"].rstrip("/"), ca_pem=is_told, authorization=bearer)


def _proxy_path(place: Mapping[str, str]) -> str:
    return f"/api/v1/namespaces/{place['namespace']}/services/{place['service']}/proxy"


async def _own_token(client: KubeClient) -> str:
    import asyncio

    found = await asyncio.to_thread(client.config.authorization_header)
    if found is None or not found.lower().startswith("bearer "):
        raise InvalidInput(
            "the user of the kubeconfig has no token, and the view server identifies users by "
            "tokens (a client certificate identifies them to the API server only)",
            where="--token",
            hint='use the token of a service account with your rights: --token "$(kubectl create '
            'token NAME)"',
        )
    return found


async def _find(client: KubeClient) -> dict[str, str]:
    from fluxqueue.kube.installation import VIEW_NAME, VIEW_NAMESPACE
    from fluxqueue.kube.resources import CONFIGMAPS

    try:
        found = await client.get(CONFIGMAPS, VIEW_NAMESPACE, VIEW_NAME)
    except NotFound:
        raise NoView(NO_VIEW) from None
    except ApiError as error:
        if error.code == UNAUTHORIZED:
            raise
        raise NoView(f"{NO_VIEW} ({error})") from error
    place: dict[str, str] = found.get("data") or {}
    if not (place.get("url") or (place.get("service") and place.get("namespace"))):
        raise NoView(NO_VIEW)
    return place
