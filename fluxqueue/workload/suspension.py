"""The patches that hold what makes pods by suspending it, and that release it. Pure.

``suspend_owner`` and ``guard_stamps`` are the webhook's answers. The worker sends
``resume_owner_patch`` and ``suspend_owner_patch``, and the uninstallation sends
``leave_owner_patch``. Its pods arrive after the release. Admission gates them like the pods of any
owner that asks to be queued.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable
from typing import Any

from fluxqueue.workload import labels
from fluxqueue.workload.json_patch import Patch, at, op, pointer, put, same_uid, take
from fluxqueue.workload.object_paths import Path, nested, value_at
from fluxqueue.workload.objects import Object

_ANNOTATIONS: Path = ("metadata", "annotations")
_STAMPS = (labels.SUSPENDED, labels.USER)
_STEP = re.compile(r"([^.\[]+)(?:\[([^=]+)=([^\]]+)\])?\.?")


def suspend_owner(
    owner: Object,
    *,
    suspend: str,
    templates: Iterable[tuple[Path, str]],
    user: str,
    deadline_s: int | None,
    hands_on: Iterable[str] = (),
    deadline: str = "",
    is_for_queue: bool = False,
) -> Patch:
    """Return the admission patch: suspended, labelled, its pods ask to be queued. Idempotent.

    Parameters
    ----------
    suspend : path of the field that suspends it.
    templates : path of each pod template, and the kind of slots that its pods need.
    deadline_s : how long its pods may run, if they do not state it (seconds).
    hands_on, deadline : as of ``owner_kinds.OwnerKind``.
    is_for_queue : its author suspended it so that the queue resumes it.
    """
    changed = copy.deepcopy(dict(owner))
    is_ours = (at(changed, _ANNOTATIONS) or {}).get(labels.SUSPENDED) == "true"
    patch: Patch = []
    if not value_at(changed, suspend):
        patch += take(changed, (*_ANNOTATIONS, labels.AUTHOR_SUSPENDED))
    elif not (is_ours or is_for_queue):
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
    """Label the templates of an object that a held object makes, each with its kind of slots.

    Its pods then ask to be queued. Parameters as of ``suspend_owner``. Idempotent.
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
    """Label ``changed`` so that what it makes asks to be queued. ``changed`` is changed.

    ``hands_on`` are the places of the labels that it copies. A missing element of a list is
    appended.
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
    """Return the index of the element of the list at ``path`` with ``value`` under ``key``."""
    there = at(changed, path)
    if not there:
        return 0, put(changed, path, [{key: value}])
    for number, one in enumerate(there):
        if at(one, (key,)) == value:
            return number, []
    there.append({key: value})
    return len(there) - 1, [op("add", pointer(*path, "-"), value={key: value})]


def guard_stamps(old: Object, new: Object) -> Patch:
    """Undo an edit of what only admission writes. The values of ``old`` stay while it asks.

    It asks to be queued by label.
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
    """Return metadata without what admission writes."""
    annotations = meta.get("annotations") or {}
    return {**meta, "annotations": {k: v for k, v in annotations.items() if k not in _STAMPS}}


def resume_owner_patch(uid: str, suspend: str) -> dict[str, Any]:
    """Return a merge patch that releases it. Any other object of its name refuses it (422)."""
    whose = {labels.AUTHOR_SUSPENDED: None}
    return {"metadata": {"uid": uid, "annotations": whose}, **nested(suspend, False)}


def suspend_owner_patch(owner: Object, suspend: str) -> Patch:
    """Suspend it: its author unsuspended it, or its pods must end.

    The patch fails if fluxqueue no longer manages it because the queue was uninstalled.
    """
    changed = copy.deepcopy(dict(owner))
    return [
        same_uid(owner),
        op("test", pointer(*_ANNOTATIONS, labels.SUSPENDED), value="true"),
        *put(changed, tuple(suspend.split(".")), True),
        *put(changed, (*_ANNOTATIONS, labels.AUTHOR_SUSPENDED), "false"),
    ]


def leave_owner_patch(owner: Object, suspend: str, *, is_unsuspended: bool) -> Patch:
    """Remove fluxqueue's marks for good, and its suspension. The author's suspension stays.

    ``is_unsuspended`` False keeps the suspension. Without the label, admission no longer preserves
    its marks, if it is still asked.
    """
    is_authors = (at(owner, _ANNOTATIONS) or {}).get(labels.AUTHOR_SUSPENDED) == "true"
    changed = copy.deepcopy(dict(owner))
    patch = [same_uid(owner), *take(changed, ("metadata", "labels", labels.MANAGED))]
    for key in (labels.SUSPENDED, labels.AUTHOR_SUSPENDED):
        patch += take(changed, (*_ANNOTATIONS, key))
    if is_unsuspended and not is_authors:
        patch += put(changed, tuple(suspend.split(".")), False)
    return patch
