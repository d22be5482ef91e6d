"""What makes pods while it waits suspended: the objects that admission and the worker want. Pure.

The entry of suspended objects calls it (``workload.kinds.suspended_owner``), and the webhook for
objects of other owners. The worker sends ``resume_owner_patch`` and ``suspend_owner_patch``, and
the uninstallation sends ``leave_owner_patch``. The pods arrive after the release. Admission gates
them like the pods of any owner that asks to be queued.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from fluxqueue.workload import labels
from fluxqueue.workload.annotations import Wishes
from fluxqueue.workload.gates import MARKS, NOTES, asking
from fluxqueue.workload.json_patch import Patch, at, edited, guarded_diff
from fluxqueue.workload.object_paths import Path, nested, value_at
from fluxqueue.workload.objects import Object
from fluxqueue.workload.owner_kinds import OwnerKind, labels_paths

_STAMPS = (labels.SUSPENDED, labels.USER)
_STEP = re.compile(r"([^.\[]+)(?:\[([^=]+)=([^\]]+)\])?\.?")


def suspended_owner(
    owner: Object,
    entry: OwnerKind,
    templates: Iterable[tuple[Path, str]],
    wishes: Wishes,
    user: str,
) -> Object:
    """Return an object as it waits: suspended, labelled, its pods ask to be queued. Idempotent.

    ``templates``: path of each pod template, and the kind of slots that its pods need.
    """
    changes: dict[Path, Any] = {
        tuple(entry.suspend.split(".")): True,
        (*MARKS, labels.MANAGED): "true",
        (*NOTES, labels.SUSPENDED): "true",
        (*NOTES, labels.USER): user or None,
    }
    is_ours = at(owner, (*NOTES, labels.SUSPENDED)) == "true" or wishes.is_suspended_for_queue
    if not value_at(owner, entry.suspend):
        changes[*NOTES, labels.AUTHOR_SUSPENDED] = None
    elif not is_ours:
        changes[*NOTES, labels.AUTHOR_SUSPENDED] = "true"
    until = tuple(entry.deadline.split(".")) if entry.deadline else ()
    waiting = edited(owner, changes | _until(owner, until, wishes.duration_s))
    return marked_templates(handing_on(waiting, entry.hands_on), templates, wishes.duration_s)


def _until(owner: Object, place: Path, deadline_s: int | None) -> dict[Path, Any]:
    is_set = not place or deadline_s is None or at(owner, place) is not None
    return {} if is_set else {place: deadline_s}


def marked_templates(
    owner: Object, templates: Iterable[tuple[Path, str]], deadline_s: int | None
) -> Object:
    """Return an object with the kind of slots as a label in each of its templates.

    Its pods then ask to be queued. ``deadline_s``: how long they may run, if they do not state it.
    ``templates`` as of ``suspended_owner``. Idempotent.
    """
    for path, kind in templates:
        owner = asking(owner, (*path, *MARKS))
        until = _until(owner, (*path, "spec", "activeDeadlineSeconds"), deadline_s)
        owner = edited(owner, {(*path, *MARKS, labels.SLOTS): kind, **until})
    return owner


def handing_on(owner: Object, hands_on: Iterable[str]) -> Object:
    """Return an object with labels such that what it makes asks to be queued.

    ``hands_on`` are the places of the labels that it copies. A missing element of a list is
    appended.
    """
    for text in hands_on:
        path: Path = ()
        for name, key, value in _STEP.findall(text):
            path = (*path, name)
            if key:
                there = at(owner, path) or []
                found = (n for n, one in enumerate(there) if at(one, (key,)) == value)
                number = next(found, len(there))
                if number == len(there):
                    owner = edited(owner, {path: [*there, {key: value}]})
                path = (*path, number)
        owner = asking(owner, path)
    return owner


def with_asking_pods(owner: Object, entry: OwnerKind) -> Object:
    """Return an object with pods that ask to be queued, in the queue that its own label names."""
    queue = at(owner, (*MARKS, labels.QUEUE))
    for path in labels_paths(entry, owner):
        owner = asking(owner, path)
        if queue is not None and labels.QUEUE not in (at(owner, path) or {}):
            owner = edited(owner, {(*path, labels.QUEUE): queue})
    return handing_on(owner, entry.hands_on)


def with_stamps_of(old: Object, new: Object) -> Object:
    """Return ``new`` with what only admission writes as it is in ``old``, while both ask.

    They ask to be queued by label. An object that did not ask before has no such values.
    """
    is_kept = all(at(one, (*MARKS, labels.MANAGED)) == "true" for one in (old, new))
    return edited(
        new, {(*NOTES, key): at(old, (*NOTES, key)) if is_kept else None for key in _STAMPS}
    )


def resume_owner_patch(uid: str, suspend: str) -> dict[str, Any]:
    """Return a merge patch that releases it. Any other object of its name refuses it (422)."""
    whose = {labels.AUTHOR_SUSPENDED: None}
    return {"metadata": {"uid": uid, "annotations": whose}, **nested(suspend, False)}


def suspend_owner_patch(owner: Object, suspend: str) -> Patch:
    """Suspend it: its author unsuspended it, or its pods must end.

    The patch fails if fluxqueue no longer manages it because the queue was uninstalled.
    """
    origin = (*NOTES, labels.AUTHOR_SUSPENDED)
    wanted = edited(owner, {tuple(suspend.split(".")): True, origin: "false"})
    return guarded_diff(owner, wanted, (*NOTES, labels.SUSPENDED))


def leave_owner_patch(owner: Object, suspend: str, *, is_unsuspended: bool) -> Patch:
    """Remove fluxqueue's marks for good, and its suspension. The author's suspension stays.

    ``is_unsuspended`` False keeps the suspension. Without the label, admission no longer preserves
    its marks, if it is still asked.
    """
    origin = (*NOTES, labels.AUTHOR_SUSPENDED)
    marks = ((*MARKS, labels.MANAGED), (*NOTES, labels.SUSPENDED), origin)
    changes: dict[Path, Any] = dict.fromkeys(marks)
    if is_unsuspended and at(owner, origin) != "true":
        changes[tuple(suspend.split("."))] = False
    return guarded_diff(owner, edited(owner, changes))
