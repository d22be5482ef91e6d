"""The interface between API machinery and kinds: resources, and how requests are validated.

``server`` looks up resources here and calls their strategies. The other modules of this
package fill the registry. CRDs register and unregister at runtime. There is no HTTP and no storage
here.

The order of a write is the real server's (``server`` runs the sequence)::

    POST   decode -> strategy.decode (unknown fields, types, scheme defaults)
           -> admission.admit (mutating; strategy.default again after a changed object)
           -> metadata: uid, creationTimestamp, generateName
           -> strategy.prepare_create -> strategy.validate_create -> admission.validate -> store
    PUT    decode -> strategy.decode -> admission.admit -> metadata checks
    PATCH  old -> patched -> strategy.decode -> as PUT
           -> strategy.prepare_update -> strategy.validate_update -> admission.validate -> store
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from localcluster.kinds.request_context import RequestContext
from localcluster.kinds.strategy import BaseStrategy
from localcluster.obj import Obj
from localcluster.types.schema import ANY, Node


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a Table. ``value`` maps an object to its cell."""

    name: str
    type: str
    value: Callable[[Obj], Any]
    description: str = ""
    format: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class ScalePaths:
    """The paths of a Scale's numbers in the object itself."""

    spec: tuple[str, ...] = ("spec", "replicas")
    status: tuple[str, ...] = ("status", "replicas")
    selector: tuple[str, ...] = ("spec", "selector")


@dataclass(frozen=True, slots=True)
class Subresource:
    """A subresource such as ``pods/binding``.

    ``how`` tells the machinery what to do:

    - "status" and "update" write the object itself through the strategy with that subresource.
    - "scale" reads and writes an ``autoscaling/v1`` Scale at the paths of ``scale``.
    - "log" reads what the containers of a pod have written.
    - "binding" calls ``handler(body, obj, ctx)``, which changes ``obj`` in place and returns the
      answer.
    - "eviction" deletes the object unless ``handler`` refuses.
    - "token" answers with the result of ``handler`` and stores nothing.
    """

    name: str
    kind: str
    verbs: tuple[str, ...]
    how: str = "status"
    group: str = ""
    version: str = ""
    handler: Callable[[Obj, Obj, RequestContext], Obj] | None = None
    scale: ScalePaths = ScalePaths()


ALL_VERBS = (
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
)


def metadata_fields(obj: Obj) -> dict[str, str]:
    """Return the field selectors that every resource has."""
    meta = obj.get("metadata") or {}
    fields = {"metadata.name": str(meta.get("name", ""))}
    if "namespace" in meta:
        fields["metadata.namespace"] = str(meta["namespace"])
    return fields


@dataclass(slots=True)
class ResourceInfo:
    """One resource in one version.

    ``storage`` is the (group, plural) under which objects are kept. Several versions of a CRD share
    one, and so do the two event APIs. ``to_storage`` and ``from_storage`` convert an object of this
    version to the stored form and back (None means no change, apiVersion and kind are included).
    ``create_only`` marks reviews: POST answers with ``create_only(body, ctx)`` and nothing is
    stored. ``node`` has the types for decoding, strategic merge and apply.
    """

    group: str
    version: str
    kind: str
    plural: str
    singular: str
    namespaced: bool
    strategy: BaseStrategy
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    subresources: Mapping[str, Subresource] = field(default_factory=dict)
    node: Node = ANY
    columns: tuple[Column, ...] = ()
    selectable: Callable[[Obj], dict[str, str]] = metadata_fields
    storage: tuple[str, str] = ("", "")
    to_storage: Callable[[Obj], Obj] | None = None
    from_storage: Callable[[Obj], Obj] | None = None
    create_only: Callable[[Obj, RequestContext], Obj] | None = None
    is_custom: bool = False
    list_kind: str = ""

    def __post_init__(self) -> None:
        if self.storage == ("", ""):
            self.storage = (self.group, self.plural)
        if not self.list_kind:
            self.list_kind = f"{self.kind}List"

    @property
    def api_version(self) -> str:
        """Return ``v1`` or ``batch/v1``."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource_name(self) -> str:
        """Return ``jobs.batch``, as error messages name it."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


class Registry:
    """All resources that are served now."""

    def __init__(self) -> None:
        self._infos: dict[tuple[str, str, str], ResourceInfo] = {}
        self.generation = 0
        """Increases with each change, so that discovery documents can be cached."""

    def register(self, info: ResourceInfo) -> None:
        """Add a resource, or replace it."""
        self._infos[(info.group, info.version, info.plural)] = info
        self.generation += 1

    def unregister(self, group: str, version: str, plural: str) -> None:
        """Remove a resource. Unknown ones are ignored."""
        if self._infos.pop((group, version, plural), None) is not None:
            self.generation += 1

    def lookup(self, group: str, version: str, plural: str) -> ResourceInfo | None:
        """Return the resource at ``/apis/<group>/<version>/<plural>``."""
        return self._infos.get((group, version, plural))

    def by_kind(self, group: str, kind: str, version: str = "") -> ResourceInfo | None:
        """Return the resource of a kind (owner references, scale targets)."""
        for info in self._infos.values():
            if info.group == group and info.kind == kind and version in ("", info.version):
                return info
        return None

    def has_group_version(self, group: str, version: str) -> bool:
        """Return whether anything is served there."""
        return any(i.group == group and i.version == version for i in self._infos.values())

    def __iter__(self) -> Iterator[ResourceInfo]:
        return iter(list(self._infos.values()))
