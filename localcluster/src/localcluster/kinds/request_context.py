"""One request as strategies and admission see it: its user, its options, and what they may read.

``server`` makes it. There is no HTTP and no storage here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from localcluster.obj import Obj


@dataclass(frozen=True, slots=True)
class UserInfo:
    """The requesting user. It becomes ``request.userInfo`` of an AdmissionReview."""

    username: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


class ObjectReader(Protocol):
    """What strategies and admission may read from the store (implemented by ``server.store``)."""

    def get(self, group: str, plural: str, namespace: str, name: str) -> Obj | None:
        """Return the stored object or None. The caller must not change it."""

    def list(self, group: str, plural: str, namespace: str = "") -> list[Obj]:
        """Return all stored objects, of one namespace or of all ("")."""


@dataclass(slots=True)
class RequestContext:
    """One request as strategies and admission see it.

    ``warnings`` collects texts for ``Warning`` headers. ``field_validation`` is "Strict", "Warn" or
    "Ignore". ``now`` is the time in whole seconds in RFC 3339, ``now_micro`` with six digits.
    ``options`` are the Create/Update/Delete/PatchOptions of the request, as an object. ``known`` is
    the stored object that a patch was applied to: what equals it was decoded before.
    """

    user: UserInfo
    reader: ObjectReader
    namespace: str = ""
    name: str = ""
    subresource: str = ""
    operation: str = "CREATE"
    verb: str = "create"
    is_dry_run: bool = False
    field_validation: str = "Warn"
    field_manager: str = ""
    options: Obj = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    now: str = ""
    now_micro: str = ""
    known: Obj | None = None
