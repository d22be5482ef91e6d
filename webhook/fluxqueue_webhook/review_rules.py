"""One review, as its rules see it: the request, the facts so far, and how it ends.

``admit`` makes the request, chooses the kind of review, and asks its rules one after the other.
Each kind of review is a module with an ordered list of rules. The name of a rule and the first line
of its docstring are its documentation (docs/reference/admission.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fluxqueue.errors import InvalidInput
from fluxqueue.workload.aliases import Translated
from fluxqueue.workload.holding import DEFAULT_SETTINGS, AdmitSettings, OwnerFacts
from fluxqueue.workload.kinds.admitted import JOB, POD, AdmittedKind
from fluxqueue.workload.labels import FIELD_MANAGER, MANAGED
from fluxqueue.workload.object_shape import REQUEST, check_shape
from fluxqueue.workload.objects import Object
from fluxqueue.workload.owner_kinds import OwnerKind

MAX_WARNING = 240
_KINDS: Mapping[tuple[str, str], AdmittedKind] = {(one.group, one.name): one for one in (JOB, POD)}
"""The kinds of workloads that are objects of the API server."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request for admission.

    ``operation`` is empty if it is for a subresource. ``kind``: the entry of a kind of workload.
    ``entry``: that of a further kind that makes pods. ``all_ask``: it comes from a namespace where
    pods that a controller makes are queued. ``now_s``: epoch seconds.
    """

    uid: str
    operation: str
    group_kind: tuple[str, str]
    kind: AdmittedKind | None
    entry: OwnerKind | None
    namespace: str
    name: str
    obj: Object | None
    old: Object
    user_info: Mapping[str, Any]
    field_manager: str
    settings: AdmitSettings
    all_ask: bool = False
    now_s: float = 0.0

    @property
    def managed_kind(self) -> AdmittedKind:
        """Return the entry of its kind, which a rule has found."""
        assert self.kind is not None, "an earlier rule ends the review of all other kinds"
        return self.kind

    @property
    def is_creation(self) -> bool:
        """Tell whether an object is created."""
        return self.operation == "CREATE"

    @property
    def is_edit(self) -> bool:
        """Tell whether a stored object is changed."""
        return self.operation == "UPDATE"

    @property
    def is_kept_out(self) -> bool:
        """Tell whether its namespace is never managed."""
        return self.namespace in self.settings.never_managed

    @property
    def user(self) -> str:
        """Return the requesting user, as the API server names it."""
        return str(self.user_info.get("username") or "")

    @property
    def is_ours(self) -> bool:
        """Tell whether one of our components made the request.

        The account shows this. If a person shares the account, the field manager shows it. The
        field manager alone is not enough: other accounts could use that name, too, and the user
        that a FluxJob names is read back.
        """
        ours, shared = self.settings.own_users, self.settings.shared_users
        if self.user in ours:
            return True
        is_told_apart = not (ours or shared) or self.user in shared
        return is_told_apart and self.field_manager == FIELD_MANAGER

    def present(self) -> Object:
        """Return its object.

        Raises
        ------
        InvalidInput
            It has none, or not the stored one of an update.
        """
        if self.obj is None or (self.is_edit and not self.old):
            raise malformed("the request has no object", "request.object")
        return self.obj


@dataclass(frozen=True, slots=True)
class Facts:
    """What a review knows of its object so far.

    ``wanted``: the object as the rules so far want it. ``said``: its aliases. ``owner``: what is
    known of an object that makes pods.
    """

    wanted: Object
    said: Translated
    owner: OwnerFacts | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The end of a review: ``taken``, ``placed`` or ``untouched``, and the object that is wanted.

    None: as it came. A refusal is an ``InvalidInput``.
    """

    name: str
    wanted: Object | None = None
    why: str = ""
    warnings: tuple[str, ...] = ()


Rule = Callable[[Facts, Request], Facts | Verdict | None]
"""None: the rule does not apply. Facts: the review goes on with these."""


def read_request(
    review: Any,
    settings: AdmitSettings = DEFAULT_SETTINGS,
    *,
    all_ask: bool = False,
    now_s: float = 0.0,
) -> Request:
    """Read the request of an AdmissionReview.

    Raises
    ------
    InvalidInput
        ``review`` is not an admission.k8s.io/v1 AdmissionReview with a request.
    """
    where = {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"}
    said = review if isinstance(review, Mapping) else {}
    for name, value in where.items():
        if said.get(name) != value:
            raise malformed(f"only {value} is read here", name, said.get(name))
    request = said.get("request")
    if not isinstance(request, Mapping) or not isinstance(request.get("uid"), str):
        raise malformed("the AdmissionReview has no request with a uid", "request")
    check_shape(request, REQUEST, "request")
    kind = request.get("kind") or {}
    group_kind = (kind.get("group") or "", kind.get("kind") or "")
    return Request(
        uid=request["uid"],
        operation="" if request.get("subResource") else request.get("operation") or "",
        group_kind=group_kind,
        kind=_KINDS.get(group_kind),
        entry=settings.owner_kinds.find(*group_kind),
        namespace=request.get("namespace") or "",
        name=request.get("name") or "",
        obj=request.get("object"),
        old=request.get("oldObject") or {},
        user_info=request.get("userInfo") or {},
        field_manager=(request.get("options") or {}).get("fieldManager") or "",
        settings=settings,
        all_ask=all_ask,
        now_s=now_s,
    )


def malformed(message: str, where: str = "", value: Any = None, hint: str = "") -> InvalidInput:
    """Return the error for a review that cannot be read."""
    return InvalidInput(message, where=where, value=value, hint=hint)


def label(obj: Object, key: str = MANAGED) -> str | None:
    """Return a label of an object."""
    found: str | None = ((obj.get("metadata") or {}).get("labels") or {}).get(key)
    return found
