"""The submitter of a workload, if a controller or a GitOps tool creates it for a user.

Called by the webhook. ``Submitters.submitter`` names the user that a new workload counts for.
``Submitters.with_submitter`` writes that user into the templates from which the cluster's
controllers make pods and Jobs. So each pod carries the user without a look-up. A policy of the API
server guards these templates (chart/files/policies.yaml). Without the policy no template is
trusted: ``Submitters.controllers`` is empty then. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fluxqueue.errors import InvalidInput, InvalidSettings
from fluxqueue.process.cluster_accounts import CLUSTER_CONTROLLERS
from fluxqueue.workload import labels
from fluxqueue.workload.json_patch import at, edited
from fluxqueue.workload.object_paths import Path
from fluxqueue.workload.objects import Object
from fluxqueue.workload.pods import controller_owner

if TYPE_CHECKING:
    from fluxqueue.process.settings import Settings

NAME_MAX = 253
_NAME = re.compile(rf"[A-Za-z0-9][-A-Za-z0-9@:._+/=#]{{0,{NAME_MAX - 1}}}")
_KEY = re.compile(r"[a-z0-9][-a-z0-9.]{0,252}/[A-Za-z0-9][-A-Za-z0-9_.]{0,62}")
_SERVICE_ACCOUNT = "system:serviceaccount:"
_OF_THE_CLUSTER = ("system:serviceaccount:kube-system:", "system:kube-")
_ANNOTATIONS: Path = ("metadata", "annotations")
_STAMP: Path = (*_ANNOTATIONS, labels.USER)


@dataclass(frozen=True, slots=True)
class StampedKind:
    """A kind with templates that carry the submitter.

    ``templates``: paths of the objects with the ``metadata`` that pods or Jobs get. ``unused``:
    paths of templates where a user is never trusted, so no user may stand there. ``rolls_out``: a
    change of its template replaces its pods. ``is_foreign``: its controller is no part of
    Kubernetes, so an administrator must have named that controller's account.
    """

    templates: tuple[Path, ...]
    unused: tuple[Path, ...] = ()
    rolls_out: bool = True
    is_foreign: bool = False


_POD_TEMPLATE: tuple[Path, ...] = (("spec", "template"),)
_LEADER_WORKER: Path = ("spec", "leaderWorkerTemplate")
STAMPED: Mapping[tuple[str, str], StampedKind] = {
    ("apps", "Deployment"): StampedKind(_POD_TEMPLATE),
    ("apps", "ReplicaSet"): StampedKind(_POD_TEMPLATE),
    ("apps", "StatefulSet"): StampedKind(_POD_TEMPLATE),
    ("", "ReplicationController"): StampedKind(_POD_TEMPLATE, rolls_out=False),
    ("batch", "CronJob"): StampedKind(
        (("spec", "jobTemplate"),),
        unused=(("spec", "jobTemplate", "spec", "template"),),
        rolls_out=False,
    ),
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet"): StampedKind(
        ((*_LEADER_WORKER, "leaderTemplate"), (*_LEADER_WORKER, "workerTemplate")),
        is_foreign=True,
    ),
}
"""API group and kind -> where the submitter stands. The policy names the same places."""


@dataclass(frozen=True, slots=True)
class Submitters:
    """Accounts that act for a user.

    Parameters
    ----------
    controllers : accounts that copy the user from a template. Empty: no template is trusted.
    accounts : accounts of GitOps tools. What they make counts for the user that ``annotation``
        names.
    annotation : key of that annotation. It is ignored on what other accounts make.
    """

    controllers: Set[str] = frozenset()
    accounts: Set[str] = frozenset()
    annotation: str = labels.SUBMITTER

    def submitter(self, requester: str, obj: Object) -> str:
        """Name the user that a new workload counts for.

        Parameters
        ----------
        requester : the account that creates ``obj``, as the API server authenticated it.

        Raises
        ------
        InvalidInput
            The annotation of a GitOps account names no user.
        """
        if requester in self.controllers:
            return str(at(obj, _STAMP) or "") or requester
        return self.named(requester, obj) or requester

    def named(self, requester: str, obj: Object) -> str:
        """Read the user that a GitOps account names. Empty if none is named, or for other accounts.

        Raises
        ------
        InvalidInput
            As ``submitter``.
        """
        if requester not in self.accounts:
            return ""
        value = at(obj, (*_ANNOTATIONS, self.annotation))
        if value is None:
            return ""
        if isinstance(value, str) and _NAME.fullmatch(value):
            return value
        raise InvalidInput(
            f"{value!r} is not the name of a user",
            where=f"metadata.annotations[{self.annotation}]",
            value=value,
            hint=f"1 to {NAME_MAX} letters, digits and characters of @:._+/=#-, beginning with a"
            " letter or digit",
        )

    def with_submitter(
        self, obj: Object, old: Object | None, group_kind: tuple[str, str], requester: str
    ) -> Object:
        """Return ``obj`` with the submitter in its templates, if its kind is in the table.

        The first user stays: an update by another user keeps what is stored. A GitOps account
        changes it by a new value of its annotation. An update never begins a rollout for the stamp
        alone, so an object that was stored without one gets it with the next change of its
        template.

        Parameters
        ----------
        old : the stored object. None on creation.

        Raises
        ------
        InvalidInput
            As ``submitter``, or a template is not an object.
        """
        kind = STAMPED.get(group_kind)
        if kind is None or not _is_stamped(obj, kind, requester, self):
            return obj
        user = _user_for(obj, old, kind, requester, self)
        there = (path for path in kind.templates if isinstance(at(obj, path), Mapping))
        changes = dict.fromkeys(((*path, *_STAMP) for path in there), user or None)
        return edited(obj, changes | dict.fromkeys((*path, *_STAMP) for path in kind.unused))


def parse_submitters(
    *,
    controllers: str = "",
    accounts: str = "",
    annotation: str = "",
) -> Submitters:
    """Read the settings: lists of accounts with commas between them, and an annotation's key.

    Raises
    ------
    InvalidSettings
        The annotation's key is not one of Kubernetes, or an account is in both lists.
    """
    key = annotation or labels.SUBMITTER
    if not _KEY.fullmatch(key):
        raise InvalidSettings(
            f"{key!r} is not the key of an annotation",
            where="FLUXQUEUE_SUBMITTER_ANNOTATION",
            value=key,
            hint=f"for example {labels.SUBMITTER}",
        )
    known, tools = split_names(controllers), split_names(accounts)
    if both := sorted(known & tools):
        raise InvalidSettings(
            f"{both[0]!r} is also one of the controllers",
            where="FLUXQUEUE_SUBMITTER_ACCOUNTS",
            value=both[0],
            hint="name it in one of the two lists",
        )
    return Submitters(known, tools, key)


def read_submitters(settings: Settings) -> Submitters:
    """Read them from the environment's settings. Raises as ``parse_submitters``."""
    return parse_submitters(
        controllers=settings.controllers,
        accounts=settings.submitter_accounts,
        annotation=settings.submitter_annotation,
    )


