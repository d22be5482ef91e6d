"""Authorization of requests: impersonation first, then the authorizer. Raises 403.

``routes`` calls it before anything else is checked. So a user without rights learns nothing, not
even that the resource does not exist. ``kinds.authorizer`` decides about rights. Sources in
``k8s.io/apiserver/pkg/endpoints``: ``request/requestinfo.go`` (the meaning of a path) and
``filters/impersonation`` (the rights to impersonate).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from localcluster.kinds.authorizer import MASTERS, Authorizer, refusal, require
from localcluster.kinds.request_context import UserInfo
from localcluster.kinds.service_accounts import service_account_groups, service_account_of
from localcluster.server.audit import AuditLog
from localcluster.server.request import ApiRequest, bool_parameter
from localcluster.server.selectors import SelectorError, parse_fields
from localcluster.types import names
from localcluster.types.refusals import StatusError
from localcluster.types.role_rules import Action

_VERBS = {
    "POST": "create",
    "GET": "get",
    "HEAD": "get",
    "PUT": "update",
    "PATCH": "patch",
    "DELETE": "delete",
}
_AUTHENTICATION = "authentication.k8s.io"
_NODE = "system:node:"
AUTHENTICATED, UNAUTHENTICATED = "system:authenticated", "system:unauthenticated"
REQUESTORS_MAX = 10_000
"""Number of users with a cached last mode of impersonation."""


class Gate:
    """Allows or refuses requests. One per server."""

    def __init__(self, authorizer: Authorizer, audit: AuditLog | None = None) -> None:
        self._authorizer, self._audit = authorizer, audit
        self._impersonation = Impersonation(authorizer)

    def check(self, request: ApiRequest) -> None:
        """Raise 403, or set ``request.user`` to the acting user. That user is allowed to do it."""
        is_sure = request.acting_as is None and self._authorizer.is_almighty(request.user)
        if is_sure and self._audit is None:
            return
        asker, action = request.user, action_of(request)
        is_allowed = False
        try:
            self._judge(request, action)
            is_allowed = True
        finally:
            if self._audit is not None:
                self._audit.note(asker, request, action, is_allowed=is_allowed)

    def _judge(self, request: ApiRequest, action: Action) -> None:
        if request.acting_as is not None:
            request.user = self._impersonation.check(request.user, request.acting_as, action)
        require(self._authorizer, request.user, action)

    @staticmethod
    def trust(request: ApiRequest) -> None:
        """Allow a request of the control plane itself, for the user that it impersonates."""
        if request.acting_as is not None:
            request.user = completed(request.acting_as)


def action_of(request: ApiRequest) -> Action:
    """Return what a request wants to do, by its method and path alone.

    The resource need not exist.
    """
    parts = [part for part in request.path.strip("/").split("/") if part]
    if parts[:1] == ["api"] and len(parts) >= 3:
        group, rest = "", parts[2:]
    elif parts[:1] == ["apis"] and len(parts) >= 4:
        group, rest = parts[1], parts[3:]
    else:
        return Action(request.method.lower(), path=request.path)
    verb, namespace = _VERBS.get(request.method, ""), ""
    if rest[0] in ("watch", "proxy") and len(rest) > 1:
        verb, rest = rest[0], rest[1:]
    if rest[0] == "namespaces" and len(rest) > 1:
        namespace = rest[1]
        if len(rest) > 2 and rest[2] not in ("status", "finalize"):
            rest = rest[2:]
    resource, name, subresource = (*rest[:3], "", "")[:3]
    if not name and verb == "get":
        verb = "watch" if bool_parameter(request.query, "watch") else "list"
        name = _selected_name(request.query.get("fieldSelector", ""))
    elif not name and verb == "delete":
        verb = "deletecollection"
    return Action(verb, group, resource, subresource, namespace, name)


def _selected_name(field_selector: str) -> str:
    """Return the one object that a list or watch selects by ``metadata.name``, or ""."""
    if not field_selector:
        return ""
    try:
        name = parse_fields(field_selector).required("metadata.name") or ""
    except SelectorError:
        return ""
    return "" if names.path_segment(name) else name


# -- impersonation --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Mode:
    """One mode of impersonation.

    ``name`` is empty for the verb ``impersonate``, which covers any action. The other modes need
    ``impersonate-on:NAME:VERB`` for the action, and ``impersonate:NAME`` for each part of the user.
    """

    name: str
    fits: Callable[[UserInfo], bool]

    @property
    def verb(self) -> str:
        return f"impersonate:{self.name}" if self.name else "impersonate"

    @property
    def group(self) -> str:
        """Return the API group of users and groups. Uids and extras always have the new group."""
        return _AUTHENTICATION if self.name else ""


def _is_name_only(user: UserInfo) -> bool:
    return not (user.uid or user.groups or user.extra)


def _node_of(username: str) -> str:
    node = username.removeprefix(_NODE)
    return node if node != username and not names.dns_subdomain(node) else ""


def _is_person(user: UserInfo) -> bool:
    return not _node_of(user.username) and service_account_of(user.username) is None


_MODES = (
    _Mode("arbitrary-node", lambda user: _is_name_only(user) and bool(_node_of(user.username))),
    _Mode(
        "serviceaccount",
        lambda user: _is_name_only(user) and service_account_of(user.username) is not None,
    ),
    _Mode("user-info", _is_person),
    _Mode("", lambda _user: True),
)


class Impersonation:
    """Decides which users may impersonate which."""

    def __init__(self, authorizer: Authorizer) -> None:
        self._authorizer = authorizer
        self._last: dict[str, _Mode] = {}

    def check(self, user: UserInfo, wanted: UserInfo, action: Action) -> UserInfo:
        """Return the impersonated user with its groups filled in, or raise 403.

        The user's last successful mode is tried first. Of several errors the first one counts.
        """
        last = self._last.get(user.username)
        modes = sorted((m for m in _MODES if m.fits(wanted)), key=lambda mode: mode is not last)
        first: StatusError | None = None
        for mode in modes:
            try:
                self._check_mode(mode, user, wanted, action)
            except StatusError as error:
                first = first or error
                continue
            if len(self._last) >= REQUESTORS_MAX:
                self._last.clear()
            self._last[user.username] = mode
            return completed(wanted, is_node=bool(mode.name and _node_of(wanted.username)))
        assert first is not None
        raise first

    def _check_mode(self, mode: _Mode, user: UserInfo, wanted: UserInfo, action: Action) -> None:
        authorizer = self._authorizer
        if mode.name:
            verb = f"impersonate-on:{mode.name}:{action.verb}"
            require(authorizer, user, replace(action, verb=verb))
        require(authorizer, user, _as_name(mode, wanted.username))
        if wanted.uid:
            require(authorizer, user, Action(mode.verb, _AUTHENTICATION, "uids", name=wanted.uid))
        for group in wanted.groups:
            acting = Action(mode.verb, mode.group, "groups", name=group)
            if mode.name and group == MASTERS:
                why = f"impersonating the {MASTERS} group is not allowed"
                raise refusal(user, acting, why)
            require(authorizer, user, acting)
        for key, values in wanted.extra.items():
            for value in values:
                acting = Action(mode.verb, _AUTHENTICATION, "userextras", key, name=value)
                require(authorizer, user, acting)


def _as_name(mode: _Mode, username: str) -> Action:
    if account := service_account_of(username):
        namespace, name = account
        return Action(mode.verb, mode.group, "serviceaccounts", namespace=namespace, name=name)
    if mode.name and (node := _node_of(username)):
        return Action(mode.verb, mode.group, "nodes", name=node)
    return Action(mode.verb, mode.group, "users", name=username)


def completed(wanted: UserInfo, *, is_node: bool = False) -> UserInfo:
    """Return the impersonated user, with the groups that such a user has."""
    groups = wanted.groups
    if not groups and (account := service_account_of(wanted.username)):
        groups = service_account_groups(account[0])
    elif is_node:
        groups = ("system:nodes",)
    if wanted.username == "system:anonymous":
        added = UNAUTHENTICATED
    elif UNAUTHENTICATED in groups:
        return replace(wanted, groups=groups)
    else:
        added = AUTHENTICATED
    return replace(wanted, groups=groups if added in groups else (*groups, added))
