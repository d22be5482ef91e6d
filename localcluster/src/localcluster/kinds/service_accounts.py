"""Service accounts as users: their names and their groups. Pure."""

from __future__ import annotations

from localcluster.kinds.request_context import UserInfo
from localcluster.types import names

CREDENTIAL_ID = "authentication.kubernetes.io/credential-id"
_ACCOUNT = "system:serviceaccount:"


def service_account_groups(namespace: str) -> tuple[str, ...]:
    """Return the groups of a namespace's service accounts, without ``system:authenticated``."""
    return "system:serviceaccounts", f"system:serviceaccounts:{namespace}"


def service_account_of(username: str) -> tuple[str, str] | None:
    """Return namespace and name of the service account that a user is, or None."""
    namespace, _, name = username.removeprefix(_ACCOUNT).partition(":")
    is_one = username.startswith(_ACCOUNT) and not names.dns_label(namespace)
    return (namespace, name) if is_one and not names.dns_subdomain(name) else None


def service_account_user(namespace: str, name: str, uid: str = "", token_id: str = "") -> UserInfo:
    """Return the user for a service account."""
    return UserInfo(
        f"{_ACCOUNT}{namespace}:{name}",
        uid,
        (*service_account_groups(namespace), "system:authenticated"),
        {CREDENTIAL_ID: (f"JTI={token_id}",)} if token_id else {},
    )