def split_names(text: str) -> frozenset[str]:
    """Return the names in a text with commas between them."""
    return frozenset(one for part in text.split(",") if (one := part.strip()))


def _is_stamped(obj: Object, kind: StampedKind, requester: str, submitters: Submitters) -> bool:
    """Tell whether admission writes the submitter, or leaves the object to the policy.

    A controller compares what it made with its own template. A stamp in between would make it
    create that object again and again, so what a controller makes is left as it is.
    """
    controllers, accounts = submitters.controllers, submitters.accounts
    if not controllers or requester in controllers:
        return False
    if kind.is_foreign and controllers <= set(CLUSTER_CONTROLLERS):
        return False
    if requester in accounts:
        return True
    is_made = controller_owner({"metadata": obj.get("metadata") or {}}) is not None
    is_by_software = requester.startswith(_SERVICE_ACCOUNT)
    return not (requester.startswith(_OF_THE_CLUSTER) or (is_made and is_by_software))


def _user_for(
    obj: Object, old: Object | None, kind: StampedKind, requester: str, submitters: Submitters
) -> str:
    """Choose the user. Empty if the templates stay without one."""
    named = submitters.named(requester, obj)
    if old is None:
        return named or requester
    annotation = (*_ANNOTATIONS, submitters.annotation)
    if named and at(obj, annotation) != at(old, annotation):
        return named
    kept = [str(user) for path in kind.templates if (user := at(old, (*path, *_STAMP)))]
    if kept:
        return kept[0]
    is_same = all(at(obj, path) == at(old, path) for path in kind.templates)
    return "" if kind.rolls_out and is_same else named or requester
