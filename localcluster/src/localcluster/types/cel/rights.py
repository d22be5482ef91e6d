"""``authorizer``: the questions about rights that an expression may ask.

``functions`` uses it. The caller that evaluates the expression supplies the decision. Pure.

Source: ``library/authz.go`` of k8s.io/apiserver/pkg/cel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from localcluster.types.role_rules import Action


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to a check."""

    is_allowed: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Rights:
    """The rights of one user: ``authorizer``, or those of a service account.

    ``of_account(namespace, name)`` returns those of another account. ``request`` is the present
    action.
    """

    decide: Callable[[Action], Verdict]
    of_account: Callable[[str, str], Rights]
    request: Action


@dataclass(frozen=True, slots=True)
class PathCheck:
    """The value of ``authorizer.path(...)``."""

    rights: Rights
    path: str

    def check(self, verb: str) -> Verdict:
        """Return whether the verb is allowed on the path."""
        return self.rights.decide(Action(verb, path=self.path))


@dataclass(frozen=True, slots=True)
class GroupCheck:
    """The value of ``authorizer.group(...)``."""

    rights: Rights
    group: str

    def resource(self, name: str) -> ResourceCheck:
        """Return a resource of the group."""
        return ResourceCheck(self.rights, Action("", self.group, name))


@dataclass(frozen=True, slots=True)
class ResourceCheck:
    """The value of ``authorizer.group(...).resource(...)`` and its refinements."""

    rights: Rights
    action: Action

    def subresource(self, name: str) -> ResourceCheck:
        """Return the check of a subresource."""
        return replace(self, action=replace(self.action, subresource=name))

    def namespace(self, name: str) -> ResourceCheck:
        """Return the check in a namespace."""
        return replace(self, action=replace(self.action, namespace=name))

    def named(self, name: str) -> ResourceCheck:
        """Return the check of one object."""
        return replace(self, action=replace(self.action, name=name))

    def check(self, verb: str) -> Verdict:
        """Return whether the verb is allowed on the resource."""
        return self.rights.decide(replace(self.action, verb=verb))


def path_check(rights: Rights, path: str) -> PathCheck:
    """Return ``authorizer.path(path)``."""
    return PathCheck(rights, path)


def group_check(rights: Rights, group: str) -> GroupCheck:
    """Return ``authorizer.group(group)``."""
    return GroupCheck(rights, group)


def of_request(rights: Rights) -> ResourceCheck:
    """Return ``authorizer.requestResource``."""
    return ResourceCheck(rights, rights.request)
