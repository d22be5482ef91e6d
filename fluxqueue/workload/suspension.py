"""The patches that hold what makes pods by suspending it, and let it go. Pure.

``hold_owner`` and ``guard_stamps`` are the webhook's answers; ``start_patch`` and ``stop_patch``
are sent by the worker, ``leave_patch`` by the uninstallation. Its pods come when it goes on, gated
by admission like those of any owner that asks to be queued.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable
from typing import Any

from fluxqueue.objects import Object
from fluxqueue.workload import labels
from fluxqueue.workload.json_patch import Patch, at, op, pointer, put, same_uid, take
from fluxqueue.workload.object_paths import Path, nested, value_at

_ANNOTATIONS: Path = ("metadata", "annotations")
_STAMPS = (labels.SUSPENDED, labels.USER)
_STEP = re.compile(r"([^.\[]+)(?:\[([^=]+)=([^\]]+)\])?\.?")


def hold_owner(
    owner: Object,
    *,
    suspend: str,
    templates: Iterable[tuple[Path, str]],
    user: str,
    deadline_s: int | None,
    hands_on: Iterable[str] = (),
    deadline: str = "",
) -> Patch:
    """Take it in at admission: suspended, labelled, its pods told to ask. Idempotent.

    Parameters
    ----------
    suspend : path of the field that suspends it.
    templates : path of each pod template, and the kind of slots that its pods need.
    deadline_s : how long its pods may run, where they do not say (seconds).
    hands_on, deadline : as of ``owner_kinds.OwnerKind``.
    """
    changed = copy.deepcopy(dict(owner))
    is_ours = (at(changed, _ANNOTATIONS) or {}).get(labels.SUSPENDED) == "true"
    patch: Patch = []
    if not value_at(changed, suspend):
        patch += take(changed, (*_ANNOTATIONS, labels.AUTHOR_SUSPENDED))
    elif not is_ours:
        patch += put(changed, (*_ANNOTATIONS, labels.AUTHOR_SUSPENDED), "true")
    patch += put(changed, tuple(suspend.split(".")), True)
    patch += put(changed, ("metadata", "labels", labels.MANAGED), "true")
    patch += put(changed, (*_ANNOTATIONS, labels.SUSPENDED), "true")
    who = (*_ANNOTATIONS, labels.USER)
    patch += put(changed, who, user) if user else take(changed, who)
    until = tuple(deadline.split(".")) if deadline else ()
    if until and deadline_s is not None and at(changed, until) is None:
        patch += put(changed, until, deadline_s)
    patch += hand_on(changed, hands_on)
    return patch + _mark(changed, templates, deadline_s)


def mark_templates(
    owner: Object, templates: Iterable[tuple[Path, str]], deadline_s: int | None
) -> Patch:
    """Have the pods of what is made by something that is held ask, each for its kind of slots;
    parameters as of ``hold_owner``. Idempotent.
    """
    return _mark(copy.deepcopy(dict(owner)), templates, deadline_s)


def _mark(
    changed: dict[str, Any], templates: Iterable[tuple[Path, str]], deadline_s: int | None
) -> Patch:
    patch: Patch = []
    for path, kind in templates:
        marks = (*path, "metadata", "labels")
        if labels.MANAGED not in (at(changed, marks) or {}):
            patch += put(changed, (*marks, labels.MANAGED), "true")
        patch += put(changed, (*marks, labels.SLOTS), kind)
        until = (*path, "spec", "activeDeadlineSeconds")
        if deadline_s is not None and at(changed, until) is None:
            patch += put(changed, until, deadline_s)
    return patch


def hand_on(changed: dict[str, Any], hands_on: Iterable[str]) -> Patch:
    """Have what ``changed`` makes ask, by the labels that it gets from these places; an element of
    a list that is not there is put behind the others. ``changed`` is changed.
    """
    patch: Patch = []
    for text in hands_on:
        path: Path = ()
        for name, key, value in _STEP.findall(text):
            path = (*path, name)
            if key:
                number, more = _element(changed, path, key, value)
                path, patch = (*path, number), patch + more
        if labels.MANAGED not in (at(changed, path) or {}):
            patch += put(changed, (*path, labels.MANAGED), "true")
    return patch


def _element(changed: dict[str, Any], path: Path, key: str, value: str) -> tuple[int, Patch]:
    """The index of the element of the list at ``path`` whose ``key`` is ``value``."""
    there = at(changed, path)
    if not there:
        return 0, put(changed, path, [{key: value}])
    for number, one in enumerate(there):
        if at(one, (key,)) == value:
            return number, []
    there.append({key: value})
    return len(there) - 1, [op("add", pointer(*path, "-"), value={key: value})]


def guard_stamps(old: Object, new: Object) -> Patch:
    """Undo what an edit does to that which admission alone writes: what ``old`` has, stays, as long
    as it asks to be queued.
    """
    changed, before = copy.deepcopy(dict(new)), at(old, _ANNOTATIONS) or {}
    is_asked = [(at(one, ("metadata", "labels")) or {}).get(labels.MANAGED) for one in (old, new)]
    patch: Patch = []
    for key in _STAMPS:
        path = (*_ANNOTATIONS, key)
        is_kept = is_asked == ["true", "true"] and key in before
        patch += put(changed, path, before[key]) if is_kept else take(changed, path)
    return patch


def without_stamps(meta: Object) -> Object:
    """Metadata without what admission writes."""
    annotations = meta.get("annotations") or {}
    return {**meta, "annotations": {k: v for k, v in annotations.items() if k not in _STAMPS}}


def start_patch(uid: str, suspend: str) -> dict[str, Any]:
    """Let it go: a merge patch, which any other object of its name refuses (422)."""
    whose = {labels.AUTHOR_SUSPENDED: None}
    return {"metadata": {"uid": uid, "annotations": whose}, **nested(suspend, False)}


def stop_patch(owner: Object, suspend: str) -> Patch:
    """Suspend it: its author let it go, or its pods are to end. Fails where it is not ours any
    more, since the queue was uninstalled.
    """
    changed = copy.deepcopy(dict(owner))
    return [
        same_uid(owner),
        op("test", pointer(*_ANNOTATIONS, labels.SUSPENDED), value="true"),
        *put(changed, tuple(suspend.split(".")), True),
        *put(changed, (*_ANNOTATIONS, labels.AUTHOR_SUSPENDED), "false"),
    ]


def leave_patch(owner: Object, suspend: str, *, is_unsuspended: bool) -> Patch:
    """Take our marks off for good, and our suspension unless told otherwise; not its author's.

    With its label goes what admission would have it keep, if it is still asked.
    """
    is_authors = (at(owner, _ANNOTATIONS) or {}).get(labels.AUTHOR_SUSPENDED) == "true"
    changed = copy.deepcopy(dict(owner))
    patch = [same_uid(owner), *take(changed, ("metadata", "labels", labels.MANAGED))]
    for key in (labels.SUSPENDED, labels.AUTHOR_SUSPENDED):
        patch += take(changed, (*_ANNOTATIONS, key))
    if is_unsuspended and not is_authors:
        patch += put(changed, tuple(suspend.split(".")), False)
    return patch
