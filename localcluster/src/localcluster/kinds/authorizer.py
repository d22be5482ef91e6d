"""Role-based access control: the decisions of the API server's RBAC authorizer.

``server.gate`` calls it for every request. The access reviews and ``escalation`` call it too, and
so do writes that turn out to need another right. It reads roles and bindings and changes nothing.
``types.role_rules`` evaluates rules. Source: ``k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac``
and ``pkg/registry/rbac/validation``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from localcluster.kinds.request_context import ObjectReader, UserInfo
from localcluster.obj import Obj
from localcluster.types.refusals import StatusError, forbidden, go_quote
from localcluster.types.role_rules import EVERYTHING, Action, Rule, allows

GROUP = "rbac.authorization.k8s.io"
MASTERS = "system:masters"
"""The group with all rights, whatever roles say, so that a cluster cannot lock itself out."""
USERS_MAX = 2048
"""Number of (user, namespace) pairs with cached rules."""


@dataclass(frozen=True, slots=True)
class Decision:
    """Whether an action is allowed. ``reason`` says by what, or what prevented it."""

    is_allowed: bool
    reason: str = ""


class Authorizer(Protocol):
    """The interface that decides about rights."""

    def is_almighty(self, user: UserInfo) -> bool:
        """Return whether ``user`` may do everything."""

    def decide(self, user: UserInfo, action: Action) -> Decision:
        """Decide whether ``user`` may do ``action``."""

    def rules_of(self, user: UserInfo, namespace: str) -> Sequence[Rule]:
        """Return all rules of ``user`` in ``namespace`` ("": those of the whole cluster)."""

    def rules_of_role(self, role_ref: Obj, namespace: str) -> Sequence[Rule]:
        """Return the rules of a role that a binding names. LookupError, with a text, for none."""


class AlwaysAllow:
    """No access control, as with ``--authorization-mode=AlwaysAllow``."""

    def is_almighty(self, user: UserInfo) -> bool:
        """Return True for every user."""
        return True

    def decide(self, user: UserInfo, action: Action) -> Decision:
        """Allow the action."""
        return Decision(is_allowed=True)

    def rules_of(self, user: UserInfo, namespace: str) -> Sequence[Rule]:
        """Return a rule for everything."""
        return EVERYTHING

    def rules_of_role(self, role_ref: Obj, namespace: str) -> Sequence[Rule]:
        """Return no rules, because none are needed."""
        return ()


@dataclass(slots=True)
class _Granted:
    """The rights of a user in one namespace: rules with their bindings, and errors."""

    rules: list[tuple[Rule, Obj, Obj]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class Rbac:
    """Decides by Roles, ClusterRoles and their bindings.

    The rules of a user in a namespace are collected once and cached until a role or a binding
    changes. Call :meth:`note` for each change.
    """

    def __init__(self, reader: ObjectReader) -> None:
        self._reader = reader
        self._known: dict[tuple[str, tuple[str, ...], str], _Granted] = {}

    def note(self, storage: tuple[str, str], _event: object) -> None:
        """Drop the cache when a role or binding was stored (a listener of the store)."""
        if storage[0] == GROUP:
            self._known.clear()

    def is_almighty(self, user: UserInfo) -> bool:
        """Return whether the user is in ``system:masters``."""
        return MASTERS in user.groups

    def decide(self, user: UserInfo, action: Action) -> Decision:
        """Decide by the first rule that allows it. Cluster rules come before namespace rules."""
        if self.is_almighty(user):
            return Decision(is_allowed=True)
        granted = self._granted(user, action.namespace)
        for rule, binding, subject in granted.rules:
            if allows(rule, action):
                return Decision(True, f"RBAC: allowed by {_source(binding, subject)}")
        if not granted.errors:
            return Decision(is_allowed=False)
        errors = list(dict.fromkeys(granted.errors))
        listed = errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]"
        return Decision(False, f"RBAC: {listed}")

    def rules_of(self, user: UserInfo, namespace: str) -> Sequence[Rule]:
        """Return all rules of ``user`` there."""
        return [rule for rule, _, _ in self._granted(user, namespace).rules]

    def rules_of_role(self, role_ref: Obj, namespace: str) -> Sequence[Rule]:
        """Return the rules of the role that a binding of ``namespace`` names."""
        kind, name = role_ref.get("kind", ""), role_ref.get("name", "")
        if kind == "Role":
            role = self._reader.get(GROUP, "roles", namespace, name)
        elif kind == "ClusterRole":
            role = self._reader.get(GROUP, "clusterroles", "", name)
        else:
            raise LookupError(f"unsupported role reference kind: {go_quote(kind)}")
        if role is None:
            raise LookupError(f"{kind.lower()}.{GROUP} {go_quote(name)} not found")
        rules: list[Rule] = role.get("rules") or []
        return rules

    # -- collecting -----------------------------------------------------------------------------

    def _granted(self, user: UserInfo, namespace: str) -> _Granted:
        key = (user.username, user.groups, namespace)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= USERS_MAX:
                self._known.clear()
            found = self._known[key] = self._gather(user, namespace)
        return found

    def _gather(self, user: UserInfo, namespace: str) -> _Granted:
        granted = _Granted()
        for binding, subject in self._bindings(user, namespace):
            try:
                rules = self.rules_of_role(
                    binding["roleRef"], binding["metadata"].get("namespace", "")
                )
            except LookupError as error:
                granted.errors.append(str(error))
                continue
            granted.rules += [(rule, binding, subject) for rule in rules]
        return granted

    def _bindings(self, user: UserInfo, namespace: str) -> Iterator[tuple[Obj, Obj]]:
        """Yield the bindings that name the user, each with the first subject that matches."""
        bindings = _by_name(self._reader.list(GROUP, "clusterrolebindings"))
        if namespace:
            bindings += _by_name(self._reader.list(GROUP, "rolebindings", namespace))
        for binding in bindings:
            inside = binding["metadata"].get("namespace", "")
            subjects = binding.get("subjects") or ()
            if one := next((s for s in subjects if _is_subject(user, s, inside)), None):
                yield binding, one


def _by_name(bindings: list[Obj]) -> list[Obj]:
    return sorted(bindings, key=lambda one: str(one["metadata"]["name"]))


def _is_subject(user: UserInfo, subject: Mapping[str, Any], namespace: str) -> bool:
    kind, name = subject.get("kind"), subject.get("name", "")
    if kind == "User":
        return bool(user.username == name)
    if kind == "Group":
        return name in user.groups
    home = subject.get("namespace") or namespace
    return (
        kind == "ServiceAccount"
        and bool(home)
        and (user.username == f"system:serviceaccount:{home}:{name}")
    )


def _source(binding: Obj, subject: Obj) -> str:
    """Return a binding as reasons name it: name before namespace, as in the real server."""
    meta, ref = binding["metadata"], binding["roleRef"]
    namespace = meta.get("namespace", "")
    named = f"{meta['name']}/{namespace}" if namespace else meta["name"]
    who = subject["name"]
    if subject["kind"] == "ServiceAccount":
        who = f"{who}/{subject.get('namespace') or namespace}"
    return (
        f"{'RoleBinding' if namespace else 'ClusterRoleBinding'} {go_quote(named)} of "
        f"{ref['kind']} {go_quote(ref['name'])} to {subject['kind']} {go_quote(who)}"
    )


# -- errors ---------------------------------------------------------------------------------


def require(authorizer: Authorizer, user: UserInfo, action: Action) -> None:
    """Raise 403 unless ``user`` may do ``action``."""
    decision = authorizer.decide(user, action)
    if not decision.is_allowed:
        raise refusal(user, action, decision.reason)


def refusal(user: UserInfo, action: Action, reason: str = "") -> StatusError:
    """Return a 403 in the API server's words."""
    why = f": {reason}" if reason else ""
    who = f"User {go_quote(user.username)} cannot {action.verb}"
    if action.path is not None:
        message = f"forbidden: {who} path {go_quote(action.path)}{why}"
        return StatusError(403, "Forbidden", message, details={})
    resource = action.resource
    if action.subresource:
        resource = f"{resource}/{action.subresource}"
    where = "at the cluster scope"
    if action.namespace:
        where = f"in the namespace {go_quote(action.namespace)}"
    return forbidden(
        action.group,
        action.resource,
        action.name,
        f"{who} resource {go_quote(resource)} in API group {go_quote(action.group)} {where}{why}",
    )
