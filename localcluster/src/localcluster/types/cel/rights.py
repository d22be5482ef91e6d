"""``authorizer``: what an expression may ask about rights; called by ``functions``.

Who decides is given by whoever evaluates the expression. Pure.

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

    ``of_account(namespace, name)`` gives another's; ``request`` is what is being done.
    """

    decide: Callable[[Action], Verdict]
    of_account: Callable[[str, str], Rights]
    request: Action


@dataclass(frozen=True, slots=True)
class PathCheck:
    """``authorizer.path(...)``."""

    rights: Rights
    path: str

    def check(self, verb: str) -> Verdict:
        """Whether the verb is allowed on the path."""
        return self.rights.decide(Action(verb, path=self.path))


@dataclass(frozen=True, slots=True)
class GroupCheck:
    """``authorizer.group(...)``."""

    rights: Rights
    group: str

    def resource(self, name: str) -> ResourceCheck:
        """A resource of the group."""
        return ResourceCheck(self.rights, Action("", self.group, name))


@dataclass(frozen=True, slots=True)
class ResourceCheck:
    """``authorizer.group(...).resource(...)`` and what is said more exactly."""

    rights: Rights
    action: Action

    def subresource(self, name: str) -> ResourceCheck:
        """A part of it."""
        return replace(self, action=replace(self.action, subresource=name))

    def namespace(self, name: str) -> ResourceCheck:
        """In a namespace."""
        return replace(self, action=replace(self.action, namespace=name))

    def named(self, name: str) -> ResourceCheck:
        """One object."""
        return replace(self, action=replace(self.action, name=name))

    def check(self, verb: str) -> Verdict:
        """Whether the verb is allowed on it."""
        return self.rights.decide(replace(self.action, verb=verb))


def path_check(rights: Rights, path: str) -> PathCheck:
    """``authorizer.path(path)``."""
    return PathCheck(rights, path)


def group_check(rights: Rights, group: str) -> GroupCheck:
    """``authorizer.group(group)``."""
    return GroupCheck(rights, group)


def of_request(rights: Rights) -> ResourceCheck:
    """``authorizer.requestResource``."""
    return ResourceCheck(rights, rights.request)
