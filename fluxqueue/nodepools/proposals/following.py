"""What changes of a discovered FluxNodePool when its source changes, and when the source is gone.

The annotation ``fluxqueue/discovered-spec`` has the fields that the source gave last. A field that
differs from it was changed by the administrator, and stays. So fields have one owner, also where a
tool replaces whole objects. The controller calls it. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.times import from_rfc3339, to_rfc3339
from fluxqueue.nodepools.pool import read_node_pool
from fluxqueue.nodepools.proposals.proposal import fields_of
from fluxqueue.workload.labels import DISCOVERED_FROM, DISCOVERED_SPEC, SOURCE_MISSING

GONE_S = 300
"""How long a source must be gone before its pool is removed. A tool may make it anew."""

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PoolChange:
    """What to do with a pool: remove it, or apply ``patch`` (a merge patch). ``fields`` change."""

    is_removed: bool = False
    patch: Mapping[str, Any] = field(default_factory=dict)
    fields: tuple[str, ...] = ()
    why: str = ""


def source_of(pool: Object) -> str:
    """Return the name of the source that a pool follows, or nothing."""
    return str((pool["metadata"].get("annotations") or {}).get(DISCOVERED_FROM) or "")


def follow(pool: Object, given: Mapping[str, Any] | None, now_s: int) -> PoolChange | None:
    """Return what changes of a pool, or None.

    Parameters
    ----------
    pool : the FluxNodePool as served, with a source.
    given : the fields that the source gives, by dotted path. None: the source is gone.
    now_s : epoch seconds.
    """
    notes = pool["metadata"].get("annotations") or {}
    before = _read(notes.get(DISCOVERED_SPEC))
    if before is None:
        return None  # which fields the administrator has changed is not known
    current = fields_of(pool["spec"])
    edited = {path for path, value in before.items() if not _is_equal(path, current, value)}
    if given is None:
        return _gone(notes, edited, now_s)
    changed = {
        path: value
        for path, value in given.items()
        if path not in edited and not _is_equal(path, current, value)
    }
    known = {**before, **given}
    is_back = SOURCE_MISSING in notes
    if not changed and known == before and not is_back:
        return None
    if not _is_valid(pool, changed):
        return None
    annotations: dict[str, Any] = {DISCOVERED_SPEC: json.dumps(known, sort_keys=True)}
    if is_back:
        annotations[SOURCE_MISSING] = None
    patch = {"metadata": {"annotations": annotations}, "spec": _nested(current, changed)}
    fields = tuple(sorted(changed))
    return PoolChange(patch=patch, fields=fields, why="the source has changed")


def _gone(notes: Mapping[str, str], edited: set[str], now_s: int) -> PoolChange | None:
    """Return what becomes of a pool without a source."""
    since = notes.get(SOURCE_MISSING)
    if since is None:
        patch = {"metadata": {"annotations": {SOURCE_MISSING: to_rfc3339(now_s)}}}
        stays = f", and stays for {', '.join(sorted(edited))}" if edited else ""
        return PoolChange(patch=patch, why=f"the source is gone{stays}")
    if edited or now_s - _seconds(since, now_s) < GONE_S:
        return None
    return PoolChange(is_removed=True, why=f"the source is gone since {since}")


def _seconds(text: str, now_s: int) -> float:
    try:
        return from_rfc3339(text)
    except ValueError:
        return now_s


def _read(text: object) -> dict[str, Any] | None:
    try:
        found = json.loads(str(text))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _is_equal(path: str, current: Mapping[str, Any], value: object) -> bool:
    found = current.get(path)
    if path == "provider":
        return _has(found, value)
    # Absent, empty and zero mean the same, except for the maximum, which is never absent.
    return (found or None) == (value or None)


def _has(found: object, value: object) -> bool:
    """Return whether a provider is as given. The definition and the administrator add fields."""
    if isinstance(found, Mapping) and isinstance(value, Mapping):
        return all(key in found and _has(found[key], one) for key, one in value.items())
    return found == value


def _is_valid(pool: Object, changed: Mapping[str, Any]) -> bool:
    """Return whether the pool can be read with these fields. Some may not fit those that stay."""
    spec = {**pool["spec"], "node": dict(pool["spec"]["node"])}
    for path, value in changed.items():
        where, key = _place(spec, path)
        where[key] = value
    try:
        read_node_pool(pool["metadata"]["name"], spec)
    except InvalidInput:
        return False
    return True


def _place(spec: dict[str, Any], path: str) -> tuple[dict[str, Any], str]:
    first, _, rest = path.partition(".")
    return (spec["node"], rest) if rest else (spec, first)


def _nested(current: Mapping[str, Any], changed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch of a spec. Keys that a mapping loses become null."""
    found: dict[str, Any] = {}
    for path, value in changed.items():
        first, _, rest = path.partition(".")
        where, key = (found.setdefault(first, {}), rest) if rest else (found, first)
        lost = current.get(path)
        if isinstance(value, Mapping) and isinstance(lost, Mapping):
            where[key] = {**dict.fromkeys(lost), **value}
        else:
            where[key] = value
    return found
