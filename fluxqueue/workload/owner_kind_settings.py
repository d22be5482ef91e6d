"""The kinds that an administrator adds to the table of ``owner_kinds``, read from a setting. Pure.

Called by each process that uses the table.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import orjson

from fluxqueue.errors import InvalidSettings
from fluxqueue.workload.objects import Object
from fluxqueue.workload.owner_kinds import OwnerKind, OwnerKinds, PodsOf

_SEGMENT = r"(?:[A-Za-z0-9_-]+|\*)"
_PATH = re.compile(rf"{_SEGMENT}(?:\.{_SEGMENT})*")
_FIELD = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
_KIND = re.compile(r"[A-Z][A-Za-z0-9]{0,62}")
_GROUP = re.compile(r"[a-z0-9][-a-z0-9]*(?:\.[a-z0-9][-a-z0-9]*)+")
_RESOURCE = re.compile(r"[a-z][a-z0-9]{0,62}")
_IS = re.compile(rf"({_PATH.pattern})=([^=]+)")
_KEYS = {"kind", "group", "resource", "pods", "suspend", "suspendIf", "completed", "failed"}
_PART_KEYS = {"each", "count", "template", "labels"}
_EXAMPLE = (
    '[{"kind": "Gang", "group": "example.org", "resource": "gangs", "pods":'
    ' [{"each": "spec.roles.*", "count": ["replicas"], "template": "template"}]}]'
)


def parse_owner_kinds(text: str, where: str = "FLUXQUEUE_OWNER_KINDS") -> OwnerKinds:
    """Read the setting: a JSON list of entries, empty for none.

    Raises
    ------
    InvalidSettings
        An entry cannot be used. The error names the field, its value and what is allowed.
    """
    if not text.strip():
        return OwnerKinds()
    try:
        entries = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise _invalid(f"is no JSON ({error})", where, text[:80]) from None
    if not isinstance(entries, list):
        raise _invalid("is no list of entries", where, text[:80])
    return OwnerKinds([_entry(one, f"{where}[{number}]") for number, one in enumerate(entries)])


def _entry(entry: Any, where: str) -> OwnerKind:
    _check_keys(entry, _KEYS, {"kind", "group", "resource"}, where)
    kind = _text(entry["kind"], _KIND, f"{where}.kind", "a kind as in objects: RayCluster")
    group = _text(entry["group"], _GROUP, f"{where}.group", "an API group: ray.io")
    hint = "the plural in lower case, as in URLs: rayclusters"
    resource = _text(entry["resource"], _RESOURCE, f"{where}.resource", hint)
    parts = entry.get("pods", [])
    if not isinstance(parts, list):
        raise _invalid("is no list", f"{where}.pods", parts)
    pods = tuple(_part(one, f"{where}.pods[{number}]") for number, one in enumerate(parts))
    has_size = bool(pods) and all(one.count for one in pods)
    return OwnerKind(
        kind, group, resource, pods, has_size=has_size, **_suspension(entry, pods, where)
    )


def _suspension(entry: Object, pods: Sequence[PodsOf], where: str) -> dict[str, Any]:
    """Return how it is suspended, and what it reports at its end."""
    found: dict[str, Any] = {}
    for key, name in (
        ("suspendIf", "suspend_if"),
        ("completed", "completed"),
        ("failed", "failed"),
    ):
        if key in entry:
            hint = 'a list of path=value: ["status.phase=Done"]'
            said = entry[key] if isinstance(entry[key], list) else [entry[key]]
            found[name] = tuple(_text(one, _IS, f"{where}.{key}", hint) for one in said)
        if key in entry and "suspend" not in entry:
            hint = "say which field suspends it: suspend: spec.suspend"
            raise InvalidSettings("needs suspend", where=f"{where}.{key}", hint=hint)
    if "suspend" in entry:
        at = f"{where}.suspend"
        found["suspend"] = _text(entry["suspend"], _FIELD, at, "keys joined by '.': spec.suspend")
        if not pods or not all(one.count and one.template is not None for one in pods):
            hint = "give each of its pods a count and a template, or leave suspend out"
            raise InvalidSettings("needs to know what it asks for", where=at, hint=hint)
    return found


def _part(part: Any, where: str) -> PodsOf:
    _check_keys(part, _PART_KEYS, set(), where)
    hint = "keys joined by '.', '*' for all of a list or map: spec.workers.*"
    each, labels, template = part.get("each", ""), part.get("labels", ""), part.get("template")
    if template is not None:
        _text(template, _PATH, f"{where}.template", hint)
    if each:
        _text(each, _PATH, f"{where}.each", hint)
    if labels:
        _text(labels, _PATH, f"{where}.labels", hint)
    counts = part.get("count", [])
    if not isinstance(counts, list):
        raise _invalid("is no list", f"{where}.count", counts)
    for number, count in enumerate(counts):
        at = f"{where}.count[{number}]"
        if isinstance(count, int) and not isinstance(count, bool) and count >= 0:
            continue
        for one in count.split("|") if isinstance(count, str) else [count]:
            _text(one, _PATH, at, f"a number of pods, or its path: {hint}")
    return PodsOf(each, tuple(counts), template, labels)


def _check_keys(entry: Any, known: set[str], needed: set[str], where: str) -> None:
    if not isinstance(entry, dict):
        raise _invalid("is no entry", where, entry)
    if unknown := sorted(entry.keys() - known):
        raise _invalid("is no field of an entry", f"{where}.{unknown[0]}", entry[unknown[0]])
    if missing := sorted(needed - entry.keys()):
        raise _invalid("is missing", f"{where}.{missing[0]}", None)


def _text(value: Any, form: re.Pattern[str], where: str, hint: str) -> str:
    if not isinstance(value, str) or not form.fullmatch(value):
        raise InvalidSettings(f"{value!r} cannot be used", where=where, value=value, hint=hint)
    return value


def _invalid(message: str, where: str, value: Any) -> InvalidSettings:
    said = f"{value!r} {message}" if value is not None else message
    return InvalidSettings(said, where=where, value=value, hint=f"for example {_EXAMPLE}")
