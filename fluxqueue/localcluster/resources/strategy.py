"""The common part of all strategies; kinds override what is theirs.

Called by the API machinery through :class:`registry.Strategy`.
"""

from __future__ import annotations

from typing import Any

from fluxqueue.localcluster.resources.registry import RequestContext
from fluxqueue.localcluster.resources.status import FieldError

Obj = dict[str, Any]


class BaseStrategy:
    """Accepts everything; status is kept apart when ``has_status``."""

    has_status = False
    has_generation = False

    def decode(self, obj: Obj, ctx: RequestContext) -> None:
        """Check types, drop unknown fields, default."""
        self.default(obj)

    def default(self, obj: Obj) -> None:
        """Fill in the scheme's defaults."""

    def prepare_create(self, obj: Obj, ctx: RequestContext) -> None:
        """Drop status and set the first generation."""
        if self.has_status:
            obj["status"] = {}
        if self.has_generation:
            obj["metadata"]["generation"] = 1
        else:
            obj["metadata"].pop("generation", None)

    def validate_create(self, obj: Obj, ctx: RequestContext) -> list[FieldError]:
        """All broken rules of a new object."""
        return []

    def prepare_update(self, new: Obj, old: Obj, subresource: str, ctx: RequestContext) -> None:
        """Keep status on the main path, spec on /status; bump the generation."""
        if subresource == "status":
            for key in [k for k in new if k not in _KEPT_ON_STATUS]:
                if key not in old:
                    del new[key]
            for key, value in old.items():
                if key not in _KEPT_ON_STATUS:
                    new[key] = value
        elif self.has_status:
            if "status" in old:
                new["status"] = old["status"]
            else:
                new.pop("status", None)
        self._bump_generation(new, old)

    def _bump_generation(self, new: Obj, old: Obj) -> None:
        generation = old["metadata"].get("generation")
        if not self.has_generation or generation is None:
            new["metadata"].pop("generation", None)
            if generation is not None:
                new["metadata"]["generation"] = generation
            return
        if self.generation_relevant(new) != self.generation_relevant(old):
            generation += 1
        new["metadata"]["generation"] = generation

    def generation_relevant(self, obj: Obj) -> Any:
        """What must change for the generation to rise."""
        return obj.get("spec")

    def validate_update(
        self, new: Obj, old: Obj, subresource: str, ctx: RequestContext
    ) -> list[FieldError]:
        """All broken rules of a change."""
        return []

    def delete_grace_s(self, obj: Obj, requested_s: int | None) -> int:
        """Nothing but pods is deleted gracefully."""
        return 0

    def allows_unconditional_update(self) -> bool:
        """Most kinds may be overwritten without a resourceVersion."""
        return True

    def default_propagation(self, obj: Obj) -> str:
        """DELETE without options lets the collector work behind it."""
        return "Background"


_KEPT_ON_STATUS = frozenset({"apiVersion", "kind", "metadata", "status"})
