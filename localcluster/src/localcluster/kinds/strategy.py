"""The common part of all strategies. Kinds override what differs.

The API machinery calls it through :class:`registry.Strategy`.
"""

from __future__ import annotations

from typing import Any

from localcluster.kinds import meta
from localcluster.kinds.request_context import RequestContext
from localcluster.obj import Obj
from localcluster.types import names
from localcluster.types.decode import DecodeError, Decoder, zero
from localcluster.types.refusals import FieldError, bad_request
from localcluster.types.schema import Node
from localcluster.types.table import builtin_node

_KEPT_ON_STATUS = frozenset({"apiVersion", "kind", "metadata", "status"})
_KEPT_OF_METADATA = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
)
_REFUSED_OF_METADATA = ("deletionTimestamp", "deletionGracePeriodSeconds")
"""Those of them that clients may not set. ``meta.validate_meta_update`` reports it."""


class BaseStrategy:
    """Typed decoding, shared metadata rules, and separate status.

    Subclasses set the class attributes and override ``default_spec``, ``validate`` and
    ``validate_change``.
    """

    type_name = ""
    version = "v1"
    is_namespaced = True
    has_status = False
    has_generation = False
    name_rule = staticmethod(names.dns_subdomain)
    is_status_meta_kept = False
    """Whether /status ignores metadata of the body (custom resources do)."""

    def __init__(self, type_name: str = "") -> None:
        self.type_name = type_name or self.type_name
        self.node: Node = builtin_node(self.type_name) if self.type_name else Node("object")

    def decode(self, obj: Obj, ctx: RequestContext) -> None:
        """Check types, drop unknown fields, set defaults."""
        decoder = Decoder()
        try:
            decoder.clean_object(obj, self.node, known=ctx.known)
        except DecodeError as error:
            raise bad_request(self.cannot_handle(obj, str(error))) from error
        if decoder.unknown:
            report_unknown(decoder.unknown, ctx, lambda text: self.cannot_handle(obj, text))
        self.default(obj)

    def cannot_handle(self, obj: Obj, text: str) -> str:
        """Return the beginning of decoding errors."""
        kind = obj.get("kind") or self.kind
        version = str(obj.get("apiVersion") or self.version).rpartition("/")[2]
        return f'{kind} in version "{version}" cannot be handled as a {self.kind}: {text}'

    @property
    def kind(self) -> str:
        """Return the kind's name in messages."""
        return "Event" if self.type_name == "EventsEvent" else self.type_name

    def default(self, obj: Obj) -> None:
        """Set the scheme's defaults."""

    def prepare_create(self, obj: Obj, ctx: RequestContext) -> None:
        """Drop the status and set the first generation."""
        if self.has_status:
            obj["status"] = zero(self.node.child("status"))
        if self.has_generation:
            obj["metadata"]["generation"] = 1
        else:
            obj["metadata"].pop("generation", None)

    def validate_create(self, obj: Obj, ctx: RequestContext) -> list[FieldError]:
        """Return all broken rules of a new object."""
        errors = meta.validate_meta(
            obj["metadata"], is_namespaced=self.is_namespaced, name_rule=self.name_rule
        )
        return errors + self.validate(obj, ctx)

    def validate(self, obj: Obj, ctx: RequestContext) -> list[FieldError]:
        """Return broken rules of the content, for creations and main-path updates."""
        return []

    def prepare_update(self, new: Obj, old: Obj, subresource: str, ctx: RequestContext) -> None:
        """Keep status on the main path and spec on /status. Increase the generation."""
        keep_system_metadata(new, old)
        if subresource == "status":
            for key in [k for k in new if k not in _KEPT_ON_STATUS and k not in old]:
                del new[key]
            for key, value in old.items():
                if key not in _KEPT_ON_STATUS:
                    new[key] = value
            if self.is_status_meta_kept:
                new["metadata"] = (
                    dict(old["metadata"], managedFields=new["metadata"].get("managedFields"))
                    if "managedFields" in new["metadata"]
                    else old["metadata"]
                )
            self.prepare_status(new, old)
        elif self.has_status:
            if "status" in old:
                new["status"] = old["status"]
            else:
                new.pop("status", None)
        self._bump_generation(new, old, subresource)

    def prepare_status(self, new: Obj, old: Obj) -> None:
        """Adjust a status before it is stored. Kinds override it."""

    def _bump_generation(self, new: Obj, old: Obj, subresource: str) -> None:
        generation = old["metadata"].get("generation")
        if generation is None:
            new["metadata"].pop("generation", None)
            return
        if (
            self.has_generation
            and subresource != "status"
            and self.generation_relevant(new) != self.generation_relevant(old)
        ):
            generation += 1
        new["metadata"]["generation"] = generation

    def generation_relevant(self, obj: Obj) -> Any:
        """Return the part of the object that increases the generation if it changes."""
        return obj.get("spec")

    def validate_update(
        self, new: Obj, old: Obj, subresource: str, ctx: RequestContext
    ) -> list[FieldError]:
        """Return all broken rules of a change."""
        errors = meta.validate_meta_update(new["metadata"], old["metadata"])
        # Both the common and the kind's rules are checked, so both causes are listed.
        errors = errors + errors
        if subresource == "status":
            return errors + self.validate_status(new, old, ctx)
        return errors + self.validate_change(new, old, ctx)

    def validate_change(self, new: Obj, old: Obj, ctx: RequestContext) -> list[FieldError]:
        """Return broken rules of a main-path update: all content rules unless overridden."""
        return self.validate(new, ctx)

    def validate_status(self, new: Obj, old: Obj, ctx: RequestContext) -> list[FieldError]:
        """Return broken rules of a status update."""
        return []

    def delete_grace_s(self, obj: Obj, requested_s: int | None) -> int:
        """Return 0: only pods are deleted gracefully."""
        return 0

    def allows_unconditional_update(self) -> bool:
        """Return True: most kinds may be overwritten without a resourceVersion."""
        return True

    def default_propagation(self, obj: Obj) -> str:
        """Return "Background": DELETE without options leaves the rest to the collector."""
        return "Background"


def keep_system_metadata(new: Obj, old: Obj) -> None:
    """Restore what clients cannot set. A missing uid is not a change, but a wrong one stays."""
    target, source = new["metadata"], old["metadata"]
    for key in _KEPT_OF_METADATA:
        if key == "uid" and target.get(key):
            continue
        if key in source:
            target[key] = source[key]
        elif key not in _REFUSED_OF_METADATA:
            target.pop(key, None)


def report_unknown(unknown: list[str], ctx: RequestContext, head: Any) -> None:
    """Refuse (Strict), warn of (Warn) or ignore dropped fields."""
    texts = [f'unknown field "{path}"' for path in unknown]
    if ctx.field_validation == "Strict":
        raise bad_request(head("strict decoding error: " + ", ".join(texts)))
    if ctx.field_validation == "Warn":
        ctx.warnings.extend(texts)
