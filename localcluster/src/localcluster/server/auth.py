"""Authentication: bearer tokens, and the users in impersonation headers.

``routes`` calls it for every request. The ``serviceaccounts/token`` and ``tokenreviews`` handlers
call it too. Service-account tokens are JSON web tokens signed with a key of this server. They carry
the claims of real ones. ``gate`` decides about rights and impersonation.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import orjson
from multidict import CIMultiDictProxy

from localcluster.kinds.request_context import UserInfo
from localcluster.kinds.service_accounts import service_account_user
from localcluster.server.http_refusals import unauthorized
from localcluster.types.refusals import bad_request, go_quote

AUDIENCE = "https://kubernetes.default.svc"

ADMIN = UserInfo("admin", "admin-uid", ("system:masters", "system:authenticated"))


@dataclass(slots=True)
class Authenticator:
    """Turns an ``Authorization`` header into a user.

    ``admin_token`` is the static token of the kubeconfig. ``static`` has further ones (tests,
    controllers). ``account_uid(namespace, name)`` returns the present uid of a service account, or
    None if it was deleted. Tokens of a deleted account are refused.
    """

    admin_token: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    static: dict[str, UserInfo] = field(default_factory=dict)
    signing_key: bytes = field(default_factory=lambda: secrets.token_bytes(32))
    account_uid: Callable[[str, str], str | None] = lambda _namespace, _name: None
    wall_s: Callable[[], float] = time.time

    def authenticate(self, headers: CIMultiDictProxy[str]) -> UserInfo:
        """Return the user of a request's token. Raise 401 if there is none."""
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            raise unauthorized()
        user = self.user_of(token.strip())
        if user is None:
            raise unauthorized()
        return user

    def user_of(self, token: str) -> UserInfo | None:
        """Return the user of a token, or None for a wrong or expired token."""
        if hmac.compare_digest(token.encode(), self.admin_token.encode()):
            return ADMIN
        if token in self.static:
            return self.static[token]
        claims = self.claims(token)
        return self._user_of_claims(claims) if claims is not None else None

    def _user_of_claims(self, claims: Mapping[str, Any]) -> UserInfo | None:
        bound = claims.get("kubernetes.io") or {}
        account = bound.get("serviceaccount") or {}
        namespace, name = bound.get("namespace", ""), account.get("name", "")
        if self.account_uid(namespace, name) != account.get("uid"):
            return None
        return service_account_user(
            namespace, name, account.get("uid", ""), str(claims.get("jti", ""))
        )

    def issue(
        self, namespace: str, name: str, uid: str, *, audiences: list[str], lifetime_s: int
    ) -> str:
        """Return a new token of a service account."""
        now_s = int(self.wall_s())
        claims = {
            "aud": audiences or [AUDIENCE],
            "exp": now_s + lifetime_s,
            "iat": now_s,
            "iss": AUDIENCE,
            "jti": str(uuid.uuid4()),
            "kubernetes.io": {
                "namespace": namespace,
                "serviceaccount": {"name": name, "uid": uid},
            },
            "nbf": now_s,
            "sub": f"system:serviceaccount:{namespace}:{name}",
        }
        head = _b64(orjson.dumps({"alg": "HS256", "typ": "JWT"}))
        payload = _b64(orjson.dumps(claims))
        return f"{head}.{payload}.{self._signature(f'{head}.{payload}')}"

    def claims(self, token: str) -> dict[str, Any] | None:
        """Return the claims of our own token if it is valid now, else None."""
        body, _, signature = token.rpartition(".")
        if not body or not hmac.compare_digest(self._signature(body).encode(), signature.encode()):
            return None
        try:
            payload = body.split(".")[1]
            claims: dict[str, Any] = orjson.loads(
                base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4))
            )
        except (ValueError, IndexError):
            return None
        return claims if claims.get("exp", 0) > self.wall_s() else None

    def _signature(self, text: str) -> str:
        return _b64(hmac.new(self.signing_key, text.encode(), hashlib.sha256).digest())


class AccountTokens:
    """Issues and reviews service-account tokens for ``kinds.actions``."""

    def __init__(self, authenticator: Authenticator) -> None:
        self._authenticator = authenticator

    def issue(self, account: dict[str, Any], spec: dict[str, Any]) -> tuple[str, str]:
        """Return a token for a ServiceAccount and the time it expires (RFC 3339)."""
        meta = account["metadata"]
        lifetime_s = int(spec.get("expirationSeconds") or 3600)
        token = self._authenticator.issue(
            meta["namespace"],
            meta["name"],
            meta["uid"],
            audiences=list(spec.get("audiences") or ()),
            lifetime_s=lifetime_s,
        )
        expires_s = int(self._authenticator.wall_s()) + lifetime_s
        return token, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(expires_s))

    def review(self, token: str, audiences: list[str]) -> UserInfo | str:
        """Return the user of a token, or why it is not valid."""
        user = self._authenticator.user_of(token)
        if user is None:
            return "invalid bearer token"
        claims = self._authenticator.claims(token)
        has = list(claims["aud"]) if claims is not None else [AUDIENCE]
        if audiences and not set(audiences) & set(has):
            shown = [" ".join(f'"{a}"' for a in listed) for listed in (has, audiences)]
            return (
                f"[invalid bearer token, token audiences [{shown[0]}] is invalid for the "
                f"target audiences [{shown[1]}]]"
            )
        return user


def _b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


_EXTRA = "impersonate-extra-"


def wanted_user(headers: CIMultiDictProxy[str]) -> UserInfo | None:
    """Return the user in the ``Impersonate-*`` headers as given, or None without them."""
    name = headers.get("impersonate-user", "")
    uid = headers.get("impersonate-uid", "")
    groups = tuple(headers.getall("impersonate-group", ()))
    extra: dict[str, tuple[str, ...]] = {}
    for header in dict.fromkeys(key.lower() for key in headers):
        if header.startswith(_EXTRA):
            key = unquote(header[len(_EXTRA) :])
            extra[key] = (*extra.get(key, ()), *headers.getall(header))
    if name:
        return UserInfo(name, uid, groups, extra)
    if uid or groups or extra:
        shown = (
            f"Name:{go_quote(name)}, UID:{go_quote(uid)}, Groups:{_go_strings(groups)}, "
            f"Extra:{_go_extra(extra)}"
        )
        text = f"requested &user.DefaultInfo{{{shown}}} without impersonating a user name"
        raise bad_request(text)
    return None


def _go_strings(texts: Iterable[str]) -> str:
    """Return a slice of strings as Go's ``%#v`` prints it."""
    shown = ", ".join(go_quote(text) for text in texts)
    return f"[]string{{{shown}}}" if shown else "[]string(nil)"


def _go_extra(extra: Mapping[str, tuple[str, ...]]) -> str:
    shown = ", ".join(f"{go_quote(key)}:{_go_strings(extra[key])}" for key in sorted(extra))
    return f"map[string][]string{{{shown}}}" if shown else "map[string][]string(nil)"
