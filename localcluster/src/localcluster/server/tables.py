"""Tables and PartialObjectMetadata: the forms that kubectl prints.

Reads, writes and watches call it after ``negotiation`` has chosen such a form. The columns come
from the registry. Nothing here knows a kind.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from localcluster.kinds.registry import Column, ResourceInfo
from localcluster.obj import Obj
from localcluster.server.http_refusals import wrong_form
from localcluster.server.negotiation import Media
from localcluster.server.store import Entry
from localcluster.types.refusals import bad_request


def include_object(value: str) -> str:
    """Return ``includeObject``: Metadata (default), Object or None. Raise 400 otherwise."""
    if value in ("", "Metadata", "Object", "None"):
        return value or "Metadata"
    raise bad_request(
        f'Unable to convert to Table as requested: includeObject: Invalid value: "{value}": '
        "must be 'Metadata', 'Object', 'None', or empty"
    )


_NAME_ONLY = (
    Column("Name", "string", lambda obj: obj["metadata"].get("name", ""), format="name"),
    Column("Created At", "date", lambda obj: obj["metadata"].get("creationTimestamp", "<unknown>")),
)


def _columns(info: ResourceInfo) -> Sequence[Column]:
    return info.columns or _NAME_ONLY


def column_definitions(info: ResourceInfo) -> list[Obj]:
    """Return ``columnDefinitions`` of a Table."""
    return [
        {
            "name": column.name,
            "type": column.type,
            "format": column.format,
            "description": column.description,
            "priority": column.priority,
        }
        for column in _columns(info)
    ]


def partial(obj: Obj, version: str) -> Obj:
    """Return only the metadata of an object."""
    return {
        "kind": "PartialObjectMetadata",
        "apiVersion": f"meta.k8s.io/{version}",
        "metadata": obj["metadata"],
    }


def check_partial(info: ResourceInfo, media: Media, *, is_list: bool) -> None:
    """Raise 406 unless a list form is used for lists only."""
    if (media.form == "PartialObjectMetadataList") is not is_list:
        raise wrong_form(info, media.form, is_list=is_list)


def row(info: ResourceInfo, obj: Obj, media: Media, include: str) -> Obj:
    """Return one row: its cells, and what ``include`` wants of the object."""
    shown: Obj | None = None
    if include == "Metadata":
        shown = partial(obj, media.form_version)
    elif include == "Object":
        shown = obj
    return {"cells": [column.value(obj) for column in _columns(info)], "object": shown}


def table(info: ResourceInfo, objects: Sequence[Obj], meta: Obj, media: Media, include: str) -> Obj:
    """Return a whole Table. ``meta`` is that of the list (or of the single object)."""
    return {
        "kind": "Table",
        "apiVersion": f"meta.k8s.io/{media.form_version}",
        "metadata": meta,
        "columnDefinitions": column_definitions(info),
        "rows": [row(info, obj, media, include) for obj in objects],
    }


class TableForm:
    """Watch lines as Tables of one row. Only the first one of a watch has the columns."""

    def __init__(self, info: ResourceInfo, media: Media, include: str) -> None:
        self._info, self._media, self._include = info, media, include
        self._is_first = True

    def line(
        self,
        type_: str,
        entry: Entry,
        cache: dict[tuple[str, str], bytes],  # noqa: ARG002 - a Table is made per watch
    ) -> bytes:
        """Return one watch line."""
        info = self._info
        shown = entry.form(info.api_version, info.from_storage) if info.from_storage else entry
        return self.render(type_, shown.obj, str(entry.rv))

    def render(self, type_: str, obj: Obj, rv: str) -> bytes:
        """Return a line for any object, also for bookmarks."""
        definitions = column_definitions(self._info) if self._is_first else None
        self._is_first = False
        shown: Obj = {
            "kind": "Table",
            "apiVersion": f"meta.k8s.io/{self._media.form_version}",
            "metadata": {"resourceVersion": rv},
            "columnDefinitions": definitions,
            "rows": [self._row(obj)],
        }
        return orjson.dumps({"type": type_, "object": shown}) + b"\n"

    def _row(self, obj: Obj) -> Obj:
        if "name" in obj["metadata"]:
            return row(self._info, obj, self._media, self._include)
        cells = ["" for _ in _columns(self._info)]
        return {"cells": cells, "object": partial(obj, self._media.form_version)}


class PartialForm:
    """Watch lines with only metadata."""

    def __init__(self, media: Media) -> None:
        self._media = media

    def line(self, type_: str, entry: Entry, cache: dict[tuple[str, str], bytes]) -> bytes:
        """Return one watch line, shared by all watches of this form."""
        key = (type_, "partial/" + self._media.form_version)
        made = cache.get(key)
        if made is None:
            obj = partial(entry.obj, self._media.form_version)
            made = cache[key] = orjson.dumps({"type": type_, "object": obj}) + b"\n"
        return made

    def render(self, type_: str, obj: Obj, rv: str) -> bytes:
        """Return a line for any object, also for bookmarks."""
        shown = partial(obj, self._media.form_version)
        shown["metadata"] = {**shown["metadata"], "resourceVersion": rv}
        return orjson.dumps({"type": type_, "object": shown}) + b"\n"
