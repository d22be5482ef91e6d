"""Types of fields, one tree per kind.

They serve decoding, strategic merge, server-side apply and OpenAPI. ``table`` builds them for
built-in kinds and ``kinds.crd`` from structural schemas. Pure data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class Node:
    """The type of one field.

    - ``type`` is one of object, map, list, string, integer, number, boolean, any, int-or-string,
      quantity, time, microtime, bytes.
    - ``object`` has ``fields``. ``map`` and ``list`` have ``items``.
    - ``list_type`` is atomic, set or map (server-side apply).
    - ``merge_key`` is the strategic merge key of a list of objects. It is "" for replaced lists.
      Lists of scalars that merge have ``patch_strategy`` "merge" and no key.
    - ``map_type`` "atomic" makes an object one value.
    - ``preserve_unknown`` keeps fields that are not named.
    - ``ref`` is the name of a built-in type.
    - ``keeps_zero`` keeps an explicit 0/false/"" (Go pointers).
    - ``is_always`` writes the field even when it is empty (no omitempty), with null, {} or a zero.

    Fields are resolved lazily because some types are recursive (JSONSchemaProps).
    """

    type: str
    items: Node | None = None
    list_type: str = "atomic"
    list_map_keys: tuple[str, ...] = ()
    merge_key: str = ""
    patch_strategy: frozenset[str] = frozenset()
    map_type: str = "granular"
    preserve_unknown: bool = False
    is_required: bool = False
    keeps_zero: bool = False
    is_always: bool = False
    ref: str = ""
    go_type: str = ""
    description: str = ""
    format: str = ""
    _fields: dict[str, Node] | None = None
    _always: tuple[tuple[str, Node], ...] | None = None
    _resolve: Callable[[], dict[str, Node]] | None = field(default=None, repr=False)

    @property
    def fields(self) -> dict[str, Node]:
        """Return the named fields of an object type."""
        if self._fields is None:
            self._fields = self._resolve() if self._resolve is not None else {}
        return self._fields

    @property
    def always(self) -> tuple[tuple[str, Node], ...]:
        """Return the fields that are written even when empty."""
        if self._always is None:
            self._always = tuple((k, n) for k, n in self.fields.items() if n.is_always)
        return self._always

    def child(self, key: str) -> Node:
        """Return the type below a key, or ANY if it is unknown."""
        if self.type == "map" and self.items is not None:
            return self.items
        return self.fields.get(key, ANY)


ANY = Node("any", preserve_unknown=True)
